"""The input and output of a librarian: Librarian, Context, Response, ErrorCode and their JSON.

Invariants
    Values are frozen all the way down: mappings are read-only copies, lists are tuples.
    JSON uses the field names of the specification; unknown fields are kept in `metadata`.
Not here
    Validation of responses: rules.py. Calls of librarians: dispatch.py.
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
    """Return an immutable copy: mappings become read-only, lists become tuples."""
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
    """Return the JSON name of each field: its name in camelCase, without the unit of the timeout."""
    names = {}
    for member in fields(kind):
        first, *others = member.name.removesuffix("_ms").split("_")
        if member.name not in _NOT_IN_JSON:
            names[member.name] = first + "".join(word.capitalize() for word in others)
    return names


class ContractValue:
    """A deeply frozen value of the contract that converts to and from JSON."""

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name in _containers(kind):
            given = getattr(self, name)
            if given is not NO_METADATA and given is not _EMPTY:
                object.__setattr__(self, name, freeze(given))

    def to_json(self) -> dict[str, Any]:
        """Return the fields that have a value, by their JSON names."""
        kind: Any = type(self)
        written: dict[str, Any] = {}
        for name, json_name in json_names(kind).items():
            value = getattr(self, name)
            if value is None or (not value and isinstance(value, str | tuple | Mapping)):
                continue
            if (
                name == "partial" and value is False
            ):  # `recoverable: false` carries information, `partial: false` does not.
                continue
            written[json_name] = _plain(value)
        return written

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the fields by their JSON names; unknown ones go to `metadata`, and null counts as missing.

        Raises ValueError or TypeError for values of the wrong shape.
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
        raise TypeError(f"{name} is not a list")
    return tuple(kind.from_json(_mapping(item, name)) for item in value)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is not an object")
    return value


class Librarian(Protocol):
    """Any `async def (query, context=None) -> Response`. It answers, delegates, or returns an error."""

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
    """Return the error code for an exception."""
    if isinstance(fault, TimeoutError):
        return ErrorCode.TIMEOUT
    return next((code for kind, code in _CODES_OF_ERRORS if isinstance(fault, kind)), ErrorCode.INTERNAL_ERROR)


# ── parties ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LibrarianInfo(ContractValue):
    """The card of a librarian: its public description."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    team: str = ""
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class User(ContractValue):
    """The user who asks, as verified by the server."""

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
    """A librarian to which a question may be delegated."""

    id: str
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    endpoint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget(ContractValue):
    """The remaining budget of one question, for all librarians together."""

    calls: int
    """The number of librarian calls."""
    tokens: int
    """The estimated number of tokens that language models read and write."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(int(value["calls"]), int(value["tokens"]))


# ── input ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Context(ContractValue):
    """The context of a question: everything that a librarian may use. Every field is optional."""

    librarian: LibrarianInfo | None = None
    """The librarian that is asked."""
    user: User | None = None
    """The user. In JSON this is only a claim: a server replaces it with the user that it verified."""
    trace: TraceContext | None = None
    delegation_chain: tuple[str, ...] = ()
    """The librarians that the question has passed through; the one that is asked comes last."""
    ai: LanguageModel | None = None
    """The language model. Not in JSON."""
    available_delegates: tuple[Delegate, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    timeout_ms: int | None = None
    """The time left when the librarian is called, in milliseconds."""
    budget: Budget | None = None
    on_text: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with each piece of an answer while the answer is written. Not in JSON."""


# ── output ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Provenance(ContractValue):
    """The origin of a passage: enough to find it again and to detect changes."""

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
    """A passage that an answer cites: one of `sources` in JSON."""

    name: str
    url: str = ""
    type: str = "document"
    relevance: float | None = None
    timestamp: str = ""
    id: str = ""
    """The id by which `pair cite` finds the passage."""
    quote: str = ""
    """The passage itself."""
    provenance: Provenance | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DelegateRequest(ContractValue):
    to: str
    query: str = ""
    """The refined question; "" to delegate the same question."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Metadata that is merged into the context of the delegate."""
    fallback: str = ""
    """The librarian that is asked when `to` cannot answer."""
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
    """An answer, a request to delegate, or an error; an answer may come with either."""

    answer: str | None = None
    sources: tuple[Citation, ...] = ()
    confidence: float | None = None
    partial: bool = False
    delegate: DelegateRequest | tuple[DelegateRequest, ...] | None = None
    """Several delegates are asked in parallel."""
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
        """Return an error response. The dispatcher fills missing fields with defaults for the code."""
        return Response(error=ErrorInfo(code, message, recoverable=recoverable, suggestion=suggestion, details=details))

    @staticmethod
    def of_fault(fault: error_tree.PairError) -> "Response":
        """Return the error response for an error of pair."""
        return Response.failing(
            code_of(fault),
            fault.message_without("path", "folder"),
            recoverable=fault.retryable,
            suggestion="\n".join(fault.hints),
            details={"code": fault.code},
        )

    @property
    def delegates(self) -> tuple[DelegateRequest, ...]:
        """The requests of `delegate` as a tuple."""
        if isinstance(self.delegate, tuple):
            return self.delegate
        return () if self.delegate is None else (self.delegate,)


_LISTS = frozenset({"availableDelegates", "sources", "delegate"})
"""The JSON fields that are lists; `delegate` may also be a single object."""
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
_IMMUTABLE |= {Citation, Delegate, DelegateRequest}  # Every question calls `freeze` many times.
