"""pair versions, pair rollback, pair diff, pair reproduce"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import TROUBLE_EXIT_STATUS, CliContext, KbName
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.engine.maintenance.versions import ListedVersion
    from pair.kb.diff import ChangedDocument
    from pair.kb.reproduce import PassageAgain, ReproduceReport
    from pair.librarians.citations import FoundPassage

_WANTED_HELP = "Its number, else the version of the package installed then."
_SIDE_HELP = "A version (7, 1.0.0, current, handbook@7), or the path of a folder or package (./docs, ./kb.zip)."
_MAX_LINES = 200
_MARKS = {"added": "A", "removed": "D", "changed": "M"}
_CAUSES = {
    "upsert": "documents stored",
    "delete": "documents deleted",
    "compact": "shards compacted",
    "collect": "garbage collected",
    "reembed": "embedded anew",
    "release": "sync goes on",
    "install": "package installed",
    "import": "imported",
    "repair": "repaired",
}

Wanted = Annotated[str, typer.Argument(metavar="VERSION", help=_WANTED_HELP)]
First = Annotated[str, typer.Argument(metavar="A", help=_SIDE_HELP)]
Second = Annotated[str | None, typer.Argument(metavar="B", help="The same; without it the current version.")]
Text = Annotated[bool, typer.Option("--text", help="Show what changed in the texts, too.")]
Stat = Annotated[bool, typer.Option("--stat", help="Only count.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="An answer, as pair ask --json printed it.")]
Kb = Annotated[str | None, typer.Option("--kb", metavar="ID", help="Search this KB, not the one the answer names.")]
AtVersion = Annotated[
    str | None, typer.Option("--at", metavar="VERSION", help="Search this version, or the current one.")
]
Package = Annotated[str | None, typer.Option("--package", metavar="FILE", help="Search the index in this package.")]


def versions(context: CliContext, kb: KbName = DEFAULT_KB) -> None:
    """List the versions of a KB that can be searched, compared and gone back to, the newest first.

    Every change makes one. How many are kept is up to engine.keep_versions and engine.keep_days.

    Examples:
      pair versions                  what can be gone back to
      pair versions --kb handbook --json
    """
    with context.kb(kb) as opened:
        listed = opened.versions.list()
    value = {"kb_id": kb, "versions": [version.to_json() for version in listed]}
    context.show(value, *map(_format_version, listed), is_answer=True)


def rollback(context: CliContext, version: Wanted, kb: KbName = DEFAULT_KB) -> None:
    """Make an earlier version the current one. This is instant, and a version itself.

    A KB that is kept in sync stays at that version until the next pair sync; installed files are left as they are.

    Examples:
      pair rollback 12               as it was in version 12
      pair rollback 1.0.0            as it was when release 1.0.0 was installed
      pair sync                      follow the sources again
    """
    with context.kb(kb) as opened:
        done = opened.versions.rollback(version)
    label = f" ({done.label})" if done.label else ""
    documents = render.pluralize(done.documents, "document")
    line = f"{kb} is at version {done.restored}{label} already: {documents}"
    if done.is_changed:
        result = f"{documents}; this is version {done.manifest_version}"
        line = f"{kb} is again as in version {done.restored}{label}: {result}"
    context.show(done.to_json(), line)


def diff(
    context: CliContext, a: First, b: Second = None, kb: KbName = DEFAULT_KB, text: Text = False, stat: Stat = False
) -> None:
    """Show which documents were added, removed and changed from A to B, and what index.txt would say of them.

    Exits with 1 when something differs. Errors that exit with 1 elsewhere exit with 2 here.

    Examples:
      pair diff 7                    from version 7 to the current one
      pair diff 1.0.0 2.0.0 --text   from one installed release to another, with the texts
      pair diff ./one.zip ./two.zip  from package to package
      pair diff ./docs current       from a folder to what is stored
      pair diff 7 8 --stat --json

    Exit status: 0 the same, 1 different, 2 trouble.
    """
    from pair.kb.diff import DiffRequest, open_diff  # noqa: PLC0415 - loads the engine

    with _exit_with_2(context), open_diff(context.settings(), a, b, kb) as report:
        request = DiffRequest(texts=text, most_lines=None if context.as_json else _MAX_LINES)
        documents = () if stat else report.describe(report.ids(), request)
        if context.as_json:
            value = {"a": report.a, "b": report.b, "is_different": report.is_different, **report.counts}
            listed = {} if stat else {"documents": [document.to_json() for document in documents]}
            render.print_json({**value, **listed})
        else:
            counts = ", ".join(f"{count:,} {kind}" for kind, count in report.counts.items())
            render.print_result(f"{report.a} → {report.b}: {counts}")
            for document in documents:
                render.print_result("", *_format_change(document))
        is_different = report.is_different
    if is_different:
        raise typer.Exit(1)


def reproduce(context: CliContext, file: File, kb: Kb = None, at: AtVersion = None, package: Package = None) -> None:
    """Run the retrieval of a stored answer again, and say whether the same passages come back.

    It runs in the version that the answer names, if that is kept, else in the current one. Of what differs, it is
    told which version changed it. Exits with 1 then. Errors that exit with 1 elsewhere exit with 2 here.

    Examples:
      pair ask "how do I deploy?" --json > answer.json
      pair reproduce answer.json                    are the same passages found again?
      pair reproduce answer.json --at current       has anything changed since?
      pair reproduce answer.json --package handbook-1.0.0.zip

    Exit status: 0 the same, 1 different, 2 trouble.
    """
    from pair.kb.reproduce import read_answer  # noqa: PLC0415 - loads the engine
    from pair.kb.reproduce import reproduce as reproduce_retrieval  # noqa: PLC0415

    with _exit_with_2(context):
        if package is not None and (kb is not None or at is not None):
            raise errors.command_line_invalid("--package goes without --kb and --at: a package holds one version")
        archive = None if package is None else Path(package)
        reports = [
            reproduce_retrieval(context.settings(), retrieval, kb_id=kb, at=at, package=archive)
            for retrieval in read_answer(Path(file))
        ]
    is_same = all(report.is_same for report in reports)
    lines = [line for report in reports for line in _format_retrieval(report)]
    context.show({"isSame": is_same, "retrievals": [report.to_json() for report in reports]}, *lines, is_answer=True)
    if not is_same:
        raise typer.Exit(1)


@contextlib.contextmanager
def _exit_with_2(context: CliContext) -> Iterator[None]:
    """Exit with 2 for errors that exit with 1 elsewhere: here 1 is an answer."""
    try:
        yield
    except errors.PairError as error:
        if error.exit_status != 1:
            raise
        render.print_error(error, as_json=context.as_json)
        raise typer.Exit(TROUBLE_EXIT_STATUS) from error


def _format_version(version: "ListedVersion") -> str:
    mark = "*" if version.is_current else " "
    cause = f"back to version {version.restored}" if version.made_by == "rollback" else _CAUSES.get(version.made_by, "")
    label = f", {version.label}" if version.label else ""
    documents = render.pluralize(version.documents, "document")
    return f"{mark} {version.number:>6}  {version.created_at[:19]}Z  {documents}, {cause}{label}"


def _format_change(document: "ChangedDocument") -> Iterator[str]:
    yield f"{_MARKS[document.change]} {document.id}"
    yield from (f"  {line}" for line in document.entry or ())
    if document.text:
        yield "  text:"
        yield from (f"  {line}" for line in document.text)
    if document.left_out_lines:
        yield f"  … {render.pluralize(document.left_out_lines, 'more line')}"


def _format_retrieval(report: "ReproduceReport") -> Iterator[str]:
    where = f"{report.kb_id}, version {report.version}"
    if not report.is_recorded:
        where += f" (the answer names version {report.asked.manifest_version} of {report.asked.kb_id})"
    same = sum(passage.state == "same" for passage in report.passages)
    if report.is_same:
        yield f"{where}: the same {render.pluralize(same, 'passage')}"
        return
    yield f"{where}: {same:,} of {render.pluralize(len(report.passages), 'passage')} the same"
    for again in report.passages:
        if again.state != "same":
            yield f"  {again.rank}. {_format_place(again.passage)}: {_explain(again)}"
    yield from (f"  {rank}. {_format_place(passage)}: new" for rank, passage in report.new)


def _format_place(passage: "FoundPassage") -> str:
    return f"{passage.document_id} {passage.start}-{passage.end}"


def _explain(again: "PassageAgain") -> str:
    """Return what became of a passage."""
    since = f"version {again.changed_in}" + (" or before" if again.or_before else "")
    return {
        "moved": f"now at rank {again.new_rank}",
        "scored": "the same, with another score",
        "changed": f"changed in {since}",
        "gone": f"its document is gone since {since}",
        "not_found": "as it was, but not found any more",
    }[again.state]
