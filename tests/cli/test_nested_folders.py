"""Folders in folders, deeper than Python's own functions go."""

import os
import subprocess

from support.command import Workplace, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES


def test_files_below_too_many_folders_are_left_out_and_reported(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    deep = "/".join(["a"] * 1200)
    os.makedirs(workplace.folder / "kb" / "a")  # noqa: PTH103 - as below
    folder = os.open(workplace.folder / "kb" / "a", os.O_RDONLY)
    for _ in range(1198):  # by descriptors: Python's own functions do not get so deep
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)
    try:
        done = workplace.pair("install", "--source", "./kb", "--json")
        packaged = workplace.pair("package", "kb", "-o", "kb.zip", "--json")
    finally:
        subprocess.run(["rm", "-rf", workplace.folder / "kb"], check=True)
    assert (done.status, packaged.status) == (0, 0), done.stdout + packaged.stdout
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert done.json["skipped"] == packaged.json["skipped"] == [{"path": deep, "reason": "below too many folders"}]
