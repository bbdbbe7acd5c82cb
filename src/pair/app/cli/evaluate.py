"""pair eval"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.clock import SystemClock
from pair.evaluation.judged_set import JudgedSet, Selection, read_judged_set
from pair.evaluation.measure import Measured, measure, measure_all
from pair.values import MODES

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase

EXAMPLE = """Examples:

\b
  pair eval questions/                     corpus.jsonl, queries.jsonl and qrels.tsv, in every mode
  pair eval questions/ --mode vector       in one
  pair eval questions/ --kb handbook       the documents of a knowledge base, instead of corpus.jsonl
  pair eval questions/ --limit-queries 50 --json"""

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
    context: typer.Context,
    folder: Folder,
    modes: Modes = None,
    kb: Kb = None,
    limit_queries: LimitQueries = None,
    skip_unknown: SkipUnknown = False,
) -> None:
    """Measure how well questions are answered whose answers are known.

    The documents of the set are put into a temporary knowledge base, by your configuration, and every judged query is
    asked in each mode. Prints nDCG@10, recall@10 and @100, MRR@10, and the time of a search.
    """
    session: CliContext = context.obj
    for mode in modes or ():
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
    judged = read_judged_set(folder)
    if kb is None:
        ids = frozenset(document.id for document in judged.documents())
        selection = judged.select(ids, skip_unknown=skip_unknown, limit=limit_queries)
        with session.temporary_kb() as opened:
            _fill(session, opened, judged, len(ids))
            value = _measured(session, opened, selection, modes)
    else:
        with session.kb(kb) as opened:
            known = opened.existing_ids(each.document_id for each in judged.judgements)
            selection = judged.select(known, skip_unknown=skip_unknown, limit=limit_queries)
            value = _measured(session, opened, selection, modes)
    _note_skipped(selection)
    value = {"set": judged.name, **value, "kb_id": kb}
    session.show(value, *_told(value), is_answer=True)


def _fill(session: CliContext, kb: "KnowledgeBase", judged: JudgedSet, total: int) -> None:
    done = 0

    def note_batch(report: object) -> None:
        nonlocal done
        done += getattr(report, "added", 0)
        if not session.as_json:
            render.print_progress(f"{done:,} of {render.counted(total, 'document')} stored")

    if not session.as_json:
        render.print_note(f"storing {render.counted(total, 'document')} of {judged.name}")
    kb.upsert(judged.documents(), on_batch=note_batch)
    render.end_progress()


def _measured(
    session: CliContext, kb: "KnowledgeBase", selection: Selection, modes: list[str] | None
) -> dict[str, Any]:
    queries = selection.queries

    def note_query(mode: str, done: int) -> None:
        if not session.as_json:
            render.print_progress(f"{mode}: {done:,} of {len(queries):,} queries")

    if modes:
        clock = SystemClock()
        figures = {mode: measure(kb, queries, mode, clock=clock, on_query=note_query) for mode in modes}
        measured = Measured(figures, {})
    else:
        measured = measure_all(kb, queries, MODES, clock=SystemClock(), on_query=note_query)
    render.end_progress()
    for mode, fault in measured.unavailable.items():
        render.print_note(f"not measured: {mode}: {fault.message}")
    for mode, each in measured.modes.items():
        if each.partial:
            render.print_note(
                f"partial: {mode}: some shards did not answer {each.partial:,} of {len(queries):,} queries"
            )
    stats = kb.stats()
    return {
        "modes": {mode: each.to_json() for mode, each in measured.modes.items()},
        "unavailable": {mode: fault.message for mode, fault in measured.unavailable.items()},
        "queries": len(queries),
        "skipped_queries": selection.skipped_queries,
        "skipped_judgements": selection.skipped_judgements,
        "documents": stats.documents if stats else 0,
        "chunks": stats.chunks if stats else 0,
        "embedder": stats.embedder if stats else "",
    }


def _note_skipped(selection: Selection) -> None:
    if selection.skipped_queries:
        render.print_note(f"skipped: queries without a relevant document: {selection.skipped_queries:,}")
    if selection.skipped_judgements:
        render.print_note(f"skipped: judgements of unknown queries or documents: {selection.skipped_judgements:,}")


def _told(value: dict[str, Any]) -> list[str]:
    counts = [render.counted(value[f"{noun}s"], noun) for noun in ("document", "chunk")]
    about = f"{', '.join(counts)}, judged queries asked: {value['queries']:,}"
    lines = [f"{value['set']}: {about}, embedder {value['embedder']}", ""]
    lines.append("mode       nDCG@10  recall@10  recall@100  MRR@10        p50        p99")
    for mode, each in value["modes"].items():
        quality = (
            f"{each['ndcg@10']:>7.3f}  {each['recall@10']:>9.3f}  {each['recall@100']:>10.3f}  {each['mrr@10']:>6.3f}"
        )
        lines.append(f"{mode:<9}  {quality}  {each['p50_ms']:>6.1f} ms  {each['p99_ms']:>6.1f} ms")
    return lines
