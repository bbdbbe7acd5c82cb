"""Citations, their ids, and retrieval records."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pair.librarians.citations import (
    RETRIEVAL_KEY,
    FoundPassage,
    Retrieval,
    cite_hits,
    join_retrievals,
    parse_citation_id,
)
from pair.librarians.contract import Response
from pair.librarians.rules import merge_responses
from pair.values import Hit, hash_text


def hit(document_id: str, text: str, start: int = 3) -> Hit:
    return Hit(document_id, f"{document_id}:0", "Title", "", text, 0.7, 0.5, {}, start, start + len(text), shard="abc")


@given(st.text(min_size=1, max_size=40), st.text(max_size=60))
def test_an_id_leads_back_to_the_place_it_was_made_of(document_id: str, text: str) -> None:
    (citation,) = cite_hits("handbook", [hit(document_id, text)], 4, {document_id: "2026-01-01T00:00:00Z"})
    place = parse_citation_id(citation.id)
    assert place is not None
    assert (place.kb_id, place.document_id, place.start, place.end) == ("handbook", document_id, 3, 3 + len(text))
    assert place.is_still(text)
    assert not place.is_still(text + "!")


def test_a_citation_says_where_its_passage_is_from() -> None:
    (citation,) = cite_hits("handbook", [hit("a.md", "Some text")], 4, {"a.md": "2026-01-01T00:00:00Z"})
    provenance = citation.provenance
    assert provenance is not None
    assert provenance.to_json() == {
        "kbId": "handbook",
        "documentId": "a.md",
        "chunkId": "a.md:0",
        "start": 3,
        "end": 12,
        "contentSha256": hash_text("Some text"),
        "lastFetchedAt": "2026-01-01T00:00:00Z",
        "shard": "abc",
        "manifestVersion": 4,
    }
    assert (citation.name, citation.quote, citation.relevance) == ("Title", "Some text", 0.7)


def test_other_texts_are_not_parsed_as_ids() -> None:
    for text in ("", "a", "kb/doc", "kb/doc#1-2", "kb/doc#a-b@0123456789ab", "/doc#1-2@0123456789ab"):
        assert parse_citation_id(text) is None


FOUND = Retrieval("handbook", 7, "abc", "ngram-16", "tea?", "adaptive", 8, (FoundPassage("tea", 0, 9, "0a1b", 0.5),))


def test_a_retrieval_survives_json() -> None:
    assert Retrieval.from_json(json.loads(json.dumps(FOUND.to_json()))) == FOUND


def test_several_answers_that_become_one_keep_each_ones_retrieval() -> None:
    answers = [
        Response(
            answer=f"Answer {number}.",
            confidence=0.9,
            metadata={RETRIEVAL_KEY: [{**FOUND.to_json(), "kbId": f"kb-{number}"}]},
        )
        for number in range(2)
    ]
    assert [each["kbId"] for each in merge_responses(answers).metadata[RETRIEVAL_KEY]] == ["kb-0", "kb-1"]
    assert join_retrievals([{}, {RETRIEVAL_KEY: 7}, {RETRIEVAL_KEY: "text"}, {RETRIEVAL_KEY: None}]) == {}
