"""What was looked for and found when a question was answered: enough to do it again, and to see what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pair.librarians.citations import content_sha256
from pair.values import Hit

KEY = "retrieval"
"""In the metadata of a response: a list, for several may have worked on it."""

_HASH_CHARACTERS = 16
_MOST_PASSAGES = 1000


@dataclass(frozen=True, slots=True)
class FoundPassage:
    document_id: str
    start: int
    end: int
    """It is `text[start:end]` of the document."""
    sha256: str
    """The beginning of that of the passage."""
    score: float

    @staticmethod
    def of(hit: Hit) -> "FoundPassage":
        return FoundPassage(hit.document_id, hit.start, hit.end, hash_of(hit.text), hit.score)

    def to_json(self) -> dict[str, Any]:
        return {
            "documentId": self.document_id,
            "start": self.start,
            "end": self.end,
            "sha256": self.sha256,
            "score": self.score,
        }

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What makes it this passage, wherever it stands among others."""
        return self.document_id, self.start, self.end, self.sha256


@dataclass(frozen=True, slots=True)
class Retrieval:
    kb_id: str
    manifest_version: int
    commit_id: str
    embedder: str
    query: str
    mode: str
    limit: int
    passages: tuple[FoundPassage, ...]
    """The best first."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kbId": self.kb_id,
            "manifestVersion": self.manifest_version,
            "commitId": self.commit_id,
            "embedder": self.embedder,
            "query": self.query,
            "mode": self.mode,
            "limit": self.limit,
            "passages": [each.to_json() for each in self.passages],
        }

    @staticmethod
    def from_json(value: Any) -> "Retrieval":
        """Raises ValueError for what is none."""
        return Retrieval(
            kb_id=_text(value, "kbId"),
            manifest_version=_count(value, "manifestVersion"),
            commit_id=_text(value, "commitId"),
            embedder=_text(value, "embedder"),
            query=_text(value, "query"),
            mode=_text(value, "mode"),
            limit=_count(value, "limit"),
            passages=tuple(_passage(each) for each in _list(value, "passages")),
        )


def hash_of(text: str) -> str:
    return content_sha256(text)[:_HASH_CHARACTERS]


def joined(metadatas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several responses that become one; nothing where none says how it was found."""
    told = (metadata.get(KEY) for metadata in metadatas)
    every = [each for those in told if isinstance(those, tuple) for each in those]  # a colleague may say anything
    return {KEY: every} if every else {}


def mark_remote(metadata: Mapping[str, Any], librarian_id: str) -> Mapping[str, Any]:
    """Return the metadata of a remote librarian's response with its KBs named as being there."""
    entries = metadata.get(KEY)
    if not isinstance(entries, list | tuple):
        return metadata
    marked = [
        {**entry, "kbId": f"{librarian_id}:{entry['kbId']}"}
        if isinstance(entry, Mapping) and "kbId" in entry
        else entry
        for entry in entries
    ]
    return {**metadata, KEY: marked}


def _passage(value: Any) -> FoundPassage:
    score = _of(value, "score")
    if type(score) not in {int, float}:
        raise ValueError("score is no number")
    return FoundPassage(
        _text(value, "documentId"),
        _count(value, "start"),
        _count(value, "end"),
        _text(value, "sha256"),
        float(score),
    )


def _of(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping) or name not in value:
        raise ValueError(f"{name} is missing")
    return value[name]


def _text(value: Any, name: str) -> str:
    text = _of(value, name)
    if not isinstance(text, str):
        raise ValueError(f"{name} is no text")
    return text


def _count(value: Any, name: str) -> int:
    count = _of(value, name)
    if type(count) is not int or count < 0:
        raise ValueError(f"{name} is no count")
    return count


def _list(value: Any, name: str) -> list[Any]:
    found = _of(value, name)
    if not isinstance(found, list) or len(found) > _MOST_PASSAGES:
        raise ValueError(f"{name} is no list, or too long")
    return found
