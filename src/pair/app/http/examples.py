"""Examples of requests and answers for the OpenAPI document, from examples.json.

Tests compare the keys of answers with those of real ones.
"""

import json
from importlib import resources
from typing import Any

_EXAMPLES: dict[str, Any] = json.loads(resources.files("pair.app.http").joinpath("examples.json").read_bytes())
REQUESTS: dict[str, Any] = _EXAMPLES["requests"]
"""Bodies of requests, by the names of their schemas."""
STREAMS: dict[str, dict[str, str]] = _EXAMPLES["streams"]
"""Answers in other media types, by their routes."""
WITH_ANY_KEYS = frozenset({"metadata", "route_stats", "evictions", "states", "run"})
"""Keys whose values are objects with any keys."""


def __getattr__(name: str) -> Any:
    """Return the example of an answer, by its name."""
    if name not in _EXAMPLES["answers"]:
        raise AttributeError(name)
    return _EXAMPLES["answers"][name]
