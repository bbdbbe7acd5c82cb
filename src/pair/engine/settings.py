"""The settings of the engine. They are apart from the rules, because few commands need rules."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from pair.values import LONGEST_WAIT_SECONDS

Positive = Annotated[int, Gt(0)]
_LONGEST_SECONDS = 1_000_000_000
EmbedderKind = Literal["static", "minilm", "fastembed", "openai", "ngram", "given"]
LeaseKind = Literal["auto", "memory", "file", "blob", "redis"]
Chunker = Literal["structure", "seed"]
GraphKind = Literal["text", "model", "off"]


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine: storage, embedding, chunking, search and maintenance."""

    store: str = ".pair/store"
    """Where shards are stored: a folder, s3://bucket/prefix, gs://, az://, or memory: for experiments."""
    s3_endpoint: str = ""
    """URL of an S3-compatible server. Empty for the default of the platform."""
    s3_region: str = ""
    """Region of the bucket. Empty for the default of the platform."""
    lease: LeaseKind = "auto"
    """How writers take turns: file (for folders), blob (in the store), redis, memory (one process), or auto."""
    lease_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] = 30.0
    """Expire the lease of a crashed writer after this many seconds."""
    redis_url: str = ""
    """URL of the Redis server for leases."""
    cache_dir: str = ".pair/cache"
    """Folder for downloaded shards; they are kept in its subfolder `pair-shards`."""
    cache_max_bytes: Annotated[int, Ge(0)] = 0
    """Maximum size of the shard cache on disk. 0 means no limit."""
    cache_ttl_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 0.0
    """Evict cached shards that were not used for this many seconds. 0 means never."""
    embedder: EmbedderKind = "static"
    """How vectors are computed: static, minilm or fastembed (extras), openai (a server), ngram (no model), or given
    (documents and queries bring their vectors)."""
    embedding_model: str = ""
    """Name of the model, for fastembed and openai; for given, the model that makes the vectors elsewhere."""
    embedding_dimension: Annotated[int, Ge(0), Le(4096)] = 0
    """Number of dimensions, for given, ngram (0 means 384) and openai (0 means the default of the model)."""
    embedding_url: str = ""
    """URL of the OpenAI-compatible embedding server, including `/v1`. Empty for ai.base_url."""
    embedding_api_key: str = field(default="", repr=False)
    """API key for engine.embedding_url. ai.api_key is never sent there."""
    embedding_query_prefix: str = ""
    """Text to put before every query, if an openai model requires it."""
    embedding_document_prefix: str = ""
    """Text to put before every chunk, if an openai model requires it."""
    reranker_model: str = ""
    """Name of a fastembed cross-encoder that reorders the results. Empty for none."""
    chunker: Chunker = "structure"
    """How documents are cut: structure (headings, lists, code, tables) or seed (blank lines, lines, sentences)."""
    chunk_size_bytes: Annotated[int, Ge(0)] = 0
    """Maximum size of a chunk, at least 50. 0 means 2000 (structure) or 500 (seed)."""
    graph: GraphKind = "text"
    """How entities are found: text (rules, no model), model (ai.model), or off."""
    ingest_batch_documents: Positive = 20_000
    """Maximum number of documents in one write."""
    ingest_batch_bytes: Positive = 8_388_608
    """Maximum size of the documents in one write."""
    build_part_bytes: Positive = 16_777_216
    """Maximum size of the documents that one worker processes at a time. A worker needs about 20 times this memory."""
    build_workers: Annotated[int, Ge(0)] = 0
    """Number of workers of `pair ingest --runner`. 0 means one per core."""
    build_attempts: Positive = 3
    """Number of times to try a part again in another worker after a crash."""
    ray_address: str = ""
    """Address of the Ray cluster for `--runner ray`. Empty to start Ray on this machine."""
    write_attempts: Positive = 40
    """Number of times to try a write while other writers are active."""
    shard_trigger_bytes: Positive = 67_108_864
    """Split a shard that is larger than this."""
    shard_trigger_vector_rows: Positive = 150_000
    """Split a shard that has more chunks than this."""
    target_shard_bytes: Positive = 33_554_432
    """Target size of the shards after a split."""
    max_vector_rows_per_shard: Positive = 75_000
    """Maximum number of chunks in a shard after a split."""
    query_shard_fanout: Annotated[int, Ge(1), Le(64)] = 4
    """Number of nearest shards that every query searches, in each clustering."""
    query_shard_fanout_adaptive_max: Annotated[int, Ge(1), Le(64)] = 6
    """Maximum number of shards that a query searches, in each clustering, while closer results are likely."""
    query_shard_parallelism: Positive = 128
    """Maximum number of parallel requests to the store for queries."""
    small_kb_max_shards: Positive = 2
    """Search all shards if there are at most this many."""
    compaction_enabled: bool = True
    """Compact automatically after large ingests."""
    compaction_min_shard_count: Positive = 8
    """Minimum number of shards before they are merged."""
    compaction_tombstone_ratio: Annotated[float, Gt(0), Le(1)] = 0.20
    """Rewrite a shard when more than this share of its documents is deleted."""
    gc_grace_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 120.0
    """Keep unreferenced shards this long before deleting them."""
    keep_versions: Annotated[int, Ge(0)] = 10
    """Number of earlier versions to keep. Compactions do not count."""
    keep_days: Annotated[float, Ge(0), Le(36_500)] = 0.0
    """Also keep every version from the last N days."""
    gc_build_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 86_400.0
    """Keep the parts of an interrupted build this long for the next run."""

    @property
    def chunk_bytes(self) -> int:
        """Longest chunk of a document."""
        return self.chunk_size_bytes or (2000 if self.chunker == "structure" else 500)
