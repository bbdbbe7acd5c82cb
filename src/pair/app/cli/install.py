"""pair install, pair update"""

from pathlib import Path
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.lock import LockFile
from pair.kb.installer import LockService
from pair.packages.contract import InstalledIndex
from pair.packages.install import InstallReport, InstallRequest
from pair.packages.lockfile import LOCK_NAME

INSTALL_EXAMPLE = """Examples:

\b
  pair install                                   the latest release into .pair/knowledge
  pair install --source https://host/kb.zip      an archive, checked against kb.zip.sha256
  pair install docs/kb --source ./handbook       a folder into docs/kb
  pair install --source https://host/releases.json#handbook   the latest release in a feed
  pair install --locked                          exactly what pair.lock says
  pair install --offline --source ./handbook.zip without any network"""

UPDATE_EXAMPLE = """Examples:

\b
  pair update                                    from where it was installed
  pair update --source ./handbook-2.zip          from another source
  pair update --dry-run                          what would change"""

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


def install(
    context: typer.Context,
    target: Target = None,
    source: Source = None,
    kb_id: KbId = None,
    offline: Offline = False,
    force: Force = False,
    dry_run: DryRun = False,
    no_index: NoIndex = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="What the lock file says, all of it or that of TARGET; nothing else.")
    ] = False,
    lock_file: LockFile = Path(LOCK_NAME),
) -> None:
    """Put a KB into a folder.

    Files in the folder that pair did not install are never overwritten without --force.
    """
    session: CliContext = context.obj
    desk = session.desk()
    if locked:
        _refuse_with_lock(source, kb_id)
        one = Path(target) if target is not None else None
        done = LockService(desk, lock_file).install(
            one, force=force, dry_run=dry_run, offline=offline, with_index=not no_index
        )
        session.show(
            done.to_json(), *([line for each in done.reports for line in _told(each)] or ["nothing is locked"])
        )
        return
    folder = Path(target) if target is not None else desk.default_target
    known_as = desk.check_kb_id(kb_id)
    request = InstallRequest("install", folder, force=force, dry_run=dry_run, kb_id=known_as, with_index=not no_index)
    found = desk.resolve(source, offline=offline)
    report = desk.apply(request, found, offline=offline)
    session.show(report.to_json(), *_told(report))


def _refuse_with_lock(source: str | None, kb_id: str | None) -> None:
    for option, value in (("--source", source), ("--kb", kb_id)):
        if value is not None:
            raise errors.command_line_invalid(
                f"--locked cannot be used with {option}: the lock file says it", hints=["pair install --help"]
            )


def update(
    context: typer.Context,
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
    """
    session: CliContext = context.obj
    desk = session.desk()
    folder = Path(target) if target is not None else desk.default_target
    known_as = desk.check_kb_id(kb_id)
    request = InstallRequest("update", folder, force=force, dry_run=dry_run, kb_id=known_as, with_index=not no_index)
    found = desk.resolve_update(source, folder, offline=offline)
    report = desk.apply(request, found, offline=offline)
    session.show(report.to_json(), *_told(report))


_KEPT_WORDS = {
    "edited": "edited here",
    "deleted": "deleted here",
    "yours": "not installed by pair",
    "in the way": "a file of yours is in the way",
}


def _told(report: InstallReport) -> list[str]:
    """One line for each kind of change, and one for the whole."""
    would = "would be " if report.dry_run else ""
    lines = [
        f"{would}{verb} {render.counted(len(paths), 'file')}: {render.names(paths)}"
        for verb, paths in (("added", report.added), ("changed", report.changed), ("removed", report.removed))
        if paths
    ]
    for reason, words in _KEPT_WORDS.items():
        paths = [kept.path for kept in report.kept if kept.reason == reason]
        if paths:
            lines.append(f"kept {render.counted(len(paths), 'file')} ({words}): {render.names(paths)}")
    if report.kept:
        lines.append("the KB's version of kept files is taken with --force")
    for path, reason in report.skipped:
        lines.append(f"skipped {path}: {reason}")
    if report.index is not None:
        lines.append(_told_index(report.index))
    return [*lines, _summary(report)]


def _told_index(index: InstalledIndex) -> str:
    documents = render.counted(index.documents, "document")
    new = f"{index.new_shards} of {render.counted(index.shards, 'shard')} new"
    return f"ready to search: {documents} in {index.kb_id}, version {index.manifest_version} ({new})"


def _summary(report: InstallReport) -> str:
    label = f"{report.name} {report.version}".strip()
    checked = {True: ", checksum verified", False: ", unverified", None: ""}[report.verified]
    if report.signed_by is not None:
        checked = f"{checked if report.verified else ''}, signed by {report.signed_by}"
    if not (report.added or report.changed or report.removed):
        return f"{label} in {report.target} is up to date ({render.counted(report.unchanged, 'file')}{checked})"
    done = {"install": "installed", "update": "updated"}[report.mode]
    words = f"dry run: nothing was {done}" if report.dry_run else done
    return f"{words}: {label} in {report.target}{checked}"
