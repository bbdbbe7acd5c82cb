"""Unpacking: valid archives are unpacked, hostile ones refused."""

import hashlib
import io
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pair.errors import DownloadError
from pair.packages.archive import hash_entries, read_entry, unpack
from pair.packages.rules import SourcesSettings
from support.command import read_files
from support.hostile import (
    CORPUS,
    DEFLATED,
    STORED,
    Entry,
    Hostile,
    crowded_directory,
    quoted_headers,
    small_end64_record,
    with_end,
    with_end64,
    zip_from,
)
from support.kbs import zip_of

POLICY = SourcesSettings()


def archive_at(folder: Path, content: bytes) -> Path:
    path = folder / "x.zip"
    path.write_bytes(content)
    return path


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def zip_with_comment(files: dict[str, str], comment: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
        opened.comment = comment
    return archive.getvalue()


# ── refused ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-15")
@pytest.mark.parametrize("hostile", CORPUS, ids=lambda hostile: hostile.id)
def test_hostile_archive_is_refused_when_unpacked_or_only_read_and_leaves_nothing(hostile: Hostile, tmp_path: Path):
    archive = archive_at(tmp_path, hostile.build())
    acts: list[Callable[[], object]] = [
        lambda: unpack(archive, tmp_path / "kb", POLICY),
        lambda: hash_entries(archive, POLICY),
    ]
    for act in acts:
        with pytest.raises(DownloadError) as refusal:
            act()
        assert refusal.value.code == "E009"
        assert hostile.reason in refusal.value.details["reason"]
    assert everything_below(tmp_path) == ["x.zip"]


def test_refusal_names_the_archive_but_not_where_it_lies(tmp_path: Path):
    archive = archive_at(tmp_path, b"not a zip")
    with pytest.raises(DownloadError) as refusal:
        unpack(archive, tmp_path / "kb", POLICY)
    assert refusal.value.message == "Cannot unpack x.zip: it is unreadable or unsafe."


def test_entries_that_quote_each_other_would_unpack_without_the_refusal():
    with zipfile.ZipFile(io.BytesIO(quoted_headers())) as opened:
        sizes = [len(opened.read(entry)) for entry in opened.infolist()]
    assert len(sizes) == 50
    assert sum(sizes) > 40 * max(sizes) / 2


_CROWD = crowded_directory(10_000)


@pytest.mark.rule("source-15")
@pytest.mark.parametrize(
    "archive_bytes",
    [
        pytest.param(with_end64(_CROWD, 10_000, 0), id="counted-truthfully"),
        pytest.param(with_end(_CROWD, 1, 0), id="counted-as-one"),
        pytest.param(with_end64(_CROWD, 1, 0), id="counted-as-one-in-zip64"),
        pytest.param(with_end64(_CROWD, 10_000, 0, end=(1, 47)), id="hidden-in-zip64"),
        pytest.param(
            small_end64_record() + with_end64(_CROWD, 10_000, len(small_end64_record()), record_offset=0),
            id="locator-points-to-another-record",
        ),
    ],
)
def test_crowded_directory_is_refused_before_objects_are_made_of_it(archive_bytes: bytes, tmp_path: Path):
    archive = archive_at(tmp_path, archive_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(DownloadError) as refusal:
            unpack(archive, tmp_path / "kb", SourcesSettings(max_archive_entries=1_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.code == "E009"
    assert peak_bytes < 4 * len(_CROWD)


@pytest.mark.parametrize(
    ("policy", "is_unpacked"),
    [
        pytest.param(SourcesSettings(max_archive_entries=3), True, id="as-many-entries-as-allowed"),
        pytest.param(SourcesSettings(max_archive_entries=2), False, id="one-entry-too-many"),
        pytest.param(SourcesSettings(max_unpacked_bytes=3_000_000), True, id="as-many-bytes-as-allowed"),
        pytest.param(SourcesSettings(max_unpacked_bytes=2_999_999), False, id="one-byte-too-many"),
        pytest.param(SourcesSettings(max_compression_ratio=90), True, id="ratio-below-what-is-allowed"),
        pytest.param(SourcesSettings(max_compression_ratio=10), False, id="ratio-above-what-is-allowed"),
    ],
)
def test_limits_are_those_of_the_settings(policy: SourcesSettings, is_unpacked: bool, tmp_path: Path):
    pages = {f"{number}.md": random.Random(number).randbytes(10_000) * 100 for number in range(3)}
    archive = archive_at(tmp_path, zip_of(pages))
    if is_unpacked:
        assert len(unpack(archive, tmp_path / "kb", policy)) == 3
    else:
        with pytest.raises(DownloadError):
            unpack(archive, tmp_path / "kb", policy)


# ── unpacked ───────────────────────────────────────────────────────────────────────────────────────

ORDINARY = {
    "README.md": "# Handbook\n",
    "guides/deep/er/page.md": "# Page\n" * 500,
    "größe/日本語/emoji 🎉.md": "ü\n",
    "e\u0301te\u0301.md": "decomposed\n",
    "empty.md": "",
    ".hidden/.file": "hidden\n",
    "with space/and'quote\".md": "x\n",
    f"long/{'n' * 200}/{'ö' * 100}.md": "long\n",
    "console.md": "not a device\n",
    "a..b/c...d.md": "dots\n",
    "docs/.pair-install.jsonl": "below, it is a file like any other\n",
}


@pytest.mark.rule("source-16")
@pytest.mark.parametrize("method", [pytest.param(STORED, id="stored"), pytest.param(DEFLATED, id="deflated")])
def test_ordinary_archive_is_unpacked_byte_by_byte(method: int, tmp_path: Path):
    unpacked = unpack(archive_at(tmp_path, zip_of(ORDINARY, method)), tmp_path / "kb", POLICY)
    content = {name: text.encode() for name, text in ORDINARY.items()}
    written = {
        path.relative_to(tmp_path / "kb").as_posix(): path.read_bytes()
        for path in (tmp_path / "kb").rglob("*")
        if path.is_file()
    }
    assert written == content
    assert unpacked == {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def test_hashing_finds_what_unpacking_writes(tmp_path: Path):
    archive = archive_at(tmp_path, zip_of(ORDINARY))
    assert hash_entries(archive, POLICY) == unpack(archive, tmp_path / "kb", POLICY)


def test_empty_folders_are_made(tmp_path: Path):
    unpack(archive_at(tmp_path, zip_from(Entry("a.md"), Entry("drafts/old/", b""))), tmp_path / "kb", POLICY)
    assert everything_below(tmp_path / "kb") == ["a.md", "drafts", "drafts/old"]


def test_archive_without_entries_becomes_an_empty_folder(tmp_path: Path):
    assert unpack(archive_at(tmp_path, zip_from()), tmp_path / "kb", POLICY) == {}
    assert everything_below(tmp_path / "kb") == []


def zip64_of(entry: Entry) -> bytes:
    return entry.local() + with_end64(entry.central(0), 1, len(entry.local()))


@pytest.mark.parametrize(
    ("content", "files"),
    [
        pytest.param(zip_with_comment({"a.md": "# a\n"}, b"c" * 65535), {"a.md": b"# a\n"}, id="longest-comment"),
        pytest.param(zip_with_comment({"a.md": "# a\n"}, "für".encode()), {"a.md": b"# a\n"}, id="comment-not-ascii"),
        pytest.param(b"#!/bin/sh\n" + zip_of({"a.md": "# a\n"}), {"a.md": b"# a\n"}, id="behind-other-bytes"),
        pytest.param(zip_from(Entry(b"caf\x82.md", b"# a\n", flags=0)), {"café.md": b"# a\n"}, id="old-encoding"),
        pytest.param(zip64_of(Entry("a.md", b"# a\n")), {"a.md": b"# a\n"}, id="zip64"),
        pytest.param(zip_of({"zeros": bytes(1024 * 1024)}), {"zeros": bytes(1024 * 1024)}, id="very-compressible"),
        pytest.param(zip_from(Entry("a.md", b"# b\n" * 99, DEFLATED)), {"a.md": b"# b\n" * 99}, id="own-writer"),
    ],
)
def test_unusual_archive_is_unpacked(content: bytes, files: dict[str, bytes], tmp_path: Path):
    unpack(archive_at(tmp_path, content), tmp_path / "kb", POLICY)
    assert read_files(tmp_path / "kb") == files


def test_modes_of_the_archive_are_not_taken_over(tmp_path: Path):
    unpack(archive_at(tmp_path, zip_from(Entry("run.sh", mode=0o106777))), tmp_path / "kb", POLICY)
    assert (tmp_path / "kb/run.sh").stat().st_mode & 0o7111 == 0


# ── one entry ──────────────────────────────────────────────────────────────────────────────────────


def test_one_entry_is_read_without_unpacking(tmp_path: Path):
    archive = archive_at(tmp_path, zip_of({"manifest.json": "{}", "a.md": "# a\n"}))
    assert read_entry(archive, "manifest.json", POLICY) == b"{}"
    assert everything_below(tmp_path) == ["x.zip"]


def test_a_missing_entry_is_none(tmp_path: Path):
    assert read_entry(archive_at(tmp_path, zip_of({"a.md": "# a\n"})), "manifest.json", POLICY) is None


@pytest.mark.rule("source-15")
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(Entry("manifest.json", crc=1), id="wrong-crc"),
        pytest.param(Entry("manifest.json", flags=1), id="encrypted"),
        pytest.param(Entry("manifest.json", method=99), id="unknown-compression"),
        pytest.param(Entry("manifest.json", b"{}", DEFLATED, size=65 * 1024 * 1024), id="too-large"),
        pytest.param(Entry("manifest.json", local_name=b"other"), id="other-local-name"),
    ],
)
def test_unsound_entry_is_refused_when_read_alone(entry: Entry, tmp_path: Path):
    with pytest.raises(DownloadError) as refusal:
        read_entry(archive_at(tmp_path, zip_from(entry)), "manifest.json", POLICY)
    assert refusal.value.code == "E009"
