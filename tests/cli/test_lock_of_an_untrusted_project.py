"""A lock of an untrusted project installs nothing outside the project."""

import threading
from pathlib import Path

import pytest

from pair import errors
from pair.packages.lockfile import refuse_links
from support.command import Workplace, read_files, write_files
from support.kbs import SMALL_KB

LINK_REFUSED = {(1, "E023"), (3, "E025")}
"""Expect a refusal by the check of the lock or by the first access to the folder."""
CANARY: dict[str, str | bytes] = {"README.md": "mine", "keys/id": "secret"}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write_files(tmp_path / "outside", CANARY)


@pytest.fixture
def project(workplace: Workplace) -> Workplace:
    """Return a project with a lock for `docs/deep/kb` and no installed KB."""
    write_files(workplace.folder / "kb", SMALL_KB)
    assert workplace.pair("install", "docs/deep/kb", "--source", "./kb").status == 0
    assert workplace.pair("lock", "docs/deep/kb").status == 0
    (workplace.folder / "docs").rename(workplace.folder.parent / "installed")
    return workplace


def put_link(project: Workplace, at: str, to: Path | str) -> None:
    path = project.folder / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


@pytest.mark.parametrize("at", ["docs", "docs/deep", "docs/deep/kb"])
@pytest.mark.parametrize("force", [[], ["--force"], ["--dry-run"]], ids=["plain", "force", "dry run"])
def test_a_locked_install_follows_no_link_out_of_the_project(
    project: Workplace, outside: Path, at: str, force: list[str]
) -> None:
    put_link(project, at, outside)
    before = read_files(outside)
    done = project.pair("install", "--locked", *force, "--json")
    assert (done.status, done.error_code) in LINK_REFUSED, done.stdout
    assert at.rsplit("/", maxsplit=1)[-1] in done.json["error"]["message"] + done.json["error"]["explanation"]
    assert read_files(outside) == before


@pytest.mark.parametrize(
    "to", ["../project/elsewhere", "nowhere", "kb", "docs/deep"], ids=["inside", "none", "self", "loop"]
)
def test_a_locked_install_follows_no_link_at_all(project: Workplace, to: str) -> None:
    put_link(project, "docs/deep", to)
    done = project.pair("install", "--locked", "--json")
    assert (done.status, done.error_code) in LINK_REFUSED, done.stdout
    assert not (project.folder / "elsewhere").exists()


def test_a_file_on_the_way_is_refused(project: Workplace) -> None:
    write_files(project.folder, {"docs": "a file"})
    project.pair("install", "--locked", "--json").fails(1, "E023")
    assert (project.folder / "docs").read_text() == "a file"


def test_a_target_behind_a_link_cannot_be_locked(workplace: Workplace, outside: Path) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    assert workplace.pair("install", outside / "kb", "--source", "./kb").status == 0
    (workplace.folder / "docs").symlink_to(outside)
    workplace.pair("lock", "docs/kb", "--json").fails(1, "E023")
    assert not (workplace.folder / "pair.lock").exists()


def test_the_folder_of_the_lock_may_be_reached_through_a_link(project: Workplace, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(project.folder)
    project.pair("install", "--locked", "--lock-file", tmp_path / "linked" / "pair.lock").succeeds()
    assert (project.folder / "docs" / "deep" / "kb" / "README.md").exists()


def test_a_link_that_comes_and_goes_is_refused_or_not_there(tmp_path: Path) -> None:
    folder, link = tmp_path / "docs", tmp_path / "link"
    folder.mkdir()
    (tmp_path / "outside" / "kb").mkdir(parents=True)
    link.symlink_to(tmp_path / "outside")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            folder.rename(tmp_path / "aside")
            link.rename(folder)
            folder.rename(link)
            (tmp_path / "aside").rename(folder)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(1000):
            try:
                refuse_links(tmp_path / "docs" / "kb", tmp_path / "pair.lock")
            except errors.UsageError as refusal:
                assert refusal.code == "E023"  # noqa: PT017 - it may be raised or not
    finally:
        is_over.set()
        swapping.join()
