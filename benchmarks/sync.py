"""What does a sync cost: without changes, for a first build, and for slow pages?

    python benchmarks/sync.py [--rounds N]

Ratios compare medians that are measured in turns in one run. The growth of a first build is an exponent (1 is linear).
"""

import argparse
import contextlib
import dataclasses
import functools
import math
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from pair.ai.summariser import ExtractiveSummariser
from pair.clock import SystemClock
from pair.kb.open import open_reader
from pair.kb.sync import SilentSyncObserver, SyncService
from pair.settings import Settings
from pair.sync.collection import CollectionSettings
from pair.sync.discover import NamedCollection, SyncPaths
from pair.sync.pages import WebPages
from pair.sync.report import SyncReport
from pair.sync.rules import FileSeen, SyncSettings
from pair.sync.run import SyncDependencies, SyncRun
from pair.sync.state import Record, SyncState, record_to_json
from sources import medians, show, timed, walk

LATENCY_SECONDS = 0.1
URLS = 200


class InstantSummariser:
    model_calls = 0

    def summarise(self, source_id: str, text: str) -> str:
        return f"About {source_id}.\n{text[:200]}"


class UnsavedStore:
    """A store that keeps the state in memory, to measure a run without saving."""

    def __init__(self) -> None:
        self.state = SyncState()
        self.bytes_written = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def read_settled_head(self) -> None:
        return None

    def settle(self, fingerprint: str) -> None:
        self.state.settled = fingerprint

    def note_problems(self, problems: dict[str, str]) -> None:
        self.state.problems = problems

    def note_reader(self, version: int, readers: list[str]) -> None:
        self.state.reader_version, self.state.readers = version, readers

    def note_interval(self, seconds: float) -> None:
        self.state.interval_seconds = seconds

    def put(self, record: Record) -> None:
        self.state.sources[record.source_id] = record_to_json(record)

    def remove(self, source_id: str) -> None:
        self.state.sources.pop(source_id)

    def skip(self, path: str, seen: FileSeen, reason: str) -> None:
        self.state.skipped[path] = {"size_bytes": seen.size_bytes, "mtime_ns": seen.mtime_ns, "reason": reason}

    def unskip(self, path: str) -> None:
        self.state.skipped.pop(path)


def make_files(folder: Path, count: int, head: str = "") -> None:
    for number in range(count):
        path = folder / f"section-{number % 100}" / f"page-{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{head}# Page {number}\n\n" + f"Sentence {number} of a page about subject {number % 97}. " * 8)


def places_in(folder: Path) -> SyncPaths:
    home = folder / "home"
    return SyncPaths(folder / "files", home / "links.txt", home / "index.txt", home / "cache.json", home / "web-cache")


def policy_of(places: SyncPaths) -> SyncSettings:
    return SyncSettings(
        sources_dir=str(places.sources_dir),
        links_file_path=str(places.links_file),
        index_path=str(places.index),
        index_cache_path=str(places.cache),
        web_fetch_cache_dir=str(places.page_copies),
    )


def first_build(places: SyncPaths, *, saved: bool) -> tuple[float, int]:
    """Return the seconds and the written bytes."""
    shutil.rmtree(places.cache.parent, ignore_errors=True)
    shop = SyncDependencies(InstantSummariser, None, open_reader(), SystemClock(), SilentSyncObserver())  # type: ignore[arg-type]
    run = SyncRun(SyncSettings(), places, shop)
    if not saved:
        run._store = UnsavedStore()  # type: ignore[assignment]  # noqa: SLF001 - the comparison asks for it
    seconds = timed(run.run)
    return seconds, run._store.bytes_written  # noqa: SLF001


def sync_index(settings: SyncSettings) -> SyncReport:
    """Sync as the command does, without the KB."""
    paths = SyncService(Settings(kb=settings)).places
    with contextlib.closing(WebPages(settings, paths.links_files, SystemClock(), open_reader())) as pages:
        parts = SyncDependencies(ExtractiveSummariser, pages, open_reader(), SystemClock(), SilentSyncObserver())
        return SyncRun(settings, paths, parts).run()


def build_seconds(places: SyncPaths, *, saved: bool) -> float:
    return first_build(places, saved=saved)[0]


def bench_no_op(folder: Path, rounds: int) -> None:
    places = places_in(folder)
    make_files(folder / "files", 20_000)
    first_build(places, saved=True)
    policy = policy_of(places)
    report = sync_index(policy)
    assert report.did_nothing, report
    ours, theirs = medians(
        rounds * 3, lambda: timed(lambda: sync_index(policy)), lambda: timed(lambda: walk(str(places.sources_dir)))
    )
    detail = f"pair {ours * 1000:.0f} ms, walk {theirs * 1000:.0f} ms"
    show("sync of 20,000 files with nothing to do: to walking them", ours / theirs, "at most 3", detail)


def places_with_collections(folder: Path, counts: Sequence[int]) -> SyncPaths:
    """Return five collections: folders with patterns."""
    named = []
    for number, count in enumerate(counts):
        place = folder / f"collection-{number}"
        make_files(place, count)
        given = CollectionSettings(path=str(place), include=("**/*.md",), exclude=("drafts/", "*.tmp"))
        named.append(NamedCollection(f"collection-{number}", given, place))
    return dataclasses.replace(places_in(folder), collections=tuple(named), is_named_only=True)


def measure_first_sync(folder: str, count: int, results: "multiprocessing.Queue[float]") -> None:
    """Run a first sync in a separate process, and report its peak memory in MB."""
    first_build(places_with_collections(Path(folder), [count // 5] * 5), saved=True)
    results.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def bench_collections(folder: Path, rounds: int) -> None:
    spawned = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[float] = spawned.Queue()
    worker = spawned.Process(target=measure_first_sync, args=(str(folder), 100_000, results))
    worker.start()
    memory = results.get()
    worker.join()
    print(f"first sync of 100,000 files in 5 collections, without the KB: {memory:.0f} MB (at most 400)", flush=True)
    places = places_with_collections(folder, [0] * 5)
    shop = SyncDependencies(InstantSummariser, None, open_reader(), SystemClock(), SilentSyncObserver())  # type: ignore[arg-type]
    assert SyncRun(SyncSettings(), places, shop).run().did_nothing
    ours, theirs = medians(
        rounds,
        lambda: timed(lambda: SyncRun(SyncSettings(), places, shop).run()),
        lambda: timed(lambda: [walk(str(path)) for path in places.folders.values()]),
    )
    detail = f"pair {ours * 1000:.0f} ms, walk {theirs * 1000:.0f} ms"
    show("sync of 100,000 files in 5 collections with nothing to do: to walking", ours / theirs, "at most 3", detail)


def bench_front_matter(folder: Path, rounds: int) -> None:
    def sync_first(place: Path) -> float:
        shutil.rmtree(place / "home", ignore_errors=True)
        return timed(lambda: sync_index(policy_of(places_in(place))))

    for name, head in (("with", "---\ntitle: Page\ntags: [a, b]\ndate: 2024-05-01\n---\n"), ("without", "")):
        make_files(folder / name / "files", 20_000, head)
    with_it, without = medians(
        min(rounds, 3), lambda: sync_first(folder / "with"), lambda: sync_first(folder / "without")
    )
    detail = f"with {with_it:.1f} s, without {without:.1f} s; without the KB"
    show("first sync of 20,000 Markdown files: front matter to none", with_it / without, "at most 1.15", detail)


def bench_first_build(folder: Path, rounds: int) -> None:
    seconds: dict[int, float] = {}
    written: dict[int, int] = {}
    for count in (1_000, 5_000, 10_000):
        places = places_in(folder / str(count))
        make_files(folder / str(count) / "files", count)
        first_build(places, saved=False)
        saved, unsaved = medians(
            rounds,
            functools.partial(build_seconds, places, saved=True),
            functools.partial(build_seconds, places, saved=False),
        )
        _, written[count] = first_build(places, saved=True)
        seconds[count] = saved
        final_bytes = places.cache.stat().st_size + places.index.stat().st_size
        if count == 5_000:
            detail = f"{written[count] / 1e6:.1f} MB for a state of {final_bytes / 1e6:.1f} MB"
            show(
                "first build of 5,000: bytes written to the final state",
                written[count] / final_bytes,
                "at most 20",
                detail,
            )
            detail = f"saved {saved:.2f} s, unsaved {unsaved:.2f} s"
            show("first build of 5,000: time to the same without saving", saved / unsaved, "at most 3", detail)
    for name, measured in (("time", seconds), ("bytes written", written)):
        exponent = math.log10(measured[10_000] / measured[1_000])
        print(f"growth of {name} from 1,000 to 10,000 sources: exponent {exponent:.2f} (1 is linear)", flush=True)


class SlowPages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # its 40 ms would count for us

    def do_GET(self) -> None:
        time.sleep(LATENCY_SECONDS)
        body = f"<html><body><p>Page {self.path} tells about its subject at some length.</p></body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - http.server's name
        pass


def serve_slow_pages(port: "multiprocessing.Queue[int]") -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowPages)
    port.put(server.server_address[1])
    server.serve_forever()


def bench_pages(folder: Path) -> None:
    told: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve_slow_pages, args=(told,), daemon=True)
    server.start()
    port = told.get(timeout=30)
    # Run once before timing, so that the modules for reading pages are loaded.
    seconds = [sync_pages(folder / str(number), port, count).seconds for number, count in enumerate((1, URLS))]
    server.terminate()
    least = URLS * LATENCY_SECONDS / SyncSettings().url_download_concurrency
    detail = f"{seconds[1]:.2f} s; the first page of the process {seconds[0]:.2f} s"
    show("200 pages of 100 ms each: to latency alone, 8 at once", seconds[1] / least, "at most 1.5", detail)


def sync_pages(folder: Path, port: int, count: int) -> SyncReport:
    folder.mkdir(parents=True)
    links = folder / "links.txt"
    links.write_text("".join(f"http://127.0.0.1:{port}/{number}\n" for number in range(count)))
    policy = SyncSettings(
        sources_dir=str(folder / "files"),
        links_file_path=str(links),
        index_path=str(folder / "index.txt"),
        index_cache_path=str(folder / "cache.json"),
        web_fetch_cache_dir=str(folder / "web-cache"),
        allow_private_addresses=True,
    )
    report = sync_index(policy)
    assert report.fetched == count, report
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each question is asked")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        bench_no_op(Path(name) / "no-op", rounds)
        bench_collections(Path(name) / "collections", rounds)
        bench_front_matter(Path(name) / "front-matter", rounds)
        bench_first_build(Path(name) / "first", rounds)
        bench_pages(Path(name) / "pages")


if __name__ == "__main__":
    main()
