"""pair eval, pair doctor"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.clock import SystemClock
from pair.evaluation.judged_set import JudgedSet, Selection, read_judged_set
from pair.evaluation.measure import Measured, measure, measure_all
from pair.kb.open import temporary_kb
from pair.values import MODES

if TYPE_CHECKING:
    from pair.engine.write.writer import WriteReport
    from pair.kb.kb import KnowledgeBase

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

    checks = []
    for check in examine(context.settings):
        checks.append(check)
        if not context.as_json:
            code = f" ({check.code})" if check.code else ""
            render.print_result(f"{_SIGNS[check.state]} {check.name:<15} {check.message}{code}")
            for hint in check.hints:
                render.print_result(f"{'':<23}→ {hint}")
    failed = [check for check in checks if check.state == "failed"]
    if context.as_json:
        render.print_json({"ok": not failed, "checks": [check.to_json() for check in checks]})
    if failed:
        raise typer.Exit(failed[0].exit_status)


def _fill(context: CliContext, kb: "KnowledgeBase", judged: JudgedSet, total: int) -> None:
    done = 0

    def note_batch(report: "WriteReport") -> None:
        nonlocal done
        done += report.added
        context.show_progress(f"{done:,} of {render.pluralize(total, 'document')} stored")

    if not context.as_json:
        render.print_note(f"storing {render.pluralize(total, 'document')} of {judged.name}")
    kb.upsert(judged.documents(), on_batch=note_batch)
    render.end_progress()


def _measure(context: CliContext, kb: "KnowledgeBase", selection: Selection, modes: list[str] | None) -> dict[str, Any]:
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
