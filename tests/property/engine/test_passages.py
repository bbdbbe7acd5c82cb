"""For any hits, merging and folding lose no text, keep the order, and are idempotent."""

from hypothesis import given
from hypothesis import strategies as st

from pair.engine.query.search import fold_duplicates, merge_neighbours
from pair.values import Hit

TEXTS = {"a": "ab cd  ef\n\ngh ij", "b": "AB  cd ef. gh ij", "c": "x x x x x x x x "}


def read(hit: Hit, start: int, end: int) -> str:
    return TEXTS[hit.document_id][start:end]


@st.composite
def found_hits(draw: st.DrawFn) -> list[Hit]:
    ranges = st.tuples(st.sampled_from(sorted(TEXTS)), st.integers(0, 14), st.integers(1, 6))
    hits = []
    for document, start, length in draw(st.lists(ranges, max_size=12, unique=True)):
        end = min(start + length, len(TEXTS[document]))
        text = TEXTS[document][start:end]
        hits.append(Hit(document, f"{document}#{start}", "", "", text, 0.5, None, {}, start, end))
    return hits


@given(found_hits(), st.integers(0, 3))
def test_merging_loses_no_text_and_leaves_nothing_to_merge(hits: list[Hit], most_gap: int) -> None:
    merged = merge_neighbours(hits, read, most_gap=most_gap)
    assert merge_neighbours(merged, read, most_gap=most_gap) == merged
    for hit in hits:
        holders = [
            each
            for each in merged
            if each.document_id == hit.document_id and each.start <= hit.start and hit.end <= each.end
        ]
        assert len(holders) == 1
        assert holders[0].text == read(hit, holders[0].start, holders[0].end)


@given(found_hits())
def test_the_order_is_that_of_the_best_of_each_passage(hits: list[Hit]) -> None:
    merged = merge_neighbours(hits, read)
    places = [next(n for n, hit in enumerate(hits) if hit.chunk_id == each.chunk_id) for each in merged]
    assert places == sorted(places)


@given(found_hits())
def test_folding_keeps_every_text_and_place_and_leaves_nothing_to_fold(hits: list[Hit]) -> None:
    folded = fold_duplicates(hits)
    assert fold_duplicates(folded) == folded
    cited = [(each.document_id, each.start, each.end) for each in folded]
    cited += [(other.document_id, other.start, other.end) for each in folded for other in each.also_in]
    assert sorted(cited) == sorted({(hit.document_id, hit.start, hit.end) for hit in hits})
    assert {" ".join(hit.text.split()).casefold() for hit in hits} == {
        " ".join(each.text.split()).casefold() for each in folded
    }
    assert [hit for hit in hits if hit.chunk_id in {each.chunk_id for each in folded}][:1] == hits[:1]
