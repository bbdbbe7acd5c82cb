"""Feeds as values: written, read again, refused, chosen from."""

import json
from typing import Any

import msgspec
import pytest

from pair import errors
from pair.packages.release_index import LIMIT_BYTES, Release, ReleaseIndex, choose, parse_feed, to_source
from pair.packages.resolve import FeedAddress, parse_remote_feed
from pair.values import KbSource

ONE = Release("1.0.0", "handbook-1.0.0.zip", 10, "0a" * 32, "sha256:0b", "0c", "ngram-384-v1", True, "2026-01-31")
TWO = Release("1.10.0-rc1", "handbook-1.10.0-rc1.zip", 11, "1a" * 32)
THREE = Release("1.9.0", "handbook-1.9.0.zip", 11, "2a" * 32)
FEED = ReleaseIndex({"handbook": (THREE, TWO, ONE), "cookbook": (msgspec.structs.replace(ONE, file="c.zip"),)})


def test_a_feed_is_read_as_it_was_written() -> None:
    again = parse_feed(FEED.to_bytes(), "feed")
    assert again.to_bytes() == FEED.to_bytes()
    assert list(again.kbs) == ["cookbook", "handbook"]
    assert again.kbs["handbook"] == (ONE, THREE, TWO)


def test_fields_that_a_later_version_adds_are_no_obstacle() -> None:
    value = json.loads(FEED.to_bytes())
    value["kbs"]["handbook"]["releases"][0]["colour"] = "blue"
    value["title"] = "All of them"
    assert parse_feed(json.dumps(value).encode(), "feed").kbs == parse_feed(FEED.to_bytes(), "feed").kbs


def changed(**fields: Any) -> bytes:
    value = json.loads(ReleaseIndex({"handbook": (ONE,)}).to_bytes())
    value["kbs"]["handbook"]["releases"][0].update(fields)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no schema_version"),
        (b"{}", "no schema_version"),
        (b'{"schema_version": 2, "kbs": {}}', "another version of pair: it has schema 2"),
        (b'{"schema_version": true, "kbs": {}}', "schema True"),
        (b'{"schema_version": 1}', "kbs"),
        (b'{"schema_version": 1, "kbs": []}', "damaged"),
        (b'{"schema_version": 1, "kbs": {"a": {"releases": {}}}}', "Expected `array`"),
        (b'{"schema_version": 1, "kbs": {"a": {"releases": [7]}}}', "damaged"),
        (b" " * (LIMIT_BYTES + 1), "longer"),
        (changed(file="../outside.zip"), "neither a plain name"),
        (changed(file="/etc/passwd"), "neither a plain name"),
        (changed(file="file:///etc/passwd"), "neither a plain name"),
        (changed(file="s3://bucket/kb.zip"), "neither a plain name"),
        (changed(file="C:\\kb.zip"), "neither a plain name"),
        (changed(file="https://host/a b"), "neither a plain name"),
        (changed(sha256="0A" * 32), "sha256"),
        (changed(size_bytes=-1), "size_bytes"),
        (changed(version=""), "version is empty"),
        (changed(version="1\n2"), "version"),
        (changed(embedder="x" * 5000), "embedder"),
    ],
)
def test_a_hostile_feed_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(errors.DownloadError) as refused:
        parse_feed(content, "https://host/releases.json")
    assert refused.value.code == "E019"
    assert reason in refused.value.explanation
    assert "https://host/releases.json" in refused.value.message


def test_a_version_that_is_there_twice_is_refused() -> None:
    value = json.loads(ReleaseIndex({"handbook": (ONE,)}).to_bytes())
    value["kbs"]["handbook"]["releases"] *= 2
    with pytest.raises(errors.DownloadError, match="cannot be used"):
        parse_feed(json.dumps(value).encode(), "feed")


def address(wanted: str) -> FeedAddress:
    found = parse_remote_feed(f"https://host/releases.json{wanted}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("feed", "wanted", "told"),
    [
        (FEED, "", ["cookbook 1.0.0", "handbook 1.9.0"]),
        (FEED, "#cellar", ["cookbook 1.0.0", "handbook 1.9.0"]),
        (FEED, "#handbook@3", ["handbook 1.9.0", "handbook 1.10.0-rc1", "handbook 1.0.0"]),
        (ReleaseIndex({}), "", []),
        (ReleaseIndex({"handbook": ()}), "", []),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(feed: ReleaseIndex, wanted: str, told: list[str]) -> None:
    with pytest.raises(errors.NotFoundError) as refused:
        choose(feed, address(wanted))
    assert refused.value.code == "E020"
    assert refused.value.details["known"] == told
    assert "#NAME@VERSION" in refused.value.hints[1]


def test_a_release_is_a_source_with_version_digest_and_feed() -> None:
    source = to_source(ONE, address("#handbook"))
    assert source.to_json() == {
        "type": "url",
        "location": "https://host/handbook-1.0.0.zip",
        "requiresDownload": True,
        "version": "1.0.0",
        "sha256": "0a" * 32,
        "feed": "https://host/releases.json#handbook",
        **({"manifestSha256": ONE.manifest_sha256} if ONE.manifest_sha256 else {}),
    }
    assert type(source).from_json(source.to_json()) == source


def test_a_source_of_before_there_were_feeds_is_still_read() -> None:
    value = to_source(ONE, address("")).to_json()
    del value["feed"]
    assert KbSource.from_json(value).feed is None
