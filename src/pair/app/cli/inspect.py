"""pair verify, pair info"""

from pathlib import Path
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.package import told_index
from pair.packages.verify import Description

VERIFY_EXAMPLE = """Examples:

\b
  pair verify handbook.zip       checksum, archive and manifest of a package
  pair verify .pair/knowledge    every installed file against what was installed
  pair verify handbook.zip --identity minisign.pub"""

INFO_EXAMPLE = """Examples:

\b
  pair info handbook.zip
  pair info .pair/knowledge --json"""

KbPath = Annotated[Path, typer.Argument(metavar="PATH", help="A KB package (.zip) or the folder of an installed KB.")]


def verify(
    context: typer.Context,
    path: KbPath,
    identity: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Public key of minisign, or its file, that must have signed the package."),
    ] = None,
) -> None:
    """Check a KB package or an installed KB.

    Without --identity a signature is checked against sources.signature_keys. Exits 2 when a package is damaged or
    unsafe, 5 when its signature is missing or wrong, or when installed files were changed or are gone.
    """
    session: CliContext = context.obj
    found = session.desk().verify(path, identity)
    lines = [f"ok: {check}" for check in found.checks]
    if found.extra:
        lines.append(f"besides, {render.counted(len(found.extra), 'file')} of yours: {render.names(found.extra)}")
    lines.append(f"{path}: {render.counted(found.file_count, 'file')} verified")
    session.show(found.to_json(), *lines, is_answer=True)


def info(context: typer.Context, path: KbPath) -> None:
    """Describe a KB package or an installed KB, without unpacking anything."""
    session: CliContext = context.obj
    found = session.desk().describe(path)
    session.show(found.to_json(), *_described(found), is_answer=True)


def _described(found: Description) -> list[str]:
    rows: list[tuple[str, str]]
    if found.header is not None:
        header, source = found.header, found.to_json()["source"]
        rows = [
            ("name", header.name),
            ("version", header.version),
            ("source", f"{source['location']} ({source['type']})"),
            ("installed", header.installed_at),
            ("checksum", {True: "verified", False: "unverified", None: "not needed"}[header.verified]),
            ("signed by", header.signed_by or ""),
            ("files", f"{header.file_count:,} ({render.size(header.size_bytes)})"),
            ("KB", header.kb_id),
            ("index", _told_taken(header.embedder, is_taken=bool(header.index_sha256))),
        ]
    else:
        manifest = found.manifest
        assert manifest is not None  # noqa: S101 - a description has one of the two
        texts = manifest.texts
        rows = [
            ("name", manifest.name),
            ("version", manifest.version),
            ("description", manifest.description),
            ("author", manifest.author),
            ("license", manifest.license),
            ("tags", ", ".join(manifest.tags)),
            ("created", manifest.created_at if manifest.is_dated else ""),
            ("files", f"{len(texts):,} ({render.size(sum(each.size_bytes for each in texts.values()))})"),
            ("index", told_index(manifest.index) if manifest.index is not None else ""),
            ("archive", render.size(found.archive_bytes)),
            ("content", f"sha256:{manifest.content_checksum}"),
        ]
    return [f"{key:<12} {value}" for key, value in rows if value]


def _told_taken(embedder: str, *, is_taken: bool) -> str:
    if not embedder:
        return ""
    return f"by {embedder}, {'taken up' if is_taken else 'not taken up'}"
