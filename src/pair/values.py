"""Frozen values that the parts of pair exchange, checks of arguments from callers, and JSON read into typed values."""

import datetime
import hashlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args

import msgspec

from pair import errors

LONGEST_WAIT_SECONDS = 86_400
"""The longest wait that a setting allows: sockets cannot wait longer."""
INGEST_OWNER = "ingest"
"""The default owner of stored documents."""
SYNC_OWNER = "sync"
"""The owner of documents that come from synced sources."""

SearchMode = Literal["hybrid", "keyword", "vector", "graph", "adaptive"]
MODES: tuple[SearchMode, ...] = get_args(SearchMode)
DEFAULT_MODE: SearchMode = "hybrid"

_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
_CITED_HASH_CHARACTERS = 12
_PART_OF_KEY = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+"
_KEY = re.compile(f"{_PART_OF_KEY}(?:/{_PART_OF_KEY})*")
"""The pattern of the key of a blob. It has no backslash, which SeaweedFS treats as a slash."""
_MAX_KEY_BYTES = 1000
"""Maximum length of a key in bytes. S3 allows 1,024 bytes, including the prefix of the store."""
_KB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_USER_OF_URL = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_SECRET_OF_URL = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|password|passwd|signature|credential|api[_-]?key)|sig|auth)=)[^&;#\s]*",
    re.IGNORECASE,
)


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def redact_url(url: str) -> str:
    """Return a URL, or a text with URLs, without user names, passwords and tokens."""
    return _SECRET_OF_URL.sub(r"\1…", _USER_OF_URL.sub(r"\1", url))


def check_key(key: str) -> str:
    """Return the key of a blob. Raises ValueError for a key that some store cannot hold."""
    if reason := find_key_fault(key):
        raise ValueError(f"{reason}: {key!r}")
    return key


def find_key_fault(key: str) -> str:
    """Return why some store cannot hold a key; "" if all can."""
    if not _KEY.fullmatch(key):
        return "a key must not have empty parts, `.`, `..`, control characters, backslashes or surrogates"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"a key has at most {_MAX_KEY_BYTES} bytes in UTF-8"
    return ""


SourceType = Literal["url", "local", "monorepo", "github-release", "git"]
_OPTIONAL_FIELDS = {
    "version": "version",
    "sha256": "sha256",
    "manifestSha256": "manifest_sha256",
    "feed": "feed",
    "name": "name",
}
"""Optional fields of a source, by their names in JSON."""


@dataclass(frozen=True, slots=True)
class KbSource:
    """The source of a whole KB. `location` is an absolute path or a URL (for git with its `#ref`)."""

    type: SourceType
    location: str
    requires_download: bool
    version: str | None = None
    """The version of a release, from its feed."""
    sha256: str | None = None
    """The hash of the archive, if the release feed has it."""
    feed: str | None = None
    """The release feed, as the user wrote it, with the KB and version after `#` if given."""
    manifest_sha256: str | None = None
    """The hash of the manifest next to the archive, if the release feed has it."""
    name: str | None = None
    """The name of the package, if the release feed has it. The package must have the same name."""

    def to_json(self) -> dict[str, Any]:
        value = {"type": self.type, "location": self.location, "requiresDownload": self.requires_download}
        optional = {name: getattr(self, field) for name, field in _OPTIONAL_FIELDS.items()}
        return value | {name: text for name, text in optional.items() if text is not None}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "KbSource":
        """Return the source. Raises ValueError, KeyError."""
        optional = {field: value.get(name) for name, field in _OPTIONAL_FIELDS.items()}
        source = KbSource(value["type"], value["location"], value["requiresDownload"], **optional)
        texts = (source.location, *(text or "" for text in optional.values()))
        if source.type not in get_args(SourceType) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a valid source of a KB")
        return source


@dataclass(frozen=True, slots=True)
class Document:
    """A document to store. If it has a vector, its text is one chunk and is not embedded."""

    id: str
    text: str
    title: str = ""
    url: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class GraphParameters:
    """How a search spreads over the graph."""

    hops: int = 1
    """Number of hops, each from chunks over their entities to other chunks."""
    alpha: float = 0.5
    """The share of the hybrid score in the ranking score; the rest is the share of the graph."""
    decay: float = 0.85
    """The probability of continuing at each step."""
    edge_types: tuple[str, ...] | None = None
    """Kinds of edges to follow; None for all kinds except co-occurrence, which mentions already show."""
    seeds: int = 5
    """Number of hits to start from."""
    question_share: float = 0.5
    """The share of the start weight for the entities of the question, if the graph has any of them."""
    most_common: float = 0.05
    """An entity in more than this share of the chunks is ignored."""
    most_links: int = 500
    """Maximum number of mentions to follow in one hop, rare entities first."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options that few searches need."""

    max_distance: float | None = None
    """Return only hits with vectors strictly nearer than this."""
    highlights: bool = False
    """Return the places of matches in the text of each hit."""
    diversity: float = 0.0
    """Prefer hits unlike those before them: from 0 (not at all) to below 1."""
    graph: GraphParameters = field(default_factory=GraphParameters)
    """How the modes `graph` and `adaptive` spread over the graph."""
    allow_weak: bool = False
    """Return the best passages even if none of them seems relevant."""
    vector: Sequence[float] | None = None
    """The vector of the query. By default the embedder of the KB computes it."""

    def __post_init__(self) -> None:
        check_number("max_distance", self.max_distance)
        if not isinstance(self.diversity, Real) or not 0.0 <= self.diversity < 1.0:
            raise errors.query_invalid(f"diversity must be at least 0 and below 1: {self.diversity}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document's text: `text[start:end]`."""

    text: str
    start: int
    end: int
    context: str = ""
    """The headings above the chunk, outermost first: "Install > Linux"."""


@dataclass(frozen=True, slots=True)
class AlsoIn:
    """Another place with the same text as a hit."""

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
    """One search result: a passage of a document."""

    document_id: str
    chunk_id: str
    title: str
    url: str
    text: str
    score: float
    """The estimated probability that it is relevant, comparable across queries and modes."""
    distance: float | None
    metadata: Mapping[str, Any]
    start: int
    end: int
    graph_score: float | None = None
    also_in: tuple[AlsoIn, ...] = ()
    """The first 20 other places with the same text."""
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and end of each match in `text`, ascending, without overlap."""
    explanation: Mapping[str, float | str] | None = None
    """The parts of the score; set if `explain` was requested."""
    shard: str = ""
    """The content hash of the shard that holds it."""
    also_in_count: int = 0
    """Number of other places with the same text that the search met."""
    kb_id: str = ""
    """The KB, if several KBs were searched."""

    def cite(self, kb_id: str) -> str:
        """Return the id of a citation of this passage: `KB/DOCUMENT#START-END@HASH`."""
        return f"{kb_id}/{self.document_id}#{self.start}-{self.end}@{hash_text(self.text)[:_CITED_HASH_CHARACTERS]}"

    @property
    def lifecycle(self) -> dict[str, str]:
        """The state of its document today: see `read_lifecycle`."""
        return read_lifecycle(self.metadata)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            **({"kb_id": self.kb_id} if self.kb_id else {}),
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
        if lifecycle := self.lifecycle:
            value["lifecycle"] = lifecycle
        return value


def read_lifecycle(metadata: Mapping[str, Any], today: str = "") -> dict[str, str]:
    """Return the state of a document by the fields of the Open Knowledge Format; empty if the document has none.

    `status`: draft or deprecated. `stale_since`: the day since which it is stale, if that day has come. `verified_by`:
    person or machine, and `verified_at`, the last time. `today`: ISO 8601; by default the day in UTC.
    """
    state: dict[str, str] = {}
    if metadata.get("status") in ("draft", "deprecated"):
        state["status"] = metadata["status"]
    stale_after = metadata.get("stale_after")
    if isinstance(stale_after, str) and _ISO_DATE.match(stale_after):
        today = today or datetime.datetime.now(datetime.UTC).date().isoformat()
        if today >= stale_after[:10]:
            state["stale_since"] = stale_after[:10]
    verified = metadata.get("verified")
    given = verified if isinstance(verified, list | tuple) else [verified]
    checks = [each for each in given if isinstance(each, Mapping) and isinstance(each.get("by"), str)]
    if checks:
        is_by_person = any(check["by"].startswith("human:") for check in checks)
        state["verified_by"] = "person" if is_by_person else "machine"
        if times := [check["at"] for check in checks if isinstance(check.get("at"), str)]:
            state["verified_at"] = max(times)
    return state


def describe_lifecycle(state: Mapping[str, str]) -> str:
    """Return the state of a document in a few words; "" for no state."""
    parts = [state["status"]] if "status" in state else []
    if "stale_since" in state:
        parts.append(f"stale since {state['stale_since']}")
    if "verified_by" in state:
        at = f" on {state['verified_at'][:10]}" if "verified_at" in state else ""
        parts.append(f"verified by a {state['verified_by']}{at}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Hits:
    """The hits of a search, best first, with the state of the search."""

    passages: tuple[Hit, ...]
    manifest_version: int
    """The searched version; 0 for the hits of several KBs."""
    shards_asked: int
    partial: bool = False
    """Whether some shards could not be searched."""
    faults: tuple[str, ...] = ()
    """The files that could not be read, with reasons."""
    mode_used: SearchMode = "vector"
    reason: str = ""
    """Why `adaptive` did or did not use the graph; why there are no hits although passages were found."""
    commit_id: str = ""
    """The commit of the manifest. Another store may have another manifest with the same number."""
    embedder: str = ""
    """The embedder of the KB."""
    term_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each query word in this KB: rare words weigh more. Empty in modes without keywords."""
    near_misses: int = 0
    """Passages that were found but are not returned, because none of them seems relevant."""

    @property
    def texts(self) -> list[str]:
        return [hit.text for hit in self.passages]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.passages)

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, position: int) -> Hit:
        return self.passages[position]


def merge_hits(found: Mapping[str, Hits], limit: int) -> Hits:
    """Return the best hits of several KBs, by score. The names of the KBs are the keys.

    A score estimates the same probability in every KB, so the scores of different KBs compare.
    """
    passages = [replace(hit, kb_id=kb_id) for kb_id, hits in found.items() for hit in hits]
    reasons = dict.fromkeys(f"{kb_id}: {hits.reason}" for kb_id, hits in found.items() if hits.reason)
    return Hits(
        tuple(sorted(passages, key=lambda hit: -hit.score)[:limit]),
        manifest_version=0,
        shards_asked=sum(hits.shards_asked for hits in found.values()),
        partial=any(hits.partial for hits in found.values()),
        faults=tuple(f"{kb_id}: {fault}" for kb_id, hits in found.items() for fault in hits.faults),
        mode_used=next(iter(found.values())).mode_used,
        reason="" if passages else "; ".join(reasons),
        near_misses=sum(hits.near_misses for hits in found.values()),
    )


# ── checks of arguments ────────────────────────────────────────────────────────────────────────────
# Not all callers are type-checked: wrong arguments are refused here, before they cause errors elsewhere.


def is_kb_id(kb_id: object) -> bool:
    return isinstance(kb_id, str) and _KB_ID.fullmatch(kb_id) is not None


def check_kb_id(kb_id: str) -> str:
    """Return the name of a KB if it is valid. Raises E212."""
    if not is_kb_id(kb_id):
        raise errors.kb_id_invalid(kb_id)
    return kb_id


def check_text(name: str, given: object, *, optional: bool = False) -> None:
    """Raise E238 unless a string is given."""
    if not isinstance(given, str) and not (optional and given is None):
        raise errors.argument_invalid(name, "text", given)


def check_count(name: str, given: object, *, optional: bool = False) -> None:
    """Raise E238 unless a whole number is given."""
    is_count = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_count and not (optional and given is None):
        raise errors.argument_invalid(name, "a whole number", given)


def check_number(name: str, given: object) -> None:
    """Raise E238 unless a number or None is given."""
    if given is not None and (not isinstance(given, Real) or isinstance(given, bool)):
        raise errors.argument_invalid(name, "a number", given)


def check_texts(name: str, given: object) -> None:
    """Raise E238 unless a list of strings is given; a single string is refused."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise errors.argument_invalid(name, "a list of strings", given)
    if isinstance(given, Sequence | set | frozenset):
        for text in given:
            check_text(name, text)


def check_filter(given: object) -> None:
    """Raise E238 unless None, a mapping or several strings are given."""
    if given is not None and not isinstance(given, Mapping):
        check_texts("filter", given)


def check_search(query: str, mode: str, limit: object, condition: object, options: object) -> SearchMode:
    """Check the arguments of a search, and return its mode. Raises E238; E215 for a mode or query that is not valid."""
    check_text("query", query)
    check_count("limit", limit)
    check_filter(condition)
    if options is not None and not isinstance(options, SearchOptions):
        raise errors.argument_invalid("options", "SearchOptions", options)
    if mode not in MODES:
        raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
    if not query.strip():
        raise errors.query_invalid("the query is empty")
    return mode


def check_load(documents: object, owner: str, chunk_size: int | None) -> Iterator[Document]:
    """Check the arguments of a load, and return an iterator that checks each document. Raises E238."""
    check_text("owner", owner)
    check_count("chunk_size", chunk_size, optional=True)
    return check_documents(documents)


def check_documents(given: object) -> Iterator[Document]:
    """Return an iterator that checks each document. Raises E238; the iterator raises E213."""
    if isinstance(given, str | bytes | Mapping | Document) or not isinstance(given, Iterable):
        raise errors.argument_invalid("documents", "a list of Document", given)
    return map(_check_document, given)


def _check_document(given: object) -> Document:
    if not isinstance(given, Document):
        raise errors.argument_invalid("documents", "a list of Document", given)
    for name in ("id", "text", "title", "url"):
        if not isinstance(getattr(given, name), str):
            raise errors.document_invalid(str(given.id), f"its {name} is not a string")
    if not isinstance(given.metadata, Mapping):
        raise errors.document_invalid(given.id, "its metadata is not a mapping")
    if given.vector is not None and (isinstance(given.vector, str | bytes) or not hasattr(given.vector, "__len__")):
        raise errors.document_invalid(given.id, "its vector is not a list of numbers")
    if given.vector is None and not given.text.strip():
        raise errors.document_invalid(given.id, "its text is blank")
    return given


@dataclass(frozen=True, slots=True)
class GraphRows:
    """The entities and edges of a document. Chunks are identified by their number in the document."""

    mentions: tuple[tuple[str, float, int], ...] = ()
    """Entity, weight, chunk."""
    edges: tuple[tuple[str, str, str, float, int], ...] = ()
    """Source entity, target entity, kind, weight, chunk."""
    is_complete: bool = field(default=True, compare=False)
    """False if a model was unavailable for some chunks: the next write extracts the document again."""


NO_GRAPH = GraphRows()
"""The marker for no graph, compared by identity: a document without entities has another, empty graph."""
NO_GRAPH_YET = GraphRows(is_complete=False)
"""The marker for a document whose graph is missing because a model was unavailable."""

_Value = TypeVar("_Value")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_describing = threading.RLock()
"""msgspec describes a type when it reads it for the first time. A second thread that reads the type meanwhile finds a
description without fields, and the process ends. So one thread at a time describes types."""


def parse_json(content: bytes | memoryview | str | msgspec.Raw, kind: type[_Value]) -> _Value:
    """Parse JSON into a value of this type. Raises msgspec.DecodeError."""
    return _decoder_of(kind).decode(content)


def convert_json(value: Any, kind: type[_Value], *, strict: bool = True) -> _Value:
    """Return the value as one of this type. Raises msgspec.ValidationError. `strict`: no text is taken for a number."""
    _decoder_of(kind)
    return msgspec.convert(value, kind, strict=strict)


def _decoder_of(kind: type[_Value]) -> msgspec.json.Decoder[_Value]:
    if kind not in _decoders:
        with _describing:
            _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]
