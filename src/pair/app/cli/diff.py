"""pair diff"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.kb.diff import ChangedDocument

EXAMPLE = """Examples:

\b
  pair diff 7                    from version 7 to the current one
  pair diff 1.0.0 2.0.0 --text   from one installed release to another, with the texts
  pair diff ./one.zip ./two.zip  from package to package
  pair diff ./docs current       from a folder to what is stored
  pair diff 7 8 --stat --json

Exit status: 0 the same, 1 different, 2 trouble."""

_SIDE = "A version (7, 1.0.0, current, handbook@7), or the path of a folder or package (./docs, ./kb.zip)."
_MOST_LINES = 200
_MARKS = {"added": "A", "removed": "D", "changed": "M"}

First = Annotated[str, typer.Argument(metavar="A", help=_SIDE)]
Second = Annotated[str | None, typer.Argument(metavar="B", help="The same; without it the current version.")]
Text = Annotated[bool, typer.Option("--text", help="Show what changed in the texts, too.")]
Stat = Annotated[bool, typer.Option("--stat", help="Only count.")]


def diff(
    context: typer.Context,
    a: First,
    b: Second = None,
    kb: KbName = DEFAULT_KB,
    text: Text = False,
    stat: Stat = False,
) -> None:
    """Show which documents were added, removed and changed from A to B, and what index.txt would say of them.

    Exits with 1 when something differs. Errors that exit with 1 elsewhere exit with 2 here.
    """
    session: CliContext = context.obj
    with session.trouble(), session.compared(a, b, kb) as found:
        counts = found.counts
        most = None if session.as_json else _MOST_LINES
        documents = () if stat else session.changed_documents(found, texts=text, most_lines=most)
        told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        if session.as_json:
            value = {"a": found.a, "b": found.b, "is_different": found.is_different, **counts}
            listed = {} if stat else {"documents": [each.to_json() for each in documents]}
            render.print_json({**value, **listed})
        else:
            render.print_result(f"{found.a} → {found.b}: {told}")
            for document in documents:
                render.print_result("", *_lines(document))
        is_different = found.is_different
    if is_different:
        raise typer.Exit(1)


def _lines(document: "ChangedDocument") -> Iterator[str]:
    yield f"{_MARKS[document.change]} {document.id}"
    yield from (f"  {line}" for line in document.entry or ())
    if document.text:
        yield "  text:"
        yield from (f"  {line}" for line in document.text)
    if document.left_out_lines:
        yield f"  … {render.counted(document.left_out_lines, 'more line')}"
