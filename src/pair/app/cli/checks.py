"""The commands `test` and `check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.kb.answer_tests import TestedQuestion

_SIGNS = {True: "✓", False: "✗", None: "-"}

Target = Annotated[str | None, Argument(metavar="DIR|ZIP", help="Test this folder or package instead of a KB.")]
Kb = Annotated[str | None, Option("--kb", metavar="ID", help="Test this knowledge base.")]
Questions = Annotated[Path | None, Option("--questions", metavar="FILE", help="Ask the questions of this file.")]
ReceiptPath = Annotated[Path, Argument(metavar="FILE", help="A receipt that `pair ask --receipt` wrote.")]
Package = Annotated[Path | None, Option("--package", metavar="ZIP", help="Check against this package or folder.")]
Identity = Annotated[str | None, Option(metavar="KEY", help="Require a signature by this minisign key or key file.")]


def run_tests(context: CliContext, target: Target = None, kb: Kb = None, questions: Questions = None) -> None:
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
    lines = [line for result in tested if result.faults for line in _format_failure(result)]
    total = f"{passed} of {render.pluralize(len(tested), 'question')} passed."
    context.show(value, *lines, total, is_answer=True)
    if passed < len(tested):
        raise typer.Exit(1)


def _format_failure(result: "TestedQuestion") -> list[str]:
    return [f"✗ {result.question:.200}", *(f"    {fault}" for fault in result.faults)]


def check(context: CliContext, file: ReceiptPath, package: Package = None, identity: Identity = None) -> None:
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
