"""Test doubles: an embedder that knows words only, and a model with a given reply."""

from collections.abc import Sequence


class WordReader:
    """An embedder that knows words only: no two texts are similar in meaning."""

    def __init__(self, fault: Exception | None = None) -> None:
        """Create an embedder. `fault`: the error that it raises."""
        self._fault = fault
        self.measured = 0

    def compare(self, query: str, texts: Sequence[str]) -> list[float]:
        if self._fault is not None:
            raise self._fault
        self.measured += len(texts)
        return [0.0] * len(texts)


class SayingModel:
    """A model that returns the given reply, or raises the given error."""

    name = "any"

    def __init__(self, said: str | Exception) -> None:
        self._said = said
        self.prompts: list[str] = []

    def reply(self, instructions: str, text: str) -> str:
        self.prompts.append(text)
        if isinstance(self._said, Exception):
            raise self._said
        return self._said
