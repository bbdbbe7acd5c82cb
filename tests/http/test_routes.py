"""The successful response of each route."""

import json
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from pair.app.http.openapi import EXAMPLES
from support.operations import OPERATIONS
from support.served import Served, error_of

WITH_ANY_KEYS = {"metadata", "value", "route_stats", "evictions", "states", "run"}
"""Keys whose values are objects with any keys."""


def assert_has_the_shape_of(value: Any, sample: Any, where: str = "") -> None:
    """Check that a value has all keys of the sample, with values of the same types."""
    if isinstance(sample, dict):
        assert isinstance(value, dict), where
        for key, each in sample.items():
            assert key in value, f"{where}.{key}"
            if key not in WITH_ANY_KEYS:
                assert_has_the_shape_of(value[key], each, f"{where}.{key}")
    elif isinstance(sample, list) and sample and value:
        assert_has_the_shape_of(value[0], sample[0], f"{where}[0]")
    elif sample is not None and value is not None:
        assert isinstance(value, (int, float) if isinstance(sample, (int, float)) else type(sample)), where


def test_it_says_that_it_is_alive_and_ready(plain: Served):
    assert plain.get("/healthz").json() == {"status": "ok"}
    assert plain.get("/readyz").json() == {"status": "ready"}


def test_documents_are_stored_and_found(plain: Served):
    stored = plain.post(
        "/rag/ingest",
        {
            "kb_id": "notes",
            "documents": [
                {"id": "soup", "text": "Soup on Fridays.", "title": "Soup", "metadata": {"year": 2026}},
                {"text": "Nobody named this one."},
            ],
            "graph_enabled": False,
            "chunk_size": 200,
        },
    )
    value = stored.json()
    assert_has_the_shape_of(value, EXAMPLES["IngestResponse"])
    assert (value["kb_id"], value["ingested_docs"], value["unchanged_docs"]) == ("notes", 2, 0)
    assert value["doc_ids"][0] == "soup"
    assert value["doc_ids"][1].startswith("doc-")
    assert stored.headers["x-kb-id"] == "notes"

    found = plain.post("/rag/query", {"kb_id": "notes", "query": "soup", "k": 1, "filter": {"year": 2026}}).json()
    assert_has_the_shape_of(found, EXAMPLES["QueryResponse"])
    assert [hit["id"] for hit in found["results"]] == ["soup"]
    again = plain.ingest({"deploy.md": "changed"}, kb_id="again").json()
    assert again["ingested_docs"] == 1


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "vector", "graph", "adaptive"])
def test_every_mode_finds_what_is_there(plain: Served, mode: str):
    found = plain.post("/rag/query", {"query": "Network Time Protocol", "search_mode": mode, "explain": True}).json()
    assert found["search_mode"] == mode
    assert found["results"][0]["id"] == "clocks.md"


def test_documents_and_values_are_counted_by_metadata(plain: Served):
    notes = [
        {"id": f"{n}.md", "text": "A note.", "metadata": {"year": 2020 + n % 2, "tags": ["a", "b"][: n % 3]}}
        for n in range(6)
    ]
    plain.post("/rag/ingest", {"kb_id": "counted", "documents": notes})

    def get(path: str, condition: str = "", **more: str) -> Any:
        return plain.get(path, params={"kb_id": "counted", "filter": condition, **more})

    page = get("/rag/docs", '["year=2021", "tags?"]', limit="1").json()
    assert_has_the_shape_of(page, EXAMPLES["DocumentListResponse"])
    assert ([each["id"] for each in page["documents"]], page["next"], page["count"]) == (["1.md"], "1.md", 2)
    facets = get("/rag/facets", "year!=2021", key="tags").json()
    assert_has_the_shape_of(facets, EXAMPLES["FacetListResponse"])
    assert facets == {
        "kb_id": "counted",
        "key": "tags",
        "values": [{"value": "a", "count": 2}, {"value": "b", "count": 1}],
    }
    assert get("/rag/facets", key="year", limit="1").json()["values"] == [{"value": 2020, "count": 3}]
    assert get("/rag/docs", '{"$not": {"tags": "a"}}').json()["count"] == 2
    for wrong in ('{"$or": 1}', "=", "[1]", '["year=1"', '["="]'):
        assert error_of(get("/rag/docs", wrong)) == (400, "E211")
        assert error_of(get("/rag/facets", wrong, key="year")) == (400, "E211")
    assert error_of(get("/rag/facets")) == (400, "E601")


def test_documents_are_listed_shown_and_deleted(plain: Served):
    plain.ingest({"a/b c.md": "With a path.", "d": "One more.", "e": "The last."}, kb_id="care")
    first = plain.get("/rag/docs", params={"kb_id": "care", "limit": 2}).json()
    assert_has_the_shape_of(first, EXAMPLES["DocumentListResponse"])
    assert ([each["id"] for each in first["documents"]], first["next"]) == (["a/b c.md", "d"], "d")
    rest = plain.get("/rag/docs", params={"kb_id": "care", "limit": 2, "after": "d", "owner": "ingest"}).json()
    assert ([each["id"] for each in rest["documents"]], rest["next"]) == (["e"], None)

    shown = plain.get("/rag/docs/a%2Fb%20c.md?kb_id=care").json()
    assert_has_the_shape_of(shown, EXAMPLES["DocumentResponse"])
    assert shown["text"] == "With a path."
    assert_has_the_shape_of(
        plain.request("DELETE", "/rag/docs/a/b%20c.md?kb_id=care").json(), EXAMPLES["DeleteResponse"]
    )
    assert plain.get("/rag/docs/a/b%20c.md?kb_id=care").status_code == 404


def test_a_kb_is_cared_for(plain: Served):
    plain.ingest({"x": "Some text."}, kb_id="tidy")
    assert_has_the_shape_of(
        plain.post("/rag/compact", {"kb_id": "tidy", "everything": True}).json(), EXAMPLES["CompactResponse"]
    )
    assert_has_the_shape_of(plain.post("/rag/gc", {"kb_id": "tidy", "grace_seconds": 0}).json(), EXAMPLES["GcResponse"])
    assert_has_the_shape_of(plain.post("/cache/sweep").json(), EXAMPLES["SweepResponse"])
    listed = plain.get("/rag/kbs").json()
    assert_has_the_shape_of(listed, EXAMPLES["KbListResponse"])
    assert {"default", "tidy"} <= {each["kb_id"] for each in listed["kbs"]}


def test_a_question_is_answered_with_sources(plain: Served):
    response = plain.post("/ask", {"query": "How do I roll back?", "kb_id": "default"})
    assert response.status_code == 200
    assert "make rollback" in response.json()["answer"]
    assert response.json()["sources"][0]["provenance"]["documentId"] == "deploy.md"
    listed = plain.get("/librarians").json()
    assert_has_the_shape_of(listed, EXAMPLES["LibrarianListResponse"])
    first = plain.post(f"/librarians/{listed['first']}/ask", {"query": "When is lunch?"})
    assert "Lunch is at one" in first.json()["answer"]


def test_a_question_that_came_from_a_librarian_keeps_its_chain_and_trace_but_not_its_user(plain: Served):
    context = {"delegationChain": ["elsewhere"], "user": {"id": "root", "roles": ["admin"]}, "timeout": 5000}
    body = {"query": "When is lunch?", "context": context, "version": "1.0", "requestId": "r-1", "timestamp": "now"}
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "r-1"}
    value = plain.post("/ask", body, headers=trace).json()
    assert value["metadata"]["delegationChain"] == ["elsewhere", "default"]
    assert value["metadata"]["requestId"] == "r-1"
    assert error_of(plain.post("/ask", {"query": "When?", "context": {"delegationChain": ["default"]}})) == (
        400,
        "LOOP_DETECTED",
    )


def test_an_answer_is_streamed_when_asked_for(plain: Served):
    response = plain.post("/ask", {"query": "When is lunch?"}, headers={"accept": "text/event-stream"})
    assert response.headers["content-type"] == "text/event-stream"
    events = [dict(line.split(": ", 1) for line in event.splitlines()) for event in response.text.strip().split("\n\n")]
    assert events[-1]["event"] == "response"
    assert "Lunch is at one" in json.loads(events[-1]["data"])["answer"]


def test_a_query_that_was_asked_before_is_answered_from_memory_until_something_is_written(plain: Served):
    def known() -> int:
        return int(plain.get("/metrics/app").json()["query_stats"]["fresh"]["known"])

    plain.ingest({"a": "Tea is at four."}, kb_id="fresh")
    query = {"kb_id": "fresh", "query": "tea"}
    first = plain.post("/rag/query", query).json()["results"]
    assert plain.post("/rag/query", query).json()["results"] == first
    assert known() == 1
    plain.ingest({"b": "Tea is at five."}, kb_id="fresh")
    assert {each["id"] for each in plain.post("/rag/query", query).json()["results"]} == {"a", "b"}
    plain.request("DELETE", "/rag/docs/a?kb_id=fresh")
    assert {each["id"] for each in plain.post("/rag/query", query).json()["results"]} == {"b"}
    assert known() == 1


def test_documents_come_as_a_stream_with_progress(plain: Served):
    sent = [{"id": f"n{number}", "text": f"Note number {number}."} for number in range(1200)]
    body = "\n".join(json.dumps(each) for each in sent) + "\n\n"
    headers = {"content-type": "application/x-ndjson"}
    response = plain.request("POST", "/rag/ingest?kb_id=stream&graph_enabled=false", content=body, headers=headers)
    told = [json.loads(line) for line in response.text.splitlines()]
    assert [each["type"] for each in told] == ["progress", "progress", "result"]
    assert [each["ingested_docs"] for each in told] == [1000, 1200, 1200]
    assert told[1]["doc_ids"][-1] == "n1199"
    broken = body + '{"id": "no text"}\n'
    half = plain.request("POST", "/rag/ingest?kb_id=stream2&graph_enabled=false", content=broken, headers=headers)
    last = json.loads(half.text.splitlines()[-1])
    assert (last["type"], last["error"]["code"], last["ingested_docs"]) == ("error", "E601", 1000)
    assert "line 1201" in last["error"]["message"]
    assert error_of(plain.request("POST", "/rag/ingest", content=b"\n\n", headers=headers)) == (400, "E601")


def test_a_request_with_the_same_key_is_done_once(plain: Served):
    body = {"kb_id": "once", "documents": [{"text": "Nobody named this one."}]}
    key = {"idempotency-key": "import-7"}
    first = plain.post("/rag/ingest", body, headers=key)
    second = plain.post("/rag/ingest", body, headers=key)
    assert second.json() == first.json()
    assert (first.headers.get("idempotent-replayed"), second.headers["idempotent-replayed"]) == (None, "true")
    assert error_of(plain.post("/rag/ingest", {**body, "chunk_size": 99}, headers=key)) == (400, "E601")
    assert plain.get("/rag/docs?kb_id=once").json()["documents"][0]["id"] == first.json()["doc_ids"][0]


def test_a_request_keeps_its_id_and_every_answer_is_guarded(plain: Served):
    answer = plain.get("/healthz", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    made = plain.get("/nowhere", headers={"x-request-id": "no good!"}).headers["x-request-id"]
    assert len(made) == 32
    for each in (answer, plain.get("/nowhere")):
        assert each.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in each.headers["content-security-policy"]
        assert "access-control-allow-origin" not in each.headers


def test_requests_are_logged_without_what_was_asked(plain: Served):
    plain.post("/rag/query", {"query": "a very private matter"}, headers={"x-request-id": "logged-1"})
    plain.get("/rag/docs/absent", headers={"x-request-id": "logged-2"})
    entry = plain.logged_request("logged-2")
    assert (entry["level"], entry["error"]) == ("warning", "E214")
    entry = plain.logged_request("logged-1")
    assert (entry["level"], entry["status"]) == ("info", 200)
    assert "private matter" not in plain.raw_log


def test_figures_are_valid_in_every_format(plain: Served):
    plain.post("/rag/query", {"query": "lunch"})
    value = plain.get("/metrics/app").json()
    assert_has_the_shape_of(value, EXAMPLES["MetricsResponse"])
    assert value["route_stats"]["POST /rag/query"]["count"] >= 1
    assert value["query_stats"]["default"]["total_results"] >= 1
    assert value["embed_stats"]["default"]["texts"] >= 1
    assert value["background"]["sync"]["runs"] >= 1
    scraped = plain.get("/metrics")
    assert "\nprocess_resident_memory_bytes " in scraped.text
    families = {family.name: family for family in prometheus_families(scraped.text)}
    assert scraped.headers["content-type"].startswith("text/plain")
    requests = {tuple(each.labels.values()) for each in families["pair_http_requests"].samples}
    assert ("POST", "/rag/query", "200") in requests
    assert {"pair_http_request_duration_seconds", "pair_background_runs", "pair_lease_conflicts"} <= families.keys()
    cache = plain.get("/metrics/cache")
    assert cache.headers["content-type"].startswith("application/openmetrics-text")
    assert cache.text.endswith("# EOF\n")
    named = {family.name for family in openmetrics_families(cache.text)}  # type: ignore[no-untyped-call]
    assert {"pair_cache_evictions", "pair_shard_count", "pair_compaction_duration_seconds"} <= named


def test_the_document_describes_every_route(plain: Served):
    document = plain.get("/openapi.json").json()
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert {operation.route for operation in OPERATIONS} <= routes
    for methods in document["paths"].values():
        for described in methods.values():
            assert all("example" in kind for kind in described["responses"]["200"]["content"].values())
            assert {"400", "401", "403", "429"} <= described["responses"].keys()
