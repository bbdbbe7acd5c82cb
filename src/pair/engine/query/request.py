"""What is asked of a KB, and what is found, as values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pair.engine.filters import Filter
from pair.engine.format.vectors import Vectors
from pair.values import GraphParameters, Hit, SearchMode


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first; a sequence of hits that also says how far it can be trusted."""

    found: tuple[Hit, ...]
    manifest_version: int
    shards_asked: int
    partial: bool = False
    """Some shards could not be asked."""
    faults: tuple[str, ...] = ()
    """Which, and why."""
    mode_used: SearchMode = "vector"
    reason: str = ""
    """Why `adaptive` went the way it went."""
    commit_id: str = ""
    """Of the manifest that was asked: its number may be that of another one in another store."""
    embedder: str = ""
    """That the KB was made with."""
    term_weights: Mapping[str, float] = field(default_factory=dict)
    """What each word of the query counts in this KB: the rarer, the more. Empty where words do not count."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Hit:
        return self.found[position]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a hit must be, besides being good."""

    condition: Filter | None = None
    max_distance: float | None = None
    """Strictly nearer than this."""
    exact: bool = False
    """Ask every row of every shard."""


@dataclass(frozen=True, slots=True)
class SearchRequest:
    text: str
    limit: int
    mode: SearchMode = "hybrid"
    narrowing: Limits = field(default_factory=Limits)
    graph: GraphParameters = field(default_factory=GraphParameters)
    diversity: float = 0.0
    """How much being unlike the hits before counts: 0 for not at all, below 1."""
    explain: bool = False
    highlights: bool = False
    """Say what matched: takes about as long as everything else together."""


@dataclass(frozen=True, slots=True)
class EmbeddedRequest:
    """A text with its vector."""

    asked: SearchRequest
    vector: Vectors | None
    """None in mode `keyword`."""
    vector_weight: float
    """Of the vector in a hybrid score."""
    embedder: str = ""
    """That made the vector."""
