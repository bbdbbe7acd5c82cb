"""The tools: what they take, what they give, and how much of it.

Invariants
    Results fit into `server.mcp_result_tokens`; a note says what was cut, and how to get the rest.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pydantic
import pydantic_core
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import FailFast, Field

from pair import errors
from pair.app.kb_access import IngestRun, KbAccess, SearchCall
from pair.app.mcp.rules import BYTES_PER_TOKEN, Address, cut, cut_evenly, is_address, json_size, take_fitting
from pair.app.validation import adapter, first_problem, strict
from pair.auth.rules import covers
from pair.kb.open import DEFAULT_KB
from pair.librarians.citations import RETRIEVAL_KEY
from pair.librarians.contract import Citation, Response
from pair.values import DEFAULT_MODE, Document, Hit, SearchMode

Json = dict[str, Any]

_MOST_TITLE_BYTES = 300
_MOST_URL_BYTES = 2_000
_MOST_MESSAGE_BYTES = 1_000
_MOST_META_BYTES = 16_000
META = "_meta"
"""The key of data that is sent beside a result."""
NOTE_BYTES = 400
"""Kept free for a note about the result."""

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}
_PASSAGE: Json = {"id": _TEXT, "title": _TEXT, "url": _TEXT, "text": _TEXT, "start": _COUNT}


def _object(properties: Json, optional: Json | None = None) -> Json:
    return {"type": "object", "properties": {**properties, **(optional or {})}, "required": list(properties)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"type": [schema["type"], "null"]}


_READS = {"readOnlyHint": True, "openWorldHint": False}
_WRITES = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


class ToolError(Exception):
    """There is no result: why, and what to do."""

    def __init__(self, error: Json) -> None:
        super().__init__(error["code"])
        self.error = {
            key: cut(value, _MOST_MESSAGE_BYTES) if isinstance(value, str) else value for key, value in error.items()
        }


Work = Callable[[KbAccess, Any], Awaitable[Json]]


async def _do_nothing(_access: KbAccess, _asked: Any) -> Json:
    return {}


@dataclass(frozen=True)
class Tool:
    """A tool. It decorates the function that does its work, and takes its place; the docstring is its description."""

    arguments: type[Any]
    result: Json
    """JSON schema of the result."""
    hints: Mapping[str, bool] = field(default_factory=lambda: _READS)
    """Effects of the tool, by the names that the protocol has for them."""
    work: Work = _do_nothing

    def __call__(self, work: Work) -> "Tool":
        return dataclasses.replace(self, work=work)

    @property
    def name(self) -> str:
        return self.work.__name__

    @property
    def description(self) -> str:
        return self.work.__doc__ or ""

    def is_usable(self, access: KbAccess) -> bool:
        may_write = access.service.settings.server.mcp_write and covers(access.principal.scope, "write")
        return may_write or self.hints["readOnlyHint"]

    async def run(self, access: KbAccess, arguments: Json) -> Json:
        """Raises E601, E603, ToolError, and what the work raises. A number may come as text."""
        if not self.is_usable(access):
            hints = ["pair mcp --allow-write", "server.mcp_write: true, and credentials that may write"]
            raise errors.not_allowed("writing", hints=hints)
        try:  # what JSON does not know, or only when it is read leniently, is refused
            written = pydantic_core.to_json(arguments, inf_nan_mode="constants")
            asked = adapter(self.arguments).validate_python(pydantic_core.from_json(written, allow_inf_nan=False))
        except pydantic.ValidationError as fault:
            raise errors.request_invalid(first_problem(fault)) from fault
        except ValueError as fault:
            raise errors.request_invalid("the arguments are nested too deeply, or not JSON") from fault
        return await self.work(access, asked)

    def input_schema(self) -> Json:
        schema = adapter(self.arguments).json_schema()
        return {**_simplify(schema, schema.get("$defs", {})), "additionalProperties": False}


def _simplify(schema: Any, definitions: Json) -> Any:
    """Leave out names and defaults that say nothing: assistants pay for every word."""
    if isinstance(schema, list):
        return [_simplify(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _simplify(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    left_out = {"$defs", "additionalProperties", "maxLength", "minLength", "minItems"}
    if isinstance(schema.get("title"), str):
        left_out.add("title")
    if schema.get("default") in ("", {}, 0):
        left_out.add("default")
    return {key: _simplify(value, definitions) for key, value in schema.items() if key not in left_out}


Kb = Annotated[str, MaxLen(128), Field(description="See list_kbs")]
Query = Annotated[str, MinLen(1), MaxLen(20_000)]
Id = Annotated[str, MinLen(1), MaxLen(20_000), Field(description="From search, or its id")]
At = Annotated[str, MaxLen(200), Field(description="Older version", coerce_numbers_to_str=True)]


@strict
class SearchArguments:
    query: Query
    kb: Kb = ""
    limit: Annotated[int, Ge(1), Le(50)] = 8
    mode: SearchMode = DEFAULT_MODE
    filter: Annotated[Json, Field(description='On metadata: {"year": {"gte": 2020}}')] = field(default_factory=dict)
    at: At = ""


@strict
class FetchArguments:
    id: Id
    kb: Kb = ""
    offset: Annotated[int, Ge(0), Field(description="Character to begin at")] = 0


@strict
class AskArguments:
    query: Query
    kb: Kb = ""


@strict
class ListArguments:
    after: Annotated[str, Field(description="`next` of the last call")] = ""


@strict
class DocumentArgument:
    text: Annotated[str, MinLen(1)]
    id: Annotated[str, MaxLen(4096)] = ""
    title: str = ""
    url: str = ""
    metadata: Json = field(default_factory=dict)


@strict
class IngestArguments:
    documents: Annotated[list[DocumentArgument], MinLen(1), FailFast()]
    kb: Kb = ""


@strict
class DeleteArguments:
    id: Id
    kb: Kb = ""


def most_bytes(access: KbAccess) -> int:
    """Return how long a result may be, without its note."""
    return access.service.settings.server.mcp_result_tokens * BYTES_PER_TOKEN - NOTE_BYTES


def _use_kb(access: KbAccess, kb: str) -> str:
    """A caller who may use one KB only need not name it. Raises E603."""
    own = access.principal.kbs
    return access.use_kb(kb or (next(iter(own)) if own is not None and len(own) == 1 else DEFAULT_KB))


def _add_note(value: Json, notes: list[str]) -> Json:
    return {**value, "note": " ".join(notes)} if notes else value


@Tool(
    SearchArguments,
    _object({"kb": _TEXT, "results": _list(_object({**_PASSAGE, "end": _COUNT, "score": _NUMBER}))}, {"note": _TEXT}),
)
async def search(access: KbAccess, asked: SearchArguments) -> Json:
    """Find passages by words and meaning, best first."""
    kb = _use_kb(access, asked.kb)
    call = SearchCall(asked.query, asked.limit, asked.mode, asked.filter or None, asked.at or None)
    hits, _, _ = await access.search(kb, call)
    at = str(hits.manifest_version) if asked.at else ""
    value: Json = {"kb": kb, "results": []}
    left = most_bytes(access) - json_size(value)
    frames = take_fitting([_describe_hit(kb, hit, at) for hit in hits], left)
    shown = list(hits)[: len(frames)]
    texts = cut_evenly([hit.text for hit in shown], left - json_size(frames))
    value["results"] = [{**frame, "text": text} for frame, text in zip(frames, texts, strict=True)]
    notes = []
    if hits.partial:
        notes.append("Some of the knowledge base could not be searched.")
    if len(frames) < len(hits):
        notes.append(f"{len(hits) - len(frames)} results left out: ask for fewer.")
    if any(text != hit.text for text, hit in zip(texts, shown, strict=True)):
        notes.append("Passages were cut: fetch with id and offset=start gives the rest.")
    return _add_note(value, notes)


def _describe_hit(kb: str, hit: Hit, at: str) -> Json:
    address = str(Address(kb, hit.document_id, at=at))
    return {
        "id": address,
        "title": cut(hit.title or hit.document_id, _MOST_TITLE_BYTES),
        "url": _choose_url(hit.url, address),
        "score": round(hit.score, 4),
        "start": hit.start,
        "end": hit.end,
        "text": "",
    }


def _choose_url(url: str, address: str) -> str:
    """Cite a document without a URL by its address."""
    return url if url and json_size(url) <= _MOST_URL_BYTES else address


@Tool(
    FetchArguments,
    _object(
        {
            "id": _TEXT,
            "title": _TEXT,
            "url": _TEXT,
            "text": _TEXT,
            "metadata": {"type": "object"},
            "offset": _COUNT,
            "total": _COUNT,
            "next_offset": _or_null(_COUNT),
        },
        {"note": _TEXT},
    ),
)
async def fetch(access: KbAccess, asked: FetchArguments) -> Json:
    """Read a document; a long one in parts, by offset."""
    address = _find_document(access, asked.kb, asked.id)
    offset = asked.offset or address.offset
    document = await access.read_document(address.kb, address.document_id, address.at or None)
    own = str(Address(address.kb, document.id, at=address.at))
    value: Json = {
        "id": own,
        "title": cut(document.title or document.id, _MOST_TITLE_BYTES),
        "url": _choose_url(document.url, own),
        "text": "",
        "metadata": {},
        "offset": offset,
        "total": len(document.text),
        "next_offset": None,
    }
    most, notes = most_bytes(access), []
    if json_size(document.metadata) <= most // 4:
        value["metadata"] = dict(document.metadata)
    else:
        notes.append("The metadata was too long.")
    value["text"] = cut(document.text[offset:], max(most - json_size(value), NOTE_BYTES))
    end = offset + len(value["text"])
    if end < len(document.text):
        value["next_offset"] = end
        notes.append(f"Characters {offset} to {end} of {len(document.text)}: fetch with offset={end} gives more.")
    elif offset > len(document.text):
        notes.append(f"The text ends at character {len(document.text)}.")
    return _add_note(value, notes)


def _find_document(access: KbAccess, kb: str, given: str) -> Address:
    """Raises E601, E603."""
    if not is_address(given):
        return Address(_use_kb(access, kb), given)
    address = Address.parse(given)
    if not address.document_id:
        raise errors.request_invalid("the address of a knowledge base, not of a document")
    return dataclasses.replace(address, kb=_use_kb(access, address.kb))


@Tool(
    AskArguments,
    _object(
        {
            "answer": _TEXT,
            "confidence": _or_null(_NUMBER),
            "partial": {"type": "boolean"},
            "sources": _list(_object(_PASSAGE)),
        },
        {"note": _TEXT},
    ),
    {"readOnlyHint": True},
)
async def ask(access: KbAccess, asked: AskArguments) -> Json:
    """Answer a question from the documents, with sources: [1] is the first."""
    kb = _use_kb(access, asked.kb)
    needs_kb = bool(asked.kb) or not access.principal.sees_all
    run = await access.prepare_ask(asked.query, kb if needs_kb else None)
    response = await run.answer()
    error, answer = response.error, response.answer or ""
    if error is not None and not answer:
        details = {"code": error.details.get("code", error.code), "message": error.message}
        suggestion = {"suggestion": error.suggestion} if error.suggestion else {}
        raise ToolError({**details, "recoverable": bool(error.recoverable), **suggestion})
    most = most_bytes(access)
    value: Json = {
        "answer": cut(answer, most // 2),
        "confidence": response.confidence,
        "partial": response.partial or error is not None,
        "sources": [],
    }
    left = most - json_size(value)
    frames = take_fitting([_describe_source(source) for source in response.sources], left)
    shown = response.sources[: len(frames)]
    quotes = cut_evenly([source.quote for source in shown], left - json_size(frames))
    value["sources"] = [{**frame, "text": quote} for frame, quote in zip(frames, quotes, strict=True)]
    notes = []
    if error is not None:
        notes.append(cut(error.message, NOTE_BYTES // 2))
    if value["answer"] != answer:
        notes.append("The answer was cut: ask for less.")
    if len(frames) < len(response.sources) or quotes != [source.quote for source in shown]:
        notes.append("Sources were cut: fetch has them whole.")
    return {**_add_note(value, notes), **_describe_retrieval(response)}


def _describe_retrieval(response: Response) -> Json:
    """Tell clients how the passages were found, beside the result: the model need not read it."""
    retrieval = response.to_json().get("metadata", {}).get(RETRIEVAL_KEY)
    if not retrieval or json_size(retrieval) > _MOST_META_BYTES:
        return {}
    return {META: {f"pair/{RETRIEVAL_KEY}": retrieval}}


def _describe_source(source: Citation) -> Json:
    origin = source.provenance
    address = str(Address(origin.kb_id, origin.document_id)) if origin else ""
    return {
        "id": address or cut(source.id, _MOST_URL_BYTES),
        "title": cut(source.name, _MOST_TITLE_BYTES),
        "url": _choose_url(source.url, address),
        "start": origin.start if origin else 0,
        "text": "",
    }


@Tool(
    ListArguments,
    _object(
        {
            "kbs": _list(_object({"kb": _TEXT, "documents": _COUNT, "chunks": _COUNT, "version": _COUNT})),
            "next": _or_null(_TEXT),
        }
    ),
)
async def list_kbs(access: KbAccess, asked: ListArguments) -> Json:
    """List knowledge bases and their sizes."""
    entries = [
        {"kb": kb["kb_id"], "documents": kb["documents"], "chunks": kb["chunks"], "version": kb["manifest_version"]}
        for kb in await access.list_kbs()
        if kb["kb_id"] > asked.after
    ]
    shown = take_fitting(entries, most_bytes(access))
    return {"kbs": shown, "next": shown[-1]["kb"] if shown and len(shown) < len(entries) else None}


@Tool(
    IngestArguments,
    _object({"kb": _TEXT, "stored": _COUNT, "unchanged": _COUNT, "ids": _list(_TEXT)}, {"note": _TEXT}),
    _WRITES,
)
async def ingest(access: KbAccess, asked: IngestArguments) -> Json:
    """Add documents; one with the same id is replaced."""
    kb = _use_kb(access, asked.kb)
    run = IngestRun(access, kb)
    await run.write([Document(one.id, one.text, one.title, one.url, one.metadata) for one in asked.documents])
    ids = [str(Address(kb, document_id)) for document_id in run.ids]
    shown = take_fitting(ids, most_bytes(access))
    counts = {"stored": run.counts["ingested_docs"], "unchanged": run.counts["unchanged_docs"]}
    return _add_note(
        {"kb": kb, **counts, "ids": shown},
        [f"{len(ids) - len(shown)} more ids."] if len(shown) < len(ids) else [],
    )


@Tool(
    DeleteArguments,
    _object({"kb": _TEXT, "deleted": _COUNT}),
    {**_WRITES, "idempotentHint": True},
)
async def delete(access: KbAccess, asked: DeleteArguments) -> Json:
    """Delete a document."""
    address = _find_document(access, asked.kb, asked.id)
    if address.at:
        raise errors.request_invalid("nothing is deleted from an earlier version")
    report = await access.delete(address.kb, address.document_id)
    return {"kb": address.kb, "deleted": report["deleted"]}


TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (search, fetch, ask, list_kbs, ingest, delete)}
