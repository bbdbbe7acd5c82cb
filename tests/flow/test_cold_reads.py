"""A new process searches a KB on a real S3 server: fetched bytes, sequential round trips, and equal answers."""

import dataclasses
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pair.blobs.local import LocalStore
from pair.blobs.s3 import ObjectStore
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.values import Document, Hit, Hits
from support.engine_parts import engine_settings, read_blob, stats_of
from support.s3_server import S3Server
from support.served import Served
from support.slow_proxy import SlowProxy, rounds_of
from support.threads import run_together

DIMENSION = 256
DOCUMENTS = 6000
CUT = {
    "embedding_dimension": DIMENSION,
    "shard_trigger_vector_rows": 600,
    "max_vector_rows_per_shard": 300,
    "ingest_batch_documents": 8000,
    "query_shard_fanout": 2,
    "query_shard_fanout_adaptive_max": 2,
}
DELAY_SECONDS = 0.05
LONG_DELAY_SECONDS = 0.4
"""Longer than the start of a request on a busy machine, so that parallel requests overlap."""


def texts() -> list[str]:
    source = np.random.default_rng(3)
    words = [f"word{number:03}" for number in range(900)]
    ranks = (900 ** source.random((DOCUMENTS, 15))).astype(int)
    return [" ".join(words[rank - 1] for rank in row) for row in ranks.tolist()]


@dataclass
class Stored:
    """A KB of many shards in a bucket, behind a proxy."""

    s3: S3Server
    proxy: SlowProxy
    size_bytes: int
    reference: KnowledgeBase
    """The same KB with all shards in its cache."""

    def opened(self, cache: Path, prefix: str = "cold", **policy: Any) -> KnowledgeBase:
        options = dataclasses.replace(self.s3.options, endpoint_url=self.proxy.url)
        store = ObjectStore(f"s3://blobs/{prefix}", options)
        self.proxy.exchanges.clear()
        return open_kb(store=store, settings=engine_settings(cache, lease="memory", **{**CUT, **policy}))

    def copied(self, prefix: str) -> ObjectStore:
        """Return a copy for a test that changes it."""
        source, target = self.s3.store("cold"), self.s3.store(prefix)
        for entry in source.list(""):
            target.put(entry.key, read_blob(source, entry.key))
        return target


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("cold")
    vectors = np.random.default_rng(5).normal(size=(20, DIMENSION)).astype(np.float32)
    spread = np.random.default_rng(6).normal(size=(DOCUMENTS, DIMENSION)).astype(np.float32)
    clustered = vectors[np.arange(DOCUMENTS) % len(vectors)] + spread / 4
    documents = [
        Document(
            id=f"{number:05}", title=f"Title {number}", text=text, vector=vectors[number % 15] + spread[number] / 4
        )
        for number, (text, vector) in enumerate(zip(texts(), clustered, strict=True))
    ]
    with open_kb(settings=engine_settings(folder, **CUT)) as reference:
        reference.upsert(documents)
        reference.delete([f"{number:05}" for number in range(0, DOCUMENTS, 97)])
        local, remote = LocalStore(folder / "store"), s3.store("cold")
        for entry in local.list(""):
            remote.put(entry.key, read_blob(local, entry.key))
        stats = stats_of(reference)
        assert stats.shards > 12
        assert stats.deleted_documents > 0
        with SlowProxy(s3.options.endpoint_url, DELAY_SECONDS) as proxy:
            yield Stored(s3, proxy, stats.size_bytes, reference)


def exact_values(hits: Hits) -> list[tuple[Hit, ...]]:
    """Return the hits with exact scores and distances."""
    return [dataclasses.astuple(hit) for hit in hits]


def fetched(kb: KnowledgeBase) -> int:
    return stats_of(kb).cache["bytes_fetched"]


def test_a_cold_query_takes_few_turns_and_few_bytes(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored.proxy, "delay_seconds", LONG_DELAY_SECONDS)
    with stored.opened(tmp_path) as kb:
        hits = kb.search("word017 word201 word345", limit=10, mode="hybrid")
        exchanges = list(stored.proxy.exchanges)
    assert len(hits) == 10
    assert rounds_of(exchanges) <= 6, [each.request for each in exchanges]
    share = sum(each.answer_bytes for each in exchanges) / stored.size_bytes
    assert share <= 0.35


@pytest.mark.parametrize(
    ("query", "mode"),
    [("word017 word201 word345", "hybrid"), ('"word002 word001" word040', "hybrid"), ("word00*", "keyword")],
)
def test_partly_fetched_shards_answer_like_complete_ones(stored: Stored, tmp_path: Path, query: str, mode: Any) -> None:
    with stored.opened(tmp_path) as kb:
        for limit in (10, 30):
            expected = stored.reference.search(query, limit=limit, mode=mode)
            assert exact_values(kb.search(query, limit=limit, mode=mode)) == exact_values(expected)


def test_a_filter_is_applied_to_pieces(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path) as kb:
        found, expected = (each.search("word001", filter=["title=Title 4711"]) for each in (kb, stored.reference))
        assert exact_values(found) == exact_values(expected)


def test_pieces_are_kept_for_the_next_process(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path) as kb:
        first = exact_values(kb.search("word017 word201", limit=10))
    with stored.opened(tmp_path) as kb:
        assert exact_values(kb.search("word017 word201", limit=10)) == first
        assert fetched(kb) == 0


def test_a_piece_that_was_damaged_on_disk_is_fetched_again(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path) as kb:
        first = exact_values(kb.search("word017 word201", limit=10))
    parts = list((tmp_path / "cache").rglob("*.part"))
    assert parts
    for part in parts:
        content = bytearray(part.read_bytes())
        content[::1000] = b"?" * len(content[::1000])
        part.write_bytes(content)
    with stored.opened(tmp_path) as kb:
        assert exact_values(kb.search("word017 word201", limit=10)) == first


def test_a_piece_that_is_damaged_in_the_store_is_never_shown(stored: Stored, tmp_path: Path) -> None:
    store = stored.copied("cold-damaged")
    searches = [entry.key for entry in store.list("") if entry.key.endswith(".search")]
    for key in searches[::2]:
        blob = read_blob(store, key)
        store.put(key, blob[:9000].ljust(len(blob), b"?"))
    with stored.opened(tmp_path, "cold-damaged") as kb:
        hits = kb.search("word017 word201 word345", limit=10)
    assert hits.partial
    assert all("SHA-256" in fault for fault in hits.faults)
    sound = {hit.chunk_id: hit.text for hit in stored.reference.search("word017 word201 word345", limit=2000)}
    assert {hit.chunk_id for hit in hits} <= sound.keys()
    assert all(sound[hit.chunk_id] == hit.text for hit in hits)


def test_many_who_ask_the_same_at_once_download_once(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path) as kb:
        answers: list[Any] = []
        together = threading.Barrier(12)

        def ask() -> None:
            together.wait()
            answers.append(exact_values(kb.search("word017 word201 word345", limit=10)))

        run_together(*[ask] * 12)
        counts = Counter(each.request for each in stored.proxy.exchanges if ".shards/" in each.request)
    assert set(counts.values()) == {1}
    assert all(answer == answers[0] for answer in answers)


def test_partly_fetched_shards_are_prefetched_completely_within_bounds(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path) as kb:
        kb.search("word017 word201 word345", limit=10)
        before = fetched(kb)
        little = kb.maintenance.prefetch(1_000_000)
        assert 0 < little.fetched_bytes <= 1_000_000 < little.left_bytes
        assert fetched(kb) - before == little.fetched_bytes
        assert kb.maintenance.prefetch(10**9, lambda: False).files == 0
        report = kb.maintenance.prefetch(10**9)
        assert report.files > 0
        assert report.left_bytes == 0
        assert not list((tmp_path / "cache").rglob("*.part"))
        assert exact_values(kb.search("word044 word444")) == exact_values(stored.reference.search("word044 word444"))
        assert kb.maintenance.prefetch(10**9).left_bytes == 0


def test_prefetching_evicts_nothing(stored: Stored, tmp_path: Path) -> None:
    with stored.opened(tmp_path, cache_max_bytes=stored.size_bytes // 2) as kb:
        kb.search("word017 word201 word345", limit=10)
        report = kb.maintenance.prefetch(10**9)
        stats = stats_of(kb)
        assert report.left_bytes > 0
        assert stats.cache["evictions"] == 0
        assert stats.cache["size_bytes"] <= stored.size_bytes // 2


def test_shards_that_replace_warm_ones_are_fetched_before_they_are_asked(stored: Stored, tmp_path: Path) -> None:
    stored.copied("cold-replaced")
    with stored.opened(tmp_path / "reader", "cold-replaced") as reader:
        reader.search("word017 word201 word345", limit=10)
        reader.maintenance.prefetch(10**9)
        with stored.opened(tmp_path / "writer", "cold-replaced", compaction_tombstone_ratio=0.1) as writer:
            writer.delete([f"{number:05}" for number in range(3, 2000, 20)])
            assert writer.maintenance.compact().shards_after
        assert reader.maintenance.prefetch(10**9).files > 0
        before = fetched(reader)
        reader.search("word017 word201 word345", limit=10)
        assert fetched(reader) == before


def test_a_server_fetches_by_itself_what_queries_need(stored: Stored, tmp_path: Path) -> None:
    variables = stored.s3.variables("cold") | {
        "PAIR__ENGINE__EMBEDDING_DIMENSION": str(DIMENSION),
        "PAIR__SERVER__SYNC": "false",
        "PAIR__SERVER__PREFETCH_INTERVAL_SECONDS": "0.1",
    }
    with Served(tmp_path, **variables) as server:
        ends_at = time.monotonic() + 30
        while not (found := server.get("/metrics/app").json())["cache"]["prefetched_files"]:
            assert time.monotonic() < ends_at, found
        assert found["cache"]["prefetched_bytes"] > 0
        assert found["background"]["prefetch"]["failures"] == 0


def test_a_missing_cache_folder_is_created_again(stored: Stored, tmp_path: Path) -> None:
    expected = exact_values(stored.reference.search("word101 word202", limit=10))
    with stored.opened(tmp_path) as kb:
        kb.search("word017 word201 word345", limit=10)
        shutil.rmtree(tmp_path / "cache")
        assert exact_values(kb.search("word101 word202", limit=10)) == expected
