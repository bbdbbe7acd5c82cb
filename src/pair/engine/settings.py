"""The settings of the engine.

Not in rules.py: every command reads the settings, and few need what the rules of the engine are about.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from pair.values import LONGEST_WAIT_SECONDS

Positive = Annotated[int, Gt(0)]
_LONGEST_SECONDS = 1_000_000_000
EmbedderKind = Literal["static", "minilm", "fastembed", "openai", "ngram"]
LeaseKind = Literal["auto", "memory", "file", "blob", "redis"]
Chunker = Literal["structure", "seed"]
GraphKind = Literal["text", "model", "off"]


@dataclass(frozen=True)
class EngineSettings:
    """Where a KB is kept, and how it is cut, asked and cared for."""

    store: str = ".pair/store"
    """Where shards live: a folder, s3://bucket/prefix, gs://, az://, or memory: for try-outs"""
    s3_endpoint: str = ""
    """Address of an S3-compatible server; empty for the platform's own"""
    s3_region: str = ""
    """Region of the bucket; empty for the platform's own"""
    lease: LeaseKind = "auto"
    """Who coordinates writers: file (folders), blob (the store itself), redis, memory (one process); auto chooses"""
    lease_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] = 30.0
    """How long a writer that died keeps others waiting"""
    redis_url: str = ""
    """Address of the Redis server that keeps leases"""
    cache_dir: str = ".pair/cache"
    """Where shards are kept once they were fetched, in a folder `pair-shards`"""
    cache_max_bytes: Annotated[int, Ge(0)] = 0
    """Most bytes of fetched shards on disk; 0 for no limit"""
    cache_ttl_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 0.0
    """How long a shard that nobody asks is kept on disk; 0 for ever"""
    embedder: EmbedderKind = "static"
    """What makes vectors of texts: static, minilm and fastembed (extras), openai (a server), ngram (no model)"""
    embedding_model: str = ""
    """Name of the model, for fastembed and openai"""
    embedding_dimension: Annotated[int, Ge(0), Le(4096)] = 0
    """Numbers in a vector, for ngram (0 for 384) and openai (0 for what the model gives)"""
    embedding_url: str = ""
    """Address of the OpenAI-compatible server that makes vectors, with its `/v1`; empty for ai.base_url"""
    embedding_api_key: str = field(default="", repr=False)
    """Sent to engine.embedding_url; ai.api_key is sent to ai.base_url only"""
    embedding_query_prefix: str = ""
    """Put before what is searched for, where a model of openai wants it"""
    embedding_document_prefix: str = ""
    """Put before every chunk, where a model of openai wants it"""
    reranker_model: str = ""
    """Name of a cross-encoder of fastembed that orders the hits anew; empty for none"""
    chunker: Chunker = "structure"
    """What cuts documents: structure (by headings, lists, code and tables), seed (by blank lines, lines, sentences)"""
    chunk_size_bytes: Annotated[int, Ge(0)] = 0
    """Longest chunk of a document, at least 50; 0 for 2000 (structure) or 500 (seed)"""
    graph: GraphKind = "text"
    """What finds entities in documents: text (rules, no model), model (the one of ai.model), off"""
    ingest_batch_documents: Positive = 5000
    """Most documents that are published together"""
    ingest_batch_bytes: Positive = 8_388_608
    """Most bytes of documents that are published together"""
    build_part_bytes: Positive = 16_777_216
    """Most bytes of documents that a worker of `pair ingest --runner` has in hand; it takes about 20 times as much"""
    build_workers: Annotated[int, Ge(0)] = 0
    """Workers of `pair ingest --runner`; 0 for one on each core"""
    build_attempts: Positive = 3
    """How often a part is given to another worker when one dies over it"""
    ray_address: str = ""
    """Address of the Ray cluster that `--runner ray` works on; empty to start Ray on this machine alone"""
    write_attempts: Positive = 40
    """How often a write is tried while others are in its way"""
    shard_trigger_bytes: Positive = 67_108_864
    """A shard larger than this is cut into several, by nearness"""
    shard_trigger_vector_rows: Positive = 150_000
    """A shard with more chunks than this is cut into several"""
    target_shard_bytes: Positive = 33_554_432
    """Size that a cut aims at"""
    max_vector_rows_per_shard: Positive = 75_000
    """Most chunks of a shard after a cut"""
    query_shard_fanout: Annotated[int, Ge(1), Le(64)] = 4
    """Nearest shards of each clustering that every query asks"""
    query_shard_fanout_adaptive_max: Annotated[int, Ge(1), Le(64)] = 6
    """Shards of each clustering that are asked at most, while one is likely to hold something nearer"""
    query_shard_parallelism: Positive = 128
    """Requests to the store at once, for queries"""
    small_kb_max_shards: Positive = 2
    """With so few shards, all are asked"""
    compaction_enabled: bool = True
    """Compact after large ingests"""
    compaction_min_shard_count: Positive = 8
    """Fewer shards than this are not worth merging"""
    compaction_tombstone_ratio: Annotated[float, Gt(0), Le(1)] = 0.20
    """A shard with more of its documents gone is written anew"""
    gc_grace_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 120.0
    """How long a shard that no manifest names is left in peace"""
    keep_versions: Annotated[int, Ge(0)] = 10
    """So many earlier versions can be gone back to; those that only rearranged shards do not count"""
    keep_days: Annotated[float, Ge(0), Le(36_500)] = 0.0
    """And all that were current so many days ago, or since"""
    gc_build_seconds: Annotated[float, Ge(0), Le(_LONGEST_SECONDS)] = 86_400.0
    """How long what an interrupted build has made is kept for the next run"""

    @property
    def chunk_bytes(self) -> int:
        """Longest chunk of a document."""
        return self.chunk_size_bytes or (2000 if self.chunker == "structure" else 500)
