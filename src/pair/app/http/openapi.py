"""The OpenAPI document, written from the table of routes and the shapes that requests are checked with."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pydantic_core

from pair import __version__, errors
from pair.app.http import error_responses, examples
from pair.app.validation import adapter

if TYPE_CHECKING:
    from pair.app.http.routes import Operation

Json = dict[str, Any]

_ERRORS = {
    400: "The request is malformed or asks for what is not there: an unknown mode, a KB or a graph without data.",
    401: "Credentials are missing or wrong.",
    403: "The credentials do not allow this.",
    404: "No such document, version or librarian.",
    405: "The route has no such method.",
    408: "The request came too slowly.",
    409: "Others write the same KB; nothing of this was written.",
    413: "The request is too large.",
    429: "Too many requests.",
    500: "Stored data is damaged, or a bug.",
    503: "The cache, the store or a model is away, or the server is stopping.",
}
_EXAMPLES = {
    400: errors.request_invalid("query: field required"),
    401: errors.credentials_refused("the key is not known"),
    403: errors.not_allowed("this needs the scope write, and yours is read"),
    404: errors.no_such_document("default", "guides/deploy.md"),
    405: errors.method_not_allowed("PUT", "GET"),
    408: errors.request_too_slow(30),
    409: errors.manifest_changed("default"),
    413: errors.request_too_large("The request", 52_428_800),
    429: errors.too_many_requests(),
    500: errors.stored_data_damaged("default.duckdb.manifest.json", "it is not a manifest that can be read"),
    503: errors.server_stopping(),
}
_WAITING = (409, 429, 503)
_ALWAYS = (400, 401, 403, 405, 408, 429, 500)
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "recoverable": {"type": "boolean", "description": "Whether the same may succeed later."},
                "suggestion": {"type": "string"},
            },
        }
    },
}
_OPENAI_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string", "description": "The same codes as elsewhere."},
            },
        }
    },
}
_LINKS: Json = {
    "POST /rag/ingest": {
        "read": {
            "operationId": "get_rag_docs_id",
            "parameters": {"id": "$response.body#/doc_ids/0", "kb_id": "$response.body#/kb_id"},
        },
        "delete": {
            "operationId": "delete_rag_docs_id",
            "parameters": {"id": "$response.body#/doc_ids/0", "kb_id": "$response.body#/kb_id"},
        },
        "list": {"operationId": "get_rag_docs", "parameters": {"kb_id": "$response.body#/kb_id"}},
    },
    "GET /rag/docs": {
        "read": {
            "operationId": "get_rag_docs_id",
            "parameters": {"id": "$response.body#/documents/0/id", "kb_id": "$response.body#/kb_id"},
        },
        "next": {
            "operationId": "get_rag_docs",
            "parameters": {"after": "$response.body#/next", "kb_id": "$response.body#/kb_id"},
        },
    },
    "GET /rag/docs/{id}": {
        "delete": {
            "operationId": "delete_rag_docs_id",
            "parameters": {"id": "$response.body#/id", "kb_id": "$response.body#/kb_id"},
        },
    },
    "GET /rag/kbs": {
        "list": {"operationId": "get_rag_docs", "parameters": {"kb_id": "$response.body#/kbs/0/kb_id"}},
    },
    "GET /rag/versions": {
        "compare": {
            "operationId": "get_rag_diff",
            "parameters": {"a": "$response.body#/versions/0/version", "kb_id": "$response.body#/kb_id"},
        },
    },
    "GET /librarians": {
        "ask": {"operationId": "post_librarians_id_ask", "parameters": {"id": "$response.body#/librarians/0/id"}},
    },
    "GET /v1/models": {
        "read": {"operationId": "get_v1_models_id", "parameters": {"id": "$response.body#/data/0/id"}},
    },
}
"""What an answer tells that another request can go on from."""

_INFO = (
    "Search and ask knowledge bases, and put documents into them. Every error has the same body, but below `/v1/`, "
    "which is for chat clients. "
    "Times to wait are in `Retry-After`. `X-Request-ID` is taken from the request or made, and sent back. "
    "`POST /mcp` is not described here: it speaks the Model Context Protocol, with the same credentials."
)


def document(operations: "Iterable[Operation]") -> Json:
    paths: Json = {}
    definitions: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, definitions)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pair", "version": __version__, "description": _INFO, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, "OpenAiError": _OPENAI_ERROR, **definitions},
            "securitySchemes": {
                "credentials": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of `pair keys add`, or a JWT.",
                }
            },
        },
    }


def _operation(operation: "Operation", definitions: Json) -> Json:
    value: Json = {
        "operationId": operation.method.lower() + re.sub(r"\W+", "_", operation.path).rstrip("_"),
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_parameters(operation), *_headers(operation)],
        "responses": {"200": _answer(operation), **_errors(operation)},
    }
    if operation.scope:
        value["description"] = f"Needs the scope `{operation.scope}` where credentials are asked for."
        value["security"] = [{}, {"credentials": []}]
    if operation.body:
        content: Json = {
            "application/json": {"schema": _schema(operation.body, definitions), "example": operation.body_example}
        }
        if "application/x-ndjson" in operation.answers:
            content["application/x-ndjson"] = {
                "schema": {"type": "string", "description": "A document a line; see DocumentIn."},
                "example": '{"id": "a", "text": "Some text."}\n{"id": "b", "text": "More text."}\n',
            }
        value["requestBody"] = {"required": operation.is_body_needed, "content": content}
    return value


def _schema(shape: type[Any], definitions: Json) -> Json:
    schema = adapter(shape).json_schema(ref_template="#/components/schemas/{model}")
    definitions.update(schema.pop("$defs", {}))
    definitions[shape.__name__] = schema
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _path_parameters(operation: "Operation") -> list[Json]:
    if "{id}" not in operation.path:
        return []
    return [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]


def _parameters(operation: "Operation") -> list[Json]:
    if operation.parameters is None:
        return []
    schema = adapter(operation.parameters).json_schema(ref_template="#/components/schemas/{model}")
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: Json) -> Json:
    """An address cannot say null."""
    kinds = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if not kinds:
        return schema
    return {**{key: value for key, value in schema.items() if key not in {"anyOf", "default"}}, **kinds[0]}


def _headers(operation: "Operation") -> list[Json]:
    headers = [
        {
            "name": "X-Request-ID",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
        }
    ]
    if operation.takes_key:
        about = "The second request with this key is answered as the first was, and does nothing."
        schema = {"type": "string", "maxLength": 255}
        headers.append(
            {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema, "description": about}
        )
    return headers


def _answer(operation: "Operation") -> Json:
    answers = operation.answers.items()
    content = {kind: {"schema": _shape_of(example), "example": example} for kind, example in answers}
    headers = {"X-Request-ID": {"schema": {"type": "string"}}}
    links = {"links": _LINKS[operation.route]} if operation.route in _LINKS else {}
    return {"description": "As asked.", "headers": headers, "content": content, **links}


def _shape_of(example: Any) -> Json:
    """What the example has, with its kinds: a schema that says no more than that."""
    if isinstance(example, dict):
        properties = {
            key: {"type": "object"} if key in examples.WITH_ANY_KEYS and isinstance(value, dict) else _shape_of(value)
            for key, value in example.items()
        }
        return {"type": "object", "properties": properties}
    if isinstance(example, list):
        return {"type": "array", **({"items": _shape_of(example[0])} if example else {})}
    kinds: dict[type, Any] = {str: "string", bool: "boolean", int: "integer", float: ["number", "null"]}
    return {"type": kinds[type(example)]} if type(example) in kinds else {}


def _errors(operation: "Operation") -> Json:
    statuses = sorted({*_ALWAYS, *operation.errors})
    return {str(status): _error(status, operation.path) for status in statuses}


def _error(status: int, path: str) -> Json:
    schema = {"$ref": f"#/components/schemas/{'OpenAiError' if error_responses.speaks_openai(path) else 'Error'}"}
    example = pydantic_core.from_json(error_responses.body_of(_EXAMPLES[status], path))
    value: Json = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": schema, "example": example}},
    }
    if status in _WAITING:
        value["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return value
