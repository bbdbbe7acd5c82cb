"""Entity graphs made by a language model, in parallel batches. A failing model does not stop an ingest.

Invariants
    A chunk without a result after all attempts is skipped and counted. So are all chunks after a failed connection.
    A document with a chunk that did not reach the model is marked incomplete. An unusable reply is final.
"""

import itertools
import logging
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from pair import errors
from pair.ai.contract import EntityExtractor, Extraction
from pair.text.entity_rules import DocumentText, canonical_name, title_entity
from pair.values import NO_GRAPH, NO_GRAPH_YET, GraphRows

logger = logging.getLogger(__name__)

_ATTEMPTS = 2
_TITLE_WEIGHT = 2.0


class _Skipped(StrEnum):
    """The reason why a chunk has no extraction."""

    UNREACHABLE = "unreachable"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class ExtractionCounts:
    extracted: int = 0
    skipped: int = 0


class ModelGrapher:
    """A grapher that uses a language model. Thread-safe."""

    def __init__(self, extractor: EntityExtractor, *, batch_chunks: int = 500, workers: int = 4) -> None:
        self._extractor = extractor
        self._batch_chunks = batch_chunks
        self._workers = workers
        self._lock = threading.Lock()
        self._counts = ExtractionCounts()

    @property
    def name(self) -> str:
        return self._extractor.name

    @property
    def counts(self) -> ExtractionCounts:
        """Number of calls and faults since this object was created."""
        with self._lock:
            return self._counts

    def graphs_of(self, documents: Sequence[DocumentText]) -> list[GraphRows]:
        texts = [chunk for document in documents for chunk in document.chunks]
        is_dead = threading.Event()
        extractions: list[Extraction | _Skipped] = []
        with ThreadPoolExecutor(self._workers, thread_name_prefix="pair-graph") as pool:
            for begin in range(0, len(texts), self._batch_chunks):
                batch = texts[begin : begin + self._batch_chunks]
                extractions += pool.map(lambda text: self._extract(text, is_dead), batch)
        skipped = sum(isinstance(extraction, _Skipped) for extraction in extractions)
        with self._lock:
            before = self._counts
            self._counts = ExtractionCounts(before.extracted + len(extractions) - skipped, before.skipped + skipped)
        if skipped:
            logger.warning("chunks without a graph", extra={"skipped": skipped, "chunks": len(extractions)})
        remaining = iter(extractions)
        return [
            _make_graph(document.title, list(itertools.islice(remaining, len(document.chunks))))
            for document in documents
        ]

    def _extract(self, text: str, is_dead: threading.Event) -> Extraction | _Skipped:
        for _ in range(_ATTEMPTS):
            if is_dead.is_set():
                return _Skipped.UNREACHABLE
            try:
                return self._extractor.extract(text)
            except errors.ModelError as fault:
                last = fault
        if last.code == errors.MODEL_UNREACHABLE:
            is_dead.set()  # A wait for each further chunk would stall the ingest.
            return _Skipped.UNREACHABLE
        return _Skipped.UNUSABLE


def _make_graph(title: str, extractions: Sequence[Extraction | _Skipped]) -> GraphRows:
    is_complete = _Skipped.UNREACHABLE not in extractions
    if extractions and all(isinstance(extraction, _Skipped) for extraction in extractions):
        return NO_GRAPH if is_complete else NO_GRAPH_YET
    about = title_entity(title)
    mentions: list[tuple[str, float, int]] = []
    edges: list[tuple[str, str, str, float, int]] = []
    for number, extraction in enumerate(extractions):
        if isinstance(extraction, _Skipped):
            continue
        related: dict[str, int] = {canonical_name(name): 0 for name in extraction.entities}
        for relation in extraction.relations:
            source, target = canonical_name(relation.source), canonical_name(relation.target)
            if source and target and source != target:
                related[source] = related.get(source, 0) + 1
                related[target] = related.get(target, 0) + 1
                edges.append((source, target, relation.kind, relation.weight, number))
        related.pop("", None)
        weights = {name: 1 + math.log2(1 + count) for name, count in related.items()}
        if about:
            weights[about] = weights.get(about, 0.0) + _TITLE_WEIGHT
        mentions += [(name, round(weight, 3), number) for name, weight in weights.items()]
    return GraphRows(tuple(mentions), tuple(edges), is_complete)
