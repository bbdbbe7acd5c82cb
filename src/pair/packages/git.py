"""Fetch a KB from a git repository with the git program; E008."""

import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

from pair import errors, files
from pair.packages.rules import MOST_FOLDERS, hide_credentials, is_git

logger = logging.getLogger(__name__)

_LONGEST_FETCH_SECONDS = 1800
_SETTINGS = (
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=30",
    "protocol.ext.allow=never",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
)
"""None of them is left to the user: a repository of a stranger is fetched and checked out."""
_PROTOCOLS = "git:http:https:ssh"


def split_ref(location: str) -> tuple[str, str]:
    """Split `repository#ref`; without a ref the default branch. Raises E004 for what is no address of a repository."""
    repository, _, ref = location.partition("#")
    if not is_git(location):
        raise errors.source_format_unknown(hide_credentials(location), suggestion="It is no git repository.")
    return repository, ref or "HEAD"


def remote_commit(location: str) -> str | None:
    """Return the commit that the ref names now; None for a ref that the server does not list, such as a commit id."""
    repository, ref = split_ref(location)
    listed = _run_git(location, "ls-remote", "--exit-code", "--", repository, ref, may_be_absent=True)
    commits = {name: commit for commit, name in (line.split("\t") for line in listed.splitlines())}
    wanted = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
    return next((commits[name] for name in wanted if name in commits), None)


def check_out(location: str, folder: Path) -> str:
    """Put the files of the ref into `folder`, which must not exist; returns the commit."""
    repository, ref = split_ref(location)
    _run_git(location, "init", "--quiet", "--template=", "--", str(folder))
    try:
        _run_git(location, "-C", str(folder), "fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, ref)
        # A deep tree can hardly be removed again: the fetched commit is judged before a folder of it is made.
        listed = _run_git(location, "-C", str(folder), "ls-tree", "-r", "-d", "-z", "--name-only", "FETCH_HEAD")
        if any(path.count("/") >= MOST_FOLDERS for path in listed.split("\0")):
            raise errors.archive_refused(hide_credentials(location), "path has too many folders")
        _run_git(location, "-C", str(folder), "checkout", "--quiet", "--detach", "FETCH_HEAD")
        commit = _run_git(location, "-C", str(folder), "rev-parse", "HEAD").strip()
    except BaseException:
        files.remove_tree(folder)
        raise
    files.remove_tree(folder / ".git")
    return commit


def _run_git(location: str, *arguments: str, may_be_absent: bool = False) -> str:
    shown = hide_credentials(location)
    program = shutil.which("git")
    if program is None:
        raise errors.git_failed(shown, "the git program is not installed")
    logger.debug("git", extra={"arguments": [hide_credentials(argument) for argument in arguments]})
    try:
        done = subprocess.run(  # noqa: S603 - the program is git; what the user gave stands behind "--"
            [program, *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_FETCH_SECONDS,
            stdin=subprocess.DEVNULL,
            cwd="/",  # outside of any repository, whose configuration would count
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise errors.git_failed(shown, f"no end after {_LONGEST_FETCH_SECONDS} s") from fault
    if done.returncode == 2 and may_be_absent:
        return ""
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        reason = re.sub(r"://[^/@\s]+@", "://", " / ".join(lines[-3:])) or "it failed without a word"
        raise errors.git_failed(shown, reason)
    return done.stdout


def _environment() -> dict[str, str]:
    """Return the environment of the user without what redirects git, as GIT_DIR would to the user's own repository.

    git never asks for a password: no person may be there to answer.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # noqa: TID251 - handed on
    return kept | {
        "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=30",
        "LC_ALL": "C",
    }
