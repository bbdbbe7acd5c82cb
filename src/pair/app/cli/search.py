"""pair search"""

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from pair.app import render
from pair.app.cli.ingest import KbName
from pair.app.cli.session import Session
from pair.values import SearchMode
from pair.wiring import DEFAULT_KB

if TYPE_CHECKING:
    from pair.kb import Hits

EXAMPLE = """Examples:

\b
  pair search "how do I roll back a release?"
  pair search "leap seconds" -k 3 --kb handbook
  pair search deploy --filter kind=file --filter 'year>=2024'
  pair search deploy --json"""

_WIDTH = 100

Query = Annotated[str, typer.Argument(help="What to look for, in plain words.")]
Limit = Annotated[int, typer.Option("-k", "--limit", min=1, max=1000, help="Most hits to show.")]
Mode = Annotated[SearchMode, typer.Option("--mode", help="How to search.")]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="Only documents whose metadata says so; may be repeated."),
]
Exact = Annotated[bool, typer.Option("--exact", help="Look at every chunk of every shard.")]
MaxDistance = Annotated[float | None, typer.Option("--max-distance", help="Only hits strictly nearer than this.")]


def search(
    context: typer.Context,
    query: Query,
    limit: Limit = 5,
    mode: Mode = "vector",
    kb: KbName = DEFAULT_KB,
    filters: Filters = None,
    exact: Exact = False,
    max_distance: MaxDistance = None,
) -> None:
    """Find passages: each with its score, its document and where in it."""
    session: Session = context.obj
    with session.kb(kb) as opened:
        hits = opened.search(
            query, limit=limit, mode=mode, filter=filters or None, max_distance=max_distance, exact=exact
        )
    value = {
        "kb_id": kb,
        "query": query,
        "search_mode": mode,
        "partial": hits.partial,
        "faults": list(hits.faults),
        "results": [hit.to_json() for hit in hits],
    }
    for fault in hits.faults:
        render.print_note(f"partial: {fault}")
    session.show(value, _told(hits), is_answer=True)


def _told(hits: "Hits") -> str:
    if not len(hits):
        return "nothing found"
    blocks = []
    for number, hit in enumerate(hits, 1):
        title = f"  {hit.title}" if hit.title and hit.title != hit.document_id else ""
        passage = textwrap.fill(" ".join(hit.text.split()), _WIDTH, initial_indent="    ", subsequent_indent="    ")
        blocks.append(f"{number:>2}. {hit.score:.3f}  {hit.document_id}{title}\n{passage}")
    return "\n".join(blocks)
