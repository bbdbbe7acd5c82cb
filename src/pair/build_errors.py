"""The texts of errors that only a build by workers has to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from pair.error_tree import ConflictError, StorageError


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
