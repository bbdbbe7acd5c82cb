"""Uploads: the server reads each file and stores it as one document."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from flow.test_every_way_in import DOCUMENTS
from pair.app.http.openapi import EXAMPLES
from support.command import write_files
from support.served import Keyed, Served, error_of, pair

NOTES = b"---\ntitle: Notes of releases\nyear: 2025\n---\n\nDeploy on Tuesdays.\n"


def put(server: Served, path: str, content: bytes, content_type: str = "", **more: Any) -> httpx2.Response:
    headers = {"content-type": content_type} if content_type else {}
    return server.request(
        "PUT", f"/rag/docs/{path}", content=content, headers={**headers, **more.pop("headers", {})}, **more
    )


def test_an_upload_over_a_synced_document_stays_until_the_next_sync(tmp_path: Path):
    folder = tmp_path / "project"
    write_files(folder, {".pair/knowledge/a.md": "# Lunch\n\nLunch is at one.\n"})
    with Served(folder, PAIR__SERVER__SYNC="false") as server:
        assert server.post("/sync", {}).json()["stored"] == 1
        assert put(server, "a.md", b"Lunch is at two.").json()["replaced_docs"] == 1
        assert "at two" in server.get("/rag/docs/a.md").json()["text"]
        assert server.post("/sync", {}).json()["stored"] == 1
        assert "at one" in server.get("/rag/docs/a.md").json()["text"]
        put(server, "a.md", b"Lunch is at three.")
        (folder / ".pair" / "knowledge" / "a.md").unlink()
        server.post("/sync", {})
        assert "at three" in server.get("/rag/docs/a.md").json()["text"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_upload_gives_the_same_document_as_an_ingest(plain: Served, tmp_path: Path, name: str):
    content, content_type = DOCUMENTS[name]
    stored = put(plain, f"folder/{name}?kb_id=same", content, content_type)
    assert stored.status_code == 200, stored.text
    assert stored.json().keys() == EXAMPLES["IngestResponse"].keys()
    assert stored.json()["doc_ids"] == [f"folder/{name}"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_bytes(content)
    pair(tmp_path, "ingest", f"folder/{name}")
    ingested = pair(tmp_path, "docs", "get", f"folder/{name}")
    uploaded = plain.get(f"/rag/docs/folder/{name}?kb_id=same").json()
    for field in ("text", "title", "metadata"):
        assert uploaded[field] == ingested[field]


def test_metadata_of_front_matter_can_be_searched_by(plain: Served):
    assert put(plain, "notes.md?kb_id=front", NOTES, "text/markdown").json()["ingested_docs"] == 1
    assert put(plain, "other.md?kb_id=front", b"Deploy on Fridays.").json()["ingested_docs"] == 1
    found = plain.post("/rag/query", {"kb_id": "front", "query": "deploy", "filter": {"year": 2025}}).json()
    assert [(hit["id"], hit["title"]) for hit in found["results"]] == [("notes.md", "Notes of releases")]
    assert "year:" not in found["results"][0]["content"]


def test_a_page_has_its_title_and_no_navigation(plain: Served):
    page = (
        b"<html><head><title>Winter guide</title></head><body><nav><a href='/'>Start page</a></nav>"
        b"<main><h1>Winter guide</h1><p>Salt the steps when it freezes.</p></main></body></html>"
    )
    assert put(plain, "winter?kb_id=pages", page, "text/html; charset=utf-8").status_code == 200
    document = plain.get("/rag/docs/winter?kb_id=pages").json()
    assert document["title"] == "Winter guide"
    assert "Salt the steps" in document["text"]
    assert "Start page" not in document["text"]


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [("", "latin-1"), ("text/plain", "latin-1"), ("text/plain; charset=ISO-8859-5", "iso-8859-5")],
)
def test_text_is_read_in_its_charset(plain: Served, content_type: str, charset: str):
    text = "Привет из города" if charset == "iso-8859-5" else "Schöne Grüße aus München, wo die Bäume grüner sind."
    assert put(plain, "greeting.txt?kb_id=charsets", text.encode(charset), content_type).status_code == 200
    assert plain.get("/rag/docs/greeting.txt?kb_id=charsets").json()["text"] == text


@pytest.mark.parametrize("content_type", ["", "application/octet-stream", "application/x-www-form-urlencoded"])
def test_the_suffix_says_what_a_file_without_a_telling_type_is(plain: Served, content_type: str):
    put(plain, "people.csv?kb_id=suffixes", DOCUMENTS["people.csv"][0], content_type)
    assert "| Ada |" in plain.get("/rag/docs/people.csv?kb_id=suffixes").json()["text"]


def test_the_same_file_again_changes_nothing(plain: Served):
    first = put(plain, "twice.md?kb_id=twice", NOTES).json()
    again = put(plain, "twice.md?kb_id=twice", NOTES).json()
    assert (again["ingested_docs"], again["unchanged_docs"]) == (0, 1)
    assert again["manifest_version"] == first["manifest_version"]
    replaced = put(plain, "twice.md?kb_id=twice", NOTES + b"Or on Mondays.\n").json()
    assert (replaced["ingested_docs"], replaced["replaced_docs"]) == (1, 1)


def test_a_repeated_key_replays_the_response_to_the_same_file_alone(plain: Served):
    key = {"idempotency-key": "upload-1"}
    first = put(plain, "key.md?kb_id=keys", NOTES, headers=key)
    again = put(plain, "key.md?kb_id=keys", NOTES, headers=key)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()
    assert error_of(put(plain, "key.md?kb_id=keys", NOTES * 2, headers=key)) == (400, "E601")
    other = put(plain, "other.md?kb_id=keys", NOTES, headers=key)
    assert (other.json()["doc_ids"], other.json()["ingested_docs"]) == (["other.md"], 1)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("picture.bin", b"\x89PNG\xff\x00", "not text in any known charset"),
        ("empty.txt", b"", "it holds no text"),
        ("blank.md", b"---\ntitle: Nothing\n---\n\n", "it holds no text"),
        ("words.pdf", b"just words", "not a PDF file"),
    ],
)
def test_a_file_without_text_is_refused_with_the_reason(plain: Served, name: str, content: bytes, reason: str):
    refused = put(plain, f"{name}?kb_id=refused", content)
    assert error_of(refused) == (400, "E213")
    assert reason in refused.json()["error"]["message"]
    assert "refused" not in [kb["kb_id"] for kb in plain.get("/rag/kbs").json()["kbs"]]


def test_an_upload_needs_the_scope_write_for_its_kb(keyed: Keyed):
    assert error_of(put(keyed.server, "a.md", NOTES)) == (401, "E602")
    assert error_of(put(keyed.server, "a.md", NOTES, key=keyed.key("read"))) == (403, "E603")
    only = keyed.key("write", "mine")
    assert error_of(put(keyed.server, "a.md?kb_id=yours", NOTES, key=only)) == (403, "E603")
    assert put(keyed.server, "a.md?kb_id=mine", NOTES, key=only).status_code == 200


def test_a_file_over_the_limit_is_refused(keyed: Keyed):
    refused = put(keyed.server, "large.txt", b"word " * 5_000, key=keyed.key("write"))
    assert error_of(refused) == (413, "E607")
