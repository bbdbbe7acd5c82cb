"""pair ingest"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.ingest import Ingestion, inputs
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import BuildProgress

EXAMPLE = """Examples:

\b
  pair ingest notes/ report.md          files and folders, each file a document
  pair ingest faq.jsonl --kb support    a document a line: {"id": ..., "text": ..., "metadata": {...}}
  pair ingest logs/ --no-graph          without looking for what they name
  pair ingest dump.jsonl --runner ray   by the workers of a Ray cluster: engine.ray_address
  generate | pair ingest -              JSON lines from standard input"""

KbName = Annotated[str, typer.Option("--kb", metavar="ID", help="Name of the knowledge base.")]
Paths = Annotated[list[str], typer.Argument(help="Files, folders, .jsonl files, or - for standard input.")]
ChunkSize = Annotated[int | None, typer.Option("--chunk-size", min=50, help="Longest chunk, in bytes.")]

Graph = Annotated[
    bool | None,
    typer.Option("--graph/--no-graph", help="Link documents by what they name; else as engine.graph says."),
]

RunnerName = Annotated[
    Literal["auto", "plain", "local", "ray"],
    typer.Option(
        "--runner",
        help="Who does it: this process (plain), one on each core (local), a cluster (ray); auto chooses by size.",
    ),
]
Workers = Annotated[int, typer.Option("--workers", min=0, help="How many, for local and ray; 0 for all cores.")]


def ingest(
    context: typer.Context,
    paths: Paths,
    kb: KbName = DEFAULT_KB,
    chunk_size: ChunkSize = None,
    graph: Graph = None,
    runner: RunnerName = "auto",
    workers: Workers = 0,
) -> None:
    """Put documents into a knowledge base.

    A document that is stored already, as it is, costs nothing; another one under the same id is replaced.
    Workers build all of a load before any of it can be found; interrupted, the same command goes on from there.
    """
    session: CliContext = context.obj
    skipped: list[dict[str, str]] = []

    def note_skipped(path: str, reason: str) -> None:
        skipped.append({"path": path, "reason": reason})
        render.print_note(f"skipped: {path}: {reason}")

    def note_progress(progress: "BuildProgress") -> None:
        if not session.as_json:
            of = f" of {progress.read:,}" if progress.built < progress.read else ""
            by = f" ({progress.workers} workers)" if progress.workers > 1 else ""
            render.print_progress(f"{progress.built:,}{of} documents{by}")

    documents = inputs(note_skipped).read(paths)
    if runner == "auto" and "-" in paths:
        runner = "plain"  # a stream may never end, and what came so far should be found
    how = Ingestion(runner, workers, chunk_size, note_progress)
    report = session.ingest(kb, documents, how, graph=graph)
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
