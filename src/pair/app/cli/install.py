"""The commands `install`, `update`, `lock`, `package`, `publish`, `verify` and `info`."""

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.installer import LockService, Packaging, publish
from pair.packages.install import InstallReport, InstallRequest
from pair.packages.lockfile import LOCK_NAME
from pair.packages.package import Description as KbDescription
from pair.packages.package import Label, PackagedIndex
from pair.packages.release_index import PublishReport

Target = Annotated[str | None, Argument(metavar="TARGET", help="Folder of the KB.", show_default=".pair/knowledge")]
_SOURCE_HELP = (
    "URL, folder, .zip file, git repository or release index (releases.json#NAME@VERSION). "
    "[sources.default_url, or the latest release of sources.release_repository]"
)
Source = Annotated[str | None, Option("--source", "-s", metavar="SOURCE", help=_SOURCE_HELP)]
Offline = Annotated[bool, Option("--offline", "--no-kb", help="Do not use the network; requires --source with a path.")]
Force = Annotated[bool, Option("--force", help="Overwrite edited files and files that pair did not install.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the changes without making them.")]
NoIndex = Annotated[bool, Option("--no-index", help="Install files only; ignore the packaged index.")]
KbId = Annotated[
    str | None, Option("--kb", metavar="ID", help="Id of the KB. [its current id; else default, or the name of TARGET]")
]
Locked = Annotated[bool, Option("--locked", help="Install exactly what the lock file records.")]
LockFile = Annotated[Path, Option("--lock-file", metavar="FILE", help="Path of the lock file.")]
_TARGETS_HELP = "Folders of installed KBs. [.pair/knowledge and all locked folders]"
LockTargets = Annotated[list[Path] | None, Argument(metavar="TARGET", help=_TARGETS_HELP, show_default=False)]
Check = Annotated[bool, Option("--check", help="Compare only; list differences and exit with 4.")]

_NAME_A_SOURCE = "No source was named. Name a folder, .zip file, URL or release index: pair install --source ./docs"
_KEPT_WORDS = {
    "edited": "you edited",
    "deleted": "you deleted",
    "yours": "pair did not install",
    "in the way": "blocked by your own files",
}

Folder = Annotated[Path, Argument(metavar="DIR", help="Folder to package.")]
Output = Annotated[Path | None, Option("--output", "-o", metavar="FILE", help="Write to this file. [NAME-VERSION.zip]")]
Destination = Annotated[str, Argument(metavar="DEST", help="A folder, or s3://bucket/prefix.")]
ReleaseSource = Annotated[
    Path | None, Argument(metavar="SOURCE", help="A package or a folder.", show_default=".pair/knowledge")
]
Name = Annotated[str | None, Option(metavar="NAME", help="Name of the package. [name of the folder]")]
VersionName = Annotated[str | None, Option(metavar="VERSION", help="Version, such as 1.2.3. [1.0.0]")]
Description = Annotated[str | None, Option(help="Description in one sentence.")]
Author = Annotated[str | None, Option(help="Author or maintainer.")]
License = Annotated[str | None, Option("--license", help="License, such as Apache-2.0.")]
Tags = Annotated[list[str] | None, Option("--tag", metavar="WORD", help="Tag. Can be repeated.")]
WithIndex = Annotated[
    bool, Option("--with-index", help="Include the index, so that users can search right after installing.")
]
IndexKb = Annotated[str | None, Option("--kb", metavar="ID", help="KB to take the index from. [default, or NAME]")]
Sign = Annotated[Path | None, Option(metavar="KEYFILE", help="Sign with this minisign secret key.")]
Site = Annotated[bool, Option("--site", help="Also write a site that searches and answers in the browser.")]
KbPath = Annotated[Path, Argument(metavar="PATH", help="A package (.zip) or the folder of an installed KB.")]
Okf = Annotated[
    bool, Option("--okf", help="Also check that it is a bundle of the Open Knowledge Format; PATH may be any folder.")
]
Identity = Annotated[str | None, Option(metavar="KEY", help="Require a signature by this minisign key or key file.")]


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
    """Install a knowledge base into a folder.

    A download is checked against SOURCE.sha256. Files that pair did not install are overwritten only with --force.

    Examples:
      pair install --source ./handbook                # a folder
      pair install --source https://host/kb.zip       # a package
      pair install --source https://host/releases.json#handbook   # a release
      pair install docs/kb --source ./handbook.zip    # into docs/kb
      pair install --locked                           # as in pair.lock
      pair install --offline --source ./handbook.zip  # without network
    """
    installer = context.installer()
    if locked:
        for option, given in (("--source", source), ("--kb", kb_id)):
            if given is not None:
                raise errors.command_line_invalid(
                    f"Cannot use --locked with {option}: the lock file sets it.",
                    hints=["pair install --locked", f"pair install {option} {shlex.quote(given)}"],
                )
        only = Path(target) if target is not None else None
        reports = LockService(installer, lock_file).install(
            only, force=force, dry_run=dry_run, offline=offline, with_index=not no_index
        )
        lines = [line for report in reports for line in _format_report(report)]
        value = {"command": "install", "lock": str(lock_file), "kbs": [report.to_json() for report in reports]}
        context.show(value, *(lines or [f"Nothing to install: {lock_file} is empty."]))
        return
    folder = Path(target) if target is not None else installer.default_target
    request = InstallRequest("install", folder, force=force, dry_run=dry_run, kb_id=kb_id, with_index=not no_index)
    try:
        report = installer.apply(request, installer.resolve(source, offline=offline), offline=offline)
    except errors.DownloadError as fault:
        if source is None and not installer.settings.named & {"sources.default_url", "sources.release_repository"}:
            fault.hints = (_NAME_A_SOURCE, *fault.hints)
        raise
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
    """Update an installed knowledge base.

    All changes are made in one step, or none. Files that you edited or deleted are kept and listed.

    Examples:
      pair update                              # from where it was installed
      pair update --source ./handbook-2.zip    # from another source
      pair update --dry-run                    # print the changes only
    """
    installer = context.installer()
    folder = Path(target) if target is not None else installer.default_target
    request = InstallRequest("update", folder, force=force, dry_run=dry_run, kb_id=kb_id, with_index=not no_index)
    report = installer.apply(request, installer.resolve_update(source, folder, offline=offline), offline=offline)
    context.show(report.to_json(), *_format_report(report))


def lock(
    context: CliContext, targets: LockTargets = None, check: Check = False, lock_file: LockFile = Path(LOCK_NAME)
) -> None:
    """Record the exact version and checksum of every installed knowledge base.

    With --check, compare the lock file with the installed files, their records, and installed search indexes.

    Examples:
      pair lock                      # lock .pair/knowledge and all locked KBs
      pair lock docs/handbook        # lock another folder too
      pair lock --check              # exit with 4 if anything differs
      pair install --locked          # install exactly what is locked
    """
    locks = LockService(context.installer(), lock_file)
    if check:
        report = locks.check()
        lines = [f"Checked {render.pluralize(len(report.kbs), 'KB')}: no differences from {report.path}."]
    else:
        report = locks.write(targets or [])
        names = render.join_names([kb.id for kb in report.kbs])
        done = "Locked" if report.is_changed else "Already locked:"
        lines = [
            f"Warning: the URL of {kb_id} has a query. Do not share {report.path} if it contains a secret."
            for kb_id in report.with_queries
        ]
        lines.append(f"{done} {render.pluralize(len(report.kbs), 'KB')} in {report.path}: {names}.")
    context.show(report.to_json(), *lines)


def _format_report(report: InstallReport) -> list[str]:
    """Return one line for each kind of change, and a summary."""
    verbs = ("Would add", "Would change", "Would remove") if report.dry_run else ("Added", "Changed", "Removed")
    lines = [
        f"{verb} {render.pluralize(len(paths), 'file')}: {render.join_names(paths)}"
        for verb, paths in zip(verbs, (report.added, report.changed, report.removed), strict=True)
        if paths
    ]
    for reason, words in _KEPT_WORDS.items():
        paths = [kept.path for kept in report.kept if kept.reason == reason]
        if paths:
            lines.append(f"Kept {render.pluralize(len(paths), 'file')} ({words}): {render.join_names(paths)}")
    if report.kept:
        lines.append("Use --force to overwrite your edited files.")
    lines += [f"Skipped {path}: {reason}" for path, reason in report.skipped]
    index = report.index
    if index is not None:
        documents = render.pluralize(index.documents, "document")
        new = f"{index.new_shards} of {render.pluralize(index.shards, 'shard')} new"
        lines.append(f"Ready to search: {documents} in {index.kb_id}, version {index.manifest_version} ({new}).")
    return [*lines, _format_summary(report)]


def _format_summary(report: InstallReport) -> str:
    label = f"{report.name} {report.version}".strip()
    checks = {True: ["checksum verified"], False: ["unverified"], None: []}[report.verified]
    if report.signed_by is not None:
        checks = [*(checks if report.verified else []), f"signed by {report.signed_by}"]
    if not (report.added or report.changed or report.removed):
        counts = ", ".join([render.pluralize(report.unchanged, "file"), *checks])
        return f"{label} in {report.target} is up to date ({counts})."
    done = f"Updated {report.target} to {label}" if report.mode == "update" else f"Installed {label} in {report.target}"
    if report.dry_run:
        done = f"Dry run, nothing was changed: {label} in {report.target}"
    return f"{done} ({', '.join(checks)})." if checks else f"{done}."


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
    """Package a folder: write a .zip file with a manifest, and its .sha256 file.

    The same folder always gives the same bytes. SOURCE_DATE_EPOCH sets the date in the manifest. The password of an
    encrypted key comes from PAIR_SIGN_PASSWORD or from a prompt.

    Examples:
      pair package ./handbook --version 1.0.0 --tag time --tag calendars
      pair package ./handbook --with-index     # searchable once installed
      pair package ./handbook -o kb.zip --sign ~/.minisign/minisign.key
    """
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = context.installer().package(folder, output, packaging)
    lines = [f"Skipped {path}: {reason}" for path, reason in report.skipped]
    manifest = report.manifest
    if manifest.index is not None:
        lines.append(f"Included the index: {_format_index(manifest.index)}")
    if report.signed_by is not None:
        lines.append(f"Signed by key {report.signed_by} in {report.path}.minisig")
    files, size = render.pluralize(len(manifest.texts), "file"), render.format_size(report.size_bytes)
    lines.append(f"Packaged {manifest.name} {manifest.version} in {report.path} ({files}, {size}).")
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
    site: Site = False,
) -> None:
    """Publish a package: write it, its checksum, and then the release index.

    Serve DEST from any static file host. A published version never changes: the same version with different bytes is
    refused.

    Examples:
      pair publish dist ./handbook --version 1.0.0    # package and publish
      pair publish dist ./handbook --version 1.1.0 --with-index
      pair publish dist handbook-1.0.0.zip            # publish a package
      pair publish dist ./handbook --site             # dist/site/handbook answers in the browser
      pair publish s3://bucket/kbs ./handbook --version 1.1.0
      pair install --source ./dist/releases.json#handbook   # as a reader
    """
    label = Label(name, version, description, author, license_name, tuple(tag) if tag else None)
    packaging = Packaging(label, with_index, kb, sign, render.ask_password)
    report = publish(context.installer(), destination, source, packaging, with_site=site)
    context.show(report.to_json(), *_format_release(report))


def verify(context: CliContext, path: KbPath, identity: Identity = None, okf: Okf = False) -> None:
    """Check a package or an installed knowledge base.

    Signatures are checked against --identity, or else against sources.signature_keys. Exit status: 2 if a package is
    damaged or unsafe; 5 if its signature is missing or wrong, if installed files were changed or deleted, or if --okf
    finds a problem.

    Examples:
      pair verify handbook.zip       # checksum, archive and manifest
      pair verify .pair/knowledge    # every installed file
      pair verify handbook.zip --identity minisign.pub
      pair verify ./bundle --okf     # front matter, index.md and log.md of each folder
    """
    report = context.installer().verify(path, identity, as_bundle=okf)
    lines = [f"ok: {check}" for check in report.checks]
    if report.extra:
        files = render.pluralize(len(report.extra), "file")
        lines.append(f"not installed by pair: {files}: {render.join_names(report.extra)}")
    lines.append(f"Verified {render.pluralize(report.file_count, 'file')} in {path}.")
    context.show(report.to_json(), *lines, is_answer=True)


def info(context: CliContext, path: KbPath) -> None:
    """Describe a package or an installed knowledge base. Nothing is unpacked.

    Examples:
      pair info handbook.zip
      pair info .pair/knowledge --json
    """
    description = context.installer().describe(path)
    context.show(description.to_json(), *_format_description(description), is_answer=True)


def _format_release(report: PublishReport) -> list[str]:
    lines = [f"Skipped {path}: {reason}" for path, reason in report.skipped]
    label = f"{report.name} {report.release.version}"
    if report.is_new:
        lines.append(f"Published {label} to {report.place} ({render.format_size(report.release.size_bytes)}).")
    else:
        lines.append(f"Nothing to do: {label} is already published in {report.place}.")
    lines.append(
        f"Install it: pair install --source {report.source} (append @{report.release.version} to pin this version)"
    )
    if report.site:
        lines.append(f"Wrote the site in {report.site}. Try it: python -m http.server -d {shlex.quote(report.site)}")
    return lines


def _format_index(index: PackagedIndex) -> str:
    documents, shards = render.pluralize(index.documents, "document"), render.pluralize(index.shards, "shard")
    return f"{documents} in {shards}, embedder {index.embedder}"


def _format_description(description: KbDescription) -> list[str]:
    rows: list[tuple[str, str]]
    if description.header is not None:
        header, source = description.header, description.to_json()["source"]
        taken = "installed" if header.index_sha256 else "not installed"
        rows = [
            ("name", header.name),
            ("version", header.version),
            ("source", f"{source['location']} ({source['type']})"),
            ("installed", header.installed_at),
            ("checksum", {True: "verified", False: "unverified", None: "not needed"}[header.verified]),
            ("signed by", header.signed_by or ""),
            ("files", f"{header.file_count:,} ({render.format_size(header.size_bytes)})"),
            ("KB", header.kb_id),
            ("index", f"{taken}, embedder {header.embedder}" if header.embedder else ""),
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
