"""A librarian that answers from one KB, with or without a model, and cites its passages.

Each response has one of three outcomes, in `metadata["outcome"]`. "answer": a quoted block with its citation, or the
text of a model. "passages": blocks that may help, without a claim. "nothing": a description of the KB.

Invariants
    An answer without a model quotes the KB letter for letter, except for line breaks.
    An answer of a model cites only passages that the model was given. An answer without citations is marked.
    If nothing relevant is found, the answer says so.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pair import telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.ai.prompts import clean_reply, strip_unfinished_reasoning
from pair.error_tree import ModelError, PairError
from pair.librarians.citations import RETRIEVAL_KEY, FoundPassage, Retrieval, cite_hits
from pair.librarians.confidence import ANSWER_FROM, NOTHING_BELOW, estimate_confidence
from pair.librarians.contract import Citation, Context, DelegateRequest, Response
from pair.librarians.prompting import INSTRUCTIONS, build_prompt, check_citations, is_refusal, mark_unsupported
from pair.librarians.questions import complete_follow_up, is_small_talk
from pair.librarians.quotes import Quote, QuoteRanking, rank_quotes
from pair.librarians.relevance import TextEmbedder
from pair.librarians.threads import in_thread
from pair.values import Hit, SearchMode, describe_lifecycle

OUTCOME_KEY = "outcome"
CONVERSATION_KEY = "conversation"
"""The metadata key of the earlier turns, oldest first, each with `role` and `content`."""
QUOTATION = "quotation"
"""The method of answers that consist of quotations, below `PASSAGES_TITLE` if they are not claimed as the answer."""
PASSAGES_TITLE = "These passages may help:"

_HITS = 16
_MOST_PASSAGES = 6
"""Number of passages in a prompt."""
_MODEL_SHARE = 0.8
"""The share of the time for the model; the rest is for a quotation instead."""
_UNCITED_CONFIDENCE = 0.3
_UNSUPPORTED_CONFIDENCE = 0.5
_PASSAGES_CONFIDENCE = 0.49
"""Maximum confidence of passages without a claim."""
_ABOUT = "overview introduction"
"""The query that finds documents to describe the KB."""
_MOST_TITLES = 5
_NEAREST_TITLES = 3


class SearchResult(Protocol):
    """Hits, best first, and how reliable they are."""

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
    """The part of a KB that a librarian uses. Thread-safe."""

    @property
    def kb_id(self) -> str: ...

    @property
    def embedding(self) -> TextEmbedder: ...

    def search(self, query: str, *, limit: int, mode: str) -> tuple[SearchResult, Mapping[str, str]]:
        """Return passages, and the time when each of their documents was last fetched or read, if known."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The passages of a search, with everything that is derived from them."""

    hits: tuple[Hit, ...]
    citations: tuple[Citation, ...]
    ranking: QuoteRanking | None
    """The blocks that may be quoted; None if there are none."""
    confidence: float
    is_partial: bool
    metadata: Mapping[str, object]
    """Metadata that is part of every answer."""


class KbLibrarian:
    def __init__(self, collection: Collection, *, mode: SearchMode = "adaptive") -> None:
        self._collection = collection
        self._mode = mode

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        context = context or Context()
        began_at = asyncio.get_running_loop().time()
        query = complete_follow_up(query, _read_earlier(context))
        try:
            if is_small_talk(query):
                return self._describe(await in_thread(lambda: self.find(_ABOUT)))
            findings = await in_thread(lambda: self.find(query))
            if findings.confidence < NOTHING_BELOW or findings.ranking is None:
                return self._answer_nothing(findings, context)
            if context.ai is None:
                return _quote(findings, findings.ranking)
            spent = asyncio.get_running_loop().time() - began_at
            limit = None if context.timeout_ms is None else context.timeout_ms / 1000 * _MODEL_SHARE - spent
            return await self._write(query, context, findings, limit)
        except PairError as fault:
            return Response.of_fault(fault)

    def estimate(self, query: str) -> float:
        """Return how likely the KB answers a question, from 0 to 1. Raises PairError."""
        return self.find(query).confidence

    def find(self, query: str) -> Findings:
        """Search the KB and rank the blocks to quote. Raises PairError."""
        kb, kb_id = self._collection, self._collection.kb_id
        with telemetry.span(telemetry.RETRIEVAL, kb_id, attributes={telemetry.DATA_SOURCE_ID: kb_id}):
            result, fetched = kb.search(query, limit=_HITS, mode=self._mode)
        hits = result.passages
        ranking = rank_quotes(query, hits, result.term_weights, kb.embedding)
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
        return Findings(
            hits=hits,
            citations=cite_hits(kb_id, hits, result.manifest_version, fetched),
            ranking=ranking if ranking.quotes else None,
            confidence=estimate_confidence(ranking.describe_best()) if ranking.quotes else 0.0,
            is_partial=result.partial,
            metadata={RETRIEVAL_KEY: [retrieval.to_json()]},
        )

    async def _write(self, query: str, context: Context, findings: Findings, limit: float | None) -> Response:
        """Let the model write the answer, in at most `limit` seconds."""
        model, ranking = cast("LanguageModel", context.ai), cast("QuoteRanking", findings.ranking)
        passages = [(_name_passage(hit), hit.text) for hit in findings.hits[:_MOST_PASSAGES]]
        prompt = build_prompt(query, passages)
        try:
            reply = await asyncio.wait_for(in_thread(lambda: _ask_model(model, prompt, context)), limit)
        except ModelError as fault:
            return _quote(findings, ranking, fault.message)
        except TimeoutError:
            return _quote(findings, ranking, "the model did not reply in time")
        reply = clean_reply(reply, [text for _, text in passages])
        if not reply:
            return _quote(findings, ranking, "the model gave an empty reply")
        grounded = check_citations(reply, len(passages))
        if grounded.is_refusal:
            return self._answer_nothing(findings, context)
        cited = [passages[number] for number in grounded.cited]
        answer, unsupported, statements = mark_unsupported(grounded.answer, cited, query)
        if unsupported > statements / 2:
            return _quote(findings, ranking, "the passages do not support the reply of the model")
        metadata = {"method": "model", OUTCOME_KEY: "answer", "model": model.name, **findings.metadata}
        confidence = findings.confidence
        if unsupported:
            metadata["unsupportedStatements"] = unsupported
            confidence = min(confidence, _UNSUPPORTED_CONFIDENCE)
        if not grounded.cited:
            metadata["uncited"] = True
            confidence = min(confidence, _UNCITED_CONFIDENCE)
        elif grounded.uncited:
            metadata["uncitedStatements"] = grounded.uncited
        if grounded.dropped:
            metadata["droppedCitations"] = grounded.dropped
        return Response(
            answer=answer,
            sources=tuple(findings.citations[number] for number in grounded.cited),
            confidence=confidence,
            partial=findings.is_partial or not grounded.cited,
            metadata=metadata,
        )

    def _answer_nothing(self, findings: Findings, context: Context) -> Response:
        """Say that the KB has no answer, and delegate to other librarians if there are any."""
        answer = "Not in this knowledge base."
        if titles := _list_titles(findings, _NEAREST_TITLES):
            answer += f" The nearest documents: {titles}."
        return Response(
            answer=answer,
            confidence=min(findings.confidence, NOTHING_BELOW),
            partial=True,
            delegate=tuple(DelegateRequest(colleague.id) for colleague in context.available_delegates) or None,
            metadata={"method": "none", OUTCOME_KEY: "nothing", "nothingRelevant": True, **findings.metadata},
        )

    def _describe(self, findings: Findings) -> Response:
        """Describe the KB, in reply to a greeting or a question about the KB itself."""
        answer = f"This is the knowledge base {self._collection.kb_id}."
        if titles := _list_titles(findings, _MOST_TITLES):
            answer += f" It has documents such as: {titles}. Ask a question about them."
        return Response(
            answer=answer,
            confidence=0.0,
            partial=True,
            metadata={"method": "none", OUTCOME_KEY: "nothing", "nothingRelevant": True, **findings.metadata},
        )


def _read_earlier(context: Context) -> list[str]:
    """Return the earlier questions of a conversation. The metadata may hold anything."""
    turns = context.metadata.get(CONVERSATION_KEY)
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return []
    return [
        turn["content"]
        for turn in turns
        if isinstance(turn, Mapping) and turn.get("role") == "user" and isinstance(turn.get("content"), str)
    ]


def _name_passage(hit: Hit) -> str:
    """Return the name of a passage for a model, with the state of its document."""
    state = describe_lifecycle(hit.lifecycle)
    return f"{hit.title or hit.document_id} ({state})" if state else hit.title or hit.document_id


def _list_titles(findings: Findings, most: int) -> str:
    return ", ".join(itertools.islice(dict.fromkeys(citation.name for citation in findings.citations), most))


def _ask_model(model: LanguageModel, prompt: str, context: Context) -> str:
    """Return the reply; stream it if there is a listener and the model can stream."""
    if context.on_text is None or not isinstance(model, StreamingModel):
        return model.reply(INSTRUCTIONS, prompt)
    reply = shown = ""
    for piece in model.stream(INSTRUCTIONS, prompt):
        reply += piece
        visible = strip_unfinished_reasoning(reply).lstrip()
        if is_refusal(visible):
            continue
        if len(visible) > len(shown) and visible.startswith(shown):
            context.on_text(visible[len(shown) :])
            shown = visible
    return reply


def _quote(findings: Findings, ranking: QuoteRanking, model_fault: str = "") -> Response:
    """Answer with the best block, or show passages. `model_fault`: the reason why no model wrote the answer."""
    is_answer = findings.confidence >= ANSWER_FROM
    quotes = ranking.choose_answer() if is_answer else ranking.choose_passages()
    order = list(dict.fromkeys(quote.passage for quote in quotes))
    blocks = [_format_quote(quote, order.index(quote.passage) + 1) for quote in quotes]
    metadata = {"method": QUOTATION, OUTCOME_KEY: "answer" if is_answer else "passages", **findings.metadata}
    if model_fault:
        metadata["aiUnavailable"] = model_fault
    return Response(
        answer="\n>\n".join(blocks) if is_answer else "\n\n".join([PASSAGES_TITLE, *blocks]),
        sources=tuple(findings.citations[number] for number in order),
        confidence=findings.confidence if is_answer else min(findings.confidence, _PASSAGES_CONFIDENCE),
        partial=findings.is_partial or bool(model_fault),
        metadata=metadata,
    )


def _format_quote(quote: Quote, number: int) -> str:
    """Return a block as a Markdown quotation, with its mark behind the last line, or below code and tables."""
    lines = quote.text.splitlines()
    if lines[-1].endswith(("```", "|")):
        lines.append(f"[{number}]")
    else:
        lines[-1] += f" [{number}]"
    return "\n".join(f"> {line}".rstrip() for line in lines)
