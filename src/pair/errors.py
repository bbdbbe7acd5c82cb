"""Every error: class, code, exit status, HTTP status, text.

PairError                    what the caller should do next
├── UsageError    (ValueError)    change the request             exit 1   400
├── NotFoundError (LookupError)   name or create what is absent  exit 1   404
├── DownloadError                 check the network, try again   exit 2   502
├── StorageError                  free space, fix rights, wait   exit 3   503
├── ConflictError                 look again, then retry         exit 4   409
├── DataError                     repair; retrying cannot help   exit 5   500
└── ModelError                    wait, or go on without AI      exit 6   503

A class tells what to do, a code tells what happened. Codes are append-only; each has one function
below that writes its text, so that a text exists in one place.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

BUG_EXIT_STATUS = 70
INTERRUPTED_EXIT_STATUS = 130


class PairError(Exception):
    """Root of all errors raised on purpose.

    `message` is one line; `explanation` a paragraph about this case; `hints` are what to try, under `lead`.
    """

    exit_status: ClassVar[int] = BUG_EXIT_STATUS
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        message: str,
        *,
        explanation: str = "",
        lead: str = "Suggestions:",
        hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.explanation = explanation
        self.lead = lead
        self.hints = tuple(hints)
        self.details = dict(details or {})

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"code": self.code, "message": self.message, "recoverable": self.retryable}
        if self.hints:
            value["suggestion"] = "\n".join(self.hints)
        if self.explanation:
            value["explanation"] = self.explanation
        if self.details:
            value["details"] = self.details
        return {"error": value}


class UsageError(PairError, ValueError):
    exit_status = 1
    http_status = 400


class NotFoundError(PairError, LookupError):
    exit_status = 1
    http_status = 404


class DownloadError(PairError):
    exit_status = 2
    http_status = 502
    retryable = True


class StorageError(PairError):
    exit_status = 3
    http_status = 503
    retryable = True


class ConflictError(PairError):
    exit_status = 4
    http_status = 409
    retryable = True


class DataError(PairError):
    exit_status = 5


class ModelError(PairError):
    exit_status = 6
    http_status = 503
    retryable = True


MODEL_UNREACHABLE = "E301"
"""For those who stop asking a model that cannot be reached."""

CODES: dict[str, tuple[type[PairError], str]] = {
    "E001": (UsageError, "offline without a source"),
    "E002": (UsageError, "offline with a remote source"),
    "E003": (NotFoundError, "source path does not exist"),
    "E004": (UsageError, "source format unknown"),
    "E005": (DownloadError, "download failed"),
    "E006": (DownloadError, "checksum does not match, or cannot be read"),
    "E007": (UsageError, "would download while offline"),
    "E008": (DownloadError, "git source failed"),
    "E009": (DownloadError, "archive unreadable or unsafe"),
    "E010": (StorageError, "disk full, or no permission"),
    "E011": (ConflictError, "files in the target that are not as pair installed them"),
    "E012": (NotFoundError, "no knowledge base there"),
    "E013": (DataError, "installed knowledge base is damaged"),
    "E014": (UsageError, "folder cannot be packaged"),
    "E015": (UsageError, "source and target overlap"),
    "E016": (ConflictError, "target keeps changing"),
    "E101": (ConflictError, "another sync is running"),
    "E102": (DataError, "state of the sync unreadable"),
    "E103": (NotFoundError, "sources folder or links file missing"),
    "E301": (ModelError, "model unreachable"),
    "E302": (ModelError, "model reply unusable"),
    "E401": (UsageError, "configuration not understood"),
    "E402": (UsageError, "command line not understood"),
}

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
        hints=[
            "Check internet connection",
            "Verify firewall settings",
            "Try different mirror with --source",
            "Use offline mode with local KB",
        ],
        details={"url": url, "reason": reason},
    )


def checksum_failed(subject: str, reason: str, *, cache: str = "~/.pair/kb/") -> DownloadError:
    return DownloadError(
        "E006",
        "KB checksum validation failed",
        explanation=f"Downloaded file may be corrupted or tampered with.\n\n{subject}\n{reason}",
        hints=["Retry download", f"Clear cache: rm -rf {cache}", "Verify source integrity"],
        details={"subject": subject, "reason": reason},
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
        hints=["Free space on the disk", "Check the permissions of the folder", "Choose another folder"],
        details={"path": path, "reason": reason},
    )


def files_in_the_way(target: str, files: Sequence[str], *, is_installed: bool) -> ConflictError:
    shown = "\n".join(f"  {file}" for file in files[:10])
    more = f"\n  and {len(files) - 10} more" if len(files) > 10 else ""
    hints = ["Move them away", "Overwrite them with --force"]
    if is_installed:
        hints.append(f"Keep them and take the rest: pair update {target}")
    return ConflictError(
        "E011",
        f"Target has files that are not as pair installed them: {target}",
        explanation=f"These would be overwritten:\n{shown}{more}",
        hints=hints,
        details={"target": target, "files": list(files)},
    )


def no_kb_at(path: str, reason: str) -> NotFoundError:
    return NotFoundError(
        "E012",
        f"No knowledge base at {path}: {reason}",
        hints=["Install one first: pair install", "Name the folder or the .zip that holds it"],
        details={"path": path},
    )


def installed_kb_damaged(path: str, modified: Sequence[str], missing: Sequence[str]) -> DataError:
    lines = [f"  modified: {file}" for file in modified] + [f"  missing: {file}" for file in missing]
    more = [f"  and {len(lines) - 10} more"] if len(lines) > 10 else []
    return DataError(
        "E013",
        f"Installed KB differs from what was installed: {path}",
        explanation="\n".join(lines[:10] + more),
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


def model_unreachable(address: str, reason: str) -> ModelError:
    return ModelError(
        "E301",
        f"Model cannot be reached: {address}",
        explanation=reason,
        hints=["Check ai.base_url and that the server runs", "Go on without a model: leave out the ai section"],
        details={"address": address, "reason": reason},
    )


def model_reply_unusable(address: str, reason: str) -> ModelError:
    return ModelError(
        "E302",
        f"Model reply cannot be used: {address}",
        explanation=reason,
        hints=["Try another model with ai.model"],
        details={"address": address, "reason": reason},
    )


def settings_invalid(where: str, reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E401", f"{where}: {reason}", hints=hints, details={"where": where, "reason": reason})


def command_line_invalid(reason: str, *, hints: Sequence[str] = ()) -> UsageError:
    return UsageError("E402", reason, hints=hints)
