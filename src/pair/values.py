"""Frozen values that cross a border between parts of pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pair import errors

LONGEST_WAIT_SECONDS = 86_400
"""Of a setting: what is asked to wait longer was told so by mistake, and sockets cannot."""

SearchMode = Literal["hybrid", "keyword", "vector", "graph", "adaptive"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
DEFAULT_MODE: SearchMode = "hybrid"
"""All ways to search."""

SourceType = Literal["url", "local", "monorepo", "github-release", "git"]


@dataclass(frozen=True, slots=True)
class KbSource:
    """Where a whole KB comes from. `location` is an absolute path or a URL (for git with its `#ref`)."""

    type: SourceType
    location: str
    requires_download: bool
    version: str | None = None
    """Of a release, from its feed."""
    sha256: str | None = None
    """Of the archive, when the release feed publishes it."""
    feed: str | None = None
    """The feed of releases that was asked, as it was named: with the KB and the version behind `#`, if so."""
    manifest_sha256: str | None = None
    """Of the manifest beside the archive, when the release feed publishes it."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "type": self.type,
            "location": self.location,
            "requiresDownload": self.requires_download,
        }
        if self.version is not None:
            value["version"] = self.version
        if self.sha256 is not None:
            value["sha256"] = self.sha256
        if self.manifest_sha256 is not None:
            value["manifestSha256"] = self.manifest_sha256
        if self.feed is not None:
            value["feed"] = self.feed
        return value

    @staticmethod
    def from_json(value: dict[str, Any]) -> "KbSource":
        source = KbSource(
            type=value["type"],
            location=value["location"],
            requires_download=value["requiresDownload"],
            version=value.get("version"),
            sha256=value.get("sha256"),
            manifest_sha256=value.get("manifestSha256"),
            feed=value.get("feed"),
        )
        more = (source.version, source.sha256, source.manifest_sha256, source.feed)
        texts = (source.location, *(each or "" for each in more))
        if source.type not in get_args(SourceType) or not all(isinstance(each, str) for each in texts):
            raise ValueError("not the source of a KB")
        return source


@dataclass(frozen=True, slots=True)
class Document:
    """What the engine stores and finds. A given vector is not embedded again: the text is then one chunk."""

    id: str
    text: str
    title: str = ""
    url: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class GraphParameters:
    """How far and along what a search spreads."""

    hops: int = 1
    """How many times from chunks over their entities to other chunks."""
    alpha: float = 0.5
    """The share of the hybrid score in the final one; the rest is the graph's."""
    decay: float = 0.85
    """The probability of going on, at each step."""
    edge_types: tuple[str, ...] | None = None
    """Kinds of edges to go along; None for all but mere co-occurrence, which mentions say already."""
    seeds: int = 5
    """How many hits to start from."""
    question_share: float = 0.5
    """Of the starts, so many are at the question's own entities, if it names any that are known."""
    most_common: float = 0.05
    """An entity that is in more than this share of the chunks tells nothing."""
    most_links: int = 6_000
    """Mentions that are followed at most in one hop, those of rare entities first."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What few searches need."""

    max_distance: float | None = None
    """Only hits whose vectors are strictly nearer than this."""
    highlights: bool = False
    """Say what matched, as places in the text of each hit."""
    diversity: float = 0.0
    """How much a hit should be unlike those before it: from 0, not at all, to below 1."""
    graph: GraphParameters = field(default_factory=GraphParameters)
    """How far and along what the modes `graph` and `adaptive` go."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.diversity < 1.0:
            raise errors.query_invalid(f"diversity is from 0 to below 1: {self.diversity}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document's text: `text[start:end]`."""

    text: str
    start: int
    end: int
    context: str = ""
    """The headings above it that are not in it, outermost first: "Install > Linux"."""


@dataclass(frozen=True, slots=True)
class AlsoIn:
    """Another place that says the same as a hit."""

    document_id: str
    chunk_id: str
    title: str
    url: str
    start: int
    end: int

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.document_id,
            "chunk_id": self.chunk_id,
            "title": self.title,
            "url": self.url,
            "start": self.start,
            "end": self.end,
        }


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a chunk, and the document that it is of."""

    document_id: str
    chunk_id: str
    title: str
    url: str
    text: str
    score: float
    """1 is best; comparable between shards, not between modes."""
    distance: float | None
    metadata: Mapping[str, Any]
    start: int
    end: int
    graph_score: float | None = None
    also_in: tuple[AlsoIn, ...] = ()
    """Other places with the same text."""
    highlights: tuple[tuple[int, int], ...] = ()
    """What matched: starts and ends in `text`, ascending, without overlap."""
    explanation: Mapping[str, float | str] | None = None
    """How the score came about, when that was asked for."""
    shard: str = ""
    """The content hash of the shard that holds it."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "id": self.document_id,
            "chunk_id": self.chunk_id,
            "title": self.title,
            "url": self.url,
            "content": self.text,
            "score": self.score,
            "distance": self.distance,
            "graph_score": self.graph_score,
            "metadata": dict(self.metadata),
            "start": self.start,
            "end": self.end,
            "also_in": [each.to_json() for each in self.also_in],
            "highlights": [list(each) for each in self.highlights],
        }
        if self.explanation is not None:
            value["explanation"] = dict(self.explanation)
        return value
