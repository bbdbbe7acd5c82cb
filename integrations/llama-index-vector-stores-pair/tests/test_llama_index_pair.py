"""The vector store and the retriever, in the shape of the tests of LlamaIndex's own integrations."""

import json

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index.retrievers.pair import PairRetriever
from llama_index.vector_stores.pair import PairVectorStore, make_filter
from pair.librarians.citations import parse_citation_id
from pair.values import Document

ROWS = {
    "a": ("lorem ipsum", "doc-0", {"author": "Stephen King", "theme": "Friendship", "year": 1982, "tags": ["x", "y"]}),
    "b": ("dolor sit amet", "doc-1", {"director": "Francis Coppola", "theme": "Mafia", "year": 1972, "tags": []}),
    "c": ("consectetur elit", "doc-1", {"director": "Christopher Nolan", "theme": "mafia wars", "year": 2010}),
}
VECTORS = {"a": [1.0, 0.0, 0.0], "b": [0.0, 2.0, 0.0], "c": [0.0, 0.0, 3.0]}
VALUES = {
    FilterOperator.EQ: ("year", 1972),
    FilterOperator.NE: ("theme", "Mafia"),
    FilterOperator.GT: ("year", 1972),
    FilterOperator.GTE: ("year", 1982),
    FilterOperator.LT: ("year", 1982),
    FilterOperator.LTE: ("year", 1982),
    FilterOperator.IN: ("year", [1972, 2010]),
    FilterOperator.NIN: ("year", [1972, 1999]),
    FilterOperator.ANY: ("tags", ["y", "z"]),
    FilterOperator.ALL: ("tags", ["x", "y"]),
    FilterOperator.CONTAINS: ("tags", "x"),
    FilterOperator.TEXT_MATCH: ("theme", "afia"),
    FilterOperator.TEXT_MATCH_INSENSITIVE: ("theme", "MAFIA"),
    FilterOperator.IS_EMPTY: ("tags", None),
}


def make_node(name: str) -> TextNode:
    text, source, metadata = ROWS[name]
    related = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)}
    return TextNode(id_=name, text=text, relationships=related, metadata=dict(metadata), embedding=VECTORS[name])


@pytest.fixture
def nodes() -> list[TextNode]:
    return [make_node(name) for name in ROWS]


@pytest.fixture
def store(kb, nodes) -> PairVectorStore:
    store = PairVectorStore(kb)
    assert store.add(nodes) == ["a", "b", "c"]
    return store


def narrow(key: str, value, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def found(store: PairVectorStore, **query) -> list[str]:
    return store.query(VectorStoreQuery(**query)).ids or []


def test_it_is_a_vector_store_that_stores_text(kb) -> None:
    assert BasePydanticVectorStore.__name__ in [each.__name__ for each in PairVectorStore.__mro__]
    store = PairVectorStore(kb)
    assert (store.stores_text, store.is_embedding_query, store.client) == (True, True, kb)


def test_nodes_are_found_by_their_embedding(store) -> None:
    result = store.query(VectorStoreQuery(query_embedding=[0.9, 0.1, 0.0], similarity_top_k=2))
    assert result.ids == ["a", "b"]
    assert [node.get_content(metadata_mode=MetadataMode.NONE) for node in result.nodes or []] == [
        "lorem ipsum",
        "dolor sit amet",
    ]
    assert result.similarities == pytest.approx([0.9939, 0.1104], abs=1e-3)


def test_a_found_node_is_the_stored_one_with_a_citation(store, kb, nodes) -> None:
    [node] = store.query(VectorStoreQuery(query_embedding=[1.0, 0.0, 0.0], similarity_top_k=1)).nodes or []
    place = parse_citation_id(node.metadata.pop("citation"))
    assert place is not None
    assert (place.kb_id, place.document_id, place.start, place.end) == (kb.kb_id, "a", 0, 11)
    assert (node.metadata, node.ref_doc_id, node.node_id) == (nodes[0].metadata, "doc-0", "a")
    assert "citation" not in node.get_content(metadata_mode=MetadataMode.LLM)


def test_nodes_are_found_by_filters_only(store) -> None:
    assert found(store, filters=narrow("theme", "Mafia"), similarity_top_k=1) == ["b"]
    assert found(store, filters=narrow("year", 1972, FilterOperator.GTE), similarity_top_k=2) == ["a", "b"]


@pytest.mark.parametrize("operator", FilterOperator)
def test_every_filter_operator_finds_what_llama_index_finds(store, operator) -> None:
    filters = narrow(*VALUES[operator], operator)
    fits = build_metadata_filter_fn(lambda name: ROWS[name][2], filters)
    expected = [name for name in ROWS if fits(name)]
    assert 0 < len(expected) < 3
    near = found(store, query_embedding=[1.0, 1.0, 1.0], similarity_top_k=3, filters=filters)
    assert sorted(near) == [node.node_id for node in store.get_nodes(filters=filters)] == expected


@pytest.mark.parametrize("condition", FilterCondition)
def test_conditions_combine_filters(store, condition) -> None:
    filters = MetadataFilters(filters=[narrow("year", 1982).filters[0], narrow("author", "King").filters[0]])
    filters.condition = condition
    fits = build_metadata_filter_fn(lambda name: ROWS[name][2], filters)
    assert [node.node_id for node in store.get_nodes(filters=filters)] == [name for name in ROWS if fits(name)]


def test_filters_are_nested(store) -> None:
    inner = MetadataFilters(
        filters=[*narrow("year", 1982).filters, *narrow("theme", "Mafia").filters], condition=FilterCondition.OR
    )
    outer = MetadataFilters(filters=[inner, *narrow("year", 1980, FilterOperator.GT).filters])
    assert [node.node_id for node in store.get_nodes(filters=outer)] == ["a"]


def test_empty_lists_and_missing_values_in_filters(store) -> None:
    for operator, expected in (("in", []), ("any", []), ("nin", ["a", "b", "c"])):
        filters = narrow("year", [], FilterOperator(operator))
        assert [node.node_id for node in store.get_nodes(filters=filters)] == expected
    assert [node.node_id for node in store.get_nodes(filters=narrow("author", None))] == ["b", "c"]
    with pytest.raises(ValueError, match="needs a list"):
        make_filter(narrow("year", 3, FilterOperator.IN))
    with pytest.raises(ValueError, match="needs a value"):
        make_filter(narrow("year", None, FilterOperator.GT))


def test_a_query_is_restricted_to_documents_and_nodes(store) -> None:
    near = {"query_embedding": [1.0, 1.0, 1.0], "similarity_top_k": 3}
    assert sorted(found(store, **near, doc_ids=["doc-1"])) == ["b", "c"]
    assert found(store, **near, node_ids=["c", "a"], filters=narrow("year", 2010)) == ["c"]
    assert len(found(store, **near, node_ids=[], doc_ids=[])) == 3, "LlamaIndex sends empty lists for no restriction"


def test_text_search_hybrid_and_mmr(store) -> None:
    mode = VectorStoreQueryMode
    assert found(store, query_str="dolor", mode=mode.TEXT_SEARCH, similarity_top_k=2) == ["b"]
    both = {"query_str": "dolor", "query_embedding": [0.0, 0.0, 1.0], "similarity_top_k": 2}
    assert sorted(found(store, **both, mode=mode.HYBRID)) == ["b", "c"]
    assert found(store, **both, mode=mode.HYBRID, alpha=0.0) == ["b"]
    assert found(store, **both, mode=mode.HYBRID, alpha=1.0)[0] == "c"
    assert len(found(store, **both, mode=mode.MMR, mmr_threshold=0.2)) == 2
    with pytest.raises(ValueError, match="needs a text"):
        found(store, query_embedding=[1.0, 0.0, 0.0], mode=mode.TEXT_SEARCH)
    with pytest.raises(ValueError, match="no query mode svm"):
        found(store, query_embedding=[1.0, 0.0, 0.0], mode=mode.SVM)


def test_nodes_are_replaced_and_got(store, nodes) -> None:
    changed = make_node("a")
    changed.set_content("new text")
    store.add([changed])
    assert [node.get_content() for node in store.get_nodes(["a", "missing"])] == ["new text"]
    assert [node.node_id for node in store.get_nodes()] == ["a", "b", "c"]
    assert store.get_nodes(["c", "b"], narrow("year", 1972))[0].node_id == "b"


def test_nodes_of_a_document_are_deleted(store) -> None:
    store.delete("doc-1")
    store.delete("doc-1")
    assert [node.node_id for node in store.get_nodes()] == ["a"]


def test_nodes_are_deleted_by_id_and_filter(store) -> None:
    store.delete_nodes(["a", "missing"])
    assert [node.node_id for node in store.get_nodes()] == ["b", "c"]
    store.delete_nodes(["b", "c"], narrow("year", 1972))
    assert [node.node_id for node in store.get_nodes()] == ["c"]
    store.delete_nodes(filters=narrow("year", 2010))
    assert store.get_nodes() == []


def test_an_empty_store_finds_and_deletes_nothing(kb) -> None:
    store = PairVectorStore(kb)
    assert found(store, query_embedding=[1.0, 0.0, 0.0]) == store.get_nodes() == []
    store.delete("doc-0")
    store.delete_nodes(["a"])
    store.clear()


def test_clear_deletes_every_node(store, kb) -> None:
    store.clear()
    assert (store.get_nodes(), kb.count()) == ([], 0)
    store.add([make_node("b")])
    assert [node.node_id for node in store.get_nodes()] == ["b"]


async def test_the_asynchronous_methods(kb, nodes) -> None:
    store = PairVectorStore(kb)
    assert await store.async_add(nodes) == ["a", "b", "c"]
    result = await store.aquery(VectorStoreQuery(query_embedding=[1.0, 0.0, 0.0], similarity_top_k=1))
    assert result.ids == ["a"]
    await store.adelete("doc-0")
    assert [node.node_id for node in await store.aget_nodes()] == ["b", "c"]
    await store.adelete_nodes(["b"])
    await store.aclear()
    assert await store.aget_nodes() == []


def test_an_index_is_built_on_it(kb, dimension) -> None:
    store = PairVectorStore(kb)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [TextNode(id_=name, text=text) for name, (text, _, _) in ROWS.items()]
    index = VectorStoreIndex(documents, storage_context=context, embed_model=MockEmbedding(embed_dim=dimension))
    assert {node.node_id for node in index.as_retriever(similarity_top_k=3).retrieve("anything")} == {"a", "b", "c"}
    again = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=dimension))
    assert len(again.as_retriever(similarity_top_k=2).retrieve("anything")) == 2


def test_a_store_is_described_without_its_contents(store) -> None:
    assert json.loads(store.to_json())["class_name"] == "PairVectorStore"


def test_the_retriever_returns_passages_with_citations(kb, open_kb) -> None:
    kb.upsert([Document("lunch.md", "Lunch is at one.", title="Lunch", metadata={"year": 2024})])
    kb.upsert([Document("tea.md", "Tea is at four.", metadata={"year": 2020})])
    [first] = PairRetriever(kb, similarity_top_k=1).retrieve("lunch")
    place = parse_citation_id(first.node.node_id)
    assert place is not None
    assert (place.kb_id, place.document_id, first.node.get_content()) == (kb.kb_id, "lunch.md", "Lunch is at one.")
    assert first.node.metadata == {"year": 2024, "title": "Lunch", "url": "", "document_id": "lunch.md"}
    assert 0 < (first.score or 0) <= 1
    assert [each.text for each in PairRetriever(kb, filter={"year": 2020}).retrieve("at four")] == ["Tea is at four."]
    assert PairRetriever(open_kb()).retrieve("anything") == []


async def test_the_retriever_works_asynchronously(kb) -> None:
    kb.upsert([Document("lunch.md", "Lunch is at one.")])
    assert len(await PairRetriever(kb).aretrieve("lunch")) == 1
