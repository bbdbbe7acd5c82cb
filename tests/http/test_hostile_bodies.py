"""Damaged request bodies are answered, or refused with a code; never with a status 500.

`HYPOTHESIS_PROFILE=nightly` sends many more of them.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.damage import damaged_json, damaged_values, tried
from support.operations import OPERATIONS
from support.served import Served

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

DOCUMENTS = [
    {"id": "a.md", "text": "# Tides\n\nThe sea rises twice a day.", "title": "Tides", "metadata": {"year": 2024}},
    {"id": "b.md", "text": "Ports are open at high water.", "url": "https://example.com/b", "metadata": {}},
]
QUERY = {
    "query": "When does the sea rise?",
    "k": 3,
    "search_mode": "hybrid",
    "filter": {"year": {"$gte": 2020}},
    "max_distance": 1.5,
    "highlights": True,
    "explain": True,
}
QUESTION = {
    "query": "When does the sea rise?",
    "context": {
        "delegationChain": ["a"],
        "metadata": {"a": 1},
        "timeout": 2000,
        "trace": {"traceId": "1", "spanId": "2"},
        "budget": {"calls": 3, "tokens": 100},
    },
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "search", "arguments": {"query": "sea", "k": 2, "filter": {"year": 2024}}},
}
BODIES: dict[str, Any] = {
    operation.path.replace("{id}", "default"): operation.body_example
    for operation in OPERATIONS
    if operation.method == "POST"
} | {"/rag/ingest": {"documents": DOCUMENTS}, "/rag/query": QUERY, "/ask": QUESTION, "/mcp": CALL}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("bodies") / "project") as running:
        assert running.post("/rag/ingest", {"documents": DOCUMENTS}).status_code == 200
        yield running
        assert running.get("/readyz").status_code == 200
        assert not [each for each in running.logged if each.get("level") == "error"]


def stored(server: Served) -> Any:
    return server.get("/rag/docs?limit=1000&text=true").json()["documents"]


@tried(150, 4_000)
@given(data=st.data())
def test_a_damaged_body_is_answered_or_refused_and_stores_nothing_by_halves(
    server: Served, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(BODIES)))
    body = data.draw(damaged_json(BODIES[path]))
    before = stored(server) if path == "/rag/ingest" else None
    response = server.request("POST", path, content=body, headers=JSON)
    assert response.status_code < 500, (path, body[:500], response.text)
    if response.status_code >= 400 and path != "/mcp":
        assert response.json()["error"]["code"]
        assert len(response.content) < 20_000
        assert before is None or stored(server) == before


@tried(30, 1_000)
@given(data=st.data())
def test_a_damaged_line_of_a_stream_is_reported_and_nothing_of_its_batch_is_stored(
    server: Served, data: st.DataObject
) -> None:
    lines = [json.dumps(DOCUMENTS[0]).encode(), data.draw(damaged_json(DOCUMENTS[1]))]
    before = stored(server)
    response = server.request(
        "POST", "/rag/ingest", content=b"\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code < 500, (lines, response.text)
    if response.status_code == 200:
        assert json.loads(response.text.splitlines()[-1])["type"] == "result"
    else:
        assert response.json()["error"]["code"]
        assert stored(server) == before


@tried(40, 1_000)
@given(values=damaged_values({"kb_id": "default", "owner": "ingest", "after": "a", "limit": "2", "text": "true"}))
def test_a_damaged_address_is_answered_or_refused(server: Served, values: Any) -> None:
    given = values if isinstance(values, dict) else {"limit": values}
    parameters = {key.encode("utf-8", "replace"): str(value).encode("utf-8", "replace") for key, value in given.items()}
    response = server.get("/rag/docs", params={key: value[:5000] for key, value in parameters.items()})
    assert response.status_code < 500, (parameters, response.text)
