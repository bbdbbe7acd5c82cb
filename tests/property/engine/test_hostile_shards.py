"""Untrusted shards, manifests and exports: read, or refused with a code, in bounded memory and time.

`HYPOTHESIS_PROFILE=nightly` tries a hundred times as many.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.damage import IS_NIGHTLY

CASES = 3000 if IS_NIGHTLY else 25
"""The number of cases of each part."""
PARTS = 4 if IS_NIGHTLY else 2
SECONDS = 7200 if IS_NIGHTLY else 600


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_untrusted_change_is_read_or_refused_with_a_code(tmp_path: Path, part: int) -> None:
    """The inputs run in a separate process with little memory. Its last number names the input that killed it."""
    begin = part * CASES
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile_shards", str(tmp_path), str(begin), str(begin + CASES)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    last = (tmp_path / "number").read_text() if (tmp_path / "number").exists() else "none"
    assert done.returncode == 0, f"{done.returncode} at number {last}\n{done.stdout}\n{done.stderr[-2000:]}"
    assert last == str(begin + CASES - 1)
