"""The table of routes, and the OpenAPI document that describes them."""

import functools
import re
from typing import Any

import pydantic_core

from pair import __version__, errors
from pair.app.http import ask, error_responses, examples, health, mcp, openai_api, page, rag
from pair.app.http.context import JSON, LINES, HttpRequest, Operation, answer
from pair.app.validation import adapter

Json = dict[str, Any]

OPERATIONS: tuple[Operation, ...] = (
    *(health.healthz, health.readyz, rag.ingest, rag.query, rag.list_kbs),
    *(rag.list_documents, rag.get_document, rag.delete_document, rag.graph),
    *(rag.list_versions, rag.diff, rag.roll_back, rag.compact, rag.collect, rag.sweep),
    *(ask.list_librarians, ask.ask_librarian, ask.ask, rag.list_sources, rag.sync),
    *(openai_api.list_models, openai_api.get_model, openai_api.complete),
    *(health.metrics, health.app_metrics, health.cache_metrics),
)


@Operation("GET /openapi.json", None, {"openapi": "3.1.0"})
async def send_document(_request: HttpRequest) -> Any:
    """All of this, as OpenAPI"""
    return answer(openapi_document())


_DESCRIBED = (*OPERATIONS, send_document)
_EXACT: dict[str, dict[str, Operation]] = {}
_PATTERNS: dict[re.Pattern[str], dict[str, Operation]] = {}
for _operation in (*_DESCRIBED, mcp.answer_message, page.index, page.asset):
    if "{id}" in _operation.path:
        _pattern = re.compile(re.escape(_operation.path).replace(r"\{id\}", "(.+)"), re.DOTALL)
        _PATTERNS.setdefault(_pattern, {})[_operation.method] = _operation
    else:
        _EXACT.setdefault(_operation.path, {})[_operation.method] = _operation


def match_route(method: str, path: str) -> tuple[Operation, str]:
    """Return the operation for an address, and the value in it. Raises E604, E606."""
    methods, value = _EXACT.get(path), ""
    if methods is None:
        for pattern, pattern_methods in _PATTERNS.items():
            match = pattern.fullmatch(path)
            if match:
                methods, value = pattern_methods, match[1]
                break
    if methods is None:
        raise errors.no_such_route(path)
    operation = methods.get("GET" if method == "HEAD" else method)
    if operation is None:
        raise errors.method_not_allowed(method, ", ".join(sorted(methods)))
    return operation, value


# ── OpenAPI ────────────────────────────────────────────────────────────────────────────────────────

_ERRORS: dict[int, tuple[str, errors.PairError]] = {
    400: (
        "The request is malformed or asks for what is not there: an unknown mode, a KB or a graph without data.",
        errors.request_invalid("query: field required"),
    ),
    401: ("Credentials are missing or wrong.", errors.credentials_refused("the key is not known")),
    403: ("The credentials do not allow this.", errors.not_allowed("this needs the scope write, and yours is read")),
    404: ("No such document, version or librarian.", errors.no_such_document("default", "guides/deploy.md")),
    405: ("The route has no such method.", errors.method_not_allowed("PUT", "GET")),
    408: ("The request came too slowly.", errors.request_too_slow(30)),
    409: ("Others write the same KB; nothing of this was written.", errors.manifest_changed("default")),
    413: ("The request is too large.", errors.request_too_large("The request", 52_428_800)),
    429: ("Too many requests.", errors.too_many_requests()),
    500: (
        "Stored data is damaged, or a bug.",
        errors.stored_data_damaged("default.duckdb.manifest.json", "it is not a manifest that can be read"),
    ),
    503: ("The cache, the store or a model is away, or the server is stopping.", errors.server_stopping()),
}
_ALWAYS = (400, 401, 403, 405, 408, 429, 500)


def _error_schema(required: list[str], properties: Json) -> Json:
    error = {"type": "object", "required": required, "properties": properties}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


_STRING = {"type": "string"}
_ERROR_SCHEMAS: Json = {
    "Error": _error_schema(
        ["code", "message"],
        {
            "code": _STRING,
            "message": _STRING,
            "recoverable": {"type": "boolean", "description": "Whether the same may succeed later."},
            "suggestion": _STRING,
        },
    ),
    "OpenAiError": _error_schema(
        ["message", "type", "param", "code"],
        {
            "message": _STRING,
            "type": _STRING,
            "param": {"type": ["string", "null"]},
            "code": {"type": "string", "description": "The same codes as elsewhere."},
        },
    ),
}
_KB = {"kb_id": "kb_id"}
_LINKS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "POST /rag/ingest": {
        "read": ("get_rag_docs_id", {"id": "doc_ids/0", **_KB}),
        "delete": ("delete_rag_docs_id", {"id": "doc_ids/0", **_KB}),
        "list": ("get_rag_docs", _KB),
    },
    "GET /rag/docs": {
        "read": ("get_rag_docs_id", {"id": "documents/0/id", **_KB}),
        "next": ("get_rag_docs", {"after": "next", **_KB}),
    },
    "GET /rag/docs/{id}": {"delete": ("delete_rag_docs_id", {"id": "id", **_KB})},
    "GET /rag/kbs": {"list": ("get_rag_docs", {"kb_id": "kbs/0/kb_id"})},
    "GET /rag/versions": {"compare": ("get_rag_diff", {"a": "versions/0/version", **_KB})},
    "GET /librarians": {"ask": ("post_librarians_id_ask", {"id": "librarians/0/id"})},
    "GET /v1/models": {"read": ("get_v1_models_id", {"id": "data/0/id"})},
}
"""Requests that can follow an answer: the operation, and where in the answer its parameters are."""
_INFO = (
    "Search and ask knowledge bases, and put documents into them. Every error has the same body, but below `/v1/`, "
    "which is for chat clients. "
    "Times to wait are in `Retry-After`. `X-Request-ID` is taken from the request or made, and sent back. "
    "`POST /mcp` is not described here: it speaks the Model Context Protocol, with the same credentials."
)


@functools.cache
def openapi_document() -> Json:
    paths: Json = {}
    definitions: Json = {}
    for operation in _DESCRIBED:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, definitions)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pair", "version": __version__, "description": _INFO, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {**_ERROR_SCHEMAS, **definitions},
            "securitySchemes": {
                "credentials": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `pair keys add`, or a JWT.",
                }
            },
        },
    }


def _describe(operation: Operation, definitions: Json) -> Json:
    value: Json = {
        "operationId": operation.method.lower() + re.sub(r"\W+", "_", operation.path).rstrip("_"),
        "summary": operation.summary,
        "parameters": _describe_parameters(operation),
        "responses": {"200": _describe_answer(operation), **_describe_errors(operation)},
    }
    if operation.scope:
        value["description"] = f"Needs the scope `{operation.scope}` where credentials are asked for."
        value["security"] = [{}, {"credentials": []}]
    if operation.body:
        name = operation.body.__name__
        schema = _schema(operation.body)
        definitions.update(schema.pop("$defs", {}))
        definitions[name] = schema
        reference = {"$ref": f"#/components/schemas/{name}"}
        content: Json = {JSON: {"schema": reference, "example": operation.body_example}}
        if LINES in examples.STREAMS.get(operation.route, {}):
            content[LINES] = {
                "schema": {"type": "string", "description": "A document a line; see DocumentIn."},
                "example": '{"id": "a", "text": "Some text."}\n{"id": "b", "text": "More text."}\n',
            }
        value["requestBody"] = {"required": "required" in schema, "content": content}
    return value


def _schema(shape: type[Any]) -> Json:
    return adapter(shape).json_schema(ref_template="#/components/schemas/{model}")


def _describe_parameters(operation: Operation) -> list[Json]:
    parameters: list[Json] = []
    if "{id}" in operation.path:
        schema: Json = {"type": "string", "minLength": 1}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": schema})
    if operation.parameters is not None:
        declared = _schema(operation.parameters)
        for name, schema in declared["properties"].items():
            is_required = name in declared.get("required", ())
            parameters.append({"name": name, "in": "query", "required": is_required, "schema": _remove_null(schema)})
    parameters.append({"name": "X-Request-ID", "in": "header", "required": False, "schema": {"type": "string"}})
    if operation.takes_key:
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "maxLength": 255},
                "description": "The second request with this key is answered as the first was, and does nothing.",
            }
        )
    return parameters


def _remove_null(schema: Json) -> Json:
    """An address cannot say null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
    if not kinds:
        return schema
    return {**{key: value for key, value in schema.items() if key not in {"anyOf", "default"}}, **kinds[0]}


def _describe_answer(operation: Operation) -> Json:
    answers = {operation.media_type: operation.answer, **examples.STREAMS.get(operation.route, {})}
    value: Json = {
        "description": "As asked.",
        "headers": {"X-Request-ID": {"schema": {"type": "string"}}},
        "content": {kind: {"schema": _infer_schema(example), "example": example} for kind, example in answers.items()},
    }
    if operation.route in _LINKS:
        value["links"] = {
            name: {
                "operationId": operation_id,
                "parameters": {parameter: f"$response.body#/{place}" for parameter, place in places.items()},
            }
            for name, (operation_id, places) in _LINKS[operation.route].items()
        }
    return value


def _infer_schema(example: Any) -> Json:
    """Return a schema with the keys and types of an example."""
    if isinstance(example, dict):
        properties = {
            key: {"type": "object"}
            if key in examples.WITH_ANY_KEYS and isinstance(value, dict)
            else _infer_schema(value)
            for key, value in example.items()
        }
        return {"type": "object", "properties": properties}
    if isinstance(example, list):
        return {"type": "array", **({"items": _infer_schema(example[0])} if example else {})}
    kinds: dict[type, Any] = {str: "string", bool: "boolean", int: "integer", float: ["number", "null"]}
    return {"type": kinds[type(example)]} if type(example) in kinds else {}


def _describe_errors(operation: Operation) -> Json:
    name = "OpenAiError" if error_responses.speaks_openai(operation.path) else "Error"
    statuses = {*_ALWAYS, *operation.errors, *([413] if operation.body else []), *([503] if operation.scope else [])}
    described: Json = {}
    for status in sorted(statuses):
        text, fault = _ERRORS[status]
        example = pydantic_core.from_json(error_responses.error_body(fault, operation.path))
        schema = {"$ref": f"#/components/schemas/{name}"}
        described[str(status)] = {"description": text, "content": {JSON: {"schema": schema, "example": example}}}
        if status in {409, 429, 503}:
            described[str(status)]["headers"] = {
                "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
            }
    return described
