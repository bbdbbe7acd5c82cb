"""What the standard suites do not ask: citations, filters, scores, diversity, and pair's own embedder."""

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

import pair
from langchain_pair import PairDocumentIndex, PairRetriever, PairVectorStore
from pair.librarians.citations import parse_citation_id
from pair.settings import Settings

LUNCH = "Lunch is at one. Soup is served on Fridays."
MEALS = [
    Document(id="lunch", page_content=LUNCH, metadata={"year": 2024, "title": "Lunch", "tags": ["food", "noon"]}),
    Document(id="tea", page_content="Tea is at four.", metadata={"year": 2020, "source": "https://example.com/tea"}),
    Document(id="dinner", page_content="Dinner is at eight.", metadata={"year": 2022}),
]


@pytest.fixture
def embedding(dimension: int) -> DeterministicFakeEmbedding:
    return DeterministicFakeEmbedding(size=dimension)


def test_a_hit_of_the_retriever_has_a_citation_that_resolves(kb) -> None:
    PairDocumentIndex(kb=kb).upsert(MEALS)
    [first, *_] = PairRetriever(kb=kb, k=2).invoke("when is lunch?")
    place = parse_citation_id(first.id or "")
    assert place is not None
    assert (place.kb_id, place.document_id) == (kb.kb_id, "lunch")
    assert place.is_still(kb.document("lunch").text[place.start : place.end])
    assert {first.metadata[name] for name in ("kb", "document_id", "title")} == {kb.kb_id, "lunch", "Lunch"}
    assert 0 < first.metadata["score"] <= 1


def test_a_retriever_filters_and_finds_nothing_in_an_empty_kb(kb, open_kb) -> None:
    PairDocumentIndex(kb=kb).upsert(MEALS)
    retriever = PairRetriever(kb=kb, filter={"year": {"$gte": 2022}}, allow_weak=True, mode="keyword")
    assert {document.metadata["document_id"] for document in retriever.invoke("at")} == {"lunch", "dinner"}
    assert [each.metadata["document_id"] for each in retriever.invoke("at", filter={"year": 2020})] == ["tea"]
    assert PairRetriever(kb=open_kb()).invoke("anything") == []


def test_a_vector_store_filters_scores_and_cites(kb, embedding) -> None:
    store = PairVectorStore(kb, embedding, citations=True)
    store.add_documents(MEALS)
    [(best, score), *rest] = store.similarity_search_with_score(LUNCH, k=3)
    assert (best.id, score) == ("lunch", pytest.approx(1.0, abs=1e-5))
    assert best.metadata["citation"].startswith(f"{kb.kb_id}/lunch#0-")
    assert [score for _, score in rest] == sorted((score for _, score in rest), reverse=True)
    found = store.similarity_search(LUNCH, k=3, filter={"$or": [{"year": 2020}, {"tags": {"contains": "noon"}}]})
    assert [document.id for document in found] == ["lunch", "tea"]
    assert store.similarity_search_by_vector(embedding.embed_query("Tea is at four."), k=1)[0].id == "tea"
    assert [each.id for each, _ in store.similarity_search_with_relevance_scores(LUNCH, k=1)] == ["lunch"]
    assert kb.document("tea").url == "https://example.com/tea"


def test_a_vector_store_returns_different_documents(kb, embedding) -> None:
    store = PairVectorStore(kb, embedding)
    texts = [LUNCH, "Tea is at four.", "Dinner is at eight."]
    store.add_texts(texts, ids=["a", "b", "c"])
    assert [each.id for each in store.max_marginal_relevance_search(LUNCH, k=1)] == ["a"]
    assert {each.id for each in store.max_marginal_relevance_search(LUNCH, k=3, lambda_mult=0.1)} == {"a", "b", "c"}


def test_a_vector_store_deletes_by_filter(kb, embedding) -> None:
    store = PairVectorStore(kb, embedding)
    store.add_documents(MEALS)
    assert store.delete(filter={"year": {"lt": 2024}}) is True
    assert [document.id for document in store.get_by_ids(["lunch", "tea", "dinner"])] == ["lunch"]


def test_unchanged_documents_are_not_written_again(kb, embedding) -> None:
    store = PairVectorStore(kb, embedding)
    store.add_documents(MEALS)
    before = kb.stats().manifest_version
    store.add_documents(MEALS)
    assert kb.stats().manifest_version == before


def test_vectors_of_another_size_are_refused(kb, dimension) -> None:
    store = PairVectorStore(kb, DeterministicFakeEmbedding(size=dimension + 1))
    with pytest.raises(pair.PairError) as raised:
        store.add_documents(MEALS)
    assert raised.value.code == "E303"
    assert kb.count() == 0


def test_texts_are_stored_and_found_with_the_embedder_of_pair(tmp_path) -> None:
    places = {"STORE": str(tmp_path / "store"), "CACHE_DIR": str(tmp_path / "cache")}
    settings = Settings.load(environment={f"PAIR__ENGINE__{name}": value for name, value in places.items()})
    with pair.open("meals", settings=settings) as kb:
        store = PairVectorStore.from_texts([each.page_content for each in MEALS], kb=kb)
        assert store.similarity_search("supper in the evening", k=1)[0].page_content == "Dinner is at eight."
        retriever = store.as_retriever(search_kwargs={"k": 1})
        assert retriever.invoke("noon meal with soup")[0].page_content == LUNCH


def test_from_texts_opens_a_local_kb_by_name(tmp_path, monkeypatch, embedding) -> None:
    monkeypatch.chdir(tmp_path)
    store = PairVectorStore.from_texts([LUNCH], embedding, kb="meals")
    with store.kb:
        assert store.similarity_search(LUNCH, k=1)[0].page_content == LUNCH
    assert (tmp_path / ".pair").is_dir()
