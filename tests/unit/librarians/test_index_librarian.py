"""The choice of sources that are likely to have an answer."""

import asyncio
from collections.abc import Sequence

from pair import errors
from pair.librarians.contract import Context, Response
from pair.librarians.routing import IndexEntry, IndexLibrarian
from support.readers import SayingModel, WordReader

INDEX = [
    IndexEntry("releases.md", "Releases and when they are made.\nTopics: friday; agreement"),
    IndexEntry(
        "https://example.org/coffee", "The coffee machine", "https://example.org/coffee", "2026-01-01T00:00:00Z"
    ),
    IndexEntry("rollback.md", "How a release is rolled back"),
]


def answered(query: str, model: SayingModel | None = None, index: Sequence[IndexEntry] = INDEX) -> Response:
    return asyncio.run(IndexLibrarian(lambda: index, WordReader())(query, Context(ai=model)))


def names(response: Response) -> list[str]:
    return [source.name for source in response.sources]


def test_matching_sources_are_named_with_their_lines_in_the_index() -> None:
    response = answered("who knows about the coffee machine?")
    assert names(response) == ["https://example.org/coffee"]
    assert response.answer is not None
    assert "https://example.org/coffee: The coffee machine [1]" in response.answer
    assert (response.sources[0].url, response.sources[0].timestamp) == (INDEX[1].url, INDEX[1].last_fetched_at)


def test_the_best_comes_first() -> None:
    assert names(answered("release rolled back"))[0] == "rollback.md"


def test_a_model_chooses_among_the_nearest() -> None:
    assert names(answered("release rolled back", SayingModel("[2]"))) == ["releases.md"]


def test_a_list_that_is_not_json_is_understood_all_the_same() -> None:
    for said in ("[2,]", "[ ,2,,2]", f"[2, {'9' * 5000}]"):
        assert names(answered("release rolled back", SayingModel(said))) == ["releases.md"]


def test_without_a_usable_reply_of_a_model_words_decide() -> None:
    for said in (errors.model_unreachable("there", "gone"), "none of them"):
        assert names(answered("release rolled back", SayingModel(said)))[0] == "rollback.md"


def test_a_statement_without_support_in_a_source_is_not_claimed() -> None:
    for response in (answered("photosynthesis"), answered("release", SayingModel("[]"))):
        assert response.sources == ()
        assert response.confidence == 0
        assert response.answer == "None of the 3 sources in the index seems to know."
    assert answered("anything", index=[]).answer == "The index is empty."


def test_an_index_that_cannot_be_read_is_an_error_response() -> None:
    def unreadable() -> list[IndexEntry]:
        raise errors.stored_data_damaged("index", "torn")

    response = asyncio.run(IndexLibrarian(unreadable, WordReader())("anything"))
    assert response.error is not None
    assert response.error.code == "DATA_SOURCE_ERROR"
