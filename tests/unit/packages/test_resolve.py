"""Addresses of feeds, the order of versions, and replaced releases."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.packages.release_index import find_latest, is_older, is_pre_release, version_key
from pair.packages.resolve import has_moved, locate_archive, parse_local_feed, parse_remote_feed
from pair.values import KbSource


@pytest.mark.parametrize(
    ("source", "place", "name", "version"),
    [
        ("https://host/releases.json", "https://host/releases.json", "", ""),
        ("http://host/kbs/releases.json#handbook", "http://host/kbs/releases.json", "handbook", ""),
        ("https://host/releases.json#handbook@1.0.0", "https://host/releases.json", "handbook", "1.0.0"),
        ("https://host/releases.json#@1.0.0", "https://host/releases.json", "", "1.0.0"),
        ("https://host/releases.json#My%20Book@1", "https://host/releases.json", "My Book", "1"),
        ("https://host/releases.json?key=1#a@b", "https://host/releases.json?key=1", "a", "b"),
        ("https://ada:secret@host/releases.json#a", "https://ada:secret@host/releases.json", "a", ""),
        ("https://host/kbs/handbook@1.0.0", "https://host/kbs/releases.json", "handbook", "1.0.0"),
        ("https://host/handbook@1.0.0?key=1", "https://host/releases.json?key=1", "handbook", "1.0.0"),
        ("https://host/me@work@2", "https://host/releases.json", "me@work", "2"),
        ("s3://bucket/releases.json#handbook", "s3://bucket/releases.json", "handbook", ""),
        ("s3://bucket/deep/prefix/handbook@2.0", "s3://bucket/deep/prefix/releases.json", "handbook", "2.0"),
    ],
)
def test_an_address_names_a_feed(source: str, place: str, name: str, version: str) -> None:
    found = parse_remote_feed(source)
    assert found is not None
    assert dataclasses.astuple(found) == (source, place, name, version)


@pytest.mark.parametrize(
    "source",
    [
        "https://host/kb.zip",
        "https://host/handbook@1.0.0.zip",
        "https://host/handbook@1.0.0.git",
        "https://host/handbook@1.0.0/",
        "https://host/@1.0.0",
        "https://host/handbook@",
        "https://ada@host",
        "https://ada@host/kb",
        "https://host/old-releases.json",
        "https://host/releases.json/kb.zip",
        "https://host/handbook@1.0.0#fragment",
        "git@host:team/releases.json",
        "ssh://git@host/releases.json",
        "https://host/kb.git#releases.json",
        "s3://releases.json",
        "./releases.json",
        "releases.json",
    ],
)
def test_an_address_names_something_else(source: str) -> None:
    assert parse_remote_feed(source) is None


@pytest.mark.parametrize(
    ("path", "place", "name", "version"),
    [
        ("/dist/releases.json", "/dist/releases.json", "", ""),
        ("/dist/releases.json#handbook@1", "/dist/releases.json", "handbook", "1"),
        ("/c#/dist/releases.json#handbook", "/c#/dist/releases.json", "handbook", ""),
        ("/dist/handbook@1.0.0", "/dist/releases.json", "handbook", "1.0.0"),
    ],
)
def test_a_path_may_name_a_feed(path: str, place: str, name: str, version: str) -> None:
    found = parse_local_feed(path)
    assert found is not None
    assert dataclasses.astuple(found) == (path, place, name, version)


@pytest.mark.parametrize("path", ["/dist/handbook.zip", "/dist/handbook@1.zip", "/me@work/handbook", "/dist/old.json"])
def test_other_paths_name_none(path: str) -> None:
    assert parse_local_feed(path) is None


@pytest.mark.parametrize(
    ("place", "file", "location"),
    [
        ("https://host/kbs/releases.json?key=1", "a b.zip", "https://host/kbs/a%20b.zip"),
        ("https://host/releases.json", "a#b?.zip", "https://host/a%23b%3F.zip"),
        ("https://ada:x@host/releases.json", "old/a.zip", "https://ada:x@host/old/a.zip"),
        ("https://host/releases.json", "https://other/a.zip", "https://other/a.zip"),
        ("/dist/releases.json", "a.zip", "/dist/a.zip"),
        ("s3://bucket/releases.json", "a.zip", "s3://bucket/a.zip"),
    ],
)
def test_an_archive_is_beside_its_feed_or_has_its_own_address(place: str, file: str, location: str) -> None:
    assert locate_archive(place, file) == location


# ── versions ───────────────────────────────────────────────────────────────────────────────────────

ASCENDING = [
    "0.9",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc1",
    "1.0.0rc2",
    "1.0.0",
    "1.0.0.1",
    "1.2.0-rc1",
    "1.2.0",
    "1.9.3",
    "1.10.0",
    "v2.0.0-dev",
    "v2.0.0",
    "2.0.1+build.5",
    "2025-12-31",
    "2026-01-02",
    "2026.2.1",
]


@pytest.mark.parametrize(("earlier", "later"), [*itertools.pairwise(ASCENDING)])
def test_versions_are_ordered_as_people_count(earlier: str, later: str) -> None:
    assert version_key(earlier) < version_key(later)
    assert is_older(earlier, later)
    assert not is_older(later, earlier)


@pytest.mark.parametrize(("version", "other"), [("1.2", "1.2.0"), ("v1.2.0", "1.2"), ("1.0.0", "")])
def test_a_version_is_not_older_than_its_equal_or_than_none(version: str, other: str) -> None:
    assert not is_older(version, other)


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["1.9.0", "1.10.0", "1.2.0"], "1.10.0"),
        (["1.1.0", "1.2.0-rc1"], "1.1.0"),
        (["1.2.0-rc1", "1.2.0"], "1.2.0"),
        (["2.0.0rc1", "1.0"], "1.0"),
        (["1.0.0-rc2", "1.0.0-rc10"], "1.0.0-rc10"),
        (["2026-01-31", "2025-12-31"], "2026-01-31"),
        (["spring", "autumn"], "spring"),
        (["9" * 5000, "1" * 5001], "1" * 5001),
    ],
)
def test_the_latest_is_the_greatest_that_is_not_a_pre_release(versions: list[str], chosen: str) -> None:
    assert find_latest(versions) == chosen
    assert find_latest(versions[::-1]) == chosen


@pytest.mark.parametrize(
    ("version", "is_one"),
    [
        ("1.2.0-rc1", True),
        ("1.2-beta", True),
        ("1.2.0b3", True),
        ("1.2.0.dev4", True),
        ("1.2.0-rc.1+build", True),
        ("1.2.0", False),
        ("1.2.0+rc1", False),
        ("2026-01-31", False),
        ("spring-1", False),
        ("1.2.0.post1", False),
    ],
)
def test_a_pre_release_is_known_by_its_version(version: str, is_one: bool) -> None:
    assert is_pre_release(version) == is_one


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_any_texts_have_one_order(versions: list[str]) -> None:
    assert len({version_key(version) for version in versions}) == len(versions)
    assert find_latest(versions) == find_latest(versions[::-1])


# ── what moved ─────────────────────────────────────────────────────────────────────────────────────

FEED = "https://host/releases.json"


def release(feed: str | None, version: str = "1.0.0", sha256: str = "old") -> KbSource:
    return KbSource("url", "https://host/a.zip", True, version, sha256, feed)


@pytest.mark.parametrize(
    ("offered", "moved"),
    [
        (release(FEED, sha256="new"), True),
        (release(f"{FEED}#handbook@1.0.0", sha256="new"), True),
        (release("https://host/handbook@1.0.0", sha256="new"), True),
        (release("https://ada:secret@host/releases.json", sha256="new"), True),
        (release(f"{FEED}#cookbook", sha256="new"), False),
        (release(FEED, sha256="old"), False),
        (release(FEED, version="1.0.1", sha256="new"), False),
        (release("https://other/releases.json", sha256="new"), False),
        (release(None, sha256="new"), False),
    ],
)
def test_a_version_has_moved_when_its_release_index_has_different_bytes_for_it(offered: KbSource, moved: bool) -> None:
    assert has_moved(release(f"{FEED}#handbook"), "handbook", "old", offered) == moved


def test_a_release_without_a_recorded_checksum_has_not_moved() -> None:
    assert not has_moved(release(FEED), "handbook", "", release(FEED, sha256="new"))
