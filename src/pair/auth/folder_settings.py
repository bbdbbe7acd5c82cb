"""Which settings a configuration may set in a folder that is not trusted.

Every key of the settings has a row: `safe`, or why it needs trust. A key without a row needs trust.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from pair.auth.rules import is_loopback

Need = Literal[
    "function", "variable", "address", "credential", "path", "server", "model", "signature", "downloads", "other"
]
Rule = Need | Literal["safe", "store"]
VARIABLE = re.compile(r"(\$\$?)\{(\w+)\}")

_MEANINGS: dict[Need, str] = {
    "function": "runs code",
    "variable": "reads a variable of your environment",
    "address": "talks to another host",
    "credential": "is sent to another host",
    "path": "reads or writes outside the folder",
    "server": "decides who may use the server",
    "model": "uses or downloads a model",
    "signature": "decides which signatures count",
    "downloads": "decides which downloads count as already fetched",
    "other": "needs trust",
}

RULES: dict[str, Rule] = {
    "kb.sources_dir": "path",
    "kb.links_file_path": "path",
    "kb.index_path": "path",
    "kb.llms_txt_path": "path",
    "kb.index_cache_path": "path",
    "kb.web_fetch_cache_dir": "path",
    "kb.web_fetch_timeout_seconds": "safe",
    "kb.web_fetch_renderer": "function",
    "kb.allow_private_addresses": "address",
    "kb.max_source_bytes": "safe",
    "kb.url_refresh_min_interval_seconds": "safe",
    "kb.runtime_refresh_tick_seconds": "safe",
    "kb.url_download_concurrency": "safe",
    "kb.summarization_concurrency": "safe",
    "sources.cache_dir": "downloads",
    "sources.default_url": "address",
    "sources.release_repository": "address",
    "sources.release_asset": "safe",
    "sources.github_api_url": "address",
    "sources.require_checksum": "signature",
    "sources.require_signature": "signature",
    "sources.signature_keys": "signature",
    "sources.timeout_seconds": "safe",
    "sources.retries": "safe",
    "sources.retry_wait_seconds": "safe",
    "sources.max_download_bytes": "safe",
    "sources.max_archive_entries": "safe",
    "sources.max_unpacked_bytes": "safe",
    "sources.max_compression_ratio": "safe",
    "engine.store": "store",
    "engine.s3_endpoint": "address",
    "engine.s3_region": "address",
    "engine.lease": "address",
    "engine.lease_seconds": "safe",
    "engine.redis_url": "address",
    "engine.cache_dir": "path",
    "engine.cache_max_bytes": "safe",
    "engine.cache_ttl_seconds": "safe",
    "engine.embedder": "model",
    "engine.embedding_model": "model",
    "engine.embedding_dimension": "safe",
    "engine.embedding_url": "address",
    "engine.embedding_api_key": "credential",
    "engine.embedding_query_prefix": "safe",
    "engine.embedding_document_prefix": "safe",
    "engine.reranker_model": "model",
    "engine.chunker": "safe",
    "engine.chunk_size_bytes": "safe",
    "engine.graph": "model",
    "engine.ingest_batch_documents": "safe",
    "engine.ingest_batch_bytes": "safe",
    "engine.build_part_bytes": "safe",
    "engine.build_workers": "safe",
    "engine.build_attempts": "safe",
    "engine.ray_address": "address",
    "engine.write_attempts": "safe",
    "engine.shard_trigger_bytes": "safe",
    "engine.shard_trigger_vector_rows": "safe",
    "engine.target_shard_bytes": "safe",
    "engine.max_vector_rows_per_shard": "safe",
    "engine.query_shard_fanout": "safe",
    "engine.query_shard_fanout_adaptive_max": "safe",
    "engine.query_shard_parallelism": "safe",
    "engine.small_kb_max_shards": "safe",
    "engine.compaction_enabled": "safe",
    "engine.compaction_min_shard_count": "safe",
    "engine.compaction_tombstone_ratio": "safe",
    "engine.gc_grace_seconds": "safe",
    "engine.keep_versions": "safe",
    "engine.keep_days": "safe",
    "engine.gc_build_seconds": "safe",
    "ai.base_url": "address",
    "ai.model": "model",
    "ai.api_key": "credential",
    "ai.timeout_seconds": "safe",
    "ai.retries": "safe",
    "ai.retry_wait_seconds": "safe",
    "ai.max_input_tokens": "safe",
    "ai.max_output_tokens": "safe",
    "librarians.entries": "safe",  # each entry is judged by find_need_of_librarian
    "librarians.timeout_seconds": "safe",
    "librarians.max_depth": "safe",
    "librarians.max_calls": "safe",
    "librarians.max_tokens": "safe",
    "librarians.max_query_characters": "safe",
    "librarians.breaker_window_seconds": "safe",
    "librarians.breaker_min_calls": "safe",
    "librarians.breaker_failure_ratio": "safe",
    "librarians.breaker_open_seconds": "safe",
    "librarians.breaker_successes": "safe",
    "server.host": "server",
    "server.port": "safe",
    "server.max_connections": "safe",
    "server.max_buffered_bytes": "safe",
    "server.client_workers": "safe",
    "server.auth": "server",
    "server.keys_file": "path",
    "server.jwt_jwks": "server",
    "server.jwt_issuer": "server",
    "server.jwt_audience": "server",
    "server.jwt_algorithms": "server",
    "server.jwt_leeway_seconds": "server",
    "server.trusted_proxies": "server",
    "server.cors_origins": "server",
    "server.max_body_bytes": "safe",
    "server.body_timeout_seconds": "safe",
    "server.header_timeout_seconds": "safe",
    "server.keep_alive_seconds": "safe",
    "server.request_timeout_seconds": "safe",
    "server.write_wait_seconds": "safe",
    "server.stop_seconds": "safe",
    "server.rate_limit_per_second": "safe",
    "server.rate_limit_burst": "safe",
    "server.idempotency_seconds": "safe",
    "server.sync": "safe",
    "server.compaction_interval_seconds": "safe",
    "server.gc_interval_seconds": "safe",
    "server.sweep_interval_seconds": "safe",
    "server.prefetch_interval_seconds": "safe",
    "server.prefetch_max_bytes": "safe",
    "server.mcp_write": "server",
    "server.mcp_result_tokens": "safe",
    "server.log_format": "safe",
    "server.otlp_endpoint": "address",
}

SAFE_VALUES: dict[str, tuple[Any, ...]] = {
    "sources.require_checksum": (True,),
    "sources.require_signature": (True,),
    "engine.lease": ("auto", "memory", "file", "blob"),
    "engine.embedder": ("static", "minilm", "ngram"),
    "engine.graph": ("text", "off"),
    "server.auth": ("keys", "jwt"),
}
"""Values that need no trust although their key does: they only make things stricter, or stay on this machine."""

_VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})


@dataclass(frozen=True)
class TrustRequest:
    """One thing that a configuration asks for and that needs trust."""

    key: str
    need: Need
    value: Any = field(repr=False)
    where: str

    @property
    def meaning(self) -> str:
        return _MEANINGS[self.need]

    def to_json(self) -> dict[str, Any]:
        """Without the value, which may hold a credential."""
        return {"key": self.key, "where": self.where, "need": self.need, "meaning": self.meaning}


def find_need(key: str, value: Any, default: Any) -> Need | None:
    """Return why a value needs trust; None when it counts in any folder."""
    if (tuple(value) if isinstance(value, list) else value) == default:
        return None
    if any(_uses_variable(text) for text in _texts_in(value)):
        return "variable"
    rule = RULES.get(key, "other")
    if rule == "safe" or value in SAFE_VALUES.get(key, ()):
        return None
    if key == "server.host":
        return None if isinstance(value, str) and is_loopback(value) else "server"
    if rule == "store":
        if value == "memory:":
            return None
        rule = "address" if isinstance(value, str) and "://" in value else "path"
    if rule == "path":
        return None if isinstance(value, str) and _stays_inside(value) else "path"  # bytes would become a text later
    return rule


def find_need_of_librarian(entry: Any) -> Need | None:
    """Return why an entry of `librarians` needs trust; None for one that answers from a KB of the folder."""
    if any(_uses_variable(text) for text in _texts_in(entry)):
        return "variable"
    if not isinstance(entry, Mapping):
        return None
    needs: dict[str, Need] = {"function": "function", "endpoint": "address", "token": "credential"}
    return next((need for key, need in needs.items() if entry.get(key)), None)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)


def _uses_variable(text: str) -> bool:
    return any(dollars == "$" for dollars, _ in VARIABLE.findall(text))


def _stays_inside(text: str) -> bool:
    """Tell whether a path leads to something below the current folder that is not the data of version control."""
    path = VARIABLE.sub(r"${\2}", text)  # without the second dollar that keeps a variable from being put in
    parts = PurePath(path).parts
    if path.startswith(("/", "~")) or ".." in parts or any(part.casefold() in _VERSION_CONTROL for part in parts):
        return False
    root = os.path.realpath(os.curdir)
    try:
        real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118 - beside the text that realpath gives
    except ValueError:
        return False
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
