"""Folders in which pair works: a link is refused, and its target is not changed."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pair import errors, files
from support.canary import CANARY, snapshot
from support.command import write_files


def work_in(folder: Path) -> list[Callable[[], object]]:
    """Perform the file operations of pair in a folder, with the names of the canary."""

    def write(path: Path) -> None:
        os.close(files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

    def scratch() -> None:
        with files.scratch_folder(folder) as place:
            (place / "x").write_text("x")

    def lock() -> None:
        with files.exclusive_lock(folder / "a.md", on_wait=lambda holder: None):
            pass

    return [
        lambda: files.write_atomically(folder / "a.md", b"new"),
        lambda: files.write_together((folder / "a.md", b"new"), (folder / "sub" / "b.md", b"new")),
        lambda: files.write_new_file(folder / "new.md", [b"new"]),
        lambda: files.remove_half_written(folder / "a.md"),
        lambda: files.remove_tree(folder / "sub"),
        lambda: files.make_folder(folder / "made"),
        lambda: files.unlink(folder / "a.md"),
        lambda: files.rename(folder / "sub", folder / "moved"),
        lambda: files.remove_empty_folder(folder / "sub"),
        lambda: write(folder / "a.md"),
        scratch,
        lock,
    ]


STEPS = range(len(work_in(Path())))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("below", ["", "deep/er"], ids=["last", "middle"])
@pytest.mark.parametrize("leads_to", ["folder", "file", "nothing", "itself"])
def test_a_link_is_refused_with_its_name(step: int, below: str, leads_to: str, canary: Path, tmp_path: Path) -> None:
    link = tmp_path / "work" / "link"
    link.parent.mkdir()
    targets = {"folder": canary, "file": canary / "a.md", "nothing": tmp_path / "nothing", "itself": link}
    link.symlink_to(targets[leads_to])
    with pytest.raises(errors.StorageError) as caught, files.storage_errors():
        work_in(link / below)[step]()
    assert (caught.value.code, caught.value.details) == ("E025", {"path": str(link)})
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["a.md", "lock", "index.txt"])
def test_a_link_in_the_place_of_a_file_is_neither_followed_nor_replaced(
    name: str, canary: Path, tmp_path: Path
) -> None:
    link = tmp_path / name
    link.symlink_to(canary / "a.md")
    writes: list[Callable[[], object]] = [
        lambda: files.write_atomically(link, b"new"),
        lambda: files.open_file(link, os.O_RDWR | os.O_CREAT | os.O_TRUNC),
        lambda: files.exclusive_lock(link, on_wait=lambda holder: None).__enter__(),
    ]
    for write in writes:
        with pytest.raises(errors.StorageError) as caught, files.storage_errors():
            write()
        assert caught.value.code == "E025"
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == sorted([name, "canary"])


# Lets a folder and a link trade places, in one step each time, until it is ended.
SWAPPING = """
import ctypes, os, sys
library = ctypes.CDLL(None)
place, link = map(os.fsencode, sys.argv[1:])
print("ready", flush=True)
while library.renameat2(-100, place, -100, link, 2) == 0:
    pass
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets two names trade places")
def test_a_link_swapped_in_between_check_and_use_is_never_followed(canary: Path, tmp_path: Path) -> None:
    place, link = tmp_path / "work" / "place", tmp_path / "work" / "link"
    write_files(place, CANARY)
    link.symlink_to(canary)
    before = snapshot(canary)
    real = os.open(place, os.O_RDONLY)
    outcomes = {"done": 0, "refused": 0}
    with subprocess.Popen([sys.executable, "-c", SWAPPING, place, link], stdout=subprocess.PIPE, text=True) as swapping:
        assert swapping.stdout is not None
        assert swapping.stdout.readline() == "ready\n"
        try:
            for number in range(1000):
                write_files(Path(f"/proc/self/fd/{real}"), CANARY)
                try:
                    work_in(place)[number % len(STEPS)]()
                    outcomes["done"] += 1
                except OSError:
                    outcomes["refused"] += 1
            assert swapping.poll() is None, "it swapped to the end"
        finally:
            swapping.kill()
            os.close(real)
    assert outcomes["done"] > 0
    assert outcomes["refused"] > 0
    assert snapshot(canary) == before


def test_a_hard_link_to_a_file_of_the_user_is_not_written_through(canary: Path, tmp_path: Path) -> None:
    for name in ("index.txt", "journal", "lock"):
        os.link(canary / "a.md", tmp_path / name)
    files.write_atomically(tmp_path / "index.txt", b"new")
    assert (tmp_path / "index.txt").read_bytes() == b"new"
    writes: list[Callable[[], object]] = [
        lambda: files.open_file(tmp_path / "journal", os.O_WRONLY | os.O_APPEND),
        lambda: files.exclusive_lock(tmp_path / "lock", on_wait=lambda holder: None).__enter__(),
    ]
    for write in writes:
        with pytest.raises(errors.StorageError) as caught, files.storage_errors():
            write()
        assert caught.value.code == "E026"


def test_a_lock_file_with_content_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.lock").write_text("mine\n")
    with (
        pytest.raises(errors.StorageError) as caught,
        files.storage_errors(),
        files.exclusive_lock(tmp_path / "notes.lock", on_wait=lambda holder: None),
    ):
        pass
    assert caught.value.code == "E026"
    assert (tmp_path / "notes.lock").read_text() == "mine\n"


def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="Too many links"):
        files.open_file(tmp_path / "lock", os.O_RDWR)


def test_predictable_names_of_temporary_files_are_not_used(canary: Path, tmp_path: Path) -> None:
    (tmp_path / f".index.txt.{os.getpid()}.tmp").symlink_to(canary / "a.md")
    (tmp_path / "source").write_bytes(b"new")
    files.write_atomically(tmp_path / "index.txt", b"new")
    files.copy_atomically(tmp_path / "source", tmp_path / "index.txt")
    with files.replace_file(tmp_path / "index.txt") as stream:
        stream.write(b"newer")
    assert (tmp_path / "index.txt").read_bytes() == b"newer"


def test_only_abandoned_folders_with_the_names_of_scratch_folders_are_removed(tmp_path: Path) -> None:
    kept = {"mine/a.md": "a", "tmpabcdefgh/b.md": "b", "scratch-1/c.md": "c", "scratch-0123456789ABCDEF/d.md": "d"}
    write_files(tmp_path, {**kept, "scratch-0123456789abcdef/gone.md": "e"})
    with files.scratch_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with files.scratch_folder(tmp_path):
            assert folder.exists(), "its lock is held"
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")} == kept.keys()
    assert not (tmp_path / "scratch-0123456789abcdef").exists()


def test_a_deep_tree_with_closed_folders_and_links_is_removed_and_the_links_are_not_followed(
    canary: Path, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    top.mkdir()
    with contextlib.chdir(top):
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        Path("link").symlink_to(canary)
    write_files(top / "closed" / "inner", {"a.md": "a"})
    (top / "link").symlink_to(canary)
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0)
    files.remove_tree(top)
    assert not top.exists()


def test_a_folder_on_another_file_system_works_the_same(canary: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == canary.stat().st_dev:
        pytest.skip("there is no second file system")
    with files.scratch_folder(shared / f"pair-test-{os.getpid()}") as place:
        (place / "link").symlink_to(canary)
        files.write_atomically(place / "a.md", b"new")
        with pytest.raises(OSError, match="symbolic links"):
            files.write_atomically(place / "link" / "a.md", b"new")
    files.remove_tree(shared / f"pair-test-{os.getpid()}")
    assert not (shared / f"pair-test-{os.getpid()}").exists()


def test_folders_that_may_be_passed_but_not_listed_are_passed(tmp_path: Path) -> None:
    (tmp_path / "closed" / "open").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o311)
    script = "import sys; from pathlib import Path; from pair import files; "
    script += "files.write_atomically(Path(sys.argv[1]), b'x')"
    command = [sys.executable, "-c", script, str(tmp_path / "closed" / "open" / "a.md")]
    if os.geteuid() == 0:
        dropped = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", *command]
    subprocess.run(command, check=True)
    (tmp_path / "closed").chmod(0o755)
    assert (tmp_path / "closed" / "open" / "a.md").read_bytes() == b"x"


def test_an_absolute_path_is_followed_and_a_relative_one_may_have_no_link(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(canary)
    assert files.resolve(tmp_path / "link" / "sub") == canary / "sub"
    assert files.expand_path(str(tmp_path / "link")) == canary
    with contextlib.chdir(tmp_path):
        assert files.resolve(Path("canary/sub/../new")) == canary / "new"
        assert files.expand_path("link") == Path("link")
        for named in ("link", "link/sub", "canary/../link/sub"):
            with pytest.raises(OSError, match="symbolic links") as caught:
                files.resolve(Path(named))
            assert caught.value.errno == errno.ELOOP


def test_the_holder_of_a_locked_folder_is_named_and_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    is_locked, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with files.lock_folder(tmp_path, on_wait=said.append):
            is_locked.set()
            may_end.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_locked.wait(60)

    def go_on(who: str) -> None:
        said.append(who)
        may_end.set()

    with files.lock_folder(tmp_path, on_wait=go_on):
        assert said == [f"process {os.getpid()}"]
    holder.join()
    assert os.listdir(tmp_path) == []


def test_a_lock_of_a_folder_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from pair import files\n"
        "with files.lock_folder(Path(sys.argv[1]), on_wait=print):\n    print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    begun = time.monotonic()
    with files.lock_folder(tmp_path, on_wait=lambda holder: None):
        assert time.monotonic() - begun < 60
