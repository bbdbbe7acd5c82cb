"""PairRetriever: passages of a KB for a question."""

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from langchain_pair.documents import Kb, make_cited, read_or
from pair.values import DEFAULT_MODE, SearchOptions


class PairRetriever(BaseRetriever):
    """Passages of a KB, best first. The id of each document is the citation id that `pair cite` resolves."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kb: Kb
    """What `pair.open` or `pair.connect` returned."""
    k: int = 5
    """The number of passages; `invoke(question, k=...)` overrides it."""
    mode: str = DEFAULT_MODE
    """How to search: hybrid, keyword, vector, graph or adaptive."""
    filter: dict[str, Any] | None = None
    """Conditions on metadata: `{"year": {"gte": 2020}}`."""
    allow_weak: bool = False
    """Return passages even if none of them seems relevant."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of the field
    ) -> list[Document]:
        limit, condition = self.k if k is None else k, self.filter if filter is None else filter
        options = SearchOptions(allow_weak=self.allow_weak)
        hits = read_or(
            lambda: self.kb.search(query, limit=limit, mode=self.mode, filter=condition, options=options), ()
        )
        return [make_cited(self.kb.kb_id, hit) for hit in hits]
