"""The commands `sync` and `status`."""

import contextlib
import os
import shlex
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.open import DEFAULT_KB
from pair.kb.sync import ProjectSync
from pair.sync.report import SyncPlan, SyncReport, SyncStatus

Watch = Annotated[bool, Option("--watch", help="Keep running: sync when a file changes, and periodically.")]
DryRun = Annotated[bool, Option("--dry-run", help="List what would be done and why; fetch and write nothing.")]
Refresh = Annotated[bool, Option("--refresh", help="Check URLs now: all of them, or those that match PATTERN.")]
Pattern = Annotated[str | None, Argument(metavar="PATTERN", help="With --refresh: a glob, or a part of the URL.")]
Why = Annotated[str | None, Option("--why", metavar="PATH", help="Explain why a path or URL is synced or not.")]
_LABEL_WIDTH = 12
_NOTHING_TO_SYNC = (
    "Nothing to sync: there are no files in kb.sources_dir (.pair/knowledge) and no URLs in kb.links_file_path "
    "(.pair/links.txt). Sync a folder: pair add ./docs, then pair sync. Store files once: pair ingest PATH"
)


def sync(
    context: CliContext,
    pattern: Pattern = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    refresh: Refresh = False,
) -> None:
    """Index the files and links of this project, and write .pair/index.txt.

    Sources are the files in kb.sources_dir (.pair/knowledge), the URLs in kb.links_file_path (.pair/links.txt), and the
    collections in kb.collections. Unchanged sources are not read, fetched or summarised again.

    Examples:
      pair sync                         # process what changed
      pair sync --dry-run               # list what would be done, and why
      pair sync --watch                 # keep running
      pair sync --refresh               # check every URL now
      pair sync --refresh '*/guide/*'   # check some URLs now
    """
    urls = _check_pattern(pattern, refresh=refresh, watch=watch)
    progress = render.ProgressObserver(is_quiet=context.as_json)
    settings = context.settings()
    if dry_run:
        plan = ProjectSync(settings, progress).plan(refresh=urls)
        context.show(plan.to_json(), *_format_plan(plan), is_answer=True)
        faults = plan.errors
    elif watch:
        with _handle_signals(progress), contextlib.suppress(KeyboardInterrupt):
            _watch(context, ProjectSync(settings, progress))
        return
    else:
        with _handle_signals(progress):
            report = ProjectSync(settings, progress).sync(refresh=urls)
            value = report.to_json()
        context.show(value, *_format_report(report))
        faults = report.errors
    if faults:
        raise typer.Exit(errors.NotFoundError.exit_status)


def status(context: CliContext, why: Why = None) -> None:
    """Show what is installed, synced, pending, failing and stored.

    Examples:
      pair status
      pair status --json
      pair status --why docs/draft.md   # which rule includes or excludes a file
    """
    if why is not None:
        _show_reasons(context, why)
        return
    installed = context.installer().describe_installed()
    progress = render.ProgressObserver(is_quiet=context.as_json)
    sync_status = ProjectSync(context.settings(), progress).status()
    stored, stored_line = _describe_store(context)
    value: dict[str, Any] = {
        "installed": installed.to_json() if installed else None,
        "sync": sync_status.to_json(),
        **stored,
    }
    lines = [_format_row("installed", "nothing")]
    if installed is not None and installed.header is not None:
        header = installed.header
        label = f"{header.name} {header.version}".strip()
        files = render.pluralize(header.file_count, "file")
        lines = [_format_row("installed", f"{label}, {files}, on {header.installed_at}")]
    context.show(value, *lines, *_format_status(sync_status), stored_line, is_answer=True)


def _show_reasons(context: CliContext, target: str) -> None:
    """Show what each collection does with a path or URL, and which rule decides."""
    found = ProjectSync(context.settings()).explain(target)
    lines = [
        f"{'included' if reason.is_included else 'excluded'}  {reason.source_id}"
        + (f" (collection {reason.collection})" if reason.collection else "")
        + (f" (kb {reason.kb})" if reason.kb != DEFAULT_KB else "")
        + f": {reason.reason}"
        for reason in found
    ]
    value = {"target": target, "reasons": [reason.to_json() for reason in found]}
    nothing = f"excluded  {target}: it is in no collection. Add its folder: pair add FOLDER"
    context.show(value, *(lines or [nothing]), is_answer=True)


def _check_pattern(pattern: str | None, *, refresh: bool, watch: bool) -> str | None:
    """Return the pattern of URLs to check now."""
    if pattern is not None and not refresh:
        path = shlex.quote(pattern)
        hints = [f"Check URLs that match: pair sync --refresh {path}"]
        if Path(pattern).exists() or pattern.startswith((".", "/", "~")):
            hints = [f"Keep it in sync: pair add {path} && pair sync", f"Store it once: pair ingest {path}"]
        raise errors.command_line_invalid(
            f"Cannot sync {pattern!r}: sync takes no path. Nothing was changed.", hints=hints
        )
    if refresh and watch:
        raise errors.command_line_invalid(
            "Cannot use --refresh with --watch.", hints=["pair sync --refresh", "pair sync --watch"]
        )
    return (pattern or "*") if refresh else None


def _describe_store(context: CliContext) -> tuple[dict[str, Any], str]:
    """Return JSON and a line. An unreadable store does not hide the rest of the status."""
    try:
        with context.kb(DEFAULT_KB) as kb:
            stats = kb.stats()
    except errors.PairError as fault:
        error = fault.to_json()["error"]
        return {"stored": None, "stored_error": error}, _format_row("stored", f"unknown: {fault.message}")
    if not stats.manifest_version:
        return {"stored": None}, _format_row("stored", "nothing; run: pair sync, or pair ingest PATH")
    documents, shards = render.pluralize(stats.documents, "document"), render.pluralize(stats.shards, "shard")
    size = render.format_size(stats.size_bytes)
    return {"stored": stats.to_json()}, _format_row("stored", f"{documents} in {shards}, {size}")


def _watch(context: CliContext, service: ProjectSync) -> None:
    """Sync until a signal raises KeyboardInterrupt."""
    render.print_note("Watching for changes. Press Ctrl-C to stop.")

    def show_run(report: SyncReport) -> None:
        if context.as_json:
            render.print_json_line(report.to_json())
        elif not report.did_nothing or report.errors:
            render.print_note(*_format_report(report))

    service.watch(threading.Event(), show_run)


@contextlib.contextmanager
def _handle_signals(progress: render.ProgressObserver) -> Iterator[None]:
    """End the command in an orderly way at the first signal, and at once at the second.

    A run defers both until it is saved. The progress is always closed, so that the terminal gets its cursor back.
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
    lines = [f"Error: {fault}" for fault in report.errors]
    lines += _format_reasons("Problem", report.problems)
    lines += _format_reasons("Skipped", report.newly_skipped)
    names = ("added", "changed", "removed", "unchanged", "fetched", "not_modified", "failed", "pending")
    counts = ", ".join(f"{getattr(report, name):,} {name.replace('_', ' ')}" for name in names if getattr(report, name))
    work = f"{render.pluralize(report.model_calls, 'model call')}, {render.format_size(report.bytes_read)} read"
    if report.stored or report.unstored:
        lines.append(f"Stored {render.pluralize(report.stored, 'document')} ({report.unstored:,} removed).")
    if report.held_at:
        lines.append(f"The KB stays at version {report.held_at} after a rollback. Run pair sync to follow the sources.")
    if not counts and not report.errors:
        return [*lines, _NOTHING_TO_SYNC]
    kept = "nothing; the records of these sources are kept"
    return [*lines, f"Synced: {counts or kept} ({work}, {report.seconds:.1f} s)."]


def _format_reasons(word: str, pairs: Sequence[tuple[str, str]], most: int = 10) -> list[str]:
    """Return a line for each name, or for each reason if there are many names."""
    lines = [f"{word}: {name}: {reason}" for name, reason in pairs]
    if len(pairs) > most:
        names = defaultdict(list)
        for name, reason in pairs:
            names[reason].append(name)
        lines = [
            f"{word}: {own[0]}{f' and {len(own) - 1:,} more' if len(own) > 1 else ''}: {reason}"
            for reason, own in names.items()
        ]
    return [*lines[:most], f"{word}: {len(lines) - most:,} more reasons"] if len(lines) > most else lines


def _format_row(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {text}"


def _format_plan(plan: SyncPlan) -> list[str]:
    lines = [f"{source.reason:<10} {source.source_id}" for source in plan.sources if source.reason != "unchanged"]
    lines += [f"removed    {source_id}" for source_id in plan.removed]
    lines += _format_reasons("Skipped", plan.skipped)
    lines += [f"Excluded: {count:,} by {rule}" for rule, count in plan.excluded]
    lines += [f"Error: {fault}" for fault in plan.errors]
    counts = ", ".join(f"{count:,} {reason}" for reason, count in plan.counts().items())
    calls = render.pluralize(plan.model_calls, "model call")
    return [*lines, f"Would sync {counts or 'nothing'} (about {calls}, {plan.tokens:,} tokens). Nothing was written."]


def _format_status(status: SyncStatus) -> list[str]:
    synced = f"{render.pluralize(status.files, 'file')}, {render.pluralize(status.urls, 'URL')}"
    synced += f", {render.pluralize(status.items, 'item')}" if status.items else ""
    lines = [_format_row("synced", synced)]
    lines += [_format_row("", f"{name}: {count:,}") for name, count in status.collections.items()]
    if status.next_check_at:
        lines.append(_format_row("next check", status.next_check_at))
    lines.append(_format_row("pending", f"{len(status.pending):,}"))
    lines += _format_reasons("Pending", status.pending)
    lines += _format_reasons("Failing", status.failing)
    lines += _format_reasons("Skipped", status.skipped)
    return lines
