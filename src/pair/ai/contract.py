"""Protocols of models that you may implement: summariser, embedder, reranker, language model, entity extractor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

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
        """Return one to six lines without a blank one; "" for a blank text. Raises ModelError (E301, E302)."""
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

    def fit(self, query: str) -> float:
        """Return from 0 to 1 how well it knows the language of a query; the weight is multiplied by it."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row of length 1 for each text; zeros for a text that says nothing. Raises ModelError."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Do the same for queries: some models embed them in another way."""
        ...


class Reranker(Protocol):
    """Reads a query and a text together: slower than vectors, and often better. Used from several threads at once."""

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return one for each text; the higher, the better it answers. Raises ModelError."""
        ...


class LanguageModel(Protocol):
    """Used from several threads at once."""

    @property
    def name(self) -> str: ...

    def reply(self, instructions: str, text: str) -> str:
        """Return what the model says. Raises E301 when no model can be asked, E302 for what it refuses."""
        ...


@runtime_checkable
class StreamingModel(Protocol):
    """A language model whose reply can be read while it is written."""

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Yield the reply, piece by piece. Raises as `reply` does."""
        ...


@dataclass(frozen=True, slots=True)
class Relation:
    source: str
    target: str
    kind: str
    weight: float
    """Above 0."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a text says about entities, named as the text names them."""

    entities: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()


class EntityExtractor(Protocol):
    """Used from several threads at once."""

    @property
    def name(self) -> str:
        """Changes when the same text would give another answer."""
        ...

    def extract(self, text: str) -> Extraction:
        """Raises E301 when there is no model to ask, E302 when its reply is of no use."""
        ...
