"""The graph walk: compared with a dense reference, for several layouts, and without deleted documents."""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.engine.format.array_file import ArrayFile, write_arrays
from pair.engine.format.columns import build_graph_columns
from pair.engine.format.graph_index import GraphIndex, graph_sections
from pair.engine.query.graph import GraphShard, Seed, find_linked_entities, require_graph, walk_graph
from pair.errors import NotFoundError
from pair.text.entity_rules import ALIAS, TOGETHER
from pair.values import GraphParameters, GraphRows

STEPS = 10


def graph_file(folder: Path, graphs: list[GraphRows]) -> GraphIndex:
    """Build the graph file of documents with one chunk each."""
    columns = build_graph_columns(dict(enumerate(graphs)), [1] * len(graphs))
    path = folder / f"{len(list(folder.iterdir()))}.graph"
    write_arrays(path, graph_sections(columns, np.arange(len(graphs)), len(graphs)))
    return GraphIndex(ArrayFile.open(path))


def mentions(*names: str) -> GraphRows:
    return GraphRows(tuple((name, 1.0, 0) for name in names))


def dense(graphs: list[GraphRows], seeds: list[int], question: list[str], decay: float) -> npt.NDArray[np.float64]:
    """Compute personalised PageRank with dense matrices."""
    names = sorted({name for graph in graphs for name, _, _ in graph.mentions})
    links = np.zeros((len(graphs), len(names)))
    for row, graph in enumerate(graphs):
        for name, weight, _ in graph.mentions:
            links[row, names.index(name)] += np.float32(weight)
    counts = (links > 0).sum(axis=0)
    links = links * np.log1p(len(graphs) / np.maximum(counts, 1))
    to_entity = links / np.maximum(links.sum(axis=1, keepdims=True), 1e-300)
    to_row = links / np.maximum(links.sum(axis=0, keepdims=True), 1e-300)
    known = [name for name in question if name in names]
    share = (0.5 if seeds else 1.0) if known else 0.0
    rows, entities = np.zeros(len(graphs)), np.zeros(len(names))
    total = sum(1 / rank for rank in range(1, len(seeds) + 1))
    for rank, row in enumerate(seeds, 1):
        rows[row] += (1 - share) / rank / total
    for name in known:
        number = names.index(name)
        entities[number] = share / counts[number] / sum(1 / counts[names.index(each)] for each in known)
    at_rows, at_entities = rows, entities
    for _ in range(STEPS):
        at_rows, at_entities = (
            (1 - decay) * rows + decay * (to_row @ at_entities),
            (1 - decay) * entities + decay * (to_entity.T @ at_rows),
        )
    return np.asarray(np.sqrt(at_rows / max(at_rows.max(), 1e-300)))


NAMES = [f"entity {number}" for number in range(8)]
ROWS = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.3, 0.8, 1.0, 2.585]), min_size=0, max_size=4),
    min_size=2,
    max_size=12,
).map(lambda rows: [GraphRows(tuple((name, weight, 0) for name, weight in row.items())) for row in rows])


@settings(deadline=None, max_examples=40)
@given(ROWS, st.integers(0, 3), st.sets(st.sampled_from([*NAMES, "unknown"])), st.sampled_from([0.5, 0.85]))
def test_scores_are_those_of_the_dense_reference(
    graphs: list[GraphRows], seeds: int, question: set[str], decay: float
) -> None:
    chosen, names = list(range(min(seeds, len(graphs)))), sorted(question)
    parameters = GraphParameters(hops=20, decay=decay)
    with tempfile.TemporaryDirectory() as folder:
        shard = GraphShard(graph_file(Path(folder), graphs))
        found = walk_graph([shard], [Seed(0, row) for row in chosen], names, parameters)
    scores = np.zeros(len(graphs))
    scores[found.rows] = found.scores
    assert scores == pytest.approx(dense(graphs, chosen, names, decay), abs=1e-5)


def kb_of(count: int) -> list[GraphRows]:
    """Return documents that share entities, some of which are related."""
    generator = np.random.default_rng(5)
    graphs = []
    for _ in range(count):
        names = [f"entity {number}" for number in generator.integers(0, count // 3, 5)]
        edges = ((names[0], names[1], "knows", 0.7, 0), (names[1], names[2], TOGETHER, 0.4, 0))
        weights = generator.choice([0.3, 0.8, 1.585, 2.0], 5)
        graphs.append(GraphRows(tuple(zip(names, weights.tolist(), [0] * 5, strict=True)), edges))
    return graphs


def spread_over(
    folder: Path, graphs: list[GraphRows], shards: int, parameters: GraphParameters, gone: frozenset[int] = frozenset()
) -> dict[int, float]:
    """Return the score of each document. The documents are spread over the shards in turn."""
    dealt = [list(range(number, len(graphs), shards)) for number in range(shards)]
    opened = []
    for own in dealt:
        live = np.array([each not in gone for each in own])
        opened.append(GraphShard(graph_file(folder, [graphs[each] for each in own]), None if live.all() else live))
    seeds = [Seed(each % shards, each // shards) for each in (17, 40, 3)]
    found = walk_graph(opened, seeds, ["entity 4", "entity 11"], parameters)
    places = zip(found.shards.tolist(), found.rows.tolist(), found.scores.tolist(), strict=True)
    return {dealt[shard][row]: score for shard, row, score in places}


@pytest.mark.parametrize(
    "parameters",
    [
        GraphParameters(),
        GraphParameters(hops=2, most_links=60),
        GraphParameters(edge_types=(TOGETHER,)),
        GraphParameters(edge_types=()),
    ],
)
@pytest.mark.rule("engine-24")
def test_scores_are_the_same_to_the_last_bit_in_one_shard_in_seven_and_in_fifty(
    tmp_path: Path, parameters: GraphParameters
) -> None:
    graphs = kb_of(150)
    one = spread_over(tmp_path, graphs, 1, parameters)
    assert len(one) > 10
    assert spread_over(tmp_path, graphs, 7, parameters) == one
    assert spread_over(tmp_path, graphs, 50, parameters) == one


@pytest.mark.rule("engine-27")
def test_what_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    graphs = kb_of(90)
    gone = frozenset({5, 8, 40, 41, 42, 77})
    without = [graph if number not in gone else GraphRows() for number, graph in enumerate(graphs)]
    found = spread_over(tmp_path, graphs, 3, GraphParameters(hops=2), gone)
    assert gone.isdisjoint(found)
    # Documents without a graph still count, so they are deleted in both.
    assert found == spread_over(tmp_path, without, 3, GraphParameters(hops=2), gone)


def test_a_document_that_only_an_entity_leads_to_is_found(tmp_path: Path) -> None:
    graphs = [mentions("film", "director"), mentions("director", "town"), mentions("town"), mentions("other")]
    shard = GraphShard(graph_file(tmp_path, graphs))
    near = walk_graph([shard], [Seed(0, 0)], [], GraphParameters(hops=1))
    assert sorted(near.rows.tolist()) == [0, 1]
    far = walk_graph([shard], [Seed(0, 0)], [], GraphParameters(hops=2))
    assert sorted(far.rows.tolist()) == [0, 1, 2]
    assert far.scores[0] > far.scores[1] > far.scores[2]


def test_an_alias_leads_to_documents_that_know_the_other_name_only(tmp_path: Path) -> None:
    defines = GraphRows((("who", 1.0, 0), ("world health organization", 1.0, 0)),
                        (("who", "world health organization", ALIAS, 1.0, 0),))  # fmt: skip
    graphs = [mentions("who"), defines, mentions("world health organization"), mentions("elsewhere")]
    shards = [GraphShard(graph_file(tmp_path, [graph])) for graph in graphs]
    found = walk_graph(shards, [], ["who"], GraphParameters(hops=2))
    assert set(found.shards.tolist()) == {0, 1, 2}
    assert [*find_linked_entities(shards, ["who"], GraphParameters().most_common)] == ["who"]


def test_what_is_everywhere_leads_nowhere(tmp_path: Path) -> None:
    graphs = [mentions("everything", f"entity {number // 2}") for number in range(100)]
    shard = GraphShard(graph_file(tmp_path, graphs))
    found = walk_graph([shard], [Seed(0, 10)], ["everything"], GraphParameters())
    assert sorted(found.rows.tolist()) == [10, 11]
    assert find_linked_entities([shard], ["everything"], GraphParameters().most_common) == {}


def test_nothing_comes_of_nothing(tmp_path: Path) -> None:
    shard = GraphShard(graph_file(tmp_path, [mentions("a")]))
    assert len(walk_graph([shard], [], ["unknown"], GraphParameters()).rows) == 0
    assert len(walk_graph([], [], ["a"], GraphParameters()).rows) == 0
    assert (
        len(walk_graph([GraphShard(shard.file, np.array([False]))], [Seed(0, 0)], ["a"], GraphParameters()).rows) == 0
    )


def test_a_seed_without_entities_keeps_what_it_has(tmp_path: Path) -> None:
    shard = GraphShard(graph_file(tmp_path, [GraphRows(), mentions("a")]))
    found = walk_graph([shard], [Seed(0, 0)], [], GraphParameters())
    assert (found.rows.tolist(), found.scores.tolist()) == ([0], [1.0])


@pytest.mark.rule("engine-25")
def test_shards_without_a_graph_are_named() -> None:
    require_graph("default", [], 3)
    with pytest.raises(NotFoundError) as caught:
        require_graph("default", ["shard-a", "shard-b"], 4)
    assert caught.value.code == "E204"
    assert "2 of its 4 shards" in caught.value.explanation
    assert "shard-a, shard-b" in caught.value.explanation
    with pytest.raises(NotFoundError):
        require_graph("default", [], 0)
