"""JSON of the contract: the names of the specification, encoded and decoded without loss."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair import errors
from pair.librarians import (
    Budget,
    Citation,
    Context,
    Delegate,
    DelegateRequest,
    ErrorCode,
    ErrorInfo,
    LibrarianInfo,
    Provenance,
    Response,
    TraceContext,
    User,
)
from pair.librarians.contract import code_of

texts = st.text(max_size=8)
names = st.text(min_size=1, max_size=8)
lists = st.lists(names, max_size=2).map(tuple)
metadata = st.dictionaries(
    st.sampled_from(["x", "y", "zeta"]), st.one_of(texts, st.integers(-5, 5), st.lists(texts, max_size=2)), max_size=2
)
librarian_infos = st.builds(LibrarianInfo, names, texts, texts, lists, texts, texts, metadata)
users = st.builds(User, names, texts, lists, lists, metadata)
traces = st.builds(TraceContext, names, names, texts, texts, metadata, metadata)
delegates = st.builds(Delegate, names, texts, texts, lists, texts, metadata)
contexts = st.builds(
    Context,
    librarian=st.none() | librarian_infos,
    user=st.none() | users,
    trace=st.none() | traces,
    delegation_chain=lists,
    available_delegates=st.lists(delegates, max_size=2).map(tuple),
    metadata=metadata,
    request_id=texts,
    timeout_ms=st.none() | st.integers(0, 60_000),
    budget=st.none() | st.builds(Budget, st.integers(0, 9), st.integers(0, 9)),
)
provenances = st.builds(
    Provenance,
    names,
    names,
    names,
    st.integers(0, 9),
    st.integers(0, 9),
    names,
    texts,
    texts,
    st.integers(0, 9),
    metadata,
)
citations = st.builds(
    Citation, names, texts, names, st.none() | st.floats(0, 1), texts, texts, texts, st.none() | provenances, metadata
)
requests = st.builds(DelegateRequest, names, texts, metadata, texts, metadata)
error_infos = st.builds(
    ErrorInfo,
    st.sampled_from([code.value for code in ErrorCode]),
    names,
    texts,
    texts,
    st.none() | st.just(value=True),
    texts,
    metadata,
    metadata,
)
responses = st.builds(
    Response,
    st.none() | names,
    st.lists(citations, max_size=2).map(tuple),
    st.none() | st.floats(0, 1),
    st.booleans(),
    st.none() | requests | st.lists(requests, min_size=1, max_size=2).map(tuple),
    st.none() | error_infos,
    metadata,
)


@pytest.mark.rule("librarian-7")
@settings(max_examples=60)
@given(st.one_of(contexts, responses))
def test_json_round_trips(value: Context | Response) -> None:
    assert type(value).from_json(json.loads(json.dumps(value.to_json()))) == value


@pytest.mark.rule("librarian-7")
def test_names_in_json_are_those_of_the_specification() -> None:
    context = Context(
        LibrarianInfo("front"),
        User("ada"),
        TraceContext("t", "s", "p", "2026-01-31T12:00:00Z"),
        ("front",),
        available_delegates=(Delegate("manual"),),
        metadata={"a": 1},
        request_id="r",
        timeout_ms=500,
        budget=Budget(1, 2),
    )
    assert set(context.to_json()) == {
        *("librarian", "user", "trace", "delegationChain", "availableDelegates"),
        *("metadata", "requestId", "timeout", "budget"),
    }
    assert set(context.to_json()["trace"]) == {"traceId", "spanId", "parentSpanId", "startTime"}
    response = Response(
        "a", (Citation("n"),), 0.5, partial=True, delegate=DelegateRequest("x"), error=ErrorInfo("c", "m")
    )
    assert set(response.to_json()) == {"answer", "sources", "confidence", "partial", "delegate", "error"}


@pytest.mark.rule("librarian-7")
def test_unknown_fields_are_kept_in_metadata() -> None:
    value = {"answer": "Yes.", "mood": "good", "metadata": {"x": 1}, "sources": [{"name": "n", "page": 7}]}
    response = Response.from_json(value)
    assert response.metadata == {"x": 1, "mood": "good"}
    assert response.sources[0].metadata == {"page": 7}


@pytest.mark.rule("librarian-1")
def test_nothing_is_required_in_a_context() -> None:
    assert Context.from_json({}) == Context()
    assert Context().to_json() == {}


@pytest.mark.parametrize(
    "value", [{"sources": "x"}, {"sources": [1]}, {"delegate": 1}, {"delegate": [1]}, {"error": []}, {"sources": [{}]}]
)
def test_json_of_another_shape_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Response.from_json(value)


@pytest.mark.rule("librarian-6")
def test_values_cannot_be_changed_not_even_inside() -> None:
    inside = {"list": [1, {"deep": [2]}], "set": {3}}
    context = Context(metadata=inside, delegation_chain=["front"])  # type: ignore[arg-type]
    inside["list"].append(9)  # type: ignore[attr-defined]
    assert context.metadata["list"] == (1, {"deep": (2,)})
    assert context.delegation_chain == ("front",)
    with pytest.raises(TypeError):
        context.metadata["list"][1]["deep"] = 0
    with pytest.raises(TypeError):
        context.metadata["new"] = 1  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.user = None  # type: ignore[misc]
    with pytest.raises(AttributeError):
        context.metadata["set"].add(1)


@pytest.mark.rule("librarian-21")
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.query_invalid("blank"), "INVALID_QUERY"),
        (errors.source_path_missing("x"), "NOT_FOUND"),
        (errors.download_failed("https://example.com", "reset"), "DATA_SOURCE_ERROR"),
        (errors.store_unreachable("s3://x", "away"), "DATA_SOURCE_ERROR"),
        (errors.model_unreachable("http://x", "away"), "AI_UNAVAILABLE"),
        (errors.model_file_unusable("x", "gone", "y"), "DATA_SOURCE_ERROR"),
        (TimeoutError(), "TIMEOUT"),
        (KeyError("x"), "INTERNAL_ERROR"),
        (KeyboardInterrupt(), "INTERNAL_ERROR"),
    ],
)
def test_errors_have_their_code(fault: BaseException, code: str) -> None:
    assert code_of(fault) == code
