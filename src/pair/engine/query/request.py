"""The values of a search: what is asked of a KB, and its hits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pair.engine.filters import Filter
from pair.engine.format.vectors import Vectors
from pair.text.tokenizer import KeywordQuery
from pair.values import GraphParameters, Hit, SearchMode


@dataclass(frozen=True, slots=True)
class Hits:
    """The hits of a search, best first, and whether some shards could not be searched."""

    passages: tuple[Hit, ...]
    manifest_version: int
    shards_asked: int
    partial: bool = False
    """Whether some shards could not be asked."""
    faults: tuple[str, ...] = ()
    """Which files could not be read, and why."""
    mode_used: SearchMode = "vector"
    reason: str = ""
    """Why `adaptive` used the graph, or did not."""
    commit_id: str = ""
    """The commit of the manifest: in another store, another one may have its number."""
    embedder: str = ""
    """The embedder of the KB."""
    term_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each word of the query in this KB: rare words weigh more. Empty where words do not count."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.passages)

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, position: int) -> Hit:
        return self.passages[position]


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A query, analysed and embedded: what every hit has to meet, and how hits are ranked."""

    limit: int
    mode: SearchMode = "hybrid"
    text: str = ""
    words: KeywordQuery | None = None
    """What the text asks of words; None where words do not count."""
    vector: Vectors | None = None
    """None where the vector does not count."""
    vector_weight: float = 0.0
    """The weight of the vector in a hybrid score."""
    embedder: str = ""
    """The embedder that made the vector."""
    condition: Filter | None = None
    max_distance: float | None = None
    """Hits are strictly nearer than this."""
    exact: bool = False
    """Ask every row of every shard."""
    graph: GraphParameters = field(default_factory=GraphParameters)
    diversity: float = 0.0
    """The weight of being unlike the hits before: from 0 to below 1."""
    explain: bool = False
    highlights: bool = False
    """Tell what matched: takes about as long as everything else together."""
