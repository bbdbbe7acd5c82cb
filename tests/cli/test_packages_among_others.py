"""Packages with an index that are installed into a KB with other documents."""

import json
import shutil

from support.clocks import CHANGED, QUERIES, TOPICS, Origin, hits_of, pages
from support.command import Workplace, write_files
from support.server import Page, Server


def test_what_did_not_come_with_the_package_stays(origin: Origin, elsewhere: Workplace) -> None:
    write_files(elsewhere.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    assert elsewhere.pair("ingest", "mine.jsonl").status == 0
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    changed = origin.package("1.1.0", **CHANGED)
    assert elsewhere.pair("update", "--offline", "--source", changed).status == 0
    listed = {each["id"] for each in elsewhere.pair("docs", "list", "--json").json["documents"]}
    assert listed == {"mine", *pages()}
    assert "want the sun" in elsewhere.pair("docs", "get", "sundials.md").stdout


def test_pages_of_a_package_stay_until_a_package_without_them_is_installed(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    page = server.url("/water.html")
    server.pages["/water.html"] = Page(
        b"<html><body><p>Water clocks drip.</p></body></html>", headers={"Content-Type": "text/html"}
    )
    place = origin.workplace
    links = place.folder / "links.txt"
    place.environment |= {
        "PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true",
        "PAIR__KB__LINKS_FILE_PATH": str(links),
    }
    write_files(place.target, pages())
    for version, address in (("1.0.0", page), ("2.0.0", "")):
        links.write_text(f"{address}\n")
        place.pair(
            "package", ".pair/knowledge", "-o", "kb.zip", "--name", "clocks", "--version", version, "--with-index"
        ).succeeds()
        assert elsewhere.pair("install", "--offline", "--source", place.folder / "kb.zip").status == 0
        assert elsewhere.pair("sync", "--json").json["unstored"] == 0
        listed = {each["id"] for each in elsewhere.pair("docs", "list", "--json").json["documents"]}
        assert listed == {*pages(), *([address] if address else [])}


def test_files_that_were_edited_or_deleted_here_stay_so_in_the_engine(origin: Origin, elsewhere: Workplace) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    write_files(elsewhere.target, {"almanacs.md": "# Almanacs\n\nOurs are older.\n"})
    (elsewhere.target / "calendars.md").unlink()
    assert elsewhere.pair("sync").status == 0
    newer = {f"{topic}.md": f"# {topic.title()}\n\nAll of it was rewritten.\n" for topic in TOPICS[:5]}
    done = elsewhere.pair("update", "--offline", "--source", origin.package("2.0.0", **newer), "--json").json
    assert {each["path"]: each["reason"] for each in done["kept"]} == {
        "almanacs.md": "edited",
        "calendars.md": "deleted",
    }
    texts = {each: elsewhere.pair("docs", "get", each, "--json").json.get("text", "gone") for each in sorted(pages())}
    assert "older" in texts.pop("almanacs.md")
    assert texts.pop("calendars.md") == "gone"
    assert all("rewritten" in text for text in texts.values())
    assert elsewhere.pair("sync", "--json").json["stored"] == 0


def test_a_file_that_left_the_package_leaves_the_engine_with_it(origin: Origin, elsewhere: Workplace) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    assert elsewhere.pair("compact", "--all").status == 0
    (origin.folder / "sundials.md").unlink()
    path = origin.workplace.folder / "less.zip"
    origin.workplace.pair("package", origin.folder, "-o", path, "--version", "2.0.0", "--with-index").succeeds()
    assert elsewhere.pair("update", "--offline", "--source", path).status == 0
    assert elsewhere.pair("docs", "get", "sundials.md", "--json").error_code == "E214"
    assert len(elsewhere.pair("docs", "list", "--json").json["documents"]) == len(TOPICS) - 1


def test_an_update_can_be_rolled_back_by_the_version_of_the_package(origin: Origin, elsewhere: Workplace) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    before = hits_of(elsewhere, "sundials", "--exact")
    changed = origin.package("1.1.0", **CHANGED)
    assert elsewhere.pair("update", "--offline", "--source", changed).status == 0
    after = hits_of(elsewhere, "sundials", "--exact")
    assert after != before
    assert elsewhere.pair("rollback", "1.0.0").status == 0
    assert hits_of(elsewhere, "sundials", "--exact") == before
    assert hits_of(elsewhere, "sundials", "--exact", "--at", "1.1.0") == after


def test_each_target_is_a_separate_kb_that_a_sync_does_not_change(origin: Origin, elsewhere: Workplace) -> None:
    write_files(origin.workplace.folder / "rooms", {"sundials.md": "# A room\n\nIts walls are red.\n"})
    assert origin.workplace.pair("package", "rooms", "-o", "rooms.zip", "--with-index").status == 0
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    rooms = origin.workplace.folder / "rooms.zip"
    done = elsewhere.pair("install", "docs/Red Rooms", "--offline", "--source", rooms, "--json").json
    assert (done["index"]["kb_id"], done["index"]["documents"]) == ("red-rooms", 1)
    assert elsewhere.pair("sync", "--json").json["unstored"] == 0
    assert {each["id"] for each in elsewhere.pair("docs", "list", "--json").json["documents"]} == pages().keys()
    assert "monks" in elsewhere.pair("docs", "get", "sundials.md").stdout
    assert "walls" in elsewhere.pair("docs", "get", "sundials.md", "--kb", "red-rooms").stdout
    assert elsewhere.pair("update", "docs/Red Rooms", "--json").json["unchanged"] == 1
    assert elsewhere.pair("lock", "docs/Red Rooms", ".pair/knowledge").status == 0
    assert elsewhere.pair("lock", "--check").status == 0


def test_a_lock_installs_the_index_unless_it_is_not_requested(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    assert elsewhere.pair("lock").status == 0
    assert 'embedder = "ngram-384-v1"' in (elsewhere.folder / "pair.lock").read_text()
    assert elsewhere.pair("lock", "--check").status == 0
    shutil.rmtree(elsewhere.folder / ".pair")
    assert elsewhere.pair("install", "--locked", "--no-index").status == 0
    assert elsewhere.pair("search", "sundials", "--json").error_code == "E201"
    assert elsewhere.pair("install", "--locked").status == 0
    assert hits_of(elsewhere, QUERIES[0]) == origin.search(QUERIES[0])
    assert elsewhere.pair("lock", "--check").status == 0


# ── versions ───────────────────────────────────────────────────────────────────────────────────────


def labels(workplace: Workplace) -> list[tuple[str, str]]:
    """Return the cause and the package label of each version, newest first."""
    return [(each["made_by"], each["label"]) for each in workplace.pair("versions", "--json").json["versions"]]


def test_after_an_update_without_an_index_no_version_claims_the_package_before(
    origin: Origin, elsewhere: Workplace
) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    before = hits_of(elsewhere, "sundials", "--exact")
    write_files(origin.folder, pages(**CHANGED))
    origin.workplace.pair("package", origin.folder, "-o", "bare.zip", "--version", "2.0.0").succeeds()
    assert elsewhere.pair("update", "--offline", "--source", origin.workplace.folder / "bare.zip").status == 0
    assert elsewhere.pair("sync", "--json").json["stored"] == 1
    assert labels(elsewhere) == [("upsert", ""), ("install", "clocks 1.0.0")]
    assert "want the sun" in elsewhere.pair("docs", "get", "sundials.md").stdout
    assert hits_of(elsewhere, "sundials", "--exact", "--at", "1.0.0") == before
    assert elsewhere.pair("rollback", "1.0.0").status == 0
    assert hits_of(elsewhere, "sundials", "--exact") == before
    assert labels(elsewhere)[0] == ("rollback", "clocks 1.0.0")


def test_what_is_stored_on_top_of_a_package_is_not_called_by_it_and_the_package_need_not_be_installed_again(
    origin: Origin, elsewhere: Workplace
) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    assert elsewhere.pair("compact", "--all").status == 0
    write_files(elsewhere.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    assert elsewhere.pair("ingest", "mine.jsonl").status == 0
    listed = labels(elsewhere)
    assert listed[0] == ("upsert", "")
    assert {label for _, label in listed[1:]} == {"clocks 1.0.0"}
    assert elsewhere.pair("update", "--offline", "--source", package, "--json").json["index"] is None
    assert labels(elsewhere) == listed
    assert elsewhere.pair("docs", "get", "mine", "--json").status == 0


def test_a_package_whose_version_is_a_number_is_found_where_no_version_has_that_number(
    origin: Origin, elsewhere: Workplace
) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("2024")).status == 0
    before = hits_of(elsewhere, "sundials", "--exact")
    changed = origin.package("1", **CHANGED)
    assert elsewhere.pair("update", "--offline", "--source", changed).status == 0
    assert labels(elsewhere) == [("install", "clocks 1"), ("install", "clocks 2024")]
    after = hits_of(elsewhere, "sundials", "--exact")
    found = {
        at: hits_of(elsewhere, "sundials", "--exact", "--at", at) for at in ("2024", "clocks@2024", "1", "clocks@1")
    }
    assert found == {"2024": before, "clocks@2024": before, "1": before, "clocks@1": after}
    told = elsewhere.pair("diff", "2024", "--stat", "--json").json
    assert (told["a"], told["changed"]) == ("default@1", 1)
    assert elsewhere.pair("rollback", "2024", "--json").json["restored"] == 1
    assert elsewhere.pair("rollback", "2025", "--json").error_code == "E218"
