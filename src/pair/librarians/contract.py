"""What a librarian is given and gives back: Librarian, Context, Response, ErrorCode and their JSON.

Invariants
    Values are frozen all the way down: mappings are read-only copies, lists are tuples.
    Names in JSON are the specification's; what it does not name is kept in `metadata`.
Not here
    Whether a response is valid: rules.py. Asking: dispatch.py.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, Self

from pair import error_tree
from pair.ai.contract import LanguageModel

NO_METADATA: Mapping[str, Any] = MappingProxyType({})
_EMPTY: tuple[()] = ()
_IMMUTABLE: set[type] = {str, int, float, bool, type(None)}
_NOT_IN_JSON = frozenset({"ai", "on_text"})


def freeze(value: Any) -> Any:
    """Return a copy that nobody can change: mappings are read-only, lists are tuples."""
    if type(value) in _IMMUTABLE or value is NO_METADATA:
        return value
    if isinstance(value, (tuple, list)):
        return tuple([freeze(item) for item in value])
    if isinstance(value, Mapping):
        return MappingProxyType({str(key): freeze(item) for key, item in value.items()}) if value else NO_METADATA
    return frozenset(value) if isinstance(value, (set, frozenset)) else value


@functools.cache
def _containers(kind: Any) -> tuple[str, ...]:
    """Return the fields of a value class that hold lists or mappings."""
    return tuple(
        member.name
        for member in fields(kind)
        if member.default == () or member.default_factory is dict or member.name == "delegate"
    )


@functools.cache
def json_names(kind: Any) -> Mapping[str, str]:
    """Return the name in JSON of each field: the same in camelCase, without the unit of the timeout."""
    names = {}
    for member in fields(kind):
        first, *others = member.name.removesuffix("_ms").split("_")
        if member.name not in _NOT_IN_JSON:
            names[member.name] = first + "".join(word.capitalize() for word in others)
    return names


class ContractValue:
    """A value of the contract: frozen all the way down, with a form in JSON."""

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name in _containers(kind):
            given = getattr(self, name)
            if given is not NO_METADATA and given is not _EMPTY:
                object.__setattr__(self, name, freeze(given))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were given."""
        kind: Any = type(self)
        written: dict[str, Any] = {}
        for name, json_name in json_names(kind).items():
            value = getattr(self, name)
            if value is None or (not value and isinstance(value, str | tuple | Mapping)):
                continue
            if name == "partial" and value is False:  # `recoverable: false` says something, `partial: false` does not
                continue
            written[json_name] = _plain(value)
        return written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the fields by their names in JSON; unknown ones go to `metadata`, and null is not given.

        Raises ValueError or TypeError for what has another shape.
        """
        kind: Any = cls
        names = {json_name: name for name, json_name in json_names(kind).items()}
        read = {names[key]: item for key, item in value.items() if key in names and item is not None}
        unknown = {key: item for key, item in value.items() if key not in names}
        if unknown:
            read["metadata"] = {**_mapping(read.get("metadata", {}), "metadata"), **unknown}
        for name, nested in _NESTED.get(cls, {}).items():
            if name in read:
                read[name] = _read_nested(read[name], json_names(kind)[name], nested)
        return cls(**read)


def _plain(value: Any) -> Any:
    if isinstance(value, ContractValue):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _read_nested(value: Any, name: str, kind: "type[ContractValue]") -> Any:
    if name not in _LISTS or (name == "delegate" and isinstance(value, Mapping)):
        return kind.from_json(_mapping(value, name))
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is no list")
    return tuple(kind.from_json(_mapping(item, name)) for item in value)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is no object")
    return value


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
    """Return the code for anything that was raised."""
    if isinstance(fault, TimeoutError):
        return ErrorCode.TIMEOUT
    return next((code for kind, code in _CODES_OF_ERRORS if isinstance(fault, kind)), ErrorCode.INTERNAL_ERROR)


# ── who ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LibrarianInfo(ContractValue):
    """The card of a librarian: what others may know about it."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    team: str = ""
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class User(ContractValue):
    """Who asks, as verified by the server."""

    id: str
    email: str = ""
    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceContext(ContractValue):
    trace_id: str
    span_id: str
    parent_span_id: str = ""
    start_time: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delegate(ContractValue):
    """A colleague to whom a question may be handed."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget(ContractValue):
    """What one question may still cost, all librarians together."""

    calls: int
    """Calls of librarians."""
    tokens: int
    """Tokens that language models read and write, by estimate."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(int(value["calls"]), int(value["tokens"]))


# ── what is given ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Context(ContractValue):
    """What a librarian may know and use besides the question. Everything is optional."""

    librarian: LibrarianInfo | None = None
    """Who is being asked."""
    user: User | None = None
    """Read from JSON it is a claim: a server replaces it by the user that it verified."""
    trace: TraceContext | None = None
    delegation_chain: tuple[str, ...] = ()
    """Whom the question has passed through, the one being asked last."""
    ai: LanguageModel | None = None
    """Not in JSON."""
    available_delegates: tuple[Delegate, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    timeout_ms: int | None = None
    """Time left when the question was handed over, in milliseconds."""
    budget: Budget | None = None
    on_text: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with each piece of an answer as it is written. Not in JSON."""


# ── what is given back ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Provenance(ContractValue):
    """Enough to find the same passage again, and to see whether it is still the same."""

    kb_id: str
    document_id: str
    chunk_id: str
    start: int
    end: int
    """The passage is `text[start:end]` of the document."""
    content_sha256: str
    """The hash of the passage."""
    last_fetched_at: str = ""
    shard: str = ""
    manifest_version: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Citation(ContractValue):
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
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DelegateRequest(ContractValue):
    to: str
    query: str = ""
    """Refined; "" for the same."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the metadata that the colleague is given."""
    fallback: str = ""
    """Who is asked when `to` cannot answer."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorInfo(ContractValue):
    code: str
    """One of ErrorCode."""
    message: str
    librarian: str = ""
    query: str = ""
    recoverable: bool | None = None
    suggestion: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response(ContractValue):
    """An answer, a request to ask somebody else, or an error; an answer may come with either."""

    answer: str | None = None
    sources: tuple[Citation, ...] = ()
    confidence: float | None = None
    partial: bool = False
    delegate: DelegateRequest | tuple[DelegateRequest, ...] | None = None
    """Several are asked together."""
    error: ErrorInfo | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

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
        """Return an error of pair in the specification's words."""
        return Response.failing(
            code_of(fault),
            fault.message_without("path", "folder"),
            recoverable=fault.retryable,
            suggestion="\n".join(fault.hints),
            details={"code": fault.code},
        )

    @property
    def delegates(self) -> tuple[DelegateRequest, ...]:
        """All requests, as a tuple."""
        if isinstance(self.delegate, tuple):
            return self.delegate
        return () if self.delegate is None else (self.delegate,)


_LISTS = frozenset({"availableDelegates", "sources", "delegate"})
"""In JSON; `delegate` may also be a single one."""
_NESTED: dict[type, dict[str, type[ContractValue]]] = {
    Context: {
        "librarian": LibrarianInfo,
        "user": User,
        "trace": TraceContext,
        "budget": Budget,
        "available_delegates": Delegate,
    },
    Citation: {"provenance": Provenance},
    Response: {"sources": Citation, "delegate": DelegateRequest, "error": ErrorInfo},
}
"""The fields of each class that hold other values of the contract."""
_IMMUTABLE |= {Citation, Delegate, DelegateRequest}  # every question passes `freeze` many times
