"""pair ingest, pair docs list, get, delete, pair export, pair import"""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext, KbName
from pair.kb.ingest import Ingestion, read_documents
from pair.kb.ingest import ingest as ingest_documents
from pair.kb.open import DEFAULT_KB, with_graph

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import BuildProgress

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
Owner = Annotated[str | None, typer.Option("--owner", help="Only documents that came by: sync, or ingest.")]
After = Annotated[str, typer.Option("--after", metavar="ID", help="Begin behind this document.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10000, help="Most documents to list.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of documents.")]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="All documents whose metadata says so; may be repeated."),
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - for standard output.")]
Vectors = Annotated[bool, typer.Option("--vectors/--no-vectors", help="With or without the vectors of chunks.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="What `pair export` wrote.")]
Replace = Annotated[bool, typer.Option("--replace", help="What is not in the file goes, in the same step.")]
Embed = Annotated[bool, typer.Option("--embed", help="Cut and embed texts anew, with the configured embedder.")]


def ingest(
    context: CliContext,
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

    Examples:
      pair ingest notes/ report.md          files and folders, each file a document
      pair ingest faq.jsonl --kb support    a document a line: {"id": ..., "text": ..., "metadata": {...}}
      pair ingest logs/ --no-graph          without looking for what they name
      pair ingest dump.jsonl --runner ray   by the workers of a Ray cluster: engine.ray_address
      generate | pair ingest -              JSON lines from standard input
    """
    skipped: list[dict[str, str]] = []

    def note_skipped(path: str, reason: str) -> None:
        skipped.append({"path": path, "reason": reason})
        render.print_note(f"skipped: {path}: {reason}")

    def note_progress(progress: "BuildProgress") -> None:
        of = f" of {progress.read:,}" if progress.built < progress.read else ""
        by = f" ({progress.workers} workers)" if progress.workers > 1 else ""
        context.show_progress(f"{progress.built:,}{of} documents{by}")

    documents = read_documents(paths, note_skipped)
    if runner == "auto" and "-" in paths:
        runner = "plain"  # a stream may never end, and what came so far should be found
    how = Ingestion(runner, workers, chunk_size, note_progress)
    settings = context.settings()
    report = ingest_documents(kb, documents, settings if graph is None else with_graph(settings, graph), how)
    render.end_progress()
    names = ("added", "replaced", "unchanged", "chunks", "manifest_version")
    value = {"kb_id": kb, **{name: getattr(report, name) for name in names}, "skipped": skipped}
    counts = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    context.show(value, f"ingested into {kb}: {counts} ({render.pluralize(report.chunks, 'chunk')})")


def list_documents(
    context: CliContext, kb: KbName = DEFAULT_KB, owner: Owner = None, after: After = "", limit: Limit = 100
) -> None:
    """List stored documents by id.

    Examples:
      pair docs list
      pair docs list --owner ingest --limit 20 --after notes/b.md
    """
    with context.kb(kb) as opened:
        documents = opened.documents(after=after, limit=limit, owner=owner)
    entries = [{key: value for key, value in document.to_json().items() if key != "text"} for document in documents]
    is_whole = len(documents) < limit
    value = {"kb_id": kb, "documents": entries, "next": None if is_whole else documents[-1].id}
    lines = [f"{document.id}  {document.title}".rstrip() for document in documents]
    if not is_whole:
        lines.append(f"more: pair docs list --after {documents[-1].id!r}")
    context.show(value, *(lines or ["no documents"]), is_answer=True)


def get_document(context: CliContext, document_id: Id, kb: KbName = DEFAULT_KB) -> None:
    """Print the text of a document.

    Examples:
      pair docs get notes/b.md
      pair docs get notes/b.md --json
    """
    with context.kb(kb) as opened:
        document = opened.document(document_id)
    context.show_text(document.to_json(), document.text)


def delete_documents(
    context: CliContext, ids: Ids = None, kb: KbName = DEFAULT_KB, owner: Owner = None, filters: Filters = None
) -> None:
    """Delete documents by id, by who brought them, or by their metadata.

    What is synced is not deleted here: remove its file or its link, and sync.

    Examples:
      pair docs delete notes/a.md notes/b.md
      pair docs delete --owner ingest
      pair docs delete --filter 'year<2020'
    """
    if not ids and owner is None and not filters:
        raise errors.command_line_invalid(
            "nothing to delete was named", hints=["Name ids, --owner or --filter", "pair docs delete --help"]
        )
    with context.kb(kb, with_sources=True) as opened:
        report = opened.delete(ids or (), owner=owner, filter=filters or None)
    value = {"kb_id": kb, "deleted": report.deleted, "manifest_version": report.manifest_version}
    context.show(value, f"deleted {render.pluralize(report.deleted, 'document')} from {kb}")


def export(context: CliContext, output: Output, kb: KbName = DEFAULT_KB, vectors: Vectors = True) -> None:
    """Write a whole knowledge base into one file.

    The file is one state of it, whatever is written meanwhile, and appears when it is whole.

    Examples:
      pair export -o backup.jsonl.gz              all documents, with chunks, metadata and vectors
      pair export -o texts.jsonl --no-vectors     much smaller; embedded again when it is imported
      pair export -o - | ssh elsewhere 'cat > backup.jsonl'
    """
    to_stream = output == "-"
    if to_stream and sys.stdout.isatty():
        raise errors.command_line_invalid(
            "an export holds texts of others as they are, which a terminal might obey",
            hints=["pair export -o FILE", "pair export -o - | COMMAND"],
        )
    progress = render.CountProgress("document", is_quiet=context.as_json or to_stream)
    with context.kb(kb) as opened:
        target = sys.stdout.buffer if to_stream else Path(output)
        report = opened.backup.export(target, vectors=vectors, on_progress=progress)
    render.end_progress()
    content = f"{render.pluralize(report.documents, 'document')}, {render.pluralize(report.chunks, 'chunk')}"
    line = f"exported {kb} ({content}) to {'standard output' if to_stream else output}"
    if to_stream:
        render.print_note(line)
    else:
        context.show({**dataclasses.asdict(report), "file": output, "vectors": vectors}, line)


def import_file(
    context: CliContext, file: File, kb: KbName = DEFAULT_KB, replace: Replace = False, embed: Embed = False
) -> None:
    """Put an export into a knowledge base, all at once.

    Documents of the same embedder come with their vectors, and nothing is embedded.

    Examples:
      pair import backup.jsonl.gz                 add to what is there; what is there as it is costs nothing
      pair import backup.jsonl.gz --replace       exactly the file, in one step
      pair import backup.jsonl.gz --kb copy       into another knowledge base
      pair import backup.jsonl.gz --embed         with vectors of the configured embedder
    """
    progress = render.CountProgress("item", is_quiet=context.as_json)
    with context.kb(kb) as opened:
        report = opened.backup.import_from(file, replace_all=replace, embed=embed, on_progress=progress)
    render.end_progress()
    names = ("added", "replaced", "unchanged", "deleted", "chunks", "manifest_version")
    value = {"kb_id": kb, **{name: getattr(report, name) for name in names}}
    counts = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    gone = f", {report.deleted:,} gone" if report.deleted else ""
    context.show(value, f"imported into {kb}: {counts}{gone} ({render.pluralize(report.chunks, 'chunk')})")
