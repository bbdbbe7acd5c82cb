"""pair compact, gc, cache sweep, fsck, reembed, eval and doctor"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext, KbName
from pair.clock import SystemClock
from pair.engine.backup.fsck import Fault, FsckReport
from pair.engine.maintenance.reembed import ReembedReport
from pair.engine.write.writer import WriteReport
from pair.evaluation.measure import JudgedSet, Measured, Selection, measure, measure_all, read_judged_set
from pair.kb.kb import KnowledgeBase
from pair.kb.maintenance import changes_to, with_embedder
from pair.kb.open import DEFAULT_KB, open_kb, temporary_kb
from pair.values import MODES

All = Annotated[bool, typer.Option("--all", help="Also what is in good order.")]
Grace = Annotated[float | None, typer.Option("--grace", min=0, metavar="SECONDS", help="Instead of the setting's.")]
Repair = Annotated[bool, typer.Option("--repair", help="Repair what can be repaired.")]
Packages = Annotated[
    list[Path] | None,
    typer.Option("--package", metavar="FILE.zip", help="May hold what is damaged here; may be repeated."),
]
DropLost = Annotated[bool, typer.Option("--drop-lost", help="With --repair: give up what cannot be repaired.")]
Embedder = Annotated[
    str | None, typer.Option("--embedder", metavar="KIND", help="As engine.embedder; else the configured one.")
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="As engine.embedding_model.")]
Dimension = Annotated[int | None, typer.Option("--dimension", min=1, max=4096, help="As engine.embedding_dimension.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how much there is to do, and change nothing.")]
_IDS_SHOWN = 10

_SIGNS = {"ok": "ok    ", "note": "note  ", "failed": "FAILED"}

Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the judged set.")]
Modes = Annotated[
    list[str] | None,
    typer.Option("--mode", metavar="MODE", help=f"One of {', '.join(MODES)}; may be repeated. All if not given."),
]
Kb = Annotated[
    str | None,
    typer.Option("--kb", metavar="ID", help="Ask this knowledge base, instead of a temporary one from corpus.jsonl."),
]
LimitQueries = Annotated[
    int | None, typer.Option("--limit-queries", min=1, metavar="N", help="Only the first N queries, for a quick look.")
]
SkipUnknown = Annotated[
    bool, typer.Option("--skip-unknown", help="Leave out judgements of queries or documents that are not there.")
]


def compact(context: CliContext, kb: KbName = DEFAULT_KB, everything: All = False) -> None:
    """Merge and re-cluster shards. Readers and writers go on meanwhile.

    Examples:
      pair compact            what is worth it
      pair compact --all      everything, clustered anew
    """

    def note(done: int, total: int) -> None:
        context.show_progress(f"{done} of {render.pluralize(total, 'shard')}")

    with context.kb(kb) as opened:
        report = opened.maintenance.compact(everything=everything, on_progress=note)
    render.end_progress()
    line = f"{report.shards_before} shards became {report.shards_after}: {report.reason.replace('_', ' ')}"
    context.show({"kb_id": kb, **asdict(report)}, line if report.shards_before else "nothing to compact")


def collect(context: CliContext, kb: KbName = DEFAULT_KB, grace: Grace = None) -> None:
    """Delete shards that no manifest names any more.

    Examples:
      pair gc                 shards that nobody has named for engine.gc_grace_seconds
      pair gc --grace 0       all of them, when nobody reads or writes
    """
    with context.kb(kb) as opened:
        report = opened.maintenance.collect(grace_seconds=grace)
    freed = f"deleted {render.pluralize(report.deleted_shards, 'shard')}, {render.format_size(report.deleted_bytes)}"
    waiting = f"; {report.kept_shards} more when their time has come" if report.kept_shards else ""
    context.show({"kb_id": kb, **asdict(report)}, freed + waiting)


def sweep(context: CliContext, kb: KbName = DEFAULT_KB) -> None:
    """Evict fetched shards that are too old or too many.

    Examples:
      pair cache sweep        down to engine.cache_max_bytes, without what is in use
    """
    with context.kb(kb) as opened:
        report = opened.maintenance.sweep()
    evicted = render.pluralize(report.evicted_ttl + report.evicted_size, "shard")
    freed, kept = render.format_size(report.freed_bytes), render.format_size(report.kept_bytes)
    context.show(asdict(report), f"evicted {evicted}, {freed}; {kept} kept")


def fsck(
    context: CliContext,
    kb: KbName = DEFAULT_KB,
    repair: Repair = False,
    package: Packages = None,
    drop_lost: DropLost = False,
) -> None:
    """Verify every byte that a knowledge base is made of, and repair what can be repaired.

    Readers and writers go on meanwhile. Without --repair nothing is changed; without --drop-lost nothing is given up.

    Examples:
      pair fsck                                   verify every byte; exit status 5 if something is damaged
      pair fsck --repair                          from the cache, from what is left, from synced sources
      pair fsck --repair --package kb.zip         also from a package with an index
      pair fsck --repair --drop-lost              and give up what cannot be repaired
    """
    if drop_lost and not repair:
        raise errors.command_line_invalid("--drop-lost goes with --repair", hints=["pair fsck --help"])

    def note(done: int, total: int) -> None:
        context.show_progress(f"{render.format_size(done)} of {render.format_size(total)}")

    with context.kb(kb, with_sources=True) as opened:
        report = opened.maintenance.fsck(repair=repair, drop_lost=drop_lost, packages=package or (), on_progress=note)
    render.end_progress()
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
    """Give all that is stored vectors of another embedder. Readers and writers go on meanwhile.

    What was interrupted goes on where it stopped. The configuration is yours to change: what to change is told.

    Examples:
      pair reembed --embedder minilm --dry-run    how much there is to embed
      pair reembed --embedder minilm              vectors of another embedder, swapped in at the end
      pair reembed --kb support                   vectors of the embedder that is configured by now
    """
    configured = context.settings()
    wanted = with_embedder(configured, embedder, model, dimension)
    progress = render.CountProgress("chunk", is_quiet=context.as_json)
    with open_kb(kb, settings=wanted) as opened:
        report = opened.maintenance.reembed(dry_run=dry_run, on_progress=progress)
    render.end_progress()
    changes = changes_to(configured, wanted)
    value = {"kb_id": kb, "dry_run": dry_run, **asdict(report), "configuration": [asdict(change) for change in changes]}
    context.show(value, _format_reembedding(kb, report, dry_run=dry_run))
    if changes and not context.as_json and not dry_run:
        advice = [f"  • {change.advice}" for change in changes]
        render.print_note("the configuration still names another embedder, which is refused from now on:", *advice)


def _format_check(report: FsckReport) -> list[str]:
    checked = f"{render.pluralize(report.files, 'file')} in {render.pluralize(report.shards, 'shard')}"
    checked += f", {render.format_size(report.size_bytes)}"
    if not report.faults:
        return [f"{report.kb_id} is sound: {checked}"]
    repaired = sum(fault.is_repaired for fault in report.faults)
    damaged = f"{render.pluralize(len(report.faults), 'file')} damaged, {repaired} repaired"
    lines = [line for fault in report.faults for line in _format_fault(fault)]
    return [*lines, f"{report.kb_id}: {damaged} ({checked})"]


def _format_fault(fault: Fault) -> list[str]:
    lines = [f"{fault.key}: {fault.reason} ({render.pluralize(fault.documents, 'document')})"]
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


def _format_reembedding(kb: str, report: ReembedReport, *, dry_run: bool) -> str:
    if report.embedder_before == report.embedder:
        return f"nothing to do: {kb} has vectors of {report.embedder}"
    work = f"{render.pluralize(report.embedded, 'text')} of {render.pluralize(report.characters, 'character')}"
    known = f", {render.pluralize(report.kept, 'chunk')} had one already" if report.kept else ""
    stored = f"{render.pluralize(report.documents, 'document')}, {render.pluralize(report.chunks, 'chunk')}"
    if dry_run:
        return f"{kb} ({stored}) from {report.embedder_before} to {report.embedder}: {work} to embed{known}"
    return f"re-embedded {kb} ({stored}) with {report.embedder}: {work} embedded{known}"


def evaluate(
    context: CliContext,
    folder: Folder,
    modes: Modes = None,
    kb: Kb = None,
    limit_queries: LimitQueries = None,
    skip_unknown: SkipUnknown = False,
) -> None:
    """Measure how well questions are answered whose answers are known.

    The documents of the set are put into a temporary knowledge base, by your configuration, and every judged query is
    asked in each mode. Prints nDCG@10, recall@10 and @100, MRR@10, and the time of a search.

    Examples:
      pair eval questions/                     corpus.jsonl, queries.jsonl and qrels.tsv, in every mode
      pair eval questions/ --mode vector       in one
      pair eval questions/ --kb handbook       the documents of a knowledge base, instead of corpus.jsonl
      pair eval questions/ --limit-queries 50 --json
    """
    for mode in modes or ():
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
    judged = read_judged_set(folder)
    if kb is None:
        ids = frozenset(document.id for document in judged.documents())
        selection = judged.select(ids, skip_unknown=skip_unknown, limit=limit_queries)
        with temporary_kb(context.settings()) as opened:
            _fill(context, opened, judged, len(ids))
            value = _measure(context, opened, selection, modes)
    else:
        with context.kb(kb) as opened:
            known = opened.existing_ids(judgement.document_id for judgement in judged.judgements)
            selection = judged.select(known, skip_unknown=skip_unknown, limit=limit_queries)
            value = _measure(context, opened, selection, modes)
    if selection.skipped_queries:
        render.print_note(f"skipped: queries without a relevant document: {selection.skipped_queries:,}")
    if selection.skipped_judgements:
        render.print_note(f"skipped: judgements of unknown queries or documents: {selection.skipped_judgements:,}")
    value = {"set": judged.name, **value, "kb_id": kb}
    context.show(value, *_format_figures(value), is_answer=True)


def doctor(context: CliContext) -> None:
    """Check configuration, store, lease, cache, embedder, model and server, and say what to do.

    Exits with the status of the first check that failed.

    Examples:
      pair doctor                    every part that is configured, tried once
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

    def note_batch(report: WriteReport) -> None:
        nonlocal done
        done += report.added
        context.show_progress(f"{done:,} of {render.pluralize(total, 'document')} stored")

    if not context.as_json:
        render.print_note(f"storing {render.pluralize(total, 'document')} of {judged.name}")
    kb.upsert(judged.documents(), on_batch=note_batch)
    render.end_progress()


def _measure(context: CliContext, kb: KnowledgeBase, selection: Selection, modes: list[str] | None) -> dict[str, Any]:
    queries, clock = selection.queries, SystemClock()

    def note_query(mode: str, done: int) -> None:
        context.show_progress(f"{mode}: {done:,} of {len(queries):,} queries")

    if modes:
        measured = Measured({mode: measure(kb, queries, mode, clock=clock, on_query=note_query) for mode in modes}, {})
    else:
        measured = measure_all(kb, queries, MODES, clock=clock, on_query=note_query)
    render.end_progress()
    for mode, fault in measured.unavailable.items():
        render.print_note(f"not measured: {mode}: {fault.message}")
    for mode, figures in measured.modes.items():
        if figures.partial:
            share = f"{figures.partial:,} of {len(queries):,} queries"
            render.print_note(f"partial: {mode}: some shards did not answer {share}")
    stats = kb.stats()
    return {
        "modes": {mode: figures.to_json() for mode, figures in measured.modes.items()},
        "unavailable": {mode: fault.message for mode, fault in measured.unavailable.items()},
        "queries": len(queries),
        "skipped_queries": selection.skipped_queries,
        "skipped_judgements": selection.skipped_judgements,
        "documents": stats.documents if stats else 0,
        "chunks": stats.chunks if stats else 0,
        "embedder": stats.embedder if stats else "",
    }


def _format_figures(value: dict[str, Any]) -> list[str]:
    counts = [render.pluralize(value[f"{noun}s"], noun) for noun in ("document", "chunk")]
    about = f"{', '.join(counts)}, judged queries asked: {value['queries']:,}"
    lines = [f"{value['set']}: {about}, embedder {value['embedder']}", ""]
    lines.append("mode       nDCG@10  recall@10  recall@100  MRR@10        p50        p99")
    for mode, figures in value["modes"].items():
        ndcg, mrr = f"{figures['ndcg@10']:>7.3f}", f"{figures['mrr@10']:>6.3f}"
        recall = f"{figures['recall@10']:>9.3f}  {figures['recall@100']:>10.3f}"
        times = f"{figures['p50_ms']:>6.1f} ms  {figures['p99_ms']:>6.1f} ms"
        lines.append(f"{mode:<9}  {ndcg}  {recall}  {mrr}  {times}")
    return lines
