"""The texts of errors that only a server, or a client of one, has to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence

from pair.error_tree import AccessError, ConflictError, DownloadError, NotFoundError, StorageError, UsageError

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
