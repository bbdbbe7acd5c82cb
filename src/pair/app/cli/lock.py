"""pair lock"""

from pathlib import Path
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.installer import LockService
from pair.packages.lockfile import LOCK_NAME

EXAMPLE = """Examples:

\b
  pair lock                      lock what is installed in .pair/knowledge, and what is locked already
  pair lock docs/handbook        lock this one too
  pair lock --check              exit 4 if what is installed is not what is locked
  pair install --locked          install exactly what is locked"""

LockFile = Annotated[Path, typer.Option("--lock-file", metavar="FILE", help="The lock file.")]


def lock(
    context: typer.Context,
    targets: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Folders of installed KBs. Else .pair/knowledge, and those that are locked already.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 4 and tell every difference.")] = False,
    lock_file: LockFile = Path(LOCK_NAME),
) -> None:
    """Write down exactly which KBs are installed, to the byte.

    With --check: compare the lock with the records, with every installed file, and with what is searched where a KB
    came with its index.
    """
    session: CliContext = context.obj
    desk = LockService(session.desk(), lock_file)
    if check:
        report = desk.check()
        told = [f"{render.counted(len(report.kbs), 'KB')} as {report.path} says"]
    else:
        report = desk.write(targets or [])
        names = render.names([kb.id for kb in report.kbs])
        done = "locked" if report.is_changed else "locked already"
        told = [f"{done} {render.counted(len(report.kbs), 'KB')} in {report.path}: {names}"]
        for kb_id in report.with_queries:
            told.append(f"the source of {kb_id} has a query: if there is a secret in it, do not share the lock")
    session.show(report.to_json(), *told)
