"""The content of hits: exact places, matches, explained scores; and their order by diversity or a reranker."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, GraphParameters, SearchMode, SearchOptions
from support.engine_parts import Ground, ids_of

MANUAL = (
    "# Pump P-100\n\nGrüße vorab 🎉: this manual is about the pump.\n\n"
    "## Start\n\nOpen the inlet valve before you start the pump. Never start it dry, or the seal breaks.\n\n"
    "Watch the pressure gauge while the pump starts; above nine bar the pump must be stopped.\n\n"
    "## Storage\n\nKeep blankets, lamps and ropes in the wooden cupboard beside the door of the cellar.\n\n"
    "## Stop\n\nClose the outlet, wait a minute, then stop the pump and close the inlet valve again.\n"
)
DOCUMENTS = [
    Document("manual", MANUAL, title="Pumps"),
    Document("gauge-1", "A pressure gauge shows nine bar.", title="Gauges"),
    Document("gauge-2", "A pressure gauge that shows nine bar."),
    Document("gauge-3", "The pressure gauge shows nine bar."),
    Document("gauge-4", "One pressure gauge shows nine bar now."),
    Document("bar", "Nine people met in a bar and spoke about pressure at work."),
    Document("ada", "Together with Charles Babbage, Ada Lovelace wrote notes."),
    Document("charles", "His parents took young Charles Babbage to Teignmouth."),
    Document("roses", "Roses want sun, water and patience."),
]
every_mode = pytest.mark.parametrize("mode", MODES)
QUERIES = ["start the pump with the inlet valve", "pressure gauge of nine bar", "Charles Babbage", "roses 🎉 Grüße"]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    ground = Ground(
        tmp_path_factory.mktemp("hits"),
        embedder="static",
        embedding_dimension=0,
        chunk_size_bytes=110,
        graph="text",
        chunker="structure",
    )
    with ground.open() as opened:
        opened.upsert(DOCUMENTS)
        assert opened.document("manual").chunks > 4
        yield opened


# ── passages ───────────────────────────────────────────────────────────────────────────────────────


@every_mode
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("limit", [2, 30])
def test_a_passage_is_a_stretch_of_its_document(kb: KnowledgeBase, query: str, mode: SearchMode, limit: int) -> None:
    found = kb.search(query, mode=mode, limit=limit)
    for hit in found:
        assert kb.document(hit.document_id).text[hit.start : hit.end] == hit.text
    for one, other in itertools.permutations([hit for hit in found if hit.document_id == "manual"], 2):
        if one.start < other.start:
            assert MANUAL[one.end : other.start].strip(), "what only blanks keep apart is one"


def test_neighbours_become_one_hit_with_the_score_of_the_best(kb: KnowledgeBase) -> None:
    alone = kb.search("never start it dry, or the seal breaks", mode="keyword", limit=1)[0]
    query = "never start it dry, or the seal breaks: watch the gauge"
    merged = kb.search(query, mode="keyword", limit=8, explain=True)[0]
    assert merged.chunk_id == alone.chunk_id
    assert merged.start <= alone.start < alone.end < merged.end
    assert "Never start it dry" in merged.text
    assert "Watch the pressure gauge" in merged.text
    assert (merged.explanation or {})["raw"] == 1.0


# ── highlights ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "vector"])
def test_highlights_are_the_words_that_were_asked_for(kb: KnowledgeBase, mode: SearchMode) -> None:
    marked = SearchOptions(highlights=True)
    for hit in kb.search("starting pumps, -roses gau* grüße", mode=mode, limit=30, options=marked):
        words = {hit.text[start:end].casefold() for start, end in hit.highlights}
        assert words <= {"start", "starts", "pump", "pumps", "gauge", "gauges", "grüsse"}
        expected = [word for word in hit.text.casefold().split() if word.strip(".,;:-#") in {"start", "pump", "gauge"}]
        assert len(hit.highlights) >= len(expected)
        flat = [place for mark in hit.highlights for place in mark]
        assert flat == sorted(flat)


def test_nothing_is_marked_unless_asked_for(kb: KnowledgeBase) -> None:
    assert all(hit.highlights == () and hit.explanation is None for hit in kb.search("start the pump"))
    marked = kb.search("start the pump", mode="vector", options=SearchOptions(highlights=True))
    assert all(hit.highlights == () for hit in marked), "a vector does not say which words it means"


def test_a_phrase_and_a_compound_are_marked_at_their_places(kb: KnowledgeBase) -> None:
    hit = kb.search('"inlet valve" P-100', mode="keyword", options=SearchOptions(highlights=True), limit=30)[0]
    assert {hit.text[start:end] for start, end in hit.highlights} >= {"inlet", "valve"}
    code = kb.search("P-100", mode="hybrid", options=SearchOptions(highlights=True))[0]
    assert "P-100" in {code.text[start:end] for start, end in code.highlights}


# ── explanations ───────────────────────────────────────────────────────────────────────────────────


@every_mode
@pytest.mark.parametrize("query", [*QUERIES, "zzyzx", "?", "-roses"])
@pytest.mark.parametrize("alpha", [0.5, 0.2])
def test_explanations_add_up(kb: KnowledgeBase, query: str, mode: SearchMode, alpha: float) -> None:
    options = SearchOptions(graph=GraphParameters(alpha=alpha))
    found = kb.search(query, mode=mode, limit=30, explain=True, options=options)
    for hit in found:
        why = hit.explanation
        assert why is not None
        numbers = {name: float(value) for name, value in why.items() if name != "mode"}
        assert why["mode"] == found.mode_used
        assert numbers["score"] == hit.score
        assert 0.0 <= numbers.get("keyword", 0.0) <= 1.0
        assert {"standing", "raw"} <= numbers.keys()
        assert all(0.0 <= numbers.get(name, 0.0) <= 1.0 for name in ("coverage", "nearness", "agreement", "standing"))
        if found.mode_used == "vector":
            assert hit.distance is not None
            assert numbers["raw"] == pytest.approx(1 / (1 + hit.distance))
        if found.mode_used == "keyword":
            assert numbers["keyword"] == numbers["raw"]
        if found.mode_used in {"hybrid", "graph"}:
            fused = (1 - numbers["weight"]) * numbers["keyword"] + numbers["weight"] * numbers["vector"]
            assert fused == pytest.approx(numbers.get("hybrid", numbers["raw"]))
        if found.mode_used == "graph":
            assert numbers["alpha"] == alpha
            assert numbers["graph"] == hit.graph_score
            assert numbers["raw"] == pytest.approx(alpha * numbers["hybrid"] + (1 - alpha) * numbers["graph"])
    scores = [hit.score for hit in found]
    assert scores == sorted(scores, reverse=True)
    best = max((float((hit.explanation or {}).get("keyword", 0.0)) for hit in found), default=0.0)
    assert best in {0.0, 1.0}


def test_the_only_document_ranks_with_the_whole_score(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Ground(tmp_path_factory.mktemp("single")).open() as single:
        single.upsert([Document("only", "A single document about Newtown.")])
        for mode in ("hybrid", "keyword"):
            [hit] = single.search("document Newtown", mode=mode, explain=True)
            assert (hit.explanation or {})["raw"] == pytest.approx(1.0)
            assert hit.score > 0.5


# ── diversity ──────────────────────────────────────────────────────────────────────────────────────


@every_mode
def test_diversity_brings_up_what_is_unlike_and_keeps_the_best_first(kb: KnowledgeBase, mode: SearchMode) -> None:
    query = "a pressure gauge shows nine bar"
    plain = ids_of(kb.search(query, mode=mode, limit=4))
    diverse = ids_of(kb.search(query, mode=mode, limit=4, options=SearchOptions(diversity=0.8)))
    assert diverse[0] == plain[0]
    assert sum(each.startswith("gauge") for each in plain) >= 3
    assert sum(each.startswith("gauge") for each in diverse) < sum(each.startswith("gauge") for each in plain)
    everything = [
        ids_of(kb.search(query, mode=mode, limit=50, options=SearchOptions(diversity=much))) for much in (0.0, 0.8)
    ]
    assert sorted(set(everything[0])) == sorted(set(everything[1])), "another order, not other documents"


# ── a reranker ─────────────────────────────────────────────────────────────────────────────────────


class ShortestFirst:
    """A reranker that prefers short texts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        self.asked.append((query, len(texts)))
        return [-float(len(text)) for text in texts]


@every_mode
def test_a_reranker_has_the_last_word(kb: KnowledgeBase, mode: SearchMode) -> None:
    plain = kb.search("pressure gauge", mode=mode, limit=30, explain=True)
    core, reranker = kb._core, ShortestFirst()
    core.reranker = reranker
    try:
        found = kb.search("pressure gauge", mode=mode, limit=2, explain=True)
        assert len(kb.search("pressure gauge", mode=mode, limit=0)) == 0
        assert len(kb.search("pressure gauge", mode=mode, limit=-1)) == 0
    finally:
        core.reranker = None
    assert reranker.asked[0] == ("pressure gauge", len(plain)), "it sees more than are wanted"
    assert [len(hit.text) for hit in found] == sorted(len(hit.text) for hit in plain)[:2]
    for hit in found:
        before = next(each for each in plain if each.chunk_id == hit.chunk_id)
        assert hit.score == pytest.approx(1 / (1 + math.exp(len(hit.text))), abs=1e-12)
        assert hit.explanation == {**(before.explanation or {}), "reranker": -len(hit.text)}
