"""Trust in a folder: the settings that need trust, and the files that are trusted.

Every key of the settings is safe, or listed with the reason why it needs trust. An unlisted key needs trust.
The trust store holds the trusted files by place and by the SHA-256 of their bytes.

Invariants
    The store is outside the current folder, and only its owner may write it.
    A store that is a link, belongs to another user or cannot be read trusts nothing.
    A file is trusted at one place with certain bytes: a moved, copied or changed file is not.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from pair import errors, files
from pair.auth.rules import is_loopback
from pair.values import convert_json

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

_SAFE_KEYS = """
kb.web_fetch_timeout_seconds kb.max_source_bytes kb.url_refresh_min_interval_seconds kb.runtime_refresh_tick_seconds
kb.url_download_concurrency kb.summarization_concurrency sources.release_asset sources.timeout_seconds
sources.retries sources.retry_wait_seconds sources.max_download_bytes sources.max_archive_entries
sources.max_unpacked_bytes sources.max_compression_ratio engine.lease_seconds engine.cache_max_bytes
engine.cache_ttl_seconds engine.embedding_dimension engine.embedding_query_prefix engine.embedding_document_prefix
engine.chunker engine.chunk_size_bytes engine.ingest_batch_documents engine.ingest_batch_bytes
engine.build_part_bytes engine.build_workers engine.build_attempts engine.write_attempts engine.shard_trigger_bytes
engine.shard_trigger_vector_rows engine.target_shard_bytes engine.max_vector_rows_per_shard
engine.query_shard_fanout engine.query_shard_fanout_adaptive_max engine.query_shard_parallelism
engine.small_kb_max_shards engine.compaction_enabled engine.compaction_min_shard_count
engine.compaction_tombstone_ratio engine.gc_grace_seconds engine.keep_versions engine.keep_days
engine.gc_build_seconds ai.timeout_seconds ai.retries ai.retry_wait_seconds ai.max_input_tokens ai.max_output_tokens
librarians.timeout_seconds librarians.max_depth librarians.max_calls librarians.max_tokens
librarians.max_query_characters librarians.breaker_window_seconds librarians.breaker_min_calls
librarians.breaker_failure_ratio librarians.breaker_open_seconds librarians.breaker_successes server.port
server.max_connections server.max_buffered_bytes server.client_workers server.max_body_bytes
server.body_timeout_seconds server.header_timeout_seconds server.keep_alive_seconds server.request_timeout_seconds
server.write_wait_seconds server.stop_seconds server.rate_limit_per_second server.rate_limit_burst
server.idempotency_seconds server.sync server.compaction_interval_seconds server.gc_interval_seconds
server.sweep_interval_seconds server.prefetch_interval_seconds server.prefetch_max_bytes server.mcp_result_tokens
server.log_format librarians.entries kb.collections
"""  # find_need_of_librarian and find_need_of_collection check each entry of librarians.entries and kb.collections.
_KEYS: dict[Rule, str] = {
    "safe": _SAFE_KEYS,
    "store": "engine.store",
    "function": "kb.web_fetch_renderer",
    "downloads": "sources.cache_dir",
    "credential": "engine.embedding_api_key ai.api_key",
    "signature": "sources.require_checksum sources.require_signature sources.signature_keys",
    "model": "engine.embedder engine.embedding_model engine.reranker_model engine.graph ai.model",
    "path": """
        kb.sources_dir kb.links_file_path kb.index_path kb.llms_txt_path kb.index_cache_path kb.web_fetch_cache_dir
        engine.cache_dir server.keys_file librarians.receipt_key
    """,
    "address": """
        kb.allow_private_addresses sources.default_url sources.release_repository sources.github_api_url
        engine.s3_endpoint engine.s3_region engine.lease engine.redis_url engine.embedding_url engine.ray_address
        ai.base_url server.otlp_endpoint
    """,
    "server": """
        server.host server.auth server.jwt_jwks server.jwt_issuer server.jwt_audience server.jwt_algorithms
        server.jwt_leeway_seconds server.trusted_proxies server.cors_origins server.mcp_write
    """,
}
RULES: dict[str, Rule] = {}
for _rule, _keys in _KEYS.items():
    RULES |= dict.fromkeys(_keys.split(), _rule)

SAFE_VALUES: dict[str, tuple[Any, ...]] = {
    "sources.require_checksum": (True,),
    "sources.require_signature": (True,),
    "engine.lease": ("auto", "memory", "file", "blob"),
    "engine.embedder": ("static", "minilm", "ngram", "given"),
    "engine.graph": ("text", "off"),
    "server.auth": ("keys", "jwt"),
}
"""Values that need no trust although their key does: they are stricter, or stay on this machine."""

_VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
_STORE_PATH = "~/.pair/trusted.json"
_MAX_STORE_BYTES = 10_000_000


@dataclass(frozen=True)
class TrustRequest:
    """One value of a configuration that needs trust."""

    key: str
    need: Need
    value: Any = field(repr=False)
    where: str

    @property
    def meaning(self) -> str:
        return _MEANINGS[self.need]

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the value, which may hold a credential."""
        return {"key": self.key, "where": self.where, "need": self.need, "meaning": self.meaning}


def find_need(key: str, value: Any, default: Any) -> Need | None:
    """Return why a value needs trust; None for a value that is used in any folder."""
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
        return None if isinstance(value, str) and _stays_inside(value) else "path"  # bytes are converted to text later
    return rule


def find_need_of_librarian(entry: Any) -> Need | None:
    """Return why an entry of `librarians` needs trust; None for one that uses a KB of the folder."""
    if any(_uses_variable(text) for text in _texts_in(entry)):
        return "variable"
    if not isinstance(entry, Mapping):
        return None
    needs: dict[str, Need] = {"function": "function", "endpoint": "address", "token": "credential"}
    return next((need for key, need in needs.items() if entry.get(key)), None)


def find_need_of_collection(entry: Any) -> Need | None:
    """Return why an entry of `kb.collections` needs trust; None for a folder or links file inside, and for pages.

    A bucket is read with the credentials of the user.
    """
    if any(_uses_variable(text) for text in _texts_in(entry)):
        return "variable"
    if not isinstance(entry, Mapping):
        return None
    if entry.get("command"):
        return "function"
    if entry.get("bucket"):
        return "address"
    places = [value for value in (entry.get("path"), entry.get("links")) if value]
    return None if all(isinstance(value, str) and _stays_inside(value) for value in places) else "path"


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def _uses_variable(text: str) -> bool:
    return any(dollars == "$" for dollars, _ in VARIABLE.findall(text))


def _stays_inside(text: str) -> bool:
    """Return whether a path leads below the current folder, and outside version control."""
    path = VARIABLE.sub(r"${\2}", text)  # `$$` escapes a variable
    parts = PurePath(path).parts
    if path.startswith(("/", "~")) or ".." in parts or any(part.casefold() in _VERSION_CONTROL for part in parts):
        return False
    root = os.path.realpath(os.curdir)
    try:
        real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118 - beside the text that realpath gives
    except ValueError:
        return False
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def resolve_place(path: str | Path) -> str:
    """Return the place of a file of the current folder in the trust store.

    Links above the folder are resolved. A link in the folder is not: it must not inherit the trust of its target.
    """
    return os.path.join(os.path.realpath(os.curdir), os.path.normpath(path))  # noqa: PTH118 - keeps links


class TrustStore:
    """Hashes of trusted bytes by place, in one JSON file that several processes may change."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = files.expand_path(_STORE_PATH) if path is None else path

    def trusts(self, place: str, content: bytes) -> bool:
        """Return whether these bytes are trusted at a place. Raises E401, E010."""
        return hashlib.sha256(content).hexdigest() in self.entries().get(place, ())

    def entries(self) -> dict[str, tuple[str, ...]]:
        """Return the hashes by place. Raises E401, E010."""
        with self._errors():
            return self._read()

    def record(self, place: str, *hashes: str) -> None:
        """Trust only these hashes at a place. Raises E401, E010."""
        self._change(lambda entries: entries | {place: hashes})

    def forget(self, *places: str) -> None:
        self._change(lambda entries: {place: hashes for place, hashes in entries.items() if place not in places})

    def _change(self, change: Callable[[dict[str, tuple[str, ...]]], Mapping[str, tuple[str, ...]]]) -> None:
        with self._errors():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.exclusive_lock(self.path.with_name(f".{self.path.name}.lock"), on_wait=lambda _holder: None):
                entries = self._read()
                changed = change(entries)
                if changed != entries:
                    value = {"version": 1, "trusted": changed}
                    files.write_atomically(self.path, json.dumps(value, indent=2).encode() + b"\n", mode=0o600)

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            descriptor = files.open_file(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return {}
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in {os.geteuid(), 0} or status.st_mode & 0o022:
                raise self._refusal("it is not a regular file that only you can write")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(_MAX_STORE_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > _MAX_STORE_BYTES:
            raise self._refusal("it is damaged")
        try:  # json also decodes places that are not valid Unicode; msgspec does not
            return convert_json(json.loads(content)["trusted"], dict[str, tuple[str, ...]])
        except (ValueError, LookupError, TypeError, RecursionError) as fault:
            raise self._refusal("it is damaged") from fault

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Refuse a store below the current folder, whose author could have made it, and one behind a link."""
        with files.storage_errors():
            here = Path(os.path.realpath(os.curdir))
            if not self.path.is_absolute() or Path(os.path.realpath(self.path.parent)).is_relative_to(here):
                raise self._refusal("your home folder is not outside this folder")
            try:
                yield
            except OSError as fault:
                if fault.errno in {errno.ELOOP, errno.ENOTDIR}:
                    raise self._refusal("it is a link, or in a folder that is one") from fault
                raise

    def _refusal(self, reason: str) -> errors.UsageError:
        hints = [
            f"If it is damaged, remove it and trust your folders again: rm {self.path}",
            "Or name files yourself: --config FILE, PAIR__SERVER__KEYS_FILE=FILE",
        ]
        return errors.settings_invalid(str(self.path), f"cannot use the trust store: {reason}", hints=hints)


class TrustedFile:
    """A file of the current folder that is used only if its bytes are trusted."""

    def __init__(self, store: TrustStore, path: str | Path) -> None:
        self._store = store
        self._place = resolve_place(path)

    def trusts(self, content: bytes) -> bool:
        """Return whether these bytes are trusted. Raises E401, E010."""
        return self._store.trusts(self._place, content)

    @contextlib.contextmanager
    def replacing(self, old: bytes | None, new: bytes) -> Iterator[None]:
        """Trust the bytes that the block writes. The old bytes are trusted until it ends, so that a crash locks out no
        key.
        """
        digests = [hashlib.sha256(content).hexdigest() for content in (old, new) if content is not None]
        self._store.record(self._place, *digests)
        yield
        self._store.record(self._place, digests[-1])
