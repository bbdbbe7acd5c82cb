"""Every row of the table of statuses, produced by a real request."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pair.blobs.leases import FileLeases
from support.served import BURST, Keyed, Served, pair


def assert_error(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error.keys() <= {"code", "message", "recoverable", "suggestion"}
    assert response.headers["content-type"] == "application/json"
    assert ("retry-after" in response.headers) == (status in {409, 429, 503})
    return error


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        pytest.param("/rag/query", {"query": "x", "search_mode": "psychic"}, "E601", id="unknown-mode"),
        pytest.param("/rag/query", {"k": 3}, "E601", id="no-query"),
        pytest.param("/rag/query", {"query": "x", "k": "3"}, "E601", id="k-is-text"),
        pytest.param("/rag/query", {"query": "x", "color": "red"}, "E601", id="unknown-field"),
        pytest.param("/rag/query", {"query": "  "}, "E215", id="blank-query"),
        pytest.param("/rag/query", {"query": "x", "filter": {"year": {"above": 3}}}, "E211", id="bad-filter"),
        pytest.param("/rag/query", {"query": "x", "kb_id": "never-made"}, "E201", id="no-manifest"),
        pytest.param("/rag/query", {"query": "x", "kb_id": "../etc"}, "E212", id="bad-kb-name"),
        pytest.param("/rag/ingest", {"documents": []}, "E601", id="no-documents"),
        pytest.param("/rag/ingest", {"documents": [{"id": "a", "text": "  "}]}, "E213", id="blank-text"),
        pytest.param("/rag/compact", {"kb_id": "never-made"}, "E201", id="compact-no-manifest"),
        pytest.param("/ask", {"query": "x", "kb_id": "never-made"}, "E201", id="ask-no-manifest"),
        pytest.param("/ask", {"query": "x", "context": {"delegationChain": 7}}, "E601", id="bad-context"),
    ],
)
def test_an_invalid_request_or_a_missing_value_is_400(plain: Served, path: str, body: Any, code: str):
    assert_error(plain.post(path, body), 400, code)


def test_invalid_json_is_400(plain: Served):
    assert_error(
        plain.request("POST", "/rag/query", content=b"{", headers={"content-type": "application/json"}), 400, "E601"
    )
    assert_error(
        plain.request("POST", "/rag/query", content=b"{}", headers={"content-type": "text/plain"}), 400, "E601"
    )
    assert_error(plain.get("/rag/docs?limit=0"), 400, "E601")
    assert_error(plain.get("/rag/docs?limit=1&limit=2"), 400, "E601")


def test_a_missing_graph_is_400(plain: Served):
    body = {"kb_id": "flat", "documents": [{"id": "a", "text": "The Network Time Protocol."}], "graph_enabled": False}
    assert plain.post("/rag/ingest", body).status_code == 200
    query = {"kb_id": "flat", "query": "protocol", "search_mode": "graph"}
    assert_error(plain.post("/rag/query", query), 400, "E204")
    assert plain.post("/rag/query", {**query, "search_mode": "adaptive"}).status_code == 200


def test_vectors_of_the_wrong_size_are_400(plain: Served):
    (plain.folder / "note.md").write_text("A note.")
    pair(plain.folder, "ingest", "note.md", "--kb", "small", PAIR__ENGINE__EMBEDDING_DIMENSION="64")
    assert_error(plain.post("/rag/query", {"kb_id": "small", "query": "note"}), 400, "E304")
    assert_error(plain.ingest({"a": "More."}, kb_id="small"), 400, "E304")


def test_an_unknown_path_is_404_and_a_wrong_method_405(plain: Served):
    assert_error(plain.get("/rag/docs/absent"), 404, "E214")
    assert_error(plain.request("DELETE", "/rag/docs/absent"), 404, "E214")
    assert_error(plain.post("/librarians/nobody/ask", {"query": "x"}), 404, "E605")
    assert_error(plain.get("/rag/quary"), 404, "E604")
    refused = plain.get("/rag/query")
    assert_error(refused, 405, "E606")
    assert refused.headers["allow"] == "POST"


def test_a_lease_held_by_another_writer_is_409(keyed: Keyed):
    key = keyed.key("write")
    leases = FileLeases(
        keyed.server.folder / ".pair" / "store" / ".pair-store" / "leases",
        holder="somebody else",
        new_token=lambda: secrets.token_hex(8),
    )
    held = leases.acquire("default.duckdb", seconds=30)
    try:
        error = assert_error(keyed.server.ingest({"new": "Cannot be written now."}, key=key), 409, "E203")
    finally:
        leases.release(held)
        leases.close()
    assert error["recoverable"] is True
    assert keyed.server.ingest({"new": "Now it can."}, key=key).status_code == 200


def test_a_body_over_the_limit_is_413_and_too_slow_a_one_408(keyed: Keyed):
    key = keyed.key("write")
    assert_error(keyed.server.ingest({"long": "x" * 30_000}, key=key), 413, "E607")
    line = b'{"id": "long", "text": "' + b"x" * 30_000
    headers = {"content-type": "application/x-ndjson"}
    response = keyed.server.request("POST", "/rag/ingest", content=line, headers=headers, key=key)
    assert_error(response, 413, "E607")
    head = f"POST /rag/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n"
    assert keyed.server.raw(head.encode() + b"{").startswith(b"HTTP/1.1 408 ")


def test_too_many_requests_are_429(keyed: Keyed):
    key = keyed.key("read")
    statuses = [keyed.server.get("/rag/kbs", key=key).status_code for _ in range(BURST)]
    assert statuses == [200] * BURST
    refused = keyed.server.get("/rag/kbs", key=key)
    assert_error(refused, 429, "E608")
    assert int(refused.headers["retry-after"]) > 100
    assert keyed.server.get("/rag/kbs", key=keyed.key("read")).status_code == 200


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory, plain: Served) -> Iterator[Served]:
    """Return a server on the store of another one, with a cache that is too small."""
    folder = tmp_path_factory.mktemp("cramped") / "project"
    settings = {
        "PAIR__ENGINE__STORE": str(plain.folder / ".pair" / "store"),
        "PAIR__ENGINE__CACHE_MAX_BYTES": "1",
        "PAIR__SERVER__SYNC": "false",
    }
    with Served(folder, **settings) as server:
        yield server


def test_a_cache_without_room_is_503(cramped: Served):
    assert_error(cramped.post("/rag/query", {"query": "lunch"}), 503, "E205")
    cache = cramped.get("/metrics/cache").text
    assert "pair_cache_budget_exceeded_total 1.0" in cache


def test_damaged_data_is_500_and_other_requests_succeed(cramped: Served, plain: Served):
    (plain.folder / ".pair" / "store" / "broken.duckdb.manifest.json").write_bytes(b"{}")
    assert_error(cramped.get("/rag/docs?kb_id=broken"), 500, "E207")
    (plain.folder / ".pair" / "store" / "broken.duckdb.manifest.json").unlink()
    assert cramped.get("/readyz").status_code == 200


def test_no_path_of_the_server_is_disclosed(cramped: Served, tmp_path: Path):
    """This holds for a full cache and for an unreadable file, on every kind of route."""
    question = {"query": "lunch"}
    chat = {"model": "pair", "messages": [{"role": "user", "content": "lunch?"}]}
    for path, body in (("/rag/query", question), ("/ask", question), ("/v1/chat/completions", chat)):
        answer = cramped.post(path, body)
        assert answer.status_code == 503
        assert "E205" in answer.text
        assert str(cramped.folder) not in answer.text
    (tmp_path / "cache").write_text("This is no folder.")
    store = cramped.environment["PAIR__ENGINE__STORE"]
    settings = {"PAIR__ENGINE__CACHE_DIR": str(tmp_path / "cache"), "PAIR__SERVER__SYNC": "false"}
    with Served(tmp_path / "project", PAIR__ENGINE__STORE=store, **settings) as server:
        error = assert_error(server.post("/rag/query", question), 503, "E010")
        assert error["message"].startswith(("Cannot write a local file: ", "Cannot read a local file: "))
        assert str(tmp_path) not in server.post("/rag/query", question).text + server.post("/ask", question).text
        assert any(str(tmp_path) in str(each.get("reason")) for each in server.logged), "the log names the path"
