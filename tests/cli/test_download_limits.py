"""Limits of downloads: size, compression, and the error for a file that is not an archive."""

import gzip
import zlib
from typing import Any

import pytest

from support.clocks import Origin, Subscription, put_up
from support.command import Workplace, read_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, zip_of, zip_of_size
from support.releases import serve
from support.server import Page, Server

LIMIT = {"PAIR__SOURCES__MAX_DOWNLOAD_BYTES": "1000000"}
MEGABYTES = 1_000_000


def refusal_of(done: Any, workplace: Workplace) -> str:
    assert (done.status, done.error_code) == (2, "E009"), done.stdout
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []
    assert list((workplace.cache / ".partial").glob("*")) == []
    return str(done.json["error"]["explanation"])


# ── limits ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_archive_that_is_announced_as_too_large_is_not_fetched(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of_size(2 * MEGABYTES))
    done = workplace.pair("install", "--source", url, "--json", **LIMIT)
    assert "sources.max_download_bytes" in refusal_of(done, workplace)
    assert done.json["error"]["details"]["archive"] == url
    assert server.requests("/kb.zip", "GET") == []


@pytest.mark.parametrize("has_length", [True, False])
def test_an_archive_that_turns_out_too_large_is_given_up(
    workplace: Workplace, server: Server, has_length: bool
) -> None:
    url = server.add("/kb.zip", zip_of_size(2 * MEGABYTES), has_head=False, has_length=has_length)
    done = workplace.pair("install", "--source", url, "--json", **LIMIT)
    assert "sources.max_download_bytes" in refusal_of(done, workplace)


def test_a_resumed_archive_is_counted_as_a_whole(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of_size(2 * MEGABYTES), has_head=False, cut_after=[900_000])
    assert workplace.pair("install", "--source", url, "--json", PAIR__SOURCES__RETRIES="0").error_code == "E005"
    done = workplace.pair("install", "--source", url, "--json", **LIMIT)
    assert "sources.max_download_bytes" in refusal_of(done, workplace)


def test_an_archive_within_the_limit_is_installed(workplace: Workplace, server: Server) -> None:
    archive = zip_of(SMALL_KB)
    url = server.add("/kb.zip", archive)
    workplace.pair("install", "--source", url, PAIR__SOURCES__MAX_DOWNLOAD_BYTES=str(len(archive))).succeeds()


def test_parts_of_an_archive_that_is_too_large_are_not_fetched(subscription: Subscription) -> None:
    subscription.install()
    subscription.offer()
    elsewhere = subscription.elsewhere
    before = read_files(elsewhere.target)
    elsewhere.pair("update", "--json", PAIR__SOURCES__MAX_DOWNLOAD_BYTES="10000").fails(2, "E009")
    assert read_files(elsewhere.target) == before


# ── packed answers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_packed_answer_is_not_unpacked_beyond_the_limit(workplace: Workplace, server: Server, encoding: str) -> None:
    zeros = bytes(50 * MEGABYTES)
    bomb = gzip.compress(zeros) if encoding == "gzip" else zlib.compress(zeros)
    url = server.add("/kb.zip", bomb, checksum=False, headers={"Content-Encoding": encoding})
    done = workplace.pair("install", "--source", url, "--json", **LIMIT)
    assert "sources.max_download_bytes" in refusal_of(done, workplace)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("br", zip_of(SMALL_KB)), ("gzip", zip_of(SMALL_KB)), ("gzip", gzip.compress(b"x" * 999)[:-9])],
    ids=["unknown", "not packed", "cut off"],
)
def test_an_answer_that_cannot_be_unpacked_is_a_failed_download(
    workplace: Workplace, server: Server, encoding: str, body: bytes
) -> None:
    url = server.add("/kb.zip", body, headers={"Content-Encoding": encoding})
    done = workplace.pair("install", "--source", url, "--json").fails(2, "E005")
    assert "compressed" in done.json["error"]["explanation"]


def test_nothing_is_asked_for_packed(origin: Origin, elsewhere: Workplace, server: Server) -> None:
    origin.publish("1.0.0")
    feed = serve(server, origin.dist)
    assert elsewhere.pair("install", "--source", feed).status == 0
    assert elsewhere.pair("install", "other", "--source", server.url("/kbs/clocks-1.0.0.zip")).status == 0
    assert {request.headers.get("Accept-Encoding") for request in server.received} == {"identity"}


@pytest.mark.parametrize(("suffix", "code"), [(".sha256", "E006"), (".minisig", "E017")])
def test_a_packed_file_beside_an_archive_is_not_unpacked_without_end(
    workplace: Workplace, server: Server, suffix: str, code: str
) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    bomb = gzip.compress(bytes(50 * MEGABYTES))
    server.pages[f"/kb.zip{suffix}"] = Page(bomb, headers={"Content-Encoding": "gzip"})
    key = "RWTas5B4TUaDh2PANDnTA3jhpQpNtCycFNRhCs2VslxwtKchYzFXbohZ"
    done = workplace.pair("install", "--source", url, "--json", PAIR__SOURCES__SIGNATURE_KEYS=key)
    assert done.error_code == code, done.stdout
    assert "longer than" in done.stdout


# ── what arrived instead of an archive ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<title>Sign in</title>", "an HTML page (a login page?)"),
        (b"<!-- hello -->\n<HTML lang=en><body>", "an HTML page (a login page?)"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML file"),
        (b'{"message": "Not Found"}', "a JSON file"),
        (gzip.compress(b"a tar"), "a gzip file"),
        (b"", "an empty file"),
        (b"nothing that is known", "it is not a complete zip archive"),
        (zip_of({"../evil": "x"}), "path leads out of the archive"),
    ],
    ids=["page", "page with comment", "xml", "json", "gzip", "empty", "else", "hostile"],
)
def test_a_download_that_is_not_a_safe_archive_is_named_by_its_address_and_what_it_is(
    workplace: Workplace, server: Server, body: bytes, words: str
) -> None:
    url = server.add("/handbook.zip", body, checksum=False)
    done = workplace.pair("install", "--source", url, "--json")
    assert words in refusal_of(done, workplace)
    assert done.json["error"]["details"]["archive"] == url
    assert ".part" not in done.stdout


# ── checksums that are not about what is there ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "manners",
    [
        {"etag": '"two"'},
        {"etag": None, "last_modified": "Tue, 03 Nov 2026 12:00:00 GMT"},
        {"etag": None},
        {"etag": '"two"', "has_head": False},
    ],
    ids=["etag", "date", "length", "no HEAD"],
)
def test_an_archive_that_was_replaced_under_its_old_checksum_is_refused(
    workplace: Workplace, server: Server, manners: dict[str, Any]
) -> None:
    first = dict(manners)
    if manners["etag"]:
        first["etag"] = '"one"'
    if "last_modified" in manners:
        first["last_modified"] = "Mon, 02 Nov 2026 12:00:00 GMT"
    url = server.add("/kb.zip", zip_of(SMALL_KB), **first)
    assert workplace.pair("install", "--source", url).status == 0
    unchanged = workplace.pair("update")
    assert (unchanged.status, "up to date" in unchanged.stderr) == (0, True), unchanged.stderr
    server.pages["/kb.zip"] = Page(zip_of({**SMALL_KB, "new.md": "new"}), **manners)
    workplace.pair("update", "--json").fails(2, "E006")
    assert read_files(workplace.target) == SMALL_KB_BYTES
    server.add("/kb.zip", zip_of({**SMALL_KB, "new.md": "new"}), **manners)
    assert workplace.pair("update", "--json").json["added"] == ["new.md"]


def test_parts_are_not_called_verified_by_a_checksum_of_the_whole(subscription: Subscription) -> None:
    subscription.install()
    second, sent_bytes = subscription.offer(), subscription.server.sent_bytes
    done = subscription.update().says("unverified")
    assert sent_bytes["/clocks.zip"] < second.stat().st_size, "it came in parts"
    assert "checksum verified" not in done.stderr
    third = subscription.origin.package("1.2.0", **{"sundials.md": "# Sundials\n\nThey want the moon.\n"})
    put_up(subscription.server, third)
    sent_bytes.clear()
    assert subscription.update("--json", PAIR__SOURCES__REQUIRE_CHECKSUM="true").json["verified"] is True
    assert sent_bytes["/clocks.zip"] >= third.stat().st_size, "it came as a whole"


def test_parts_are_verified_where_the_feed_publishes_the_checksum_of_the_manifest(subscription: Subscription) -> None:
    subscription.install_and_publish()
    assert subscription.update("--json", PAIR__SOURCES__REQUIRE_CHECKSUM="true").json["verified"] is True
    archive = subscription.origin.dist / "clocks-1.1.0.zip"
    assert subscription.server.sent_bytes["/kbs/clocks-1.1.0.zip"] < archive.stat().st_size
