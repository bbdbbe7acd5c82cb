"""pair reembed"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB, changes_to, open_kb, with_embedder

if TYPE_CHECKING:
    from pair.engine.maintenance.reembed import ReembedReport

EXAMPLE = """Examples:

\b
  pair reembed --embedder minilm --dry-run    how much there is to embed
  pair reembed --embedder minilm              vectors of another embedder, swapped in at the end
  pair reembed --kb support                   vectors of the embedder that is configured by now"""

Embedder = Annotated[
    str | None, typer.Option("--embedder", metavar="KIND", help="As engine.embedder; else the configured one.")
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="As engine.embedding_model.")]
Dimension = Annotated[int | None, typer.Option("--dimension", min=1, max=4096, help="As engine.embedding_dimension.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how much there is to do, and change nothing.")]


def reembed(
    context: typer.Context,
    kb: KbName = DEFAULT_KB,
    embedder: Embedder = None,
    model: Model = None,
    dimension: Dimension = None,
    dry_run: DryRun = False,
) -> None:
    """Give all that is stored vectors of another embedder. Readers and writers go on meanwhile.

    What was interrupted goes on where it stopped. The configuration is yours to change: what to change is told.
    """
    session: CliContext = context.obj
    configured = session.settings()
    wanted = with_embedder(configured, embedder, model, dimension)
    progress = None if session.as_json else render.CountProgress("chunk")
    with open_kb(kb, settings=wanted) as opened:
        report = opened.maintenance.reembed(dry_run=dry_run, on_progress=progress or (lambda done, total: None))
    render.end_progress()
    changes = changes_to(configured, wanted)
    value = {"kb_id": kb, "dry_run": dry_run, **asdict(report), "configuration": [asdict(each) for each in changes]}
    session.show(value, _told(kb, report, dry_run=dry_run))
    if changes and not session.as_json and not dry_run:
        advice = [f"  • {each.advice}" for each in changes]
        render.print_note("the configuration still names another embedder, which is refused from now on:", *advice)


def _told(kb: str, report: "ReembedReport", *, dry_run: bool) -> str:
    if report.embedder_before == report.embedder:
        return f"nothing to do: {kb} has vectors of {report.embedder}"
    work = f"{render.counted(report.embedded, 'text')} of {render.counted(report.characters, 'character')}"
    known = f", {render.counted(report.kept, 'chunk')} had one already" if report.kept else ""
    stored = f"{render.counted(report.documents, 'document')}, {render.counted(report.chunks, 'chunk')}"
    if dry_run:
        return f"{kb} ({stored}) from {report.embedder_before} to {report.embedder}: {work} to embed{known}"
    return f"re-embedded {kb} ({stored}) with {report.embedder}: {work} embedded{known}"
