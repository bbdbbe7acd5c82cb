"""A librarian that answers from one KB, with or without a model, and cites its passages.

Invariants
    An answer without a model is quoted from the KB, letter for letter but for line breaks.
    An answer of a model cites passages that the model was given; one that cites none is marked.
    Where nothing relevant is found, the answer says so.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from pair import telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.ai.prompts import strip_unfinished_reasoning
from pair.error_tree import ModelError, PairError
from pair.librarians import prompting
from pair.librarians.citations import RETRIEVAL_KEY, FoundPassage, Retrieval, cite_hits
from pair.librarians.contract import Citation, Context, DelegateRequest, Response
from pair.librarians.relevance import (
    MOST_SENTENCES,
    NOTHING_RELEVANT,
    QUOTABLE,
    Quote,
    TextEmbedder,
    choose_quotes,
    confidence_in,
    coverage,
)
from pair.librarians.threads import in_thread
from pair.text.markdown import PassageWords, find_passage_words
from pair.values import Hit

_HITS = 8
_MOST_PASSAGES = 6
"""Passages that a model is given."""
_COVERING = 3
"""Passages that are searched for the words of the question."""
_MODEL_SHARE = 0.8
"""The share of the time that a model may take; the rest is for quotes instead."""
_UNCITED_CONFIDENCE = 0.3
_MOST_QUOTED_CONFIDENCE = 0.95
"""Words and numbers alone are never certain."""


class SearchResult(Protocol):
    """Hits, best first, and how far they can be trusted."""

    @property
    def passages(self) -> tuple[Hit, ...]: ...
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


class Collection(Protocol):
    """A KB, as far as a librarian needs it. Used from several threads at once."""

    @property
    def kb_id(self) -> str: ...

    @property
    def embedding(self) -> TextEmbedder: ...

    def search(self, query: str, *, limit: int, mode: str) -> tuple[SearchResult, Mapping[str, str]]:
        """Return passages, and when each of their documents was last fetched or read, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class _Findings:
    """The passages that a search found, with all that is derived from them."""

    hits: tuple[Hit, ...]
    citations: tuple[Citation, ...]
    quotes: Sequence[Quote]
    confidence: float
    is_partial: bool
    metadata: Mapping[str, object]
    """Part of the metadata of every answer."""


class KbLibrarian:
    def __init__(self, collection: Collection, *, mode: str = "adaptive") -> None:
        self._collection = collection
        self._mode = mode

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        context = context or Context()
        began_at = asyncio.get_running_loop().time()
        try:
            findings = await in_thread(lambda: self._search(query))
            if findings.confidence < NOTHING_RELEVANT or not findings.hits:
                return self._answer_nothing(findings, context)
            if context.ai is None:
                return _quote(findings)
            spent = asyncio.get_running_loop().time() - began_at
            limit = None if context.timeout_ms is None else context.timeout_ms / 1000 * _MODEL_SHARE - spent
            return await self._write(query, context, findings, limit)
        except PairError as fault:
            return Response.of_fault(fault)

    def _search(self, query: str) -> _Findings:
        kb, kb_id = self._collection, self._collection.kb_id
        with telemetry.span(telemetry.RETRIEVAL, kb_id, attributes={telemetry.DATA_SOURCE_ID: kb_id}):
            result, fetched = kb.search(query, limit=_HITS, mode=self._mode)
        hits, weights = result.passages, result.term_weights
        read = find_passage_words(query, [(hit.title, hit.text) for hit in hits[:QUOTABLE]], MOST_SENTENCES)
        retrieval = Retrieval(
            kb_id=kb_id,
            manifest_version=result.manifest_version,
            commit_id=result.commit_id,
            embedder=result.embedder,
            query=query,
            mode=self._mode,
            limit=_HITS,
            passages=tuple(map(FoundPassage.of, hits)),
        )
        return _Findings(
            hits=hits,
            citations=cite_hits(kb_id, hits, result.manifest_version, fetched),
            quotes=choose_quotes(query, hits, read, weights, kb.embedding),
            confidence=_weigh_evidence(hits, read, weights) if hits else 0.0,
            is_partial=result.partial,
            metadata={RETRIEVAL_KEY: [retrieval.to_json()]},
        )

    async def _write(self, query: str, context: Context, findings: _Findings, limit: float | None) -> Response:
        """Let the model write the answer, in at most `limit` seconds."""
        model = cast("LanguageModel", context.ai)
        passages = [(hit.title or hit.document_id, hit.text) for hit in findings.hits[:_MOST_PASSAGES]]
        prompt = prompting.build_prompt(query, passages)
        try:
            reply = await asyncio.wait_for(in_thread(lambda: _ask_model(model, prompt, context)), limit)
        except ModelError as fault:
            return _quote(findings, fault.message)
        except TimeoutError:
            return _quote(findings, "the model did not reply in time")
        reply = prompting.clean_reply(reply, [text for _, text in passages])
        if not reply:
            return _quote(findings, "the model gave an empty reply")
        grounded = prompting.check_citations(reply, len(passages))
        if grounded.is_refusal:
            return self._answer_nothing(findings, context)
        metadata = {"method": "model", "model": model.name, **findings.metadata}
        confidence = findings.confidence
        if not grounded.cited:
            metadata["uncited"] = True
            confidence = min(confidence, _UNCITED_CONFIDENCE)
        elif grounded.uncited:
            metadata["uncitedStatements"] = grounded.uncited
        if grounded.dropped:
            metadata["droppedCitations"] = grounded.dropped
        return Response(
            answer=grounded.answer,
            sources=tuple(findings.citations[number] for number in grounded.cited),
            confidence=confidence,
            partial=findings.is_partial or not grounded.cited,
            metadata=metadata,
        )

    def _answer_nothing(self, findings: _Findings, context: Context) -> Response:
        """Say that the KB has no answer, and delegate to colleagues where there are any."""
        answer = f"Nothing in the knowledge base {self._collection.kb_id} answers this."
        nearest = dict.fromkeys(citation.name for citation in findings.citations[:3])
        if nearest:
            answer += f" The nearest it has: {', '.join(nearest)}."
        return Response(
            answer=answer,
            confidence=min(findings.confidence, NOTHING_RELEVANT),
            partial=True,
            delegate=tuple(DelegateRequest(colleague.id) for colleague in context.available_delegates) or None,
            metadata={"method": "none", "nothingRelevant": True, **findings.metadata},
        )


def _weigh_evidence(hits: Sequence[Hit], read: Sequence[PassageWords], weights: Mapping[str, float]) -> float:
    best = hits[0]
    held = [words.in_title | words.in_text for words in read[:_COVERING]]
    others = [hit.score for hit in hits if hit.document_id != best.document_id]
    meaning = 0.0 if best.distance is None else 1.0 - best.distance * best.distance / 2
    scores = [(best.explanation or {}).get(name) for name in ("keyword", "vector")]
    return confidence_in(
        coverage=coverage(frozenset().union(*held), weights),
        meaning=max(meaning, 0.0),
        agreement=min(float(score) if isinstance(score, int | float) else 0.0 for score in scores),
        lead=max(0.0, min(1.0, best.score - max(others, default=0.0))),
    )


def _ask_model(model: LanguageModel, prompt: str, context: Context) -> str:
    """Return the reply; stream it to the listener where there is one and the model can."""
    if context.on_text is None or not isinstance(model, StreamingModel):
        return model.reply(prompting.INSTRUCTIONS, prompt)
    reply = shown = ""
    for piece in model.stream(prompting.INSTRUCTIONS, prompt):
        reply += piece
        visible = strip_unfinished_reasoning(reply).lstrip()
        if prompting.is_refusal(visible):
            continue
        if len(visible) > len(shown) and visible.startswith(shown):
            context.on_text(visible[len(shown) :])
            shown = visible
    return reply


def _quote(findings: _Findings, model_fault: str = "") -> Response:
    """Answer with the best sentences, each with its source. `model_fault` says why no model wrote the answer."""
    order = list(dict.fromkeys(quote.passage for quote in findings.quotes))
    if order:
        lines = [f"> {quote.text} [{order.index(quote.passage) + 1}]" for quote in findings.quotes]
    else:  # no sentences: a short text or a table
        text = " ".join(findings.hits[0].text.split())
        lines, order = [f"> {text[:600]} [1]"], [0]
    response = Response(
        answer="\n>\n".join(lines),
        sources=tuple(findings.citations[number] for number in order),
        confidence=min(findings.confidence, _MOST_QUOTED_CONFIDENCE),
        partial=findings.is_partial,
        metadata={"method": "quotation", **findings.metadata},
    )
    if not model_fault:
        return response
    return replace(response, partial=True, metadata={**response.metadata, "aiUnavailable": model_fault})
