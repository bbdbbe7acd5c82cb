"""pair publish"""

from pathlib import Path
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.session import Session
from pair.wiring import Label, Packaging, PublishReport, publish

EXAMPLE = """Examples:

\b
  pair publish dist ./handbook --version 1.0.0          package a folder, and publish it in dist/
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
    name: Annotated[str | None, typer.Option(help="As for pair package. [the folder's name]")] = None,
    version: Annotated[str | None, typer.Option(help="Such as 1.2.3. [1.0.0]")] = None,
    description: Annotated[str | None, typer.Option(help="One sentence.")] = None,
    author: Annotated[str | None, typer.Option(help="Who answers for it.")] = None,
    license_name: Annotated[str | None, typer.Option("--license", help="Such as Apache-2.0.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A word about it; may be repeated.")] = None,
    with_index: Annotated[
        bool, typer.Option("--with-index", help="Put what searching needs in as well: nobody has to embed it again.")
    ] = False,
    kb: Annotated[
        str | None, typer.Option("--kb", metavar="ID", help="KB that the index is of. [default, or NAME]")
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(metavar="KEYFILE", help="Secret key of minisign: publishes signatures as well."),
    ] = None,
) -> None:
    """Publish a KB: the package, its checksum, and last of all the feed of releases.

    A host of static files that serves DEST is a registry. A version that is published never changes: other bytes for
    it are refused.
    """
    session: Session = context.obj
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = publish(session.desk(), destination, source, packaging)
    session.show(report.to_json(), _told(report))


def _told(report: PublishReport) -> str:
    lines = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    label = f"{report.name} {report.release.version}"
    if report.is_new:
        lines.append(f"published {label} to {report.place}: {render.size(report.release.size_bytes)}")
    else:
        lines.append(f"{label} is published in {report.place} already, with the same bytes: nothing to do")
    lines.append(f"readers use --source {report.source}, or with @{report.release.version} behind it for this version")
    return "\n".join(lines)
