"""Check data from outside against the declarations of what it may be."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

import pydantic

_Shape = TypeVar("_Shape")

_MAX_LISTED = 1_000


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def strict(shape: type[_Shape]) -> type[_Shape]:
    """Make a frozen dataclass whose JSON has no other fields, and no infinite numbers."""
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(shape)


def first_problem(fault: pydantic.ValidationError) -> str:
    """Describe the first problem, without the value, which may be long or secret."""
    if fault.error_count() > _MAX_LISTED:  # the first of them cannot be had without all
        return f"{fault.error_count():,} values are not as they should be"
    return describe_problem(fault.errors(include_url=False, include_context=False, include_input=False)[0])


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Describe an error of pydantic, without the value."""
    place = ".".join(map(str, problem["loc"]))[:200]
    message = problem["msg"][:1].lower() + problem["msg"][1:200]
    return f"{place}: {message}" if place else message
