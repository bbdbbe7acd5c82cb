"""pair package"""

from pathlib import Path
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.installer import Packaging
from pair.packages.package import Label, PackagedIndex

EXAMPLE = """Examples:

\b
  pair package ./handbook -o handbook-1.0.0.zip --name handbook --version 1.0.0 --tag time --tag calendars
  pair package ./handbook --with-index                        searchable as soon as it is installed
  pair package ./handbook --sign ~/.minisign/minisign.key     with a signature beside it"""

Name = Annotated[str | None, typer.Option(help="Any text on one line. [the folder's name]")]
VersionName = Annotated[str | None, typer.Option(help="Such as 1.2.3. [1.0.0]")]
Description = Annotated[str | None, typer.Option(help="One sentence.")]
Author = Annotated[str | None, typer.Option(help="Who answers for it.")]
License = Annotated[str | None, typer.Option("--license", help="Such as Apache-2.0.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A word about it; may be repeated.")]
WithIndex = Annotated[
    bool, typer.Option("--with-index", help="Put what searching needs in as well: nobody has to embed it again.")
]
IndexKb = Annotated[str | None, typer.Option("--kb", metavar="ID", help="KB that the index is of. [default, or NAME]")]
Sign = Annotated[
    Path | None, typer.Option(metavar="KEYFILE", help="Secret key of minisign: writes FILE.zip.minisig as well.")
]


def package(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that holds the KB.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.zip", help="Where to write. [NAME-VERSION.zip]"),
    ] = None,
    name: Name = None,
    version: VersionName = None,
    description: Description = None,
    author: Author = None,
    license_name: License = None,
    tag: Tags = None,
    with_index: WithIndex = False,
    kb: IndexKb = None,
    sign: Sign = None,
) -> None:
    """Make a KB package: a zip with a manifest, and its .sha256.

    The same folder always gives the same bytes. SOURCE_DATE_EPOCH sets the date that the manifest carries. The password
    of an encrypted key is taken from PAIR_SIGN_PASSWORD, or asked for.
    """
    session: CliContext = context.obj
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = session.desk().package(folder, output, packaging)
    lines = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    manifest = report.manifest
    lines.append(
        f"packaged {manifest.name} {manifest.version}: {render.counted(len(manifest.texts), 'file')}, "
        f"{render.size(report.size_bytes)} in {report.path}, checksum in {report.path}.sha256"
    )
    if manifest.index is not None:
        lines.append(f"with its index: {told_index(manifest.index)}")
    if report.signed_by is not None:
        lines.append(f"signed by key {report.signed_by} in {report.path}.minisig")
    session.show(report.to_json(), *lines)


def told_index(index: PackagedIndex) -> str:
    documents, shards = render.counted(index.documents, "document"), render.counted(index.shards, "shard")
    return f"{documents} in {shards}, by {index.embedder}"
