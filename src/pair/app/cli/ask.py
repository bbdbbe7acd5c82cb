"""pair ask, pair cite"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import AskOptions, CliContext
from pair.app.cli.versions import At
from pair.librarians.relevance import describe_confidence

if TYPE_CHECKING:
    from pair.librarians.contract import Citation, Response

ASK_EXAMPLE = """Examples:

\b
  pair ask "how do I roll back a release?"
  pair ask "which port does key establishment use?" --kb handbook
  pair ask "who knows about leap seconds?" --librarian catalogue
  pair ask "how do I deploy?" --at 12               as it was in version 12
  pair ask "what changed in 2.0?" --timeout 10 --json"""

CITE_EXAMPLE = """Examples:

\b
  pair cite 'default/guides/deploy.md#120-480@0a1b2c3d4e5f'
  pair ask "how do I deploy?" --json      every source has its id"""

_WIDTH = 100
_EXITS = {
    "SERVICE_UNAVAILABLE": 4,
    "RATE_LIMITED": 4,
    "TIMEOUT": 4,
    "DATA_SOURCE_ERROR": 3,
    "AI_UNAVAILABLE": 6,
    "INTERNAL_ERROR": errors.BUG_EXIT_STATUS,
}
"""All others are about what was asked: 1."""

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="In plain words.")]
LibrarianName = Annotated[
    str | None, typer.Option("--librarian", metavar="ID", help="Who is asked first; see: pair librarians list")
]
Kb = Annotated[str | None, typer.Option("--kb", metavar="ID", help="Ask the shelf of this KB.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0.01, help="Seconds until there must be an answer.")]
CitationId = Annotated[str, typer.Argument(metavar="ID", help="Of a citation, as an answer shows it.")]


def ask(
    context: typer.Context,
    question: Question,
    librarian: LibrarianName = None,
    kb: Kb = None,
    timeout: Timeout = None,
    at: At = None,
) -> None:
    """Ask in plain language: an answer with numbered sources and how sure it is."""
    session: CliContext = context.obj
    if at is not None and librarian is not None:
        raise errors.command_line_invalid("--at goes without --librarian: only the shelf of a KB knows its past")
    stream = _AnswerStream() if not session.as_json and sys.stdout.isatty() else None
    response = session.ask(question, AskOptions(kb, librarian, at), timeout, stream.write if stream else None)
    if session.as_json:
        render.print_json(response.to_json())
    else:
        _show(response, is_shown=bool(stream and stream.is_used))
    if response.error is not None:
        raise typer.Exit(_EXITS.get(response.error.code, 1))


def cite(context: typer.Context, citation_id: CitationId) -> None:
    """Print the passage that a citation points to, and whether it is still the same."""
    session: CliContext = context.obj
    place = session.cited_place(citation_id)
    if place is None:
        raise errors.command_line_invalid(
            f"not the id of a citation: {citation_id}", hints=["It looks like KB/DOCUMENT#START-END@HASH"]
        )
    with session.cited_kb(place) as opened:
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
    session.show_text(value, passage)


class _AnswerStream:
    """Shows an answer while it is written."""

    def __init__(self) -> None:
        self.is_used = False

    def write(self, piece: str) -> None:
        self.is_used = True
        render.print_piece(piece)


def _show(response: "Response", *, is_shown: bool) -> None:
    """`is_shown`: the model's reply was printed as it came."""
    if response.answer:
        if is_shown and response.metadata.get("method") == "model":
            render.print_piece("\n\n")
        else:
            render.print_text(f"{response.answer}\n")
    if response.sources:
        render.print_result("Sources:")
        for number, source in enumerate(response.sources, 1):
            render.print_result(*_told(number, source))
        render.print_result("")
    if response.answer:
        render.print_result(f"Confidence: {describe_confidence(response.confidence)}" + _number(response.confidence))
    if response.partial and response.answer and not response.metadata.get("nothingRelevant"):
        render.print_note("partial: this may not be the whole answer")
    if response.metadata.get("uncited"):
        render.print_note("the model cited nothing: nothing in the knowledge base supports this answer")
    if response.error is not None:
        lines = [f"Error: {response.error.message}", ""]
        if response.error.suggestion:
            lines += [*(f"  {line}" for line in response.error.suggestion.split("\n")), ""]
        render.print_note(*lines, f"Code: {response.error.code}")


def _told(number: int, source: "Citation") -> list[str]:
    place = source.provenance.document_id if source.provenance else ""
    where = source.url or (place if place != source.name else "")
    told = f" [{number}] {source.name}" + (f"  {where}" if where else "")
    return [told, f"     pair cite '{source.id}'"] if source.id else [told]


def _number(confidence: float | None) -> str:
    return "" if confidence is None else f" ({confidence:.2f})"
