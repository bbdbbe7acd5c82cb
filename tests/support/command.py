"""The real command in a separate process and folder."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.prepared import PREPARED
from support.trust import trust_folder

PAIR = (sys.executable, "-m", "pair")


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error_code(self) -> str:
        return str(self.json["error"]["code"])

    def succeeds(self) -> "Outcome":
        """Assert that the command exited with status 0."""
        assert self.status == 0, self.stdout + self.stderr
        return self

    def exits(self, status: int) -> "Outcome":
        """Assert that the command exited with this status."""
        assert self.status == status, self.stdout + self.stderr
        return self

    def says(self, *words: str) -> "Outcome":
        """Assert that standard error contains all these texts."""
        assert [each for each in words if each not in self.stderr] == [], self.stderr
        return self

    def prints(self, *words: str) -> "Outcome":
        """Assert that standard output contains all these texts."""
        assert [each for each in words if each not in self.stdout] == [], self.stdout
        return self

    def fails(self, status: int, code: str) -> "Outcome":
        """Assert that the command, run with `--json`, exited with this status and this error code."""
        assert (self.status, self.error_code) == (status, code), self.stdout + self.stderr
        return self


class Workplace:
    """A project folder with a separate home, cache and environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.cache = folder / "cache"
        self.target = self.folder / ".pair" / "knowledge"
        self.folder.mkdir(parents=True)
        self._wrapper: tuple[str, ...] = ()
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
        self.environment = kept | {
            "HOME": str(folder / "home"),
            "PAIR_KB_CACHE_DIR": str(self.cache),
            "PAIR__SOURCES__RETRY_WAIT_SECONDS": "0.01",
            "PAIR__ENGINE__EMBEDDER": "ngram",  # has nothing to load
            "PYTHONWARNINGS": "error",
        }

    def obey_permissions(self) -> None:
        """Enforce file permissions for the command, even if root runs the tests."""
        if os.geteuid() == 0:
            dropped = "-dac_override,-dac_read_search"
            self._wrapper = ("setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}")

    def trust(self) -> None:
        """Trust the current configuration of the project from now on."""
        trust_folder(self.folder, home=Path(self.environment["HOME"]))

    def pair(self, *arguments: str | Path, **variables: str) -> Outcome:
        if not self._wrapper:
            return Outcome(*PREPARED.run([*map(str, arguments)], self.folder, self.environment | variables))
        done = self.start(*arguments, **variables)
        stdout, stderr = done.communicate(timeout=120)
        return Outcome(done.returncode, stdout, stderr)

    def start(self, *arguments: str | Path, **variables: str) -> "subprocess.Popen[str]":
        """Start the command in a new process. Ctrl-C reaches it even if the tests run in the background."""
        return subprocess.Popen(
            ["env", "--default-signal=INT", *self._wrapper, *PAIR, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cached_entries(self) -> list[str]:
        """Return the names of the KBs in the cache. Other folders of pair there begin with a dot."""
        return sorted(path.name for path in self.cache.glob("*") if not path.name.startswith("."))


def write_files(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def file_states(folder: Path, *, without: str = "") -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of every file below a folder. `without`: suffixes of names to leave out."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not (without and path.name.endswith(without))
    }


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, except pair's record."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".pair-install.jsonl"
    }
