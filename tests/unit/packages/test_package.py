"""Packages: equal bytes for equal folders, a correct manifest, and only files that can be installed."""

import contextlib
import datetime
import hashlib
import io
import json
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pair.errors import DownloadError, NotFoundError, UsageError
from pair.packages.archive import unpack
from pair.packages.package import (
    UNDATED,
    Label,
    PackagedFile,
    PackagedIndex,
    PackageManifest,
    PackageReport,
    make_package,
    parse_manifest,
)
from pair.packages.rules import SourcesSettings
from support.command import read_files, write_files
from support.kbs import SMALL_KB

pytestmark = pytest.mark.rule("source-28")

MEBIBYTE = 1024 * 1024
NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def packaged(folder: Path, output: Path | None = None, **label: Any) -> PackageReport:
    return make_package(folder, output or folder.parent / "kb.zip", label=Label(**label), dated=None)


def manifest_in(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as opened:
        return dict(json.loads(opened.read("manifest.json")))


def names_in(archive: Path) -> list[str]:
    with zipfile.ZipFile(archive) as opened:
        return opened.namelist()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "handbook", SMALL_KB)


# ── the same bytes ─────────────────────────────────────────────────────────────────────────────────


def touch(folder: Path) -> Path:
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    return folder


def copy(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.parent / "elsewhere" / folder.name))


def write_in_another_order(folder: Path) -> Path:
    return write_files(folder.parent / "again" / folder.name, dict(reversed(SMALL_KB.items())))


def change_modes(folder: Path) -> Path:
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o751)
    return folder


def add_an_empty_folder(folder: Path) -> Path:
    (folder / "drafts").mkdir()
    return folder


@pytest.mark.parametrize("vary", [touch, copy, write_in_another_order, change_modes, add_an_empty_folder])
def test_same_content_gives_the_same_bytes(vary, folder: Path, tmp_path: Path):
    first = packaged(folder, tmp_path / "one.zip")
    second = packaged(vary(folder), tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert first.sha256 == second.sha256


def test_order_of_tags_makes_no_difference(folder: Path, tmp_path: Path):
    first = packaged(folder, tmp_path / "one.zip", tags=("time", "calendars", "time"))
    second = packaged(folder, tmp_path / "two.zip", tags=("calendars", "time"))
    assert first.sha256 == second.sha256
    assert first.manifest.tags == ("calendars", "time")


def test_unpacked_package_gives_the_same_package_again(folder: Path, tmp_path: Path):
    first = packaged(folder, tmp_path / "one.zip", name="kb", version="2.0.0", author="me", tags=("a",))
    unpack(tmp_path / "one.zip", tmp_path / "unpacked", SourcesSettings())
    second = packaged(tmp_path / "unpacked", tmp_path / "two.zip")
    assert first.sha256 == second.sha256


def test_every_entry_has_a_fixed_time_mode_and_system(folder: Path):
    with zipfile.ZipFile(packaged(folder).path) as opened:
        kinds = {(entry.date_time, entry.external_attr >> 16, entry.create_system) for entry in opened.infolist()}
    assert kinds == {((1980, 1, 1, 0, 0, 0), 0o100644, 3)}


def test_entries_are_sorted_behind_the_manifest(folder: Path):
    assert names_in(packaged(folder).path) == ["manifest.json", "README.md", "guides/deploy.md", "logo.png"]


# ── the manifest ───────────────────────────────────────────────────────────────────────────────────


def test_manifest_lists_each_file_by_path(folder: Path):
    manifest = manifest_in(packaged(folder, name="kb", version="1.2.3", description="D", author="A", license="L").path)
    listed = "".join(f"{entry['sha256']}  {path}\n" for path, entry in sorted(manifest["files"].items()))
    assert manifest == {
        "schema_version": 1,
        "name": "kb",
        "version": "1.2.3",
        "description": "D",
        "author": "A",
        "license": "L",
        "tags": [],
        "created_at": UNDATED,
        "content_checksum": f"sha256:{sha256(listed.encode())}",
        "files": {
            path: {"size": len(content), "sha256": sha256(content)} for path, content in read_files(folder).items()
        },
    }


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"a.md": "z", "b.md": "y"}, id="a-changed-byte"),
        pytest.param({"c.md": "x", "b.md": "y"}, id="a-rename"),
        pytest.param({"a.md": "y", "b.md": "x"}, id="two-files-that-trade-contents"),
    ],
)
def test_any_change_of_the_files_is_noticed(changed: dict[str, str | bytes], tmp_path: Path):
    one = packaged(write_files(tmp_path / "one", {"a.md": "x", "b.md": "y"}), tmp_path / "one.zip", name="kb")
    two = packaged(write_files(tmp_path / "two", changed), tmp_path / "two.zip", name="kb")
    assert one.manifest.content_checksum != two.manifest.content_checksum
    assert one.sha256 != two.sha256


@pytest.mark.parametrize(("dated", "created_at"), [(NEW_YEAR, "2026-01-01T00:00:00Z"), (None, UNDATED)])
def test_date_is_the_one_given_or_none(dated: datetime.datetime | None, created_at: str, folder: Path, tmp_path: Path):
    manifest = make_package(folder, tmp_path / "kb.zip", label=Label(), dated=dated).manifest
    assert (manifest.created_at, manifest.is_dated) == (created_at, dated is not None)


def test_manifest_survives_being_written_and_read(folder: Path):
    report = packaged(folder, description="größe", tags=("a", "b"))
    with zipfile.ZipFile(report.path) as opened:
        assert parse_manifest(opened.read("manifest.json")) == report.manifest


def sound_manifest(**changes: Any) -> bytes:
    listed = {"a.md": PackagedFile(4, sha256(b"# a\n"))}
    return json.dumps(PackageManifest("kb", "1.0.0", files=listed).to_json() | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"files": {}}, id="file-taken-out"),
        pytest.param({"files": {"b.md": {"size": 4, "sha256": sha256(b"# a\n")}}}, id="file-renamed"),
        pytest.param({"files": {"a.md": {"size": 4, "sha256": sha256(b"evil")}}}, id="content-replaced"),
        pytest.param({"content_checksum": "sha256:" + "0" * 64}, id="checksum-replaced"),
        pytest.param({"content_checksum": ""}, id="checksum-emptied"),
        pytest.param({"content_checksum": None}, id="checksum-nulled"),
    ],
)
def test_tampered_manifest_is_refused(changes: dict[str, Any]):
    with pytest.raises(DownloadError) as refusal:
        parse_manifest(sound_manifest(**changes))
    assert refusal.value.code == "E006"


NOT_MANIFESTS = {
    "empty": b"",
    "not-json": b"# manifest\n",
    "not-utf-8": b'{"name": "\xff"}',
    "null": b"null",
    "list": b"[]",
    "text": b'"manifest"',
    "web-app": b'{"name": "App", "short_name": "App", "icons": [], "version": "1"}',
    "files-as-list": b'{"name": "x", "version": "1", "files": ["a.md"], "content_checksum": ""}',
    "file-without-hash": b'{"name": "x", "version": "1", "files": {"a": {"size": 1}}, "content_checksum": ""}',
    "size-as-text": sound_manifest(files={"a.md": {"size": "four", "sha256": "x"}}),
    "size-infinite": b'{"name": "x", "version": "1", "files": {"a": {"size": 1e999, "sha256": ""}}}',
    "nested-without-end": b"[" * 100_000,
    "without-checksum": json.dumps({"name": "x", "version": "1", "files": {}}).encode(),
}


@pytest.mark.parametrize("content", NOT_MANIFESTS.values(), ids=NOT_MANIFESTS)
def test_file_of_another_tool_is_not_a_manifest(content: bytes):
    assert parse_manifest(content) is None


def test_manifest_with_a_path_that_is_not_unicode_is_refused():
    listed = {"a\ud800.md": {"size": 4, "sha256": sha256(b"# a\n")}}
    assert not is_taken(sound_manifest(files=listed))


def is_taken(content: bytes) -> bool:
    with contextlib.suppress(DownloadError):
        return parse_manifest(content) is not None
    return False


def test_differences_are_listed_by_kind():
    listed = {name: PackagedFile(1, "same") for name in ("kept", "gone", "other")}
    found = {"kept": "same", "other": "changed", "new": "same"}
    assert PackageManifest("kb", "1.0.0", files=listed).differences(found) == {
        "missing": ["gone"],
        "modified": ["other"],
        "unlisted": ["new"],
    }


# ── the label ──────────────────────────────────────────────────────────────────────────────────────


def test_label_comes_from_the_folders_name_by_default(tmp_path: Path):
    folder = write_files(tmp_path / "My Handbook", SMALL_KB)
    manifest = packaged(folder).manifest
    assert (manifest.name, manifest.version) == ("my-handbook", "1.0.0")


def test_label_comes_from_an_earlier_manifest_unless_given(folder: Path, tmp_path: Path):
    packaged(folder, name="kb", version="2.0.0", description="D", author="A", license="L", tags=("t",))
    unpack(tmp_path / "kb.zip", tmp_path / "unpacked", SourcesSettings())
    manifest = packaged(tmp_path / "unpacked", tmp_path / "next.zip", version="2.1.0", author="").manifest
    assert (manifest.name, manifest.version, manifest.description) == ("kb", "2.1.0", "D")
    assert (manifest.author, manifest.license, manifest.tags) == ("", "L", ("t",))


def test_manifest_of_another_tool_is_not_overwritten(folder: Path, tmp_path: Path):
    write_files(folder, {"manifest.json": '{"name": "App", "icons": []}'})
    with pytest.raises(UsageError) as refusal:
        packaged(folder)
    assert refusal.value.code == "E014"
    assert not (tmp_path / "kb.zip").exists()


@pytest.mark.parametrize(
    "label",
    [
        pytest.param({"name": "Hand\nbook"}, id="two-lines-as-name"),
        pytest.param({"name": ""}, id="empty-name"),
        pytest.param({"version": ""}, id="empty-version"),
    ],
)
def test_bad_label_is_refused_before_anything_is_written(label: dict[str, Any], folder: Path, tmp_path: Path):
    with pytest.raises(UsageError) as refusal:
        packaged(folder, **label)
    assert refusal.value.code == "E014"
    assert [path.name for path in tmp_path.iterdir()] == ["handbook"]


def test_any_line_of_text_is_a_name_but_not_always_one_of_a_file(folder: Path):
    label = Label(name="Großes Handbuch 📖 / 2026", version="next")
    assert packaged(folder, name=label.name, version=label.version).manifest.name == label.name
    with pytest.raises(UsageError) as refusal:
        make_package(folder, None, label=label, dated=None)
    assert (refusal.value.code, "-o" in refusal.value.message) == ("E014", True)


# ── what is packaged ───────────────────────────────────────────────────────────────────────────────


def test_package_installs_what_was_in_the_folder(folder: Path, tmp_path: Path):
    unpack(packaged(folder).path, tmp_path / "unpacked", SourcesSettings())
    (tmp_path / "unpacked/manifest.json").unlink()
    assert read_files(tmp_path / "unpacked") == read_files(folder)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("kb.zip", id="at-the-top"),
        pytest.param("dist/kb.zip", id="in-a-folder"),
        pytest.param("guides/../kb.zip", id="by-a-detour"),
        pytest.param("../handbook/kb.zip", id="from-outside"),
    ],
)
def test_output_inside_the_folder_is_not_packaged_into_itself(output: str, folder: Path):
    first = packaged(folder, folder / output)
    second = packaged(folder, folder / output)
    assert sorted(second.manifest.files) == sorted(SMALL_KB)
    assert second.sha256 == first.sha256


def test_folder_one_is_in_is_packaged_like_any_other(folder: Path, tmp_path: Path):
    write_files(folder, {".git/HEAD": "ref: refs/heads/main\n"})
    by_name = packaged(folder, tmp_path / "one.zip")
    with contextlib.chdir(folder):
        from_inside = make_package(Path(), tmp_path / "two.zip", label=Label(name="handbook"), dated=None)
    assert sorted(from_inside.manifest.files) == sorted(SMALL_KB)
    assert from_inside.sha256 == by_name.sha256


def test_folder_one_is_in_may_hold_the_output_and_an_earlier_manifest(folder: Path, tmp_path: Path):
    packaged(folder, tmp_path / "one.zip", name="kb")
    unpack(tmp_path / "one.zip", tmp_path / "unpacked", SourcesSettings())
    with contextlib.chdir(tmp_path / "unpacked"):
        first = make_package(Path(), None, label=Label(), dated=None)
        second = make_package(Path(), None, label=Label(), dated=None)
    assert sorted(second.manifest.files) == sorted(SMALL_KB)
    assert first.sha256 == second.sha256


def test_without_an_output_the_package_is_named_after_its_label(folder: Path, tmp_path: Path):
    with contextlib.chdir(tmp_path):
        report = make_package(folder, None, label=Label(version="1.2.3"), dated=None)
    assert report.path == Path("handbook-1.2.3.zip")
    assert (tmp_path / "handbook-1.2.3.zip").is_file()
    assert (tmp_path / "handbook-1.2.3.zip.sha256").is_file()


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({".git/HEAD": "x", ".git/objects/00/1": "x"}, id="git"),
        pytest.param({".git": "gitdir: ../.git/worktrees/kb\n"}, id="git-worktree"),
        pytest.param({".hg/x": "x", ".svn/x": "x"}, id="other-version-control"),
        pytest.param({".pair-install.jsonl": "{}", ".pair-entry.json": "{}"}, id="own-files"),
    ],
)
def test_version_control_and_pairs_own_files_stay_out(files: dict[str, str | bytes], folder: Path):
    assert sorted(packaged(write_files(folder, files)).manifest.files) == sorted(SMALL_KB)


def test_hidden_files_and_files_named_like_pairs_own_further_down_are_packaged(folder: Path):
    others = {".hidden": "x", ".config/x": "x", ".gitignore": "x", "guides/.pair-install.jsonl": "x"}
    assert sorted(packaged(write_files(folder, dict(others))).manifest.files) == sorted([*SMALL_KB, *others])


def test_links_that_lead_nowhere_or_out_are_skipped_with_a_reason(folder: Path, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "out.md").symlink_to(tmp_path / "secret.txt")
    (folder / "dangling.md").symlink_to("nowhere.md")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "folder").symlink_to("guides")
    os.mkfifo(folder / "pipe")
    report = packaged(folder)
    reason = "link out of the folder, to a folder, or to nothing"
    assert report.skipped == (
        ("dangling.md", reason),
        ("folder", reason),
        ("loop.md", reason),
        ("out.md", reason),
        ("pipe", "not a file"),
    )
    assert sorted(report.manifest.files) == sorted(SMALL_KB)


def test_link_to_a_file_inside_is_packaged_as_that_file(folder: Path):
    (folder / "start.md").symlink_to("README.md")
    report = packaged(folder)
    assert report.skipped == ()
    assert report.manifest.files["start.md"] == report.manifest.files["README.md"]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([b"a\\b.md"], id="backslash"),
        pytest.param([b"a\nb.md"], id="newline"),
        pytest.param([b"con.md"], id="windows-device"),
        pytest.param([b"a."], id="trailing-dot"),
        pytest.param([b"a\xff.md"], id="not-unicode"),
        pytest.param([b"A.md", b"a.md"], id="case"),
        pytest.param([b"Docs/a.md", b"docs/b.md"], id="case-of-folders"),
        pytest.param(["caf\u00e9.md".encode(), "cafe\u0301.md".encode()], id="composed-and-decomposed"),
        pytest.param(["caf\u00e9/a.md".encode(), "cafe\u0301/b.md".encode()], id="composed-and-decomposed-folders"),
        pytest.param([b".pair-install.jsonl/a.md"], id="own-record-as-folder"),
    ],
)
def test_names_that_cannot_be_installed_are_not_packaged(names: list[bytes], folder: Path, tmp_path: Path):
    for name in names:
        write_files(folder, {os.fsdecode(name): "x"})
    with pytest.raises(UsageError) as refusal:
        packaged(folder)
    assert refusal.value.code == "E014"
    assert [path.name for path in tmp_path.iterdir()] == ["handbook"]


def several_small_files(folder: Path) -> None:
    write_files(folder, {f"{number}.bin": bytes(MEBIBYTE // 2) for number in range(8)})


def one_large_file(folder: Path) -> None:
    write_files(folder, {"zeros.bin": bytes(8 * MEBIBYTE)})


def large_file_that_begins_with_noise(folder: Path) -> None:
    write_files(folder, {"disk.img": random.Random(1).randbytes(MEBIBYTE)})
    os.truncate(folder / "disk.img", 130 * MEBIBYTE)


@pytest.mark.parametrize("fill", [one_large_file, several_small_files, large_file_that_begins_with_noise])
def test_very_compressible_content_stays_installable(fill, tmp_path: Path):
    (tmp_path / "kb").mkdir()
    fill(tmp_path / "kb")
    report = packaged(tmp_path / "kb")
    assert unpack(report.path, tmp_path / "unpacked", SourcesSettings()).keys() == {
        "manifest.json",
        *report.manifest.files,
    }


def test_text_is_compressed(tmp_path: Path):
    folder = write_files(tmp_path / "kb", {"a.md": "a line of text\n" * 1000})
    assert packaged(folder).size_bytes < 2000


@pytest.mark.parametrize("files", [pytest.param({}, id="empty"), pytest.param({".git/HEAD": "x"}, id="only-git")])
def test_folder_without_files_is_not_a_knowledge_base(files: dict[str, str | bytes], tmp_path: Path):
    (tmp_path / "kb").mkdir()
    write_files(tmp_path / "kb", files)
    with pytest.raises(NotFoundError) as refusal:
        packaged(tmp_path / "kb")
    assert refusal.value.code == "E012"


def test_missing_folder_is_reported(tmp_path: Path):
    with pytest.raises(NotFoundError) as refusal:
        packaged(tmp_path / "missing")
    assert refusal.value.code == "E003"


# ── the files written ──────────────────────────────────────────────────────────────────────────────


def test_checksum_beside_the_package_is_that_of_its_bytes(folder: Path, tmp_path: Path):
    report = packaged(folder)
    digest = sha256((tmp_path / "kb.zip").read_bytes())
    assert (tmp_path / "kb.zip.sha256").read_text() == f"{digest}  kb.zip\n"
    assert report.sha256 == digest
    assert report.size_bytes == (tmp_path / "kb.zip").stat().st_size


def test_folders_above_the_output_are_made_and_nothing_else_is_left(folder: Path, tmp_path: Path):
    packaged(folder, tmp_path / "dist/new/kb.zip")
    assert sorted(path.name for path in (tmp_path / "dist/new").iterdir()) == ["kb.zip", "kb.zip.sha256"]


def test_earlier_package_is_replaced_with_its_checksum(folder: Path, tmp_path: Path):
    first = packaged(folder, version="1.0.0")
    second = packaged(folder, version="1.1.0")
    assert first.sha256 != second.sha256
    assert sha256((tmp_path / "kb.zip").read_bytes()) == second.sha256
    assert (tmp_path / "kb.zip.sha256").read_text().startswith(second.sha256)


def test_report_tells_what_was_made(folder: Path, tmp_path: Path):
    report = packaged(folder, name="kb", version="1.2.3")
    assert report.to_json() == {
        "path": str(tmp_path / "kb.zip"),
        "sha256_path": str(tmp_path / "kb.zip.sha256"),
        "name": "kb",
        "version": "1.2.3",
        "files": 3,
        "index": None,
        "size_bytes": report.size_bytes,
        "sha256": report.sha256,
        "skipped": [],
        "signed_by": None,
        "signature_path": None,
    }


def test_package_is_a_plain_zip_that_any_tool_can_read(folder: Path):
    with zipfile.ZipFile(io.BytesIO(packaged(folder).path.read_bytes())) as opened:
        assert opened.testzip() is None


# ── another schema ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("schema_version", [2, 0, "1", None, [1]])
def test_a_manifest_of_another_schema_is_refused_with_any_content(schema_version: Any):
    with pytest.raises(DownloadError) as caught:
        parse_manifest(json.dumps({"schema_version": schema_version, "content_checksum": "sha512:0"}).encode())
    assert caught.value.code == "E018"


def test_the_description_of_the_index_in_a_package_is_read_back():
    index = PackagedIndex("default", 7, "ngram-384-v1", 384, 43, 120, 2)
    manifest = PackageManifest("handbook", "1.0.0", index=index)
    assert parse_manifest(json.dumps(manifest.to_json()).encode()) == manifest


@pytest.mark.parametrize("changes", [{"description": 7}, {"files": {"a.md": {"size": 4, "sha256": None}}}])
def test_a_manifest_with_a_value_of_the_wrong_type_is_refused_as_damaged(changes: dict[str, Any]):
    with pytest.raises(DownloadError) as refusal:
        parse_manifest(sound_manifest(**changes))
    assert refusal.value.code == "E006"
