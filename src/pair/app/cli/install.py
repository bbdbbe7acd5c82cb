"""pair install, pair update, pair lock"""

from pathlib import Path
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.installer import LockService
from pair.packages.install import InstallReport, InstallRequest
from pair.packages.lockfile import LOCK_NAME

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
        _refuse_with_lock(source, kb_id)
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


def _refuse_with_lock(source: str | None, kb_id: str | None) -> None:
    for option, value in (("--source", source), ("--kb", kb_id)):
        if value is not None:
            raise errors.command_line_invalid(
                f"--locked cannot be used with {option}: the lock file says it", hints=["pair install --help"]
            )


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
