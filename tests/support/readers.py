"""Stand-ins for the embedder of a KB, and for a model, which says what it was given."""

from collections.abc import Sequence


class WordReader:
    """Knows words only: nothing is like anything else in meaning."""

    def __init__(self, fault: Exception | None = None) -> None:
        """`fault`: the error of the embedder."""
        self._fault = fault
        self.measured = 0

    def compare(self, query: str, texts: Sequence[str]) -> list[float]:
        if self._fault is not None:
            raise self._fault
        self.measured += len(texts)
        return [0.0] * len(texts)


class SayingModel:
    """Replies with what it was given, or raises it."""

    name = "any"

    def __init__(self, said: str | Exception) -> None:
        self._said = said
        self.prompts: list[str] = []

    def reply(self, instructions: str, text: str) -> str:
        self.prompts.append(text)
        if isinstance(self._said, Exception):
            raise self._said
        return self._said
