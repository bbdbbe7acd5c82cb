"""What a librarian is given and gives back: Librarian, Context, Response, ErrorCode and their JSON.

Invariants
    Values are frozen all the way down: mappings are read-only copies, lists are tuples.
    Names in JSON are the specification's; what it does not name is kept in `metadata`.
Not here
    Whether a response is valid: rules.py. Asking: dispatch.py.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from pair import error_tree
from pair.ai.contract import LanguageModel

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


def _no_metadata() -> Mapping[str, Any]:
    """What `dataclass` would refuse as a default, for it cannot know that it is empty for ever."""
    return NO_METADATA


class Librarian(Protocol):
    """Any `async def (query, context=None) -> Response`. It answers, hands over, or says what went wrong."""

    def __call__(self, query: str, context: "Context | None" = None) -> "Awaitable[Response]": ...


class ErrorCode(StrEnum):
    INVALID_QUERY = "INVALID_QUERY"
    UNAUTHORIZED = "UNAUTHORIZED"
    NOT_FOUND = "NOT_FOUND"
    RATE_LIMITED = "RATE_LIMITED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    TIMEOUT = "TIMEOUT"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
    DELEGATION_FAILED = "DELEGATION_FAILED"
    LOOP_DETECTED = "LOOP_DETECTED"
    MAX_DEPTH_EXCEEDED = "MAX_DEPTH_EXCEEDED"
    AI_UNAVAILABLE = "AI_UNAVAILABLE"
    DATA_SOURCE_ERROR = "DATA_SOURCE_ERROR"


_CODES_OF_ERRORS: tuple[tuple[type[error_tree.PairError], ErrorCode], ...] = (
    (error_tree.UsageError, ErrorCode.INVALID_QUERY),
    (error_tree.NotFoundError, ErrorCode.NOT_FOUND),
    (error_tree.DownloadError, ErrorCode.DATA_SOURCE_ERROR),
    (error_tree.StorageError, ErrorCode.DATA_SOURCE_ERROR),
    (error_tree.DataError, ErrorCode.DATA_SOURCE_ERROR),
    (error_tree.ConflictError, ErrorCode.SERVICE_UNAVAILABLE),
    (error_tree.ModelError, ErrorCode.AI_UNAVAILABLE),
    (error_tree.AccessError, ErrorCode.UNAUTHORIZED),
)


def code_of(fault: BaseException) -> ErrorCode:
    """Of anything that was raised."""
    if isinstance(fault, TimeoutError):
        return ErrorCode.TIMEOUT
    return next((code for kind, code in _CODES_OF_ERRORS if isinstance(fault, kind)), ErrorCode.INTERNAL_ERROR)


# ── who ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LibrarianInfo:
    """The card of a librarian: what others may know about it."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    team: str = ""
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata", "capabilities")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "LibrarianInfo":
        return LibrarianInfo(**_named(value, LibrarianInfo, _SAME))


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, as verified by whoever let the question in."""

    id: str
    email: str = ""
    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata", "teams", "roles")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "User":
        return User(**_named(value, User, _SAME))


_TRACE_NAMES = {"trace_id": "traceId", "span_id": "spanId", "parent_span_id": "parentSpanId", "start_time": "startTime"}


@dataclass(frozen=True, slots=True)
class TraceContext:
    trace_id: str
    span_id: str
    parent_span_id: str = ""
    start_time: str = ""
    attributes: Mapping[str, Any] = field(default_factory=_no_metadata)
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "attributes")
        _freeze(self, "metadata")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _TRACE_NAMES)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "TraceContext":
        return TraceContext(**_named(value, TraceContext, _TRACE_NAMES))


@dataclass(frozen=True, slots=True)
class Delegate:
    """A colleague to whom a question may be handed."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata", "capabilities")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Delegate":
        return Delegate(**_named(value, Delegate, _SAME))


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left for a question and everybody who works on it."""

    calls: int
    """Of librarians."""
    tokens: int
    """Of language models, read and written, as far as they can be told."""

    def to_json(self) -> dict[str, Any]:
        return {"calls": self.calls, "tokens": self.tokens}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Budget":
        return Budget(int(value["calls"]), int(value["tokens"]))


# ── what is given ──────────────────────────────────────────────────────────────────────────────────

_CONTEXT_NAMES = {
    "delegation_chain": "delegationChain",
    "available_delegates": "availableDelegates",
    "request_id": "requestId",
    "timeout_ms": "timeout",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What a librarian may know and use beside the question. Everything is optional."""

    librarian: LibrarianInfo | None = None
    """Who is being asked."""
    user: User | None = None
    trace: TraceContext | None = None
    delegation_chain: tuple[str, ...] = ()
    """Whom the question has passed through, the one being asked last."""
    ai: LanguageModel | None = None
    """Not in JSON."""
    available_delegates: tuple[Delegate, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)
    request_id: str = ""
    timeout_ms: int | None = None
    """Time left when the question was handed over, in milliseconds."""
    budget: Budget | None = None
    on_text: Callable[[str], None] | None = field(default=None, compare=False)
    """Told of each piece of an answer as it is written, where somebody wants to read along. Not in JSON."""

    def __post_init__(self) -> None:
        _freeze(self, "metadata", "delegation_chain", "available_delegates")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _CONTEXT_NAMES, left_out=("ai", "on_text"))

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Context":
        """With the user that the JSON claims: whoever lets requests in replaces it by the one that was verified."""
        read = _named(value, Context, _CONTEXT_NAMES, left_out=("ai", "on_text"))
        for name, kind in (("librarian", LibrarianInfo), ("user", User), ("trace", TraceContext), ("budget", Budget)):
            if read.get(name) is not None:
                read[name] = kind.from_json(_mapping(read[name], name))
        if "available_delegates" in read:
            read["available_delegates"] = tuple(
                Delegate.from_json(_mapping(each, "availableDelegates"))
                for each in _sequence(read["available_delegates"], "availableDelegates")
            )
        return Context(**read)


# ── what is given back ─────────────────────────────────────────────────────────────────────────────

_PROVENANCE_NAMES = {
    "kb_id": "kbId",
    "document_id": "documentId",
    "chunk_id": "chunkId",
    "content_sha256": "contentSha256",
    "last_fetched_at": "lastFetchedAt",
    "manifest_version": "manifestVersion",
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """Enough to find the same passage again, and to see whether it is still the same."""

    kb_id: str
    document_id: str
    chunk_id: str
    start: int
    end: int
    """The passage is `text[start:end]` of the document."""
    content_sha256: str
    """Of the passage."""
    last_fetched_at: str = ""
    shard: str = ""
    manifest_version: int = 0
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _PROVENANCE_NAMES)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Provenance":
        return Provenance(**_named(value, Provenance, _PROVENANCE_NAMES))


@dataclass(frozen=True, slots=True)
class Citation:
    """What an answer points to: one of `sources` in JSON."""

    name: str
    url: str = ""
    type: str = "document"
    relevance: float | None = None
    timestamp: str = ""
    id: str = ""
    """By which `pair cite` finds the passage."""
    quote: str = ""
    """The passage itself."""
    provenance: Provenance | None = None
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Citation":
        read = _named(value, Citation, _SAME)
        if read.get("provenance") is not None:
            read["provenance"] = Provenance.from_json(_mapping(read["provenance"], "provenance"))
        return Citation(**read)


@dataclass(frozen=True, slots=True)
class DelegateRequest:
    to: str
    query: str = ""
    """Refined; "" for the same."""
    context: Mapping[str, Any] = field(default_factory=_no_metadata)
    """Merged into the metadata that the colleague is given."""
    fallback: str = ""
    """Who is asked when `to` cannot answer."""
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "context")
        _freeze(self, "metadata")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "DelegateRequest":
        return DelegateRequest(**_named(value, DelegateRequest, _SAME))


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    code: str
    """One of ErrorCode."""
    message: str
    librarian: str = ""
    query: str = ""
    recoverable: bool | None = None
    suggestion: str = ""
    details: Mapping[str, Any] = field(default_factory=_no_metadata)
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "details")
        _freeze(self, "metadata")

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "ErrorInfo":
        return ErrorInfo(**_named(value, ErrorInfo, _SAME))


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, a request to ask somebody else, or an error; an answer may come with either."""

    answer: str | None = None
    sources: tuple[Citation, ...] = ()
    confidence: float | None = None
    partial: bool = False
    delegate: DelegateRequest | tuple[DelegateRequest, ...] | None = None
    """Several are asked together."""
    error: ErrorInfo | None = None
    metadata: Mapping[str, Any] = field(default_factory=_no_metadata)

    def __post_init__(self) -> None:
        _freeze(self, "metadata", "sources", "delegate")

    @staticmethod
    def delegating(to: str, query: str = "", *, fallback: str = "") -> "Response":
        return Response(delegate=DelegateRequest(to, query, fallback=fallback))

    @staticmethod
    def failing(
        code: ErrorCode,
        message: str,
        *,
        recoverable: bool | None = None,
        suggestion: str = "",
        details: Mapping[str, Any] = NO_METADATA,
    ) -> "Response":
        """Return an error. What is not given is completed from the code when the librarian is asked."""
        return Response(error=ErrorInfo(code, message, recoverable=recoverable, suggestion=suggestion, details=details))

    @staticmethod
    def of_fault(fault: error_tree.PairError) -> "Response":
        """What went wrong, in the specification's words."""
        return Response.failing(
            code_of(fault),
            fault.message_without("path", "folder"),
            recoverable=fault.retryable,
            suggestion="\n".join(fault.hints),
            details={"code": fault.code},
        )

    @property
    def delegates(self) -> tuple[DelegateRequest, ...]:
        """All who are to be asked."""
        if isinstance(self.delegate, tuple):
            return self.delegate
        return () if self.delegate is None else (self.delegate,)

    def to_json(self) -> dict[str, Any]:
        return _to_json(self, _SAME)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Response":
        """Raises ValueError or TypeError for what has another shape."""
        read = _named(value, Response, _SAME)
        if "sources" in read:
            read["sources"] = tuple(
                Citation.from_json(_mapping(each, "sources")) for each in _sequence(read["sources"], "sources")
            )
        if "delegate" in read:
            given = read["delegate"]
            read["delegate"] = (
                DelegateRequest.from_json(given)
                if isinstance(given, Mapping)
                else tuple(
                    DelegateRequest.from_json(_mapping(each, "delegate")) for each in _sequence(given, "delegate")
                )
            )
        if read.get("error") is not None:
            read["error"] = ErrorInfo.from_json(_mapping(read["error"], "error"))
        return Response(**read)


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────────

_SAME: Mapping[str, str] = MappingProxyType({})
"""Names in JSON that differ from ours: none."""


_NOTHING: tuple[()] = ()
# What is frozen as it is. Every question passes here many times.
_FIXED: frozenset[type] = frozenset({str, int, float, bool, type(None), Citation, Delegate, DelegateRequest})


def frozen(value: Any) -> Any:
    """A copy that nobody can change: mappings are read-only, lists are tuples."""
    if type(value) in _FIXED or value is NO_METADATA:
        return value
    if isinstance(value, (tuple, list)):
        return tuple([each if type(each) in _FIXED else frozen(each) for each in value]) if value else ()
    if isinstance(value, Mapping):
        copied = {
            key if type(key) is str else str(key): each if type(each) in _FIXED else frozen(each)
            for key, each in value.items()
        }
        return MappingProxyType(copied) if copied else NO_METADATA
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return value


def _freeze(value: Any, *names: str) -> None:
    for name in names:
        given = getattr(value, name)
        if given is NO_METADATA or given is _NOTHING:
            continue
        kept = frozen(given)
        if kept is not given:
            object.__setattr__(value, name, kept)


def _to_json(value: Any, names: Mapping[str, str], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """Without what was not given."""
    written: dict[str, Any] = {}
    for name, declared in value.__dataclass_fields__.items():
        each = getattr(value, name)
        if name in left_out or each is None or (not each and isinstance(each, str | tuple | Mapping)):
            continue
        if (
            each is False and declared.default is False
        ):  # `recoverable: false` says something, `partial: false` does not
            continue
        written[names.get(name, name)] = _plain(each)
    return written


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value


def _named(
    value: Mapping[str, Any], kind: Any, names: Mapping[str, str], left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Values by our names. What has no place goes to `metadata`; what is null was not given."""
    ours = {names.get(name, name): name for name in kind.__dataclass_fields__ if name not in left_out}
    read = {ours[key]: each for key, each in value.items() if key in ours and each is not None}
    unknown = {key: each for key, each in value.items() if key not in ours}
    if unknown:
        read["metadata"] = {**_mapping(read.get("metadata", {}), "metadata"), **unknown}
    return read


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is no object")
    return value


def _sequence(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is no list")
    return value
