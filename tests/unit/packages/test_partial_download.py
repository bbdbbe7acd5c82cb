"""Partial downloads read and write only the files that the published manifest lists."""

import hashlib
import io
import itertools
import json
import zipfile
from pathlib import Path

import pytest

from pair import errors
from pair.packages.download import _cut_off
from pair.packages.package import IndexSelection, PackagedFile, PackageManifest
from pair.packages.partial_download import Supplies, UnfitError, assemble, find_missing
from pair.packages.rules import SourcesSettings

SUPPLIES = Supplies(lambda sha256: None, IndexSelection())


class Elsewhere:
    """An archive that counts the requested bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.copied = 0

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]

    def copy(self, start: int, length: int, path: Path) -> None:
        self.copied += length
        path.write_bytes(self.read(start, length))


def manifest_of(*names: str, size_bytes: int = 5) -> PackageManifest:
    sha256 = hashlib.sha256(b"texts").hexdigest()
    return PackageManifest("kb", "1.0.0", files={name: PackagedFile(size_bytes, sha256) for name in names})


def zipped(manifest: bytes, contents: dict[str, bytes]) -> Elsewhere:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"manifest.json": manifest, **contents}.items():
            archive.writestr(name, content)
    return Elsewhere(written.getvalue())


def bytes_of(manifest: PackageManifest) -> bytes:
    return json.dumps(manifest.to_json()).encode()


def test_an_entry_that_would_explode_is_not_even_fetched(tmp_path: Path) -> None:
    manifest = manifest_of("a.md")
    content = bytes_of(manifest)
    there = zipped(content, {"a.md": bytes(50_000_000)})
    with pytest.raises(UnfitError, match="sizes of its files"):
        assemble(content, manifest, ["a.md"], there, tmp_path / "kb", SUPPLIES)
    assert there.copied == 0


def test_a_manifest_in_the_archive_that_would_explode_is_not_read(tmp_path: Path) -> None:
    manifest = manifest_of("a.md")
    there = zipped(bytes(50_000_000), {"a.md": b"texts"})
    with pytest.raises(UnfitError, match="sizes of its files"):
        assemble(bytes_of(manifest), manifest, ["a.md"], there, tmp_path / "kb", SUPPLIES)


def test_a_directory_that_is_much_longer_than_the_manifest_is_not_read(tmp_path: Path) -> None:
    manifest = manifest_of("a.md")
    content = bytes_of(manifest)
    there = zipped(content, {"a.md": b"texts", **{f"{number:0100}": b"" for number in range(2000)}})
    with pytest.raises(UnfitError, match="directory"):
        assemble(content, manifest, ["a.md"], there, tmp_path / "kb", SUPPLIES)


@pytest.mark.parametrize(
    ("names", "size_bytes"),
    [
        (["../a.md"], 5),
        (["/a.md"], 5),
        (["a.md", "A.md"], 5),
        (["a", "a/b.md"], 5),
        (["manifest.json"], 5),
        ([".pair-install.jsonl"], 5),
        (["a/.g\u200cit/config"], 5),
        (["a/HEAD", "a/objects/x", "a/refs/x"], 5),
        (["/".join("a" * 500)], 5),
        (["a.md"], -5),
        (["a.md"], 5_000_000_000_000),
    ],
)
def test_a_manifest_that_lists_what_no_archive_may_hold_is_refused(names: list[str], size_bytes: int) -> None:
    with pytest.raises(errors.DownloadError) as refusal:
        find_missing(manifest_of(*names, size_bytes=size_bytes), SUPPLIES, SourcesSettings())
    assert refusal.value.code == "E009"


def test_a_server_that_does_not_stop_is_stopped() -> None:
    assert list(_cut_off(itertools.chain([b"abc"], itertools.repeat(b"def")), 7)) == [b"abc", b"def", b"d"]
