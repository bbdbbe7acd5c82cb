"""What you may implement: something that describes a source in a few lines."""

from typing import Protocol


class Summariser(Protocol):
    """Used from several threads at once."""

    @property
    def uses_model(self) -> bool:
        """Whether a description costs a model's work, and may therefore fail for a while."""
        ...

    def summarise(self, source_id: str, text: str) -> str:
        """One to six lines without a blank one; "" for a blank text. Raises ModelError (E301, E302)."""
        ...
