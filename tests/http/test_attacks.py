"""Hostile requests: names, ids, bodies and headers."""

import json
import resource
import socket

import pytest

from support.served import Keyed, Served

LONG = "x" * 10_000


@pytest.mark.parametrize("kb_id", ["../../etc/passwd", "a/b", "a\x00b", "ünïcode", ".", "", LONG])
def test_names_of_kbs_lead_nowhere_else(plain: Served, kb_id: str):
    response = plain.post("/rag/query", {"query": "lunch", "kb_id": kb_id})
    assert response.status_code == (200 if kb_id == "" else 400)
    assert plain.ingest({"a": "text"}, kb_id=kb_id or "a/b").status_code == 400
    assert plain.get("/rag/docs", params={"kb_id": kb_id or "a/b"}).status_code == 400


@pytest.mark.parametrize(
    "path", ["..%2F..%2Fetc%2Fpasswd", "%00", "%FF%FE", "%2e%2e/x", "%F0%9F%8D%9C", LONG, "%0d%0aX-Evil:%201"]
)
def test_ids_of_documents_lead_nowhere_else(plain: Served, path: str):
    head = f"GET /rag/docs/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = plain.raw(head.encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"\r\nX-Evil" not in answer


def test_any_text_is_stored_unchanged(plain: Served):
    script = "<script>alert(1)</script>\u2028 ünïcode 🍜 \x7f"
    document = {"id": "../<b>\n☃", "text": script, "title": script, "metadata": {"k": script}}
    assert plain.post("/rag/ingest", {"kb_id": "odd", "documents": [document]}).status_code == 200
    shown = plain.get("/rag/docs?kb_id=odd").json()["documents"][0]
    assert (shown["id"], shown["title"], shown["metadata"]) == (document["id"], script, {"k": script})
    answer = plain.get("/rag/docs/..%2F%3Cb%3E%0A%E2%98%83?kb_id=odd")
    assert answer.json()["text"] == script
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "x", "max_distance": NaN}',
        b'{"query": "x", "max_distance": Infinity}',
        b'{"query": "x", "max_distance": 1e999}',
        b'{"query": "x", "filter": {"a": NaN}}',
        b'{"query": "x", "filter": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b"[" * 100_000,
        b'{"query": "\\ud800"}',
        b'{"query": "\xff"}',
        b"\x00",
        b"null",
        b'{"query": "x", "k": 99999999999999999999999999}',
    ],
    ids=["nan", "infinity", "too-great", "nan-inside", "deep", "deeper", "surrogate", "latin", "nul", "null", "number"],
)
def test_json_that_is_meant_to_hurt_is_400(plain: Served, body: bytes):
    response = plain.request("POST", "/rag/query", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"][0]) == (400, "E")


def test_metadata_that_json_cannot_say_is_400(plain: Served):
    for value in (b"1e999", b"9" * 5000):
        body = b'{"documents": [{"id": "m", "text": "t", "metadata": {"a": ' + value + b"}}]}"
        response = plain.request("POST", "/rag/ingest", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(plain: Served):
    head = (
        "POST /rag/ingest HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000000"
    )
    answer = plain.raw(head.encode() + b"\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_connection_that_says_nothing_is_closed(keyed: Keyed):
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "):
        assert keyed.server.raw(sent) == b""
    answered = keyed.server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
    assert answered.startswith(b"HTTP/1.1 200 ")
    assert keyed.server.get("/healthz").status_code == 200


def test_many_connections_are_opened_and_dropped(plain: Served):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for _ in range(5):
            opened = [socket.create_connection(("127.0.0.1", plain.port)) for _ in range(min(2000, hard - 200))]
            opened[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert opened[0].recv(100).startswith(b"HTTP/1.1 200 ")
            for connection in opened:
                connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert plain.get("/healthz").status_code == 200


def test_names_that_are_made_up_leave_nothing_behind(plain: Served):
    for number in range(20):
        assert plain.post("/rag/query", {"query": "x", "kb_id": f"made-up-{number}"}).status_code == 400
    figures = plain.get("/metrics/app").json()
    assert all("made-up" not in str(figures[key]) for key in figures if key != "recent_requests")


def test_a_long_line_that_comes_in_many_parts_is_read_once(plain: Served):
    """Reading takes linear time. In quadratic time, 2 MB in parts of 1 kB would copy 2 GB."""
    text = b"word " * 400_000
    line = b'{"id": "long", "text": "' + text + b'"}'
    parts = (line[at : at + 1000] for at in range(0, len(line), 1000))
    headers = {"content-type": "application/x-ndjson"}
    answer = plain.client.post("/rag/ingest?kb_id=long&graph_enabled=false", content=parts, headers=headers)
    assert json.loads(answer.text.splitlines()[-1])["status"] == "ok"
    assert len(plain.get("/rag/docs/long?kb_id=long").json()["text"]) == len(text)
