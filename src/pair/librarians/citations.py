"""Citations and retrieval records: the origin of an answer, with enough detail to find it again.

The id of a citation is `KB/DOCUMENT#START-END@HASH`: a character range of a document and a prefix of its hash.
A citation from a remote librarian starts with `LIBRARIAN:`, because the KB is on the server of that librarian.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import msgspec

from pair.librarians.contract import Citation, Provenance, Response
from pair.values import Hit, SearchMode, convert_json, hash_text

RETRIEVAL_KEY = "retrieval"
"""The key in the metadata of a response: a list with one entry for each librarian that searched."""

_PASSAGE_HASH_CHARACTERS = 16
_ID = re.compile(
    r"(?:(?P<librarian>[^/]+):)?(?P<kb>[^/:]+)/(?P<document>.+)#(?P<start>\d+)-(?P<end>\d+)@(?P<hash>[0-9a-f]{12})",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class CitedPlace:
    kb_id: str
    document_id: str
    start: int
    end: int
    hash_prefix: str
    librarian: str = ""
    """The remote librarian whose server has the KB; "" for a local KB."""

    def is_still(self, text: str) -> bool:
        """Return whether the text still contains the cited passage."""
        return hash_text(text).startswith(self.hash_prefix)


def cite_hits(
    kb_id: str, hits: Iterable[Hit], manifest_version: int, fetched_at: Mapping[str, str]
) -> tuple[Citation, ...]:
    """Return a citation for each hit. `fetched_at`: when each document was last fetched, by id."""
    citations = []
    for hit in hits:
        last_fetched_at = fetched_at.get(hit.document_id, "")
        provenance = Provenance(
            kb_id=kb_id,
            document_id=hit.document_id,
            chunk_id=hit.chunk_id,
            start=hit.start,
            end=hit.end,
            content_sha256=hash_text(hit.text),
            last_fetched_at=last_fetched_at,
            shard=hit.shard,
            manifest_version=manifest_version,
        )
        citation = Citation(
            name=hit.title or hit.document_id,
            url=hit.url,
            relevance=round(max(0.0, min(1.0, hit.score)), 4),
            timestamp=last_fetched_at,
            id=hit.cite(kb_id),
            quote=hit.text,
            provenance=provenance,
            metadata={"lifecycle": hit.lifecycle} if hit.lifecycle else {},
        )
        citations.append(citation)
    return tuple(citations)


def parse_citation_id(citation_id: str) -> CitedPlace | None:
    """Parse the id of a citation; return None for any other text."""
    match = _ID.fullmatch(citation_id)
    if match is None:
        return None
    start, end = int(match["start"]), int(match["end"])
    return CitedPlace(match["kb"], match["document"], start, end, match["hash"], match["librarian"] or "")


# ── retrieval records ──────────────────────────────────────────────────────────────────────────────


_Count = Annotated[int, msgspec.Meta(ge=0)]


class FoundPassage(msgspec.Struct, frozen=True, rename="camel"):
    """The passage `text[start:end]` of a document."""

    document_id: str
    start: _Count
    end: _Count
    sha256: str
    """A prefix of the hash of the passage."""
    score: float

    @staticmethod
    def of(hit: Hit) -> "FoundPassage":
        return FoundPassage(hit.document_id, hit.start, hit.end, hash_passage(hit.text), hit.score)

    def to_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self))

    @property
    def place(self) -> tuple[str, int, int, str]:
        """The identity of the passage: everything except its score."""
        return self.document_id, self.start, self.end, self.sha256


class Retrieval(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a search: enough to run it again and compare the results."""

    kb_id: str
    manifest_version: _Count
    commit_id: str
    embedder: str
    query: str
    mode: SearchMode
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    passages: Annotated[tuple[FoundPassage, ...], msgspec.Meta(max_length=1000)]
    """The passages, best first."""

    def to_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self))

    @staticmethod
    def from_json(value: Any) -> "Retrieval":
        """Read a record from JSON. Raises ValueError for any other value."""
        try:
            return convert_json(value, Retrieval)
        except msgspec.ValidationError as fault:
            raise ValueError(str(fault)) from fault


def hash_passage(text: str) -> str:
    return hash_text(text)[:_PASSAGE_HASH_CHARACTERS]


def join_retrievals(metadatas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the joined retrieval records of merged responses as metadata; empty when there are none."""
    lists = (metadata.get(RETRIEVAL_KEY) for metadata in metadatas)
    entries = [entry for given in lists if isinstance(given, tuple) for entry in given]  # A delegate may send anything.
    return {RETRIEVAL_KEY: entries} if entries else {}


def mark_remote(response: Response, librarian_id: str) -> Response:
    """Prefix the KB names in a response with the remote librarian, so that they are not taken for local KBs."""

    def mark(citation: Citation) -> Citation:
        provenance = citation.provenance
        if provenance is not None:
            provenance = replace(provenance, kb_id=f"{librarian_id}:{provenance.kb_id}")
        return replace(citation, id=f"{librarian_id}:{citation.id}" if citation.id else "", provenance=provenance)

    metadata, entries = response.metadata, response.metadata.get(RETRIEVAL_KEY)
    if isinstance(entries, list | tuple):
        marked = [
            {**entry, "kbId": f"{librarian_id}:{entry['kbId']}"}
            if isinstance(entry, Mapping) and "kbId" in entry
            else entry
            for entry in entries
        ]
        metadata = {**metadata, RETRIEVAL_KEY: marked}
    return replace(response, sources=tuple(mark(source) for source in response.sources), metadata=metadata)
