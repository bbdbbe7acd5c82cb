"""The texts of errors that only a build by workers or a re-embedding has to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence

from pair.error_tree import ConflictError, StorageError, UsageError


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
