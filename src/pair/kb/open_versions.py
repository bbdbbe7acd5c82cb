"""KBs as they were: a few of them are kept open beside those of a server.

Invariants
    So many are open and no more, but for those that are being read. What is read stays open until it was read.
    A version that is gone is E218, whether or not it was read before.
"""

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pair import errors
from pair.engine.query.request import Hits
from pair.kb.kb import KnowledgeBase

_MOST = 8
_Result = TypeVar("_Result")
_Name = tuple[str, int]


@dataclass
class _Past:
    kb: KnowledgeBase
    readers: int = 0
    is_wanted: bool = True
    """False once others took its place: whoever reads it last closes it."""


class OpenVersions:
    """By name and number of the version, opened when they are first wanted. Used from several threads at once."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[_Name, _Past] = collections.OrderedDict()

    def read(self, kb: KnowledgeBase, version: int | str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """What `work` makes of a KB as it was. Raises E201, E218, and what the work raises."""
        number = kb.versions.number(version)
        name = kb.kb_id, number
        known = self._known(name)
        if known is not None:
            try:
                return self._worked(name, known, work)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_VERSION:
                    raise
        # Never read, or gone; but a version that was repaired, or of a KB that was made anew, is there again.
        return self._worked(name, self._opened(name, kb.at(number)), work)

    def close(self) -> None:
        """Those that are being read are closed after that."""
        with self._lock:
            left = [self._left_out(name) for name in list(self._open)]
        _close(left)

    def _known(self, name: _Name) -> _Past | None:
        with self._lock:
            past = self._open.get(name)
            if past is not None:
                past.readers += 1
                self._open.move_to_end(name)
            return past

    def _opened(self, name: _Name, kb: KnowledgeBase) -> _Past:
        """Somebody else may have opened it meanwhile: the later one stays."""
        past = _Past(kb, readers=1)
        with self._lock:
            left = [self._left_out(name)] if name in self._open else []
            self._open[name] = past
            while len(self._open) > self._most:
                left.append(self._left_out(next(iter(self._open))))
        _close(left)
        return past

    def _worked(self, name: _Name, past: _Past, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        left: list[KnowledgeBase | None] = []
        try:
            return work(past.kb)
        except errors.NotFoundError as fault:
            with self._lock:
                if fault.code == errors.NO_SUCH_VERSION and self._open.get(name) is past:
                    left.append(self._left_out(name))
            raise
        finally:
            with self._lock:
                past.readers -= 1
                left.append(past.kb if not past.is_wanted and not past.readers else None)
            _close(left)

    def _left_out(self, name: _Name) -> KnowledgeBase | None:
        """What is to be closed now, if nobody reads it."""
        past = self._open.pop(name)
        past.is_wanted = False
        return None if past.readers else past.kb


def _close(kbs: Sequence[KnowledgeBase | None]) -> None:
    for kb in kbs:
        if kb is not None:
            kb.close()


@dataclass(frozen=True)
class VersionCollection:
    """What a shelf answers from: passages as they were."""

    kb: KnowledgeBase
    """As it is now, for what no version changes."""
    past: OpenVersions
    number: int

    @property
    def kb_id(self) -> str:
        return self.kb.kb_id

    def search(self, query: str, *, limit: int, mode: str, explain: bool) -> Hits:
        """Raises E218, and what every search raises."""
        return self.past.read(
            self.kb, self.number, lambda kb: kb.search(query, limit=limit, mode=mode, explain=explain)
        )

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]:
        return self.kb.collection.words_in(query, texts)

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]:
        return self.kb.collection.likeness(query, texts)

    def fetched_at(self, document_ids: Sequence[str]) -> Mapping[str, str]:
        """What is known of that is of the present."""
        return {}
