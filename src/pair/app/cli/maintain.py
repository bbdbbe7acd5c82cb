"""pair compact, pair gc, pair cache sweep"""

from dataclasses import asdict
from typing import Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

COMPACT_EXAMPLE = """Examples:

\b
  pair compact            what is worth it
  pair compact --all      everything, clustered anew"""

GC_EXAMPLE = """Examples:

\b
  pair gc                 shards that nobody has named for engine.gc_grace_seconds
  pair gc --grace 0       all of them, when nobody reads or writes"""

SWEEP_EXAMPLE = """Examples:

\b
  pair cache sweep        down to engine.cache_max_bytes, without what is in use"""

All = Annotated[bool, typer.Option("--all", help="Also what is in good order.")]
Grace = Annotated[float | None, typer.Option("--grace", min=0, metavar="SECONDS", help="Instead of the setting's.")]


def compact(context: typer.Context, kb: KbName = DEFAULT_KB, everything: All = False) -> None:
    """Merge and re-cluster shards. Readers and writers go on meanwhile."""
    session: CliContext = context.obj

    def note(done: int, total: int) -> None:
        if not session.as_json:
            render.print_progress(f"{done} of {render.counted(total, 'shard')}")

    with session.kb(kb) as opened:
        report = opened.maintenance.compact(everything=everything, on_progress=note)
    render.end_progress()
    told = f"{report.shards_before} shards became {report.shards_after}: {report.reason.replace('_', ' ')}"
    session.show({"kb_id": kb, **asdict(report)}, told if report.shards_before else "nothing to compact")


def collect(context: typer.Context, kb: KbName = DEFAULT_KB, grace: Grace = None) -> None:
    """Delete shards that no manifest names any more."""
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        report = opened.maintenance.collect(grace_seconds=grace)
    freed = f"deleted {render.counted(report.deleted_shards, 'shard')}, {render.size(report.deleted_bytes)}"
    waiting = f"; {report.kept_shards} more when their time has come" if report.kept_shards else ""
    session.show({"kb_id": kb, **asdict(report)}, freed + waiting)


def sweep(context: typer.Context, kb: KbName = DEFAULT_KB) -> None:
    """Evict fetched shards that are too old or too many."""
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        report = opened.maintenance.sweep()
    evicted = render.counted(report.evicted_ttl + report.evicted_size, "shard")
    told = f"evicted {evicted}, {render.size(report.freed_bytes)}; {render.size(report.kept_bytes)} kept"
    session.show(asdict(report), told)
