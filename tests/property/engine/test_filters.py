"""For any metadata and filter, the masks of a shard choose the same documents as plain Python."""

import copy
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pair.engine.filters import Filter, flatten_metadata, parse_assignments, parse_filter
from pair.engine.format.metadata_index import MetadataIndex
from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document
from support.engine_parts import Ground, ids_of, stats_of
from support.filters import matches

KEYS = st.sampled_from(["a", "b", "a.b"])
TEXTS = st.sampled_from(["", "a", "ab", "b", "1", "true", "é", "数", "\U0001f600", "\uffff", "a\0b"]) | st.text(
    max_size=3
)
WHOLE = st.integers(-3, 3) | st.integers(2**53 - 2, 2**53 + 3) | st.integers(-(10**330), 10**330)
NUMBERS = WHOLE | st.floats(allow_nan=False) | st.sampled_from([0.5, -0.0, 2.0**53, 2.0**60, 1e300])
SCALARS = TEXTS | NUMBERS | st.booleans()
METADATA = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS | st.none(),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=2),
        max_leaves=5,
    ),
    max_size=3,
)


def ranges(bounds: st.SearchStrategy[Any], *names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), bounds, min_size=1, max_size=3)


BOUNDS = ("gt", "gte", "lt", "lte")
LISTS = st.lists(SCALARS, min_size=1, max_size=4)
OPERATORS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("eq", "ne", "contains"), SCALARS),
        **dict.fromkeys(("in", "not_in", "$nin"), LISTS),
        "exists": st.booleans(),
    },
).filter(bool)
WANTED = SCALARS | LISTS | OPERATORS | ranges(NUMBERS, *BOUNDS) | ranges(TEXTS, *BOUNDS, "prefix")
CONDITIONS = st.dictionaries(KEYS, WANTED, max_size=2)


def combine(below: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(below, min_size=1, max_size=4)
    return (
        st.builds(lambda name, parts: {name: parts}, st.sampled_from(["$and", "$or"]), several)
        | st.builds(lambda part: {"$not": part}, below)
        | st.builds(lambda part, more: {"$not": part, **more}, below, CONDITIONS)
    )


NESTED = st.recursive(CONDITIONS, combine, max_leaves=8)
FILTERS = NESTED.map(parse_filter)
ASSIGNMENTS = st.lists(
    st.sampled_from(
        [
            *("a=1", "a=ab|1|true", "b=a*", "a>=1", "a<3", "b=9007199254740993", "a.b<=2", "a=1.0|b*", "b>0.25"),
            *("a!=1", "a?", "!a?", "!b=a*", "!a<3", '{"$or": [{"a": 1}, {"b": "a"}]}'),
        ]
    ),
    max_size=3,
).map(parse_assignments)


@settings(deadline=None)
@given(st.lists(METADATA, min_size=1, max_size=4), FILTERS | ASSIGNMENTS)
def test_the_masks_and_plain_python_agree(documents: list[dict[str, Any]], chosen: Filter) -> None:
    index = MetadataIndex.build([flatten_metadata(metadata) for metadata in documents])
    docs = np.flatnonzero(index.select(chosen)).tolist()
    assert docs == [doc for doc, metadata in enumerate(documents) if matches(chosen, metadata)]


@settings(max_examples=40, deadline=None)
@given(st.lists(METADATA, max_size=4), KEYS)
def test_each_value_is_counted_once_for_each_document(documents: list[dict[str, Any]], key: str) -> None:
    rows = [flatten_metadata(metadata) for metadata in documents]
    chosen = np.arange(len(documents)) != 1
    expected = Counter(
        value
        for own, is_chosen in zip(rows, chosen, strict=True)
        if is_chosen
        for value in {row[1:] for row in own if row[0] == key}
    )
    assert MetadataIndex.build(rows).count(key, chosen) == expected


# ── whole searches ─────────────────────────────────────────────────────────────────────────────────


def make_documents() -> list[Document]:
    """Return documents whose metadata has few values, so that most filters find some of them."""
    dice = random.Random(7)
    values = ["a", "b", 1, 2, 0.5, True, None, 2**53 + 1, ["a", 2], {"b": "a"}]
    return [
        Document(
            f"doc-{number:02}",
            f"Newtown is known as number {number}.",
            metadata={key: dice.choice(values) for key in ("a", "b", "c") if dice.random() < 0.7} | {"number": number},
        )
        for number in range(40)
    ]


DOCUMENTS = make_documents()
SOME = st.sampled_from(["a", "b", 1, 2, 0.5, True, 2**53 + 1])
SOME_WANTED = (
    SOME
    | st.lists(SOME, min_size=1, max_size=3)
    | st.builds(lambda name, value: {name: value}, st.sampled_from(["ne", "contains"]), SOME)
    | st.sampled_from([{"exists": True}, {"exists": False}, {"gte": 1}, {"lt": "b"}, {"not_in": ["a", 1]}])
)
SOME_CONDITIONS = st.dictionaries(st.sampled_from(["a", "b", "a.b"]), SOME_WANTED, min_size=1, max_size=2)
ONE_OR_NONE = st.sampled_from([{"number": 17}, {"number": {"gt": 38}}, {"number": -1}, {"$not": {}}])
SOME_FILTERS = ONE_OR_NONE | st.recursive(SOME_CONDITIONS, combine, max_leaves=5)


@pytest.fixture(scope="module")
def kbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KnowledgeBase]]:
    """Return KBs with the same documents in one shard and in seven, with some replaced or deleted documents."""
    one = Ground(tmp_path_factory.mktemp("one"), graph="text").open()
    one.upsert(DOCUMENTS)
    cut = {"shard_trigger_vector_rows": 6, "max_vector_rows_per_shard": 6, "compaction_enabled": False}
    seven = Ground(tmp_path_factory.mktemp("seven"), graph="text", **cut).open()
    seven.upsert([Document("gone", "Newtown is gone.", metadata={"a": "a", "number": 17}), *DOCUMENTS[1:]])
    seven.delete(["gone"])
    seven.upsert([DOCUMENTS[0]])
    assert (stats_of(one).shards, stats_of(seven).shards) == (1, 7)
    yield [one, seven]
    one.close()
    seven.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SOME_FILTERS)
def test_every_mode_finds_exactly_what_meets_the_filter(kbs: list[KnowledgeBase], chosen: dict[str, Any]) -> None:
    condition = parse_filter(chosen)
    expected = [document for document in DOCUMENTS if matches(condition, document.metadata)]
    ids = [document.id for document in expected]
    values = Counter(
        row[1:] for document in expected for row in set(flatten_metadata(document.metadata)) if row[0] == "b"
    )
    for kb in kbs:
        for mode in MODES:
            assert sorted(ids_of(kb.search("Newtown", mode=mode, filter=chosen, limit=100))) == ids
        assert [document.id for document in kb.documents(filter=chosen)] == ids
        assert kb.count(filter=chosen) == len(ids)
        assert sorted(facet.count for facet in kb.facets("b", filter=chosen)) == sorted(values.values())


# ── single values ──────────────────────────────────────────────────────────────────────────────────


@given(KEYS, SCALARS, SCALARS)
def test_equal_is_what_python_calls_equal(key: str, stored: Any, wanted: Any) -> None:
    """Exceptions are true and false, which are stored as texts."""
    left, right = (str(value).lower() if isinstance(value, bool) else value for value in (stored, wanted))
    assert matches(parse_filter({key: wanted}), {key: stored}) == (left == right)


@given(KEYS, SCALARS)
def test_a_document_is_found_by_each_of_its_values(key: str, value: Any) -> None:
    assert matches(parse_filter({key: value}), {key: ["other", [value]]})
    assert matches(parse_filter({f"in.{key}": [value, "another"]}), {"in": {key: value}})


@settings(max_examples=20, deadline=None)
@given(FILTERS)
def test_a_filter_can_be_a_key(chosen: Filter) -> None:
    assert {chosen: 1}[copy.deepcopy(chosen)] == 1
