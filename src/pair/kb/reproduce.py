"""Repeat the retrieval of a stored answer, and report whether its passages are found again.

Invariants
    The retrieval runs on the version that the answer names if it is kept, else on the current one.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pair import errors, files
from pair.kb.open import open_kb
from pair.kb.package_index import open_package
from pair.librarians.citations import RETRIEVAL_KEY, FoundPassage, Retrieval, hash_passage
from pair.settings import Settings
from pair.values import SearchOptions

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase

State = Literal["same", "moved", "scored", "changed", "gone", "not_found"]
"""`moved`: at another rank. `scored`: at the same rank with another score. `changed`: its text changed. `gone`: its
document was deleted. `not_found`: it is unchanged, but other passages rank higher."""

_MOST_BYTES = 64_000_000
_SCORE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class PassageAgain:
    """A passage of the answer, and its state now."""

    passage: FoundPassage
    rank: int
    state: State
    new_rank: int | None = None
    changed_in: int | None = None
    """The first version with another text at its place."""
    or_before: bool = False
    """Whether an earlier version that is not kept may have changed it."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {**self.passage.to_json(), "rank": self.rank, "state": self.state}
        if self.new_rank is not None:
            value["newRank"] = self.new_rank
        if self.changed_in is not None:
            value |= {"changedIn": self.changed_in, "orBefore": self.or_before}
        return value


@dataclass(frozen=True)
class ReproduceReport:
    """One repeated retrieval."""

    asked: Retrieval
    kb_id: str
    version: int
    is_recorded: bool
    """Whether `version` is the one that the answer names."""
    passages: tuple[PassageAgain, ...]
    new: tuple[tuple[int, FoundPassage], ...]
    """Additional passages, with their ranks."""

    @property
    def is_same(self) -> bool:
        return not self.new and all(passage.state == "same" for passage in self.passages)

    def to_json(self) -> dict[str, Any]:
        return {
            "kbId": self.kb_id,
            "recordedVersion": self.asked.manifest_version,
            "version": self.version,
            "isRecordedVersion": self.is_recorded,
            "query": self.asked.query,
            "isSame": self.is_same,
            "passages": [passage.to_json() for passage in self.passages],
            "new": [{**passage.to_json(), "rank": rank} for rank, passage in self.new],
        }


def read_answer(path: Path) -> tuple[Retrieval, ...]:
    """Return the retrievals of a stored answer. Raises E232, E233, E010."""
    with files.storage_errors():
        if not path.is_file():
            raise errors.answer_unreadable(str(path), "there is no such file")
        if path.stat().st_size > _MOST_BYTES:
            raise errors.answer_unreadable(str(path), "it is too large")
        content = path.read_bytes()
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise errors.answer_unreadable(str(path), "it is not JSON") from fault
    if not isinstance(value, dict) or not ({"answer", "error", "metadata"} & value.keys()):
        raise errors.answer_unreadable(str(path), "it has neither answer nor metadata")
    metadata = value.get("metadata", {})
    recorded = metadata.get(RETRIEVAL_KEY, []) if isinstance(metadata, dict) else None
    if not isinstance(recorded, list):
        raise errors.answer_unreadable(str(path), f"{RETRIEVAL_KEY} is not a list")
    if not recorded:
        raise errors.nothing_to_reproduce(str(path))
    try:
        return tuple(Retrieval.from_json(value) for value in recorded)
    except ValueError as fault:
        raise errors.answer_unreadable(str(path), f"{RETRIEVAL_KEY}: {fault}") from fault


def reproduce(
    settings: Settings, asked: Retrieval, *, kb_id: str | None, at: str | None, package: Path | None
) -> ReproduceReport:
    """Repeat a retrieval in the version that the answer names, unless another KB, version or package is given.

    Raises E201, E218 for a given version, E304, and the errors of a search.
    """
    opened = open_package(package, settings) if package is not None else open_recorded(settings, asked, kb_id, at)
    with opened as kb:
        return repeat(kb, asked)


def repeat(kb: "KnowledgeBase", asked: Retrieval) -> ReproduceReport:
    """Repeat a retrieval in an open KB."""
    weak = SearchOptions(allow_weak=True)  # as librarians search
    hits = kb.search(asked.query, limit=asked.limit, mode=asked.mode, explain=True, options=weak)
    again = {passage.place: (rank, passage) for rank, passage in enumerate(map(FoundPassage.of, hits), 1)}
    recorded = {passage.place for passage in asked.passages}
    first, last = asked.manifest_version, hits.manifest_version
    later = sorted({last, *(number for number in kb.versions.numbers() if first < number < last)})
    return ReproduceReport(
        asked,
        kb.kb_id,
        last,
        (last, hits.commit_id) == (first, asked.commit_id),
        tuple(
            _compare_ranks(passage, rank, *again[passage.place])
            if passage.place in again
            else _find_change(kb, passage, rank, first, later)
            for rank, passage in enumerate(asked.passages, 1)
        ),
        tuple(passage for place, passage in again.items() if place not in recorded),
    )


@contextlib.contextmanager
def open_recorded(
    settings: Settings, asked: Retrieval, kb_id: str | None = None, at: str | None = None
) -> "Iterator[KnowledgeBase]":
    """Open the version that an answer names if that is kept, else the current one. Raises E233."""
    kb_id = kb_id or asked.kb_id
    if ":" in kb_id:
        raise errors.reproduce_elsewhere(kb_id)
    if at is None:
        with open_kb(kb_id, settings=settings, at=asked.manifest_version) as then:
            version = None
            with contextlib.suppress(errors.NotFoundError):
                version = then.version()
            # Another store may have the same number.
            if version == (asked.manifest_version, asked.commit_id):
                yield then
                return
    with open_kb(kb_id, settings=settings, at=None if at == "current" else at) as kb:
        yield kb


def _compare_ranks(passage: FoundPassage, rank: int, new_rank: int, again: FoundPassage) -> PassageAgain:
    is_scored_same = abs(passage.score - again.score) <= _SCORE_TOLERANCE
    state: State = "moved" if rank != new_rank else "same" if is_scored_same else "scored"
    return PassageAgain(passage, rank, state, new_rank)


def _find_change(
    kb: "KnowledgeBase", passage: FoundPassage, rank: int, recorded: int, later: Sequence[int]
) -> PassageAgain:
    """Find the first version with another text at the place of a passage."""
    known = recorded
    for number in later:
        try:
            text = kb.versions.text_at(number, passage.document_id)
        except errors.NotFoundError:  # The version was deleted.
            continue
        if text is None or hash_passage(text[passage.start : passage.end]) != passage.sha256:
            state: State = "gone" if text is None else "changed"
            return PassageAgain(passage, rank, state, None, number, known < number - 1)
        known = number
    return PassageAgain(passage, rank, "not_found")
