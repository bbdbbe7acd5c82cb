"""The commands `ingest`, `docs list`, `docs facets`, `docs get`, `docs delete`, `export` and `import`."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import At, CliContext, KbName
from pair.kb.ingest import Ingestion, read_documents
from pair.kb.ingest import ingest as ingest_documents
from pair.kb.open import DEFAULT_KB, with_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pair.engine.write.bulk_load import BuildProgress
    from pair.values import Document

_MAX_COLUMN = 50

Paths = Annotated[list[str], Argument(metavar="PATH", help="Files, folders, .jsonl files, or - for standard input.")]
ChunkSize = Annotated[int | None, Option("--chunk-size", min=50, metavar="BYTES", help="Maximum size of a chunk.")]
Graph = Annotated[bool | None, Option("--graph/--no-graph", help="Build the entity graph. [engine.graph]")]
Runners = Literal["auto", "plain", "local", "ray"]
RunnerName = Annotated[
    Runners, Option("--runner", help="Run here (plain), on all cores (local), or on a cluster (ray).")
]
Workers = Annotated[int, Option("--workers", min=0, help="Number of local or ray workers; 0 means one per core.")]
Owner = Annotated[str | None, Option("--owner", help="Select documents stored by sync or by ingest.")]
After = Annotated[str, Option("--after", metavar="ID", help="List documents after this id.")]
Limit = Annotated[int, Option("--limit", min=1, max=10000, help="Maximum number of documents.")]
Id = Annotated[str, Argument(metavar="ID", help="Id of the document.")]
Ids = Annotated[list[str] | None, Argument(metavar="ID", help="Ids of documents.")]
Filters = Annotated[
    list[str] | None, Option("--filter", metavar="KEY=VALUE", help="Select by metadata. Can be repeated.")
]
Count = Annotated[bool, Option("--count", help="Print only the number of documents.")]
Key = Annotated[str, Argument(metavar="KEY", help="Metadata key; a dot separates nested keys.")]
MostValues = Annotated[int, Option("--limit", min=1, max=10000, help="Maximum number of values.")]
Output = Annotated[str, Option("--output", "-o", metavar="FILE", help="Write to this file; - means stdout.")]
Vectors = Annotated[bool, Option("--vectors/--no-vectors", help="Include the vectors of the chunks.")]
File = Annotated[Path, Argument(metavar="FILE", help="A file that `pair export` wrote.")]
Replace = Annotated[bool, Option("--replace", help="Delete documents that are not in the file.")]
Embed = Annotated[bool, Option("--embed", help="Chunk and embed all texts again with the configured embedder.")]


def ingest(
    context: CliContext,
    paths: Paths,
    kb: KbName = DEFAULT_KB,
    chunk_size: ChunkSize = None,
    graph: Graph = None,
    runner: RunnerName = "auto",
    workers: Workers = 0,
) -> None:
    """Store files, folders or JSON lines in a knowledge base.

    Unchanged documents are skipped. A document with the id of a stored one replaces it. A line of JSON is one document:
    {"id": ..., "text": ..., "metadata": {...}}. Large loads run on all cores and become searchable at the end; after an
    interruption, the same command continues.

    Examples:
      pair ingest notes/ report.md            # each file becomes a document
      pair ingest faq.jsonl --kb support      # each line becomes a document
      pair ingest logs/ --no-graph            # faster: build no entity graph
      pair ingest dump.jsonl --runner ray     # on a Ray cluster
      generate | pair ingest -                # JSON lines from standard input
    """
    skipped: list[dict[str, str]] = []

    def note_skipped(path: str, reason: str) -> None:
        skipped.append({"path": path, "reason": reason})
        render.print_note(f"Skipped {path}: {reason}")

    if runner == "auto" and "-" in paths:
        runner = "plain"  # A stream may never end, so each batch becomes searchable.
    settings = context.settings()
    with context.progress("document") as progress:
        is_building = False

        def count_read() -> "Iterator[Document]":
            for number, document in enumerate(read_documents(paths, note_skipped), 1):
                if not is_building:
                    progress(number, None, document.id)
                yield document

        def note_progress(built: "BuildProgress") -> None:
            nonlocal is_building
            is_building = built.built < built.read
            progress(built.built, built.read if is_building else None)

        how = Ingestion(runner, workers, chunk_size, note_progress)
        report = ingest_documents(kb, count_read(), settings if graph is None else with_graph(settings, graph), how)
    names = ("added", "replaced", "unchanged", "chunks", "manifest_version")
    value = {"kb_id": kb, **{name: getattr(report, name) for name in names}, "skipped": skipped}
    counts = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    total = render.pluralize(report.added + report.replaced + report.unchanged, "document")
    chunks = render.pluralize(report.chunks, "chunk")
    context.show(value, f"Ingested {total} into {kb}: {counts} ({chunks}).")


def list_documents(
    context: CliContext,
    kb: KbName = DEFAULT_KB,
    owner: Owner = None,
    filters: Filters = None,
    after: After = "",
    limit: Limit = 100,
    count: Count = False,
    at: At = None,
) -> None:
    """List stored documents, in the order of their ids.

    Examples:
      pair docs list
      pair docs list --owner ingest --limit 20 --after notes/b.md
      pair docs list --filter 'status!=draft' --filter 'author?'
      pair docs list --filter 'year>=2024' --count
      pair docs list --at 12                  # in version 12
    """
    if count:
        with context.kb(kb, at) as opened:
            opened.version()  # a wrong name is an error, not an empty KB
            number = opened.count(owner=owner, filter=filters)
        context.show({"kb_id": kb, "count": number}, str(number), is_answer=True)
        return
    with context.kb(kb, at) as opened:
        documents = opened.documents(after=after, limit=limit, owner=owner, filter=filters)
    entries = [{key: value for key, value in document.to_json().items() if key != "text"} for document in documents]
    value = {"kb_id": kb, "documents": entries, "next": documents.next}
    width = min(max((len(document.id) for document in documents), default=0), _MAX_COLUMN)
    lines = [f"{document.id:<{width}}  {document.title}".rstrip() for document in documents]
    if documents.next is not None:
        lines.append(f"Show more: pair docs list --after {shlex.quote(documents.next)}")
    nothing = "No documents match. Remove a --filter" if filters else "No documents. Store some: pair ingest PATH"
    context.show(value, *(lines or [nothing]), is_answer=True)


def list_facets(
    context: CliContext,
    key: Key,
    kb: KbName = DEFAULT_KB,
    owner: Owner = None,
    filters: Filters = None,
    limit: MostValues = 100,
    at: At = None,
) -> None:
    """Count the values of a metadata key, most frequent first.

    Examples:
      pair docs facets lang
      pair docs facets author.name --filter 'year>=2024' --limit 10
    """
    with context.kb(kb, at) as opened:
        opened.version()
        facets = opened.facets(key, limit=limit, owner=owner, filter=filters)
    value = {"kb_id": kb, "key": key, "values": [dataclasses.asdict(facet) for facet in facets]}
    width = max((len(f"{facet.count:,}") for facet in facets), default=0)
    lines = [f"{facet.count:>{width},}  {facet.value}" for facet in facets]
    context.show(value, *(lines or [f"No document has the key {key}."]), is_answer=True)


def get_document(context: CliContext, document_id: Id, kb: KbName = DEFAULT_KB, at: At = None) -> None:
    """Print the text of a document.

    Examples:
      pair docs get notes/b.md
      pair docs get notes/b.md --json
      pair docs get notes/b.md --at 12        # as in version 12
    """
    with context.kb(kb, at) as opened:
        document = opened.document(document_id)
    context.show_text(document.to_json(), document.text)


def delete_documents(
    context: CliContext, ids: Ids = None, kb: KbName = DEFAULT_KB, owner: Owner = None, filters: Filters = None
) -> None:
    """Delete documents by id, owner or metadata.

    Synced documents cannot be deleted here, because the next sync would restore them. Remove the file or link, then
    run `pair sync`.

    Examples:
      pair docs delete notes/a.md notes/b.md
      pair docs delete --owner ingest
      pair docs delete --filter 'year<2020'
    """
    if not ids and owner is None and not filters:
        raise errors.command_line_invalid(
            "Cannot delete: no documents are selected. Nothing was deleted.",
            hints=["pair docs delete ID", "pair docs delete --owner ingest", "pair docs delete --filter KEY=VALUE"],
        )
    with context.kb(kb, with_sources=True) as opened:
        report = opened.delete(ids or (), owner=owner, filter=filters or None)
        opened.version()  # raises E201 if the KB does not exist
    value = {"kb_id": kb, "deleted": report.deleted, "manifest_version": report.manifest_version}
    context.show(value, f"Deleted {render.pluralize(report.deleted, 'document')} from {kb}.")


def export(context: CliContext, output: Output, kb: KbName = DEFAULT_KB, vectors: Vectors = True) -> None:
    """Write a knowledge base to one file.

    The file is a consistent snapshot: later writes do not affect it. It appears under its name when it is complete.

    Examples:
      pair export -o backup.jsonl.gz            # documents, chunks, vectors
      pair export -o texts.jsonl --no-vectors   # smaller; import embeds again
      pair export -o - | ssh host 'cat > backup.jsonl'
    """
    to_stream = output == "-"
    if to_stream and sys.stdout.isatty():
        raise errors.command_line_invalid(
            "Cannot export to a terminal: the documents may contain terminal escape codes.",
            hints=["pair export -o FILE", "pair export -o - | COMMAND"],
        )
    progress = render.Progress("document", is_quiet=context.as_json or to_stream)
    with context.kb(kb) as opened, progress:
        target = sys.stdout.buffer if to_stream else Path(output)
        report = opened.backup.export(target, vectors=vectors, on_progress=progress)
    content = f"{render.pluralize(report.documents, 'document')}, {render.pluralize(report.chunks, 'chunk')}"
    line = f"Exported {kb} to {'standard output' if to_stream else output}: {content}."
    if to_stream:
        render.print_note(line)
    else:
        context.show({**dataclasses.asdict(report), "file": output, "vectors": vectors}, line)


def import_file(
    context: CliContext, file: File, kb: KbName = DEFAULT_KB, replace: Replace = False, embed: Embed = False
) -> None:
    """Load an exported file into a knowledge base, in one step.

    The exported vectors are used if the same embedder is configured. Unchanged documents are skipped.

    Examples:
      pair import backup.jsonl.gz             # add and replace documents
      pair import backup.jsonl.gz --replace   # also delete all others
      pair import backup.jsonl.gz --kb copy   # load into another KB
      pair import backup.jsonl.gz --embed     # use the configured embedder
    """
    with context.kb(kb) as opened, context.progress("document") as progress:
        report = opened.backup.import_from(file, replace_all=replace, embed=embed, on_progress=progress)
    names = ("added", "replaced", "unchanged", "deleted", "chunks", "manifest_version")
    value = {"kb_id": kb, **{name: getattr(report, name) for name in names}}
    counts = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    deleted = f", {report.deleted:,} deleted" if report.deleted else ""
    context.show(value, f"Imported {file} into {kb}: {counts}{deleted} ({render.pluralize(report.chunks, 'chunk')}).")
