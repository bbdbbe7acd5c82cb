"""pair reproduce"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext

if TYPE_CHECKING:
    from pair.kb.reproduce import PassageAgain, ReproduceReport
    from pair.librarians.citations import FoundPassage

EXAMPLE = """Examples:

\b
  pair ask "how do I deploy?" --json > answer.json
  pair reproduce answer.json                    are the same passages found again?
  pair reproduce answer.json --at current       has anything changed since?
  pair reproduce answer.json --package handbook-1.0.0.zip

Exit status: 0 the same, 1 different, 2 trouble."""

File = Annotated[str, typer.Argument(metavar="FILE", help="An answer, as pair ask --json printed it.")]
Kb = Annotated[str | None, typer.Option("--kb", metavar="ID", help="Search this KB, not the one the answer names.")]
At = Annotated[str | None, typer.Option("--at", metavar="VERSION", help="Search this version, or the current one.")]
Package = Annotated[str | None, typer.Option("--package", metavar="FILE", help="Search the index in this package.")]


def reproduce(context: typer.Context, file: File, kb: Kb = None, at: At = None, package: Package = None) -> None:
    """Run the retrieval of a stored answer again, and say whether the same passages come back.

    It runs in the version that the answer names, if that is kept, else in the current one. Of what differs, it is
    told which version changed it. Exits with 1 then. Errors that exit with 1 elsewhere exit with 2 here.
    """
    session: CliContext = context.obj
    with session.trouble():
        if package is not None and (kb is not None or at is not None):
            raise errors.command_line_invalid("--package goes without --kb and --at: a package holds one version")
        done = session.reproduced(file, kb, at, package)
    is_same = all(each.is_same for each in done)
    told = [line for each in done for line in _lines(each)]
    session.show({"isSame": is_same, "retrievals": [each.to_json() for each in done]}, *told, is_answer=True)
    if not is_same:
        raise typer.Exit(1)


def _lines(done: "ReproduceReport") -> Iterator[str]:
    where = f"{done.kb_id}, version {done.version}"
    if not done.is_recorded:
        where += f" (the answer names version {done.asked.manifest_version} of {done.asked.kb_id})"
    same = sum(each.state == "same" for each in done.passages)
    if done.is_same:
        yield f"{where}: the same {render.counted(same, 'passage')}"
        return
    yield f"{where}: {same:,} of {render.counted(len(done.passages), 'passage')} the same"
    yield from (
        f"  {each.rank}. {_place(each.passage)}: {_became(each)}" for each in done.passages if each.state != "same"
    )
    yield from (f"  {rank}. {_place(each)}: new" for rank, each in done.new)


def _place(passage: "FoundPassage") -> str:
    return f"{passage.document_id} {passage.start}-{passage.end}"


def _became(again: "PassageAgain") -> str:
    since = f"version {again.changed_in}" + (" or before" if again.or_before else "")
    return {
        "moved": f"now at rank {again.new_rank}",
        "scored": "the same, with another score",
        "changed": f"changed in {since}",
        "gone": f"its document is gone since {since}",
        "not_found": "as it was, but not found any more",
    }[again.state]
