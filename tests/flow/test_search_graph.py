"""Graph search over several documents, after updates and deletions, and with a partial or missing graph."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.ai.prompts import ModelSettings
from pair.kb.kb import KnowledgeBase
from pair.values import Document, GraphParameters, Hit, SearchOptions
from support.engine_parts import Ground, ids_of, stats_of
from support.errors import raises_code
from support.model_server import Answer, ModelServer

QUESTION = "Where was the colleague of Ada Lovelace born?"
CHAIN = [
    Document("ada", "For years Ada Lovelace worked together with Charles Babbage."),
    Document("charles", "The parents of Charles Babbage lived in Little Walworth."),
    Document("walworth", "A market is held at Little Walworth each Tuesday."),
]
OTHERS = [
    Document(f"other-{number:02}", f"Where was colleague number {number} of Person{chr(97 + number)} Smith born?")
    for number in range(12)
]
IN_SHARDS = {
    "graph": "text",
    "shard_trigger_vector_rows": 5,
    "max_vector_rows_per_shard": 3,
    "compaction_enabled": False,
}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, **IN_SHARDS)


def along(**parameters: float | tuple[str, ...]) -> SearchOptions:
    return SearchOptions(graph=dataclasses.replace(GraphParameters(), **parameters))  # type: ignore[arg-type]


def reached(kb: KnowledgeBase, question: str = QUESTION, **parameters: float | tuple[str, ...]) -> dict[str, float]:
    """Return the graph score of each hit that the walk reached."""
    found = kb.search(question, mode="graph", limit=50, options=along(**parameters))
    return {hit.document_id: hit.graph_score for hit in found if hit.graph_score}


def place_of(document_id: str, hits: list[Hit]) -> int:
    return [hit.document_id for hit in hits].index(document_id)


def test_an_entity_leads_to_what_shares_no_word_with_the_question(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*CHAIN, *OTHERS])
        assert stats_of(kb).shards > 3
        hybrid = list(kb.search(QUESTION, mode="hybrid", limit=50, exact=True))
        graph = list(kb.search(QUESTION, mode="graph", limit=50, exact=True))
        adaptive = kb.search(QUESTION, mode="adaptive", limit=50, exact=True)
    assert place_of("charles", graph) < place_of("charles", hybrid)
    assert graph[place_of("charles", graph)].graph_score
    assert adaptive.mode_used == "graph"
    assert "ada lovelace" in adaptive.reason
    assert ids_of(adaptive) == ids_of(graph)


def test_how_far_it_spreads_is_for_the_caller_to_say(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*CHAIN, *OTHERS])
        near, far = (reached(kb, hops=hops, seeds=1) for hops in (1, 3))
        assert "charles" in far
        assert "walworth" in far
        assert "walworth" not in near
        assert far["ada"] > far["charles"] > far["walworth"]
        steps = [reached(kb, hops=3, seeds=1, decay=decay)["walworth"] for decay in (0.3, 0.6, 0.9)]
        assert steps == sorted(steps), "who goes on more often gets farther"


def test_the_share_of_the_graph_goes_from_nothing_to_all(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*CHAIN, *OTHERS])
        hybrid = kb.search(QUESTION, mode="hybrid", limit=50, exact=True)
        without = kb.search(QUESTION, mode="graph", limit=50, exact=True, options=along(alpha=1.0))
        assert [(hit.document_id, hit.score) for hit in without] == [(hit.document_id, hit.score) for hit in hybrid]
        alone = kb.search(QUESTION, mode="graph", limit=50, exact=True, explain=True, options=along(alpha=0.0))
        assert all((hit.explanation or {})["raw"] == hit.graph_score for hit in alone)


@pytest.mark.parametrize("compacts", [False, True])
def test_an_entity_in_many_shards_is_one_until_its_documents_go(ground: Ground, compacts: bool) -> None:
    seen = [Document(f"seen-{number}", f"Witness number {number} saw the Blue Mauritius.") for number in range(9)]
    question = "Who saw the Blue Mauritius?"
    with ground.open() as kb:
        kb.upsert([*seen, *OTHERS])
        assert {each.id for each in seen} <= reached(kb, question).keys()
        kb.delete(["seen-0", "seen-1"])
        kb.upsert([Document("seen-2", "That witness saw nothing at all."), Document("seen-9", seen[0].text)])
        if compacts:
            kb.maintenance.compact(everything=True)
        after = reached(kb, question, question_share=1.0, seeds=0)
        assert after.keys() == {f"seen-{number}" for number in range(3, 10)}
        kb.delete([each.id for each in seen] + ["seen-9"])
        if compacts:
            kb.maintenance.compact(everything=True)
        assert reached(kb, question, question_share=1.0, seeds=0) == {}
        assert kb.search(question, mode="adaptive").mode_used == "hybrid"


def test_a_link_that_an_update_removed_is_gone_at_once(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*CHAIN, *OTHERS])
        before = reached(kb, hops=3, seeds=1)
        kb.upsert([Document("ada", "For years Ada Lovelace worked alone.")])
        assert "charles" in before
        assert {"charles", "walworth"}.isdisjoint(reached(kb, hops=3, seeds=1))
        kb.upsert(CHAIN[:1])
        assert reached(kb, hops=3, seeds=1) == before


# ── half a graph, and none ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def half(ground: Ground) -> Ground:
    ground.fill([*CHAIN, *OTHERS[:6]])
    ground.with_policy(graph="off").fill(OTHERS[6:])
    return ground


def test_graph_search_names_the_shards_without_a_graph(half: Ground) -> None:
    bare = {path.parent.name for path in half.stored_files(".duckdb")} - {
        path.parent.name for path in half.stored_files(".graph")
    }
    assert len(bare) > 1
    with half.open() as kb, raises_code("E204") as caught:
        kb.search(QUESTION, mode="graph")
    named = caught.value.details["shards"]
    assert len(named) == len(bare)
    assert all(any(folder in key for key in named) for folder in bare)
    assert any(folder in caught.value.explanation for folder in bare)


def test_adaptive_uses_the_half_that_there_is(half: Ground) -> None:
    with half.open() as kb:
        found = kb.search(QUESTION, mode="adaptive", limit=50)
        assert (found.mode_used, found.reason) == ("graph", "the question names ada lovelace")
        assert not found.partial
        assert set(ids_of(found)) == {each.id for each in [*CHAIN, *OTHERS]}
        assert {hit.document_id for hit in found if hit.graph_score} >= {"ada", "charles"}
        unnamed = kb.search("where was somebody born?", mode="adaptive")
        assert (unnamed.mode_used, unnamed.reason) == ("hybrid", "the question names no entity")


def test_putting_documents_in_again_gives_them_their_graph(half: Ground) -> None:
    with half.open() as kb:
        report = kb.upsert([*CHAIN, *OTHERS])
        assert (report.replaced, report.unchanged) == (6, 9)
        assert "charles" in reached(kb)


def test_without_any_graph_the_other_modes_answer(ground: Ground) -> None:
    with ground.with_policy(graph="off").open() as kb:
        kb.upsert([*CHAIN, *OTHERS])
        with raises_code("E204"):
            kb.search(QUESTION, mode="graph")
        adaptive, hybrid = (kb.search(QUESTION, mode=mode, exact=True) for mode in ("adaptive", "hybrid"))
        assert (adaptive.mode_used, adaptive.reason) == ("hybrid", "there is no graph")
        assert adaptive.passages == hybrid.passages


def test_documents_that_name_nothing_have_a_graph_all_the_same(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([Document(f"plain-{number}", f"nothing but {number} small words here") for number in range(9)])
        assert len(kb.search("small words", mode="graph", limit=50)) == 9
        kb.upsert([*CHAIN, *OTHERS])
        assert "charles" in reached(kb)
        kb.maintenance.compact(everything=True)
        assert "charles" in reached(kb)


# ── a model ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def modelled(tmp_path: Path, model: ModelServer) -> Ground:
    ground = Ground(tmp_path, graph="model")
    ai = ModelSettings(model.url, "tiny", retries=0, retry_wait_seconds=0.01)
    ground.settings = dataclasses.replace(ground.settings, ai=ai)
    return ground


def relation(**fields: object) -> Answer:
    return Answer(text="Certainly!\n" + json.dumps({"edges": [fields]}))


LINK = relation(src="blue door", dst="Green Key", rel="opened by", weight=0.5)
NOTES = [Document(f"note-{number}", f"a short note, number {number}") for number in range(6)]


def test_search_follows_the_entities_that_a_model_finds(modelled: Ground, model: ModelServer) -> None:
    model.answers += [LINK] * len(NOTES)
    with modelled.open() as kb:
        kb.upsert(NOTES)
        assert model.calls == len(NOTES)
        assert kb.upsert(NOTES).unchanged == len(NOTES)
        assert model.calls == len(NOTES), "what is stored is not asked for again"
        found = kb.search("what about the Green Key?", mode="adaptive", limit=50)
        assert (found.mode_used, found.reason) == ("graph", "the question names green key")
        assert all(hit.graph_score for hit in found)
        others = kb.search("the Green Key", mode="graph", limit=50, options=along(edge_types=("closed by",)))
        assert sorted(ids_of(others)) == [each.id for each in NOTES]


BAD = {
    "no JSON at all": Answer(text="I would rather not."),
    "JSON that ends early": Answer(text='{"entities": ["Ada", '),
    "a list": Answer(text='["Ada"]'),
    "no fields": Answer(text="{}"),
    "fields of other types": Answer(text='{"entities": {"a": 1}, "edges": [1, null, {"src": 3, "dst": []}]}'),
    "an edge with one end": relation(src="blue door", rel="opened by"),
    "an edge without a name and a weight": relation(src="blue door", dst="Green Key"),
    "a weight of zero": relation(src="blue door", dst="Green Key", rel="x", weight=0),
    "a negative weight": relation(src="blue door", dst="Green Key", rel="x", weight=-3),
    "a weight that is a text": relation(src="blue door", dst="Green Key", rel="x", weight="much"),
    "a weight without end": relation(src="blue door", dst="Green Key", rel="x", weight=float("inf")),
    "a weight that no float holds": relation(src="blue door", dst="Green Key", rel="x", weight=10**400),
    "names of other scripts, marks and lines": relation(
        src="a\0b\n\ud83c", dst="\u202e\u05e9\u05dc\u05d5\u05dd", rel="\n", weight=1
    ),
    "an empty reply": Answer(text=""),
    "an error of the server": Answer(500, body="oh no"),
    "not even a completion": Answer(body="<html>"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
def test_no_reply_of_a_model_blocks_an_ingest(modelled: Ground, model: ModelServer, answer: Answer) -> None:
    model.answers += [answer] * 12
    with modelled.open() as kb:
        assert kb.upsert(NOTES).added == len(NOTES)
        for mode in ("hybrid", "keyword", "vector", "adaptive"):
            assert sorted(ids_of(kb.search("a short note", mode=mode, limit=50))) == [each.id for each in NOTES]


def test_a_server_that_dies_in_the_middle_costs_the_graph_of_the_rest_only(
    modelled: Ground, model: ModelServer
) -> None:
    def notes() -> Iterator[Document]:
        yield from NOTES[:3]
        model.stop()
        yield from NOTES[3:]

    model.answers += [LINK] * 3
    with modelled.with_policy(ingest_batch_documents=3).open() as kb:
        assert kb.upsert(notes()).added == len(NOTES)
        found = kb.search("what about the Green Key?", mode="adaptive", limit=50)
        assert found.mode_used == "graph"
        assert sorted(ids_of(found)) == [each.id for each in NOTES]
        assert {hit.document_id for hit in found if hit.graph_score} >= {each.id for each in NOTES[:3]}


def test_without_a_server_from_the_beginning_everything_but_the_graph_is_there(
    modelled: Ground, model: ModelServer
) -> None:
    model.stop()
    with modelled.open() as kb:
        assert kb.upsert(NOTES).added == len(NOTES)
        assert len(kb.search("a short note", mode="adaptive", limit=50)) == len(NOTES)
        with raises_code("E204"):
            kb.search("a short note", mode="graph")


# ── links ──────────────────────────────────────────────────────────────────────────────────────────

LINKED = [
    Document(
        "guide/start.md", "The Blue Lighthouse opens daily; see [the tide table](../tables/tides.md#high).", "Start"
    ),
    Document("tables/tides.md", "Water rises twice between dusk and dawn.", "Numbers"),
    Document("wiki/Keeper Notes.md", "Somebody trims every wick on Sundays.", "Notes"),
    Document("guide/staff.md", "Who works at the Blue Lighthouse is in [[keeper notes|these notes]].", "Staff"),
    Document("guide/broken.md", "The Blue Lighthouse had a [shop](gone.md) and [a site](https://kb.example/).", "Shop"),
]
LIGHTHOUSE = "When does the Blue Lighthouse open?"


def score_with_links(kb: KnowledgeBase, question: str = LIGHTHOUSE) -> dict[str, float]:
    hits = kb.search(question, mode="graph", limit=50, exact=True, explain=True)
    return {hit.document_id: (hit.explanation or {})["raw"] for hit in hits}  # type: ignore[misc]


def test_a_link_leads_from_a_hit_to_its_target_and_back(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*LINKED, *OTHERS])
        found = reached(kb, LIGHTHOUSE)
        assert found["tables/tides.md"] > 0.5
        assert found["wiki/Keeper Notes.md"] > 0.5
        back = reached(kb, "How often does water rise between dusk and dawn?", seeds=1)
        assert {"guide/start.md", "tables/tides.md"} <= back.keys()


def test_a_link_to_a_later_document_leads_there_once_it_is_stored(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*LINKED, *OTHERS])
        assert "guide/gone.md" not in reached(kb, LIGHTHOUSE)
        kb.upsert([Document("guide/GONE.md", "Postcards cost little.")])
        assert reached(kb, LIGHTHOUSE)["guide/GONE.md"] > 0.5
        kb.delete(["guide/GONE.md"])
        assert "guide/GONE.md" not in reached(kb, LIGHTHOUSE)


def test_scores_along_links_are_the_same_in_every_layout(tmp_path: Path) -> None:
    documents = [*LINKED, *CHAIN, *OTHERS]
    scores = []
    for name, rows in (("one", 1000), ("seven", 3), ("fifty", 1)):
        ground = Ground(
            tmp_path / name, **{**IN_SHARDS, "shard_trigger_vector_rows": rows, "max_vector_rows_per_shard": rows}
        )
        with ground.open() as kb:
            kb.upsert([*documents, Document("guide/gone.md", "Postcards cost little.")])
            kb.delete(["guide/gone.md"])
            scores.append(score_with_links(kb))
            kb.maintenance.compact(everything=True)
            scores.append(score_with_links(kb))
    assert all(each == scores[0] for each in scores)
    assert scores[0]["tables/tides.md"] > scores[0]["guide/broken.md"] / 2


def test_links_are_shown_with_the_documents_that_they_join(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*LINKED, *OTHERS])
        start = kb.graph.around_document("guide/start.md")
        assert "/tables/tides" in [entity.name for entity in start.entities]
        assert "tables/tides.md" in [document.id for document in start.documents]
        tides = kb.graph.around_document("tables/tides.md")
        assert "guide/start.md" in [document.id for document in tides.documents]
        link = kb.graph.around_entity("/tables/tides")
        assert link.entities[0].name == "/tables/tides"
        assert {document.id for document in link.documents} == {"guide/start.md", "tables/tides.md"}
