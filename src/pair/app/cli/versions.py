"""The commands `versions`, `rollback`, `diff`, `reproduce`, `test` and `check`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext, KbName
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.engine.maintenance.versions import ListedVersion
    from pair.kb.answer_tests import ChangedAnswer
    from pair.kb.diff import ChangedDocument
    from pair.kb.receipts import PassageAgain, ReproduceReport
    from pair.librarians.citations import FoundPassage

_WANTED_HELP = "Number of the version, or version of the installed package."
_SIDE_HELP = "A version (7, 1.0.0, current, handbook@7), a folder (./docs) or a package (./kb.zip)."
_MAX_LINES = 200
_MARKS = {"added": "A", "removed": "D", "changed": "M"}
_CAUSES = {
    "upsert": "documents stored",
    "delete": "documents deleted",
    "compact": "shards compacted",
    "collect": "garbage collected",
    "reembed": "re-embedded",
    "release": "sync resumed",
    "install": "package installed",
    "import": "imported",
    "repair": "repaired",
}

Wanted = Annotated[str, Argument(metavar="VERSION", help=_WANTED_HELP)]
First = Annotated[str, Argument(metavar="A", help=_SIDE_HELP)]
Second = Annotated[str | None, Argument(metavar="B", help="The other side. [the current version]")]
Text = Annotated[bool, Option("--text", help="Also show the changed lines of the texts.")]
Answers = Annotated[bool, Option("--answers", help="Also compare the answers to the test questions.")]
Questions = Annotated[Path | None, Option("--questions", metavar="FILE", help="Ask the questions of this file.")]
Stat = Annotated[bool, Option("--stat", help="Print the counts only.")]
File = Annotated[str, Argument(metavar="FILE", help="An answer that `pair ask --json` printed.")]
Kb = Annotated[str | None, Option("--kb", metavar="ID", help="Search this KB instead of the one in the answer.")]
AtVersion = Annotated[str | None, Option("--at", metavar="VERSION", help="Search this version, or `current`.")]
Package = Annotated[str | None, Option("--package", metavar="FILE", help="Search the index of this package.")]


def versions(context: CliContext, kb: KbName = DEFAULT_KB) -> None:
    """List the versions of a knowledge base, newest first.

    Every write makes a version. You can search, compare and restore each. engine.keep_versions and engine.keep_days set
    how many are kept.

    Examples:
      pair versions
      pair versions --kb handbook --json
    """
    with context.kb(kb) as opened:
        listed = opened.versions.list()
    value = {"kb_id": kb, "versions": [version.to_json() for version in listed]}
    context.show(
        value, *(map(_format_version, listed) if listed else ["No versions: nothing is stored."]), is_answer=True
    )


def rollback(context: CliContext, version: Wanted, kb: KbName = DEFAULT_KB) -> None:
    """Restore an earlier version of a knowledge base.

    A rollback is instant and makes a new version. A synced KB stays there until the next `pair sync`. Installed files
    do not change.

    Examples:
      pair rollback 12               # restore version 12
      pair rollback 1.0.0            # restore the installed release 1.0.0
      pair sync                      # follow the sources again
    """
    with context.kb(kb) as opened:
        done = opened.versions.rollback(version)
    label = f" ({done.label})" if done.label else ""
    documents = render.pluralize(done.documents, "document")
    line = f"Nothing to do: {kb} is already at version {done.restored}{label}, {documents}."
    if done.is_changed:
        line = f"Restored version {done.restored}{label} of {kb} as version {done.manifest_version}: {documents}."
    context.show(done.to_json(), line)


def diff(
    context: CliContext,
    a: First,
    b: Second = None,
    kb: KbName = DEFAULT_KB,
    text: Text = False,
    stat: Stat = False,
    answers: Answers = False,
    questions: Questions = None,
) -> None:
    """List the documents that were added, removed or changed from A to B.

    Each document is shown with its entry in index.txt. --answers shows which questions of questions.jsonl are answered
    from another document, are no longer answered, or lost confidence. Exit status: 0 if A and B are the same, 1 if they
    differ, 2 for errors.

    Examples:
      pair diff 7                     # version 7 and the current one
      pair diff 1.0.0 2.0.0 --text    # two releases, with changed lines
      pair diff ./one.zip ./two.zip   # two packages
      pair diff ./docs current        # a folder and what is stored
      pair diff 7 8 --stat --json
      pair diff ./one.zip ./two.zip --answers
    """
    from pair.kb.diff import DiffRequest, compare_side_answers, open_diff  # noqa: PLC0415 - loads the engine

    if questions is not None and not answers:
        raise errors.command_line_invalid("Cannot use --questions without --answers.")
    changed = compare_side_answers(context.settings(), a, b, kb, questions) if answers else None
    with open_diff(context.settings(), a, b, kb) as report:
        request = DiffRequest(texts=text, most_lines=None if context.as_json else _MAX_LINES)
        documents = () if stat else report.describe(report.ids(), request)
        if context.as_json:
            value = {"a": report.a, "b": report.b, "is_different": report.is_different, **report.counts}
            listed = {} if stat else {"documents": [document.to_json() for document in documents]}
            compared = {} if changed is None else {"answers": [answer.to_json() for answer in changed]}
            render.print_json({**value, **listed, **compared})
        else:
            counts = ", ".join(f"{count:,} {kind}" for kind, count in report.counts.items())
            render.print_result(f"{report.a} → {report.b}: {counts}")
            for document in documents:
                render.print_result("", *_format_change(document))
            if changed is not None:
                render.print_result("", *_format_answers(changed))
        is_different = report.is_different or bool(changed)
    if is_different:
        raise typer.Exit(1)


def reproduce(context: CliContext, file: File, kb: Kb = None, at: AtVersion = None, package: Package = None) -> None:
    """Repeat the search behind a stored answer, and compare the passages.

    The command searches the version that the answer names, or the current one if that version is not kept. For each
    difference, it names the version that caused it. Exit status: 0 if the passages are the same, 1 if they differ, 2
    for errors.

    Examples:
      pair ask "how do I deploy?" --json > answer.json
      pair reproduce answer.json                 # same version
      pair reproduce answer.json --at current    # what changed since?
      pair reproduce answer.json --package handbook-1.0.0.zip
    """
    from pair.kb.receipts import read_answer  # noqa: PLC0415 - loads the engine
    from pair.kb.receipts import reproduce as reproduce_retrieval  # noqa: PLC0415

    if package is not None and (kb is not None or at is not None):
        raise errors.command_line_invalid("Cannot use --package with --kb or --at: a package has one version.")
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


def _format_version(version: "ListedVersion") -> str:
    mark = "*" if version.is_current else " "
    cause = (
        f"rolled back to version {version.restored}"
        if version.made_by == "rollback"
        else _CAUSES.get(version.made_by, "")
    )
    label = f", {version.label}" if version.label else ""
    documents = render.pluralize(version.documents, "document")
    return f"{mark} {version.number:>6}  {version.created_at[:19]}Z  {documents:>16}  {cause}{label}"


def _format_change(document: "ChangedDocument") -> Iterator[str]:
    yield f"{_MARKS[document.change]} {document.id}"
    yield from (f"  {line}" for line in document.entry or ())
    if document.text:
        yield "  text:"
        yield from (f"  {line}" for line in document.text)
    if document.left_out_lines:
        yield f"  … {render.pluralize(document.left_out_lines, 'more line')}"


def _format_answers(changed: "Sequence[ChangedAnswer]") -> Iterator[str]:
    if not changed:
        yield "All questions are answered as before."
    for answer in changed:
        before, after = answer.before, answer.after
        old, new = (", ".join(side.documents[:1]) or "no document" for side in (before, after))
        text = {
            "other_document": f"answered from {new}, earlier from {old}",
            "unanswered": f"no longer answered, earlier from {old}",
            "answered": f"now answered from {new}",
            "less_confident": f"confidence {after.confidence:.2f}, earlier {before.confidence:.2f}",
        }[answer.change]
        yield f"? {answer.question}"
        yield f"    {text}"


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
    """Return a phrase that says what happened to a passage."""
    since = f"version {again.changed_in}" + (" or earlier" if again.or_before else "")
    return {
        "moved": f"now at rank {again.new_rank}",
        "scored": "same text, different score",
        "changed": f"changed in {since}",
        "gone": f"document deleted in {since}",
        "not_found": "unchanged, but no longer found",
    }[again.state]


# ── answers and receipts ───────────────────────────────────────────────────────────────────────────

_SIGNS = {True: "✓", False: "✗", None: "-"}

Target = Annotated[str | None, Argument(metavar="DIR|ZIP", help="Test this folder or package instead of a KB.")]
TestedKb = Annotated[str | None, Option("--kb", metavar="ID", help="Test this knowledge base.")]
ReceiptPath = Annotated[Path, Argument(metavar="FILE", help="A receipt that `pair ask --receipt` wrote.")]
CheckedPackage = Annotated[
    Path | None, Option("--package", metavar="ZIP", help="Check against this package or folder.")
]
Identity = Annotated[str | None, Option(metavar="KEY", help="Require a signature by this minisign key or key file.")]


def run_tests(context: CliContext, target: Target = None, kb: TestedKb = None, questions: Questions = None) -> None:
    """Ask the test questions of a knowledge base, and check the answers.

    Reads questions.jsonl from the folder or package. Each line has a question and the documents or phrases that its
    answer must have, or `"no_answer": true`. No model is used, so the result is always the same. Exit status: 0 if all
    answers are right, 1 if one is not, 2 for errors.

    Examples:
      pair test                          # the KB of this project
      pair test ./handbook               # a folder, before it is published
      pair test handbook-1.0.0.zip --json
      pair test --kb handbook --questions checks.jsonl
    """
    from pair.kb.answer_tests import check_answers, find_questions, open_side  # noqa: PLC0415 - loads the engine

    if target is not None and kb is not None:
        raise errors.command_line_invalid(f"Cannot use --kb with {target!r}: name one of them.")
    if target is not None and not Path(target).exists():
        raise errors.source_path_missing(target)
    settings = context.settings()
    expected = find_questions(settings, [target], questions)
    with open_side(settings, target, kb or DEFAULT_KB) as opened:
        tested = check_answers(opened, expected)
    passed = sum(not result.faults for result in tested)
    value = {"passed": passed, "failed": len(tested) - passed, "questions": [result.to_json() for result in tested]}
    lines = []
    for result in tested:
        if result.faults:
            lines += [f"✗ {result.question:.200}", *(f"    {fault}" for fault in result.faults)]
    total = f"{passed} of {render.pluralize(len(tested), 'question')} passed."
    context.show(value, *lines, total, is_answer=True)
    if passed < len(tested):
        raise typer.Exit(1)


def check(context: CliContext, file: ReceiptPath, package: CheckedPackage = None, identity: Identity = None) -> None:
    """Check a receipt without a network.

    Checks the digests and the signature of the receipt, that the cited passages are in the documents, that the search
    finds them again, and that every quotation is word for word. Without --package, it reads the KB that the receipt
    names, at its version if that is kept. Exit status: 0 if every check passes, 1 if one fails, 2 for errors.

    Examples:
      pair ask "how do I deploy?" --receipt receipt.json
      pair check receipt.json
      pair check receipt.json --package handbook-1.0.0.zip --identity minisign.pub
    """
    from pair.kb.receipts import check_receipt, describe_check, read_receipt  # noqa: PLC0415 - loads the engine

    receipt, content = read_receipt(file)
    if package is not None and not package.exists():
        raise errors.source_path_missing(str(package))
    trusted = context.installer().trusted_keys(identity)
    checked = check_receipt(receipt, content, context.settings(), package=package, trusted=trusted)
    value = describe_check(receipt, checked)
    lines = [f"{_SIGNS[part.is_ok]} {part.part:<10}  {part.text}" for part in checked]
    verdict = "The receipt is valid." if value["holds"] else "The receipt is not valid."
    context.show(value, *lines, verdict, is_answer=True)
    if not value["holds"]:
        raise typer.Exit(1)
