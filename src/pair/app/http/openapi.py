"""The OpenAPI document: what FastAPI generates from the routes, with errors, examples and links."""

import functools
import json
import re
from importlib import resources
from typing import Any

import pydantic_core
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from pair import __version__, errors
from pair.app.http import responses
from pair.app.http.responses import JSON, LINES
from pair.app.http.schemas import Error, OpenAiError, adapter

Json = dict[str, Any]
EXAMPLES: Json = json.loads(resources.files("pair.app.http").joinpath("examples.json").read_bytes())
"""Bodies of requests and answers by the names of their schemas, and streams by operation ids."""
_ERRORS: dict[int, tuple[str, errors.PairError]] = {
    400: (
        "The request is malformed, or names a mode, a KB or a graph that does not exist.",
        errors.request_invalid("query: field required"),
    ),
    401: ("Credentials are missing or wrong.", errors.credentials_refused("the key is not known")),
    403: ("The credentials do not allow this.", errors.not_allowed("this needs the scope write, and yours is read")),
    404: ("No such document, version or librarian.", errors.no_such_document("default", "guides/deploy.md")),
    405: ("The route has no such method.", errors.method_not_allowed("PUT", "GET")),
    408: ("The request arrived too slowly.", errors.request_too_slow(30)),
    409: ("Another writer changed the same KB. Nothing was written.", errors.manifest_changed("default")),
    413: ("The request is too large.", errors.request_too_large("The request", 52_428_800)),
    429: ("Too many requests.", errors.too_many_requests()),
    500: (
        "Stored data is damaged, or a bug.",
        errors.stored_data_damaged("default.duckdb.manifest.json", "it is not a manifest that can be read"),
    ),
    503: ("The cache, the store or a model is unavailable, or the server is stopping.", errors.server_stopping()),
}
_ALWAYS = {400, 401, 403, 405, 408, 429, 500}
_KB = {"kb_id": "kb_id"}
_LINKS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "post_rag_ingest": {
        "read": ("get_rag_docs_id", {"id": "doc_ids/0", **_KB}),
        "delete": ("delete_rag_docs_id", {"id": "doc_ids/0", **_KB}),
        "list": ("get_rag_docs", _KB),
    },
    "get_rag_docs": {
        "read": ("get_rag_docs_id", {"id": "documents/0/id", **_KB}),
        "next": ("get_rag_docs", {"after": "next", **_KB}),
    },
    "get_rag_docs_id": {"delete": ("delete_rag_docs_id", {"id": "id", **_KB})},
    "get_rag_kbs": {"list": ("get_rag_docs", {"kb_id": "kbs/0/kb_id"})},
    "get_rag_versions": {"compare": ("get_rag_diff", {"a": "versions/0/version", **_KB})},
    "get_librarians": {"ask": ("post_librarians_id_ask", {"id": "librarians/0/id"})},
    "get_v1_models": {"read": ("get_v1_models_id", {"id": "data/0/id"})},
}
"""Requests that can follow an answer: the operation, and where in the answer its parameters are."""
_INFO = (
    "Search and ask knowledge bases, and store documents in them. All errors have the same body, except below `/v1/`, "
    "where they have that of the OpenAI API. `Retry-After` says when to try again. Every response has an "
    "`X-Request-ID`: that of the request, or a new one. "
    "`POST /mcp` is not described here: it speaks the Model Context Protocol, with the same credentials."
)
_REFERENCE = "#/components/schemas/"
_bodies: dict[str, type[Any]] = {"Error": Error, "OpenAiError": OpenAiError}
"""Schemas that routes refer to by name: FastAPI does not read these bodies, so it does not know them."""


def describe(answer: Any, text: str, *statuses: int, body: type[Any] | None = None) -> Json:
    """Return the options of a route that describe it.

    `answer`: the model of the body with status 200, or a media type. `text` says what it holds. `statuses`: errors
    besides those that every route has.
    """
    described = {"content": {answer: {"schema": {"type": "string"}}}} if isinstance(answer, str) else {"model": answer}
    options: Json = {
        "responses": {200: {**described, "description": text}, **{status: {} for status in statuses}},
        "response_class": Response,
    }
    if body is not None:
        _bodies[body.__name__] = body
        content: Json = {JSON: {"schema": {"$ref": _REFERENCE + body.__name__}}}
        options["openapi_extra"] = {"requestBody": {"content": content}}
    return options


@functools.cache
def make_document(api: FastAPI) -> Json:
    document: Json = get_openapi(
        title="pair",
        version=__version__,
        description=_INFO,
        license_info={"name": "Apache-2.0"},
        routes=api.routes,
    )
    schemas: Json = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):  # E601 is an Error like all others
        schemas.pop(name, None)
    for name, model in _bodies.items():
        schema = adapter(model).json_schema(ref_template=_REFERENCE + "{model}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["operationId"] = method + re.sub(r"\W+", "_", path).rstrip("_")
            _complete(operation, path, schemas)
    return document


def _complete(operation: Json, path: str, schemas: Json) -> None:
    """Add what all routes share, and the examples."""
    name = operation["operationId"]
    operation["summary"] = operation.pop("description").partition("\n")[0]
    if "security" in operation:
        scope = operation["security"][0]["credentials"][0]
        operation["description"] = f"Needs the scope `{scope}` if the server requires credentials."
        operation["security"] = [{}, {"credentials": []}]
    header = {"name": "X-Request-ID", "in": "header", "required": False, "schema": {"type": "string"}}
    operation["parameters"] = [*operation.get("parameters", []), header]
    streams: dict[str, str] = EXAMPLES["streams"].get(name, {})
    answer = operation["responses"]["200"]
    answer["headers"] = {"X-Request-ID": {"schema": {"type": "string"}}}
    _add_examples(answer["content"])
    for kind, example in streams.items():
        answer["content"][kind] = {"schema": {"type": "string"}, "example": example}
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        operation["requestBody"]["required"] = "required" in schemas[_add_examples(content)]
        if LINES in streams:
            content[LINES] = {
                "schema": {"type": "string", "description": "A document a line; see DocumentIn."},
                "example": '{"id": "a", "text": "Some text."}\n{"id": "b", "text": "More text."}\n',
            }
    if name in _LINKS:
        answer["links"] = {
            link: {
                "operationId": target,
                "parameters": {parameter: f"$response.body#/{place}" for parameter, place in places.items()},
            }
            for link, (target, places) in _LINKS[name].items()
        }
    declared = {int(status) for status in operation["responses"]} - {200, 422}
    statuses = _ALWAYS | declared | ({413} if "requestBody" in operation else set())
    statuses |= {503} if "security" in operation else set()
    operation["responses"] = {
        "200": answer,
        **{str(status): _describe_error(status, path) for status in sorted(statuses)},
    }


def _add_examples(content: Json) -> str:
    """Add the example of the schema that is named, and return the name."""
    name = ""
    for media_type in content.values():
        name = media_type["schema"].get("$ref", "").removeprefix(_REFERENCE)
        if name:
            media_type["example"] = EXAMPLES[name]
    return name


def _describe_error(status: int, path: str) -> Json:
    text, fault = _ERRORS[status]
    name = "OpenAiError" if responses.speaks_openai(path) else "Error"
    example = pydantic_core.from_json(responses.error_body(fault, path))
    described: Json = {
        "description": text,
        "content": {JSON: {"schema": {"$ref": _REFERENCE + name}, "example": example}},
    }
    if status in {409, 429, 503}:
        described["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return described
