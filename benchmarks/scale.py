"""How does building scale with workers? For readers see scale_reading.py.

    python benchmarks/scale.py FOLDER [--documents N] [--rounds N] [--only NAME ...]

`build`: texts of FOLDER/corpus.jsonl (JSON lines with title and text) are cut, embedded and indexed, without a graph:
by one process in batches, by local workers, and by workers of a running Ray. For comparison, the embedder alone runs on
one thread per core. Each variant runs in a separate process, in rounds. The fastest round counts, because other load
only adds time. *Computed* is the CPU time of all cores, which depends less on other load.
"""

import argparse
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import in_a_process
from retrieval import CORES, Data, data_of, documents_of, embedded, opened, texts_in


def computed() -> float:
    """Return the CPU seconds of this process and all its descendants."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            # The time of the process, and of the children that it has waited for.
            seconds[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(seconds[process] for process in family if process in seconds)


def plain(folder: Path, data: Data, _workers: int) -> dict[str, float]:
    with opened(folder, "off") as kb:
        began, before = time.perf_counter(), computed()
        kb.upsert(documents_of(data))
        return {"seconds": time.perf_counter() - began, "computed": computed() - before}


def _built(kind: Any, folder: Path, data: Data, workers: int) -> dict[str, float]:
    from pair.kb.ingest import runner
    from retrieval import settings_of

    began = time.perf_counter()
    with opened(folder, "off") as kb, runner(kind, "bench", settings_of(folder, "off"), workers) as crew:
        started = time.perf_counter() - began
        began, before = time.perf_counter(), computed()
        kb.maintenance.build(documents_of(data), crew)
        return {"seconds": time.perf_counter() - began, "computed": computed() - before, "started": started}


def local(folder: Path, data: Data, workers: int) -> dict[str, float]:
    return _built("local", folder, data, workers)


def ray(folder: Path, data: Data, workers: int) -> dict[str, float]:
    return _built("ray", folder, data, workers)


WAYS: dict[str, tuple[Callable[[Path, Data, int], dict[str, float]], int]] = {
    "plain": (plain, 1),
    "local, 1 worker": (local, 1),
    "local, 2 workers": (local, 2),
    "ray, 1 worker": (ray, 1),
    "ray, 2 workers": (ray, 2),
}


def build(folder: Path, data: Data, rounds: int, only: list[str]) -> None:
    print(f"\n## Building: {len(data.pieces):,} chunks of {len(data.texts):,} documents\n")
    bare = f"the embedder alone, {CORES} threads"
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        figures = {bare: in_a_process(embedded, data)}
        for name, (way, workers) in WAYS.items():
            if not only or name in only:
                figures[name] = in_a_process(way, folder / f"{name}-{number}", data, workers)
        for name, each in figures.items():
            if name not in best or each["seconds"] < best[name]["seconds"]:
                best[name] = each
    print("| | seconds | computed | to start Ray | chunks/s | of the embedder alone |")
    print("|---|---|---|---|---|---|")
    for name, each in best.items():
        seconds, started = each["seconds"], each.get("started", 0.0)
        start = f"{started:.1f}" if name.startswith("ray") else ""
        rate, share = len(data.pieces) / seconds, best[bare]["seconds"] / seconds
        busy = f"{each['computed']:.1f}" if "computed" in each else ""
        print(f"| {name} | {seconds:.1f} | {busy} | {start} | {rate:,.0f} | {share:.2f} |", flush=True)
    for fast, slow, aim in (
        ("local, 2 workers", "local, 1 worker", ""),
        ("ray, 2 workers", "ray, 1 worker", " (aim: at least 1.5)"),
        ("local, 2 workers", "ray, 2 workers", " (aim: at least 0.8, which is at most 25 % more for Ray)"),
        ("local, 2 workers", "plain", ""),
    ):
        if fast in best and slow in best:
            ratio = best[slow]["seconds"] / best[fast]["seconds"]
            shown = 1 / ratio if slow == "ray, 2 workers" else ratio
            print(f"\n{fast} against {slow}: {shown:.2f}{aim}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with a corpus.jsonl")
    parser.add_argument("--documents", type=int, help="fewer, for a quick look")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help=f"some of: {', '.join(WAYS)}")
    given = parser.parse_args()
    data = data_of(itertools.islice(texts_in(given.folder / "corpus.jsonl"), given.documents))
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        build(Path(name), data, given.rounds, given.only)


if __name__ == "__main__":
    main()
