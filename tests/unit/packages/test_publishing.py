"""Places and publications, with what others do meanwhile."""

import json
from pathlib import Path

import pytest

from pair import errors
from pair.blobs.contract import Version
from pair.blobs.local import MemoryStore
from pair.packages.package import Label, PackagedIndex, PackageManifest, make_package
from pair.packages.release_index import (
    BucketFetcher,
    BucketTarget,
    FolderTarget,
    PublishTarget,
    Release,
    ReleaseIndex,
    parse_feed,
    publish,
)
from pair.packages.rules import SourcesSettings
from pair.testing.clock import ManualClock

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


def test_a_place_holds_plain_files_under_plain_names(place: PublishTarget, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    report = publish(path, manifest, place, ManualClock())
    assert place.read("handbook-1.0.0.zip") == path.read_bytes()
    assert place.read("handbook-1.0.0.zip.sha256") == f"{report.release.sha256}  handbook-1.0.0.zip\n".encode()
    assert place.read("nothing") is None


def test_a_claim_that_is_there_already_decides(place: PublishTarget, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    with place.lock():
        assert place.claim("handbook-1.0.0.zip.sha256", b"0a" * 32) == b"0a" * 32
    with pytest.raises(errors.ConflictError) as refused:
        publish(path, manifest, place, ManualClock())
    assert refused.value.code == "E021"
    assert refused.value.details["published"] == "0a" * 32
    assert place.read("handbook-1.0.0.zip") is None
    assert place.read("releases.json") is None


OTHER = Release("1.0.0", "other.zip", 1, "0b" * 32)


class Contended(MemoryStore):
    """Just before the feed is written, somebody else writes it, so many times; or as soon as an archive comes."""

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


def test_releases_of_others_that_come_meanwhile_stay_in_the_feed(tmp_path: Path) -> None:
    place = in_bucket(Contended(times=5))
    publish(*packaged(tmp_path), place, ManualClock())
    assert sorted(feed_of(place).kbs) == ["handbook", "kb-0", "kb-1", "kb-2", "kb-3", "kb-4"]


def test_a_feed_that_never_rests_is_given_up(tmp_path: Path) -> None:
    place = in_bucket(Contended(times=1000))
    with pytest.raises(errors.StorageError) as refused:
        publish(*packaged(tmp_path), place, ManualClock())
    assert "kept changing the feed" in refused.value.explanation
    assert "handbook" not in feed_of(place).kbs


def test_other_bytes_that_come_into_the_feed_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    rival = ReleaseIndex({"handbook": (OTHER,)})
    place = in_bucket(Contended(on_archive=rival))
    with pytest.raises(errors.ConflictError) as refused:
        publish(*packaged(tmp_path), place, ManualClock())
    assert refused.value.code == "E021"
    assert feed_of(place) == rival


def test_an_archive_is_fetched_from_a_bucket_and_checked(store: MemoryStore, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    release = publish(path, manifest, in_bucket(store), ManualClock()).release
    fetcher = BucketFetcher(lambda address: store, SourcesSettings())
    part = tmp_path / "deep" / "kb.part"
    fetched = fetcher.fetch("s3://bucket/handbook-1.0.0.zip", part, sha256=release.sha256, known=None)
    assert fetched is not None
    assert (fetched.path.read_bytes(), fetched.verified) == (path.read_bytes(), True)
    with pytest.raises(errors.DownloadError, match="checksum"):
        fetcher.fetch("s3://bucket/handbook-1.0.0.zip", part, sha256="0a" * 32, known=None)
    assert not part.exists()
    with pytest.raises(errors.DownloadError, match="Failed to download"):
        fetcher.fetch("s3://bucket/nothing.zip", part, sha256=None, known=None)


def test_an_archive_in_a_bucket_that_is_too_large_is_not_fetched(store: MemoryStore, tmp_path: Path) -> None:
    path, manifest = packaged(tmp_path)
    release = publish(path, manifest, in_bucket(store), ManualClock()).release
    fetcher = BucketFetcher(lambda address: store, SourcesSettings(max_download_bytes=release.size_bytes - 1))
    part = tmp_path / "kb.part"
    with pytest.raises(errors.DownloadError) as refusal:
        fetcher.fetch("s3://bucket/handbook-1.0.0.zip", part, sha256=release.sha256, known=None)
    assert refusal.value.code == "E009"
    assert not part.exists()
