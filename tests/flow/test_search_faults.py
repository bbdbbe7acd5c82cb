"""Search with faults: a damaged file in the store or in the cache, and an unavailable embedder."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pair.ai.prompts import ModelSettings
from pair.values import MODES, Document, SearchMode
from support.engine_parts import Ground, flip_a_bit, ids_of, truncate
from support.errors import raises_code
from support.model_server import ModelServer

DOCUMENTS = [
    Document(
        f"doc-{number:02}",
        f"In Newtown{chr(97 + number)} somebody met Ada Lovelace about item{number}.",
        metadata={"kind": "note"},
    )
    for number in range(12)
]
QUERY = "who met Ada Lovelace?"

ASKED: dict[str, set[SearchMode]] = {
    ".keywords": {"hybrid", "keyword", "graph", "adaptive"},
    ".graph": {"graph", "adaptive"},
    ".search": set(MODES),
}
"""The modes that need a file, by role."""

every_mode = pytest.mark.parametrize("mode", MODES)
every_file = pytest.mark.parametrize("suffix", [".keywords", ".graph"])
damages = pytest.mark.parametrize("damage", [flip_a_bit, truncate, Path.unlink])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a KB of several shards, which tests copy before they damage it."""
    folder = tmp_path_factory.mktemp("stored")
    ground = Ground(folder, graph="text", shard_trigger_vector_rows=6, max_vector_rows_per_shard=4)
    with ground.open() as kb:
        kb.upsert(DOCUMENTS)
        for mode in MODES:
            kb.search(QUERY, mode=mode)
    assert len(ground.stored_files(".graph")) == len(ground.stored_files(".keywords")) > 2
    return folder


@pytest.fixture
def ground(stored: Path, tmp_path: Path) -> Ground:
    shutil.copytree(stored, tmp_path / "kb")
    return Ground(tmp_path / "kb", graph="text")


def without_cache(ground: Ground) -> Ground:
    shutil.rmtree(ground.cache)
    return ground


@every_mode
@every_file
@damages
@pytest.mark.rule("engine-21")
def test_damaged_files_of_the_store_are_named_and_the_other_shards_answer(
    ground: Ground, suffix: str, damage: Callable[[Path], None], mode: SearchMode
) -> None:
    broken = ground.stored_files(suffix)[0]
    damage(broken)
    with without_cache(ground).open() as kb:
        found = kb.search(QUERY, mode=mode, limit=50)
        again = kb.search(QUERY, mode=mode, limit=50)
    assert found == again
    assert found.partial == (mode in ASKED[suffix])
    assert len(found.faults) == found.partial
    assert all(f"{broken.parent.name}/{broken.name}" in fault for fault in found.faults)
    missing = len(DOCUMENTS) - len(found)
    assert 0 < missing < len(DOCUMENTS) if (suffix, mode) == (".keywords", "keyword") else missing == 0
    assert found.mode_used == (mode if mode != "adaptive" else "graph")


@every_mode
@every_file
@pytest.mark.rule("engine-21")
def test_a_file_that_is_damaged_in_every_shard_is_an_error_only_if_nothing_else_answers(
    ground: Ground, suffix: str, mode: SearchMode
) -> None:
    for path in ground.stored_files(suffix):
        flip_a_bit(path)
    with without_cache(ground).open() as kb:
        if (suffix, mode) in {(".keywords", "keyword"), (".graph", "graph")}:
            with raises_code("E207"):
                kb.search(QUERY, mode=mode)
            return
        found = kb.search(QUERY, mode=mode, limit=50)
    assert len(found) == len(DOCUMENTS)
    assert len(found.faults) == (len(ground.stored_files(suffix)) if mode in ASKED[suffix] else 0)


@every_file
@damages
@pytest.mark.rule("engine-21")
def test_a_damaged_file_of_the_cache_is_fetched_again(
    ground: Ground, suffix: str, damage: Callable[[Path], None]
) -> None:
    with ground.open() as kb:
        before = {mode: kb.search(QUERY, mode=mode, limit=50) for mode in MODES}
    for path in ground.cached_files(suffix):
        damage(path)
    with ground.open() as kb:
        after = {mode: kb.search(QUERY, mode=mode, limit=50) for mode in MODES}
    assert after == before
    assert not any(found.partial for found in after.values())


def test_a_shard_that_is_damaged_altogether_is_left_out_in_every_mode(ground: Ground) -> None:
    flip_a_bit(ground.stored_files(".search")[0])
    with without_cache(ground).open() as kb:
        for mode in MODES:
            found = kb.search(QUERY, mode=mode, limit=50)
            assert found.partial
            assert 0 < len(found) < len(DOCUMENTS)
            assert ids_of(kb.search(QUERY, mode=mode, limit=50, filter={"kind": "note"})) == ids_of(found)


# ── an embedder that is not there ──────────────────────────────────────────────────────────────────


def test_keywords_are_found_while_the_embedder_is_missing(tmp_path: Path, model: ModelServer) -> None:
    ground = Ground(
        tmp_path,
        graph="text",
        embedder="openai",
        embedding_model="tiny",
        embedding_url=model.url,
        embedding_dimension=0,
    )
    waits = dataclasses.replace(ModelSettings(), retries=0, retry_wait_seconds=0.01)
    ground.settings = dataclasses.replace(ground.settings, ai=waits)
    with ground.open() as kb:
        kb.upsert(DOCUMENTS)
        assert len(kb.search(QUERY, mode="hybrid", limit=50)) == len(DOCUMENTS)
    model.stop()
    with ground.open() as kb:
        found = kb.search("item7", mode="keyword")
        assert (ids_of(found)[0], found.partial) == ("doc-07", False)
        for mode in ("hybrid", "vector", "graph", "adaptive"):
            with raises_code("E301"):
                kb.search("item7", mode=mode)
        model.start()
        assert ids_of(kb.search("item7", mode="hybrid"))[0] == "doc-07"
