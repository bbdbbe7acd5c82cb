"""pair sync, pair status"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.open import DEFAULT_KB
from pair.kb.sync import SyncService
from pair.sync.report import SyncPlan, SyncReport, SyncStatus

Watch = Annotated[bool, typer.Option("--watch", help="Go on: run again when a file changes, and every tick.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be done and why; write and fetch nothing.")]
Refresh = Annotated[
    bool, typer.Option("--refresh", help="Check URLs now, whatever their next check; all, or those that match PATTERN.")
]
Pattern = Annotated[
    str | None, typer.Argument(metavar="[PATTERN]", help="With --refresh: a glob, or a part of the URL.")
]


def sync(
    context: CliContext,
    pattern: Pattern = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    refresh: Refresh = False,
) -> None:
    """Bring .pair/index.txt in line with the sources folder and the links file.

    Sources that did not change are not read, fetched or summarised again.

    Examples:
      pair sync                 read what changed, write .pair/index.txt
      pair sync --dry-run       what would be done about each source, and why
      pair sync --watch         again whenever a file changes, and every tick
      pair sync --refresh       check every URL now
      pair sync --refresh '*/guide/*'
    """
    urls = _check_pattern(pattern, refresh=refresh, watch=watch)
    progress = render.ProgressObserver(is_quiet=context.as_json)
    service = SyncService(context.settings(), observer=progress)
    if dry_run:
        plan = service.plan(refresh=urls)
        context.show(plan.to_json(), *_format_plan(plan), is_answer=True)
        faults = plan.errors
    elif watch:
        with _handle_signals(progress), contextlib.suppress(KeyboardInterrupt):
            _watch(context, service)
        return
    else:
        with _handle_signals(progress):
            report = service.sync(refresh=urls)
            value = report.to_json()
        context.show(value, *_format_report(report))
        faults = report.errors
    if faults:
        raise typer.Exit(errors.NotFoundError.exit_status)


def status(context: CliContext) -> None:
    """How things stand: installed, synced, pending, failing, stored.

    Examples:
      pair status
      pair status --json
    """
    installed = context.installer().describe_installed()
    progress = render.ProgressObserver(is_quiet=context.as_json)
    sync_status = SyncService(context.settings(), observer=progress).status()
    stored, stored_line = _describe_store(context)
    value: dict[str, Any] = {
        "installed": installed.to_json() if installed else None,
        "sync": sync_status.to_json(),
        **stored,
    }
    lines = ["installed    nothing"]
    if installed is not None and installed.header is not None:
        header = installed.header
        label = f"{header.name} {header.version}".strip()
        lines = [f"installed    {label}, {render.pluralize(header.file_count, 'file')}, on {header.installed_at}"]
    context.show(value, *lines, *_format_status(sync_status), stored_line, is_answer=True)


def _check_pattern(pattern: str | None, *, refresh: bool, watch: bool) -> str | None:
    """Return the pattern of URLs to check now."""
    if pattern is not None and not refresh:
        raise errors.command_line_invalid(
            f"Got unexpected extra argument ({pattern})",
            hints=["Sync another folder: PAIR__KB__SOURCES_DIR=FOLDER pair sync", f"pair sync --refresh {pattern}"],
        )
    if refresh and watch:
        raise errors.command_line_invalid(
            "--refresh and --watch exclude each other", hints=["pair sync --refresh", "pair sync --watch"]
        )
    return (pattern or "*") if refresh else None


def _describe_store(context: CliContext) -> tuple[dict[str, Any], str]:
    """Return JSON and a line. A store that cannot be read does not hide the rest of the status."""
    try:
        with context.kb(DEFAULT_KB) as kb:
            stats = kb.stats()
    except errors.PairError as fault:
        return {"stored": None, "stored_error": fault.to_json()["error"]}, f"stored       unknown: {fault.message}"
    if stats is None:
        return {"stored": None}, "stored       nothing"
    documents, shards = render.pluralize(stats.documents, "document"), render.pluralize(stats.shards, "shard")
    return {"stored": stats.to_json()}, f"stored       {documents} in {shards}, {render.format_size(stats.size_bytes)}"


def _watch(context: CliContext, service: SyncService) -> None:
    """Sync until a signal raises KeyboardInterrupt."""
    render.print_note("watching; Ctrl-C ends it")

    def show_run(report: SyncReport) -> None:
        if context.as_json:
            render.print_json_line(report.to_json())
        elif not report.did_nothing or report.errors:
            render.print_note(*_format_report(report))

    service.watch(threading.Event(), show_run)


@contextlib.contextmanager
def _handle_signals(progress: render.ProgressObserver) -> Iterator[None]:
    """The first signal ends the command in an orderly way, the second at once; a run holds both until it is saved.

    The progress is closed however the block ends, so that the terminal is left as it was found.
    """
    is_first = True

    def interrupt(*_: object) -> None:
        nonlocal is_first
        progress.close()
        if not is_first:
            os._exit(errors.INTERRUPTED_EXIT_STATUS)
        is_first = False
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        progress.close()


def _format_report(report: SyncReport) -> list[str]:
    lines = [f"error: {fault}" for fault in report.errors]
    lines += _format_reasons("problem", report.problems)
    lines += _format_reasons("skipped", report.skipped)
    names = ("added", "changed", "removed", "unchanged", "fetched", "not_modified", "failed", "pending")
    counts = ", ".join(f"{getattr(report, name)} {name.replace('_', ' ')}" for name in names if getattr(report, name))
    work = f"{render.pluralize(report.model_calls, 'model call')}, {render.format_size(report.bytes_read)} read"
    nothing = "nothing; what is recorded of these sources is kept" if report.errors else "no sources"
    lines.append(f"synced: {counts or nothing} ({work}, {report.seconds:.1f} s)")
    if report.stored or report.unstored:
        lines.append(f"stored: {report.stored} documents, {report.unstored} let go")
    if report.held_at:
        lines.append(f"stored: left at version {report.held_at}, as it was rolled back; pair sync lets it follow again")
    return lines


def _format_reasons(word: str, pairs: Sequence[tuple[str, str]], most: int = 10) -> list[str]:
    lines = [f"{word}: {name}: {reason}" for name, reason in pairs[:most]]
    return [*lines, f"{word}: {len(pairs) - most:,} more"] if len(pairs) > most else lines


def _format_plan(plan: SyncPlan) -> list[str]:
    lines = [f"{source.reason:<10} {source.source_id}" for source in plan.sources if source.reason != "unchanged"]
    lines += [f"removed    {source_id}" for source_id in plan.removed]
    lines += _format_reasons("skipped", plan.skipped)
    lines += [f"error: {fault}" for fault in plan.errors]
    counts = ", ".join(f"{count} {reason}" for reason, count in plan.counts().items())
    calls = render.pluralize(plan.model_calls, "model call")
    return [*lines, f"would sync: {counts or 'no sources'}; about {calls}, about {plan.tokens:,} tokens"]


def _format_status(status: SyncStatus) -> list[str]:
    lines = [f"synced       {render.pluralize(status.files, 'file')}, {render.pluralize(status.urls, 'URL')}"]
    if status.next_check_at:
        lines.append(f"next check   {status.next_check_at}")
    lines.append(f"pending      {len(status.pending)}")
    lines += _format_reasons("pending", status.pending)
    lines += _format_reasons("failing", status.failing)
    lines += _format_reasons("skipped", status.skipped)
    return lines
