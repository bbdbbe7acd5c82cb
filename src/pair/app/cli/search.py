"""pair search, pair ask, pair cite, pair librarians list, check"""

import contextlib
import dataclasses
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import At, CliContext, KbName
from pair.kb.open import DEFAULT_KB, open_kb
from pair.values import DEFAULT_MODE, GraphParameters, Hit, SearchMode, SearchOptions

if TYPE_CHECKING:
    from pair.client.remote_kb import RemoteKnowledgeBase
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.librarians.contract import Citation, Response

_WIDTH = 100
_MAX_CHARACTERS = 600
_BEFORE_MATCH = 80

Query = Annotated[str, typer.Argument(help="What to look for, in plain words.")]
Limit = Annotated[int, typer.Option("-k", "--limit", min=1, max=1000, help="Most hits to show.")]
Mode = Annotated[SearchMode, typer.Option("--mode", help="By words and meaning, one of them, or by the graph.")]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="Only documents whose metadata says so; may be repeated."),
]
Exact = Annotated[bool, typer.Option("--exact", help="Look at every chunk of every shard.")]
MaxDistance = Annotated[float | None, typer.Option("--max-distance", help="Only hits strictly nearer than this.")]
Explain = Annotated[bool, typer.Option("--explain", help="Say of each hit how it got its score.")]
Diversity = Annotated[
    float, typer.Option("--diversity", min=0.0, max=0.99, help="How unlike each other hits should be: 0 to 0.99.")
]
Hops = Annotated[int | None, typer.Option("--hops", min=1, max=5, help="How far the graph is followed.")]
Alpha = Annotated[
    float | None, typer.Option("--alpha", min=0.0, max=1.0, help="Share of the hybrid score beside the graph's.")
]

_EXIT_STATUSES = {
    "SERVICE_UNAVAILABLE": 4,
    "RATE_LIMITED": 4,
    "TIMEOUT": 4,
    "DATA_SOURCE_ERROR": 3,
    "AI_UNAVAILABLE": 6,
    "INTERNAL_ERROR": errors.BUG_EXIT_STATUS,
}
"""All other errors are about the question: 1."""
_CONFIDENCE_LEVELS = ((0.8, "high"), (0.6, "fair"), (0.5, "moderate"), (0.2, "low"))
_TRIAL_QUESTION = "Is anybody there?"
_TRIAL_SECONDS = 10.0
_UNUSABLE = frozenset({"INTERNAL_ERROR", "TIMEOUT", "SERVICE_UNAVAILABLE", "DATA_SOURCE_ERROR", "NOT_FOUND"})
"""A librarian with another error at least understood the question."""

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="In plain words.")]
LibrarianName = Annotated[
    str | None, typer.Option("--librarian", metavar="ID", help="Who is asked first; see: pair librarians list")
]
Kb = Annotated[str | None, typer.Option("--kb", metavar="ID", help="Ask the shelf of this KB.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0.01, help="Seconds until there must be an answer.")]
CitationId = Annotated[str, typer.Argument(metavar="ID", help="Of a citation, as an answer shows it.")]


def search(
    context: CliContext,
    query: Query,
    limit: Limit = 5,
    mode: Mode = DEFAULT_MODE,
    kb: KbName = DEFAULT_KB,
    filters: Filters = None,
    exact: Exact = False,
    max_distance: MaxDistance = None,
    explain: Explain = False,
    diversity: Diversity = 0.0,
    hops: Hops = None,
    alpha: Alpha = None,
    at: At = None,
) -> None:
    """Find passages: each with its score, its document and where in it.

    Examples:
      pair search "how do I roll back a release?"
      pair search "leap seconds" -k 3 --kb handbook
      pair search '"connection refused" -proxy' --mode keyword     a phrase, without a word
      pair search "who made the first railway time?" --mode adaptive --explain
      pair search deploy --filter kind=file --filter 'year>=2024'
      pair search deploy --at 12                                   as it was in version 12
      pair search deploy --diversity 0.3 --json
    """
    usual = GraphParameters()
    graph = dataclasses.replace(
        usual, hops=usual.hops if hops is None else hops, alpha=usual.alpha if alpha is None else alpha
    )
    options = SearchOptions(max_distance=max_distance, highlights=True, diversity=diversity, graph=graph)
    began = time.perf_counter()
    with context.kb(kb, at) as opened:
        hits = opened.search(
            query, limit=limit, mode=mode, filter=filters or None, exact=exact, explain=explain, options=options
        )
    took_ms = (time.perf_counter() - began) * 1000
    value = {
        "kb_id": kb,
        "query": query,
        "search_mode": mode,
        "mode_used": hits.mode_used,
        "reason": hits.reason,
        "manifest_version": hits.manifest_version,
        "took_ms": round(took_ms, 3),
        "partial": hits.partial,
        "faults": list(hits.faults),
        "results": [hit.to_json() for hit in hits.passages],
    }
    for fault in hits.faults:
        render.print_note(f"partial: {fault}")
    if hits.reason:
        render.print_note(f"{hits.mode_used}: {hits.reason}")
    lines = [line for number, hit in enumerate(hits.passages, 1) for line in _format_hit(number, hit)]
    context.show(value, *(lines or ["nothing found"]), is_answer=True)


def _format_hit(number: int, hit: Hit) -> Iterator[str]:
    title = f"  {hit.title}" if hit.title and hit.title != hit.document_id else ""
    passage = textwrap.shorten(_cut_around_matches(hit), _MAX_CHARACTERS, placeholder=" …")
    yield f"{number:>2}. {hit.score:.3f}  {hit.document_id}{title}"
    yield from textwrap.wrap(passage, _WIDTH, initial_indent="    ", subsequent_indent="    ") or [""]
    if hit.also_in:
        more = hit.also_in_count - len(hit.also_in)
        others = ", ".join(copy.document_id for copy in hit.also_in)
        yield f"    also in: {others}" + (f" and {more:,} more" if more > 0 else "")
    if hit.explanation:
        parts = (
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in hit.explanation.items()
        )
        yield f"    = {', '.join(parts)}"


def _cut_around_matches(hit: Hit) -> str:
    """Return the passage from a little before the part in which most matches lie close together."""
    if len(hit.text) <= _MAX_CHARACTERS or not hit.highlights:
        return hit.text
    starts = [start for start, _ in hit.highlights]
    _, first = max((sum(1 for start in starts if begin <= start < begin + _MAX_CHARACTERS), -begin) for begin in starts)
    begin = max(-first - _BEFORE_MATCH, 0)
    at_word = hit.text.find(" ", begin) + 1 if begin else 0
    return ("… " if at_word else "") + hit.text[at_word:]


def ask(
    context: CliContext,
    question: Question,
    librarian: LibrarianName = None,
    kb: Kb = None,
    timeout: Timeout = None,
    at: At = None,
) -> None:
    """Ask in plain language: an answer with numbered sources and how sure it is.

    Examples:
      pair ask "how do I roll back a release?"
      pair ask "which port does key establishment use?" --kb handbook
      pair ask "who knows about leap seconds?" --librarian catalogue
      pair ask "how do I deploy?" --at 12               as it was in version 12
      pair ask "what changed in 2.0?" --timeout 10 --json
    """
    import asyncio  # noqa: PLC0415 - only commands that ask wait for it

    from pair.librarians.contract import Context  # noqa: PLC0415

    if at is not None and librarian is not None:
        raise errors.command_line_invalid("--at goes without --librarian: only the shelf of a KB knows its past")
    is_streamed = False

    def print_piece(piece: str) -> None:
        nonlocal is_streamed
        is_streamed = True
        render.print_piece(piece)

    first = librarian or kb or (DEFAULT_KB if at is not None else None)
    given = None if context.as_json or not sys.stdout.isatty() else Context(on_text=print_piece)
    with context.kb(kb or DEFAULT_KB, at, with_sources=True) as opened:
        response = asyncio.run(opened.ask(question, first=first, context=given, timeout=timeout))
    if context.as_json:
        render.print_json(response.to_json())
    else:
        _show_response(response, is_streamed=is_streamed)
    if response.error is not None:
        raise typer.Exit(_EXIT_STATUSES.get(response.error.code, 1))


def cite(context: CliContext, citation_id: CitationId) -> None:
    """Print the passage that a citation points to, and whether it is still the same.

    Examples:
      pair cite 'default/guides/deploy.md#120-480@0a1b2c3d4e5f'
      pair ask "how do I deploy?" --json      every source has its id
    """
    from pair.librarians.citations import parse_citation_id  # noqa: PLC0415 - only commands that ask wait for it

    place = parse_citation_id(citation_id)
    if place is None:
        raise errors.command_line_invalid(
            f"not the id of a citation: {citation_id}", hints=["It looks like KB/DOCUMENT#START-END@HASH"]
        )
    opened: KnowledgeBase | RemoteKnowledgeBase
    if place.librarian:
        from pair.kb.librarians import connect_to_librarian  # noqa: PLC0415 - loads the network

        opened = connect_to_librarian(context.settings(), place.librarian, place.kb_id)
    else:
        opened = context.kb(place.kb_id)
    with opened:
        document = opened.document(place.document_id)
    passage = document.text[place.start : place.end]
    is_same = place.is_still(passage)
    value: dict[str, Any] = {
        "id": citation_id,
        "kb_id": place.kb_id,
        "document_id": place.document_id,
        "title": document.title,
        "url": document.url,
        "start": place.start,
        "end": place.end,
        "is_unchanged": is_same,
        "text": passage,
    }
    if not is_same:
        render.print_note("the document has changed since it was cited: this is what stands there now")
    context.show_text(value, passage)


def list_librarians(context: CliContext) -> None:
    """Who can be asked, and what about.

    Examples:
      pair librarians list
      pair librarians list --json
    """
    with _open_librarians(context) as librarians:
        listed = librarians.list_all()
        value = {
            "first": librarians.first,
            "librarians": [
                {**entry.card.to_json(), "answers_from": entry.answers_from, "public": entry.is_public}
                for entry in listed
            ],
            "problems": _report_problems(librarians),
        }
        lines = [
            f"{entry.card.id:<20}  {entry.answers_from:<28}  {entry.card.description}"
            + ("" if entry.is_public else "  (not for everybody)")
            for entry in listed
        ]
        context.show(value, *lines, f"asked first: {librarians.first}", is_answer=True)


def check_librarians(context: CliContext) -> None:
    """Ask each of them something, and say who cannot answer and why.

    Examples:
      pair librarians check      exit status 1 when one of them cannot be used
    """
    import asyncio  # noqa: PLC0415 - only commands that ask wait for it

    with _open_librarians(context) as librarians:
        results = asyncio.run(_try_librarians(librarians))
        value = {"librarians": results, "problems": _report_problems(librarians)}
        context.show(value, *(f"{name:<20}  {result}" for name, result in results.items()), is_answer=True)
        has_problems = bool(librarians.problems)
    if has_problems or any(result != "ok" for result in results.values()):
        raise typer.Exit(1)


@contextlib.contextmanager
def _open_librarians(context: CliContext) -> "Iterator[KbLibrarians]":
    from pair.kb.librarians import KbLibrarians  # noqa: PLC0415 - loads asyncio

    with context.kb(DEFAULT_KB, with_sources=True) as kb:
        settings = context.settings()
        opened = KbLibrarians(kb, settings, lambda kb_id: open_kb(kb_id, settings=settings))
        with contextlib.closing(opened) as librarians:
            yield librarians


async def _try_librarians(librarians: "KbLibrarians") -> dict[str, str]:
    """Return `ok` or the error of each librarian."""
    results = {}
    for entry in librarians.list_all():
        response = await librarians.ask(_TRIAL_QUESTION, first=entry.card.id, timeout=_TRIAL_SECONDS)
        error = response.error
        results[entry.card.id] = f"{error.code}: {error.message}" if error and error.code in _UNUSABLE else "ok"
    return results


def _report_problems(librarians: "KbLibrarians") -> list[dict[str, str]]:
    """Print why librarians were left out, and return it as JSON."""
    for problem in librarians.problems:
        render.print_note(f"left out: {problem.name}: {problem.reason}")
    return [{"name": problem.name, "reason": problem.reason} for problem in librarians.problems]


def _show_response(response: "Response", *, is_streamed: bool) -> None:
    if response.answer:
        if is_streamed and response.metadata.get("method") == "model":
            render.print_piece("\n\n")
        else:
            render.print_text(f"{response.answer}\n")
    if response.sources:
        render.print_result("Sources:")
        for number, source in enumerate(response.sources, 1):
            render.print_result(*_format_source(number, source))
        render.print_result("")
    if response.answer:
        confidence = response.confidence
        number_shown = "" if confidence is None else f" ({confidence:.2f})"
        render.print_result(f"Confidence: {describe_confidence(confidence)}{number_shown}")
    if response.partial and response.answer and not response.metadata.get("nothingRelevant"):
        render.print_note("partial: this may not be the whole answer")
    if response.metadata.get("uncited"):
        render.print_note("the model cited nothing: nothing in the knowledge base supports this answer")
    if response.error is not None:
        lines = [f"Error: {response.error.message}", ""]
        if response.error.suggestion:
            lines += [*(f"  {line}" for line in response.error.suggestion.split("\n")), ""]
        render.print_note(*lines, f"Code: {response.error.code}")


def describe_confidence(confidence: float | None) -> str:
    if confidence is None:
        return "not known"
    return next((word for least, word in _CONFIDENCE_LEVELS if confidence >= least), "very low")


def _format_source(number: int, source: "Citation") -> list[str]:
    document_id = source.provenance.document_id if source.provenance else ""
    where = source.url or (document_id if document_id != source.name else "")
    line = f" [{number}] {source.name}" + (f"  {where}" if where else "")
    return [line, f"     pair cite '{source.id}'"] if source.id else [line]
