"""Stand-ins for the eyes of a KB, which count words as it does, and for a model, which says what it was given."""

from collections.abc import Sequence

from pair.text import tokenizer


class WordReader:
    """Knows words only: nothing is like anything else in meaning."""

    def __init__(self, fault: Exception | None = None) -> None:
        """`fault`: what asking for meaning brings."""
        self._fault = fault
        self.measured = 0

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]:
        asked = tokenizer.parse_query(query).terms.keys()
        return [frozenset(asked & set(tokenizer.terms(text))) for text in texts]

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]:
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
