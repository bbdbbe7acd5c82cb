"""The lockfile as a value and as bytes."""

import os
from pathlib import Path

import msgspec
import pytest
import tomli_w

from pair import errors
from pair.packages.lockfile import Lock, Locked, LockedKb, lock_kb, make_relative, read_lock, to_bytes
from pair.packages.record import Record, RecordHeader
from pair.values import KbSource

KB = LockedKb(
    "default", ".pair/knowledge", "./dist/releases.json#handbook", "handbook", "1.0.0", "0a" * 32, "", "0b" * 32, "", 0
)
GIT = msgspec.structs.replace(
    KB, id="cookbook", target="docs/cookbook", source="https://host/kb.git#v1", archive_sha256="", commit="c1"
)


def written(path: Path, *kbs: LockedKb) -> Path:
    path.write_bytes(to_bytes(kbs))
    return path


def test_a_lock_round_trips_and_is_sorted_by_id(tmp_path: Path) -> None:
    lock = read_lock(written(tmp_path / "pair.lock", KB, GIT))
    assert lock.kbs == (GIT, KB)
    assert to_bytes(lock.kbs) == to_bytes([KB, GIT]) == (tmp_path / "pair.lock").read_bytes()


def test_a_lock_is_made_to_be_read_by_people() -> None:
    text = to_bytes([KB]).decode()
    assert text.startswith("# Which knowledge bases")
    assert text.partition("\n\n")[2] == (
        "version = 1\n\n[[kb]]\n"
        'id = "default"\ntarget = ".pair/knowledge"\nsource = "./dist/releases.json#handbook"\n'
        f'name = "handbook"\nversion = "1.0.0"\narchive_sha256 = "{"0a" * 32}"\n'
        f'content_sha256 = "{"0b" * 32}"\nembedder = ""\nmanifest_version = 0\n'
    )


def refusal_of(path: Path) -> str:
    with pytest.raises(errors.UsageError) as refused:
        read_lock(path)
    assert refused.value.code == "E023"
    assert str(path) in refused.value.message
    return refused.value.explanation


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "damaged"),
        (b"version = ", "damaged"),
        (b"", "version"),
        (b"version = 2", "a different version of pair wrote it: it has version 2"),
        (b"version = true", "version True"),
        (b"version = 1\nkb = [7]", "damaged"),
        (b"version = 1\na = " + b"[" * 10_000, "damaged"),
        (b"#" * (4 * 1024 * 1024 + 1), "longer"),
    ],
)
def test_an_invalid_lock_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "pair.lock").write_bytes(content)
    assert reason in refusal_of(tmp_path / "pair.lock")


@pytest.mark.parametrize(
    "fields",
    [
        *({"target": target} for target in ("../elsewhere", "/etc", "", ".", "a/../../b")),
        *({"target": target} for target in (".git/hooks", "a/.GIT/hooks", ".g\u200cit/hooks")),
        *({"id": ""}, {"source": "handbook"}, {"source": "a\nb"}, {"content_sha256": ""}, {"archive_sha256": "0a"}),
    ],
)
def test_a_table_with_an_invalid_field_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    (tmp_path / "pair.lock").write_text(tomli_w.dumps({"version": 1, "kb": [msgspec.structs.asdict(KB) | fields]}))
    assert "damaged" in refusal_of(tmp_path / "pair.lock")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (msgspec.structs.replace(GIT, id="default"), "are both the KB 'default'"),
        (msgspec.structs.replace(GIT, target=KB.target), "is both the KB 'default' and the KB 'cookbook'"),
    ],
)
def test_two_kbs_with_one_id_or_one_target_are_refused(tmp_path: Path, other: LockedKb, reason: str) -> None:
    tables = [msgspec.structs.asdict(kb) for kb in (KB, other)]
    (tmp_path / "pair.lock").write_text(tomli_w.dumps({"version": 1, "kb": tables}))
    assert reason in refusal_of(tmp_path / "pair.lock")


def test_a_target_outside_the_folder_of_the_lock_cannot_be_locked(tmp_path: Path) -> None:
    lock = tmp_path / "project" / "pair.lock"
    assert make_relative(tmp_path / "project" / "docs" / "kb", lock) == "docs/kb"
    for outside in (tmp_path / "elsewhere", tmp_path / "project", tmp_path):
        with pytest.raises(errors.UsageError, match="Cannot use the lock file"):
            make_relative(outside, lock)


def test_a_kb_is_found_by_its_target_however_that_is_written(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "pair.lock", (KB, GIT))
    assert lock.kb_at(tmp_path / "docs" / ".." / "docs" / "cookbook") == GIT
    assert lock.kb_at(tmp_path / "docs") is None


@pytest.mark.parametrize(
    ("location", "feed", "locked"),
    [
        ("{here}/kbs/a.zip", None, "./kbs/a.zip"),
        ("{here}/../shared/a.zip", None, "../shared/a.zip"),
        ("/nowhere/a.zip", None, "/nowhere/a.zip"),
        ("https://host/a.zip?key=1", None, "https://host/a.zip?key=1"),
        ("git@host:team/kb#v1", None, "git@host:team/kb#v1"),
        ("https://host/a.zip", "https://host/releases.json#a", "https://host/releases.json#a"),
        ("{here}/dist/a.zip", "{here}/dist/releases.json#a@1", "./dist/releases.json#a@1"),
    ],
)
def test_a_source_is_locked_so_that_it_is_found_elsewhere(
    tmp_path: Path, location: str, feed: str | None, locked: str
) -> None:
    here = str(tmp_path / "project")
    source = KbSource(
        "url",
        os.path.normpath(location.format(here=here)) if "here" in location else location,
        False,
        feed=feed.format(here=here) if feed else None,
    )
    header = RecordHeader(source, "a", "1", "", None, 1, 1, "", "", 0)
    assert lock_kb(Record(header, {}), Path(here) / "kb", Path(here) / "pair.lock").source == locked


def drifts(locked: tuple[str, str, str], found: tuple[str, str, str]) -> list[str]:
    names = ("archive_sha256", "commit", "content_sha256")
    kb = msgspec.structs.replace(KB, **dict(zip(names, locked, strict=True)))
    return Locked(Path("pair.lock"), kb).drifts(dict(zip(names, found, strict=True)))


def test_empty_fields_of_a_lock_are_not_compared() -> None:
    found = ("0a" * 32, "", "0b" * 32)
    assert drifts(("", "", "0b" * 32), found) == []
    assert drifts(("1a", "", "2b"), found) == [
        f"default: archive SHA-256: locked 1a, found {'0a' * 32}",
        f"default: content SHA-256: locked 2b, found {'0b' * 32}",
    ]
    assert drifts(("1a", "", ""), ("", "c", "x")) == ["default: archive SHA-256: locked 1a, found none"]
