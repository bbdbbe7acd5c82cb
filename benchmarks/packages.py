"""What do packages with an index, versions and diffs cost, compared with copying the same bytes?

    python benchmarks/packages.py [--rounds N] [--chunks N] [--documents N]

Both sides are measured in turns in one run. The benchmark prints the ratio and its limit. Texts are random common
words. Vectors come from the default embedder if texts are packaged, and are random if only their number matters.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from pair.ai.ngram import NgramEmbedder
from pair.engine.settings import EngineSettings
from pair.kb.installer import Installer, Packaging
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.packages.install import InstallRequest
from pair.packages.package import Label
from pair.packages.rules import INDEX_FOLDER, SourcesSettings
from pair.settings import Settings
from pair.sync.rules import SyncSettings
from pair.values import Document

WORDS = [f"{first}{last}" for first in "bcdfglmnprstv" for last in ("ade", "ile", "oom", "urn", "ent", "ack", "ish")]
CHUNK_BYTES = 500
SHARDS = 20
DIMENSION = 256


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def show(question: str, value: str, limit: str, detail: str) -> None:
    print(f"{question:<52} {value:>10}   limit {limit:<8} {detail}", flush=True)


def text_of(dice: random.Random, chunks: int) -> str:
    """Return paragraphs of about the size of a chunk."""
    paragraphs = (" ".join(dice.choices(WORDS, k=CHUNK_BYTES // 6)) + "." for _ in range(chunks))
    return "\n\n".join(paragraphs) + "\n"


class Place:
    """A project in a separate folder."""

    def __init__(self, folder: Path, **engine: Any) -> None:
        self.folder = folder
        pair = folder / ".pair"
        self.settings = Settings(
            kb=SyncSettings(
                sources_dir=str(pair / "knowledge"),
                links_file_path=str(pair / "links.txt"),
                index_path=str(pair / "index.txt"),
                index_cache_path=str(pair / "index-cache.json"),
                web_fetch_cache_dir=str(pair / "web-cache"),
            ),
            sources=SourcesSettings(cache_dir=str(folder / "cache")),
            engine=dataclasses.replace(
                EngineSettings(store=str(pair / "store"), cache_dir=str(pair / "cache"), chunk_size_bytes=CHUNK_BYTES),
                **engine,
            ),
        )
        self.desk = Installer(self.settings, folder=folder)

    def package(self, source: Path, output: Path, version: str) -> None:
        self.desk.package(source, output, Packaging(Label("words", version), with_index=True))

    def install(self, source: str) -> None:
        self.desk.apply(InstallRequest("install", self.desk.default_target), self.desk.resolve(source, offline=False))

    def update(self) -> None:
        target = self.desk.default_target
        self.desk.apply(InstallRequest("update", target), self.desk.resolve_update(None, target, offline=False))

    def open(self) -> KnowledgeBase:
        return open_kb(settings=self.settings)


# ── transfers ──────────────────────────────────────────────────────────────────────────────────────


class Counting:
    """A handler that counts the bytes of the bodies that a server sends."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            self.sent += len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, counted)


@contextlib.contextmanager
def static_host(folder: Path) -> Iterator[tuple[str, Counting]]:
    """Run a static file host that supports ranges."""
    app = Counting(Starlette(routes=[Mount("/", StaticFiles(directory=folder))]))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    running = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    running.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", app
    finally:
        server.should_exit = True
        running.join()


def shards_of(archive: Path) -> dict[str, int]:
    """Return the size of each shard in a package, by content hash."""
    sizes: dict[str, int] = {}
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if entry.filename.startswith(f"{INDEX_FOLDER}/shards/"):
                shard = entry.filename.split("/")[2]
                sizes[shard] = sizes.get(shard, 0) + entry.file_size
    return sizes


def documents_of(archive: Path, shard: str, scratch: Path) -> list[str]:
    """Return the ids of the documents in a shard of a package."""
    with zipfile.ZipFile(archive) as opened:
        [name] = [each for each in opened.namelist() if each.split("/")[2:3] == [shard] and each.endswith(".duckdb")]
        rows = opened.extract(name, scratch)
    with duckdb.connect(rows, read_only=True) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM docs").fetchall()]


def measure_delta(folder: Path, *, is_smallest: bool) -> None:
    """Change every document of one of twenty shards, and measure the update.

    The shard is the one nearest to the average size, or the smallest, for which the overhead of an update is largest.
    """
    dice = random.Random(1)
    files, chunks = 600, 40
    # The first write clusters all documents together. A later write makes a separate shard.
    rows = files * chunks // (SHARDS - 1)
    policy = {"shard_trigger_vector_rows": 2 * rows, "max_vector_rows_per_shard": rows, "ingest_batch_bytes": 2**26}
    origin, reader = Place(folder / "origin", **policy), Place(folder / "reader")
    source = folder / "texts"
    source.mkdir(parents=True)
    for number in range(files):
        (source / f"{number:03}.txt").write_text(text_of(dice, chunks), encoding="utf-8")
    host = folder / "host"
    host.mkdir()
    archive = host / "words.zip"
    origin.package(source, archive, "1.0.0")
    before = shards_of(archive)
    with static_host(host) as (address, counted):
        reader.install(f"{address}/words.zip")
        whole = counted.sent
        average = 0 if is_smallest else sum(before.values()) / len(before)
        chosen = min(before, key=lambda shard: abs(before[shard] - average))
        changed = [source / name for name in documents_of(archive, chosen, folder / "scratch")]
        for path in changed:
            path.write_text(path.read_text(encoding="utf-8") + "One more word.\n", encoding="utf-8")
        origin.package(source, archive, "1.1.0")
        after = shards_of(archive)
        counted.sent = 0
        reader.update()
    new = after.keys() - before.keys()
    counts = len(before), len(after), len(new)
    assert counts == (SHARDS, SHARDS, 1), f"what is measured is not one of twenty shards: {counts}"
    new_bytes = sum(after[shard] for shard in new)
    texts = sum(path.stat().st_size for path in changed)
    allowed = 1.2 * new_bytes + 100_000
    show(
        f"update, {len(new)} of {len(after)} shards new ({'smallest' if is_smallest else 'average'}): bytes / allowed",
        f"{counted.sent / allowed:.2f}",
        "1.00",
        f"{counted.sent:,} bytes; the new shard has {new_bytes:,}, its texts {texts:,}, the whole {whole:,}",
    )


def copied(source: Path, target: Path) -> None:
    """Copy every file and sync it to disk, as an install does."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            destination = target / path.relative_to(source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, destination)
            with destination.open("rb") as stream:
                os.fsync(stream.fileno())


def measure_install(folder: Path, chunks: int, rounds: int) -> None:
    dice = random.Random(2)
    origin, source = Place(folder / "origin"), folder / "texts"
    source.mkdir(parents=True)
    documents = max(1, chunks // 100)
    for number in range(documents):
        (source / f"{number:05}.md").write_text(text_of(dice, 100), encoding="utf-8")
    archive = folder / "words.zip"
    origin.package(source, archive, "1.0.0")
    unpacked = folder / "unpacked"
    shutil.unpack_archive(archive, unpacked)
    installs, copies, searches, counted = [], [], [], 0
    for number in range(rounds):
        place = Place(folder / f"place-{number}")
        place.folder.mkdir()
        copies.append(timed(lambda: copied(unpacked, folder / "copy")))
        shutil.rmtree(folder / "copy")
        installs.append(timed(functools.partial(place.install, str(archive))))

        def search(place: Place = place) -> None:
            with place.open() as kb:
                kb.search("bade tile room", limit=5)

        searches.append(timed(search))
        with place.open() as kb:
            stats = kb.stats()
            counted = stats.chunks if stats is not None else 0
        shutil.rmtree(place.folder)
    size = sum(path.stat().st_size for path in unpacked.rglob("*") if path.is_file())
    ratio = statistics.median(installs) / statistics.median(copies)
    show(
        f"install with an index of {counted:,} chunks / copying",
        f"{ratio:.2f}",
        "1.50",
        f"{statistics.median(installs):.2f} s, {statistics.median(copies):.2f} s for {size / 1e6:.0f} MB; "
        f"first search after it {statistics.median(searches):.2f} s",
    )


# ── versions ───────────────────────────────────────────────────────────────────────────────────────


def made_up(dice: np.random.Generator, numbers: range, word: str) -> Iterator[Document]:
    for number in numbers:
        vector = dice.standard_normal(DIMENSION).astype(np.float32)
        yield Document(f"doc-{number:07}", f"{word} document {number}", vector=vector.tolist())


def measure_versions(folder: Path, documents: int, rounds: int) -> None:
    policy = EngineSettings(store=str(folder / "store"), cache_dir=str(folder / "cache"), graph="off")
    settings = Settings(engine=policy)
    dice = np.random.default_rng(3)
    with open_kb("words", settings=settings, embedder=NgramEmbedder(DIMENSION)) as kb:
        for size in (documents // 100, documents):
            kb.upsert(made_up(dice, range(size), "first"))
            before = kb.version()[0]
            share = max(1, size // 100)
            kb.upsert(made_up(dice, range(0, share * 97, 97), "second"))
            after = kb.version()[0]
            backs = []
            for _ in range(rounds):
                backs += [timed(functools.partial(kb.versions.rollback, number)) for number in (before, after)]
            show(
                f"roll-back of {size:,} documents, ms",
                f"{statistics.median(backs) * 1000:.1f}",
                "50",
                f"slowest of {len(backs)}: {max(backs) * 1000:.1f}",
            )
        diffs = []
        for _ in range(rounds):
            with open_kb("words", settings=settings, embedder=NgramEmbedder(DIMENSION)) as other:
                diffs.append(timed(functools.partial(other.versions.diff, before, after)))
        found = kb.versions.diff(before, after)
        show(
            f"diff of two versions of {documents:,} documents, s",
            f"{statistics.median(diffs):.2f}",
            "1.00",
            f"{len(found.changed):,} changed, {len(found.added):,} added; slowest {max(diffs):.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each side is asked")
    parser.add_argument("--chunks", type=int, default=100_000, help="of the package that is installed")
    parser.add_argument("--documents", type=int, default=100_000, help="of the KB that is rolled back")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        folder = Path(name)
        for is_smallest in (False, True):
            measure_delta(folder / f"delta-{is_smallest}", is_smallest=is_smallest)
        measure_install(folder / "install", asked.chunks, asked.rounds)
        measure_versions(folder / "versions", asked.documents, asked.rounds)


if __name__ == "__main__":
    main()
