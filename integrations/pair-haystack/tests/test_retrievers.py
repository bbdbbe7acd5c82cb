"""The retrievers, serialisation, and documents beyond texts."""

import pytest
from haystack import Pipeline
from haystack.dataclasses import ByteStream, Document, SparseEmbedding
from haystack.document_stores.types import FilterPolicy
from haystack.utils import Secret

from haystack_integrations.components.retrievers.pair import (
    PairBM25Retriever,
    PairEmbeddingRetriever,
    PairHybridRetriever,
)
from haystack_integrations.document_stores.pair import PairDocumentStore
from pair.librarians.citations import parse_citation_id
from pair.settings import Settings

RETRIEVERS = (PairBM25Retriever, PairEmbeddingRetriever, PairHybridRetriever)


def point(position: int, dimension: int) -> list[float]:
    return [5.0 if number == position else 0.0 for number in range(dimension)]


@pytest.fixture
def filled(store: PairDocumentStore, dimension: int) -> PairDocumentStore:
    texts = ["Lunch is at one.", "Tea is at four.", "Dinner is at eight."]
    documents = [
        Document(
            id=f"d{number}",
            content=text,
            meta={"year": 2020 + number, "odd": number % 2 == 1},
            embedding=point(number, dimension),
        )
        for number, text in enumerate(texts)
    ]
    store.write_documents([*documents, Document(id="bare", content="Breakfast has no vector.")])
    return store


def test_words_find_passages_with_citations(filled) -> None:
    [found] = PairBM25Retriever(filled, top_k=3).run("dinner")["documents"]
    place = parse_citation_id(found.meta["citation"])
    assert place is not None
    assert (place.kb_id, place.document_id, found.id) == (filled.kb_id, "d2", "d2")
    assert place.is_still(filled.kb.document("d2").text[place.start : place.end])
    assert (found.content, found.meta["year"], 0 < (found.score or 0) <= 1) == ("Dinner is at eight.", 2022, True)


def test_vectors_find_documents_by_cosine(filled, dimension) -> None:
    near = [3.0, 1.0, *[0.0] * (dimension - 2)]
    found = PairEmbeddingRetriever(filled).run(near)["documents"]
    assert [document.id for document in found] == ["d0", "d1", "d2"], "a document without a vector is not found"
    assert [document.score for document in found] == pytest.approx([0.9487, 0.3162, 0.0], abs=1e-3)


def test_words_and_vectors_together(filled, dimension) -> None:
    hybrid = PairHybridRetriever(filled, top_k=2)
    assert {each.id for each in hybrid.run("dinner", point(1, dimension))["documents"]} == {"d2", "d1"}
    assert hybrid.run("dinner")["documents"][0].id == "d2"


def test_filters_of_a_run_replace_or_narrow_those_of_the_retriever(filled) -> None:
    early, late = ({"field": "meta.year", "operator": sign, "value": 2021} for sign in ("<=", ">="))
    replacing = PairBM25Retriever(filled, filters=early)
    assert {each.id for each in replacing.run("at", filters=late)["documents"]} == {"d1", "d2"}
    merging = PairBM25Retriever(filled, filters=early, filter_policy=FilterPolicy.MERGE)
    odd = {"field": "meta.odd", "operator": "==", "value": True}
    assert {each.id for each in merging.run("at", filters=odd)["documents"]} == {"d1"}
    assert replacing.run("at", top_k=0)["documents"] == []


async def test_retrievers_run_asynchronously(filled, dimension) -> None:
    assert len((await PairBM25Retriever(filled).run_async("tea"))["documents"]) == 1
    assert len((await PairEmbeddingRetriever(filled).run_async(point(0, dimension)))["documents"]) == 3
    assert (await PairHybridRetriever(filled).run_async("tea"))["documents"][0].id == "d1"


def test_an_empty_store_finds_nothing(store, dimension) -> None:
    assert PairBM25Retriever(store).run("x") == PairHybridRetriever(store).run("x") == {"documents": []}
    assert PairEmbeddingRetriever(store).run(point(0, dimension)) == {"documents": []}


def test_a_pipeline_runs_and_is_serialised(filled) -> None:
    pipeline = Pipeline()
    pipeline.add_component("words", PairBM25Retriever(filled, top_k=1))
    assert pipeline.run({"words": {"query": "lunch"}})["words"]["documents"][0].id == "d0"
    again = Pipeline.from_dict(pipeline.to_dict()).get_component("words")
    assert (again.top_k, again.document_store.kb_id) == (1, filled.kb_id)


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_a_retriever_is_serialised_without_its_secret(kind, monkeypatch) -> None:
    monkeypatch.setenv("PAIR_KEY", "secret-key")
    store = PairDocumentStore("notes", url="http://127.0.0.1:9", key=Secret.from_env_var("PAIR_KEY"))
    retriever = kind(store, filters={"field": "meta.x", "operator": "==", "value": 1}, top_k=3, filter_policy="merge")
    data = retriever.to_dict()
    assert "secret-key" not in str(data)
    again = kind.from_dict(data)
    assert again.to_dict() == retriever.to_dict()
    assert again.document_store.key.resolve_value() == "secret-key"


def test_wrong_arguments_are_refused(store) -> None:
    with pytest.raises(TypeError):
        PairBM25Retriever("default")
    with pytest.raises(ValueError, match="top_k"):
        PairBM25Retriever(store, top_k=0)
    with pytest.raises(ValueError, match="filters are needed"):
        store.delete_by_filter({})


def test_blobs_sparse_vectors_and_missing_texts_are_kept(store) -> None:
    sparse = SparseEmbedding(indices=[1, 5], values=[0.5, 2.0])
    blob = ByteStream(b"\x00\xff", meta={"name": "x"}, mime_type="image/png")
    documents = [Document(id="a", blob=blob), Document(id="b", content="text", sparse_embedding=sparse)]
    documents += [Document(id="c", content=""), Document(id="d", content=None, meta={"x": None})]
    store.write_documents(documents)
    assert store.filter_documents() == documents


def test_pair_embeds_documents_of_a_store_without_a_dimension(tmp_path) -> None:
    places = {"STORE": str(tmp_path / "store"), "CACHE_DIR": str(tmp_path / "cache")}
    settings = Settings.load(environment={f"PAIR__ENGINE__{name}": value for name, value in places.items()})
    store = PairDocumentStore("meals", settings=settings)
    store.write_documents([Document(id="1", content="Dinner is at eight."), Document(id="2", content="Read a book.")])
    assert PairHybridRetriever(store, top_k=1).run("supper in the evening")["documents"][0].id == "1"
    with pytest.raises(ValueError, match="embedding_dimension=2"):
        store.write_documents([Document(content="x", embedding=[1.0, 2.0])])
    with pytest.raises(ValueError, match="neither a text nor an embedding"):
        store.write_documents([Document(id="3")])
    store.close()
