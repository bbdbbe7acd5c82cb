"""pair fsck"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.engine.backup.fsck import FsckReport
    from pair.engine.backup.verify_files import Fault

EXAMPLE = """Examples:

\b
  pair fsck                                   verify every byte; exit status 5 if something is damaged
  pair fsck --repair                          from the cache, from what is left, from synced sources
  pair fsck --repair --package backup.zip     also from a package or an export of shards
  pair fsck --repair --drop-lost              and give up what cannot be repaired"""

Repair = Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")]
Packages = Annotated[
    list[Path] | None,
    typer.Option("--package", metavar="FILE.zip", help="May hold what is damaged here; may be repeated."),
]
DropLost = Annotated[bool, typer.Option("--drop-lost", help="With --repair: give up what cannot be repaired.")]
_IDS_SHOWN = 10


def fsck(
    context: typer.Context,
    kb: KbName = DEFAULT_KB,
    repair: Repair = False,
    package: Packages = None,
    drop_lost: DropLost = False,
) -> None:
    """Verify every byte that a knowledge base is made of, and repair what can be repaired.

    Readers and writers go on meanwhile. Without --repair nothing is changed; without --drop-lost nothing is given up.
    """
    session: CliContext = context.obj
    if drop_lost and not repair:
        raise errors.command_line_invalid("--drop-lost goes with --repair", hints=["pair fsck --help"])

    def note(done: int, total: int) -> None:
        if not session.as_json:
            render.print_progress(f"{render.size(done)} of {render.size(total)}")

    with session.asked_kb(kb) as opened:
        report = opened.maintenance.fsck(repair=repair, drop_lost=drop_lost, packages=package or (), on_progress=note)
    render.end_progress()
    session.show(report.to_json(), *_told(report), is_answer=True)
    if not report.is_sound:
        raise typer.Exit(errors.DataError.exit_status)


def _told(report: "FsckReport") -> list[str]:
    lines = [line for fault in report.faults for line in _lines_of(fault)]
    seen = f"{render.counted(report.files, 'file')} in {render.counted(report.shards, 'shard')}"
    seen += f", {render.size(report.size_bytes)}"
    if not report.faults:
        return [f"{report.kb_id} is sound: {seen}"]
    repaired = sum(fault.is_repaired for fault in report.faults)
    damaged = f"{render.counted(len(report.faults), 'file')} damaged, {repaired} repaired"
    return [*lines, f"{report.kb_id}: {damaged} ({seen})"]


def _lines_of(fault: "Fault") -> list[str]:
    lines = [f"{fault.key}: {fault.reason} ({render.counted(fault.documents, 'document')})"]
    if fault.is_repaired:
        lines.append(f"  repaired from {fault.remedy}" if fault.remedy else "  given up")
    elif fault.remedy:
        lines.append(f"  can be repaired from {fault.remedy}: pair fsck --repair")
    else:
        lines.append("  cannot be repaired from what is here; a backup may help: --package FILE.zip")
    if fault.ids:
        more = f" and {len(fault.ids) - _IDS_SHOWN:,} more" if len(fault.ids) > _IDS_SHOWN else ""
        lines.append(f"  lost: {', '.join(fault.ids[:_IDS_SHOWN])}{more}")
    return lines
