"""What is known of words that were met lately, within a bound."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

Known = TypeVar("Known")


class LruCache(Generic[Known]):
    """When the young half is full, what only the old half has is forgotten. Used from several threads at once."""

    def __init__(self, most_words: int) -> None:
        self._half = most_words // 2
        self._young: dict[str, Known] = {}
        self._old: dict[str, Known] = {}
        self._lock = threading.Lock()

    def recall(self, words: Collection[str]) -> tuple[dict[str, Known], list[str]]:
        """What is known, and the words of which nothing is."""
        known: dict[str, Known] = {}
        unknown: list[str] = []
        with self._lock:
            young, old = self._young, self._old
            for word in words:
                found = young.get(word)
                if found is None:
                    found = old.get(word)
                    if found is None:
                        unknown.append(word)
                        continue
                    young[word] = found
                known[word] = found
        return known, unknown

    def remember(self, known: Mapping[str, Known], words: Sequence[str]) -> None:
        with self._lock:
            self._young.update((word, known[word]) for word in words[: self._half])
            if len(self._young) > self._half:
                self._old, self._young = self._young, {}
