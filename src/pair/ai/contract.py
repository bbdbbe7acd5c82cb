"""What you may implement: something that describes a source in a few lines, something that makes vectors of texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:  # whoever only summarises does not wait for numpy
    import numpy as np
    import numpy.typing as npt

Vectors: TypeAlias = "npt.NDArray[np.float32]"


class Summariser(Protocol):
    """Used from several threads at once."""

    @property
    def model_calls(self) -> int:
        """How often a model was asked so far, retries included."""
        ...

    def summarise(self, source_id: str, text: str) -> str:
        """One to six lines without a blank one; "" for a blank text. Raises ModelError (E301, E302)."""
        ...


class Embedder(Protocol):
    """Used from several threads at once. The same text gives the same vector, whatever else is in the batch."""

    @property
    def name(self) -> str:
        """Model and version: two embedders whose vectors must not be mixed have different names."""
        ...

    @property
    def dimension(self) -> int:
        """Raises ModelError where only the model knows, and cannot be asked."""
        ...

    @property
    def hybrid_weight(self) -> float:
        """From 0 to 1: how much its scores count in hybrid search; those of the keywords have the rest."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 for each text; a row of zeros for a text that says nothing. Raises ModelError."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same for what is searched for: some models want to be told."""
        ...
