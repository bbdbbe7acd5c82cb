"""PairRetriever: passages of a KB, cut, embedded and ranked by pair."""

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from pair import errors
from pair.client import RemoteKnowledgeBase
from pair.kb.kb import KnowledgeBase
from pair.values import DEFAULT_MODE, SearchOptions


class PairRetriever(BaseRetriever):
    """Returns passages, best first. The id of each node is the citation id that `pair cite` resolves."""

    def __init__(
        self,
        kb: KnowledgeBase | RemoteKnowledgeBase,
        *,
        similarity_top_k: int = 5,
        mode: str = DEFAULT_MODE,
        filter: dict[str, Any] | None = None,  # noqa: A002 - as in pair
        allow_weak: bool = False,
        **kwargs: Any,
    ) -> None:
        """`kb`: what `pair.open` or `pair.connect` returned. The options are those of `kb.search`."""
        super().__init__(**kwargs)
        self._kb, self._limit, self._mode, self._filter = kb, similarity_top_k, mode, filter
        self._options = SearchOptions(allow_weak=allow_weak)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        try:
            hits = self._kb.search(
                query_bundle.query_str, limit=self._limit, mode=self._mode, filter=self._filter, options=self._options
            )
        except errors.PairError as fault:
            if fault.code != errors.KB_UNINITIALISED:
                raise
            return []
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.cite(self._kb.kb_id),
                    text=hit.text,
                    metadata={**hit.metadata, "title": hit.title, "url": hit.url, "document_id": hit.document_id},
                    start_char_idx=hit.start,
                    end_char_idx=hit.end,
                ),
                score=hit.score,
            )
            for hit in hits
        ]
