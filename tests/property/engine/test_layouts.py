"""The same documents in any order, batches and shards give the same answers, ties included."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pair.kb.kb import KnowledgeBase
from pair.values import Document
from support.engine_parts import Ground

DIMENSION = 8
NAMES = [f"doc/{number}" for number in range(24)]
WORDS = ["river", "bridge", "castle", "garden", "engine"]


@dataclass(frozen=True)
class Step:
    """One operation on a KB."""

    act: str
    names: tuple[str, ...] = ()


def place(spot: int) -> list[float]:
    """Return a vector. Few are distinct, so that many documents share one."""
    return [float(spot % 3), float(spot // 3 % 2), *[0.0] * (DIMENSION - 2)]


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Document]:
    """Return the final documents; half of them are embedded, half have a given vector."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    documents = {}
    for name in names:
        spot = draw(st.integers(0, 5))
        metadata = {"spot": spot, "word": draw(st.sampled_from(WORDS))}
        if draw(st.booleans()):
            documents[name] = Document(name, f"at {spot}", metadata=metadata, vector=place(spot))
        else:
            text = " ".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40)))
            documents[name] = Document(name, text, metadata=metadata)
    return documents


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Any], list[Step]]:
    """Draw engine settings, and the operations before and between the batches."""
    policy = {
        "embedding_dimension": DIMENSION,
        "chunk_size_bytes": 50,
        "ingest_batch_documents": draw(st.integers(1, 9)),
        "shard_trigger_vector_rows": draw(st.integers(2, 30)),
        "max_vector_rows_per_shard": draw(st.integers(1, 10)),
        "compaction_min_shard_count": draw(st.integers(1, 6)),
        "compaction_enabled": draw(st.booleans()),
    }
    names = st.lists(st.sampled_from(NAMES), max_size=6).map(tuple)
    steps = draw(
        st.lists(
            st.one_of(
                st.builds(Step, st.just("other"), names),
                st.builds(Step, st.just("delete"), names),
                st.builds(Step, st.sampled_from(["compact", "compact all", "collect", "sweep", "reopen"])),
            ),
            max_size=5,
        )
    )
    return policy, steps


def carried_out(kb: KnowledgeBase, step: Step) -> None:
    if step.act == "other":
        kb.upsert([Document(name, f"soon to be replaced {name}") for name in step.names])
    elif not kb.stats().manifest_version:
        return
    elif step.act == "delete":
        kb.delete(step.names)
    elif step.act == "compact":
        kb.maintenance.compact()
    elif step.act == "compact all":
        kb.maintenance.compact(everything=True)
    elif step.act == "collect":
        kb.maintenance.collect(grace_seconds=0)
    else:
        kb.maintenance.sweep()


def answers(kb: KnowledgeBase) -> list[list[tuple[Any, ...]]]:
    """Return all fields of all hits, for several questions."""
    asked = [
        *(kb.search(word, limit=limit, exact=True) for word in WORDS for limit in (1, 3, 100)),
        *(kb.search_vector(place(spot), limit=limit, exact=True) for spot in range(6) for limit in (1, 2, 5, 100)),
        kb.search_vector(place(0), limit=100, max_distance=1.0, exact=True),
        kb.search("river", limit=4, filter={"spot": {"gte": 2}}, exact=True),
        kb.search("river", limit=4, filter={"word": "castle"}, exact=True),
    ]
    return [
        [(hit.document_id, hit.chunk_id, hit.text, hit.start, hit.end, hit.distance, hit.score) for hit in hits]
        for hits in asked
    ]


def answers_after(
    documents: Sequence[Document], policy: dict[str, Any], steps: Sequence[Step]
) -> list[list[tuple[Any, ...]]]:
    """Return the answers of a KB that stored these documents with these steps."""
    wanted = {each.id for each in documents}
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder), **policy)
        kb = ground.open()
        portion = -(-len(documents) // (len(steps) + 1))
        for number, step in enumerate([*steps, Step("sweep")]):
            kb.upsert(documents[number * portion : (number + 1) * portion])
            if step.act == "reopen":
                kb.close()
                kb = ground.open()
            else:
                carried_out(kb, step)
        kb.upsert(documents)
        kb.delete([name for name in NAMES if name not in wanted])
        assert [each.id for each in kb.documents(limit=100)] == sorted(wanted)
        found = answers(kb)
        kb.close()
    return found


PLAIN = {"embedding_dimension": DIMENSION, "chunk_size_bytes": 50}


@given(stored=contents(), history=histories(), data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.rule("engine-13")
def test_answers_do_not_depend_on_how_the_documents_came(
    stored: dict[str, Document], history: tuple[dict[str, Any], list[Step]], data: st.DataObject
) -> None:
    policy, steps = history
    order = data.draw(st.permutations(sorted(stored)))
    expected = answers_after([stored[name] for name in sorted(stored)], PLAIN, [])
    assert answers_after([stored[name] for name in order], policy, steps) == expected
