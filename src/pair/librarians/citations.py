"""Citations: from a hit to something one can check, and from its id back to the passage.

An id is `KB/DOCUMENT#START-END@HASH`: characters of a document, and the beginning of the hash of what they were.
A citation of a remote librarian has `LIBRARIAN:` before it: the KB is on that librarian's server.
"""

import hashlib
import re
from dataclasses import dataclass, replace

from pair.librarians.contract import Citation, Provenance
from pair.values import Hit

_HASH_CHARACTERS = 12
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
    """The remote librarian whose server has the KB; "" for a KB here."""

    def is_still(self, text: str) -> bool:
        """Whether this is what was cited."""
        return content_sha256(text).startswith(self.hash_prefix)


def content_sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def citation_of(kb_id: str, hit: Hit, manifest_version: int, last_fetched_at: str) -> Citation:
    digest = content_sha256(hit.text)
    return Citation(
        name=hit.title or hit.document_id,
        url=hit.url,
        relevance=round(max(0.0, min(1.0, hit.score)), 4),
        timestamp=last_fetched_at,
        id=f"{kb_id}/{hit.document_id}#{hit.start}-{hit.end}@{digest[:_HASH_CHARACTERS]}",
        quote=hit.text,
        provenance=Provenance(
            kb_id=kb_id,
            document_id=hit.document_id,
            chunk_id=hit.chunk_id,
            start=hit.start,
            end=hit.end,
            content_sha256=digest,
            last_fetched_at=last_fetched_at,
            shard=hit.shard,
            manifest_version=manifest_version,
        ),
    )


def cited_place(citation_id: str) -> CitedPlace | None:
    """None for what is no id of a citation."""
    found = _ID.fullmatch(citation_id)
    if found is None:
        return None
    start, end = int(found["start"]), int(found["end"])
    return CitedPlace(found["kb"], found["document"], start, end, found["hash"], found["librarian"] or "")


def mark_remote(citation: Citation, librarian_id: str) -> Citation:
    """Return the citation with its KB named as one of a remote librarian, so that nobody looks for it here."""
    provenance = citation.provenance
    if provenance is not None:
        provenance = replace(provenance, kb_id=f"{librarian_id}:{provenance.kb_id}")
    return replace(citation, id=f"{librarian_id}:{citation.id}" if citation.id else "", provenance=provenance)
