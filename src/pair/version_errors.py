"""The texts of errors that only versions of a KB, and moving one as a whole, have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence

from pair.error_tree import DataError, NotFoundError, UsageError

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


def past_is_read_only(kb_id: str, number: int) -> UsageError:
    return UsageError(
        "E219",
        f"Version {number} of {kb_id} is of the past, and cannot be written to",
        hints=[f"Make it the current one: pair rollback {number} --kb {kb_id}"],
        details={"kb_id": kb_id, "version": number},
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
