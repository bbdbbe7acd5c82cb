"""Searches of several KBs and of earlier versions, feedback, and routes in third-party formats."""

import asyncio
import configparser
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from mcp import Client

import pair as package
from pair.auth.settings import ServerSettings
from pair.errors import UsageError
from pair.values import merge_hits
from support.assistants import called, over_http, refusal
from support.served import Keyed, Served, error_of, pair
from support.threads import run_together

DEPLOY = "Deploy on Tuesdays. Roll back with the command make rollback."


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Return a server with keys and three KBs."""
    folder = tmp_path_factory.mktemp("several") / "project"
    with Served(folder, PAIR__SERVER__AUTH="keys", PAIR__SERVER__SYNC="false") as server:
        keyed = Keyed(server, folder)
        key = keyed.key("write")
        meta = [{"id": "deploy.md", "text": DEPLOY, "title": "Deploying", "metadata": {"year": 2026, "tags": ["ops"]}}]
        server.post("/rag/ingest", {"kb_id": "ops", "documents": meta}, key=key)
        server.ingest({"lunch.md": "Lunch is at one. On Fridays there is soup."}, kb_id="canteen", key=key)
        server.ingest({"vault.md": "Roll back the door of the vault with the command open."}, kb_id="vault", key=key)
        yield keyed


# ── several KBs ────────────────────────────────────────────────────────────────────────────────────


def test_several_kbs_are_searched_at_once_and_merged_by_score(shelves: Keyed):
    server, key = shelves.server, shelves.key("read")
    query = {"query": "roll back with the command", "k": 5}
    alone = {
        kb: server.post("/rag/query", {**query, "kb_id": kb}, key=key).json() for kb in ("ops", "canteen", "vault")
    }
    assert "kb_id" not in alone["ops"]["results"][0]
    both = server.post("/rag/query", {**query, "kb_id": ["vault", "ops", "canteen", "ops"]}, key=key).json()
    assert both["kb_id"] == ["vault", "ops", "canteen"]
    assert both["manifest_version"] == {kb: alone[kb]["manifest_version"] for kb in both["kb_id"]}
    expected = {(kb, hit["id"], hit["score"]) for kb, value in alone.items() for hit in value["results"]}
    assert {(hit["kb_id"], hit["id"], hit["score"]) for hit in both["results"]} == expected
    scores = [hit["score"] for hit in both["results"]]
    assert scores == sorted(scores, reverse=True)
    one = server.post("/rag/query", {**query, "k": 1, "kb_id": ["vault", "ops"]}, key=key).json()
    assert one["results"] == both["results"][:1]


def test_every_kb_of_a_search_needs_access(shelves: Keyed):
    server, key = shelves.server, shelves.key("read", "ops", "canteen")
    body = {"query": "command", "kb_id": ["ops", "canteen"]}
    assert server.post("/rag/query", body, key=key).status_code == 200
    assert error_of(server.post("/rag/query", {**body, "kb_id": ["ops", "vault"]}, key=key)) == (403, "E603")
    assert error_of(server.post("/rag/query", {**body, "kb_id": ["ops", "nowhere"]}, key=key)) == (403, "E603")
    everything = shelves.key("read")
    assert error_of(server.post("/rag/query", {**body, "kb_id": ["ops", "nowhere"]}, key=everything))[1] == "E201"
    assert error_of(server.post("/rag/query", {**body, "kb_id": []}, key=everything)) == (400, "E601")
    assert error_of(server.post("/rag/query", {**body, "at": 1}, key=everything)) == (400, "E601")

    async def work(client: Client) -> None:
        found = await called(client, "search", query="command", kb=["ops", "canteen"])
        assert found["results"][0]["id"] == "kb://ops/deploy.md"
        assert (await called(client, "search", query="command", kb=["ops"]))["kb"] == "ops"
        assert (await refusal(client, "search", query="command", kb=["ops", "vault"]))["code"] == "E603"
        assert (await refusal(client, "search", query="command", kb=[]))["code"] == "E601"

    over_http(server.url, work, key=key)


def test_names_of_other_interfaces_are_accepted(shelves: Keyed):
    server, key = shelves.server, shelves.key("read")
    usual = server.post("/rag/query", {"query": "soup", "kb_id": "canteen", "k": 1, "search_mode": "keyword"}, key=key)
    other = server.post("/rag/query", {"query": "soup", "kb": "canteen", "limit": 1, "mode": "keyword"}, key=key)
    assert other.json()["results"] == usual.json()["results"] != []
    twice = {"query": "soup", "k": 1, "limit": 2}
    assert error_of(server.post("/rag/query", twice, key=key)) == (400, "E601")


def test_the_command_and_python_search_several_kbs_too(shelves: Keyed):
    folder = shelves.server.folder
    found = pair(folder, "search", "roll back command", "--kb", "ops", "--kb", "vault")
    assert found["kb_id"] == ["ops", "vault"]
    assert {hit["kb_id"] for hit in found["results"]} == {"ops", "vault"}
    assert pair(folder, "search", "x", "--kb", "ops", "--kb", "vault", "--at", "1")["error"]["code"] == "E402"
    key = shelves.key("read")
    kbs = {kb: package.connect(shelves.server.url, kb_id=kb, key=key) for kb in ("ops", "vault")}
    merged = merge_hits({name: kb.search("roll back command") for name, kb in kbs.items()}, limit=5)
    assert [(hit.kb_id, hit.score) for hit in merged] == [(hit["kb_id"], hit["score"]) for hit in found["results"]]
    for kb in kbs.values():
        kb.close()


# ── earlier versions ───────────────────────────────────────────────────────────────────────────────


def test_an_earlier_version_is_read_everywhere(plain: Served):
    plain.ingest({"a.md": "The gate opens at nine."}, kb_id="past")
    plain.ingest({"a.md": "The gate opens at ten.", "b.md": "The wall is high."}, kb_id="past")
    with package.connect(plain.url, kb_id="past") as now, package.connect(plain.url, kb_id="past", at=1) as then:
        assert (now.is_past, then.is_past) == (False, True)
        assert [kb.search("gate opens", limit=1)[0].text for kb in (now, then)] == [
            "The gate opens at ten.",
            "The gate opens at nine.",
        ]
        assert [len(kb.documents()) for kb in (now, then, now.versions.open(1))] == [2, 1, 1]
        assert [kb.count() for kb in (now, then)] == [2, 1]
        assert then.document("a.md").text == "The gate opens at nine."
        assert "nine" in (asyncio.run(then.ask("When does the gate open?")).answer or "")
        with pytest.raises(UsageError, match="read-only"):
            then.delete(["a.md"])
        with pytest.raises(UsageError, match="read-only"):
            then.upsert([])

    async def work(client: Client) -> None:
        answer = await called(client, "ask", query="When does the gate open?", kb="past", at="1")
        assert "nine" in answer["answer"]
        assert answer["sources"][0]["id"] == "kb://past/a.md?at=1"
        assert "nine" in (await called(client, "fetch", id=answer["sources"][0]["id"]))["text"]
        listed = json.loads((await client.read_resource("kb://past?at=1")).contents[0].text)  # type: ignore[union-attr]
        assert [each["uri"] for each in listed["documents"]] == ["kb://past/a.md?at=1"]

    over_http(plain.url, work)
    assert len(pair(plain.folder, "docs", "list", "--kb", "past", "--at", "1")["documents"]) == 1


# ── Dify, llms.txt, Markdown ───────────────────────────────────────────────────────────────────────


def test_dify_retrieves_by_its_own_contract(shelves: Keyed):
    """The test sends the body of Dify, with the key as a bearer token."""
    body = {
        "knowledge_id": "ops",
        "query": "how do I roll back?",
        "retrieval_setting": {"top_k": 2, "score_threshold": 0.0},
    }
    key = shelves.key("read", "ops")
    records = shelves.server.post("/retrieval", body, key=key).json()["records"]
    assert records[0].keys() == {"content", "score", "title", "metadata"}
    assert (records[0]["content"], records[0]["title"]) == (DEPLOY, "Deploying")
    assert 0 < records[0]["score"] <= 1
    assert records[0]["metadata"]["document_id"] == "deploy.md"
    strict = {**body, "retrieval_setting": {"top_k": 2, "score_threshold": 1.0}}
    assert shelves.server.post("/retrieval", strict, key=key).json() == {"records": []}
    assert error_of(shelves.server.post("/retrieval", {**body, "knowledge_id": "vault"}, key=key)) == (403, "E603")


@pytest.mark.parametrize(
    ("name", "operator", "value", "count"),
    [
        ("year", "=", 2026, 1),
        ("year", "≠", 2026, 0),
        ("year", "≥", 2027, 0),
        ("tags", "contains", "ops", 1),
        ("tags", "in", ["ops", "dev"], 1),
        ("author", "empty", None, 1),
        ("author", "not empty", None, 0),
        (["author", "year"], "is", 2026, 1),
    ],
)
def test_dify_selects_by_metadata(shelves: Keyed, name: str, operator: str, value: object, count: int):
    condition = {"name": name, "comparison_operator": operator, "value": value}
    body = {
        "knowledge_id": "ops",
        "query": "roll back",
        "retrieval_setting": {"top_k": 3, "score_threshold": 0},
        "metadata_condition": {"logical_operator": "and", "conditions": [condition]},
    }
    key = shelves.key("read")
    assert len(shelves.server.post("/retrieval", body, key=key).json()["records"]) == count
    body["metadata_condition"] = {"conditions": [{**condition, "comparison_operator": "end with"}]}
    assert error_of(shelves.server.post("/retrieval", body, key=key)) == (400, "E601")


def test_llms_txt_links_to_documents_as_markdown(shelves: Keyed):
    server, key = shelves.server, shelves.key("read", "ops")
    listed = server.get("/llms.txt?kb_id=ops", key=key)
    assert listed.headers["content-type"] == "text/plain; charset=utf-8"
    assert listed.text.startswith("# ops\n")
    (link,) = [line.partition("](")[2].rstrip(")") for line in listed.text.splitlines() if line.startswith("- [")]
    document = server.get(link, key=key, headers={"accept": "text/markdown, */*"})
    assert (document.text, document.headers["content-type"]) == (DEPLOY, "text/markdown; charset=utf-8")
    assert server.get(link, key=key).json()["text"] == DEPLOY
    assert error_of(server.get("/llms.txt?kb_id=vault", key=key)) == (403, "E603")


# ── feedback ───────────────────────────────────────────────────────────────────────────────────────


def test_feedback_becomes_a_judged_set(tmp_path: Path):
    folder = tmp_path / "project"
    with Served(folder, PAIR__SERVER__SYNC="false") as server:
        server.ingest({"deploy.md": DEPLOY, "lunch.md": "Lunch is at one.", "soup.md": "Soup is on Fridays."})
        up = {"query": "roll back", "rating": "up", "document_ids": ["deploy.md"]}
        assert server.post("/feedback", up).json() == {"status": "ok", "kb_id": "default"}
        server.post("/feedback", {**up, "query": "food", "document_ids": ["lunch.md", "soup.md"]})
        server.post("/feedback", {**up, "query": "food", "rating": "down", "document_ids": ["soup.md"]})
        server.post("/feedback", {"query": "nothing", "rating": "down"})
        with package.connect(server.url) as kb:
            kb.feedback.add("when is lunch", "up", ["lunch.md"])

        async def work(client: Client) -> None:
            given = {"query": "fridays", "rating": "up", "ids": ["kb://default/soup.md"]}
            assert await called(client, "feedback", **given) == {"stored": 1}
            assert (await refusal(client, "feedback", **{**given, "rating": "so so"}))["code"] == "E601"

        over_http(server.url, work)
        assert error_of(server.post("/feedback", {**up, "kb_id": "nowhere"}))[1] == "E201"
        assert error_of(server.post("/feedback", {**up, "document_ids": []})) == (400, "E601")
        assert error_of(server.post("/feedback", {**up, "query": "x" * 2001})) == (400, "E601")
    value = pair(folder, "eval", "--feedback", "--mode", "keyword")
    assert (value["set"], value["queries"]) == ("feedback on default", 4)
    assert value["modes"]["keyword"]["recall@10"] == 0.75  # no document has the word of "food"


def test_no_judgement_of_many_at_once_is_lost_and_only_the_newest_are_kept(tmp_path: Path):
    with package.open("default", store=str(tmp_path)) as kb:

        def vote(number: int) -> None:
            kb.feedback.add(f"query {number}", "up", ["a.md"])

        run_together(*(lambda number=number: vote(number) for number in range(6)))
        assert sorted(entry.query for entry in kb.feedback.list()) == [f"query {number}" for number in range(6)]
        long = "x" * 2000
        for number in range(30):
            kb.feedback.add(f"{number} {long[:1900]}", "up", [f"{'d' * 4000}-{place}" for place in range(20)])
        kept = kb.feedback.list()
        assert kept[-1].query.startswith("29 ")
        assert len(kept) < 36
        (blob,) = tmp_path.glob("**/default.feedback.jsonl")
        assert blob.stat().st_size < 2_100_000
        kb.feedback.list()


# ── files for operators ────────────────────────────────────────────────────────────────────────────

DEPLOY_FOLDER = Path(__file__).parents[2] / "deploy"


def test_the_dashboard_and_the_alerts_name_metrics_that_the_server_has(plain: Served):
    plain.post("/ask", {"query": "When is lunch?"})
    known = set(re.findall(r"(?m)^# TYPE (\S+)", plain.get("/metrics").text)) | {"up"}
    rules = yaml.safe_load((DEPLOY_FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY_FOLDER / "dashboard.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(rules) == 7
    assert len(panels) == 8
    for expression in expressions:
        names = set(re.findall(r"\b(?:pair|process)_\w+|\bup\b", expression))
        assert names
        assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} <= known | names & known, expression


def test_the_unit_of_systemd_starts_the_server_and_lets_it_finish():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY_FOLDER / "pair.service").read_text())
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["serve"]
    assert float(service["TimeoutStopSec"]) > ServerSettings().stop_seconds


def test_the_entry_for_the_registry_of_mcp_starts_this_version():
    project = DEPLOY_FOLDER.parent
    entry = json.loads((project / "server.json").read_text())
    scripts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    (listed,) = entry["packages"]
    assert entry["version"] == listed["version"] == package.__version__
    assert listed["identifier"] == scripts["name"]
    assert listed["identifier"] in scripts["scripts"]  # uvx runs the command with the name of the package
    arguments = [each.get("name", each.get("value")) for each in listed["packageArguments"]]
    assert arguments == ["mcp", "--project", "--kb"]
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert len(entry["description"]) <= 100
