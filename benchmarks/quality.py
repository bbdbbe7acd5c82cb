"""How good is retrieval on judged sets, in each mode and with each embedder?

    python benchmarks/quality.py FOLDER [--embedder NAME ...] [--set NAME ...] [--limit-queries N]

FOLDER has judged sets, each a folder in the format of `pair eval`. Settings are the defaults except for the embedder.
The benchmark prints a table for each embedder, with the goals of some sets and the missed goals.
"""

import argparse
import dataclasses
import sys
import time
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair.clock import SystemClock
from pair.evaluation.measure import QualityFigures, is_judged_set, measure_all, read_judged_set
from pair.kb.open import temporary_kb
from pair.settings import Settings
from pair.values import MODES

COLUMNS = ("keyword", "vector", "hybrid", "graph", "adaptive")
SLACK = 0.005
"""The tolerance by which adaptive may be below hybrid."""


@dataclass(frozen=True)
class Goal:
    mode: str
    figure: str
    least: dict[str, float]
    """The minimum value by embedder."""


GOALS = {
    "scifact": [Goal("hybrid", "ndcg@10", {"static": 0.715, "minilm": 0.745})],
    "nfcorpus": [Goal("hybrid", "ndcg@10", {"static": 0.345, "minilm": 0.365})],
    "cranfield": [Goal("hybrid", "ndcg@10", {"static": 0.40, "minilm": 0.44})],
    "hotpot_dev500": [Goal("hybrid", "ndcg@10", {"static": 0.81, "minilm": 0.85})],
    "musique_train100": [
        Goal("adaptive", "ndcg@10", {"static": 0.62, "minilm": 0.73}),
        Goal("adaptive", "recall@10", {"static": 0.70, "minilm": 0.81}),
    ],
}

Result = dict[str, QualityFigures]
"""The figures by mode."""


def embedders() -> tuple[str, ...]:
    """Return all embedders that the settings allow."""
    engine = next(field for field in dataclasses.fields(Settings) if field.name == "engine")
    return typing.get_args(typing.get_type_hints(engine.default_factory)["embedder"])


def measured(folder: Path, settings: Settings, limit: int | None) -> Result:
    judged = read_judged_set(folder)
    ids = frozenset(document.id for document in judged.documents())
    queries = judged.select(ids, limit=limit).queries
    began = time.perf_counter()
    with temporary_kb(settings) as kb:
        kb.upsert(judged.stored_documents())
        stored = time.perf_counter()
        result = measure_all(kb, queries, MODES, clock=SystemClock()).modes
    said = f"{len(ids):,} documents stored in {stored - began:.1f} s, {len(queries):,} queries"
    print(f"{judged.name}: {said} in {time.perf_counter() - stored:.1f} s", file=sys.stderr)
    return result


def figure(result: Result, mode: str, name: str) -> float | None:
    return result[mode].to_json()[name] if mode in result else None


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def columns() -> list[str]:
    return [mode for mode in COLUMNS if mode in MODES]


def heading(embedder: str) -> str:
    lines = (
        f"### {embedder}: nDCG@10 / recall@10, and p50",
        "",
        f"| set | {' | '.join(columns())} | goal |",
        f"|---|{'---|' * len(columns())}---|",
    )
    return "\n".join(lines)


def row(embedder: str, name: str, result: Result) -> str:
    cells = [
        f"{shown(figure(result, mode, 'ndcg@10'))} / {shown(figure(result, mode, 'recall@10'))}, "
        f"{result[mode].p50_ms:.1f} ms"
        if mode in result
        else "–"
        for mode in columns()
    ]
    goals = [
        f"{goal.mode} {goal.figure} ≥ {goal.least[embedder]:.3f}"
        for goal in GOALS.get(name, [])
        if embedder in goal.least
    ]
    return f"| {name} | {' | '.join(cells)} | {'; '.join(goals) or '–'} |"


@dataclass(frozen=True)
class Check:
    claim: str
    reached: float
    least: float


def checks(embedder: str, results: dict[str, Result]) -> Iterator[Check]:
    """Return the checks of goals, and of modes that must not be below another one.

    Modes that were not measured are left out.
    """
    pairs = (("hybrid", "keyword", 0.0), ("hybrid", "vector", 0.0), ("adaptive", "hybrid", SLACK))
    for name, result in results.items():
        for goal in GOALS.get(name, []):
            reached, least = figure(result, goal.mode, goal.figure), goal.least.get(embedder)
            if reached is not None and least is not None:
                yield Check(f"{name}: {goal.mode} {goal.figure} reaches its goal", reached, least)
        for upper, lower, slack in pairs:
            for of in ("ndcg@10", "recall@10"):
                high, low = figure(result, upper, of), figure(result, lower, of)
                if high is not None and low is not None:
                    yield Check(f"{name}: {upper} {of} is not below {lower}", high, low - slack)


def verdict(checked: Sequence[Check]) -> Iterator[str]:
    missed = [each for each in checked if each.reached < each.least]
    yield f"{len(checked) - len(missed)} of {len(checked)} checks hold{'; these do not:' if missed else ''}"
    for each in missed:
        yield f"- {each.claim}: {each.reached:.4f}, {each.least - each.reached:.4f} too low"


def main(arguments: Sequence[str] | None = None) -> int:
    known = embedders()
    usual = [name for name in known if name in {"static", "minilm"}] or list(known)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedder", nargs="+", choices=known, default=usual)
    parser.add_argument("--set", nargs="+", dest="sets", help="only these")
    parser.add_argument("--limit-queries", type=int, help="only the first of each set, for a quick look")
    given: Any = parser.parse_args(arguments)
    folders = [path for path in sorted(given.folder.iterdir()) if is_judged_set(path)]
    folders = [path for path in folders if given.sets is None or path.name in given.sets]
    if not folders:
        parser.error(f"no judged sets in {given.folder}")
    for embedder in given.embedder:
        engine = dataclasses.replace(Settings().engine, embedder=embedder)
        settings = Settings(engine=engine)
        results: dict[str, Result] = {}
        print(heading(embedder), flush=True)
        for path in folders:
            results[path.name] = measured(path, settings, given.limit_queries)
            print(row(embedder, path.name, results[path.name]), flush=True)
        print("\n" + "\n".join(verdict(list(checks(embedder, results)))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
