"""Routes in third-party formats: the external-knowledge contract of Dify, llms.txt, and metadata for OAuth clients."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from annotated_types import Ge, Le, MaxLen, MinLen
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from pair import errors
from pair.app.http import schemas
from pair.app.http.context import Anyone, HttpRequest, Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import answer
from pair.app.http.schemas import PathId
from pair.auth.rules import SCOPES, covers
from pair.kb.kb import KnowledgeBase
from pair.network import has_host
from pair.values import Hits

router = APIRouter()

_MOST_LISTED = 1_000
"""Maximum number of documents in llms.txt. A note says how to list the others."""
PLAIN = "text/plain"
_OPERATORS: Mapping[str, str] = {
    "is": "eq",
    "=": "eq",
    "is not": "ne",
    "≠": "ne",
    "in": "in",
    "not in": "not_in",
    "contains": "contains",
    "start with": "prefix",
    ">": "gt",
    "≥": "gte",
    "<": "lt",
    "≤": "lte",
    "after": "gt",
    "before": "lt",
}
"""Comparisons of Dify and the operators of filters. `contains` finds a value in a list."""


@dataclass(frozen=True)
class RetrievalSetting:
    """How much to return. Other fields are ignored."""

    top_k: Annotated[int, Ge(1), Le(1000)] = 5
    score_threshold: Annotated[float, Ge(0), Le(1)] = 0.0


@dataclass(frozen=True)
class MetadataComparison:
    """One condition on metadata."""

    name: Annotated[str, MinLen(1)] | Annotated[list[str], MinLen(1)]
    comparison_operator: Annotated[str, Field(examples=["is"])]
    value: Any = None

    def to_filter(self) -> dict[str, Any]:
        """Return the condition as a filter. Raises E601 for an operator that filters lack."""
        names = [self.name] if isinstance(self.name, str) else self.name
        if self.comparison_operator in {"empty", "not empty"}:
            condition: dict[str, Any] = {"exists": self.comparison_operator == "not empty"}
        elif self.comparison_operator in _OPERATORS:
            condition = {_OPERATORS[self.comparison_operator]: self.value}
        else:
            known = ", ".join([*_OPERATORS, "empty", "not empty"])
            raise errors.request_invalid(
                "metadata_condition.conditions.comparison_operator: not supported", hints=[f"Use one of: {known}"]
            )
        filters = [{name: condition} for name in names]
        return filters[0] if len(filters) == 1 else {"$or": filters}


@dataclass(frozen=True)
class MetadataCondition:
    conditions: Annotated[list[MetadataComparison], MaxLen(100)]
    logical_operator: Literal["and", "or"] = "and"


@dataclass(frozen=True)
class RetrievalRequest:
    """A search by the external-knowledge contract of Dify. `knowledge_id` is the id of a KB."""

    query: Annotated[str, MinLen(1), MaxLen(20_000)]
    knowledge_id: schemas.KbId = ""
    retrieval_setting: RetrievalSetting = field(default_factory=RetrievalSetting)
    metadata_condition: MetadataCondition | None = None


class RetrievedRecord(BaseModel):
    content: str
    score: float
    title: str
    metadata: dict[str, Any]


class RetrievalResponse(BaseModel):
    records: list[RetrievedRecord]


@router.post("/retrieval", **describe(RetrievalResponse, 404, body=RetrievalRequest))
async def retrieve(request: Reader) -> Response:
    """Search as an external knowledge base of Dify

    The request and the response follow the external-knowledge contract of Dify. Enter the address of the server, a key,
    and the id of the KB there.
    """
    asked = await request.read(RetrievalRequest)
    kb_id, setting = request.access.use_kb(asked.knowledge_id), asked.retrieval_setting
    conditions: dict[str, Any] | None = None
    if asked.metadata_condition is not None and asked.metadata_condition.conditions:
        given = [condition.to_filter() for condition in asked.metadata_condition.conditions]
        conditions = {f"${asked.metadata_condition.logical_operator}": given}

    def search(kb: KnowledgeBase) -> Hits:
        return kb.search(asked.query, limit=setting.top_k, filter=conditions)

    hits, _, _ = await request.access.search(kb_id, None, search)
    records = [
        {
            "content": hit.text,
            "score": hit.score,
            "title": hit.title or hit.document_id,
            "metadata": {**hit.metadata, "path": hit.url or hit.document_id, "document_id": hit.document_id},
        }
        for hit in hits
        if hit.score >= setting.score_threshold
    ]
    return answer({"records": records})


@router.get("/llms.txt", **describe(PLAIN, 404))
async def list_for_models(request: Reader, asked: Annotated[schemas.DocumentParameters, Query()]) -> Response:
    """List the documents of a knowledge base as llms.txt

    Each link leads to a document as Markdown.
    """
    kb_id = request.access.use_kb(asked.kb_id)
    documents = await request.access.read(kb_id, asked.at, lambda kb: kb.documents(limit=_MOST_LISTED))
    chosen = {"kb_id": kb_id} | ({"at": asked.at} if asked.at else {})
    parameters = "&".join(f"{name}={quote(value, safe='')}" for name, value in chosen.items())
    lines = [f"# {kb_id}", "", "> Documents of a knowledge base. Request a link with `Accept: text/markdown`.", ""]
    lines += ["## Documents", ""]
    for document in documents:
        title = " ".join((document.title or document.id).split()).replace("[", "(").replace("]", ")")
        lines.append(f"- [{title}](/rag/docs/{quote(document.id, safe='')}?{parameters})")
    if documents.next is not None:
        lines += ["", f"More documents: `/rag/docs?after={quote(documents.next, safe='')}&{parameters}`"]
    return Response("\n".join(lines) + "\n", media_type=f"{PLAIN}; charset=utf-8")


# ── metadata for OAuth clients (RFC 9728) ──────────────────────────────────────────────────────────

_WELL_KNOWN = "/.well-known/oauth-protected-resource"
_MCP_PATH = "/mcp"
_HOST = re.compile(r"[A-Za-z0-9.:_\[\]-]{1,300}")
"""A host without characters that would end a quoted text in a header."""


@router.get(_WELL_KNOWN, include_in_schema=False)
async def describe_server(request: Anyone) -> Response:
    """Describe the whole server to OAuth clients."""
    return _describe_resource(request, "")


@router.get(_WELL_KNOWN + "/{id:text}", include_in_schema=False)
async def describe_route(request: Anyone, id: PathId) -> Response:
    """Describe one route to OAuth clients: `/mcp`."""
    return _describe_resource(request, f"/{id}")


def _describe_resource(request: HttpRequest, path: str) -> Response:
    """Return the metadata of a protected resource. Raises E604 if the server accepts no tokens of an OAuth server."""
    resource = _find_resource(request, path)
    named = request.context.settings.jwt_audience
    audience = urlsplit(named if has_host(named) else "")
    if not resource or path not in {"", _MCP_PATH, audience.path if audience.netloc else ""}:
        raise errors.no_such_route(request.scope["path"])
    value: dict[str, Any] = {
        "resource": resource,
        "authorization_servers": [request.context.settings.jwt_issuer],
        "scopes_supported": [f"pair:{scope}" for scope in SCOPES],
        "bearer_methods_supported": ["header"],
        "resource_name": "pair",
    }
    return answer(value)


def _find_resource(request: HttpRequest, path: str) -> str:
    """Return the identifier of a protected resource; "" without an OAuth server.

    An audience that is a URL is the identifier. Otherwise the identifier is the address that the client used.
    """
    settings, host = request.context.settings, request.header(b"host")
    if settings.auth != "jwt" or not has_host(settings.jwt_issuer):
        return ""
    if has_host(settings.jwt_audience):
        return settings.jwt_audience
    used = f"{request.scope['scheme']}://{host}{path}"
    return used if _HOST.fullmatch(host) and has_host(used) else ""


def make_challenge(request: HttpRequest, status: int) -> str:
    """Return the WWW-Authenticate header of a refused request; "" if other credentials would not help."""
    needed, path = request.needed_scope, request.scope["path"]
    if status == 403 and covers(request.access.principal.scope, needed):
        return ""
    parts = ['Bearer realm="pair"']
    if status == 403:
        parts.append('error="insufficient_scope"')
    elif request.header(b"authorization"):
        parts.append('error="invalid_token"')
    resource = _find_resource(request, _MCP_PATH if path == _MCP_PATH else "")
    if resource:
        may_write = path == _MCP_PATH and request.context.settings.mcp_write
        parts.append(f'scope="pair:{needed}{" pair:write" if may_write else ""}"')
        place = urlsplit(resource)
        parts.append(f'resource_metadata="{place.scheme}://{place.netloc}{_WELL_KNOWN}{place.path.rstrip("/")}"')
    return ", ".join(parts)
