"""Bodies of answers, for the OpenAPI document. Handlers build them as dictionaries; tests compare the two."""

from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, Field, create_model
from pydantic.alias_generators import to_camel

from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.query.documents import StoredDocument
from pair.engine.query.graph import EntityEdge, NamedEntity, NamingDocument
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.kb.diff import ChangedDocument
from pair.sync.report import SourceState, SourceStatus, SyncReport

Ok = Literal["ok"]


def _extend(name: str, report: type[Any], more: dict[str, Any]) -> type[BaseModel]:
    """Return a model with the fields of a dataclass, and more of them or others in their place."""
    fields: dict[str, Any] = get_type_hints(report) | more
    model: type[BaseModel] = create_model(name, **fields)
    return model


class OpenApiDocument(BaseModel, extra="allow"):
    openapi: str


class HealthResponse(BaseModel):
    status: Ok


class ReadyResponse(BaseModel):
    status: Literal["ready"]


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


class ModelResponse(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["pair"]


class ModelListResponse(BaseModel):
    object: Literal["list"]
    data: list[ModelResponse]


class CompletionMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[dict[str, Any]] = Field(description="Citations of sources that have a URL.")


class CompletionChoice(BaseModel):
    index: int
    message: CompletionMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    sources: list[AnswerSource]
    confidence: float | None
    partial: bool
    librarian: str | None


# ── metrics ────────────────────────────────────────────────────────────────────────────────────────


class TimingMetrics(BaseModel, extra="allow"):
    count: int
    error_count: int
    latency_sum_ms: float


class CacheMetrics(BaseModel):
    evictions: dict[str, int]
    budget_exceeded: int
    prefetched_files: int
    prefetched_bytes: int


class RuntimeMetrics(BaseModel):
    peak_memory_bytes: int
    cpu_seconds: float
    threads: int
    num_gc: int
    processors: int | None


class MetricsResponse(BaseModel):
    route_stats: dict[str, TimingMetrics]
    query_stats: dict[str, TimingMetrics]
    ingest_stats: dict[str, TimingMetrics]
    embed_stats: dict[str, TimingMetrics]
    librarian_stats: dict[str, TimingMetrics]
    refused: dict[str, int]
    cache: CacheMetrics
    recent_requests: list[dict[str, Any]]
    kbs: dict[str, dict[str, Any]]
    care: dict[str, dict[str, float]]
    librarians: dict[str, dict[str, str]]
    background: dict[str, dict[str, Any]]
    runtime: RuntimeMetrics
    uptime_seconds: float
    start_time: str
