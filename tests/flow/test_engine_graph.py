"""Graphs: made while documents are stored, kept by compaction, removed with their documents."""

from pathlib import Path

import numpy as np
import pytest

from pair.engine.query.graph import GraphShard, find_linked_entities, walk_graph
from pair.kb.kb import KnowledgeBase
from pair.text.entity_rules import TextGrapher, find_question_entities
from pair.values import Document, GraphParameters
from support.engine_parts import MANY_SHARDS, Ground

DOCUMENTS = [
    Document(f"doc-{number:02}", f"We saw Person{chr(97 + number % 26)} Smith in Town{chr(97 + number // 5)}.")
    for number in range(40)
]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, **MANY_SHARDS)


def with_graphs(kb: KnowledgeBase) -> KnowledgeBase:
    kb._core.preparation.grapher = TextGrapher()
    return kb


def graph_shards(kb: KnowledgeBase) -> dict[str, GraphShard]:
    """Return the shards that have a graph, by folder."""
    parts, found = kb._core.context, {}
    for ref in parts.manifests.require().manifest.shards:
        opened = parts.cache.open(ref)
        file = opened.graph()
        if file is not None:
            gone = ref.tombstones
            found[ref.folder] = GraphShard(file, None if gone is None else ~gone[opened.search(0.0).doc_of_row])
    return found


def reached(kb: KnowledgeBase, question: str) -> dict[str, float]:
    parts, shards = kb._core.context, graph_shards(kb)
    found = walk_graph(list(shards.values()), [], find_question_entities(question), GraphParameters())
    refs = {ref.folder: ref for ref in parts.manifests.require().manifest.shards}
    scores = {}
    for shard, row, score in zip(found.shards.tolist(), found.rows.tolist(), found.scores.tolist(), strict=True):
        search = parts.cache.open(refs[list(shards)[shard]]).search(0.0)
        scores[search.header(int(search.doc_of_row[row])).id] = score
    return scores


@pytest.mark.rule("engine-26")
@pytest.mark.rule("engine-27")
def test_an_entity_in_many_shards_is_one_and_goes_with_its_documents(ground: Ground) -> None:
    with with_graphs(ground.open()) as kb:
        kb.upsert(DOCUMENTS)
        assert len(graph_shards(kb)) > 3
        before = reached(kb, "who was in Towna?")
        assert {f"doc-{number:02}" for number in range(5)} <= before.keys()
        kb.delete(["doc-01"])
        kb.upsert([Document("doc-02", "nobody went anywhere")])
        after = reached(kb, "who was in Towna?")
        assert {"doc-01", "doc-02"}.isdisjoint(after)
        shards = list(graph_shards(kb).values())
        assert find_linked_entities(shards, ["towna", "townb", "nowhere"], 1.0) == {"towna": 3, "townb": 5}
        kb.maintenance.compact(everything=True)
        assert reached(kb, "who was in Towna?") == after, "whatever the layout"


def test_documents_are_unchanged_until_graphs_are_made_another_way(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(DOCUMENTS[:3])
        assert graph_shards(kb) == {}
        with_graphs(kb)
        assert kb.upsert(DOCUMENTS[:3]).replaced == 3
        assert kb.upsert(DOCUMENTS[:3]).unchanged == 3
        assert len(graph_shards(kb)) == 1


def test_weights_are_the_same_in_rows_and_arrays(ground: Ground) -> None:
    with with_graphs(ground.open()) as kb:
        kb.upsert(DOCUMENTS)
        parts = kb._core.context
        for ref in parts.manifests.require().manifest.shards:
            opened = parts.cache.open(ref)
            in_rows = {doc: sorted(graph.mentions) for doc, graph in opened.rows().graphs().items()}
            assert in_rows == {doc: sorted(graph.mentions) for doc, graph in opened.stored_graphs().items()}
            assert np.all(np.diff(opened.graph().row_starts.astype(int)) > 0)  # type: ignore[union-attr]
