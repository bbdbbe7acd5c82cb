"""A KB in 1, 7 and 50 shards gives bit-identical answers in every mode, including ties."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pair.ai.wordllama import WordLlamaEmbedder
from pair.engine.maintenance.merge_package import PackageShards
from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, GraphParameters, Hits, SearchMode, SearchOptions
from support.engine_parts import Ground

PEOPLE = ["Ada Byron", "Grace Hopper", "Alan Turing", "Emmy Noether", "Kurt Gödel", "Sofia Kowalewskaja"]
TOWNS = ["Göttingen", "Oxbridge", "Newtown", "Port Said"]
THINGS = ["engines", "rivers", "proofs", "gardens", "codes"]
LONG = (
    "# Journeys\n\nEmmy Noether went to Newtown by train and wrote down every proof on the way.\n\n"
    "## Return\n\nShe came back along the river, and Kurt Gödel met her with E0432 in Port Said.\n\n"
    "- engines were late\n- gardens were green\n- rivers were deep\n"
)


@functools.cache
def corpus() -> list[Document]:
    """Return documents that are linked by names, equal texts, and texts without names."""
    all_values = [
        Document(
            f"doc-{number:02}",
            f"In {TOWNS[number % 4]} we saw {PEOPLE[number % 6]} with {THINGS[number % 5]} and {THINGS[number % 3]}.",
            title=PEOPLE[number % 6] if number % 4 == 0 else "",
            metadata={"number": number, "town": TOWNS[number % 4]},
        )
        for number in range(34)
    ]
    same = [Document(f"same-{number}", "Alan Turing broke codes.", metadata={"number": number}) for number in range(4)]
    near = [Document(f"case-{number}", "alan  turing broke codes.") for number in range(2)]
    nameless = [
        Document(f"plain-{number}", f"nothing but {THINGS[number % 5]} and {number} more") for number in range(9)
    ]
    long = [Document(f"long-{number}", LONG, title="Diary") for number in range(2)]
    vector = WordLlamaEmbedder().embed(["a place of its own"])[0].tolist()
    placed = [Document(f"placed-{number}", "Grace Hopper was at a place.", vector=vector) for number in range(2)]
    return [*all_values, *same, *near, *nameless, *long, *placed, Document("empty", "", vector=vector)]


ASKED = ["Emmy Noether in Newtown", "who broke codes?", "E0432", "rivers and gardens"]
POLICY: dict[str, Any] = {
    "embedder": "static",
    "embedding_dimension": 0,
    "chunker": "structure",
    "chunk_size_bytes": 150,
    "graph": "text",
}
SHARDS = {
    1: {},
    7: {"shard_trigger_vector_rows": 9, "max_vector_rows_per_shard": 9},
    50: {"shard_trigger_vector_rows": 1, "max_vector_rows_per_shard": 1},
}


@pytest.fixture(scope="module")
def kbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, KnowledgeBase]]:
    opened = {}
    for count, changes in SHARDS.items():
        opened[count] = Ground(tmp_path_factory.mktemp("layout"), **POLICY, **changes).open()
        opened[count].upsert(corpus())
    yield opened
    for kb in opened.values():
        kb.close()


def all_values(hits: Hits) -> list[dict[str, Any]]:
    """Return all fields of the hits, and the way in which they were found."""
    return [*(hit.to_json() for hit in hits), {"mode": hits.mode_used, "reason": hits.reason}]


def test_there_are_so_many_shards(kbs: dict[int, KnowledgeBase]) -> None:
    for count, kb in kbs.items():
        stats = kb.stats()
        assert stats.shards == count


WORDS = [
    *(
        "engines",
        "rivers",
        "proof",
        "garden",
        "codes",
        "nothing",
        "place",
        "saw",
        "likes",
        "the",
        "we",
        "more",
        "diary",
    ),
    *("Ada", "Byron", "Turing", "Noether", "Gödel", "Newtown", "Göttingen", "Port", "Said", "Hopper", "E0432", "River"),
    *("-rivers", "-Turing", "gard*", "eng*", '"broke codes"', '"Emmy Noether"', '"was at"', "?", "zzyzx", "\U0001f389"),
]
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
graphs = st.builds(
    GraphParameters,
    hops=st.integers(1, 3),
    alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    decay=st.sampled_from([0.5, 0.85]),
    edge_types=st.sampled_from([None, (), ("together",), ("alias",)]),
    seeds=st.integers(0, 6),
    most_common=st.sampled_from([0.05, 1.0]),
    most_links=st.sampled_from([5, 6000]),
)
options = st.builds(
    SearchOptions,
    max_distance=st.sampled_from([None, None, 0.9, 1.2]),
    highlights=st.just(True),
    diversity=st.sampled_from([0.0, 0.0, 0.4]),
    graph=graphs,
)
filters = st.sampled_from([None, None, {"town": "Newtown"}, {"number": {"lt": 3}}, {"number": 99}])


@given(query=queries, mode=st.sampled_from(MODES), limit=st.sampled_from([1, 3, 10, 200]), more=options, kept=filters)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.rule("engine-13")
def test_an_exact_answer_does_not_depend_on_the_layout(
    kbs: dict[int, KnowledgeBase], query: str, mode: SearchMode, limit: int, more: SearchOptions, kept: Any
) -> None:
    first, *others = (
        all_values(kb.search(query, mode=mode, limit=limit, filter=kept, exact=True, explain=True, options=more))
        for kb in kbs.values()
    )
    assert all(other == first for other in others)


@given(query=queries, limit=st.sampled_from([1, 5, 200]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keyword_scores_do_not_know_the_layout_exact_or_not(
    kbs: dict[int, KnowledgeBase], query: str, limit: int
) -> None:
    found = [kb.search(query, mode="keyword", limit=limit, explain=True) for kb in kbs.values()]
    for one, other in itertools.pairwise(found):
        assert [hit.chunk_id for hit in one] == [hit.chunk_id for hit in other]
        for name in ("score", "keyword", "bm25"):
            values = [[hit.explanation[name] for hit in hits if hit.explanation] for hits in (one, other)]
            assert values[0] == pytest.approx(values[1], abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_ties_are_in_the_order_of_their_ids_in_every_layout(kbs: dict[int, KnowledgeBase], mode: SearchMode) -> None:
    for kb, limit in itertools.product(kbs.values(), (1, 3, 100)):
        best = kb.search("Alan Turing broke codes.", mode=mode, exact=True, limit=limit)[0]
        places = [best.document_id, *(other.document_id for other in best.also_in)]
        # The two that are written in another way come first or last, as their scores say.
        assert [each for each in places if each.startswith("same")] == ["same-0", "same-1", "same-2", "same-3"]
        assert mode in {"graph", "adaptive"} or {"case-0", "case-1"} <= set(places)


def test_after_compaction_and_updates_nothing_is_different(kbs: dict[int, KnowledgeBase], tmp_path: Any) -> None:
    expected = [all_values(kbs[1].search(query, mode=mode, exact=True)) for query in ASKED for mode in MODES]
    with Ground(tmp_path, **POLICY, **SHARDS[7]).open() as kb:
        kb.upsert([Document(f"doc-{number:02}", "Emmy Noether was never here.") for number in range(0, 60, 3)])
        kb.upsert(corpus())
        kb.delete(sorted({each.id for each in kb.documents(limit=100)} - {each.id for each in corpus()}))
        for _ in range(2):
            answers = [all_values(kb.search(query, mode=mode, exact=True)) for query in ASKED for mode in MODES]
            assert answers == expected
            kb.maintenance.compact(everything=True)


def test_merged_packages_answer_as_if_their_documents_were_stored_here(
    kbs: dict[int, KnowledgeBase], tmp_path: Path
) -> None:
    with Ground(tmp_path / "here", **POLICY).open() as kb:
        kb.upsert(corpus()[::3])
        for number in (1, 2):
            origin = Ground(tmp_path / f"origin-{number}", **POLICY, **SHARDS[7])
            with origin.open() as made:
                made.upsert(corpus()[number::3])
                packed = made.backup.pack_index()
            paths = {file.name: origin.store / file.key for file in packed.files}
            package = PackageShards(
                packed.manifest,
                f"part-{number}",
                f"part-{number} 1.0.0",
                "sha",
                paths.get,
                owner=f"part-{number}",
                is_verified=True,
            )
            kb.backup.package_merger().install(package)
        for query, mode in itertools.product(ASKED, MODES):
            expected = all_values(kbs[1].search(query, mode=mode, exact=True, explain=True))
            assert all_values(kb.search(query, mode=mode, exact=True, explain=True)) == expected


def test_deleted_documents_leave_no_trace_in_the_scores(tmp_path: Path) -> None:
    kept, gone = corpus()[::2], [document.id for document in corpus()[1::2]]
    with Ground(tmp_path / "a", **POLICY, **SHARDS[7]).open() as kb, Ground(tmp_path / "b", **POLICY).open() as fresh:
        kb.upsert(corpus())
        kb.search("warm the caches with rivers and codes", mode="keyword")
        kb.delete(gone)
        fresh.upsert(kept)
        for query, mode in itertools.product(ASKED, MODES):
            expected = all_values(fresh.search(query, mode=mode, exact=True, explain=True))
            assert all_values(kb.search(query, mode=mode, exact=True, explain=True)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_words_are_answered_alike_in_every_layout(kbs: dict[int, KnowledgeBase], mode: SearchMode) -> None:
    words = [*PEOPLE, *TOWNS, *THINGS, *(f"unknown{number}" for number in range(10))]
    query = " ".join(itertools.islice(itertools.cycle(" ".join(words).split()), 10_000))
    first, *others = (all_values(kb.search(query, mode=mode, exact=True)) for kb in kbs.values())
    assert first
    assert all(other == first for other in others)


@pytest.mark.parametrize("mode", MODES)
def test_a_kb_with_one_document_answers_in_every_mode(tmp_path: Path, mode: SearchMode) -> None:
    with Ground(tmp_path, **POLICY).open() as kb:
        kb.upsert([Document("only", "Emmy Noether kept gardens in Newtown.", title="Emmy Noether")])
        assert [hit.document_id for hit in kb.search("gardens of Emmy Noether", mode=mode)] == ["only"]
        assert [hit.document_id for hit in kb.search("gardens", mode=mode, filter={"number": 1})] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_kb_without_any_word_is_searched_in_every_mode(tmp_path: Path, mode: SearchMode) -> None:
    with Ground(tmp_path, **POLICY).open() as kb:
        kb.upsert([Document(f"marks-{number}", "… — !? " * (number + 1)) for number in range(3)])
        found = kb.search("gardens of Emmy Noether", mode=mode)
        assert not found.partial
        assert mode != "keyword" or not found.passages
