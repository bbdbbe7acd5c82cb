"""Partial downloads: only the missing parts of a newer package are fetched."""

import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.clocks import (
    CHANGED,
    QUERIES,
    TOPICS,
    Origin,
    Subscription,
    files_of,
    hits_of,
    put_up,
    shards_in,
    sizes_in,
)
from support.command import Workplace, read_files, write_files
from support.minisign import make_keys
from support.releases import serve
from support.server import Page, Server


@pytest.mark.parametrize("has_cache", [True, False], ids=["with its cache", "without its cache"])
def test_an_update_fetches_only_the_shards_that_are_not_here(subscription: Subscription, has_cache: bool) -> None:
    first = subscription.install()
    if not has_cache:
        shutil.rmtree(subscription.elsewhere.cache)
    second = subscription.offer()
    new = shards_in(second) - shards_in(first)
    assert 0 < len(new) < len(shards_in(second)) / 2
    subscription.update()
    assert subscription.server.sent_bytes["/clocks.zip"] <= 1.2 * sizes_in(second, new) + 40_000
    subscription.assert_finds_the_same()
    subscription.elsewhere.pair("verify", ".pair/knowledge").succeeds()


def test_files_alone_are_installed_when_the_store_is_unavailable(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    put_up(server, origin.package("1.0.0"))
    del server.pages["/clocks.zip.manifest.json"]  # so that the archive is fetched as a whole
    away = {"PAIR__ENGINE__STORE": "s3://bucket/kbs", "PAIR__ENGINE__S3_ENDPOINT": "http://127.0.0.1:9"}
    elsewhere.pair("install", "--no-index", "--source", server.url("/clocks.zip"), **away).succeeds()
    assert elsewhere.pair("install", "--source", server.url("/clocks.zip")).status == 0
    assert hits_of(elsewhere, "the sun", "--exact") == origin.search("the sun", "clocks", "--exact")


def long_text(seed: int) -> str:
    """Return a text that is longer, even compressed, than the end of an archive that is read to find its directory."""
    return random.Random(seed).randbytes(40_000).hex()


def spans_of_index(package: Path) -> list[range]:
    """Return the byte ranges of the index files in the archive."""
    with zipfile.ZipFile(package) as opened:
        entries = sorted(opened.infolist(), key=lambda each: each.header_offset)
        ends = [each.header_offset for each in entries[1:]] + [opened.start_dir]
    spans = zip(entries, ends, strict=True)
    return [range(each.header_offset, end) for each, end in spans if each.filename.startswith(".pair-index/")]


def fetched_of(server: Server, package: Path) -> list[range]:
    size = package.stat().st_size
    spans = []
    for each in server.requests("/clocks.zip", "GET"):
        start, _, last = each.headers["Range"].removeprefix("bytes=").partition("-")
        spans.append(range(int(start), int(last) + 1) if start else range(size - int(last), size))
    return spans


@pytest.mark.parametrize("first", ["install", "install --no-index", "nothing"])
def test_an_index_that_is_not_requested_is_not_fetched(
    origin: Origin, elsewhere: Workplace, server: Server, first: str
) -> None:
    if first != "nothing":
        put_up(server, origin.package("1.0.0", **{"tides.md": long_text(1)}))
        assert elsewhere.pair(*first.split(), "--source", server.url("/clocks.zip")).status == 0
        before = hits_of(elsewhere, "sundials", "--exact") if first == "install" else []
    second = origin.package("1.1.0", **{"tides.md": long_text(2), **CHANGED})
    put_up(server, second)
    server.received.clear()
    command = "install" if first == "nothing" else "update"
    done = elsewhere.pair(command, "--source", server.url("/clocks.zip"), "--no-index", "--json")
    assert (done.status, done.json["version"], done.json["index"]) == (0, "1.1.0", None)
    assert read_files(elsewhere.target) == read_files(origin.folder)
    fetched = fetched_of(server, second)
    assert sum(len(each) for each in fetched) > 40_000
    touched = [(one, other) for one in fetched for other in spans_of_index(second)]
    assert not [pair for pair in touched if max(each.start for each in pair) < min(each.stop for each in pair)]
    if first == "install":
        assert hits_of(elsewhere, "sundials", "--exact") == before
    else:
        assert elsewhere.pair("search", "sundials", "--json").error_code == "E201"


def test_a_skipped_index_is_fetched_when_it_is_requested_later(
    origin: Origin, elsewhere: Workplace, server: Server
) -> None:
    package = origin.package("1.0.0", **{"tides.md": long_text(1)})
    put_up(server, package)
    url = server.url("/clocks.zip")
    assert elsewhere.pair("install", "--source", url, "--no-index").status == 0
    server.sent_bytes.clear()
    done = elsewhere.pair("install", "--source", url, "--json").json
    assert (done["unchanged"], done["index"]["new_shards"]) == (len(TOPICS) + 1, len(shards_in(package)))
    assert hits_of(elsewhere, QUERIES[0], "--exact") == origin.search(QUERIES[0], "clocks", "--exact")
    server.received.clear()
    assert elsewhere.pair("install", "--source", url, "--force").status == 0
    assert server.received == []


def test_an_update_continues_after_a_cut_connection(subscription: Subscription) -> None:
    subscription.install()
    subscription.offer(cut_after=[100_000_000, 5_000, 7_000, 9_000])
    subscription.update()
    subscription.assert_finds_the_same()


def test_an_archive_that_changes_in_between_is_installed_in_its_new_state(subscription: Subscription) -> None:
    subscription.install()
    changes: list[Path] = []

    def change(received: Any) -> None:
        if received.headers.get("If-Range") and changes:
            put_up(subscription.server, changes.pop())

    subscription.offer(before_body=change)
    changes.append(subscription.origin.package("1.2.0", **{"sundials.md": "# Sundials\n\nThey want the moon.\n"}))
    subscription.update()
    assert "moon" in subscription.elsewhere.pair("docs", "get", "sundials.md").stdout
    subscription.assert_finds_the_same()


@pytest.mark.parametrize("manner", ["honours_range", "manifest", "other manifest"])
def test_where_parts_cannot_be_had_the_whole_is_fetched(subscription: Subscription, manner: str) -> None:
    first = subscription.install()
    subscription.offer(honours_range=manner != "honours_range")
    if manner == "manifest":
        del subscription.server.pages["/clocks.zip.manifest.json"]
    if manner == "other manifest":
        other = first.with_name(first.name + ".manifest.json").read_bytes()
        subscription.server.pages["/clocks.zip.manifest.json"].body = other
    subscription.update()
    subscription.assert_finds_the_same()


def test_a_feed_that_does_not_vouch_for_the_manifest_has_the_whole_fetched(subscription: Subscription) -> None:
    subscription.install_and_publish()
    beside = subscription.server.pages["/kbs/clocks-1.1.0.zip.manifest.json"]
    evil = json.loads(beside.body)
    evil["files"]["sundials.md"]["sha256"] = "0" * 64
    beside.body = json.dumps(evil).encode()
    assert subscription.elsewhere.pair("update").status in {0, 2}
    subscription.update("--source", serve(subscription.server, subscription.origin.dist))
    assert "the sun" in subscription.elsewhere.pair("docs", "get", "sundials.md").stdout


def test_an_update_from_a_feed_fetches_parts_too(subscription: Subscription) -> None:
    subscription.install_and_publish()
    subscription.update()
    archives = [subscription.origin.dist / f"clocks-{version}.zip" for version in ("1.0.0", "1.1.0")]
    new = shards_in(archives[1]) - shards_in(archives[0])
    assert subscription.server.sent_bytes["/kbs/clocks-1.1.0.zip"] <= 1.2 * sizes_in(archives[1], new) + 40_000
    subscription.assert_finds_the_same()


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
    put_up_signed(server, origin.package("1.1.0", "--sign", others.secret, **CHANGED))
    before = files_of(elsewhere)
    assert elsewhere.pair("update", "--json").error_code == "E017"
    assert files_of(elsewhere) == before
    second = origin.package("1.1.0", "--sign", keys.secret, **CHANGED)
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
    """Parts are checked against the manifest, so the SHA-256 of the archive is only a claim of the feed."""
    origin.publish("1.0.0")
    feed = serve(server, origin.dist, "/evil")
    assert elsewhere.pair("install", "--source", feed).status == 0
    origin.publish("1.1.0", **CHANGED)
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
