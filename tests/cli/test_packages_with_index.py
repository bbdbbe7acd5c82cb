"""Packages with an index: searchable as soon as they are installed, with the same results as at their origin."""

import shutil
import zipfile
from typing import Any

from support.clocks import QUERIES, TOPICS, Origin, hits_of, pages, rewritten, shards_in
from support.command import Workplace, read_files, write_files
from support.releases import serve
from support.server import Server


def test_what_is_installed_is_found_as_at_its_origin_and_nothing_is_embedded(
    origin: Origin, elsewhere: Workplace
) -> None:
    package = origin.package("1.0.0")
    assert len(shards_in(package)) > 3
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    for query in QUERIES:
        for mode in ("hybrid", "keyword", "vector"):
            asked = ("--mode", mode, "--exact")
            assert hits_of(elsewhere, query, *asked) == origin.search(query, "clocks", *asked)
    counted = elsewhere.pair("sync", "--json").json
    assert (counted["added"], counted["stored"], counted["unstored"]) == (len(TOPICS), 0, 0)
    assert [each["made_by"] for each in elsewhere.pair("versions", "--json").json["versions"]] == ["install"]


def test_an_install_asks_no_embedder(origin: Origin, elsewhere: Workplace) -> None:
    """The configured embedder is an unavailable server, so every attempt to embed fails."""
    package = origin.package("1.0.0")
    rewritten(package, lambda index: index["embedder"].update(name="openai-none-384"))
    elsewhere.environment |= {
        "PAIR__ENGINE__EMBEDDER": "openai",
        "PAIR__ENGINE__EMBEDDING_MODEL": "none",
        "PAIR__ENGINE__EMBEDDING_DIMENSION": "384",
        "PAIR__ENGINE__EMBEDDING_URL": "http://127.0.0.1:9/v1",
    }
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    asked = ("--mode", "keyword")
    assert hits_of(elsewhere, QUERIES[0], *asked) == origin.search(QUERIES[0], "clocks", *asked)
    assert elsewhere.pair("search", QUERIES[0], "--json").error_code == "E301"


def test_answers_and_citations_are_those_of_the_origin(origin: Origin, elsewhere: Workplace) -> None:
    write_files(origin.workplace.target, pages())
    assert origin.workplace.pair("sync").status == 0
    origin.workplace.pair("package", ".pair/knowledge", "-o", "kb.zip", "--name", "clocks", "--with-index").succeeds()
    assert elsewhere.pair("install", "--offline", "--source", origin.workplace.folder / "kb.zip").status == 0
    for query in QUERIES:
        here, there = (place.pair("ask", query, "--json").json for place in (elsewhere, origin.workplace))
        assert (here["answer"], here["confidence"]) == (there["answer"], there["confidence"])
        assert cited(here) == cited(there) != []


def cited(answer: dict[str, Any]) -> list[Any]:
    """Return the citation without the time of reading and the version of the store."""
    local = {"lastFetchedAt", "fetchedAt", "manifestVersion"}
    return [
        (
            {name: value for name, value in source.items() if name not in {"timestamp", "provenance"}},
            {name: value for name, value in source["provenance"].items() if name not in local},
        )
        for source in answer["sources"]
    ]


def test_the_same_state_gives_the_same_package(origin: Origin) -> None:
    first = origin.package("1.0.0").read_bytes()
    assert origin.package("1.0.0").read_bytes() == first


def test_a_package_that_was_unpacked_by_hand_is_packaged_without_its_old_index(
    origin: Origin, elsewhere: Workplace
) -> None:
    with zipfile.ZipFile(origin.package("1.0.0")) as opened:
        opened.extractall(elsewhere.folder / "clocks")
    done = elsewhere.pair("package", "clocks", "--json").json
    assert (done["name"], done["files"], done["index"]) == ("clocks", len(TOPICS), None)
    with zipfile.ZipFile(elsewhere.folder / "clocks-1.0.0.zip") as opened:
        assert set(opened.namelist()) == {"manifest.json", *pages()}
    assert elsewhere.pair("install", "--source", "./clocks").status == 0
    assert read_files(elsewhere.target).keys() - {".pair-install.jsonl"} == pages().keys()


def test_published_with_its_index_it_installs_from_a_host_of_static_files(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    origin.publish("1.0.0")
    feed = serve(server, origin.dist)
    elsewhere.pair("install", "--source", feed, "--json").succeeds()
    assert hits_of(elsewhere, QUERIES[0]) == origin.search(QUERIES[0])
    assert {each.path.rpartition("/")[2] for each in server.received} <= {
        "releases.json",
        "clocks-1.0.0.zip",
        "clocks-1.0.0.zip.sha256",
    }


def test_info_and_verify_tell_of_the_index(origin: Origin) -> None:
    package = origin.package("1.0.0")
    told = origin.workplace.pair("info", package, "--json").json
    assert (told["index"]["documents"], told["index"]["embedder"]) == (len(TOPICS), "ngram-384-v1")
    assert f"index        {len(TOPICS)} documents in" in origin.workplace.pair("info", package).stdout
    assert "clocks-1.0.0.zip.manifest.json" in origin.workplace.pair("verify", package).stdout
    assert read_files(origin.folder).keys() == pages().keys()


def test_files_alone_are_installed_without_the_index(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package, "--no-index").status == 0
    assert read_files(elsewhere.target) == read_files(origin.folder)
    assert elsewhere.pair("search", "sundials", "--json").error_code == "E201"
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    assert hits_of(elsewhere, QUERIES[0]) == origin.search(QUERIES[0])


def test_a_dry_run_changes_nothing(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package, "--dry-run").status == 0
    assert read_files(elsewhere.folder) == {}


def test_an_index_that_was_lost_is_installed_again(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    shutil.rmtree(elsewhere.folder / ".pair" / "store")
    again = elsewhere.pair("install", "--offline", "--source", package, "--json").json
    assert (again["added"], again["unchanged"]) == ([], len(TOPICS))
    assert hits_of(elsewhere, QUERIES[0]) == origin.search(QUERIES[0])


def test_packaging_an_index_shows_how_far_it_is(workplace: Workplace) -> None:
    write_files(workplace.folder / "pages", {f"{number}.md": f"Page {number} of the handbook." for number in range(60)})
    command = ("package", "pages", "-o", "pages.zip", "--version", "1.0.0", "--with-index")
    assert "storing 100% of 60 sources" in workplace.pair(*command).succeeds().stderr
    assert "storing" not in workplace.pair(*command, "--json").succeeds().stderr
