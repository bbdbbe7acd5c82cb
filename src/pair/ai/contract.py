"""Protocols of models that you may implement: summariser, embedder, reranker, language model, entity extractor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:  # Summaries do not load numpy.
    import numpy as np
    import numpy.typing as npt

Vectors: TypeAlias = "npt.NDArray[np.float32]"


class Summariser(Protocol):
    """A summariser, which describes sources. Thread-safe."""

    @property
    def model_calls(self) -> int:
        """The number of requests to a model so far, including retries."""

    def summarise(self, source_id: str, text: str) -> str:
        """Return one to six lines, none of them blank; "" for a blank text. Raises ModelError (E301, E302)."""


class Embedder(Protocol):
    """An embedder, which makes vectors of texts. Thread-safe. The vector of a text does not depend on the other texts
    of a batch.
    """

    @property
    def name(self) -> str:
        """Model and version: two embedders whose vectors must not be mixed have different names."""

    @property
    def dimension(self) -> int:
        """The length of a vector. Raises ModelError if only the model knows it and cannot be reached."""

    @property
    def hybrid_weight(self) -> float:
        """The weight of its scores in hybrid search, from 0 to 1; keyword scores get the rest."""

    def fit(self, query: str) -> float:
        """Return how well it knows the language of a query, from 0 to 1. The weight is multiplied by this."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row of length 1 for each text; zeros for a text without content. Raises ModelError."""

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the rows of queries, which some models embed differently. Raises ModelError."""


class Reranker(Protocol):
    """A reranker, which scores a query and a text together: slower than vectors, often better. Thread-safe."""

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score for each text; higher is better. Raises ModelError."""


class LanguageModel(Protocol):
    """A language model, which replies to prompts. Thread-safe."""

    @property
    def name(self) -> str: ...

    def reply(self, instructions: str, text: str) -> str:
        """Return the reply of the model. Raises E301 if the model is unreachable, E302 if it refuses the text."""


@runtime_checkable
class StreamingModel(Protocol):
    """A language model whose reply can be read while it is written."""

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Yield the reply, piece by piece. Raises the errors of `reply`."""


@dataclass(frozen=True, slots=True)
class Relation:
    source: str
    target: str
    kind: str
    weight: float
    """A number above 0."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """The entities and relations of a text, with the names that the text uses."""

    entities: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()


class EntityExtractor(Protocol):
    """An extractor of the entities of a text. Thread-safe."""

    @property
    def name(self) -> str:
        """The name of the extractor. It changes if the same text would give another result."""

    def extract(self, text: str) -> Extraction:
        """Return the entities and relations. Raises E301 if the model is unreachable, E302 for an unusable reply."""
