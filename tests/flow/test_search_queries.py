"""Any query in every mode: the result is deterministic, and right where words decide."""

from collections.abc import Iterator

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, Hits, SearchMode, SearchOptions
from support.engine_parts import Ground, ids_of, numbered, stats_of
from support.errors import raises_code

TOLD = [
    Document("code", "The build stops with E0432 in src/main.rs; see https://docs.example.org/errors?code=432#list."),
    Document("other code", "Another build stops with E0433 in src/lib.rs."),
    Document("flag", "Call it with --no-kb, or set foo_bar in v1.2.3 of the tool."),
    Document("hebrew", "שלום עולם, זה מסמך קצר בעברית"),
    Document("arabic", "مرحبا بالعالم هذا نص قصير"),
    Document("chinese", "我们在北京的天安门广场"),
    Document("german", "Die Straßenbahn fährt über die Brücke."),
    Document("emoji", "🎉 a party for everybody 🎉"),
    Document("hamlet", "To be, or not to be, that is the question."),
    Document("moved", "The question is what will be moved to the attic."),
    Document("castle", "The old castle stands on a hill beside the river."),
    Document("garden", "A garden with roses lies behind the castle wall."),
    Document("ada", "In her notes Ada Lovelace wrote about engines."),
    Document("photosynthesis", "Plants turn light into sugar by photosynthesis."),
]
DOCUMENTS = [*TOLD, *numbered(15)]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """Return a KB with many shards."""
    ground = Ground(
        tmp_path_factory.mktemp("queries"),
        embedder="static",
        embedding_dimension=0,
        graph="text",
        chunker="structure",
        shard_trigger_vector_rows=8,
        max_vector_rows_per_shard=6,
    )
    with ground.open() as opened:
        opened.upsert(DOCUMENTS)
        assert stats_of(opened).shards > 3
        yield opened


every_mode = pytest.mark.parametrize("mode", MODES)
with_keywords = pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "vector"])

ALL_OPTIONS = SearchOptions(highlights=True, diversity=0.2)
ODD_QUERIES = {
    "one letter": "a",
    "one digit": "7",
    "10 kB of words": "the old castle and its garden " * 340,
    "10 kB without a blank": "castle" * 1700,
    "10 kB of one compound": "a/b." * 2500,
    "10 kB of parentheses": "(" * 10_000,
    "10 kB of operators": '-"a* ' * 2000,
    "10 kB of marks": "e" + "\u0301" * 10_000,
    "10 kB of Han": "北京" * 1700,
    "10 kB of capitals": "The Castle of " * 720,
    "stop words": "the of and to",
    "punctuation": "?!... --- ;:; ()",
    "one quotation mark": '"',
    "an empty phrase": '""',
    "an open phrase": '"the old',
    "a lone star": "*",
    "a lone minus": "-",
    "operators only": '-"" ** -* -',
    "emoji": "🎉🎉",
    "emoji of several characters": "👩‍👩‍👧‍👦 🏳️‍🌈",
    "right to left": "שלום עולם",
    "with a direction mark": "\u202e\u05e9\u05dc\u05d5\u05dd\u202c",
    "mixed scripts": "castle 北京 שלום Brücke مرحبا",
    "typo": "phtosynthsis of plnts",
    "a zero byte": "castle\0garden",
    "a lone surrogate": "castle \ud83c",
    "private use": "\ue000\U0010ffff",
    "lines and tabs": "\t castle \r\n\n garden \x0b",
    "looks like SQL": "'; DROP TABLE docs; --",
    "looks like a pattern": "(a+)+$ [castle]{2} \\",
}


@every_mode
@pytest.mark.parametrize("query", ODD_QUERIES.values(), ids=ODD_QUERIES.keys())
def test_no_query_is_too_odd_and_each_is_answered_the_same_way_twice(
    kb: KnowledgeBase, query: str, mode: SearchMode
) -> None:
    first = kb.search(query, mode=mode, explain=True, options=ALL_OPTIONS)
    assert first == kb.search(query, mode=mode, explain=True, options=ALL_OPTIONS)
    assert not first.partial
    assert len({hit.chunk_id for hit in first}) == len(first) <= 5
    for hit in first:
        assert 0.0 <= hit.score <= 1.0 + 1e-9
        assert all(0 <= start < end <= len(hit.text) for start, end in hit.highlights)


@every_mode
@pytest.mark.parametrize("query", ["", " ", "\t\n\u00a0"])
def test_an_empty_query_is_refused(kb: KnowledgeBase, query: str, mode: SearchMode) -> None:
    with raises_code("E215"):
        kb.search(query, mode=mode)


def test_an_unknown_mode_and_a_diversity_out_of_range_are_refused(kb: KnowledgeBase) -> None:
    with raises_code("E215"):
        kb.search("castle", mode="best")
    for diversity in (-0.1, 1.0, float("nan")):
        with raises_code("E215"):
            SearchOptions(diversity=diversity)


@every_mode
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_is_not_positive_returns_nothing(kb: KnowledgeBase, mode: SearchMode, limit: int) -> None:
    assert len(kb.search("castle", mode=mode, limit=limit)) == 0


@with_keywords
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("E0432", "code"),
        ("what is e0433?", "other code"),
        ("src/main.rs", "code"),
        ("main.rs", "code"),
        ("https://docs.example.org/errors?code=432#list", "code"),
        ("docs.example.org", "code"),
        ("--no-kb", "flag"),
        ("foo_bar", "flag"),
        ("1.2.3", "flag"),
        ("שלום", "hebrew"),
        ("مرحبا بالعالم", "arabic"),
        ("天安门", "chinese"),
        ("strassenbahn", "german"),
        ("bruecke straßenbahnen fährt", "german"),
        ("to be or not to be", "hamlet"),
        ("photosynth*", "photosynthesis"),
        ("PHOTOSYNTHESIS", "photosynthesis"),
        ("item7", "doc-0007"),
    ],
)
def test_exact_words_are_found_first(kb: KnowledgeBase, query: str, expected: str, mode: SearchMode) -> None:
    assert ids_of(kb.search(query, mode=mode))[:1] == [expected]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "graph", "adaptive"])
def test_emoji_and_typos_are_found_by_what_they_look_like(kb: KnowledgeBase, mode: SearchMode) -> None:
    assert ids_of(kb.search("🎉", mode=mode))[0] == "emoji"
    assert "photosynthesis" in ids_of(kb.search("photosynthesys", mode=mode))


@with_keywords
def test_a_quoted_phrase_must_be_there_word_by_word(kb: KnowledgeBase, mode: SearchMode) -> None:
    assert ids_of(kb.search('"to be"', mode=mode)) == ["hamlet"]
    assert ids_of(kb.search("\u201ethe castle wall\u201c", mode=mode)) == ["garden"]
    assert ids_of(kb.search('"castle old"', mode=mode)) == []
    assert ids_of(kb.search('river "the old castle"', mode=mode)) == ["castle"]


@with_keywords
def test_a_long_question_may_quote_what_its_answer_does_not(kb: KnowledgeBase, mode: SearchMode) -> None:
    found = kb.search('which roses lie behind the wall that "the old castle" has?', mode=mode, limit=2)
    assert sorted(ids_of(found)) == ["castle", "garden"]


@with_keywords
@pytest.mark.parametrize("query", ["castle -garden", 'castle -"with roses"', "castle -garde*  -garden"])
def test_excluded_words_are_never_found(kb: KnowledgeBase, query: str, mode: SearchMode) -> None:
    found = ids_of(kb.search(query, mode=mode, limit=100))
    assert "castle" in found
    assert "garden" not in found


@pytest.mark.parametrize("mode", ["hybrid", "graph", "adaptive"])
def test_a_query_that_only_excludes_finds_nothing_of_that(kb: KnowledgeBase, mode: SearchMode) -> None:
    found = ids_of(kb.search("-castle", mode=mode, limit=100))
    assert len(found) == len(DOCUMENTS) - 2 - sum("castle" in each.text for each in numbered(15))
    assert {"castle", "garden", "doc-0002"}.isdisjoint(found)


def test_keywords_find_nothing_in_a_text_without_words(kb: KnowledgeBase) -> None:
    for query in ("?!", "🎉", "-castle", "zzyzx", "phtsynthss"):
        assert ids_of(kb.search(query, mode="keyword")) == []


def test_a_prefix_finds_all_that_begins_with_it(kb: KnowledgeBase) -> None:
    expected = {each.id for each in DOCUMENTS if "castle" in each.text}
    assert set(ids_of(kb.search("cast*", mode="keyword", limit=100))) == expected
    assert set(ids_of(kb.search("item1*", mode="keyword", limit=100))) == {"doc-0001"} | {
        f"doc-{number:04}" for number in range(10, 15)
    }


def in_every_mode(kb: KnowledgeBase, query: str) -> dict[str, Hits]:
    return {mode: kb.search(query, mode=mode) for mode in MODES}


def test_hits_name_the_search_mode(kb: KnowledgeBase) -> None:
    plain = in_every_mode(kb, "an old castle")
    assert {mode: hits.mode_used for mode, hits in plain.items()} == {
        "hybrid": "hybrid",
        "keyword": "keyword",
        "vector": "vector",
        "graph": "graph",
        "adaptive": "hybrid",
    }
    assert plain["adaptive"].reason == "the question names no entity"
    assert plain["adaptive"].passages == plain["hybrid"].passages
    telling = in_every_mode(kb, "what did Ada Lovelace write?")
    assert (telling["adaptive"].mode_used, telling["adaptive"].reason) == ("graph", "the question names ada lovelace")
    assert telling["adaptive"].passages == telling["graph"].passages
    unknown = kb.search("what about E9999?", mode="adaptive")
    assert unknown.mode_used == "hybrid"
    assert "e9999" in unknown.reason
