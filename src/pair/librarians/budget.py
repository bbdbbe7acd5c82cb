"""What a question has cost so far, and may still cost: one ledger for everybody who works on it."""

import contextlib
import threading
from collections.abc import Iterator

from pair import errors, telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.librarians.contract import Budget

CHARACTERS_PER_TOKEN = 4
"""About right for prose in European languages; what a model really counts is its own affair."""


class BudgetLedger:
    """Used from several threads at once."""

    def __init__(self, budget: Budget) -> None:
        self._calls = budget.calls
        self._tokens = budget.tokens
        self._lock = threading.Lock()

    @property
    def left(self) -> Budget:
        return Budget(max(0, self._calls), max(0, self._tokens))

    def take_call(self) -> bool:
        with self._lock:
            if self._calls <= 0:
                return False
            self._calls -= 1
            return True

    def take_tokens(self, count: int) -> bool:
        """All of them, or none."""
        with self._lock:
            if self._tokens < count:
                return False
            self._tokens -= count
            return True

    def note_tokens(self, count: int) -> None:
        """Were used: what is left may be less than nothing."""
        with self._lock:
            self._tokens -= count


class MeteredModel:
    """A model that is paid from a ledger. Raises E306 instead of asking what the ledger does not cover."""

    def __init__(self, model: LanguageModel, ledger: BudgetLedger) -> None:
        self.model = model
        self.ledger = ledger

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, instructions: str, text: str) -> str:
        self._pay(instructions, text)
        with self._span():
            said = self.model.reply(instructions, text)
        self.ledger.note_tokens(tokens_of(said) - 1)
        return said

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """One that cannot stream says everything at once."""
        if not isinstance(self.model, StreamingModel):
            yield self.reply(instructions, text)
            return
        self._pay(instructions, text)
        characters = 0
        try:
            with self._span():
                for piece in self.model.stream(instructions, text):
                    characters += len(piece)
                    yield piece
        finally:
            self.ledger.note_tokens(-(-characters // CHARACTERS_PER_TOKEN) - 1)

    def _span(self) -> contextlib.AbstractContextManager[telemetry.Span]:
        return telemetry.span(telemetry.CHAT, self.model.name, attributes={telemetry.REQUEST_MODEL: self.model.name})

    def _pay(self, instructions: str, text: str) -> None:
        """For what it reads, and a token of what it will say. Raises E306."""
        needed = tokens_of(instructions) + tokens_of(text)
        if not self.ledger.take_tokens(needed + 1):
            raise errors.model_budget_spent(self.model.name, needed, self.ledger.left.tokens)


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
