"""pair ingest"""

from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.session import Session
from pair.wiring import DEFAULT_KB, inputs

EXAMPLE = """Examples:

\b
  pair ingest notes/ report.md          files and folders, each file a document
  pair ingest faq.jsonl --kb support    a document a line: {"id": ..., "text": ..., "metadata": {...}}
  pair ingest logs/ --no-graph          without looking for what they name
  generate | pair ingest -              JSON lines from standard input"""

KbName = Annotated[str, typer.Option("--kb", metavar="ID", help="Name of the knowledge base.")]
Paths = Annotated[list[str], typer.Argument(help="Files, folders, .jsonl files, or - for standard input.")]
ChunkSize = Annotated[int | None, typer.Option("--chunk-size", min=50, help="Longest chunk, in bytes.")]

Graph = Annotated[
    bool | None,
    typer.Option("--graph/--no-graph", help="Link documents by what they name; else as engine.graph says."),
]


def ingest(
    context: typer.Context,
    paths: Paths,
    kb: KbName = DEFAULT_KB,
    chunk_size: ChunkSize = None,
    graph: Graph = None,
) -> None:
    """Put documents into a knowledge base.

    A document that is stored already, as it is, costs nothing; another one under the same id is replaced.
    """
    session: Session = context.obj
    skipped: list[dict[str, str]] = []

    def note_skipped(path: str, reason: str) -> None:
        skipped.append({"path": path, "reason": reason})
        render.print_note(f"skipped: {path}: {reason}")

    done = 0

    def note_batch(report: object) -> None:
        nonlocal done
        done += getattr(report, "added", 0) + getattr(report, "replaced", 0) + getattr(report, "unchanged", 0)
        if not session.as_json:
            render.print_progress(f"{done:,} documents")

    documents = inputs(note_skipped).read(paths)
    with session.kb(kb, graph=graph) as opened:
        report = opened.upsert(documents, chunk_size=chunk_size, on_batch=note_batch)
    render.end_progress()
    value = {
        "kb_id": kb,
        "added": report.added,
        "replaced": report.replaced,
        "unchanged": report.unchanged,
        "chunks": report.chunks,
        "manifest_version": report.manifest_version,
        "skipped": skipped,
    }
    told = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    session.show(value, f"ingested into {kb}: {told} ({render.counted(report.chunks, 'chunk')})")
