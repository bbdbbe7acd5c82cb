"""Bodies and parameters of requests, and bodies of responses.

A request model validates the request and describes it in the OpenAPI document. Handlers build responses as
dictionaries; tests compare them with the models here. `descriptions.json` describes fields by name.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import pydantic
import pydantic_core
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from fastapi import Header, Path
from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, create_model
from pydantic.alias_generators import to_camel
from starlette import convertors

from pair import errors
from pair.app.kb_access import first_problem, strict
from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import Facet, StoredDocument
from pair.engine.query.graph_view import Neighbourhood
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.kb.diff import ChangedDocument
from pair.sync.report import SourceState, SourceStatus, SyncReport
from pair.values import DEFAULT_MODE, Document, SearchMode


def _check_conditions(value: Any) -> Any:
    """Refuse the first item that is not a string: pydantic would describe every wrong item."""
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise ValueError("a list of conditions must contain strings")
    return value


KbId = Annotated[str, MaxLen(128)]
KbIds = Annotated[list[KbId], MinLen(1), MaxLen(16)]
Filter = Annotated[
    dict[str, Any] | list[str] | None, BeforeValidator(_check_conditions), Field(examples=[{"year": {"gte": 2020}}])
]
_VersionText = Annotated[str, MinLen(1), MaxLen(200)]
VersionName = Annotated[int, Ge(1), Le(2**53)] | _VersionText
Limit = Annotated[int, Ge(1), Le(1000)]
Vector = Annotated[list[float], MinLen(1), MaxLen(4096)]
Ids = Annotated[list[str], MaxLen(1000)]
Flag = Literal["true", "false"]
Ok = Literal["ok"]
_YEAR_SECONDS = 31_536_000
_Shape = TypeVar("_Shape")
_adapters: dict[type[Any], "pydantic.TypeAdapter[Any]"] = {}


def _also(name: str, other: str) -> Any:
    """Accept a field under the name that other interfaces of pair use."""
    return Field(validation_alias=AliasChoices(name, other))


@strict
class DocumentIn:
    """A document to store."""

    text: str
    id: Annotated[str, MaxLen(4096)] | None = None
    title: str | None = None
    url: str | None = None
    metadata: dict[str, Any] | None = None
    vector: Vector | None = None

    def to_document(self) -> Document:
        return Document(self.id or "", self.text, self.title or "", self.url or "", self.metadata or {}, self.vector)


@strict
class IngestRequest:
    """Documents to add or replace. Unchanged documents are skipped."""

    documents: Annotated[list[DocumentIn], MinLen(1), FailFast()]
    kb_id: KbId = ""
    graph_enabled: bool | None = None
    chunk_size: Annotated[int, Ge(50)] | None = None


@strict
class QueryRequest:
    """A search."""

    query: Annotated[str, MaxLen(20_000)] = ""
    kb_id: Annotated[KbId | KbIds, _also("kb_id", "kb")] = ""
    k: Annotated[Limit, _also("k", "limit")] = 5
    vector: Vector | None = None
    search_mode: Annotated[SearchMode, _also("search_mode", "mode")] = DEFAULT_MODE
    filter: Filter = None
    max_distance: float | None = None
    highlights: bool = False
    explain: bool = False
    diversity: Annotated[float, Ge(0), Lt(1)] = 0.0
    allow_weak: bool = False
    at: VersionName | None = None


@dataclass(frozen=True)
class AskTrace:
    """The trace that the question belongs to. The `traceparent` header takes precedence."""

    traceId: Annotated[str, MaxLen(128)]  # noqa: N815 - named by the librarian protocol
    spanId: Annotated[str, MaxLen(128)]  # noqa: N815


@dataclass(frozen=True)
class AskBudget:
    """Limits for all librarians together. The settings of the server set the maximum."""

    calls: int
    tokens: int


@dataclass(frozen=True)
class AskContext:
    """Details of the question. Other fields are ignored, in particular those about the user."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)
    delegationChain: Annotated[list[str], MaxLen(100)] | None = None  # noqa: N815
    metadata: dict[str, Any] | None = None
    timeout: Annotated[float, Gt(0)] | None = None
    trace: AskTrace | None = None
    budget: AskBudget | None = None


@strict
class AskRequest:
    """A question in plain words. The credentials identify the user; `context` cannot."""

    query: Annotated[str, MinLen(1)]
    kb_id: Annotated[KbId, _also("kb_id", "kb")] = ""
    context: AskContext | None = None
    version: str | None = None
    requestId: str | None = None  # noqa: N815
    timestamp: str | None = None
    at: VersionName | None = None
    receipt: bool = False


@strict
class ListRequest:
    """Documents to list, by ids and a filter. Ids that no document has are ignored."""

    kb_id: KbId = ""
    ids: Ids | None = None
    filter: Filter = None
    owner: str | None = None
    after: str = ""
    limit: Limit = 100
    text: bool = True
    vectors: bool = False
    at: VersionName | None = None


@strict
class DeleteRequest:
    """Documents to delete, by ids or a filter. Ids that no document has are ignored."""

    kb_id: KbId = ""
    ids: Ids | None = None
    filter: Filter = None


@strict
class CompactRequest:
    kb_id: KbId = ""
    everything: bool = False


@strict
class GcRequest:
    kb_id: KbId = ""
    grace_seconds: Annotated[float, Ge(0), Le(_YEAR_SECONDS)] | None = None


@strict
class SyncRequest:
    kb_id: KbId = ""
    wait: bool = True


@strict
class LinkRequest:
    """A web page to sync."""

    url: Annotated[str, MinLen(1), MaxLen(2000), Field(examples=["https://example.com/guide"])]


@strict
class RollbackRequest:
    version: VersionName
    kb_id: KbId = ""


@strict
class SweepRequest:
    pass


class _TextConvertor(convertors.StringConvertor):
    """Any non-empty text in a path, including slashes and line breaks."""

    regex = "(?s:.+)"


convertors.register_url_convertor("text", _TextConvertor())


def _check_printable(key: str) -> str:
    if not key.isprintable():
        raise ValueError("it has at most 255 printable characters")
    return key


PathId = Annotated[str, Path(min_length=1)]
IdempotencyKey = Annotated[str, AfterValidator(_check_printable), Header(alias="Idempotency-Key", max_length=255)]


class KbParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""


class DocumentParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    at: _VersionText | None = None


class ListParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    at: _VersionText | None = None
    owner: str | None = None
    contains: Annotated[str, MaxLen(200)] = ""
    filter: str = ""
    after: str = ""
    limit: Limit = 100
    text: Flag = "false"


class FacetParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    key: Annotated[str, MinLen(1)]
    at: _VersionText | None = None
    filter: str = ""
    owner: str | None = None
    limit: Limit = 100


class DiffParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    a: _VersionText
    b: _VersionText = "current"
    entries: Flag = "true"
    text: Flag = "false"
    after: str = ""
    limit: Limit = 100


class GraphQuery(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    document: Annotated[str, MaxLen(4096)] = ""
    entity: Annotated[str, MaxLen(200)] = ""
    limit: Annotated[int, Ge(1), Le(100)] = 30
    at: _VersionText | None = None


class SyncParameters(BaseModel, extra="forbid"):
    state: SourceState | None = None
    after: str = ""
    limit: Limit = 100


class IngestParameters(BaseModel, extra="forbid"):
    """Options of a stream of documents, and defaults for a JSON body."""

    kb_id: KbId = ""
    graph_enabled: Flag | None = None
    chunk_size: Annotated[int, Ge(50)] | None = None

    @property
    def graph(self) -> bool | None:
        return None if self.graph_enabled is None else self.graph_enabled == "true"


def adapter(shape: type[_Shape]) -> "pydantic.TypeAdapter[_Shape]":
    """Return the validator of a type. Validators are built once."""
    return _adapters.get(shape) or _adapters.setdefault(shape, pydantic.TypeAdapter(shape))


def read(shape: type[_Shape], body: bytes, *, where: str = "") -> _Shape:
    """Parse a JSON body. Raises E601."""
    try:
        pydantic_core.from_json(body, allow_inf_nan=False)
        return adapter(shape).validate_json(body, strict=True)
    except pydantic.ValidationError as fault:
        raise errors.request_invalid(where + first_problem(fault)) from fault
    except ValueError as fault:
        raise errors.request_invalid(f"{where}not JSON: {str(fault)[:200]}") from fault


# ── responses ─────────────────────────────────────────────────────────────────────────────────────────


def _extend(name: str, report: type[Any], more: dict[str, Any]) -> type[BaseModel]:
    """Return a model with the JSON fields of a dataclass or struct. `more` adds, replaces or (None) removes fields."""
    fields: dict[str, Any] = get_type_hints(report)
    if issubclass(report, msgspec.Struct):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(report)}
    fields = {field: kind for field, kind in {**fields, **more}.items() if kind is not None}
    model: type[BaseModel] = create_model(name, **fields)
    return model


class OpenApiDocument(BaseModel, extra="allow"):
    openapi: str


class ErrorDetails(BaseModel):
    code: str
    message: str
    recoverable: bool = False
    suggestion: str = ""


class Error(BaseModel):
    error: ErrorDetails


class OpenAiErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAiError(BaseModel):
    error: OpenAiErrorDetails


class OtherPlace(BaseModel):
    """Another document with the same passage."""

    id: str
    chunk_id: str
    title: str
    url: str
    start: int
    end: int


class QueryResult(BaseModel):
    """A passage and the document that contains it."""

    kb_id: str = ""
    id: str
    chunk_id: str
    title: str
    url: str
    start: int
    end: int
    content: str
    score: float | None
    distance: float | None
    graph_score: float | None
    metadata: dict[str, Any]
    also_in: list[OtherPlace]
    highlights: list[tuple[int, int]]
    also_in_count: int = 0
    explanation: dict[str, float | str | None] | None = None
    lifecycle: dict[str, str] | None = None


class QueryResponse(BaseModel):
    kb_id: str | list[str]
    search_mode: str
    mode_used: str
    took_ms: float
    manifest_version: int | dict[str, int]
    partial: bool
    reason: str = ""
    results: list[QueryResult]


class KbListResponse(BaseModel):
    kbs: list[EngineStats]


DocumentResponse = _extend("DocumentResponse", StoredDocument, {"kb_id": str, "vector": None})
DocumentItem = _extend("DocumentItem", StoredDocument, {"text": (str, ""), "vector": (list[float] | None, None)})


class DocumentListResponse(BaseModel):
    kb_id: str
    documents: list[DocumentItem]  # type: ignore[valid-type]
    next: str | None
    count: int


class FacetListResponse(BaseModel):
    kb_id: str
    key: str
    values: list[Facet]


class LinkResponse(BaseModel):
    status: Ok
    added: bool


class DeleteResponse(BaseModel):
    status: Ok
    kb_id: str
    manifest_version: int
    deleted: int


class IngestResponse(BaseModel):
    status: Ok
    kb_id: str
    manifest_version: int
    ingested_docs: int
    ingested_chunks: int
    replaced_docs: int
    unchanged_docs: int
    doc_ids: list[str]


GraphResponse = _extend("GraphResponse", Neighbourhood, {"kb_id": str, "document": str, "entity": str})
VersionEntry = _extend("VersionEntry", ListedVersion, {})


class VersionListResponse(BaseModel):
    kb_id: str
    versions: list[VersionEntry]  # type: ignore[valid-type]
    may_roll_back: bool


class DiffResponse(BaseModel):
    kb_id: str
    a: int
    b: int
    added: int
    removed: int
    changed: int
    documents: list[ChangedDocument]
    next: str | None


class SourceProblem(BaseModel):
    source: str
    reason: str


class SkippedFile(BaseModel):
    path: str
    reason: str


_DONE = {"status": Ok, "kb_id": str}
RollbackResponse = _extend("RollbackResponse", Rollback, {"status": Ok})
CompactResponse = _extend("CompactResponse", CompactionReport, _DONE)
GcResponse = _extend("GcResponse", GarbageReport, _DONE)
SweepResponse = _extend("SweepResponse", SweepReport, {"status": Ok})
SyncResponse = _extend(
    "SyncResponse",
    SyncReport,
    {**_DONE, "problems": list[SourceProblem], "skipped": list[SkippedFile], "newly_skipped": None},
)


class SourceListResponse(BaseModel):
    enabled: bool
    run: dict[str, Any]
    states: dict[SourceState, int]
    sources: list[SourceStatus]
    next: str | None


class LibrarianCard(BaseModel, extra="allow"):
    id: str
    name: str = ""
    description: str = ""
    answers_from: str
    public: bool


class LibrarianListResponse(BaseModel):
    first: str
    librarians: list[LibrarianCard]


class CitedPassage(BaseModel, extra="allow", alias_generator=to_camel):
    """The place of a quoted passage. Other fields identify the version that was read."""

    kb_id: str
    document_id: str
    chunk_id: str
    start: int
    end: int


class AnswerSource(BaseModel, extra="allow"):
    name: str
    url: str = ""
    type: str = ""
    relevance: float | None = None
    id: str = ""
    quote: str = ""
    provenance: CitedPassage | None = None


class AnswerMetadata(BaseModel, extra="allow"):
    """Details of the answer. Librarians can add fields."""

    outcome: str = ""


class AskResponse(BaseModel, extra="allow"):
    """An answer or an error. Empty fields are left out."""

    answer: str | None = None
    sources: list[AnswerSource] = []
    confidence: float | None = None
    partial: bool = False
    error: dict[str, Any] | None = None
    metadata: AnswerMetadata = Field(default_factory=AnswerMetadata)
    receipt: str | None = None
