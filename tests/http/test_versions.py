"""Versions over HTTP: listing, comparing and rolling back, each with the required scope."""

import pytest

import pair
from pair.app.http.openapi import EXAMPLES
from pair.errors import AccessError, NotFoundError
from pair.values import Document
from support.errors import raises_code
from support.served import Keyed, Served, error_of


def painted(server: Served, kb_id: str) -> None:
    """Store two versions: a red door and a roof, then a blue door and a gate."""
    server.ingest({"door.md": "The door is red.", "roof.md": "The roof is grey."}, kb_id=kb_id)
    server.ingest({"door.md": "The door is blue.", "gate.md": "The gate is open."}, kb_id=kb_id)
    server.request("DELETE", f"/rag/docs/roof.md?kb_id={kb_id}")


def test_versions_are_listed_compared_and_restored(plain: Served) -> None:
    painted(plain, "painted")
    listed = plain.get("/rag/versions", params={"kb_id": "painted"}).json()
    assert listed.keys() == EXAMPLES["VersionListResponse"].keys()
    assert listed["versions"][0].keys() == EXAMPLES["VersionListResponse"]["versions"][0].keys()
    assert ([each["version"] for each in listed["versions"]], listed["may_roll_back"]) == ([3, 2, 1], True)
    asked = {"kb_id": "painted", "a": "1", "text": "true"}
    told = plain.get("/rag/diff", params=asked).json()
    assert told.keys() == EXAMPLES["DiffResponse"].keys()
    assert told["documents"][0].keys() == EXAMPLES["DiffResponse"]["documents"][0].keys()
    assert (told["a"], told["b"], told["added"], told["removed"], told["changed"]) == (1, 3, 1, 1, 1)
    assert [(each["id"], each["change"]) for each in told["documents"]] == [
        ("door.md", "changed"),
        ("gate.md", "added"),
        ("roof.md", "removed"),
    ]
    assert told["documents"][0]["text"] == ["@@ -1 +1 @@", "-The door is red.", "+The door is blue."]
    assert "+gate.md" in told["documents"][1]["entry"]
    done = plain.post("/rag/rollback", {"kb_id": "painted", "version": 1})
    assert (done.status_code, done.json().keys()) == (200, EXAMPLES["RollbackResponse"].keys())
    found = plain.post("/rag/query", {"kb_id": "painted", "query": "door", "search_mode": "keyword"}).json()
    assert (found["manifest_version"], found["results"][0]["content"]) == (4, "The door is red.")
    assert plain.get("/rag/diff", params={"kb_id": "painted", "a": "1"}).json()["documents"] == []


def test_differences_are_paged_and_long_texts_are_cut(plain: Served) -> None:
    for word in ("red", "blue"):
        texts = {f"{number}.md": f"Page {number} is {word}." for number in range(4)}
        long = "\n".join(f"Line {number} is {word}. {'x' * 2000}" for number in range(300))
        plain.ingest({**texts, "long.md": long}, kb_id="paged")
    asked = {"kb_id": "paged", "a": "1", "b": "2", "text": "true"}
    whole = plain.get("/rag/diff", params=asked).json()
    found, after = [], ""
    while after is not None:
        page = plain.get("/rag/diff", params={**asked, "limit": "2", "after": after}).json()
        found += page["documents"]
        after = page["next"]
    assert found == whole["documents"]
    last = found[-1]
    assert (len(last["text"]), last["left_out_lines"]) == (200, 401)
    assert all(len(line) <= 1001 for line in last["text"])
    bare = plain.get("/rag/diff", params={"kb_id": "paged", "a": "1", "entries": "false"}).json()
    assert bare["documents"][0] == {"id": "0.md", "change": "changed"}


@pytest.mark.parametrize(
    ("method", "path", "value", "status", "code"),
    [
        ("GET", "/rag/versions?kb_id=never", None, 400, "E201"),
        ("GET", "/rag/diff?kb_id=default", None, 400, "E601"),
        ("GET", "/rag/diff?a=99", None, 404, "E218"),
        ("GET", "/rag/diff?a=1&text=maybe", None, 400, "E601"),
        ("POST", "/rag/rollback", {"version": 99}, 404, "E218"),
        ("POST", "/rag/rollback", {"version": "9.9.9"}, 404, "E218"),
        ("POST", "/rag/rollback", {"version": True}, 400, "E601"),
        ("POST", "/rag/rollback", {}, 400, "E601"),
        ("POST", "/rag/rollback", {"kb_id": "never", "version": 1}, 400, "E201"),
    ],
)
def test_a_missing_version_is_refused(
    plain: Served, method: str, path: str, value: object, status: int, code: str
) -> None:
    refused = plain.get(path) if method == "GET" else plain.post(path, value)
    assert error_of(refused) == (status, code)


def test_roles_other_than_admin_cannot_roll_back(keyed: Keyed) -> None:
    server, read, write = keyed.server, keyed.key("read"), keyed.key("write")
    other = keyed.key("admin", "elsewhere")
    for key, may in ((read, False), (write, False), (keyed.key("admin"), True)):
        assert server.get("/rag/versions", key=key).json()["may_roll_back"] is may
    for key in (read, write, other):
        assert server.post("/rag/rollback", {"version": 1}, key=key).status_code == 403
    for path in ("/rag/versions", "/rag/diff?a=1"):
        assert server.get(path, key=other).status_code == 403


def test_a_program_compares_and_goes_back_as_it_does_at_home(plain: Served, keyed: Keyed) -> None:
    with pair.connect(plain.url, kb_id="program") as kb:
        first = kb.upsert([Document(f"{number:04}", f"Text {number}.") for number in range(1200)]).manifest_version
        later = kb.upsert([Document(f"{number:04}", f"Other {number}.") for number in range(1100)]).manifest_version
        listed = kb.versions.list()
        assert (listed[0].number, listed[0].is_current, first in [each.number for each in listed]) == (
            later,
            True,
            True,
        )
        changes = kb.versions.diff(first)
        assert (changes.before, changes.after, len(changes.changed)) == (first, later, 1100)
        assert (changes.added, changes.removed) == ((), ())
        done = kb.versions.rollback(first)
        assert (done.restored, done.manifest_version, done.is_changed) == (first, later + 1, True)
        assert not kb.versions.diff(first, "current")
        with raises_code("E218", NotFoundError):
            kb.versions.diff(77)
    with pair.connect(keyed.server.url, key=keyed.key("write")) as kb, pytest.raises(AccessError):
        kb.versions.rollback(1)
