"""The hostile archives through the real command: exit 2, E009, nothing written."""

from pathlib import Path

import pytest

from support.command import Workplace, read_files, write_files
from support.hostile import BOMBS, COLLISIONS, CORPUS, DAMAGE, KINDS, NAMES, Hostile
from support.kbs import SMALL_KB, SMALL_KB_BYTES

MAY_REMAIN = {"project/.pair", "project/.pair/.knowledge.lock"}


def everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def by_id(hostile: Hostile) -> str:
    return hostile.id


@pytest.mark.rule("source-15")
@pytest.mark.rule("source-19")
@pytest.mark.parametrize("hostile", CORPUS, ids=by_id)
def test_hostile_archive_is_refused_and_nothing_is_written(hostile: Hostile, workplace: Workplace, tmp_path: Path):
    (workplace.folder / "x.zip").write_bytes(hostile.build())
    before = everything_below(tmp_path)
    done = workplace.pair("install", "--source", "./x.zip", "--json")
    assert done.error_code == "E009", done.stdout
    assert done.status == 2
    assert not workplace.target.exists()
    assert everything_below(tmp_path) - before <= MAY_REMAIN


@pytest.mark.rule("source-15")
@pytest.mark.rule("source-18")
@pytest.mark.parametrize("hostile", [NAMES[0], KINDS[1], COLLISIONS[3], BOMBS[4], DAMAGE[14]], ids=by_id)
def test_hostile_update_leaves_what_was_installed(hostile: Hostile, workplace: Workplace, tmp_path: Path):
    write_files(workplace.folder / "kb", SMALL_KB)
    assert workplace.pair("install", "--source", "./kb").status == 0
    (workplace.folder / "x.zip").write_bytes(hostile.build())
    before = everything_below(tmp_path)
    workplace.pair("update", "--source", "./x.zip", "--force", "--json").fails(2, "E009")
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert everything_below(tmp_path) == before
    assert workplace.pair("verify", workplace.target).status == 0


@pytest.mark.rule("source-15")
def test_dry_run_refuses_a_hostile_archive_too(workplace: Workplace, tmp_path: Path):
    (workplace.folder / "x.zip").write_bytes(NAMES[0].build())
    before = everything_below(tmp_path)
    workplace.pair("install", "--source", "./x.zip", "--dry-run", "--json").fails(2, "E009")
    assert everything_below(tmp_path) == before


@pytest.mark.rule("source-15")
@pytest.mark.rule("source-20")
def test_refusal_says_what_is_wrong_with_the_archive(workplace: Workplace):
    (workplace.folder / "x.zip").write_bytes(NAMES[0].build())
    done = workplace.pair("install", "--source", "./x.zip")
    assert done.stderr.startswith(
        "Error: Cannot unpack x.zip: it is unreadable or unsafe.\n\n"
        "Nothing was unpacked: path leads out of the archive: '../evil'.\n\nSuggestions:\n"
    )
