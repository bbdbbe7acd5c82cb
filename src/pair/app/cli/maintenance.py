"""The commands `compact`, `gc`, `cache sweep`, `fsck`, `reembed`, `eval` and `doctor`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pair import errors, files
from pair.app import render
from pair.app.cli.context import CliContext, KbName
from pair.clock import SystemClock
from pair.engine.backup.fsck import Fault, FsckReport
from pair.engine.maintenance.reembed import ReembedReport
from pair.engine.write.writer import WriteReport
from pair.evaluation.measure import (
    JudgedSet,
    Measured,
    Selection,
    find_failures,
    format_gate,
    judge_by_feedback,
    measure,
    measure_all,
    parse_baseline,
    parse_least,
    read_judged_set,
)
from pair.kb.kb import KnowledgeBase
from pair.kb.maintenance import changes_to, with_embedder
from pair.kb.open import DEFAULT_KB, open_kb, temporary_kb
from pair.values import MODES

All = Annotated[bool, Option("--all", help="Compact every shard, even healthy ones.")]
Grace = Annotated[
    float | None, Option("--grace", min=0, metavar="SECONDS", help="Grace period. [engine.gc_grace_seconds]")
]
Repair = Annotated[bool, Option("--repair", help="Repair damage where possible.")]
Packages = Annotated[
    list[Path] | None, Option("--package", metavar="FILE", help="Also repair from this package. Can be repeated.")
]
DropLost = Annotated[bool, Option("--drop-lost", help="With --repair: delete what cannot be repaired.")]
Embedder = Annotated[str | None, Option("--embedder", metavar="KIND", help="New embedder. [engine.embedder]")]
Model = Annotated[str | None, Option("--model", metavar="NAME", help="Its model. [engine.embedding_model]")]
Dimension = Annotated[
    int | None, Option("--dimension", min=1, max=4096, help="Its dimension. [engine.embedding_dimension]")
]
DryRun = Annotated[bool, Option("--dry-run", help="Print the amount of work without doing it.")]
_IDS_SHOWN = 10

_SIGNS = {"ok": "ok    ", "note": "note  ", "failed": "FAILED"}

Folder = Annotated[str | None, Argument(metavar="DIR", help="Folder of the judged set.")]
Feedback = Annotated[bool, Option("--feedback", help="Use the feedback of users on the KB as the judged set.")]
Least = Annotated[
    list[str] | None, Option("--min", metavar="FIGURE=VALUE", help="Exit with 1 if a figure is lower. Can be repeated.")
]
Baseline = Annotated[
    Path | None, Option("--baseline", metavar="FILE", help="Exit with 1 if a figure is lower than in this JSON report.")
]
Tolerance = Annotated[float, Option("--tolerance", min=0.0, max=1.0, help="Allowed difference to the baseline.")]
Modes = Annotated[
    list[str] | None, Option("--mode", metavar="MODE", help=f"{', '.join(MODES)}. Can be repeated. [all]")
]
Kb = Annotated[str | None, Option("--kb", metavar="ID", help="Search this KB; do not build one from corpus.jsonl.")]
LimitQueries = Annotated[int | None, Option("--limit-queries", min=1, help="Use the first N queries only.")]
SkipUnknown = Annotated[bool, Option("--skip-unknown", help="Ignore judgements of unknown queries and documents.")]

_COMPACTION_REASONS = {
    "no_compaction_debt": "nothing to do",
    "size_tier": "merged by size",
    "tombstone_pressure": "removed deleted documents",
    "keywords_missing": "added keyword indexes",
}


def compact(context: CliContext, kb: KbName = DEFAULT_KB, everything: All = False) -> None:
    """Merge and re-cluster shards. Searches and writes continue.

    Examples:
      pair compact            # compact the shards that need it
      pair compact --all      # compact every shard
    """
    with context.kb(kb) as opened, context.progress("shard") as progress:
        report = opened.maintenance.compact(everything=everything, on_progress=progress)
    shards = render.pluralize(report.shards_before, "shard")
    line = f"Compacted {shards} into {report.shards_after:,} ({_COMPACTION_REASONS[report.reason]})."
    context.show({"kb_id": kb, **asdict(report)}, line if report.shards_before else "Nothing to compact.")


def collect(context: CliContext, kb: KbName = DEFAULT_KB, grace: Grace = None) -> None:
    """Delete shards that no kept version uses.

    Examples:
      pair gc                 # shards unused for engine.gc_grace_seconds
      pair gc --grace 0       # all unused shards; only if nothing else runs
    """
    with context.kb(kb) as opened:
        report = opened.maintenance.collect(grace_seconds=grace)
    freed = f"Deleted {render.pluralize(report.deleted_shards, 'shard')} ({render.format_size(report.deleted_bytes)})."
    waiting = f" {report.kept_shards:,} more can be deleted after the grace period." if report.kept_shards else ""
    context.show({"kb_id": kb, **asdict(report)}, freed + waiting)


def sweep(context: CliContext, kb: KbName = DEFAULT_KB) -> None:
    """Evict downloaded shards that exceed engine.cache_max_bytes or engine.cache_ttl_seconds.

    Shards in use are kept.

    Examples:
      pair cache sweep
    """
    with context.kb(kb) as opened:
        report = opened.maintenance.sweep()
    evicted = render.pluralize(report.evicted_ttl + report.evicted_size, "shard")
    freed, kept = render.format_size(report.freed_bytes), render.format_size(report.kept_bytes)
    context.show(asdict(report), f"Evicted {evicted} ({freed}); {kept} kept.")


def fsck(
    context: CliContext,
    kb: KbName = DEFAULT_KB,
    repair: Repair = False,
    package: Packages = None,
    drop_lost: DropLost = False,
) -> None:
    """Verify every stored byte of a knowledge base, and repair damage.

    Repairs use the local cache, intact data and synced sources. Searches and writes continue. Without --repair, nothing
    is changed. Exit status: 5 if something is damaged.

    Examples:
      pair fsck                               # verify only
      pair fsck --repair                      # repair damage
      pair fsck --repair --package kb.zip     # also use a package's index
      pair fsck --repair --drop-lost          # delete what is lost
    """
    if drop_lost and not repair:
        raise errors.command_line_invalid(
            "Cannot use --drop-lost without --repair. Nothing was changed.", hints=["pair fsck --repair --drop-lost"]
        )
    with context.kb(kb, with_sources=True) as opened, context.progress("byte") as progress:
        maintenance = opened.maintenance
        report = maintenance.fsck(repair=repair, drop_lost=drop_lost, packages=package or (), on_progress=progress)
    context.show(report.to_json(), *_format_check(report), is_answer=True)
    if not report.is_sound:
        raise typer.Exit(errors.DataError.exit_status)


def reembed(
    context: CliContext,
    kb: KbName = DEFAULT_KB,
    embedder: Embedder = None,
    model: Model = None,
    dimension: Dimension = None,
    dry_run: DryRun = False,
) -> None:
    """Recompute all vectors of a knowledge base with another embedder.

    Searches and writes continue; the new vectors are used when all are ready. After an interruption, the same
    command continues. The command does not edit your configuration; it prints what to change.

    Examples:
      pair reembed --embedder minilm --dry-run    # print the amount of work
      pair reembed --embedder minilm              # use another embedder
      pair reembed --kb support                   # use the configured one
    """
    configured = context.settings()
    wanted = with_embedder(configured, embedder, model, dimension)
    with open_kb(kb, settings=wanted) as opened, context.progress("chunk") as progress:
        report = opened.maintenance.reembed(dry_run=dry_run, on_progress=progress)
    changes = changes_to(configured, wanted)
    value = {"kb_id": kb, "dry_run": dry_run, **asdict(report), "configuration": [asdict(change) for change in changes]}
    context.show(value, _format_reembedding(kb, report, dry_run=dry_run))
    if changes and not context.as_json and not dry_run:
        advice = [f"  • {change.advice}" for change in changes]
        render.print_note(f"Change the configuration; its embedder no longer fits {kb}:", *advice)


def _format_check(report: FsckReport) -> list[str]:
    checked = f"{render.pluralize(report.files, 'file')} in {render.pluralize(report.shards, 'shard')}"
    checked += f", {render.format_size(report.size_bytes)}"
    if not report.faults:
        return [f"{report.kb_id} is intact: {checked}."]
    repaired = sum(fault.is_repaired for fault in report.faults)
    damaged = f"{render.pluralize(len(report.faults), 'file')} damaged, {repaired:,} repaired"
    lines = [line for fault in report.faults for line in _format_fault(fault)]
    return [*lines, f"{report.kb_id}: {damaged} ({checked})."]


def _format_fault(fault: Fault) -> list[str]:
    lines = [f"{fault.key}: {fault.reason} ({render.pluralize(fault.documents, 'document')})"]
    if fault.is_repaired:
        lines.append(f"  repaired from {fault.remedy}" if fault.remedy else "  deleted")
    elif fault.remedy:
        lines.append(f"  can be repaired from {fault.remedy}: pair fsck --repair")
    else:
        lines.append("  cannot be repaired; if you have a package: pair fsck --repair --package FILE.zip")
    if fault.ids:
        more = f" and {len(fault.ids) - _IDS_SHOWN:,} more" if len(fault.ids) > _IDS_SHOWN else ""
        lines.append(f"  lost: {', '.join(fault.ids[:_IDS_SHOWN])}{more}")
    return lines


def _format_reembedding(kb: str, report: ReembedReport, *, dry_run: bool) -> str:
    if report.embedder_before == report.embedder:
        return f"Nothing to do: {kb} already uses {report.embedder}."
    work = f"{render.pluralize(report.embedded, 'text')} with {render.pluralize(report.characters, 'character')}"
    known = f", {render.pluralize(report.kept, 'chunk')} already done" if report.kept else ""
    stored = f"{render.pluralize(report.documents, 'document')}, {render.pluralize(report.chunks, 'chunk')}"
    if dry_run:
        change = f"from {report.embedder_before} to {report.embedder}"
        return f"Would re-embed {kb} ({stored}) {change}: {work}{known}. Nothing was written."
    return f"Re-embedded {kb} ({stored}) with {report.embedder}: {work}{known}."


def evaluate(
    context: CliContext,
    folder: Folder = None,
    modes: Modes = None,
    kb: Kb = None,
    limit_queries: LimitQueries = None,
    skip_unknown: SkipUnknown = False,
    feedback: Feedback = False,
    least: Least = None,
    baseline: Baseline = None,
    tolerance: Tolerance = 0.01,
) -> None:
    """Measure retrieval quality on a judged set of questions.

    A judged set is a folder with corpus.jsonl, queries.jsonl and qrels.tsv. The corpus is stored in a temporary KB with
    your configuration. The report has nDCG@10, recall@10, recall@100, MRR@10 and search times for each mode. With --min
    or --baseline, the command exits with status 1 if a figure is too low, so that it can fail a build.

    Examples:
      pair eval questions/                   # every mode
      pair eval questions/ --mode vector     # one mode
      pair eval questions/ --kb handbook     # search an existing KB
      pair eval questions/ --limit-queries 50 --json
      pair eval --feedback --kb handbook     # by the feedback of users
      pair eval questions/ --mode hybrid --min ndcg@10=0.7 --baseline last.json
    """
    for mode in modes or ():
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode {mode!r}", hints=[f"Use one of: {', '.join(MODES)}"])
    if feedback == (folder is not None):
        raise errors.command_line_invalid(
            "Cannot measure: give either the folder of a judged set or --feedback.", hints=["pair eval --help"]
        )
    figures = parse_least(least or ())
    with files.storage_errors(is_reading=True):
        before = {} if baseline is None else parse_baseline(baseline.read_bytes(), str(baseline))
    if feedback:
        kb = kb or DEFAULT_KB
        with context.kb(kb) as opened:
            opened.version()  # raises E201 if the KB does not exist
            judged = judge_by_feedback(kb, opened.feedback.grades())
    else:
        judged = read_judged_set(folder or "")
    value = _evaluate(context, judged, modes, kb, (limit_queries, skip_unknown or feedback))
    lines = _format_figures(value)
    failures = find_failures(value["modes"], figures, before, tolerance)
    if figures or before:
        value["failures"] = failures
        lines += format_gate(failures)
    context.show(value, *lines, is_answer=True)
    if failures:
        raise typer.Exit(1)


def _evaluate(
    context: CliContext, judged: JudgedSet, modes: list[str] | None, kb: str | None, options: tuple[int | None, bool]
) -> dict[str, Any]:
    """Measure on a temporary KB, or on an existing one. `options`: most queries, skip unknown ids."""
    limit_queries, skip_unknown = options
    if kb is None:
        ids = frozenset(document.id for document in judged.documents())
        selection = judged.select(ids, skip_unknown=skip_unknown, limit=limit_queries)
        with temporary_kb(context.settings()) as opened:
            _fill(context, opened, judged, len(ids))
            value = _measure(context, opened, selection, modes)
    else:
        with context.kb(kb) as opened:
            opened.version()  # as above
            known = opened.existing_ids(judgement.document_id for judgement in judged.judgements)
            selection = judged.select(known, skip_unknown=skip_unknown, limit=limit_queries)
            value = _measure(context, opened, selection, modes)
    if selection.skipped_queries:
        render.print_note(f"Skipped queries without a relevant document: {selection.skipped_queries:,}")
    if selection.skipped_judgements:
        render.print_note(f"Skipped judgements of unknown queries or documents: {selection.skipped_judgements:,}")
    return {"set": judged.name, **value, "kb_id": kb}


def doctor(context: CliContext) -> None:
    """Check the configuration, store, lease, cache, embedder, model and server.

    Each problem comes with a fix. The exit status is that of the first failed check.

    Examples:
      pair doctor
      pair doctor --json
    """
    from pair.kb.doctor import examine  # noqa: PLC0415 - loads what it examines

    checks = {}
    for name, check in examine(context.settings):
        checks[name] = check
        if not context.as_json:
            code = f" ({check.code})" if check.code else ""
            render.print_result(f"{_SIGNS[check.state]} {name:<15} {check.message}{code}")
            for hint in check.hints:
                render.print_result(f"{'':<23}→ {hint}")
    failed = [check for check in checks.values() if check.state == "failed"]
    if context.as_json:
        render.print_json(
            {"ok": not failed, "checks": [{"name": name, **check.to_json()} for name, check in checks.items()]}
        )
    if failed:
        raise typer.Exit(failed[0].exit_status)


def _fill(context: CliContext, kb: KnowledgeBase, judged: JudgedSet, total: int) -> None:
    done = 0
    if not context.as_json:
        render.print_note(f"Storing {render.pluralize(total, 'document')} of {judged.name}")
    with context.progress("document") as progress:

        def note_batch(report: WriteReport) -> None:
            nonlocal done
            done += report.added
            progress(done, total)

        kb.upsert(judged.stored_documents(), on_batch=note_batch)


def _measure(context: CliContext, kb: KnowledgeBase, selection: Selection, modes: list[str] | None) -> dict[str, Any]:
    queries, clock = selection.queries, SystemClock()
    with context.progress("query") as progress:

        def note_query(mode: str, done: int) -> None:
            progress(done, len(queries), mode)

        if modes:
            figures_by_mode = {mode: measure(kb, queries, mode, clock=clock, on_query=note_query) for mode in modes}
            measured = Measured(figures_by_mode, {})
        else:
            measured = measure_all(kb, queries, MODES, clock=clock, on_query=note_query)
    for mode, fault in measured.unavailable.items():
        render.print_note(f"Not measured: {mode}: {fault.message}")
    for mode, figures in measured.modes.items():
        if figures.partial:
            share = f"{figures.partial:,} of {len(queries):,} queries"
            render.print_note(f"Incomplete: {mode}: some shards did not answer {share}")
    stats = kb.stats()
    return {
        "modes": {mode: figures.to_json() for mode, figures in measured.modes.items()},
        "unavailable": {mode: fault.message for mode, fault in measured.unavailable.items()},
        "queries": len(queries),
        "skipped_queries": selection.skipped_queries,
        "skipped_judgements": selection.skipped_judgements,
        "documents": stats.documents,
        "chunks": stats.chunks,
        "embedder": stats.embedder,
    }


def _format_figures(value: dict[str, Any]) -> list[str]:
    counts = [render.pluralize(value[f"{noun}s"], noun) for noun in ("document", "chunk")]
    lines = [f"{value['set']}: {', '.join(counts)}, judged queries: {value['queries']:,}, {value['embedder']}", ""]
    lines.append("mode       nDCG@10  recall@10  recall@100  MRR@10        p50        p99")
    for mode, figures in value["modes"].items():
        ndcg, mrr = f"{figures['ndcg@10']:>7.3f}", f"{figures['mrr@10']:>6.3f}"
        recall = f"{figures['recall@10']:>9.3f}  {figures['recall@100']:>10.3f}"
        times = f"{figures['p50_ms']:>6.1f} ms  {figures['p99_ms']:>6.1f} ms"
        lines.append(f"{mode:<9}  {ndcg}  {recall}  {mrr}  {times}")
    return lines
