"""A remote librarian over a real HTTP connection."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pair.librarians import Budget, Context, Entry, Response, TraceContext, User
from pair.librarians.remote import MAX_ANSWER_BYTES, RemoteLibrarian
from pair.testing.librarian_suite import LibrarianCase, LibrarianSuite
from support.librarians import asked, code
from support.listening import QuietHandler, listening

ENDPOINT = "/librarians/handbook/ask"


@dataclass
class Far:
    """The remote server: its requests, and its scripted answers."""

    url: str = ""
    status: int = 200
    body: bytes = b'{"answer": "At one.", "confidence": 0.9, "sources": [{"name": "Handbook"}]}'
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def says(self, value: Any, status: int = 200) -> None:
        self.body, self.status = json.dumps(value).encode(), status


@pytest.fixture
def far() -> Iterator[Far]:
    other = Far()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            value = json.loads(self.read_body())
            other.requests.append(value)
            other.heads.append({name.lower(): each for name, each in self.headers.items()})
            if value["query"] == "slow":
                other.release.wait(5)
            body = other.body if value["query"] != "fail" else b'{"error": {"code": "NOT_FOUND", "message": "no"}}'
            self.answer(other.status, body, other.headers)

    with listening(Handler) as address:
        other.url = f"{address}{ENDPOINT}"
        yield other
        other.release.set()


@pytest.mark.rule("librarian-32")
class TestRemote(LibrarianSuite):
    @pytest.fixture
    def case(self, far: Far) -> LibrarianCase:
        return LibrarianCase(RemoteLibrarian(far.url), "When is lunch?", failing="fail", slow="slow")


@pytest.mark.rule("librarian-32")
def test_deadline_chain_budget_and_trace_are_passed_on_and_who_asks_is_not(far: Far) -> None:
    context = Context(
        user=User("ada", email="ada@example.com"),
        trace=TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
        metadata={"reason": "asked"},
        request_id="r-1",
        timeout_ms=5000,
        budget=Budget(7, 1000),
    )
    front = Entry(lambda query, context=None: _delegating(query))
    response = asked({"front": front, "far": RemoteLibrarian(far.url, token="secret")}, "front", context=context)
    assert response.answer == "At one."
    assert response.sources[0].name == "Handbook"
    (sent,), (head,) = far.requests, far.heads
    assert (sent["query"], sent["version"], sent["requestId"]) == ("When is lunch?", "1.0", "r-1")
    assert sent["context"]["delegationChain"] == ["front"]
    assert 0 < sent["context"]["timeout"] <= 5000
    assert sent["context"]["budget"] == {"calls": 5, "tokens": 1000}
    assert sent["context"]["metadata"] == {"reason": "asked"}
    assert not {"user", "librarian", "availableDelegates"} & set(sent["context"])
    assert "ada@" not in json.dumps(sent)
    assert head["authorization"] == "Bearer secret"
    assert head["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _delegating(query: str) -> Response:
    return Response.delegating("far")


@pytest.mark.rule("librarian-32")
@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"<html>", 200, "DATA_SOURCE_ERROR"),
        (b"[]", 200, "DATA_SOURCE_ERROR"),
        (b'{"sources": 7}', 200, "DATA_SOURCE_ERROR"),
        (b"[" * 100_000, 200, "DATA_SOURCE_ERROR"),
        (b"{}", 200, "INTERNAL_ERROR"),
        (b'{"answer": "x", "confidence": 7}', 200, "INTERNAL_ERROR"),
        (b"x" * (MAX_ANSWER_BYTES + 1), 200, "DATA_SOURCE_ERROR"),
        (b"<html>", 502, "SERVICE_UNAVAILABLE"),
        (b"", 500, "DATA_SOURCE_ERROR"),
        (b'{"error": {"code": "E402", "message": "who?"}}', 401, "UNAUTHORIZED"),
        (b'{"error": {"code": "E402", "message": "what?"}}', 400, "INVALID_QUERY"),
        (b'{"error": {"code": "RATE_LIMITED", "message": "wait"}}', 429, "RATE_LIMITED"),
        (b'{"answer": "not really"}', 302, "DATA_SOURCE_ERROR"),
    ],
)
def test_odd_answer_is_an_error_of_the_right_kind(far: Far, body: bytes, status: int, expected: str) -> None:
    far.body, far.status = body, status
    assert code(asked({"far": RemoteLibrarian(far.url)}, "far")) == expected


@pytest.mark.rule("librarian-32")
def test_encoded_answer_is_refused_and_redirects_are_not_followed(far: Far) -> None:
    far.headers = {"content-encoding": "gzip"}
    assert code(asked({"far": RemoteLibrarian(far.url)}, "far")) == "DATA_SOURCE_ERROR"
    far.headers, far.status = {"location": far.url}, 307
    assert code(asked({"far": RemoteLibrarian(far.url, token="secret")}, "far")) == "DATA_SOURCE_ERROR"
    assert len(far.requests) == 2


@pytest.mark.rule("librarian-32")
def test_endpoint_that_is_unavailable_or_late(far: Far) -> None:
    assert code(asked({"far": RemoteLibrarian("http://127.0.0.1:9/x")}, "far")) == "SERVICE_UNAVAILABLE"
    assert code(asked({"far": RemoteLibrarian(far.url)}, "far", "slow", timeout=0.1)) == "TIMEOUT"


def test_connection_is_used_again(far: Far) -> None:
    librarian = RemoteLibrarian(far.url)
    for _ in range(3):
        assert asked({"far": librarian}, "far").answer == "At one."
    assert len(far.requests) == 3
