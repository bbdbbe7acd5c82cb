"""Credentials in an address are used, and never shown."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.values import redact_url
from support.command import Workplace, write_files
from support.listening import QuietHandler, listening
from support.served import Served

SECRET = "s3cret"
asked: list[tuple[str, str]] = []
"""The path and the authorization of every request."""


class Handler(QuietHandler):
    def _send(self, body: bytes, content_type: str) -> None:
        asked.append((self.path, self.headers.get("authorization", "")))
        self.answer(200 if self.path.startswith("/good") else 500, body, {"content-type": content_type})

    def do_GET(self) -> None:
        self._send(b"# Tea\n\nTea is served at four.\n", "text/plain")

    def do_POST(self) -> None:
        self.read_body()
        self._send(json.dumps({"answer": "At four.", "confidence": 0.9}).encode(), "application/json")


@pytest.fixture
def address() -> Iterator[str]:
    asked.clear()
    with listening(Handler) as url:
        yield url.removeprefix("http://")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:s3cret@host/a?b=c#d", "https://host/a?b=c#d"),
        ("https://s3cret@host", "https://host"),
        ("https://a@b:s3cret@host/x@y", "https://host/x@y"),
        ("redis://:s3cret@host:6379/0", "redis://host:6379/0"),
        ("https://host/a?token=s3cret", "https://host/a?token=…"),
        ("https://host/a?b=c&Access_Token=s3cret&d=e#f", "https://host/a?b=c&Access_Token=…&d=e#f"),
        ("https://host/a?api_key=s3cret;X-Amz-Signature=s3cret&sig=s3cret", "https://host/a?api_key=…;X-Amz-Signature=…&sig=…"),
        ("cannot reach https://me:s3cret@host/a today", "cannot reach https://host/a today"),
        ("https://host/@user?page=2&design=x&key=chapter", "https://host/@user?page=2&design=x&key=chapter"),
        ("me@example.org", "me@example.org"),
        ("", ""),
    ],
)  # fmt: skip
def test_user_password_and_tokens_are_taken_out_of_an_address(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def configured(folder: Path, address: str) -> None:
    text = "librarians:\n" + "".join(
        f"  - {{id: {name}, endpoint: 'http://me:{SECRET}@{place}/{name}?token={SECRET}'}}\n"
        for name, place in (("good", address), ("bad", address), ("gone", "127.0.0.1:1"))
    )
    write_files(folder, {"config.yaml": text})


def test_credentials_in_the_endpoint_of_a_librarian_are_used_and_never_shown(
    workplace: Workplace, address: str
) -> None:
    configured(workplace.folder, address)
    workplace.trust()
    answered = workplace.pair("ask", "When is tea served?", "--librarian", "good", "--json")
    assert answered.json["answer"] == "At four."
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert asked == [(f"/good?token={SECRET}", f"Basic {basic}")]
    commands = [["librarians", "list"], ["librarians", "check"]]
    commands += [["ask", "When?", "--librarian", name] for name in ("bad", "gone")]
    printed = [
        workplace.pair(*command, *more, "--log-level", "debug") for command in commands for more in ([], ["--json"])
    ]
    assert f"http://{address}/good?token=" in printed[1].stdout
    assert SECRET not in "".join(done.stdout + done.stderr for done in [answered, *printed])


def test_a_server_shows_no_credentials_of_an_endpoint(tmp_path: Path, address: str) -> None:
    folder = tmp_path / "project"
    configured(folder, address)
    with Served(folder, PAIR__SERVER__SYNC="false") as server:
        server.ingest({"a.md": "Tea is served at four."})
        listed = server.get("/librarians")
        assert f"http://{address}/good" in listed.text
        texts = [listed.text, server.get("/v1/models").text]
        texts += [server.post(f"/librarians/{name}/ask", {"query": "When?"}).text for name in ("good", "bad", "gone")]
        assert SECRET not in "".join(texts)
        assert asked
    assert SECRET not in server.raw_log


def test_credentials_in_a_link_are_used_and_never_shown(workplace: Workplace, address: str) -> None:
    links = f"http://{address}/good?token={SECRET}\nhttp://{address}/bad?token={SECRET}\nhttp://me:{SECRET}@{address}/good/user\n"
    write_files(workplace.folder, {".pair/links.txt": links})
    private = {"PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true", "PAIR__KB__LLMS_TXT_PATH": "llms.txt"}
    printed = [workplace.pair("sync", "--log-level", "debug", **private)]
    assert (f"/good?token={SECRET}", "") in asked
    ask = ["ask", "When is tea served?"]
    commands = (
        ["status"], ["status", "--json"], ["sync"], ["sync", "--dry-run"], ["docs", "list", "--json"],
        ["search", "tea", "--json"], ask, [*ask, "--json"], [*ask, "--librarian", "catalogue", "--json"],
    )  # fmt: skip
    printed += [workplace.pair(*command, **private) for command in commands]
    assert SECRET not in "".join(done.stdout + done.stderr for done in printed)
    shown = f"http://{address}/good?token=…"
    (document,) = printed[5].json["documents"]
    assert (document["id"], document["url"]) == (shown, shown)
    assert shown in (workplace.folder / ".pair" / "index.txt").read_text()
    for path in workplace.folder.rglob("*"):
        if path.is_file() and path.name != "links.txt":
            assert SECRET.encode() not in path.read_bytes(), path
