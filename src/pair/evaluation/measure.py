"""Measure the quality and speed of search on judged queries: nDCG, recall, reciprocal rank, times; and compare them.

A judged set has documents, queries, and judgements that say which document answers which query:

    corpus.jsonl     {"id": ..., "text": ..., "title": ...} per line; url and metadata are optional
    queries.jsonl    {"id": ..., "text": ...} per line
    qrels.tsv        query id, document id, relevance, separated by tabs; relevant if above 0

Other fields are ignored. As in published sets, `_id` may replace `id`, and qrels.tsv may begin with headings.

A document has the rank of its best chunk. The time is that of a search for ten chunks; the ranking comes from a
deeper search that is not timed.

Invariants
    A ranking names a document once. Grades are above 0, and there is at least one.
    Every figure of a ranking is between 0 and 1, and grows when a relevant document moves up.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pair import errors, files
from pair.clock import Clock
from pair.values import Document, SearchOptions

if TYPE_CHECKING:
    from pair.values import Hits

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels.tsv"
_HEADINGS = frozenset({"score", "relevance", "rel"})
_SHOWN = 10
_DEPTH = 100
_FIRST_CHUNKS = 200
"""Number of hits to request first. It doubles while the hits name too few documents."""

_ALL_HITS = SearchOptions(allow_weak=True)
"""Options that return the whole ranking, even if none of its hits seems relevant."""

Grades = Mapping[str, float]
"""The relevance of each relevant document."""


@dataclass(frozen=True, slots=True)
class Judgement:
    query_id: str
    document_id: str
    grade: float


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    text: str
    grades: Grades


@dataclass(frozen=True, slots=True)
class Selection:
    """The queries to ask, and the number of queries and judgements that were left out."""

    queries: tuple[JudgedQuery, ...]
    skipped_queries: int
    """Queries without a relevant document."""
    skipped_judgements: int
    """Judgements of unknown queries or documents."""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """A judged set: queries and judgements in memory, documents on disk."""

    folder: Path
    queries: Mapping[str, str]
    judgements: Sequence[Judgement]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def documents(self) -> Iterator[Document]:
        """Yield the documents, read from disk. Raises E501, E502."""
        for where, value in _read_objects(_require_file(self.folder, CORPUS)):
            title, url, metadata = value.get("title") or "", value.get("url") or "", value.get("metadata") or {}
            if not (isinstance(title, str) and isinstance(url, str) and isinstance(metadata, dict)):
                raise errors.judged_set_invalid(where, "title and url must be strings, and metadata an object")
            yield Document(id=value["id"], text=value["text"], title=title, url=url, metadata=metadata)

    def stored_documents(self) -> Iterator[Document]:
        """Return the documents that a KB can store: published sets hold blank ones. Raises E501, E502."""
        return (document for document in self.documents() if document.text.strip())

    def select(self, known: Collection[str], *, skip_unknown: bool = False, limit: int | None = None) -> Selection:
        """Return the queries that have a relevant document, in order. Raises E503, and E502 when there are none."""
        path = self.folder / JUDGEMENTS
        unknown = {
            "queries": [item.query_id for item in self.judgements if item.query_id not in self.queries],
            "documents": [item.document_id for item in self.judgements if item.document_id not in known],
        }
        for what, ids in unknown.items():
            if ids and not skip_unknown:
                raise errors.judgements_unmatched(str(path), what, len(ids), list(dict.fromkeys(ids)))
        grades: dict[str, dict[str, float]] = {}
        used = [item for item in self.judgements if item.query_id in self.queries and item.document_id in known]
        for judgement in used:
            grades.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
        if not grades:
            reason = "no judgement names a known query and a known document" if self.judgements else "no judgements"
            raise errors.judged_set_invalid(str(path), reason)
        queries = [JudgedQuery(text, grades[name]) for name, text in self.queries.items() if name in grades]
        return Selection(tuple(queries[:limit]), len(self.queries) - len(queries), len(self.judgements) - len(used))


def read_judged_set(folder: str | Path) -> JudgedSet:
    """Read the queries and judgements of a set. Raises E501 for a missing file, E502 for an invalid line."""
    place = Path(folder)
    queries_path, judgements_path = _require_file(place, QUERIES), _require_file(place, JUDGEMENTS)
    queries: dict[str, str] = {}
    for where, value in _read_objects(queries_path):
        if not value["text"].strip():
            raise errors.judged_set_invalid(where, "text is empty")
        queries[value["id"]] = value["text"]
    return JudgedSet(place, queries, _read_judgements(judgements_path))


def judge_by_feedback(name: str, grades: Mapping[str, Grades]) -> JudgedSet:
    """Return the judgements of users as a set without documents. `grades`: the relevant documents of each query."""
    queries = {str(number): query for number, query in enumerate(grades, 1)}
    judgements = [
        Judgement(number, document_id, grade)
        for number, query in queries.items()
        for document_id, grade in grades[query].items()
    ]
    return JudgedSet(Path(f"feedback on {name}"), queries, judgements)


def is_judged_set(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (CORPUS, QUERIES, JUDGEMENTS))


def _require_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise errors.judged_set_missing(str(path), "the file" if folder.is_dir() else "the folder")
    return path


def _read_judgements(path: Path) -> list[Judgement]:
    """Return the judgements of relevant documents."""
    grades: dict[tuple[str, str], float] = {}
    for number, line in _read_lines(path):
        where, fields = f"{path}:{number}", [field.strip() for field in line.split("\t")]
        if len(fields) != 3 or not all(fields):
            raise errors.judged_set_invalid(where, "a line is query id, tab, document id, tab, relevance")
        query_id, document_id, word = fields
        if number == 1 and word.lower() in _HEADINGS:
            continue
        try:
            grade = float(word)
        except ValueError:
            grade = math.nan
        if not math.isfinite(grade):
            raise errors.judged_set_invalid(where, f"relevance is not a number: {word}")
        if grades.setdefault((query_id, document_id), grade) != grade:
            raise errors.judged_set_invalid(where, f"{document_id} was judged otherwise for {query_id} before")
    return [Judgement(query_id, document_id, grade) for (query_id, document_id), grade in grades.items() if grade > 0]


def _read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield JSON objects with a unique id and a text, each with its file and line."""
    seen: set[str] = set()
    for number, line in _read_lines(path):
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise errors.judged_set_invalid(where, "the line is not JSON") from fault
        if not isinstance(value, dict):
            raise errors.judged_set_invalid(where, "the line is not a JSON object")
        value["id"] = value.get("id", value.get("_id"))
        if not (isinstance(value["id"], str) and value["id"] and isinstance(value.get("text"), str)):
            raise errors.judged_set_invalid(where, "id and text are required and must be strings")
        if value["id"] in seen:
            raise errors.judged_set_invalid(where, f"duplicate id: {value['id']}")
        seen.add(value["id"])
        yield where, value


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    with files.storage_errors(), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as fault:
                raise errors.judged_set_invalid(f"{path}:{number}", "the line is not UTF-8") from fault
            if text.strip():
                yield number, text


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────


class Searchable(Protocol):
    """A KB that can be searched."""

    def search(self, query: str, *, limit: int, mode: str, options: SearchOptions | None = None) -> "Hits": ...


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """The figures of one mode: means over all queries, and percentiles of times."""

    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    mrr_at_10: float
    p50_ms: float
    p99_ms: float
    partial: int
    """Queries that some shard did not answer. They distort the figures."""

    def to_json(self) -> dict[str, Any]:
        digits = {"p50_ms": 3, "p99_ms": 3}
        return {name.replace("_at_", "@"): round(value, digits.get(name, 6)) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Measured:
    modes: dict[str, QualityFigures]
    unavailable: dict[str, errors.NotFoundError]
    """Modes for which the KB has no data."""


def measure_all(
    kb: Searchable,
    queries: Sequence[JudgedQuery],
    modes: Iterable[str],
    *,
    clock: Clock,
    on_query: Callable[[str, int], None] = lambda mode, done: None,
) -> Measured:
    """Measure every mode for which the KB has data. Raises the first error if there is none."""
    measured = Measured({}, {})
    for mode in modes:
        try:
            measured.modes[mode] = measure(kb, queries, mode, clock=clock, on_query=on_query)
        except errors.NotFoundError as fault:
            measured.unavailable[mode] = fault
    if not measured.modes:
        raise next(iter(measured.unavailable.values()))
    return measured


def measure(
    kb: Searchable,
    queries: Sequence[JudgedQuery],
    mode: str,
    *,
    clock: Clock,
    on_query: Callable[[str, int], None] = lambda mode, done: None,
) -> QualityFigures:
    # The first search loads models and shards, which is not part of its time.
    kb.search(queries[0].text, limit=_SHOWN, mode=mode)
    judged: list[tuple[list[str], Grades]] = []
    times_ms: list[float] = []
    partial = 0
    for done, query in enumerate(queries, 1):
        began = clock.monotonic()
        kb.search(query.text, limit=_SHOWN, mode=mode)
        times_ms.append((clock.monotonic() - began) * 1000)
        ranking, is_partial = _rank_documents(kb, query.text, mode)
        judged.append((ranking, query.grades))
        partial += is_partial
        on_query(mode, done)
    return QualityFigures(
        ndcg_at_10=mean([ndcg(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_10=mean([recall(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_100=mean([recall(ranking, grades, 100) for ranking, grades in judged]),
        mrr_at_10=mean([reciprocal_rank(ranking, grades, 10) for ranking, grades in judged]),
        p50_ms=percentile(times_ms, 50),
        p99_ms=percentile(times_ms, 99),
        partial=partial,
    )


def _rank_documents(kb: Searchable, text: str, mode: str) -> tuple[list[str], bool]:
    """Return the best 100 documents, or all matches, and whether a shard did not answer."""
    limit, hits_before = _FIRST_CHUNKS, -1
    while True:
        hits = kb.search(text, limit=limit, mode=mode, options=_ALL_HITS)
        ranking = list(dict.fromkeys(hit.document_id for hit in hits))
        if len(ranking) >= _DEPTH or len(hits) == hits_before:
            return ranking, hits.partial
        limit, hits_before = limit * 2, len(hits)


def ndcg(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return the discounted gain of the first k as a share of the best possible; the gain is the grade (trec_eval)."""
    best = sorted(grades.values(), reverse=True)[:k]
    return _sum_gains([grades.get(document_id, 0.0) for document_id in ranking[:k]]) / _sum_gains(best)


def recall(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return the share of the relevant documents that are among the first k."""
    return sum(document_id in grades for document_id in ranking[:k]) / len(grades)


def reciprocal_rank(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return one over the rank of the first relevant document; 0 if it is not among the first k."""
    ranks = (rank for rank, document_id in enumerate(ranking[:k], 1) if document_id in grades)
    return 1.0 / next(ranks, math.inf)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the lowest value that this percentage of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _sum_gains(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


# ── minimum values and earlier reports ────────────────────────────────────────────────────────────────

FIGURES = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
_LEAST = re.compile(r"\s*([a-z]+@\d+)\s*=\s*([0-9.]+)\s*")
Figures = Mapping[str, Mapping[str, float]]
"""The figures of each mode, as in the JSON report of `pair eval`."""


def parse_least(given: Sequence[str]) -> dict[str, float]:
    """Parse least values such as `ndcg@10=0.7`. Raises E402."""
    least: dict[str, float] = {}
    for text in given:
        match = _LEAST.fullmatch(text.lower())
        try:
            value = float(match[2]) if match else -1.0
        except ValueError:
            value = -1.0
        if match is None or match[1] not in FIGURES or not 0.0 <= value <= 1.0:
            raise errors.command_line_invalid(
                f"Cannot use --min {text}: it must be FIGURE=NUMBER, with a number from 0 to 1.",
                hints=["pair eval questions/ --min ndcg@10=0.7", f"Figures: {', '.join(FIGURES)}"],
            )
        least[match[1]] = value
    return least


def parse_baseline(content: bytes, name: str) -> Figures:
    """Return the figures of an earlier report of `pair eval --json`. Raises E502."""
    try:
        modes = json.loads(content)["modes"]
        figures = {
            str(mode): {figure: float(values[figure]) for figure in FIGURES if figure in values}
            for mode, values in modes.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.judged_set_invalid(name, "not a report of pair eval --json") from fault
    return figures


def find_failures(
    measured: Figures, least: Mapping[str, float], baseline: Figures, tolerance: float
) -> list[dict[str, Any]]:
    """Return the figures of measured modes below a least value, or below the baseline by more than the tolerance."""
    failures: list[dict[str, Any]] = []
    for mode, values in measured.items():
        limits = [(figure, wanted, wanted, "min") for figure, wanted in least.items()]
        limits += [(figure, old, old - tolerance, "baseline") for figure, old in baseline.get(mode, {}).items()]
        failures += [
            {"mode": mode, "figure": figure, "value": values[figure], "wanted": wanted, "rule": rule}
            for figure, wanted, lowest, rule in limits
            if values[figure] < lowest
        ]
    return failures


def format_gate(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a report."""
    if not failures:
        return ["", "Passed: no figure is below its minimum or the baseline."]
    lines = ["", f"Failed: {len(failures)} {'figure is' if len(failures) == 1 else 'figures are'} too low."]
    for failure in failures:
        against = "the minimum" if failure["rule"] == "min" else "the baseline"
        figure = f"  {failure['mode']:<9} {failure['figure']:<10} {failure['value']:.3f}"
        lines.append(f"{figure}, {against} is {failure['wanted']:.3f}")
    return lines
