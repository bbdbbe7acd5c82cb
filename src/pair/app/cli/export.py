"""pair export, pair import"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

EXPORT_EXAMPLE = """Examples:

\b
  pair export -o backup.jsonl.gz              all documents, with chunks, metadata and vectors
  pair export -o texts.jsonl --no-vectors     much smaller; embedded again when it is imported
  pair export --shards -o backup.zip          the index as it is
  pair export -o - | ssh elsewhere 'cat > backup.jsonl'"""

IMPORT_EXAMPLE = """Examples:

\b
  pair import backup.jsonl.gz                 add to what is there; what is there as it is costs nothing
  pair import backup.jsonl.gz --replace       exactly the file, in one step
  pair import backup.jsonl.gz --kb copy       into another knowledge base
  pair import backup.jsonl.gz --embed         with vectors of the configured embedder
  pair import backup.zip --kb copy            shards as they are"""

Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - for standard output.")]
Shards = Annotated[bool, typer.Option("--shards", help="The manifest and all shards as they are, in a zip.")]
Vectors = Annotated[bool, typer.Option("--vectors/--no-vectors", help="With or without the vectors of chunks.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="What `pair export` wrote, of either kind.")]
Replace = Annotated[bool, typer.Option("--replace", help="What is not in the file goes, in the same step.")]
Embed = Annotated[bool, typer.Option("--embed", help="Cut and embed texts anew, with the configured embedder.")]
_STANDARD_OUTPUT = "-"


def export(
    context: typer.Context, output: Output, kb: KbName = DEFAULT_KB, shards: Shards = False, vectors: Vectors = True
) -> None:
    """Write a whole knowledge base into one file.

    The file is one state of it, whatever is written meanwhile, and appears when it is whole.
    """
    session: CliContext = context.obj
    if shards and (output == _STANDARD_OUTPUT or not vectors):
        raise errors.command_line_invalid(
            "shards go into a file, and with their vectors", hints=["pair export --shards -o FILE.zip"]
        )
    to_stream = output == _STANDARD_OUTPUT
    if to_stream and sys.stdout.isatty():
        raise errors.command_line_invalid(
            "an export holds texts of others as they are, which a terminal might obey",
            hints=["pair export -o FILE", "pair export -o - | COMMAND"],
        )
    progress = None if session.as_json or to_stream else render.CountProgress("file" if shards else "document")
    with session.kb(kb) as opened:
        if shards:
            report = opened.backup.export_shards(Path(output), progress or _silent)
        else:
            target = render.binary_output() if to_stream else Path(output)
            report = opened.backup.export(target, vectors=vectors, on_progress=progress or _silent)
    render.end_progress()
    held = f"{render.counted(report.documents, 'document')}, {render.counted(report.chunks, 'chunk')}"
    if report.shards:
        held += f" in {render.counted(report.shards, 'shard')}"
    told = f"exported {kb} ({held}) to {'standard output' if to_stream else output}"
    if to_stream:
        render.print_note(told)
    else:
        session.show({**asdict(report), "file": output, "vectors": vectors}, told)


def import_file(
    context: typer.Context, file: File, kb: KbName = DEFAULT_KB, replace: Replace = False, embed: Embed = False
) -> None:
    """Put an export into a knowledge base, all at once.

    Documents of the same embedder come with their vectors, and nothing is embedded. Shards need an empty knowledge
    base, or --replace.
    """
    session: CliContext = context.obj
    progress = None if session.as_json else render.CountProgress("item")
    with session.kb(kb) as opened:
        report = opened.backup.import_from(file, replace_all=replace, embed=embed, on_progress=progress or _silent)
    render.end_progress()
    value = {
        "kb_id": kb,
        "added": report.added,
        "replaced": report.replaced,
        "unchanged": report.unchanged,
        "deleted": report.deleted,
        "chunks": report.chunks,
        "manifest_version": report.manifest_version,
    }
    told = f"{report.added:,} added, {report.replaced:,} replaced, {report.unchanged:,} unchanged"
    gone = f", {report.deleted:,} gone" if report.deleted else ""
    session.show(value, f"imported into {kb}: {told}{gone} ({render.counted(report.chunks, 'chunk')})")


def _silent(_done: int, _total: int) -> None:
    pass
