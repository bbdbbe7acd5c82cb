"""The trust store: which files of which folders the user trusts, by the SHA-256 of their bytes.

Invariants
    The store is outside the current folder, and its owner alone may write it.
    A store that is a link, belongs to another user or cannot be read trusts nothing.
    A file is trusted at one place with certain bytes: a moved, copied or changed file is not.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pair import errors, files

STORE_PATH = "~/.pair/trusted.json"
_MAX_STORE_BYTES = 10_000_000


def place_of(path: str | Path) -> str:
    """Return the path of a file of the current folder, by which the store knows it.

    Links above the folder are resolved. A link in the folder is not: it must not inherit the trust of its target.
    """
    return os.path.join(os.path.realpath(os.curdir), os.path.normpath(path))  # noqa: PTH118 - keeps links


class TrustStore:
    """Hashes of trusted bytes by place, in one JSON file that several processes may change."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = files.expand_path(STORE_PATH) if path is None else path

    def trusts(self, place: str, content: bytes) -> bool:
        """Raises E401 or E010 when the store cannot be read."""
        return hashlib.sha256(content).hexdigest() in self.entries().get(place, ())

    def entries(self) -> dict[str, tuple[str, ...]]:
        """Return the hashes by place. Raises E401, E010."""
        with self._errors():
            return self._read()

    def record(self, place: str, *hashes: str) -> None:
        """Trust these bytes at a place, and no others. Raises E401, E010."""
        self._change(lambda entries: entries | {place: hashes})

    def forget(self, *places: str) -> None:
        self._change(lambda entries: {place: hashes for place, hashes in entries.items() if place not in places})

    def _change(self, change: Callable[[dict[str, tuple[str, ...]]], Mapping[str, tuple[str, ...]]]) -> None:
        with self._errors():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.exclusive_lock(self.path.with_name(f".{self.path.name}.lock"), on_wait=lambda _holder: None):
                entries = self._read()
                changed = change(entries)
                if changed != entries:
                    value = {"version": 1, "trusted": {place: list(hashes) for place, hashes in changed.items()}}
                    files.write_atomically(self.path, json.dumps(value, indent=2).encode() + b"\n", mode=0o600)

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            descriptor = files.open_file(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in {os.geteuid(), 0} or status.st_mode & 0o022:
                raise self._refusal("it is no regular file that only you can write")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(_MAX_STORE_BYTES + 1)
        finally:
            os.close(descriptor)
        entries = _parse(content)
        if entries is None:
            raise self._refusal("it is damaged")
        return entries

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Refuse a store that the author of the current folder could have made, or that is behind a link."""
        with files.storage_errors():
            here = Path(os.path.realpath(os.curdir))
            if not self.path.is_absolute() or Path(os.path.realpath(self.path.parent)).is_relative_to(here):
                raise self._refusal("your home folder is not outside this folder")
            try:
                yield
            except OSError as fault:
                if fault.errno in {errno.ELOOP, errno.ENOTDIR}:
                    raise self._refusal("it is a link, or in a folder that is one") from fault
                raise

    def _refusal(self, reason: str) -> errors.UsageError:
        hints = [
            f"If it is damaged, remove it and trust your folders again: rm {self.path}",
            "Or name files yourself: --config FILE, PAIR__SERVER__KEYS_FILE=FILE",
        ]
        return errors.settings_invalid(str(self.path), f"cannot use the trust store: {reason}", hints=hints)


class TrustedFile:
    """One file of the current folder, which counts only with bytes that the trust store knows."""

    def __init__(self, store: TrustStore, path: str | Path) -> None:
        self._store = store
        self._place = place_of(path)

    def trusts(self, content: bytes) -> bool:
        """Raises E401, E010."""
        return self._store.trusts(self._place, content)

    @contextlib.contextmanager
    def replacing(self, old: bytes | None, new: bytes) -> Iterator[None]:
        """Trust the bytes that the block writes. Until it ends the old ones count too: a crash locks no key out."""
        digests = [hashlib.sha256(content).hexdigest() for content in (old, new) if content is not None]
        self._store.record(self._place, *digests)
        yield
        self._store.record(self._place, digests[-1])


def _parse(content: bytes) -> dict[str, tuple[str, ...]] | None:
    """Return the hashes by place; None for what is no trust store."""
    if len(content) > _MAX_STORE_BYTES:
        return None
    try:
        entries = {place: tuple(hashes) for place, hashes in json.loads(content)["trusted"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return entries if all(isinstance(text, str) for hashes in entries.values() for text in hashes) else None
