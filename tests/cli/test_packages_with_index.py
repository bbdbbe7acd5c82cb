"""Packages that bring their index: searchable as soon as they are installed, and updated shard by shard."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pair import Settings, errors
from pair.wiring.packages import open_package
from support.command import Workplace, read_files, write_files
from support.minisign import make_keys
from support.releases import serve
from support.server import Page, Server

TOPICS = ("sundials", "hourglasses", "pendulums", "chronometers", "calendars", "almanacs")
QUERIES = ("how do pendulums keep time?", "almanacs of sailors", "what is said of hourglasses")
MANY_SHARDS = {
    "PAIR__ENGINE__SHARD_TRIGGER_VECTOR_ROWS": "4",
    "PAIR__ENGINE__MAX_VECTOR_ROWS_PER_SHARD": "1",
}


def pages(**changes: str) -> dict[str, str | bytes]:
    texts = {f"{topic}.md": f"# {topic.title()}\n\nSailors and monks tell of {topic}.\n" for topic in TOPICS}
    return {**texts, **changes}


class Origin:
    """A project that makes packages of one folder, and keeps its store from one to the next."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.workplace = Workplace(folder)
        self.workplace.environment |= MANY_SHARDS
        self.folder = self.workplace.folder / "clocks"
        self.dist = self.workplace.folder / "dist"

    def package(self, version: str, *more: str | Path, **changes: str) -> Path:
        write_files(self.folder, pages(**changes))
        path = self.workplace.folder / "out" / f"clocks-{version}.zip"
        done = self.workplace.pair(
            "package", self.folder, "-o", path, "--version", version, "--with-index", *more, "--json"
        )
        assert done.status == 0, done.stdout
        return path

    def publish(self, version: str, **changes: str) -> None:
        write_files(self.folder, pages(**changes))
        done = self.workplace.pair("publish", "dist", "clocks", "--version", version, "--with-index", "--json")
        assert done.status == 0, done.stdout

    def search(self, query: str, kb: str = "clocks", *more: str) -> list[Any]:
        return hits_of(self.workplace, query, "--kb", kb, *more)


def hits_of(workplace: Workplace, query: str, *more: str) -> list[Any]:
    found = workplace.pair("search", query, *more, "--json")
    assert found.status == 0, found.stdout
    return [(hit["chunk_id"], hit["score"], hit["content"]) for hit in found.json["results"]]


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "origin")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Workplace:
    """Another machine, as far as pair can tell."""
    (tmp_path / "elsewhere").mkdir()
    return Workplace(tmp_path / "elsewhere")


def shards_in(package: Path) -> set[str]:
    with zipfile.ZipFile(package) as opened:
        return {name.split("/")[2] for name in opened.namelist() if name.startswith(".pair-index/shards/")}


def sizes_in(package: Path, shards: set[str]) -> int:
    with zipfile.ZipFile(package) as opened:
        return sum(each.file_size for each in opened.infolist() if set(each.filename.split("/")) & shards)


# ── from one machine to another ────────────────────────────────────────────────────────────────────


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
    """Its vectors are said to be of a server that is not there: whoever wanted to embed would fail."""
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
    done = origin.workplace.pair("package", ".pair/knowledge", "-o", "kb.zip", "--name", "clocks", "--with-index")
    assert done.status == 0, done.stderr
    assert elsewhere.pair("install", "--offline", "--source", origin.workplace.folder / "kb.zip").status == 0
    for query in QUERIES:
        here, there = (place.pair("ask", query, "--json").json for place in (elsewhere, origin.workplace))
        assert (here["answer"], here["confidence"]) == (there["answer"], there["confidence"])
        assert cited(here) == cited(there) != []


def cited(answer: dict[str, Any]) -> list[Any]:
    """All but when it was read on this machine, and how often its store was written."""
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
    done = elsewhere.pair("install", "--source", feed, "--json")
    assert done.status == 0, done.stdout
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


def test_texts_alone_are_installed_where_nobody_wants_the_index(origin: Origin, elsewhere: Workplace) -> None:
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


def test_an_index_that_was_lost_is_taken_up_again(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    shutil.rmtree(elsewhere.folder / ".pair" / "store")
    again = elsewhere.pair("install", "--offline", "--source", package, "--json").json
    assert (again["added"], again["unchanged"]) == ([], len(TOPICS))
    assert hits_of(elsewhere, QUERIES[0]) == origin.search(QUERIES[0])


# ── what is here already ───────────────────────────────────────────────────────────────────────────


def test_what_did_not_come_with_the_package_stays(origin: Origin, elsewhere: Workplace) -> None:
    write_files(elsewhere.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    assert elsewhere.pair("ingest", "mine.jsonl").status == 0
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    changed = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    assert elsewhere.pair("update", "--offline", "--source", changed).status == 0
    listed = {each["id"] for each in elsewhere.pair("docs", "list", "--json").json["documents"]}
    assert listed == {"mine", *pages()}
    assert "want the sun" in elsewhere.pair("docs", "get", "sundials.md").stdout


def test_pages_that_came_with_a_package_stay_until_it_comes_without_them(
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
        made = place.pair(
            "package", ".pair/knowledge", "-o", "kb.zip", "--name", "clocks", "--version", version, "--with-index"
        )
        assert made.status == 0, made.stderr
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
    made = origin.workplace.pair("package", origin.folder, "-o", path, "--version", "2.0.0", "--with-index")
    assert made.status == 0
    assert elsewhere.pair("update", "--offline", "--source", path).status == 0
    assert elsewhere.pair("docs", "get", "sundials.md", "--json").error_code == "E214"
    assert len(elsewhere.pair("docs", "list", "--json").json["documents"]) == len(TOPICS) - 1


def test_an_update_can_be_rolled_back_by_the_version_of_the_package(origin: Origin, elsewhere: Workplace) -> None:
    assert elsewhere.pair("install", "--offline", "--source", origin.package("1.0.0")).status == 0
    before = hits_of(elsewhere, "sundials", "--exact")
    changed = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    assert elsewhere.pair("update", "--offline", "--source", changed).status == 0
    after = hits_of(elsewhere, "sundials", "--exact")
    assert after != before
    assert elsewhere.pair("rollback", "1.0.0").status == 0
    assert hits_of(elsewhere, "sundials", "--exact") == before
    assert hits_of(elsewhere, "sundials", "--exact", "--at", "1.1.0") == after


def test_each_target_is_a_kb_of_its_own_and_syncing_leaves_it_alone(origin: Origin, elsewhere: Workplace) -> None:
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


def test_a_lock_brings_the_index_too_unless_nobody_wants_it(origin: Origin, elsewhere: Workplace) -> None:
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


# ── only what is missing ───────────────────────────────────────────────────────────────────────────


def installed_from(elsewhere: Workplace, server: Server, package: Path) -> str:
    """At an address that stays the same from version to version."""
    put_up(server, package)
    url = server.url("/clocks.zip")
    done = elsewhere.pair("install", "--source", url, "--json")
    assert done.status == 0, done.stdout
    server.received.clear()
    server.sent_bytes.clear()
    return url


def put_up(server: Server, package: Path, **manners: Any) -> None:
    content = package.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    server.pages["/clocks.zip"] = Page(content, etag=f'"{checksum}"', **manners)
    server.pages["/clocks.zip.sha256"] = Page(f"{checksum}  clocks.zip\n".encode())
    beside = package.with_name(package.name + ".manifest.json").read_bytes()
    server.pages["/clocks.zip.manifest.json"] = Page(beside)


def test_an_update_fetches_only_the_shards_that_are_not_here(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    first = origin.package("1.0.0")
    installed_from(elsewhere, server, first)
    second = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    new = shards_in(second) - shards_in(first)
    assert 0 < len(new) < len(shards_in(second)) / 2
    put_up(server, second)
    assert elsewhere.pair("update").status == 0
    assert server.sent_bytes["/clocks.zip"] <= 1.2 * sizes_in(second, new) + 40_000
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")
    assert elsewhere.pair("verify", ".pair/knowledge").status == 0


def test_without_its_cache_an_update_still_fetches_only_what_the_engine_lacks(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    first = origin.package("1.0.0")
    installed_from(elsewhere, server, first)
    shutil.rmtree(elsewhere.cache)
    second = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    put_up(server, second)
    assert elsewhere.pair("update").status == 0
    new = shards_in(second) - shards_in(first)
    assert server.sent_bytes["/clocks.zip"] <= 1.2 * sizes_in(second, new) + 40_000
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


def test_a_connection_that_is_cut_is_gone_on_with(origin: Origin, elsewhere: Workplace, server: Server) -> None:
    installed_from(elsewhere, server, origin.package("1.0.0"))
    second = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    put_up(server, second, cut_after=[100_000_000, 5_000, 7_000, 9_000])
    assert elsewhere.pair("update").status == 0
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


def test_an_archive_that_changes_in_between_is_taken_as_it_is_then(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    installed_from(elsewhere, server, origin.package("1.0.0"))
    second = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    third = origin.package("1.2.0", **{"sundials.md": "# Sundials\n\nThey want the moon.\n"})
    changes = iter([third])

    def change(received: Any) -> None:
        if received.headers.get("If-Range") and (newer := next(changes, None)) is not None:
            put_up(server, newer)

    put_up(server, second, before_body=change)
    assert elsewhere.pair("update").status == 0
    assert "moon" in elsewhere.pair("docs", "get", "sundials.md").stdout
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


@pytest.mark.parametrize("manner", ["honours_range", "manifest", "other manifest"])
def test_where_parts_cannot_be_had_the_whole_is_fetched(
    origin: Origin, elsewhere: Workplace, server: Server, manner: str
) -> None:
    first = origin.package("1.0.0")
    installed_from(elsewhere, server, first)
    second = origin.package("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    put_up(server, second, honours_range=manner != "honours_range")
    if manner == "manifest":
        del server.pages["/clocks.zip.manifest.json"]
    if manner == "other manifest":
        server.pages["/clocks.zip.manifest.json"].body = first.with_name(first.name + ".manifest.json").read_bytes()
    assert elsewhere.pair("update").status == 0
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


def test_a_feed_that_does_not_vouch_for_the_manifest_has_the_whole_fetched(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    origin.publish("1.0.0")
    feed = serve(server, origin.dist)
    assert elsewhere.pair("install", "--source", feed).status == 0
    origin.publish("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    serve(server, origin.dist)
    server.sent_bytes.clear()
    name = "/kbs/clocks-1.1.0.zip"
    evil = json.loads(server.pages[f"{name}.manifest.json"].body)
    evil["files"]["sundials.md"]["sha256"] = "0" * 64
    server.pages[f"{name}.manifest.json"].body = json.dumps(evil).encode()
    assert elsewhere.pair("update").status in {0, 2}
    put = serve(server, origin.dist)
    assert elsewhere.pair("update", "--source", put).status == 0
    assert "the sun" in elsewhere.pair("docs", "get", "sundials.md").stdout


def test_an_update_from_a_feed_fetches_parts_too(origin: Origin, elsewhere: Workplace, server: Server) -> None:
    origin.publish("1.0.0")
    assert elsewhere.pair("install", "--source", serve(server, origin.dist)).status == 0
    origin.publish("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    serve(server, origin.dist)
    server.sent_bytes.clear()
    assert elsewhere.pair("update").status == 0
    archives = [origin.dist / f"clocks-{version}.zip" for version in ("1.0.0", "1.1.0")]
    new = shards_in(archives[1]) - shards_in(archives[0])
    assert server.sent_bytes["/kbs/clocks-1.1.0.zip"] <= 1.2 * sizes_in(archives[1], new) + 40_000
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


def put_up_signed(server: Server, package: Path) -> None:
    put_up(server, package)
    for suffix in ("", ".manifest.json"):
        signature = package.with_name(f"{package.name}{suffix}.minisig").read_bytes()
        server.pages[f"/clocks.zip{suffix}.minisig"] = Page(signature)


def test_where_signatures_are_required_parts_are_taken_only_by_a_signed_manifest(
    origin: Origin, elsewhere: Workplace, server: Server, tmp_path: Path
) -> None:
    keys, others = make_keys(tmp_path / "keys"), make_keys(tmp_path / "others")
    elsewhere.environment |= {
        "PAIR__SOURCES__SIGNATURE_KEYS": keys.line,
        "PAIR__SOURCES__REQUIRE_SIGNATURE": "true",
    }
    put_up_signed(server, origin.package("1.0.0", "--sign", keys.secret))
    assert elsewhere.pair("install", "--source", server.url("/clocks.zip")).status == 0
    changed = {"sundials.md": "# Sundials\n\nThey want the sun.\n"}
    put_up_signed(server, origin.package("1.1.0", "--sign", others.secret, **changed))
    before = files_of(elsewhere)
    assert elsewhere.pair("update", "--json").error_code == "E017"
    assert files_of(elsewhere) == before
    second = origin.package("1.1.0", "--sign", keys.secret, **changed)
    put_up_signed(server, second)
    server.sent_bytes.clear()
    done = elsewhere.pair("update", "--json").json
    assert (done["version"], done["signed_by"]) == ("1.1.0", keys.id)
    assert server.sent_bytes["/clocks.zip"] < second.stat().st_size / 2
    third = origin.package("1.2.0", "--sign", keys.secret, **{"sundials.md": "# Sundials\n\nThey want the moon.\n"})
    put_up_signed(server, third)
    del server.pages["/clocks.zip.manifest.json.minisig"]
    server.sent_bytes.clear()
    assert elsewhere.pair("update", "--json").json["signed_by"] == keys.id
    assert server.sent_bytes["/clocks.zip"] >= third.stat().st_size


def test_what_one_feed_has_put_together_is_not_taken_for_a_release_of_another(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    """Parts are checked against the manifest, so the SHA-256 of the archive is only what the feed claims."""
    origin.publish("1.0.0")
    feed = serve(server, origin.dist, "/evil")
    assert elsewhere.pair("install", "--source", feed).status == 0
    origin.publish("1.1.0", **{"sundials.md": "# Sundials\n\nThey want the sun.\n"})
    feed = serve(server, origin.dist, "/evil")
    write_files(origin.workplace.folder / "rooms", {"red.md": "# Red\n\nIts walls are red.\n"})
    assert origin.workplace.pair("publish", "honest", "rooms").status == 0
    honest = serve(server, origin.workplace.folder / "honest", "/honest")
    claimed = json.loads(server.pages["/evil/releases.json"].body)
    theirs = json.loads(server.pages["/honest/releases.json"].body)["kbs"]["rooms"]["releases"][0]
    claimed["kbs"]["clocks"]["releases"][1]["sha256"] = theirs["sha256"]
    server.pages["/evil/releases.json"].body = json.dumps(claimed).encode()
    assert elsewhere.pair("update").status == 0
    assert elsewhere.pair("install", "rooms", "--source", honest).status == 0
    assert read_files(elsewhere.folder / "rooms").keys() - {".pair-install.jsonl"} == {"red.md"}


# ── what is refused ────────────────────────────────────────────────────────────────────────────────


def rewritten(package: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The package with another index manifest, and everything else made to fit it, as an attacker would."""
    with zipfile.ZipFile(package) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    index = json.loads(contents[".pair-index/manifest.json"])
    change(index)
    index.pop("content_sha256")
    sealed = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    seal = hashlib.sha256(sealed).hexdigest()
    contents[".pair-index/manifest.json"] = sealed + f',"content_sha256":"{seal}"}}\n'.encode()
    refit(package, contents, json.loads(contents["manifest.json"]))


def refit(package: Path, contents: dict[str, bytes], value: dict[str, Any]) -> None:
    for path in value["files"]:
        content = contents[path]
        value["files"][path] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    lines = "".join(f"{value['files'][path]['sha256']}  {path}\n" for path in sorted(value["files"]))
    value["content_checksum"] = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    contents["manifest.json"] = json.dumps(value).encode()
    with zipfile.ZipFile(package, "w") as made:
        for name, content in contents.items():
            made.writestr(name, content)
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    package.with_name(package.name + ".sha256").write_text(f"{checksum}  {package.name}\n")


def refused(elsewhere: Workplace, package: Path, code: str, command: str = "install", **variables: str) -> None:
    before = files_of(elsewhere)
    done = elsewhere.pair(command, "--offline", "--source", package, "--json", **variables)
    assert done.error_code == code, done.stdout
    assert files_of(elsewhere) == before


def files_of(workplace: Workplace) -> dict[str, bytes]:
    return {name: content for name, content in read_files(workplace.folder).items() if not name.endswith(".lock")}


def test_an_index_by_another_embedder_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    refused(elsewhere, origin.package("1.0.0"), "E220", PAIR__ENGINE__EMBEDDING_DIMENSION="64")
    told = elsewhere.pair(
        "install", "--offline", "--source", origin.package("1.0.0"), PAIR__ENGINE__EMBEDDING_DIMENSION="64"
    ).stderr
    assert "ngram-384-v1" in told
    assert "--no-index" in told


def test_an_index_is_refused_by_a_kb_with_another_embedder(origin: Origin, elsewhere: Workplace) -> None:
    write_files(elsewhere.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    assert elsewhere.pair("ingest", "mine.jsonl", PAIR__ENGINE__EMBEDDING_DIMENSION="64").status == 0
    refused(elsewhere, origin.package("1.0.0"), "E304")


def newer_schema(index: dict[str, Any]) -> None:
    index["schema_version"] = 2


def shard_under_another_name(index: dict[str, Any]) -> None:
    folder = index["shards"][0]["key"]
    index["shards"][0]["key"] = folder[:-64] + "0" * 64


def shard_of_other_bytes(index: dict[str, Any]) -> None:
    one, other = index["shards"][:2]
    one["files"], other["files"] = other["files"], one["files"]


def no_shards(index: dict[str, Any]) -> None:
    index["shards"] = "none"


@pytest.mark.parametrize("change", [newer_schema, shard_under_another_name, shard_of_other_bytes, no_shards])
def test_an_index_that_does_not_fit_is_refused_and_nothing_changes(
    origin: Origin, elsewhere: Workplace, change: Any
) -> None:
    package = origin.package("1.0.0")
    rewritten(package, change)
    refused(elsewhere, package, "E221")


def test_a_shard_that_was_tampered_with_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    with zipfile.ZipFile(package) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    name = next(each for each in contents if each.endswith(".search"))
    contents[name] = contents[name][:-1] + bytes([contents[name][-1] ^ 1])
    with zipfile.ZipFile(package, "w") as made:
        for each, content in contents.items():
            made.writestr(each, content)
    package.with_name(package.name + ".sha256").unlink()
    refused(elsewhere, package, "E006")
    refit(package, contents, json.loads(contents["manifest.json"]))
    refused(elsewhere, package, "E221")


def test_a_file_in_the_place_of_the_shards_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    with zipfile.ZipFile(package) as opened:
        contents = {name: opened.read(name) for name in opened.namelist() if "/shards/" not in name}
    value = json.loads(contents["manifest.json"])
    contents[".pair-index/shards"] = b"none"
    refit(package, contents, value | {"files": {name: {} for name in contents if name != "manifest.json"}})
    refused(elsewhere, package, "E221")


def test_a_manifest_beside_a_package_that_is_not_its_own_is_neither_verified_nor_published(origin: Origin) -> None:
    package = origin.package("1.0.0")
    beside = package.with_name(package.name + ".manifest.json")
    beside.write_bytes(beside.read_bytes() + b"\n")
    assert origin.workplace.pair("verify", package, "--json").error_code == "E006"
    assert origin.workplace.pair("publish", "dist", package, "--json").error_code == "E006"
    assert not origin.dist.exists()


def test_a_package_that_no_install_would_unpack_is_not_opened_for_reading_either(
    origin: Origin, tmp_path: Path
) -> None:
    package = origin.package("1.0.0")
    with zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("zeros.bin", bytes(20_000_000))
    settings = Settings.load(environment={"PAIR__ENGINE__CACHE_DIR": str(tmp_path / "shards")})
    with pytest.raises(errors.DownloadError) as refusal:
        open_package(package, settings)
    assert refusal.value.code == "E009"


def test_a_package_of_a_newer_schema_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    with zipfile.ZipFile(package) as opened:
        contents = {name: opened.read(name) for name in opened.namelist()}
    value = json.loads(contents["manifest.json"])
    refit(package, contents, value | {"schema_version": 2})
    refused(elsewhere, package, "E018")


def test_a_folder_that_is_not_the_sources_of_the_project_is_no_index_of_default(origin: Origin) -> None:
    write_files(origin.folder, pages())
    done = origin.workplace.pair("package", origin.folder, "--with-index", "--kb", "default", "--json")
    assert (done.status, done.error_code) == (1, "E014")
    done = origin.workplace.pair("package", "nowhere", "--with-index", "--json")
    assert (done.status, done.error_code) == (1, "E003")


def test_it_is_told_when_more_is_given_away_than_the_files_of_the_folder(origin: Origin) -> None:
    workplace = origin.workplace
    write_files(workplace.target, pages())
    write_files(workplace.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    packaged = ("package", ".pair/knowledge", "-o", "kb.zip", "--with-index")
    assert "also holds" not in workplace.pair(*packaged).stderr
    assert workplace.pair("ingest", "mine.jsonl").status == 0
    assert "the index also holds what is not in .pair/knowledge: 1 page" in workplace.pair(*packaged).stderr
