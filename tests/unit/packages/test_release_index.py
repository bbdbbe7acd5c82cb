"""Release indexes: decoding, choosing a release, and publishing to folders and buckets."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pair import errors
from pair.blobs.contract import Version
from pair.blobs.local import MemoryStore
from pair.packages.package import Label, PackagedIndex, PackageManifest, make_package
from pair.packages.release_index import (
    LIMIT_BYTES,
    BucketFetcher,
    BucketTarget,
    FolderTarget,
    PublishTarget,
    Release,
    ReleaseIndex,
    choose,
    parse_feed,
    publish,
    to_source,
)
from pair.packages.resolve import FeedAddress, parse_remote_feed
from pair.packages.rules import SourcesSettings
from pair.testing.clock import ManualClock
from pair.values import KbSource

ONE = Release("1.0.0", "handbook-1.0.0.zip", 10, "0a" * 32, "sha256:0b", "0c", "ngram-384-v1", True, "2026-01-31")
TWO = Release("1.10.0-rc1", "handbook-1.10.0-rc1.zip", 11, "1a" * 32)
THREE = Release("1.9.0", "handbook-1.9.0.zip", 11, "2a" * 32)
FEED = ReleaseIndex({"handbook": (THREE, TWO, ONE), "cookbook": (msgspec.structs.replace(ONE, file="c.zip"),)})


def test_a_feed_round_trips() -> None:
    again = parse_feed(FEED.to_bytes(), "feed")
    assert again.to_bytes() == FEED.to_bytes()
    assert list(again.kbs) == ["cookbook", "handbook"]
    assert again.kbs["handbook"] == (ONE, THREE, TWO)


def test_fields_that_a_later_version_adds_are_accepted() -> None:
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
        (b"{}", "no schema_version"),
        (b'{"schema_version": 2, "kbs": {}}', "another version of pair: it has schema 2"),
        (b'{"schema_version": true, "kbs": {}}', "schema True"),
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


def test_a_version_that_is_listed_twice_is_refused() -> None:
    value = json.loads(ReleaseIndex({"handbook": (ONE,)}).to_bytes())
    value["kbs"]["handbook"]["releases"] *= 2
    with pytest.raises(errors.DownloadError, match="Cannot read the release index"):
        parse_feed(json.dumps(value).encode(), "feed")


def address(wanted: str) -> FeedAddress:
    found = parse_remote_feed(f"https://host/releases.json{wanted}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("feed", "wanted", "known"),
    [
        (FEED, "", ["cookbook 1.0.0", "handbook 1.9.0"]),
        (FEED, "#cellar", ["cookbook 1.0.0", "handbook 1.9.0"]),
        (FEED, "#handbook@3", ["handbook 1.9.0", "handbook 1.10.0-rc1", "handbook 1.0.0"]),
        (ReleaseIndex({}), "", []),
        (ReleaseIndex({"handbook": ()}), "", []),
    ],
)
def test_an_unknown_release_is_refused_with_the_known_ones(feed: ReleaseIndex, wanted: str, known: list[str]) -> None:
    with pytest.raises(errors.NotFoundError) as refused:
        choose(feed, address(wanted))
    assert refused.value.code == "E020"
    assert refused.value.details["known"] == known
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


# ── publishing ─────────────────────────────────────────────────────────────────────────────────────

INDEX = PackagedIndex("default", 7, "ngram-384-v1", 384, 1, 1, 1)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, store: MemoryStore) -> PublishTarget:
    if request.param == "bucket":
        return in_bucket(store)
    return FolderTarget(tmp_path / "dist", lambda holder: None)


def packaged(folder: Path, text: str = "one", version: str = "1.0.0") -> tuple[Path, PackageManifest]:
    kb = folder / "kb"
    kb.mkdir(exist_ok=True)
    (kb / "page.md").write_text(text)
    made = make_package(kb, folder / f"{text}.zip", label=Label("handbook", version), dated=None)
    return made.path, made.manifest


def feed_of(place: PublishTarget) -> ReleaseIndex:
    content = place.read("releases.json")
    assert content is not None
    return parse_feed(content, "feed")


def test_a_release_says_which_embedder_made_its_index(place: PublishTarget, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    with_index = PackageManifest(manifest.name, manifest.version, files=manifest.files, index=INDEX)
    report = publish(path, with_index, place, ManualClock())
    assert report.release.embedder == "ngram-384-v1"
    assert feed_of(place).find("handbook", "1.0.0") == report.release
    assert json.dumps(report.to_json())


OTHER = Release("1.0.0", "other.zip", 1, "0b" * 32)


class Contended(MemoryStore):
    """A store where another publisher writes the feed first, this many times, or when an archive is stored."""

    def __init__(self, times: int = 0, on_archive: ReleaseIndex | None = None) -> None:
        super().__init__(ManualClock())
        self._left = iter(range(times))
        self._on_archive = on_archive

    def create(self, key: str, data: bytes) -> Version:
        self._interfere(key)
        return super().create(key, data)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        self._interfere(key)
        return super().put_if(key, data, version)

    def upload(self, key: str, path: Path) -> Version:
        if self._on_archive is not None:
            self.put("releases.json", self._on_archive.to_bytes())
        return super().upload(key, path)

    def _interfere(self, key: str) -> None:
        number = next(self._left, None) if key == "releases.json" else None
        if number is not None:
            blob = self.get(key)
            feed = parse_feed(blob.data, "feed") if blob is not None else ReleaseIndex({})
            self.put(key, feed.with_release(f"kb-{number}", OTHER).to_bytes())


def in_bucket(store: MemoryStore) -> BucketTarget:
    return BucketTarget(store, lambda attempt: None)


def test_releases_that_others_publish_meanwhile_stay_in_the_feed(tmp_path: Path) -> None:
    place = in_bucket(Contended(times=5))
    publish(*packaged(tmp_path), place, ManualClock())
    assert sorted(feed_of(place).kbs) == ["handbook", "kb-0", "kb-1", "kb-2", "kb-3", "kb-4"]


def test_a_feed_that_never_rests_is_given_up(tmp_path: Path) -> None:
    place = in_bucket(Contended(times=1000))
    with pytest.raises(errors.StorageError) as refused:
        publish(*packaged(tmp_path), place, ManualClock())
    assert "kept changing the feed" in refused.value.explanation
    assert "handbook" not in feed_of(place).kbs


def test_different_bytes_that_another_publisher_adds_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    rival = ReleaseIndex({"handbook": (OTHER,)})
    place = in_bucket(Contended(on_archive=rival))
    with pytest.raises(errors.ConflictError) as refused:
        publish(*packaged(tmp_path), place, ManualClock())
    assert refused.value.code == "E021"
    assert feed_of(place) == rival


def test_an_archive_in_a_bucket_that_is_too_large_is_not_fetched(store: MemoryStore, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    release = publish(path, manifest, in_bucket(store), ManualClock()).release
    fetcher = BucketFetcher(lambda address: store, SourcesSettings(max_download_bytes=release.size_bytes - 1))
    part = tmp_path / "kb.part"
    with pytest.raises(errors.DownloadError) as refusal:
        fetcher.fetch("s3://bucket/handbook-1.0.0.zip", part, sha256=release.sha256, known=None)
    assert refusal.value.code == "E009"
    assert not part.exists()
