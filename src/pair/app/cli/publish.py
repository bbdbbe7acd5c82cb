"""pair publish"""

from pathlib import Path
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.package import Author, Description, IndexKb, License, Name, Sign, Tags, VersionName, WithIndex
from pair.kb.installer import Packaging, publish
from pair.packages.package import Label
from pair.packages.publish import PublishReport

EXAMPLE = """Examples:

\b
  pair publish dist ./handbook --version 1.0.0          package a folder, and publish it in dist/
  pair publish dist ./handbook --version 1.1.0 --with-index    searchable as soon as it is installed
  pair publish dist handbook-1.0.0.zip                  a package as it is
  pair publish s3://bucket/kbs ./handbook --version 1.1.0
  pair install --source ./dist/releases.json#handbook   what readers do then"""


def publish_release(
    context: typer.Context,
    destination: Annotated[str, typer.Argument(metavar="DEST", help="A folder, or s3://bucket/prefix.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SOURCE]", help="A KB package (.zip), or a folder to package.", show_default=".pair/knowledge"
        ),
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
    """Publish a KB: the package, its checksum, and last of all the feed of releases.

    A host of static files that serves DEST is a registry. A version that is published never changes: other bytes for
    it are refused.
    """
    session: CliContext = context.obj
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = publish(session.desk(), destination, source, packaging)
    session.show(report.to_json(), *_told(report))


def _told(report: PublishReport) -> list[str]:
    lines = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    label = f"{report.name} {report.release.version}"
    if report.is_new:
        lines.append(f"published {label} to {report.place}: {render.size(report.release.size_bytes)}")
    else:
        lines.append(f"{label} is published in {report.place} already, with the same bytes: nothing to do")
    lines.append(f"readers use --source {report.source}, or with @{report.release.version} behind it for this version")
    return lines
