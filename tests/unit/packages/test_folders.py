"""Replacement of a folder: readers see the new or the old one, never a mixture."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pair.packages.folders import clear_leftovers, make_staging, put_in_place, staging_path
from support.command import write_files

pytestmark = pytest.mark.rule("source-18")

OLD = {"a.md": b"old a", "docs/b.md": b"old b", "gone.md": b"old gone"}
NEW = {"a.md": b"new a", "docs/b.md": b"new b", "docs/c.md": b"new c", "fresh.md": b"new fresh"}
SPECIAL = (
    "with space",
    " leading space",
    "-dash",
    "tab\there",
    "new\nline",
    "\n",
    "quote'\"",
    "star*[x]?",
    "größe 日本語",
    "back\\slash",
    "moving",
    "old",
    "new",
    "~",
    os.fsdecode(b"not-utf-8-\xff"),
)


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_files(folder, dict(files))


def replace(target: Path, files: dict[str, bytes]) -> None:
    put_in_place(write(make_staging(target, "0123456789ab"), files), target)


# ── put in place ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, NEW), (OLD, NEW), (OLD, {}), ({}, NEW)],
    ids=["absent", "replaced", "emptied", "filled"],
)
def test_target_is_replaced_whole(before: dict[str, bytes] | None, after: dict[str, bytes], tmp_path: Path):
    if before is not None:
        write(tmp_path / "kb", before)
    replace(tmp_path / "kb", after)
    assert content_of(tmp_path / "kb") == after
    assert os.listdir(tmp_path) == ["kb"]


def test_new_folder_is_staged_beside_the_target(tmp_path: Path):
    assert make_staging(tmp_path / "kb", "0123456789ab").parent == staging_path(tmp_path / "kb", "0123456789ab")
    assert staging_path(tmp_path / "kb", "0123456789ab").parent == tmp_path
    assert not (tmp_path / "kb").exists()


@pytest.mark.parametrize("where", [pytest.param(".", id="in-it"), pytest.param("docs", id="below-it")])
def test_a_shell_in_the_target_folder_stays_there(where: str, tmp_path: Path):
    target = write(tmp_path / "kb", OLD)
    before = target.stat().st_ino
    with contextlib.chdir(target / where):
        assert staging_path(target, "0123456789ab").parent == target
        replace(target, NEW)
    assert target.stat().st_ino == before
    assert content_of(target) == NEW
    assert os.listdir(tmp_path) == ["kb"]
    assert sorted(os.listdir(target)) == ["a.md", "docs", "fresh.md"]


@pytest.mark.parametrize("name", SPECIAL, ids=ascii)
@pytest.mark.parametrize("inside", [pytest.param(False, id="at-once"), pytest.param(True, id="entry-by-entry")])
def test_special_names_are_replaced(name: str, inside: bool, tmp_path: Path):
    target = write(tmp_path / "kb", {name: b"old"})
    with contextlib.chdir(target if inside else tmp_path):
        replace(target, {f"{name}/page.md": b"new", f"{name}2": b"new"})
    assert content_of(target) == {f"{name}/page.md": b"new", f"{name}2": b"new"}


@pytest.mark.parametrize("name", SPECIAL, ids=ascii)
@pytest.mark.parametrize("inside", [pytest.param(False, id="at-once"), pytest.param(True, id="entry-by-entry")])
def test_target_may_have_a_special_name(name: str, inside: bool, tmp_path: Path):
    target = write(tmp_path / name, OLD)
    with contextlib.chdir(target if inside else tmp_path):
        replace(target, NEW)
    assert content_of(target) == NEW
    assert os.listdir(tmp_path) == [name]


def test_links_are_replaced_and_not_followed(tmp_path: Path):
    write(tmp_path / "elsewhere", OLD)
    target = write(tmp_path / "kb", {})
    (target / "a.md").symlink_to(tmp_path / "elsewhere" / "a.md")
    (target / "docs").symlink_to(tmp_path / "elsewhere" / "docs")
    with contextlib.chdir(target):
        replace(target, NEW)
    assert content_of(target) == NEW
    assert content_of(tmp_path / "elsewhere") == OLD


# ── what a killed run leaves ───────────────────────────────────────────────────────────────────────

# Exits just before its n-th rename or removal, as if it were killed there.
DYING = """
import os, sys
from pathlib import Path
from pair.packages import folders

left, action, target, staging = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])

def die_in_time(event, _):
    global left
    if event in {"os.rename", "os.remove", "os.rmdir"}:
        if left == 0:
            os._exit(9)
        left -= 1

sys.addaudithook(die_in_time)
if action == "move":
    folders._move_entries(staging, target)
else:
    folders.clear_leftovers(target)
"""
STEPS = range(16)
homes = pytest.mark.parametrize(
    "home", [pytest.param("", id="staged-beside-the-target"), pytest.param("kb", id="staged-inside-the-target")]
)


def dies(action: str, step: int, target: Path, staging: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", DYING, str(step), action, target, staging], check=False)
    assert done.returncode in {0, 9}
    return done.returncode == 9


@homes
@pytest.mark.parametrize("step", STEPS)
def test_move_that_was_cut_off_is_undone_or_was_finished(step: int, home: str, tmp_path: Path):
    target, staging = write(tmp_path / "kb", OLD), tmp_path / home / ".kb.staging-00000000dead"
    write(staging / "new", NEW)
    has_died = dies("move", step, target, staging)
    clear_leftovers(target)
    assert content_of(target) == (OLD if has_died else NEW)
    assert os.listdir(tmp_path) == ["kb"]
    assert sorted(os.listdir(target)) == sorted({path.partition("/")[0] for path in (OLD if has_died else NEW)})


@pytest.mark.parametrize("step", STEPS)
def test_undoing_that_was_cut_off_itself_is_finished_by_the_next(step: int, tmp_path: Path):
    target, staging = write(tmp_path / "kb", OLD), tmp_path / ".kb.staging-00000000dead"
    write(staging / "new", NEW)
    assert dies("move", 7, target, staging)
    dies("clear", step, target, staging)
    clear_leftovers(target)
    assert content_of(target) == OLD
    assert os.listdir(tmp_path) == ["kb"]


@pytest.mark.parametrize("name", SPECIAL, ids=ascii)
@pytest.mark.parametrize("step", [3, 4, 5], ids=["before-the-first-comes", "between", "after-the-last-came"])
def test_undoing_brings_special_names_back(step: int, name: str, tmp_path: Path):
    old, new = {f"{name}/page.md": b"old"}, {f"{name}/page.md": b"new", f"{name}2": b"new"}
    target, staging = write(tmp_path / "kb", old), tmp_path / ".kb.staging-00000000dead"
    write(staging / "new", new)
    assert dies("move", step, target, staging)
    clear_leftovers(target)
    assert content_of(target) == old
    assert os.listdir(target) == [name]


@homes
def test_folder_that_was_only_being_filled_is_removed(home: str, tmp_path: Path):
    target = write(tmp_path / "kb", OLD)
    write(tmp_path / home / ".kb.staging-00000000dead" / "new", NEW)
    write(tmp_path / home / ".kb.staging-00000000dead-unpacked", NEW)
    clear_leftovers(target)
    assert content_of(target) == OLD
    assert os.listdir(tmp_path) == ["kb"]


def test_old_files_that_were_only_to_be_removed_do_not_come_back(tmp_path: Path):
    target = write(tmp_path / "kb", NEW)
    write(tmp_path / ".kb.staging-00000000dead" / "old", OLD)
    clear_leftovers(target)
    assert content_of(target) == NEW
    assert os.listdir(tmp_path) == ["kb"]


def test_leftovers_without_a_target_are_removed(tmp_path: Path):
    write(tmp_path / ".kb.staging-00000000dead" / "new", NEW)
    clear_leftovers(tmp_path / "kb")
    assert os.listdir(tmp_path) == []


def test_leftovers_of_other_folders_are_not_removed(tmp_path: Path):
    others = {".other.staging-1/new/a.md": b"x", "kb.staging-2/a.md": b"x", ".kb.lock": b"", ".kbstaging-3": b""}
    write(tmp_path, others)
    write(tmp_path / "kb", OLD)
    clear_leftovers(tmp_path / "kb")
    assert content_of(tmp_path) == others | {f"kb/{path}": content for path, content in OLD.items()}


def test_clearing_a_missing_folder_is_no_error(tmp_path: Path):
    clear_leftovers(tmp_path / "missing" / "kb")
    assert os.listdir(tmp_path) == []
