"""pair install, update, lock, package, publish, verify and info"""

from pathlib import Path
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.installer import LockService, Packaging, publish
from pair.packages.install import InstallReport, InstallRequest
from pair.packages.lockfile import LOCK_NAME
from pair.packages.package import Description as KbDescription
from pair.packages.package import Label, PackagedIndex
from pair.packages.release_index import PublishReport

Target = Annotated[str | None, typer.Argument(help="Folder of the KB.", show_default=".pair/knowledge")]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        "-s",
        help="URL, path (folder or .zip), git repository, or feed (releases.json#NAME@VERSION). "
        "Else the monorepo's dataset, else the latest release.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", "--no-kb", help="Never download; needs --source with a path.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that pair did not install or that were edited.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done and leave the folder as it is.")]
NoIndex = Annotated[bool, typer.Option("--no-index", help="The texts alone, also of a package with an index.")]
KbId = Annotated[
    str | None,
    typer.Option("--kb", metavar="ID", help="Id of the KB. [as before, else default, or the name of TARGET]"),
]
Locked = Annotated[
    bool, typer.Option("--locked", help="What the lock file says, all of it or that of TARGET; nothing else.")
]
LockFile = Annotated[Path, typer.Option("--lock-file", metavar="FILE", help="The lock file.")]
LockTargets = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[TARGET]...",
        help="Folders of installed KBs. Else .pair/knowledge, and those that are locked already.",
        show_default=False,
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Write nothing; exit 4 and tell every difference.")]

_KEPT_WORDS = {
    "edited": "edited here",
    "deleted": "deleted here",
    "yours": "not installed by pair",
    "in the way": "a file of yours is in the way",
}

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that holds the KB.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.zip", help="Where to write. [NAME-VERSION.zip]")
]
Destination = Annotated[str, typer.Argument(metavar="DEST", help="A folder, or s3://bucket/prefix.")]
ReleaseSource = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SOURCE]", help="A KB package (.zip), or a folder to package.", show_default=".pair/knowledge"
    ),
]
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
KbPath = Annotated[Path, typer.Argument(metavar="PATH", help="A KB package (.zip) or the folder of an installed KB.")]
Identity = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Public key of minisign, or its file, that must have signed the package."),
]


def install(
    context: CliContext,
    target: Target = None,
    source: Source = None,
    kb_id: KbId = None,
    offline: Offline = False,
    force: Force = False,
    dry_run: DryRun = False,
    no_index: NoIndex = False,
    locked: Locked = False,
    lock_file: LockFile = Path(LOCK_NAME),
) -> None:
    """Put a KB into a folder.

    Files in the folder that pair did not install are never overwritten without --force.

    Examples:
      pair install                                   the latest release into .pair/knowledge
      pair install --source https://host/kb.zip      an archive, checked against kb.zip.sha256
      pair install docs/kb --source ./handbook       a folder into docs/kb
      pair install --source https://host/releases.json#handbook   the latest release in a feed
      pair install --locked                          exactly what pair.lock says
      pair install --offline --source ./handbook.zip without any network
    """
    installer = context.installer()
    if locked:
        for option, given in (("--source", source), ("--kb", kb_id)):
            if given is not None:
                raise errors.command_line_invalid(
                    f"--locked cannot be used with {option}: the lock file says it", hints=["pair install --help"]
                )
        only = Path(target) if target is not None else None
        reports = LockService(installer, lock_file).install(
            only, force=force, dry_run=dry_run, offline=offline, with_index=not no_index
        )
        lines = [line for report in reports for line in _format_report(report)]
        value = {"command": "install", "lock": str(lock_file), "kbs": [report.to_json() for report in reports]}
        context.show(value, *(lines or ["nothing is locked"]))
        return
    folder = Path(target) if target is not None else installer.default_target
    request = InstallRequest("install", folder, force=force, dry_run=dry_run, kb_id=kb_id, with_index=not no_index)
    report = installer.apply(request, installer.resolve(source, offline=offline), offline=offline)
    context.show(report.to_json(), *_format_report(report))


def update(
    context: CliContext,
    target: Target = None,
    source: Source = None,
    kb_id: KbId = None,
    offline: Offline = False,
    force: Force = False,
    dry_run: DryRun = False,
    no_index: NoIndex = False,
) -> None:
    """Bring an installed KB up to date.

    Added, changed and removed files are applied together or not at all. Files that were edited or deleted here are
    kept as they are and reported.

    Examples:
      pair update                                    from where it was installed
      pair update --source ./handbook-2.zip          from another source
      pair update --dry-run                          what would change
    """
    installer = context.installer()
    folder = Path(target) if target is not None else installer.default_target
    request = InstallRequest("update", folder, force=force, dry_run=dry_run, kb_id=kb_id, with_index=not no_index)
    report = installer.apply(request, installer.resolve_update(source, folder, offline=offline), offline=offline)
    context.show(report.to_json(), *_format_report(report))


def lock(
    context: CliContext, targets: LockTargets = None, check: Check = False, lock_file: LockFile = Path(LOCK_NAME)
) -> None:
    """Write down exactly which KBs are installed, to the byte.

    With --check: compare the lock with the records, with every installed file, and with what is searched where a KB
    came with its index.

    Examples:
      pair lock                      lock what is installed in .pair/knowledge, and what is locked already
      pair lock docs/handbook        lock this one too
      pair lock --check              exit 4 if what is installed is not what is locked
      pair install --locked          install exactly what is locked
    """
    locks = LockService(context.installer(), lock_file)
    if check:
        report = locks.check()
        lines = [f"{render.pluralize(len(report.kbs), 'KB')} as {report.path} says"]
    else:
        report = locks.write(targets or [])
        names = render.join_names([kb.id for kb in report.kbs])
        done = "locked" if report.is_changed else "locked already"
        lines = [f"{done} {render.pluralize(len(report.kbs), 'KB')} in {report.path}: {names}"]
        for kb_id in report.with_queries:
            lines.append(f"the source of {kb_id} has a query: if there is a secret in it, do not share the lock")
    context.show(report.to_json(), *lines)


def _format_report(report: InstallReport) -> list[str]:
    """Return one line for each kind of change, and one for the whole."""
    would = "would be " if report.dry_run else ""
    lines = [
        f"{would}{verb} {render.pluralize(len(paths), 'file')}: {render.join_names(paths)}"
        for verb, paths in (("added", report.added), ("changed", report.changed), ("removed", report.removed))
        if paths
    ]
    for reason, words in _KEPT_WORDS.items():
        paths = [kept.path for kept in report.kept if kept.reason == reason]
        if paths:
            lines.append(f"kept {render.pluralize(len(paths), 'file')} ({words}): {render.join_names(paths)}")
    if report.kept:
        lines.append("the KB's version of kept files is taken with --force")
    lines += [f"skipped {path}: {reason}" for path, reason in report.skipped]
    index = report.index
    if index is not None:
        documents = render.pluralize(index.documents, "document")
        new = f"{index.new_shards} of {render.pluralize(index.shards, 'shard')} new"
        lines.append(f"ready to search: {documents} in {index.kb_id}, version {index.manifest_version} ({new})")
    return [*lines, _format_summary(report)]


def _format_summary(report: InstallReport) -> str:
    label = f"{report.name} {report.version}".strip()
    checks = {True: ", checksum verified", False: ", unverified", None: ""}[report.verified]
    if report.signed_by is not None:
        checks = f"{checks if report.verified else ''}, signed by {report.signed_by}"
    if not (report.added or report.changed or report.removed):
        return f"{label} in {report.target} is up to date ({render.pluralize(report.unchanged, 'file')}{checks})"
    done = {"install": "installed", "update": "updated"}[report.mode]
    words = f"dry run: nothing was {done}" if report.dry_run else done
    return f"{words}: {label} in {report.target}{checks}"


def package(
    context: CliContext,
    folder: Folder,
    output: Output = None,
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

    Examples:
      pair package ./handbook -o handbook-1.0.0.zip --name handbook --version 1.0.0 --tag time --tag calendars
      pair package ./handbook --with-index                        searchable as soon as it is installed
      pair package ./handbook --sign ~/.minisign/minisign.key     with a signature beside it
    """
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = context.installer().package(folder, output, packaging)
    lines = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    manifest = report.manifest
    lines.append(
        f"packaged {manifest.name} {manifest.version}: {render.pluralize(len(manifest.texts), 'file')}, "
        f"{render.format_size(report.size_bytes)} in {report.path}, checksum in {report.path}.sha256"
    )
    if manifest.index is not None:
        lines.append(f"with its index: {_format_index(manifest.index)}")
    if report.signed_by is not None:
        lines.append(f"signed by key {report.signed_by} in {report.path}.minisig")
    context.show(report.to_json(), *lines)


def publish_release(
    context: CliContext,
    destination: Destination,
    source: ReleaseSource = None,
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

    Examples:
      pair publish dist ./handbook --version 1.0.0          package a folder, and publish it in dist/
      pair publish dist ./handbook --version 1.1.0 --with-index    searchable as soon as it is installed
      pair publish dist handbook-1.0.0.zip                  a package as it is
      pair publish s3://bucket/kbs ./handbook --version 1.1.0
      pair install --source ./dist/releases.json#handbook   what readers do then
    """
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = publish(context.installer(), destination, source, packaging)
    context.show(report.to_json(), *_format_release(report))


def verify(context: CliContext, path: KbPath, identity: Identity = None) -> None:
    """Check a KB package or an installed KB.

    Without --identity a signature is checked against sources.signature_keys. Exits 2 when a package is damaged or
    unsafe, 5 when its signature is missing or wrong, or when installed files were changed or are gone.

    Examples:
      pair verify handbook.zip       checksum, archive and manifest of a package
      pair verify .pair/knowledge    every installed file against what was installed
      pair verify handbook.zip --identity minisign.pub
    """
    report = context.installer().verify(path, identity)
    lines = [f"ok: {check}" for check in report.checks]
    if report.extra:
        files = render.pluralize(len(report.extra), "file")
        lines.append(f"besides, {files} of yours: {render.join_names(report.extra)}")
    lines.append(f"{path}: {render.pluralize(report.file_count, 'file')} verified")
    context.show(report.to_json(), *lines, is_answer=True)


def info(context: CliContext, path: KbPath) -> None:
    """Describe a KB package or an installed KB, without unpacking anything.

    Examples:
      pair info handbook.zip
      pair info .pair/knowledge --json
    """
    description = context.installer().describe(path)
    context.show(description.to_json(), *_format_description(description), is_answer=True)


def _format_release(report: PublishReport) -> list[str]:
    lines = [f"skipped {path}: {reason}" for path, reason in report.skipped]
    label = f"{report.name} {report.release.version}"
    if report.is_new:
        lines.append(f"published {label} to {report.place}: {render.format_size(report.release.size_bytes)}")
    else:
        lines.append(f"{label} is published in {report.place} already, with the same bytes: nothing to do")
    lines.append(f"readers use --source {report.source}, or with @{report.release.version} behind it for this version")
    return lines


def _format_index(index: PackagedIndex) -> str:
    documents, shards = render.pluralize(index.documents, "document"), render.pluralize(index.shards, "shard")
    return f"{documents} in {shards}, by {index.embedder}"


def _format_description(description: KbDescription) -> list[str]:
    rows: list[tuple[str, str]]
    if description.header is not None:
        header, source = description.header, description.to_json()["source"]
        taken = "taken up" if header.index_sha256 else "not taken up"
        rows = [
            ("name", header.name),
            ("version", header.version),
            ("source", f"{source['location']} ({source['type']})"),
            ("installed", header.installed_at),
            ("checksum", {True: "verified", False: "unverified", None: "not needed"}[header.verified]),
            ("signed by", header.signed_by or ""),
            ("files", f"{header.file_count:,} ({render.format_size(header.size_bytes)})"),
            ("KB", header.kb_id),
            ("index", f"by {header.embedder}, {taken}" if header.embedder else ""),
        ]
    else:
        manifest = description.manifest
        assert manifest is not None  # noqa: S101 - a description has one of the two
        size = render.format_size(sum(file.size_bytes for file in manifest.texts.values()))
        rows = [
            ("name", manifest.name),
            ("version", manifest.version),
            ("description", manifest.description),
            ("author", manifest.author),
            ("license", manifest.license),
            ("tags", ", ".join(manifest.tags)),
            ("created", manifest.created_at if manifest.is_dated else ""),
            ("files", f"{len(manifest.texts):,} ({size})"),
            ("index", _format_index(manifest.index) if manifest.index is not None else ""),
            ("archive", render.format_size(description.archive_bytes)),
            ("content", f"sha256:{manifest.content_checksum}"),
        ]
    return [f"{key:<12} {value}" for key, value in rows if value]
