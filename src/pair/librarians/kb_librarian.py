"""A librarian that answers from one KB, with or without AI, and cites what it used.

Invariants
    What is said without a model is quoted from the KB, letter for letter but for line breaks.
    What is said with one cites passages that it was given; what cites none is marked.
    Where nothing relevant is found, the answer says so.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from pair import telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.ai.prompts import strip_unfinished_reasoning
from pair.error_tree import ModelError, PairError
from pair.librarians import confidence, prompting, quotes
from pair.librarians.citations import citation_of
from pair.librarians.contract import Citation, Context, DelegateRequest, Response
from pair.librarians.daemon_threads import in_thread
from pair.librarians.provenance import KEY, FoundPassage, Retrieval
from pair.values import Hit

_HITS = 8
_MOST_PASSAGES = 6
"""That a model is given."""
_COVERING = 3
"""Passages that are looked at for the words of the question."""
_MODEL_SHARE = 0.8
"""Of the time for an answer: a model that takes longer leaves quotations, and not nothing."""
_UNCITED_CONFIDENCE = 0.3
_QUOTED_CONFIDENCE_WITHOUT_MODEL = 0.95
"""What words and numbers choose is never certain."""


class SearchResult(Protocol):
    """Hits, best first, and how far they can be trusted."""

    @property
    def manifest_version(self) -> int: ...
    @property
    def commit_id(self) -> str: ...
    @property
    def embedder(self) -> str: ...
    @property
    def partial(self) -> bool: ...
    @property
    def term_weights(self) -> Mapping[str, float]: ...
    def __iter__(self) -> Iterator[Hit]: ...


class Collection(Protocol):
    """A KB, as far as a shelf needs it. Used from several threads at once."""

    @property
    def kb_id(self) -> str: ...

    def search(self, query: str, *, limit: int, mode: str, explain: bool) -> SearchResult: ...

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]: ...

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]: ...

    def fetched_at(self, document_ids: Sequence[str]) -> Mapping[str, str]:
        """When each of these was last fetched or read, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class _ReadPassages:
    """What a search brought, looked at once."""

    hits: tuple[Hit, ...]
    citations: tuple[Citation, ...]
    quotes: tuple[quotes.Quote, ...]
    confidence: float
    is_partial: bool
    retrieval: Retrieval

    @property
    def about(self) -> dict[str, object]:
        """What every answer tells."""
        return {KEY: [self.retrieval.to_json()]}


class KbLibrarian:
    def __init__(self, collection: Collection, *, mode: str = "adaptive") -> None:
        self._collection = collection
        self._mode = mode

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        context = context or Context()
        began_at = asyncio.get_running_loop().time()
        try:
            reading = await in_thread(lambda: self._read(query))
            if reading.confidence < confidence.NOTHING_RELEVANT or not reading.hits:
                return _nothing(self._collection.kb_id, reading, context)
            if context.ai is None:
                return _quoted(reading)
            spent = asyncio.get_running_loop().time() - began_at
            limit = None if context.timeout_ms is None else context.timeout_ms / 1000 * _MODEL_SHARE - spent
            return await self._written(query, context, reading, limit)
        except PairError as fault:
            return Response.of_fault(fault)

    async def _written(self, query: str, context: Context, reading: _ReadPassages, limit: float | None) -> Response:
        """`limit`: seconds that the model may take."""
        model = cast("LanguageModel", context.ai)
        passages = [(hit.title or hit.document_id, hit.text) for hit in reading.hits[:_MOST_PASSAGES]]
        asked = prompting.prompt(query, passages)
        try:
            reply = await asyncio.wait_for(in_thread(lambda: _reply(model, asked, context)), limit)
        except (ModelError, TimeoutError) as fault:
            reason = fault.message if isinstance(fault, ModelError) else "the model did not reply in time"
            return _quote_without_model(reading, reason)
        reply = prompting.clean_reply(reply, [text for _, text in passages])
        if not reply:
            return _quote_without_model(reading, "the model gave an empty reply")
        grounded = prompting.checked(reply, len(passages))
        if grounded.is_refusal:
            return _nothing(self._collection.kb_id, reading, context)
        metadata: dict[str, object] = {"method": "model", "model": model.name, **reading.about}
        sure = reading.confidence
        if not grounded.cited:
            metadata["uncited"] = True
            sure = min(sure, _UNCITED_CONFIDENCE)
        elif grounded.uncited:
            metadata["uncitedStatements"] = grounded.uncited
        if grounded.dropped:
            metadata["droppedCitations"] = grounded.dropped
        return Response(
            answer=grounded.answer,
            sources=tuple(reading.citations[number] for number in grounded.cited),
            confidence=sure,
            partial=reading.is_partial or not grounded.cited,
            metadata=metadata,
        )

    def _read(self, query: str) -> _ReadPassages:
        kb_id = self._collection.kb_id
        with telemetry.span(telemetry.RETRIEVAL, kb_id, attributes={telemetry.DATA_SOURCE_ID: kb_id}):
            found = self._collection.search(query, limit=_HITS, mode=self._mode, explain=True)
        hits = tuple(found)
        passages = [quotes.Passage(hit.title, hit.text, hit.score) for hit in hits]
        chosen = quotes.choose_quotes(query, passages, found.term_weights, self._collection)
        fetched = self._collection.fetched_at([hit.document_id for hit in hits])
        return _ReadPassages(
            hits,
            tuple(citation_of(kb_id, hit, found.manifest_version, fetched.get(hit.document_id, "")) for hit in hits),
            tuple(chosen),
            confidence.confidence_in(self._evidence(query, hits, found.term_weights)) if hits else 0.0,
            found.partial,
            Retrieval(
                kb_id,
                found.manifest_version,
                found.commit_id,
                found.embedder,
                query,
                self._mode,
                _HITS,
                tuple(FoundPassage.of(hit) for hit in hits),
            ),
        )

    def _evidence(self, query: str, hits: Sequence[Hit], weights: Mapping[str, float]) -> confidence.Evidence:
        best = hits[0]
        held = self._collection.words_in(query, [f"{hit.title}\n{hit.text}" for hit in hits[:_COVERING]])
        told = best.explanation or {}
        others = [hit.score for hit in hits if hit.document_id != best.document_id]
        meaning = 0.0 if best.distance is None else 1.0 - best.distance * best.distance / 2
        return confidence.Evidence(
            coverage=quotes.coverage(frozenset().union(*held), weights),
            meaning=max(meaning, 0.0),
            agreement=min(_number(told.get("keyword")), _number(told.get("vector"))),
            lead=max(0.0, min(1.0, best.score - max(others, default=0.0))),
        )


def _reply(model: LanguageModel, asked: str, context: Context) -> str:
    """Piece by piece where somebody reads along and the model can."""
    if context.on_text is None or not isinstance(model, StreamingModel):
        return model.reply(prompting.INSTRUCTIONS, asked)
    reply = shown = ""
    for piece in model.stream(prompting.INSTRUCTIONS, asked):
        reply += piece
        visible = strip_unfinished_reasoning(reply).lstrip()
        if prompting.is_refusal(visible):
            continue
        if len(visible) > len(shown) and visible.startswith(shown):
            context.on_text(visible[len(shown) :])
            shown = visible
    return reply


def _quoted(reading: _ReadPassages) -> Response:
    """The sentences that answer, each with its source."""
    order = list(dict.fromkeys(quote.passage for quote in reading.quotes))
    if not order:
        # Nothing in it is a sentence: then it is short, or a table, and is quoted as it stands.
        text = " ".join(reading.hits[0].text.split())
        lines, order = [f"> {text[:600]} [1]"], [0]
    else:
        lines = [f"> {quote.sentence.text} [{order.index(quote.passage) + 1}]" for quote in reading.quotes]
    return Response(
        answer="\n>\n".join(lines),
        sources=tuple(reading.citations[number] for number in order),
        confidence=min(reading.confidence, _QUOTED_CONFIDENCE_WITHOUT_MODEL),
        partial=reading.is_partial,
        metadata={"method": "quotation", **reading.about},
    )


def _quote_without_model(reading: _ReadPassages, reason: str) -> Response:
    """Quote the passages and say why no model wrote the answer."""
    quoted = _quoted(reading)
    return replace(quoted, partial=True, metadata={**quoted.metadata, "aiUnavailable": reason})


def _nothing(kb_id: str, reading: _ReadPassages, context: Context) -> Response:
    """Says so, or lets a colleague try."""
    sure = min(reading.confidence, confidence.NOTHING_RELEVANT)
    nearest = [citation.name for citation in reading.citations[:3]]
    answer = f"Nothing in the knowledge base {kb_id} answers this."
    if nearest:
        answer += f" The nearest it has: {', '.join(dict.fromkeys(nearest))}."
    colleagues = tuple(DelegateRequest(each.id) for each in context.available_delegates)
    return Response(
        answer=answer,
        confidence=sure,
        partial=True,
        delegate=colleagues or None,
        metadata={"method": "none", "nothingRelevant": True, **reading.about},
    )


def _number(value: float | str | None) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
