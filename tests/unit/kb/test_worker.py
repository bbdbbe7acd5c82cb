"""The shard cache of a worker without a folder in its setup."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "from pair.errors import PairError\nfrom pair.kb.runners import _open_shared_cache\n"
SCRIPT += "try:\n    print(_open_shared_cache())\nexcept PairError as error:\n    print(error.code)"


def shared_cache(temporary: Path) -> str:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


def test_the_shared_cache_belongs_to_one_user(tmp_path: Path) -> None:
    folder = Path(shared_cache(tmp_path))
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_shared_cache_that_another_user_made_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = tmp_path / f"pair-cache-{os.getuid()}"
    folder.mkdir(mode=0o777)
    os.chown(folder, 12345, 12345)
    assert shared_cache(tmp_path) == "E026"


def test_a_link_in_the_place_of_the_shared_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"pair-cache-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert shared_cache(tmp_path) == "E025"
