"""Feedback on hits and answers, kept beside the KB as judgements for `pair eval --feedback`.

Invariants
    An acknowledged judgement is stored: the blob is replaced as a whole, and only if no other writer changed it.
    Feedback takes no lease, and no query reads it. The newest MOST_JUDGEMENTS are kept. No user is named.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from pair import errors, values
from pair.blobs.contract import VersionMismatchError
from pair.clock import Clock, to_timestamp
from pair.values import parse_json

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore

MOST_JUDGEMENTS = 5_000
MOST_QUERY_CHARACTERS = 2_000
_MOST_DOCUMENTS = 50
_MOST_ID_CHARACTERS = 4_096
_MOST_BYTES = 2_000_000
_TRIES = 20
Rating = Literal["up", "down"]


class FeedbackEntry(msgspec.Struct, frozen=True):
    """A judgement: whether documents answer a query."""

    query: str
    rating: Rating
    documents: tuple[str, ...] = ()
    """The judged documents: one for a hit, the cited ones for an answer."""
    at: str = ""
    version: int = 0
    """The version of the KB; 0 if it is not known."""


class KbFeedback:
    """The judgements of the users of one KB."""

    def __init__(self, store: "BlobStore", kb_id: str, clock: Clock) -> None:
        self._store, self._clock, self._kb_id = store, clock, kb_id
        self._key = f"{kb_id}.feedback.jsonl"

    def add(self, query: str, rating: Rating, documents: Sequence[str] = (), *, version: int = 0) -> FeedbackEntry:
        """Store a judgement. `documents`: the hit, or the documents that an answer cites. Raises E202, E238."""
        values.check_text("query", query)
        values.check_texts("documents", documents)
        if rating not in ("up", "down"):
            raise errors.argument_invalid("rating", "up or down", rating)
        if not query.strip() or len(query) > MOST_QUERY_CHARACTERS:
            raise errors.argument_invalid("query", f"text of at most {MOST_QUERY_CHARACTERS:,} characters", query)
        if len(documents) > _MOST_DOCUMENTS or any(len(document) > _MOST_ID_CHARACTERS for document in documents):
            raise errors.argument_invalid("documents", f"at most {_MOST_DOCUMENTS} ids", documents)
        at = to_timestamp(self._clock.now())
        entry = FeedbackEntry(query.strip(), rating, tuple(documents), at, version)
        line = json.dumps(msgspec.to_builtins(entry), ensure_ascii=False).encode()
        for _ in range(_TRIES):
            blob = self._store.get(self._key)
            lines = [*(blob.data.splitlines() if blob is not None else []), line][-MOST_JUDGEMENTS:]
            while len(lines) > 1 and sum(map(len, lines)) > _MOST_BYTES:
                lines = lines[len(lines) // 10 or 1 :]
            data = b"\n".join(lines) + b"\n"
            try:
                if blob is None:
                    self._store.create(self._key, data)
                else:
                    self._store.put_if(self._key, data, blob.version)
            except VersionMismatchError:
                continue
            return entry
        raise errors.manifest_changed(self._kb_id)

    def list(self) -> list[FeedbackEntry]:
        """Return the judgements, oldest first. A damaged line is left out."""
        blob = self._store.get(self._key)
        entries: list[FeedbackEntry] = []
        for line in blob.data.splitlines() if blob is not None else []:
            try:
                entries.append(parse_json(line, FeedbackEntry))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return entries

    def grades(self) -> dict[str, dict[str, float]]:
        """Return the relevant documents of each query. The latest judgement of a document counts."""
        grades: dict[str, dict[str, float]] = {}
        for entry in self.list():
            judged = grades.setdefault(entry.query, {})
            for document_id in entry.documents:
                judged.pop(document_id, None)
                if entry.rating == "up":
                    judged[document_id] = 1.0
        return {query: judged for query, judged in grades.items() if judged}
