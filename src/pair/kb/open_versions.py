"""Earlier versions of KBs that a server keeps open beside the current ones.

Invariants
    A limited number is open, besides those that are being read. A KB that is read stays open until it was read.
    A version that is gone is E218, whether or not it was read before.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pair import errors
from pair.kb.kb import KbCollection, KnowledgeBase

_MOST = 8
_Result = TypeVar("_Result")
_Name = tuple[str, int]


@dataclass
class _OpenVersion:
    kb: KnowledgeBase
    readers: int = 0
    is_kept: bool = True
    """False once others took its place: the last reader closes it."""


class OpenVersions:
    """KBs by name and number of the version, opened when they are first used. Used from several threads at once."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[_Name, _OpenVersion] = collections.OrderedDict()

    def read(self, kb: KnowledgeBase, version: int | str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return what `work` makes of one version of a KB. Raises E201, E218, and what the work raises."""
        number = kb.versions.number(version)
        name = kb.kb_id, number
        past = self._borrow(name)
        if past is not None:
            try:
                return self._work_on(name, past, work)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_VERSION:
                    raise
        # Not open, or gone; but a version of a KB that was repaired or created again may exist again.
        return self._work_on(name, self._add(name, kb.at(number)), work)

    def close(self) -> None:
        """Close all; those that are being read are closed by their last reader."""
        with self._lock:
            unused = [self._remove(name) for name in list(self._open)]
        _close(unused)

    def _borrow(self, name: _Name) -> _OpenVersion | None:
        with self._lock:
            past = self._open.get(name)
            if past is not None:
                past.readers += 1
                self._open.move_to_end(name)
            return past

    def _add(self, name: _Name, kb: KnowledgeBase) -> _OpenVersion:
        """Add an open KB, in place of one that another thread opened meanwhile."""
        past = _OpenVersion(kb, readers=1)
        with self._lock:
            unused = [self._remove(name)] if name in self._open else []
            self._open[name] = past
            while len(self._open) > self._most:
                unused.append(self._remove(next(iter(self._open))))
        _close(unused)
        return past

    def _work_on(self, name: _Name, past: _OpenVersion, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        unused: list[KnowledgeBase | None] = []
        try:
            return work(past.kb)
        except errors.NotFoundError as fault:
            with self._lock:
                if fault.code == errors.NO_SUCH_VERSION and self._open.get(name) is past:
                    unused.append(self._remove(name))
            raise
        finally:
            with self._lock:
                past.readers -= 1
                unused.append(past.kb if not past.is_kept and not past.readers else None)
            _close(unused)

    def _remove(self, name: _Name) -> KnowledgeBase | None:
        """Return the KB to close now; None while it is being read."""
        past = self._open.pop(name)
        past.is_kept = False
        return None if past.readers else past.kb


def _close(kbs: Sequence[KnowledgeBase | None]) -> None:
    for kb in kbs:
        if kb is not None:
            kb.close()


def open_collection(kb: KnowledgeBase, past: OpenVersions, number: int) -> KbCollection:
    """Return what a librarian reads of one version. `kb`: the current one, for what no version changes."""
    return KbCollection(kb, kb.collection.embedding, lambda work: past.read(kb, number, work))
