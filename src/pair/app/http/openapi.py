"""The OpenAPI document: what FastAPI generates from the routes, with descriptions, errors, examples and links."""

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
_FILES = resources.files("pair.app.http")
EXAMPLES: Json = json.loads(_FILES.joinpath("examples.json").read_bytes())
"""Bodies of requests and responses by schema name, and streams by operation id."""
DESCRIPTIONS: dict[str, dict[str, str]] = json.loads(_FILES.joinpath("descriptions.json").read_bytes())
"""Texts for 200 responses by schema name or operation id, for errors by status, and for fields and parameters by name.

`Schema.field` and `operation_id.parameter` win over the name alone.
"""
_ERRORS: dict[int, errors.PairError] = {
    400: errors.request_invalid("query: field required"),
    401: errors.credentials_refused("the key is not known"),
    403: errors.not_allowed("this needs the scope write, and yours is read"),
    404: errors.no_such_document("default", "guides/deploy.md"),
    405: errors.method_not_allowed("PUT", "GET"),
    408: errors.request_too_slow(30),
    409: errors.manifest_changed("default"),
    413: errors.request_too_large("The request", 52_428_800),
    429: errors.too_many_requests(),
    500: errors.stored_data_damaged("default.duckdb.manifest.json", "it is not a readable manifest"),
    503: errors.server_stopping(),
}
"""An example for each status."""
ANY_TYPE = "*/*"
"""The media type of a file."""
_ALWAYS = {400, 401, 403, 405, 408, 429, 500}
_KB = {"kb_id": "kb_id"}
_STORED = {
    "read": ("get_rag_docs_id", {"id": "doc_ids/0", **_KB}),
    "delete": ("delete_rag_docs_id", {"id": "doc_ids/0", **_KB}),
}
_LINKS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "post_rag_ingest": {**_STORED, "list": ("get_rag_docs", _KB)},
    "put_rag_docs_id": _STORED,
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
"""Requests that can follow a response: the operation, and the JSON pointers of its parameters in the response."""
_INFO = (
    "Search knowledge bases (KBs), ask questions about them and store documents in them. All errors have the same "
    "body, except below `/v1/`, where errors follow the OpenAI API. `Retry-After` has the seconds to wait "
    "before a retry. Every response has an `X-Request-ID`: that of the request, or a new one. "
    "`POST /mcp` speaks the Model Context Protocol with the same credentials; it is not described here."
)
_REFERENCE = "#/components/schemas/"
_bodies: dict[str, type[Any]] = {"Error": Error, "OpenAiError": OpenAiError}
"""Schemas that routes refer to by name. FastAPI does not read these bodies, so it does not generate their schemas."""


def describe(answer: Any, *statuses: int, body: type[Any] | str | None = None) -> Json:
    """Return the options that describe a route.

    `answer`, `body`: the model of the 200 response and of the request, or its media type. `statuses`: errors that not
    every route has.
    """
    described = {"content": {answer: {"schema": {"type": "string"}}}} if isinstance(answer, str) else {"model": answer}
    options: Json = {"responses": {200: described, **{status: {} for status in statuses}}, "response_class": Response}
    if isinstance(body, str):
        schema = {"type": "string", "format": "binary"}
        content: Json = {body: {"schema": schema, "example": "# Deploying\n\nDeploy on Tuesdays.\n"}}
        options["openapi_extra"] = {"requestBody": {"content": content, "required": True}}
    elif body is not None:
        _bodies[body.__name__] = body
        content = {JSON: {"schema": {"$ref": _REFERENCE + body.__name__}}}
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
    for name in ("HTTPValidationError", "ValidationError"):  # E601 replaces them
        schemas.pop(name, None)
    for name, model in _bodies.items():
        schema = adapter(model).json_schema(ref_template=_REFERENCE + "{model}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    for name, schema in schemas.items():
        for field, described in schema.get("properties", {}).items():
            _add_description(described, name, field)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["operationId"] = method + re.sub(r"\W+", "_", path).rstrip("_")
            _complete(operation, path, schemas)
    return document


def _add_description(described: Json, owner: str, name: str) -> None:
    """Describe a field or a parameter, unless the code does. `owner`: its schema or operation."""
    texts = DESCRIPTIONS["fields"]
    described.setdefault("description", texts.get(f"{owner}.{name}") or texts[name])


def _complete(operation: Json, path: str, schemas: Json) -> None:
    """Add the parts that routes share, and the examples."""
    name = operation["operationId"]
    operation["summary"], _, more = operation.pop("description").partition("\n\n")
    if "security" in operation:
        scope = operation["security"][0]["credentials"][0]
        more += f"\n\nNeeds the scope `{scope}` if the server requires credentials."
        operation["security"] = [{}, {"credentials": []}]
    if more:
        operation["description"] = more.strip()
    header = {"name": "X-Request-ID", "in": "header", "required": False, "schema": {"type": "string"}}
    operation["parameters"] = [*operation.get("parameters", []), header]
    for parameter in operation["parameters"]:
        _add_description(parameter, name, parameter["name"])
    streams: dict[str, str] = EXAMPLES["streams"].get(name, {})
    answer = operation["responses"]["200"]
    answer["headers"] = {"X-Request-ID": {"schema": {"type": "string"}}}
    texts, model = DESCRIPTIONS["responses"], _add_examples(answer["content"])
    answer["description"] = texts.get(name) or texts[model]
    for kind, example in streams.items():
        answer["content"][kind] = {"schema": {"type": "string"}, "example": example}
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        if request_model := _add_examples(content):
            operation["requestBody"]["required"] = "required" in schemas[request_model]
        if LINES in streams:
            content[LINES] = {
                "schema": {"type": "string", "description": "One `DocumentIn` per line."},
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
    """Add the example of the schema that the content refers to, and return the name of the schema."""
    name = ""
    for media_type in content.values():
        name = media_type["schema"].get("$ref", "").removeprefix(_REFERENCE)
        if name:
            media_type["example"] = EXAMPLES[name]
    return name


def _describe_error(status: int, path: str) -> Json:
    name = "OpenAiError" if responses.speaks_openai(path) else "Error"
    example = pydantic_core.from_json(responses.error_body(_ERRORS[status], path))
    described: Json = {
        "description": DESCRIPTIONS["errors"][str(status)],
        "content": {JSON: {"schema": {"$ref": _REFERENCE + name}, "example": example}},
    }
    if status in {409, 429, 503}:
        described["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until the next attempt."}
        }
    return described
