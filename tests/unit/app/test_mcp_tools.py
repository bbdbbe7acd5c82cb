"""The size of results, the places where texts are cut, and the addresses of documents."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pair import errors
from pair.app.mcp import server, tools

TEXTS = some.text(alphabet=some.characters(exclude_categories=["Cs"]), max_size=300)


@given(TEXTS, some.integers(2, 400))
def test_a_cut_text_is_a_beginning_that_fits(text: str, most_bytes: int):
    part = tools.cut(text, most_bytes)
    assert text.startswith(part)
    assert tools.json_size(part) <= most_bytes
    assert part == text or len(text) > most_bytes or tools.json_size(text) > most_bytes


@given(some.lists(TEXTS, max_size=8), some.integers(0, 900))
def test_texts_share_what_room_there_is(texts: list[str], most_bytes: int):
    most_bytes += 2 * len(texts)
    parts = tools.cut_evenly(texts, most_bytes)
    assert sum(map(tools.json_size, parts)) <= most_bytes
    assert all(text.startswith(part) for text, part in zip(texts, parts, strict=True))
    if sum(map(tools.json_size, texts)) <= most_bytes:
        assert parts == texts


def test_short_texts_stay_whole_where_long_ones_are_cut():
    short, long = "a few words", "many words " * 100
    first, second, third = tools.cut_evenly([long, short, long], 500)
    assert second == short
    assert len(first) == len(third) > 200


@given(some.lists(TEXTS, max_size=8), some.integers(0, 900))
def test_a_list_is_cut_at_what_fits(texts: list[str], most_bytes: int):
    kept = tools.take_fitting(texts, most_bytes)
    assert kept == texts[: len(kept)]
    assert not kept or tools.json_size(kept) <= most_bytes


@given(TEXTS.filter(bool), some.integers(0, 10**9), TEXTS)
def test_an_address_leads_back_to_its_document(document_id: str, offset: int, at: str):
    address = tools.Address("hand-book_1.x", document_id, offset, at=at)
    assert str(address).isascii()
    assert tools.Address.parse(str(address)) == address


def test_an_address_may_lead_to_a_list_of_documents():
    assert tools.Address.parse("kb://handbook") == tools.Address("handbook")
    assert tools.Address.parse(str(tools.Address("handbook", after="a/b?c"))) == tools.Address(
        "handbook", after="a/b?c"
    )
    assert tools.Address.parse(str(tools.Address("handbook", after="a", at="3"))).at == "3"
    assert tools.Address.parse("kb://handbook/guides/deploy.md") == tools.Address("handbook", "guides/deploy.md")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kb://",
        "kb:///x",
        "http://a/b",
        "kb://a/b?offset=x",
        "kb://a/b?offset=²",
        "kb://a?other=1",
        "kb://a?version=1",
    ],
)
def test_an_invalid_address_is_refused(text: str):
    with pytest.raises(errors.UsageError) as caught:
        tools.Address.parse(text)
    assert caught.value.code == "E601"


def test_a_server_leaves_the_logging_of_the_process_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    server.KbServer([], hidden=[])
    assert logging.root.handlers == []
