"""The calls and tokens that a question may still cost: one ledger for all librarians that work on it."""

import contextlib
import threading
from collections.abc import Iterator

from pair import errors, telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.librarians.contract import Budget

CHARACTERS_PER_TOKEN = 4
"""An estimate for prose in European languages."""


class BudgetLedger:
    """May be used from several threads at once."""

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
        """Take all of them, or none."""
        with self._lock:
            if self._tokens < count:
                return False
            self._tokens -= count
            return True

    def note_tokens(self, count: int) -> None:
        """Count tokens that were used: the rest may fall below zero."""
        with self._lock:
            self._tokens -= count


class MeteredModel:
    """A model whose tokens come from a ledger. Raises E306 instead of asking when too few are left."""

    def __init__(self, model: LanguageModel, ledger: BudgetLedger) -> None:
        self.model = model
        self.ledger = ledger

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, instructions: str, text: str) -> str:
        self._pay(instructions, text)
        with self._span():
            reply = self.model.reply(instructions, text)
        self.ledger.note_tokens(tokens_of(reply) - 1)
        return reply

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Yield the whole reply at once for a model that cannot stream."""
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

    def _span(self) -> contextlib.AbstractContextManager[object]:
        return telemetry.span(telemetry.CHAT, self.model.name, attributes={telemetry.REQUEST_MODEL: self.model.name})

    def _pay(self, instructions: str, text: str) -> None:
        """Take the tokens of the prompt, and one of the reply. Raises E306."""
        needed = tokens_of(instructions) + tokens_of(text)
        if not self.ledger.take_tokens(needed + 1):
            raise errors.model_budget_spent(self.model.name, needed, self.ledger.left.tokens)


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
