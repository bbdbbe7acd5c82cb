"""Small files that claim to hold more data than any memory are refused by a process with little memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("bomb", "code"),
    [
        ("merge_a_graph", "E207"),
        ("copy_keywords", "E207"),
        ("import_packed_lines", "E225"),
        ("import_lines", "E225"),
        ("read_a_manifest", "E207"),
    ],
)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path, bomb: str, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.memory_bombs", bomb, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{code}\n"), done.stderr[-3000:]
