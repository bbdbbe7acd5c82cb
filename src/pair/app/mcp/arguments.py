"""What tools take: checked, and told to assistants by the same declarations."""

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import pydantic
import pydantic_core
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import ConfigDict, FailFast, Field

from pair import errors
from pair.app.validation import adapter, first_problem
from pair.values import DEFAULT_MODE, SearchMode

Json = dict[str, Any]
_Shape = TypeVar("_Shape")

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Kb = Annotated[str, MaxLen(128), Field(description="See list_kbs")]
Query = Annotated[str, MinLen(1), MaxLen(20_000)]
Id = Annotated[str, MinLen(1), MaxLen(20_000), Field(description="From search, or its id")]

At = Annotated[str, MaxLen(200), Field(description="Older version", coerce_numbers_to_str=True)]


@dataclass(frozen=True)
class SearchArguments:
    __pydantic_config__ = _STRICT
    query: Query
    kb: Kb = ""
    limit: Annotated[int, Ge(1), Le(50)] = 8
    mode: SearchMode = DEFAULT_MODE
    filter: Annotated[Json, Field(description='On metadata: {"year": {"gte": 2020}}')] = field(default_factory=dict)
    at: At = ""


@dataclass(frozen=True)
class FetchArguments:
    __pydantic_config__ = _STRICT
    id: Id
    kb: Kb = ""
    offset: Annotated[int, Ge(0), Field(description="Character to begin at")] = 0


@dataclass(frozen=True)
class AskArguments:
    __pydantic_config__ = _STRICT
    query: Query
    kb: Kb = ""


@dataclass(frozen=True)
class ListArguments:
    __pydantic_config__ = _STRICT
    after: Annotated[str, Field(description="`next` of the last call")] = ""


@dataclass(frozen=True)
class DocumentArgument:
    __pydantic_config__ = _STRICT
    text: Annotated[str, MinLen(1)]
    id: Annotated[str, MaxLen(4096)] = ""
    title: str = ""
    url: str = ""
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True)
class IngestArguments:
    __pydantic_config__ = _STRICT
    documents: Annotated[list[DocumentArgument], MinLen(1), FailFast()]
    kb: Kb = ""


@dataclass(frozen=True)
class DeleteArguments:
    __pydantic_config__ = _STRICT
    id: Id
    kb: Kb = ""


_schemas: dict[type[Any], Json] = {}


def read(shape: type[_Shape], arguments: Json) -> _Shape:
    """A number may come as text. Raises E601, also for what JSON does not know, or only when read generously."""
    try:
        written = pydantic_core.to_json(arguments, inf_nan_mode="constants")
        return adapter(shape).validate_python(pydantic_core.from_json(written, allow_inf_nan=False))
    except pydantic.ValidationError as fault:
        raise errors.request_invalid(first_problem(fault)) from fault
    except ValueError as fault:
        raise errors.request_invalid("the arguments are nested too deeply, or not JSON") from fault


def schema_of(shape: type[Any]) -> Json:
    """For assistants; made once."""
    if shape not in _schemas:
        schema = adapter(shape).json_schema()
        _schemas[shape] = {**_plain(schema, schema.get("$defs", {})), "additionalProperties": False}
    return _schemas[shape]


def _plain(schema: Any, definitions: Json) -> Any:
    """Without names and defaults that say nothing: assistants pay for every word of it."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    left_out = {"$defs", "additionalProperties", "maxLength", "minLength", "minItems"}
    kept = {key: each for key, each in schema.items() if key not in left_out and not _is_idle(key, each)}
    return {key: _plain(each, definitions) for key, each in kept.items()}


def _is_idle(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (key == "default" and value in ("", {}, 0))
