"""The graph around a document or entity, the states of sources, and documents by a part of their name."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pair.app.http.openapi import EXAMPLES
from support.command import write_files
from support.served import Keyed, Served, error_of

TEXTS = {
    "clocks.md": "The Network Time Protocol keeps clocks in step. Stratum One servers are near.",
    "radio.md": "DCF77 near Frankfurt sends the time. The Network Time Protocol is more exact.",
    "lunch.md": "Lunch is at one.",
}
TEAM_CONFIG = "kb:\n  collections:\n    team: {path: team, kb: team}\n"


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sources") / "project"
    (folder / ".pair" / "knowledge").mkdir(parents=True)
    for name in ("a.md", "b.md"):
        (folder / ".pair" / "knowledge" / name).write_text(f"# {name}\n\nSome text.\n")
    (folder / ".pair" / "knowledge" / "picture.png").write_bytes(b"\x89PNG\xff\xfe\x00")
    (folder / ".pair" / "links.txt").write_text("http://127.0.0.1:9/gone\n")
    write_files(folder, {"config.yaml": TEAM_CONFIG, "team/rota.md": "# Rota\n\nAda is on call.\n"})
    with Served(folder) as server:
        while not server.get("/metrics/app").json()["background"]["sync"]["runs"]:
            pass
        yield server


def test_the_graph_around_a_document_leads_to_others(plain: Served):
    plain.ingest(TEXTS, kb_id="graphs")
    around = plain.get("/rag/graph", params={"kb_id": "graphs", "document": "clocks.md"}).json()
    assert around.keys() == EXAMPLES["GraphResponse"].keys()
    names = [each["name"] for each in around["entities"]]
    assert {"network time protocol", "stratum one"} <= set(names)
    assert [each["id"] for each in around["documents"]] == ["radio.md"]
    assert "network time protocol" in around["documents"][0]["entities"]
    assert {name for each in around["edges"] for name in (each["source"], each["target"])} <= set(names)
    assert around["edges"][0].keys() == EXAMPLES["GraphResponse"]["edges"][0].keys()


def test_the_graph_around_an_entity_is_found_by_any_of_its_spellings(plain: Served):
    plain.ingest(TEXTS, kb_id="graphs")
    around = plain.get("/rag/graph", params={"kb_id": "graphs", "entity": "The Network Time Protocols"}).json()
    assert around["entities"][0] == {**around["entities"][0], "name": "network time protocol", "chunks": 2}
    assert {each["id"] for each in around["documents"]} == {"clocks.md", "radio.md"}
    few = plain.get("/rag/graph", params={"kb_id": "graphs", "entity": "network time protocol", "limit": 1}).json()
    assert (len(few["entities"]), len(few["documents"]), few["edges"]) == (1, 1, [])
    nothing = plain.get("/rag/graph", params={"kb_id": "graphs", "entity": "nobody"}).json()
    assert (nothing["entities"], nothing["edges"], nothing["documents"]) == ([], [], [])


def test_names_without_a_letter_are_left_out_unless_they_are_asked_for(plain: Served):
    texts = {"a.md": "Stratum One sold 86,400 on 0.55 in 1985.", "b.md": "Stratum Two sold 86,400 in the 大学."}
    plain.ingest(texts, kb_id="numbers")
    around = plain.get("/rag/graph", params={"kb_id": "numbers", "document": "a.md"}).json()
    assert {each["name"] for each in around["entities"]} == {"stratum one"}
    around = plain.get("/rag/graph", params={"kb_id": "numbers", "entity": "86400"}).json()
    assert around["entities"][0]["name"] == "86400"
    assert {each["id"] for each in around["documents"]} == {"a.md", "b.md"}
    assert [each["name"] for each in around["entities"] if each["name"].isnumeric()] == ["86400"]


def test_a_document_that_is_gone_is_gone_from_the_graph(plain: Served):
    plain.ingest(TEXTS, kb_id="going")
    plain.ingest({"third.md": "Mount Everest uses the Network Time Protocol."}, kb_id="going")
    plain.request("DELETE", "/rag/docs/radio.md?kb_id=going")
    around = plain.get("/rag/graph", params={"kb_id": "going", "entity": "network time protocol"}).json()
    assert {each["id"] for each in around["documents"]} == {"clocks.md", "third.md"}
    assert "dcf77" not in {each["name"] for each in around["entities"]}
    assert around["entities"][0]["chunks"] == 2


@pytest.mark.parametrize(
    ("kb_id", "parameters", "status", "code"),
    [
        ("graphs", {}, 400, "E601"),
        ("graphs", {"document": "clocks.md", "entity": "ntp"}, 400, "E601"),
        ("graphs", {"entity": "ntp", "limit": 101}, 400, "E601"),
        ("graphs", {"document": "absent"}, 404, "E214"),
        ("flat", {"document": "x"}, 400, "E204"),
        ("flat", {"entity": "x"}, 400, "E204"),
    ],
)
def test_a_missing_graph_is_an_error(
    plain: Served, kb_id: str, parameters: dict[str, str | int], status: int, code: str
):
    plain.ingest(TEXTS, kb_id="graphs")
    plain.post("/rag/ingest", {"kb_id": "flat", "documents": [{"id": "x", "text": "X."}], "graph_enabled": False})
    assert error_of(plain.get("/rag/graph", params={"kb_id": kb_id, **parameters})) == (status, code)


def test_the_status_of_a_source_has_a_reason(synced: Served):
    told = synced.get("/sync").json()
    assert told["enabled"]
    assert told["run"]["runs"] >= 1
    assert told["states"] == {"current": 3, "failing": 1, "skipped": 1}
    by_id = {each["source_id"]: each for each in told["sources"]}
    assert by_id["a.md"].keys() == EXAMPLES["SourceListResponse"]["sources"][0].keys()
    assert (by_id["a.md"]["kind"], by_id["a.md"]["state"]) == ("file", "current")
    assert by_id["a.md"]["seen_at"].startswith("20")
    gone = by_id["http://127.0.0.1:9/gone"]
    assert (gone["kind"], gone["state"]) == ("url", "failing")
    assert "loopback" in gone["reason"]
    assert by_id["picture.png"]["state"] == "skipped"
    assert by_id["picture.png"]["reason"]
    first = synced.get("/sync", params={"state": "current", "limit": 1}).json()
    assert ([each["source_id"] for each in first["sources"]], first["next"]) == (["a.md"], "a.md")
    rest = synced.get("/sync", params={"state": "current", "after": "a.md"}).json()
    assert ([each["source_id"] for each in rest["sources"]], rest["next"]) == (["b.md", "team/rota.md"], None)


def test_a_collection_of_another_kb_is_synced_in_the_background_and_on_request(synced: Served):
    def list_ids() -> list[str]:
        listed = synced.get("/rag/docs", params={"kb_id": "team"}).json()["documents"]
        return [each["id"] for each in listed]

    assert list_ids() == ["team/rota.md"]
    (synced.folder / "team/deploy.md").write_text("Deploy on Tuesdays.")
    report = synced.post("/sync", {"kb_id": "team"}).json()
    assert (report["kb_id"], report["added"], report["stored"], report["unchanged"]) == ("team", 1, 1, 1)
    assert list_ids() == ["team/deploy.md", "team/rota.md"]
    (synced.folder / "team/deploy.md").unlink()
    assert synced.post("/sync", {"kb_id": "team"}).json()["removed"] == 1
    assert synced.post("/sync", {}).json()["kb_id"] == "default"
    assert error_of(synced.post("/sync", {"kb_id": "unfed"})) == (400, "E201")


def test_a_caller_with_access_to_some_kbs_does_not_see_sources(keyed: Keyed):
    assert keyed.server.get("/sync", key=keyed.key("read", "default")).status_code == 403
    assert keyed.server.get("/sync", key=keyed.key("read")).json()["enabled"] is False


def test_documents_are_narrowed_by_part_of_their_id_or_title(plain: Served):
    documents = [{"id": f"guides/{n}.md", "text": "x", "title": f"Part {n} of the GROSSE tour"} for n in range(5)]
    plain.post("/rag/ingest", {"kb_id": "narrow", "documents": [*documents, {"id": "other", "text": "y"}]})

    def ids(**parameters: str | int) -> tuple[list[str], str | None]:
        found = plain.get("/rag/docs", params={"kb_id": "narrow", **parameters}).json()
        return [each["id"] for each in found["documents"]], found["next"]

    assert ids(contains="PART 3") == (["guides/3.md"], None)
    assert ids(contains="OTH") == (["other"], None)
    assert ids(contains="große", limit=2) == (["guides/0.md", "guides/1.md"], "guides/1.md")
    assert ids(contains="große", limit=2, after="guides/3.md") == (["guides/4.md"], None)
    assert ids(contains="guides", owner="sync") == ([], None)


def test_a_web_page_is_added_to_the_links_file_once(tmp_path: Path):
    links = tmp_path / "project" / ".pair" / "links.txt"
    links.parent.mkdir(parents=True)
    links.write_text("# ours\nhttp://127.0.0.1:9/old # last year")
    with Served(tmp_path / "project", PAIR__SERVER__SYNC="false") as server:
        added = [server.post("/sync/links", {"url": url}).json()["added"] for url in ("http://127.0.0.1:9/new",) * 2]
        assert added == [True, False]
        assert server.post("/sync/links", {"url": "http://127.0.0.1:9/old"}).json()["added"] is False
        for url in (
            "file:///etc/passwd",
            "https://",
            "http://a b/",
            "http://a/\n#",
            "http://me:secret@a/",
            "ftp://a/b",
            "http://[::1/",
            "a",
        ):
            assert error_of(server.post("/sync/links", {"url": url})) == (400, "E601"), url
    assert links.read_text() == "# ours\nhttp://127.0.0.1:9/old # last year\nhttp://127.0.0.1:9/new\n"


def test_pages_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path):
    with Served(tmp_path / "project", PAIR__SERVER__SYNC="false") as server:
        urls = [f"http://127.0.0.1:9/{number}" for number in range(20)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda url: server.post("/sync/links", {"url": url}).json()["added"], urls))
        assert sorted((server.folder / ".pair" / "links.txt").read_text().split()) == sorted(urls)


def test_a_caller_who_is_not_administrator_of_all_kbs_cannot_add_pages(keyed: Keyed):
    for key in (keyed.key("read"), keyed.key("write"), keyed.key("admin", "default")):
        refused = keyed.server.post("/sync/links", {"url": "https://example.com/"}, key=key)
        assert error_of(refused) == (403, "E603")
