"""The commands `search`, `ask`, `cite`, `librarians list` and `librarians check`."""

import contextlib
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pair import errors, files, values
from pair.app import render
from pair.app.cli.context import At, CliContext
from pair.kb.open import DEFAULT_KB, open_kb
from pair.text.markdown import format_markdown, format_passages, strip_streamed
from pair.values import DEFAULT_MODE, GraphParameters, Hit, SearchMode, SearchOptions

if TYPE_CHECKING:
    from pair.client.remote_kb import RemoteKnowledgeBase
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.librarians.contract import Citation, Response

_MOST_COLUMNS = 100
_SNIPPET_LINES = 6
_SOURCE_LINES = 4
_SOURCE_INDENT = "     "
_MIN_WORD_CHARACTERS = 4

Words = Annotated[list[str], Argument(metavar="QUERY", help="Words to search for, or - for standard input.")]
Limit = Annotated[int, Option("-k", "--limit", min=1, max=1000, help="Maximum number of results.")]
_MODE_HELP = "hybrid (words and meaning), keyword (words), vector (meaning), graph (linked entities) or adaptive."
Mode = Annotated[SearchMode, Option("--mode", metavar="MODE", help=_MODE_HELP)]
KbNames = Annotated[
    list[str] | None, Option("--kb", metavar="ID", help="Id of the knowledge base. Repeat it to search several.")
]
Filters = Annotated[
    list[str] | None, Option("--filter", metavar="KEY=VALUE", help="Select documents by metadata. Can be repeated.")
]
Exact = Annotated[bool, Option("--exact", help="Compare every chunk of every shard; slower.")]
MaxDistance = Annotated[float | None, Option("--max-distance", help="Drop results at this vector distance or farther.")]
Explain = Annotated[bool, Option("--explain", help="Show how each score was computed.")]
Diversity = Annotated[float, Option("--diversity", min=0.0, max=0.99, help="Prefer results that differ; 0 is off.")]
Hops = Annotated[int | None, Option("--hops", min=1, max=5, help="Maximum number of steps in the graph.")]
Alpha = Annotated[float | None, Option("--alpha", min=0.0, max=1.0, help="Weight of hybrid against graph scores.")]

_EXIT_STATUSES = {
    "SERVICE_UNAVAILABLE": 4,
    "RATE_LIMITED": 4,
    "TIMEOUT": 4,
    "DATA_SOURCE_ERROR": 3,
    "AI_UNAVAILABLE": 6,
    "INTERNAL_ERROR": errors.BUG_EXIT_STATUS,
}
"""Exit statuses of error codes; all others exit with 1, because the question must change."""
_CONFIDENCE_LEVELS = ((0.8, "high"), (0.6, "fair"), (0.5, "moderate"), (0.2, "low"))
_TRIAL_QUESTION = "What do you know about?"
_TRIAL_SECONDS = 10.0
_UNUSABLE = frozenset({"INTERNAL_ERROR", "TIMEOUT", "SERVICE_UNAVAILABLE", "DATA_SOURCE_ERROR", "NOT_FOUND"})
"""Errors of librarians that do not work. Other errors come from a librarian that read the question."""

Question = Annotated[list[str], Argument(metavar="QUESTION", help="The question, or - for standard input.")]
LibrarianName = Annotated[
    str | None, Option("--librarian", metavar="ID", help="Librarian to ask first; see: pair librarians list")
]
Kb = Annotated[str | None, Option("--kb", metavar="ID", help="Ask this knowledge base.")]
Timeout = Annotated[float | None, Option("--timeout", min=0.01, metavar="SECONDS", help="Give up after this time.")]
ReceiptFile = Annotated[
    Path | None, Option("--receipt", metavar="FILE", help="Write a receipt that proves the answer; see: pair check")
]
Sign = Annotated[Path | None, Option(metavar="KEYFILE", help="Sign the receipt with this minisign secret key.")]
CitationId = Annotated[str, Argument(metavar="ID", help="Id of a citation, as shown below an answer.")]


def search(
    context: CliContext,
    words: Words,
    limit: Limit = 5,
    mode: Mode = DEFAULT_MODE,
    kbs: KbNames = None,
    filters: Filters = None,
    exact: Exact = False,
    max_distance: MaxDistance = None,
    explain: Explain = False,
    diversity: Diversity = 0.0,
    hops: Hops = None,
    alpha: Alpha = None,
    at: At = None,
) -> None:
    """Find passages that match a query, with scores, documents and matched words.

    Examples:
      pair search leap seconds
      pair search "how do I roll back a release?" -k 3 --kb handbook
      pair search '"connection refused" -proxy' --mode keyword
      pair search deploy --filter kind=file --filter 'year>=2024'
      pair search deploy --filter '{"$or": [{"lang": "de"}, {"team": "ops"}]}'
      pair search deploy --at 12                  # search version 12
      pair search deploy --kb handbook --kb faq   # search two knowledge bases
      pair search deploy --explain --json
    """
    query = _join_words(words)
    given = {"hops": hops, "alpha": alpha}
    graph = GraphParameters(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    options = SearchOptions(max_distance=max_distance, highlights=True, diversity=diversity, graph=graph)
    columns, began, found = _count_columns(), time.perf_counter(), {}
    with contextlib.ExitStack() as opened:
        for kb in _check_kbs(kbs, at):
            found[kb] = opened.enter_context(context.kb(kb, at)).search(
                query, limit=limit, mode=mode, filter=filters or None, exact=exact, explain=explain, options=options
            )
        hits = next(iter(found.values())) if len(found) == 1 else values.merge_hits(found, limit)
        passages = format_passages(hits.texts, columns, "    ")
    took_ms = (time.perf_counter() - began) * 1000
    value = {
        "kb_id": next(iter(found)) if len(found) == 1 else list(found),
        "query": query,
        "search_mode": mode,
        "mode_used": hits.mode_used,
        "reason": hits.reason,
        "manifest_version": hits.manifest_version or {kb: each.manifest_version for kb, each in found.items()},
        "took_ms": round(took_ms, 3),
        "partial": hits.partial,
        "faults": list(hits.faults),
        "results": [hit.to_json() for hit in hits.passages],
    }
    for fault in hits.faults:
        render.print_note(f"Incomplete results: {fault}")
    if hits.reason:
        render.print_note(f"{hits.mode_used}: {hits.reason}")
    lines = _format_hits(hits.passages, passages)
    advice = "Remove a --filter" if filters else "Try other or fewer words"
    nothing = f"No results. {advice}, or list what is stored: pair docs list"
    context.show(value, *(lines or [nothing]), is_answer=True)


def _check_kbs(kbs: list[str] | None, at: str | None) -> list[str]:
    """Return the KBs to search, each once. Raises E402 for a version of several KBs."""
    names = list(dict.fromkeys(kbs or [DEFAULT_KB]))
    if at is not None and len(names) > 1:
        raise errors.command_line_invalid("Cannot use --at with several --kb: their versions have different numbers.")
    return names


def _join_words(words: list[str]) -> str:
    """Return the words of the command line as one query; `-` reads it from standard input."""
    return sys.stdin.read().strip() if words == ["-"] else " ".join(words)


def _format_hits(hits: Sequence[Hit], passages: Sequence[list[str]]) -> list[render.Line]:
    shown = enumerate(zip(hits, passages, strict=True), 1)
    return [line for number, (hit, passage) in shown for line in _format_hit(number, hit, passage)]


def _format_hit(number: int, hit: Hit, passage: list[str]) -> Iterator[render.Line]:
    title = f"  {hit.title}" if hit.title and hit.title != hit.document_id else ""
    kb = f"{hit.kb_id}: " if hit.kb_id else ""
    yield render.join_line(f"{number:>2}. {hit.score:.3f}  {kb}", render.style(hit.document_id), title)
    if state := values.describe_lifecycle(hit.lifecycle):
        yield f"    ({state})"
    matched = match_words(hit.text[start:end] for start, end in hit.highlights)
    yield from cut_excerpt(passage, matched, "    ", _SNIPPET_LINES)
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


def ask(
    context: CliContext,
    words: Question,
    librarian: LibrarianName = None,
    kb: Kb = None,
    timeout: Timeout = None,
    at: At = None,
    receipt: ReceiptFile = None,
    sign: Sign = None,
) -> None:
    """Answer a question from the knowledge base, with numbered sources.

    If the knowledge base has no answer, `pair` says so. Without a model, the answer quotes the sources.

    Examples:
      pair ask how do I roll back a release
      pair ask "which port does key establishment use?" --kb handbook
      pair ask "who knows about leap seconds?" --librarian catalogue
      pair ask "how do I deploy?" --at 12         # from version 12
      pair ask "what changed in 2.0?" --timeout 10 --json
      pair ask "how do I deploy?" --receipt receipt.json
      echo "how do I deploy?" | pair ask -
    """
    import asyncio  # noqa: PLC0415 - only commands that ask wait for it

    from pair.librarians.contract import Context  # noqa: PLC0415

    if at is not None and librarian is not None:
        raise errors.command_line_invalid("Cannot use --at with --librarian: only a knowledge base has versions.")
    if sign is not None and receipt is None:
        raise errors.command_line_invalid("Cannot use --sign without --receipt: only a receipt is signed.")
    question = _join_words(words)
    streamed = shown = ""

    def print_piece(piece: str) -> None:
        nonlocal streamed, shown
        streamed += piece
        plain = strip_streamed(streamed)
        render.print_piece(plain[len(shown) :])
        shown = plain

    first = librarian or kb or (DEFAULT_KB if at is not None else None)
    given = None if context.as_json or not sys.stdout.isatty() else Context(on_text=print_piece)
    with context.kb(kb or DEFAULT_KB, at, with_sources=True) as opened:
        response = asyncio.run(opened.ask(question, first=first, context=given, timeout=timeout))
    if context.as_json:
        render.print_json(response.to_json())
    else:
        _show_response(response, is_streamed=bool(shown))
    if receipt is not None and response.error is None:
        from pair.kb.receipts import make_signed_receipt  # noqa: PLC0415 - loads packages

        content = make_signed_receipt(question, response, context.settings(), sign, render.ask_password)
        with files.storage_errors():
            files.write_atomically(files.resolve_parent(receipt), content)
        render.print_note(f"Wrote the receipt {receipt}. Check it: pair check {shlex.quote(str(receipt))}")
    if response.error is not None:
        raise typer.Exit(_EXIT_STATUSES.get(response.error.code, 1))


def cite(context: CliContext, citation_id: CitationId) -> None:
    """Print the passage that a citation points to, and note whether it has changed.

    Examples:
      pair cite 'default/guides/deploy.md#120-480@0a1b2c3d4e5f'
      pair ask "how do I deploy?" --json      # lists the id of each source
    """
    from pair.librarians.citations import parse_citation_id  # noqa: PLC0415 - only commands that ask wait for it

    place = parse_citation_id(citation_id)
    if place is None:
        raise errors.command_line_invalid(
            f"Cannot read the citation {citation_id!r}: it must have the form KB/DOCUMENT#START-END@HASH.",
            hints=["pair cite 'default/guides/deploy.md#120-480@0a1b2c3d4e5f'"],
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
        render.print_note("The document has changed since it was cited. This is the current text:")
    context.show_text(value, passage)


def list_librarians(context: CliContext) -> None:
    """List the librarians that can answer, and what they know about.

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
            + ("" if entry.is_public else "  (restricted)")
            for entry in listed
        ]
        context.show(value, *lines, f"Asked first: {librarians.first}", is_answer=True)


def check_librarians(context: CliContext) -> None:
    """Ask every librarian a test question, and report those that fail.

    Exit status: 1 if a librarian does not work.

    Examples:
      pair librarians check
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
    """Print why librarians were not loaded, and return it as JSON."""
    for problem in librarians.problems:
        render.print_note(f"Not loaded: {problem.name}: {problem.reason}")
    return [{"name": problem.name, "reason": problem.reason} for problem in librarians.problems]


def _show_response(response: "Response", *, is_streamed: bool) -> None:
    answer, outcome = response.answer or "", response.metadata.get("outcome", "answer")
    if response.metadata.get("method") == "quotation":
        answer = re.sub("^> ?", "", answer, flags=re.MULTILINE)
    columns, sources = _count_columns(), response.sources
    statements = [_find_statement(answer, number) for number in range(1, len(sources) + 1)]
    texts = [*statements, *(source.quote or "" for source in sources)]
    shown, passages = format_markdown(answer, columns), format_passages(texts, columns, _SOURCE_INDENT)
    if is_streamed and response.metadata.get("method") == "model":
        render.print_piece("\n\n")
    elif answer:
        render.print_result(*shown, "")
    if sources:
        render.print_result(render.style("Sources:"), *_format_sources(sources, statements, passages), "")
    if answer and outcome == "answer":
        confidence = response.confidence
        number_shown = "" if confidence is None else f" ({confidence:.2f})"
        render.print_result(f"Confidence: {describe_confidence(confidence)}{number_shown}")
        if response.partial:
            render.print_note("This answer may be incomplete.")
    if response.metadata.get("uncited"):
        render.print_note("Warning: the model cited no source for this answer.")
    if response.error is not None:
        hints = response.error.suggestion.split("\n") if response.error.suggestion else []
        fault = errors.PairError(response.error.code, response.error.message, hints=hints)
        render.print_error(fault, as_json=False)


def describe_confidence(confidence: float | None) -> str:
    if confidence is None:
        return "unknown"
    return next((word for least, word in _CONFIDENCE_LEVELS if confidence >= least), "very low")


def _format_sources(
    sources: Sequence["Citation"], statements: Sequence[str], plain: Sequence[list[str]]
) -> Iterator[render.Line]:
    """Yield the lines of sources. `plain`: the formatted statements that cite them, then their quotes."""
    for number, source in enumerate(sources, 1):
        statement, passage = plain[number - 1], plain[len(sources) + number - 1]
        yield from _format_source(number, source, passage, _match_statement(statements[number - 1], statement, passage))


def _format_source(
    number: int, source: "Citation", passage: list[str], cited: re.Pattern[str]
) -> Iterator[render.Line]:
    document_id = source.provenance.document_id if source.provenance else ""
    where = source.url or (document_id if document_id != source.name else "")
    yield render.join_line(f" [{number}] ", render.style(source.name), f"  {where}" if where else "")
    if state := values.describe_lifecycle(source.metadata.get("lifecycle", {})):
        yield f"{_SOURCE_INDENT}({state})"
    if source.quote:
        yield from cut_excerpt(passage, cited, _SOURCE_INDENT, _SOURCE_LINES)
    if source.id:
        yield f"{_SOURCE_INDENT}pair cite {shlex.quote(source.id)}"


def _find_statement(answer: str, number: int) -> str:
    """Return the block of the answer that cites a source, without its numbers; "" for none."""
    cited = next((block for block in re.split(r"\n\s*\n", answer) if f"[{number}]" in block), "")
    return re.sub(r"\[\d+\]", "", cited)


def _match_statement(statement: str, lines: list[str], passage: list[str]) -> re.Pattern[str]:
    """Return a pattern for a statement of the answer in a passage, or else for its longer words."""
    pattern = match_lines(lines)
    if pattern.search("\n".join(passage)):
        return pattern
    return match_words(word for word in re.findall(r"\w+", statement) if len(word) >= _MIN_WORD_CHARACTERS)


# ── excerpts ───────────────────────────────────────────────────────────────────────────────────────


def _count_columns() -> int:
    return min(shutil.get_terminal_size((_MOST_COLUMNS, 0)).columns, _MOST_COLUMNS)


def match_words(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds these words in a text."""
    choices = "|".join(sorted({re.escape(word) for word in words if word}, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{choices or '(?!)'})(?!\w)", re.IGNORECASE)


def match_lines(lines: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the words of these lines, wherever the lines of a text break."""
    words = " ".join(lines).split()
    return re.compile(r"\s+".join(map(re.escape, words)) or "(?!)")


def cut_excerpt(lines: list[str], pattern: re.Pattern[str], indent: str, most_lines: int) -> list[render.SafeLine]:
    """Return the lines that hold the most matches, with the matches bold on a terminal."""
    joined, place = "\n".join(lines), 0
    spans = [match.span() for match in pattern.finditer(joined)]
    styled, weights = [], []
    for line in lines:
        inside = [
            (max(start - place, 0), min(end - place, len(line)))
            for start, end in spans
            if start < place + len(line) and end > place
        ]
        styled.append(_style_spans(line, inside))
        weights.append(sum(end - start for start, end in inside))
        place += len(line) + 1
    starts = range(max(1, len(lines) - most_lines + 1))
    start = max(starts, key=lambda begin: (sum(weights[begin : begin + most_lines]), -begin))
    shown = styled[start : start + most_lines]
    before = [render.join_line(indent, "…")] if start else []
    after = [render.join_line(indent, "…")] if start + most_lines < len(lines) else []
    return [*before, *shown, *after]


def _style_spans(line: str, spans: Iterable[tuple[int, int]]) -> render.SafeLine:
    parts: list[render.Line] = []
    place = 0
    for start, end in spans:
        parts += [line[place:start], render.style(line[start:end])]
        place = end
    return render.join_line(*parts, line[place:])
