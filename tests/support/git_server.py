"""Real git repositories on a real server: the git daemon on loopback."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.command import write_files


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@example.invalid", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repository: Path, files: dict[str, str | bytes]) -> str:
    """Write files and commit them, in a new repository if there is none. Return the commit."""
    if not repository.exists():
        repository.mkdir(parents=True)
        git(repository, "init", "--quiet")
    write_files(repository, files)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "pages")
    return git(repository, "rev-parse", "HEAD")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve every repository below the folder; yield the address of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    daemon = subprocess.Popen(
        [
            "git",
            "daemon",
            "--reuseaddr",
            "--listen=127.0.0.1",
            f"--port={port}",
            f"--base-path={folder}",
            "--export-all",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, daemon)
        yield f"git://127.0.0.1:{port}"
    finally:
        daemon.terminate()
        daemon.wait()


def _wait_for(port: int, daemon: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and daemon.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
    raise TimeoutError("git daemon did not start")
