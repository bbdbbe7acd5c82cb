"""What was found lately: whoever asks the same of the same KB is told the same, without a search.

Invariants
    What is remembered is told only while the KB has the version that it was found in.
"""

import collections
import threading
from collections.abc import Callable

from pair.kb import Hits

_MOST_ANSWERS = 1000
Version = tuple[int, str]


class Remembered:
    """Used from several threads at once. What was not asked for longest is forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[tuple[str, bytes], tuple[Version, Hits]] = collections.OrderedDict()

    def get(self, kb_id: str, request: bytes, current: Callable[[], Version]) -> Hits | None:
        """`current`: the version that is stored now, which is looked at only where something is remembered."""
        with self._lock:
            known = self._known.get((kb_id, request))
            if known is not None:
                self._known.move_to_end((kb_id, request))
        return known[1] if known is not None and known[0] == current() else None

    def keep(self, kb_id: str, request: bytes, version: Version, hits: Hits) -> None:
        with self._lock:
            self._known[kb_id, request] = version, hits
            self._known.move_to_end((kb_id, request))
            if len(self._known) > _MOST_ANSWERS:
                self._known.popitem(last=False)
