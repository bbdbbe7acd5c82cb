"""The texts of errors that only versions of a KB, and moving or repairing one as a whole, have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence

from pair.error_tree import ConflictError, DataError, NotFoundError, UsageError

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
