"""PairDocumentIndex: upsert, get, delete and retrieve documents."""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from pydantic import ConfigDict

from langchain_pair.documents import Kb, fetch, make_cited, make_stored, read_or
from pair.values import DEFAULT_MODE


class PairDocumentIndex(DocumentIndex):
    """Documents of a KB by id. pair cuts and embeds them; unchanged documents cost nothing."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kb: Kb
    """What `pair.open` or `pair.connect` returned."""
    k: int = 5
    mode: str = DEFAULT_MODE

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add or replace documents. Those without an id get a random one."""
        documents = [make_stored(item) for item in items]
        self.kb.upsert(documents)
        return UpsertResponse(succeeded=[document.id for document in documents], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete documents; missing ids are ignored."""
        if ids is None:
            raise ValueError("ids are needed")
        existing = self.kb.existing_ids(ids)
        deleted = [name for name in dict.fromkeys(ids) if name in existing]
        self.kb.delete(deleted)
        return DeleteResponse(num_deleted=len(deleted), succeeded=deleted, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Return the documents with these ids; missing ids are ignored."""
        return fetch(self.kb, ids)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        hits = read_or(lambda: self.kb.search(query, limit=self.k if k is None else k, mode=self.mode), ())
        return [make_cited(self.kb.kb_id, hit) for hit in hits]
