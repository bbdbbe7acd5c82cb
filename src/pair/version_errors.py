"""The texts of errors that only versions of a KB, its backups and their care have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from pair.error_tree import ConflictError, DataError, UsageError


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
