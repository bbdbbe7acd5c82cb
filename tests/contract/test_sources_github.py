"""The example connector on a scripted server: paging, the cursor, the token and rate limits."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pair.clock import SystemClock
from pair.sources.command import CommandSource
from pair.sources.contract import Cursor, Event, Item, SourceFault
from support.page_server import Asked, PageServer, Reply

CONNECTOR = Path(__file__).parents[2] / "examples" / "github_issues.py"
QUERY = "/repos/o/r/issues?state=all&sort=updated&direction=asc&per_page=100"


def refuse_network() -> NoReturn:
    raise AssertionError("no document has a URL")


def connector(server: PageServer, folder: Path) -> CommandSource:
    variables = [f"GITHUB_API_URL={server.url('')}", "GITHUB_TOKEN=secret"]
    command = ["env", *variables, sys.executable, str(CONNECTOR), "o/r"]
    return CommandSource(command, folder, 60.0, 1_000_000, refuse_network, SystemClock())


def issue(server: PageServer, number: int, **more: Any) -> dict[str, Any]:
    return {
        "number": number,
        "title": f"Issue {number}",
        "body": "words",
        "state": "open",
        "labels": [{"name": "bug"}],
        "user": {"login": "ada"},
        "updated_at": f"2026-01-0{number}T00:00:00Z",
        "html_url": f"https://github.com/o/r/issues/{number}",
        "comments": 0,
        "comments_url": server.url(f"/repos/o/r/issues/{number}/comments"),
        **more,
    }


def answer(*values: Any, **headers: str) -> Reply:
    return Reply(
        headers=[(name.replace("_", "-"), value) for name, value in headers.items()], body=json.dumps(values).encode()
    )


def test_issues_are_read_page_by_page_with_their_comments(server: PageServer, tmp_path: Path) -> None:
    second = server.url("/repositories/1/issues?page=2")
    server.pages[QUERY] = answer(issue(server, 1), issue(server, 2, comments=1), Link=f'<{second}>; rel="next"')
    server.pages["/repos/o/r/issues/2/comments"] = answer({"user": {"login": "bob"}, "body": "agreed"})
    server.pages["/repositories/1/issues?page=2"] = answer(issue(server, 3, body=None, pull_request={}))
    events: list[Event] = list(connector(server, tmp_path).read(None))
    one, two, cursor, three, last = events
    assert one == Item(
        "1",
        b"words",
        content_type="text/markdown",
        charset="utf-8",
        title="Issue 1",
        url="https://github.com/o/r/issues/1",
        metadata={
            "kind": "issue",
            "state": "open",
            "labels": ["bug"],
            "author": "ada",
            "updated": "2026-01-01",
        },
    )
    assert isinstance(two, Item)
    assert two.content == b"words\n\n**bob**: agreed"
    assert isinstance(three, Item)
    assert (three.content, three.metadata["kind"]) == (b"", "pull request")
    assert (cursor, last) == (Cursor({"since": "2026-01-02T00:00:00Z"}), Cursor({"since": "2026-01-03T00:00:00Z"}))
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer secret"}


def test_the_next_run_asks_for_what_was_updated_since(server: PageServer, tmp_path: Path) -> None:
    server.pages[f"{QUERY}&since=2026-01-03T00%3A00%3A00Z"] = answer()
    assert list(connector(server, tmp_path).read({"since": "2026-01-03T00:00:00Z"})) == []


@pytest.mark.parametrize(
    "headers", [[("Retry-After", "0")], [("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1")]]
)
def test_a_rate_limit_is_waited_for(server: PageServer, tmp_path: Path, headers: list[tuple[str, str]]) -> None:
    def limited_once(asked: Asked) -> Reply:
        return Reply(403, headers=headers) if len(server.asked) == 1 else answer(issue(server, 1))

    server.pages[QUERY] = limited_once
    assert [type(event) for event in connector(server, tmp_path).read(None)] == [Item, Cursor]


def test_a_failing_page_keeps_the_pages_before_it(server: PageServer, tmp_path: Path) -> None:
    server.pages[QUERY] = answer(issue(server, 1), Link=f'<{server.url("/gone")}>; rel="next"')
    events: list[Event] = []
    with pytest.raises(SourceFault, match="status 1: /gone: HTTP 404 Not Found"):
        events.extend(connector(server, tmp_path).read(None))
    assert [type(event) for event in events] == [Item, Cursor]


def test_the_token_is_not_sent_to_another_server(server: PageServer, tmp_path: Path) -> None:
    with PageServer(host="127.0.0.2") as other:
        server.pages[QUERY] = answer(issue(server, 1), Link=f'<{other.url("/")}>; rel="next"')
        with pytest.raises(SourceFault, match="the server names an address of another server"):
            list(connector(server, tmp_path).read(None))
        assert other.asked == []
