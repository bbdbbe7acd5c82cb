"""What was found lately: whoever asks the same of the same KB is told the same, without a search.

Invariants
    What is remembered is told only while the KB has the version that it was found in, as looked at after it was asked
    for. Those who ask at the same time share a look, and those who ask the same share a search.
"""

import asyncio
import collections
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

_MOST_ANSWERS = 1000
_MOST_BYTES = 32_000_000
Version = tuple[int, str]


@dataclass(frozen=True, slots=True)
class QueryPlace:
    """What was asked: a KB as it is, or as it was."""

    kb_id: str
    at: int | str | None = None


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """An answer, in the two pieces around the time that it took."""

    place: QueryPlace
    version: Version
    before: bytes
    after: bytes
    results: int


class ResponseCache:
    """Belongs to one event loop. What was not asked for longest is forgotten first."""

    def __init__(self) -> None:
        self._known: collections.OrderedDict[bytes, CachedResponse] = collections.OrderedDict()
        self._bytes = 0

    def get(self, request: bytes) -> CachedResponse | None:
        known = self._known.get(request)
        if known is not None:
            self._known.move_to_end(request)
        return known

    def keep(self, request: bytes, known: CachedResponse) -> None:
        self.forget(request)
        self._known[request] = known
        self._bytes += _size(request, known)
        while len(self._known) > _MOST_ANSWERS or self._bytes > _MOST_BYTES:
            self.forget(next(iter(self._known)))

    def forget(self, request: bytes) -> None:
        known = self._known.pop(request, None)
        if known is not None:
            self._bytes -= _size(request, known)


class RunningQueries:
    """Requests that are being answered. Belongs to one event loop."""

    def __init__(self) -> None:
        self._ends: dict[bytes, asyncio.Event] = {}

    async def ended(self, request: bytes) -> bool:
        """Waits for whoever is being told the same; False when nobody is."""
        end = self._ends.get(request)
        if end is None:
            return False
        await end.wait()
        return True

    @contextlib.contextmanager
    def begun(self, request: bytes) -> Iterator[None]:
        if request in self._ends:  # of those who waited for one that failed, each asks for itself
            yield
            return
        end = self._ends[request] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[request]
            end.set()


class VersionCache:
    """Which version is at each place now. Belongs to one event loop."""

    def __init__(self, look: Callable[[QueryPlace], Awaitable[Version]]) -> None:
        self._look = look
        self._under_way: dict[QueryPlace, asyncio.Task[Version]] = {}
        self._next: dict[QueryPlace, asyncio.Task[Version]] = {}

    async def current(self, place: QueryPlace) -> Version:
        """A look that is under way may have seen what was there before the caller came: it waits for the next."""
        following = self._next.get(place)
        if following is None:
            before = self._under_way.get(place)
            following = asyncio.ensure_future(self._looked(place, before))
            following.add_done_callback(_heard)
            if before is not None:
                self._next[place] = following
            else:
                self._under_way[place] = following
        return await asyncio.shield(following)

    async def _looked(self, place: QueryPlace, before: "asyncio.Task[Version] | None") -> Version:
        if before is not None:
            await asyncio.wait([before])
            self._under_way[place] = self._next.pop(place)
        try:
            return await self._look(place)
        finally:
            if place not in self._next:
                self._under_way.pop(place, None)


def _heard(task: "asyncio.Task[Version]") -> None:
    """Whoever waited may be gone: then its fault is nobody's."""
    if not task.cancelled():
        task.exception()


def _size(request: bytes, known: CachedResponse) -> int:
    return len(request) + len(known.before) + len(known.after)
