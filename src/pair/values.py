"""Frozen values that cross a border between parts of pair, and checks of arguments that come from outside."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from pair import errors

LONGEST_WAIT_SECONDS = 86_400
"""The longest wait that a setting may ask for: sockets cannot wait longer."""

SearchMode = Literal["hybrid", "keyword", "vector", "graph", "adaptive"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
DEFAULT_MODE: SearchMode = "hybrid"
"""All ways to search."""

_KB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_USER_OF_URL = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_SECRET_OF_URL = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|password|passwd|signature|credential|api[_-]?key)|sig|auth)=)[^&;#\s]*",
    re.IGNORECASE,
)


def redact_url(url: str) -> str:
    """Return a URL, or a text with URLs, without user names, passwords and tokens."""
    return _SECRET_OF_URL.sub(r"\1…", _USER_OF_URL.sub(r"\1", url))


SourceType = Literal["url", "local", "monorepo", "github-release", "git"]
_OPTIONAL_FIELDS = {
    "version": "version",
    "sha256": "sha256",
    "manifestSha256": "manifest_sha256",
    "feed": "feed",
    "name": "name",
}
"""Fields of a source that may be None, by their names in JSON."""


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
    name: str | None = None
    """Of the package, when the release feed says it: the package has to say the same."""

    def to_json(self) -> dict[str, Any]:
        value = {"type": self.type, "location": self.location, "requiresDownload": self.requires_download}
        optional = {name: getattr(self, field) for name, field in _OPTIONAL_FIELDS.items()}
        return value | {name: text for name, text in optional.items() if text is not None}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "KbSource":
        """Raises ValueError, KeyError."""
        optional = {field: value.get(name) for name, field in _OPTIONAL_FIELDS.items()}
        source = KbSource(value["type"], value["location"], value["requiresDownload"], **optional)
        texts = (source.location, *(text or "" for text in optional.values()))
        if source.type not in get_args(SourceType) or not all(isinstance(text, str) for text in texts):
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
        check_number("max_distance", self.max_distance)
        if not isinstance(self.diversity, Real) or not 0.0 <= self.diversity < 1.0:
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
    """Other places with the same text; the first 20 of them."""
    highlights: tuple[tuple[int, int], ...] = ()
    """What matched: starts and ends in `text`, ascending, without overlap."""
    explanation: Mapping[str, float | str] | None = None
    """How the score came about, when that was asked for."""
    shard: str = ""
    """The content hash of the shard that holds it."""
    also_in_count: int = 0
    """How many other places with the same text the search came across."""

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
            "also_in": [place.to_json() for place in self.also_in],
            "highlights": [list(span) for span in self.highlights],
        }
        if self.also_in_count > len(self.also_in):
            value["also_in_count"] = self.also_in_count
        if self.explanation is not None:
            value["explanation"] = dict(self.explanation)
        return value


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


# ── checks of arguments ────────────────────────────────────────────────────────────────────────────
# Callers are not all type-checked: what they give is refused at the border, before it fails somewhere inside.


def check_kb_id(kb_id: str) -> str:
    """Raises E212."""
    if not isinstance(kb_id, str) or not _KB_ID.fullmatch(kb_id):
        raise errors.kb_id_invalid(kb_id)
    return kb_id


def check_text(name: str, given: object, *, optional: bool = False) -> None:
    """Raises E238."""
    if not isinstance(given, str) and not (optional and given is None):
        raise errors.argument_invalid(name, "text", given)


def check_count(name: str, given: object, *, optional: bool = False) -> None:
    """Raises E238."""
    is_count = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_count and not (optional and given is None):
        raise errors.argument_invalid(name, "a whole number", given)


def check_number(name: str, given: object) -> None:
    """Accept None as well. Raises E238."""
    if given is not None and (not isinstance(given, Real) or isinstance(given, bool)):
        raise errors.argument_invalid(name, "a number", given)


def check_texts(name: str, given: object) -> None:
    """Raises E238 for anything but several texts; one text is not taken for its letters."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise errors.argument_invalid(name, "a list of texts", given)
    if isinstance(given, Sequence | set | frozenset):
        for text in given:
            check_text(name, text)


def check_filter(given: object) -> None:
    """Raises E238."""
    if given is not None and not isinstance(given, Mapping):
        check_texts("filter", given)


def check_search(query: object, limit: object, condition: object, options: object) -> None:
    """Check what every search is called with. Raises E238."""
    check_text("query", query)
    check_count("limit", limit)
    check_filter(condition)
    if options is not None and not isinstance(options, SearchOptions):
        raise errors.argument_invalid("options", "SearchOptions", options)


def check_documents(given: object) -> Iterator[Document]:
    """Return the documents, each checked when it is taken. Raises E238; E213 from the iterator."""
    if isinstance(given, str | bytes | Mapping | Document) or not isinstance(given, Iterable):
        raise errors.argument_invalid("documents", "a list of Document", given)
    return map(_check_document, given)


def _check_document(given: object) -> Document:
    if not isinstance(given, Document):
        raise errors.argument_invalid("documents", "a list of Document", given)
    for name in ("id", "text", "title", "url"):
        if not isinstance(getattr(given, name), str):
            raise errors.document_invalid(str(given.id), f"its {name} is not a text")
    if not isinstance(given.metadata, Mapping):
        raise errors.document_invalid(given.id, "its metadata is not a mapping")
    if given.vector is not None and (isinstance(given.vector, str | bytes) or not hasattr(given.vector, "__len__")):
        raise errors.document_invalid(given.id, "its vector is not a list of numbers")
    if given.vector is None and not given.text.strip():
        raise errors.document_invalid(given.id, "its text is blank")
    return given


@dataclass(frozen=True, slots=True)
class GraphRows:
    """What a document says about entities. Chunks are named by their number in the document."""

    mentions: tuple[tuple[str, float, int], ...] = ()
    """Entity, weight, chunk."""
    edges: tuple[tuple[str, str, str, float, int], ...] = ()
    """Source entity, target entity, kind, weight, chunk."""
    is_complete: bool = field(default=True, compare=False)
    """False when a model could not be reached for some chunks: the document is extracted again by the next write."""


NO_GRAPH = GraphRows()
"""This very one stands for none: a document that names nothing has a graph of its own, which is empty."""
NO_GRAPH_YET = GraphRows(is_complete=False)
"""The same, for a document whose chunks a model could not be asked about."""
