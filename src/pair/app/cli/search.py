"""pair search"""

import dataclasses
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pair.app import render
from pair.app.cli.context import At, CliContext, KbName
from pair.kb.open import DEFAULT_KB
from pair.values import DEFAULT_MODE, GraphParameters, SearchMode, SearchOptions

if TYPE_CHECKING:
    from pair.values import Hit

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


def _format_hit(number: int, hit: "Hit") -> Iterator[str]:
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


def _cut_around_matches(hit: "Hit") -> str:
    """Return the passage from a little before the part in which most matches lie close together."""
    if len(hit.text) <= _MAX_CHARACTERS or not hit.highlights:
        return hit.text
    starts = [start for start, _ in hit.highlights]
    _, first = max((sum(1 for start in starts if begin <= start < begin + _MAX_CHARACTERS), -begin) for begin in starts)
    begin = max(-first - _BEFORE_MATCH, 0)
    at_word = hit.text.find(" ", begin) + 1 if begin else 0
    return ("… " if at_word else "") + hit.text[at_word:]
