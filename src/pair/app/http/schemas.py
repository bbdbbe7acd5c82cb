"""Bodies of requests and answers.

One declaration of a request checks it and describes it in the OpenAPI document. Handlers build answers as
dictionaries; tests compare them with what is declared here.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import pydantic
import pydantic_core
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from fastapi import Header, Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, create_model
from pydantic.alias_generators import to_camel
from starlette.convertors import Convertor, register_url_convertor

from pair import errors
from pair.app.kb_access import first_problem, strict
from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.query.documents import StoredDocument
from pair.engine.query.graph import EntityEdge, NamedEntity, NamingDocument
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.kb.diff import ChangedDocument
from pair.sync.report import SourceState, SourceStatus, SyncReport
from pair.values import DEFAULT_MODE, Document, SearchMode


def _refuse_other_conditions(value: Any) -> Any:
    """Stop at the first item that is no text: a problem for each of many takes a second, and much memory."""
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise ValueError("a list of conditions holds texts")
    return value


KbId = Annotated[str, MaxLen(128), Field(description="Name of the knowledge base; empty for `default`.")]
Filter = Annotated[
    dict[str, Any] | list[str] | None,
    BeforeValidator(_refuse_other_conditions),
    Field(
        description='Conditions on metadata that must all hold: `{"year": {"gte": 2020}}` or `["year>=2020"]`.',
        examples=[{"year": {"gte": 2020}}],
    ),
]
VersionName = Annotated[int, Ge(1), Le(2**53)] | Annotated[str, MinLen(1), MaxLen(200)]
_AT = "Read this version: its number, or the version of the package installed then."
At = Annotated[VersionName | None, Field(description=_AT)]
AtParameter = Annotated[Annotated[str, MinLen(1), MaxLen(200)] | None, Field(description=_AT)]
_YEAR_SECONDS = 31_536_000
_Shape = TypeVar("_Shape")
Ok = Literal["ok"]
_adapters: dict[type[Any], "pydantic.TypeAdapter[Any]"] = {}


@strict
class DocumentIn:
    """A document to store. The server makes an id if there is none."""

    text: Annotated[str, MinLen(1)]
    id: Annotated[str, MaxLen(4096)] | None = None
    title: str | None = None
    url: str | None = None
    metadata: dict[str, Any] | None = None

    def to_document(self) -> Document:
        return Document(self.id or "", self.text, self.title or "", self.url or "", self.metadata or {})


@strict
class IngestRequest:
    """Documents to add or replace. Unchanged documents are skipped."""

    documents: Annotated[list[DocumentIn], MinLen(1), FailFast()]
    kb_id: KbId = ""
    graph_enabled: Annotated[
        bool | None, Field(description="Extract entities and link documents by them; null for the configured value.")
    ] = None
    chunk_size: Annotated[int, Ge(50)] | None = None


@strict
class QueryRequest:
    """A search."""

    query: Annotated[str, MinLen(1), MaxLen(20_000)]
    kb_id: KbId = ""
    k: Annotated[int, Ge(1), Le(1000), Field(description="Maximum number of results.")] = 5
    search_mode: SearchMode = DEFAULT_MODE
    filter: Filter = None
    max_distance: Annotated[float | None, Field(description="Return only results with a smaller distance.")] = None
    highlights: Annotated[bool, Field(description="Return the positions of matches in `content`.")] = False
    explain: Annotated[bool, Field(description="Explain the score of each result.")] = False
    at: At = None


@dataclass(frozen=True)
class AskTrace:
    __pydantic_config__ = ConfigDict(extra="ignore")
    traceId: Annotated[str, MaxLen(128)]  # noqa: N815 - the names that librarians send
    spanId: Annotated[str, MaxLen(128)]  # noqa: N815


@dataclass(frozen=True)
class AskBudget:
    __pydantic_config__ = ConfigDict(extra="ignore")
    calls: int
    tokens: int


@dataclass(frozen=True)
class AskContext:
    """What is known besides the question. Other fields are ignored, above all those about the user."""

    __pydantic_config__ = ConfigDict(extra="ignore", allow_inf_nan=False)
    delegationChain: Annotated[list[str], MaxLen(100)] | None = None  # noqa: N815
    metadata: dict[str, Any] | None = None
    timeout: Annotated[float, Gt(0), Field(description="Milliseconds.")] | None = None
    trace: AskTrace | None = None
    budget: AskBudget | None = None


@strict
class AskRequest:
    """A question in plain words. The user is taken from the credentials, never from `context`."""

    query: Annotated[str, MinLen(1)]
    kb_id: KbId = ""
    context: AskContext | None = None
    version: str | None = None
    requestId: str | None = None  # noqa: N815 - the name that librarians send
    timestamp: str | None = None
    at: At = None


@strict
class CompactRequest:
    kb_id: KbId = ""
    everything: Annotated[bool, Field(description="Compact every shard, even healthy ones.")] = False


@strict
class GcRequest:
    kb_id: KbId = ""
    grace_seconds: Annotated[float, Ge(0), Le(_YEAR_SECONDS)] | None = None


@strict
class SyncRequest:
    """A sync of files and links that changed."""

    kb_id: KbId = ""
    wait: Annotated[bool, Field(description="Wait for a running sync instead of failing.")] = True


@strict
class RollbackRequest:
    """The version to restore."""

    version: Annotated[VersionName, Field(description="Its number, or the version of the package installed then.")]
    kb_id: KbId = ""


@strict
class SweepRequest:
    pass


class _TextConvertor(Convertor[str]):
    """Any text in a path, with slashes and line breaks, but not an empty one."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _TextConvertor())


def _check_printable(key: str) -> str:
    if not key.isprintable():
        raise ValueError("it has at most 255 printable characters")
    return key


PathId = Annotated[str, Path(min_length=1)]
IdempotencyKey = Annotated[
    str,
    AfterValidator(_check_printable),
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="A second request with the same key gets the first answer, and changes nothing.",
    ),
]


class KbParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""


class DocumentParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    at: AtParameter = None


class ListParameters(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    owner: Annotated[str | None, Field(description="Only documents stored by `sync`, or by `ingest`.")] = None
    contains: Annotated[str, MaxLen(200), Field(description="Only documents with this in their id or title.")] = ""
    after: Annotated[str, Field(description="Start after the document with this id.")] = ""
    limit: Annotated[int, Ge(1), Le(1000)] = 100
    text: Annotated[Literal["true", "false"], Field(description="Include the texts.")] = "false"


class DiffParameters(BaseModel, extra="forbid"):
    a: Annotated[str, MinLen(1), MaxLen(200), Field(description="A version: its number, or that of a package.")]
    b: Annotated[str, MinLen(1), MaxLen(200), Field(description="Another version, or `current`.")] = "current"
    kb_id: KbId = ""
    entries: Annotated[
        Literal["true", "false"], Field(description="Include diffs of the descriptions in `index.txt`.")
    ] = "true"
    text: Annotated[Literal["true", "false"], Field(description="Include diffs of the texts.")] = "false"
    after: Annotated[str, Field(description="Start after the document with this id.")] = ""
    limit: Annotated[
        int, Ge(1), Le(1000), Field(description="Maximum number of documents; fewer if the diffs are long.")
    ] = 100


class GraphQuery(BaseModel, extra="forbid"):
    kb_id: KbId = ""
    document: Annotated[str, MaxLen(4096), Field(description="The graph around the document with this id.")] = ""
    entity: Annotated[str, MaxLen(200), Field(description="The graph around the entity with this name.")] = ""
    limit: Annotated[int, Ge(1), Le(100), Field(description="Maximum number of entities, and of documents.")] = 30
    at: AtParameter = None


class SyncParameters(BaseModel, extra="forbid"):
    state: Annotated[
        Literal["current", "pending", "failing", "skipped"] | None, Field(description="Only sources in this state.")
    ] = None
    after: Annotated[str, Field(description="Start after the source with this id.")] = ""
    limit: Annotated[int, Ge(1), Le(1000)] = 100


class IngestParameters(BaseModel, extra="forbid"):
    """Parameters for a stream of documents, and defaults for a JSON body."""

    kb_id: KbId = ""
    graph_enabled: Literal["true", "false"] | None = None
    chunk_size: Annotated[int, Ge(50)] | None = None

    @property
    def graph(self) -> bool | None:
        return None if self.graph_enabled is None else self.graph_enabled == "true"


def adapter(shape: type[_Shape]) -> "pydantic.TypeAdapter[_Shape]":
    """Return the validator of a shape, made once."""
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


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────


def _extend(name: str, report: type[Any], more: dict[str, Any]) -> type[BaseModel]:
    """Return a model with the fields of a dataclass, and more of them or others in their place."""
    fields: dict[str, Any] = get_type_hints(report) | more
    model: type[BaseModel] = create_model(name, **fields)
    return model


class OpenApiDocument(BaseModel, extra="allow"):
    openapi: str


class ErrorDetails(BaseModel):
    code: str
    message: str
    recoverable: bool = Field(False, description="Whether the same request may succeed later.")
    suggestion: str = ""


class Error(BaseModel):
    error: ErrorDetails


class OpenAiErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str = Field(description="The same codes as on the other routes.")


class OpenAiError(BaseModel):
    error: OpenAiErrorDetails


# ── search and documents ───────────────────────────────────────────────────────────────────────────


class OtherPlace(BaseModel):
    """Another document with the same passage."""

    id: str
    chunk_id: str
    title: str
    url: str
    start: int
    end: int


class QueryResult(BaseModel):
    """One passage, and the document that it is from."""

    id: str = Field(description="Id of the document.")
    chunk_id: str
    title: str
    url: str
    content: str
    score: float | None = Field(description="1 is best. Scores of different modes cannot be compared.")
    distance: float | None
    graph_score: float | None
    metadata: dict[str, Any]
    start: int
    end: int = Field(description="`content` is `text[start:end]` of the document.")
    also_in: list[OtherPlace] = Field(description="Other documents with the same passage, at most 20.")
    highlights: list[tuple[int, int]] = Field(description="Start and end of each match in `content`.")
    also_in_count: int = Field(0, description="Number of other documents, if `also_in` does not list all.")
    explanation: dict[str, float | str | None] | None = None


class QueryResponse(BaseModel):
    kb_id: str
    search_mode: str
    mode_used: str
    took_ms: float
    manifest_version: int
    partial: bool = Field(description="Whether a part of the KB could not be searched.")
    reason: str = Field("", description="Why the answer is partial.")
    results: list[QueryResult]


class KbListResponse(BaseModel):
    kbs: list[EngineStats]


DocumentResponse = _extend("DocumentResponse", StoredDocument, {"kb_id": str})


class DocumentItem(BaseModel):
    id: str
    title: str
    url: str
    owner: str
    metadata: dict[str, Any]
    chunks: int
    content_hash: str
    text: str = Field("", description="Only if it was requested.")


class DocumentListResponse(BaseModel):
    kb_id: str
    documents: list[DocumentItem]
    next: str | None = Field(description="The value of `after` for the next page; null on the last one.")


class IngestResponse(BaseModel):
    status: Ok
    kb_id: str
    ingested_docs: int
    ingested_chunks: int
    replaced_docs: int
    unchanged_docs: int
    manifest_version: int
    doc_ids: list[str]


class DeleteResponse(BaseModel):
    status: Ok
    kb_id: str
    deleted: int
    manifest_version: int


class GraphResponse(BaseModel):
    kb_id: str
    document: str
    entity: str
    entities: list[NamedEntity]
    edges: list[EntityEdge]
    documents: list[NamingDocument]


# ── versions, maintenance and sync ─────────────────────────────────────────────────────────────────


class VersionEntry(BaseModel):
    version: int
    created_at: str
    made_by: str
    documents: int
    chunks: int
    shards: int
    size_bytes: int
    embedder: str
    label: str
    restored: int = Field(description="The version that a rollback restored; 0 for none.")
    current: bool


class VersionListResponse(BaseModel):
    kb_id: str
    versions: list[VersionEntry]
    may_roll_back: bool = Field(description="Whether the credentials allow a rollback.")


class DiffResponse(BaseModel):
    kb_id: str
    a: int
    b: int
    added: int
    removed: int
    changed: int
    documents: list[ChangedDocument]
    next: str | None


class RollbackResponse(BaseModel):
    status: Ok
    kb_id: str
    restored: int
    manifest_version: int
    documents: int
    embedder: str
    label: str
    changed: bool = Field(description="False when the version was current already.")


class SourceProblem(BaseModel):
    source: str
    reason: str


class SkippedFile(BaseModel):
    path: str
    reason: str


_DONE = {"status": Ok, "kb_id": str}
CompactResponse = _extend("CompactResponse", CompactionReport, _DONE)
GcResponse = _extend("GcResponse", GarbageReport, _DONE)
SweepResponse = _extend("SweepResponse", SweepReport, {"status": Ok})
SyncResponse = _extend(
    "SyncResponse", SyncReport, {**_DONE, "problems": list[SourceProblem], "skipped": list[SkippedFile]}
)


class SourceListResponse(BaseModel):
    enabled: bool
    run: dict[str, Any] = Field(description="The background job; empty if it is disabled.")
    states: dict[SourceState, int]
    sources: list[SourceStatus]
    next: str | None


# ── librarians ─────────────────────────────────────────────────────────────────────────────────────


class LibrarianCard(BaseModel, extra="allow"):
    id: str
    name: str = ""
    description: str = ""
    answers_from: str
    public: bool


class LibrarianListResponse(BaseModel):
    first: str = Field(description="The librarian that `POST /ask` asks.")
    librarians: list[LibrarianCard]


class CitedPassage(BaseModel, extra="allow", alias_generator=to_camel):
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
    id: str = Field("", description="`pair cite` finds the passage by it.")
    quote: str = ""
    provenance: CitedPassage | None = None


class AskResponse(BaseModel, extra="allow"):
    """An answer or an error. Empty fields are left out."""

    answer: str | None = None
    sources: list[AnswerSource] = []
    confidence: float | None = None
    partial: bool = False
    error: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
