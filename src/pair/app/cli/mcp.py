"""pair mcp"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.mcp.client_config import Client, plan

EXAMPLE = """Examples:

\b
  pair mcp --install claude              tell Claude Code of it: .mcp.json in this folder
  pair mcp --install cursor --dry-run    show what would be written
  pair mcp --kb handbook                 serve one knowledge base to whoever starts this
  pair mcp --allow-write                 with tools that add and delete documents"""

Kbs = Annotated[list[str] | None, typer.Option("--kb", metavar="ID", help="Only this knowledge base; may be repeated.")]
AllowWrite = Annotated[bool, typer.Option("--allow-write", help="Also add and delete documents.")]
Project = Annotated[str | None, typer.Option("--project", metavar="DIR", help="Work in this folder.")]
Install = Annotated[
    Client | None, typer.Option("--install", help="Enter it into the project's configuration of this assistant.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --install: print the file, and write nothing.")]


def mcp(
    context: typer.Context,
    kbs: Kbs = None,
    allow_write: AllowWrite = False,
    project: Project = None,
    install: Install = None,
    dry_run: DryRun = False,
) -> None:
    """Let an assistant search and ask, by the Model Context Protocol on standard input and output."""
    session: CliContext = context.obj
    if dry_run and install is None:
        raise errors.command_line_invalid("--dry-run goes with --install", hints=["pair mcp --help"])
    if project is not None and not Path(project).is_dir():
        raise errors.command_line_invalid(f"no such folder: {project}", hints=["pair mcp --help"])
    if install is not None:
        _install(session, install, Path(project or "."), kbs or [], allow_write=allow_write, dry_run=dry_run)
        return
    if project is not None:
        session.config = session.config and os.path.abspath(session.config)  # noqa: PTH100 - keeps links
        os.chdir(project)
    if sys.stdin.isatty():
        render.print_note("waiting for an assistant on standard input; to tell one of this: pair mcp --install claude")
    raise typer.Exit(session.mcp(kbs or [], allow_write=allow_write))


def _install(
    session: CliContext, client: Client, folder: Path, kbs: list[str], *, allow_write: bool, dry_run: bool
) -> None:
    project = Path(os.path.abspath(folder))  # noqa: PTH100 - keeps links
    entry = session.assistant_entry(str(project), kbs, allow_write=allow_write)
    planned = plan(client, project, entry)
    value = {"client": client, "path": str(planned.path), "outcome": planned.outcome, "server": entry.to_json()}
    if dry_run:
        session.show_text({**value, "content": planned.content}, planned.content.rstrip("\n"))
        return
    planned.carry_out()
    if not session.as_json:
        render.print_note(f"{planned.outcome}: {planned.path}")
    session.show(value, " ".join([entry.command, *entry.arguments]), is_answer=True)
