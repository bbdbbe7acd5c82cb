"""Fetch a KB from a git repository with the git program; E008."""

import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

from pair import errors, files
from pair.sources.rules import VERSION_CONTROL_NAMES, without_credentials

logger = logging.getLogger(__name__)

_LONGEST_FETCH_SECONDS = 1800
_OPTIONS = (
    "-c",
    "http.lowSpeedLimit=1",
    "-c",
    "http.lowSpeedTime=30",
    "-c",
    "protocol.ext.allow=never",
    "-c",
    "core.hooksPath=/dev/null",
)


def split_ref(location: str) -> tuple[str, str]:
    """`repository#ref` -> (repository, ref); without a ref the default branch."""
    repository, _, ref = location.partition("#")
    return repository, ref or "HEAD"


def remote_commit(location: str) -> str | None:
    """The commit that the ref names now; None for a ref that the server does not list, such as a commit id."""
    repository, ref = split_ref(location)
    listed = _git(location, "ls-remote", "--exit-code", "--", repository, ref, may_be_absent=True)
    commits = {name: commit for commit, name in (line.split("\t") for line in listed.splitlines())}
    wanted = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
    return next((commits[name] for name in wanted if name in commits), None)


def check_out(location: str, folder: Path) -> str:
    """Put the files of the ref into `folder`, which must not exist; returns the commit."""
    repository, ref = split_ref(location)
    _git(location, "init", "--quiet", "--", str(folder))
    try:
        _git(location, "-C", str(folder), "fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, ref)
        _git(location, "-C", str(folder), "checkout", "--quiet", "--detach", "FETCH_HEAD")
        commit = _git(location, "-C", str(folder), "rev-parse", "HEAD").strip()
    except BaseException:
        files.remove_tree(folder)
        raise
    for name in VERSION_CONTROL_NAMES:
        files.remove_tree(folder / name)
    return commit


def _git(location: str, *arguments: str, may_be_absent: bool = False) -> str:
    shown = without_credentials(location)
    program = shutil.which("git")
    if program is None:
        raise errors.git_failed(shown, "the git program is not installed")
    logger.debug("git", extra={"arguments": [without_credentials(argument) for argument in arguments]})
    try:
        done = subprocess.run(  # noqa: S603 - the program is git; what the user gave stands behind "--"
            [program, *_OPTIONS, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_FETCH_SECONDS,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise errors.git_failed(shown, f"no end after {_LONGEST_FETCH_SECONDS} s") from fault
    if done.returncode == 2 and may_be_absent:
        return ""
    if done.returncode != 0:
        raise errors.git_failed(shown, _last_words(done.stderr))
    return done.stdout


def _environment() -> dict[str, str]:
    """Never ask for a password: nobody may be there to answer."""
    return os.environ | {  # noqa: TID251 - handed on to a child process, not read
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=30",
        "LC_ALL": "C",
    }


def _last_words(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("hint:")]
    return re.sub(r"://[^/@\s]+@", "://", " / ".join(lines[-3:])) or "it failed without a word"
