"""Wrong arguments of the public API are refused with a typed error, equally for local KBs and over HTTP."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pair
from pair import errors
from pair.kb.kb import KnowledgeBase
from pair.values import Document, SearchOptions
from support.command import Workplace, write_files
from support.engine_parts import Ground, all_ids, numbered
from support.errors import raises_code

DOCUMENT = Document("a", "text")


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the KB as a caller without a type checker sees it."""
    with Ground(tmp_path_factory.mktemp("kb")).open() as opened:
        opened.upsert(numbered(5))
        yield opened


@pytest.fixture(scope="module")
def remote() -> Iterator[Any]:
    """Return a KB on an unreachable server: wrong arguments are refused before any request."""
    with pair.connect("http://127.0.0.1:9", retries=0) as opened:
        yield opened


ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "a text for documents": lambda kb: kb.upsert("text"),
    "one document": lambda kb: kb.upsert(DOCUMENT),
    "no documents": lambda kb: kb.upsert(None),
    "a number for documents": lambda kb: kb.upsert(5),
    "a mapping for documents": lambda kb: kb.upsert({"id": "a", "text": "b"}),
    "mappings for documents": lambda kb: kb.upsert([{"id": "a", "text": "b"}]),
    "texts for documents": lambda kb: kb.upsert(["text"]),
    "chunk size": lambda kb: kb.upsert([DOCUMENT], chunk_size="large"),
    "one id to delete": lambda kb: kb.delete("doc-0001"),
    "numbers to delete": lambda kb: kb.delete([1, 2]),
    "nothing to delete": lambda kb: kb.delete(None),
    "query": lambda kb: kb.search(5),
    "no query": lambda kb: kb.search(None),
    "bytes for a query": lambda kb: kb.search(b"castles"),
    "limit": lambda kb: kb.search("castles", limit="x"),
    "no limit": lambda kb: kb.search("castles", limit=None),
    "half a limit": lambda kb: kb.search("castles", limit=2.5),
    "filter": lambda kb: kb.search("castles", filter=5),
    "a text for a filter": lambda kb: kb.search("castles", filter="year=2024"),
    "numbers for a filter": lambda kb: kb.search("castles", filter=[1]),
    "options": lambda kb: kb.search("castles", options={"highlights": True}),
    "question": lambda kb: asyncio.run(kb.ask(5)),
    "page": lambda kb: kb.documents(limit="x"),
    "place of a page": lambda kb: kb.documents(after=5),
}
LOCAL_ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "owner": lambda kb: kb.upsert([DOCUMENT], owner=None),
    "vector": lambda kb: kb.search_vector("abc"),
    "no vector": lambda kb: kb.search_vector(None),
    "vector of vectors": lambda kb: kb.search_vector([[1.0] * 16]),
    "limit of a vector": lambda kb: kb.search_vector([1.0] * 16, limit="x"),
    "distance": lambda kb: kb.search_vector([1.0] * 16, max_distance="near"),
    "id": lambda kb: kb.document(5),
    "one id": lambda kb: kb.existing_ids("doc-0001"),
}


@pytest.mark.parametrize("name", [*ARGUMENTS, *LOCAL_ARGUMENTS])
def test_an_argument_of_the_wrong_type_is_a_usage_error(kb: Any, name: str) -> None:
    before = all_ids(kb)
    with raises_code("E238", errors.UsageError) as raised:
        (ARGUMENTS | LOCAL_ARGUMENTS)[name](kb)
    assert raised.value.message.startswith("Cannot use the argument ")
    assert all_ids(kb) == before


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_client_refuses_the_same_before_it_sends_anything(remote: Any, name: str) -> None:
    with raises_code("E238", errors.UsageError):
        ARGUMENTS[name](remote)


DOCUMENTS: dict[str, dict[str, Any]] = {
    "id": {"id": 5},
    "no id": {"id": None},
    "text": {"text": b"bytes"},
    "no text": {"text": None},
    "title": {"title": 5},
    "url": {"url": None},
    "metadata": {"metadata": [("a", 1)]},
    "no metadata": {"metadata": None},
    "a text for a vector": {"vector": "0.1, 0.2"},
    "texts for a vector": {"vector": ["a"] * 16},
    "a number for a vector": {"vector": 5},
    "blank": {"text": ""},
    "white space": {"text": " \n\t\u00a0"},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_invalid_document_is_refused_and_nothing_is_stored(kb: KnowledgeBase, name: str) -> None:
    before = all_ids(kb)
    with raises_code("E213", errors.UsageError):
        kb.upsert([Document("first", "text"), dataclasses.replace(DOCUMENT, **DOCUMENTS[name])])
    assert all_ids(kb) == before


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if "vector" not in name])
def test_the_client_refuses_such_a_document_as_well(remote: Any, name: str) -> None:
    with raises_code("E213", errors.UsageError):
        remote.upsert([dataclasses.replace(DOCUMENT, **DOCUMENTS[name])])


def test_valid_values_in_other_forms_are_accepted(kb: KnowledgeBase) -> None:
    assert len(kb.search("castles", limit=np.int64(2))) == 2  # type: ignore[arg-type]
    assert len(kb.search_vector(np.ones(16), limit=2)) == 2
    assert kb.delete(each for each in ["nothing"]).deleted == 0  # type: ignore[arg-type]
    assert kb.search("castles", limit=2, filter=("number>=0",), options=SearchOptions(max_distance=5))
    assert kb.upsert([Document("placed", "", vector=[1.0] * 16)]).added == 1, "a vector can be found without a text"


def test_the_name_of_a_kb_is_a_string() -> None:
    for name in (5, None, b"kb"):
        with pytest.raises(errors.UsageError) as raised:
            pair.open(name)  # type: ignore[arg-type]
        assert raised.value.code == "E212"


# ── blank documents ────────────────────────────────────────────────────────────────────────────────


def test_an_empty_file_is_skipped_and_reported_in_a_folder_and_refused_alone(tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    write_files(workplace.folder / "notes", {"full.md": "A castle has a moat.", "empty.md": "", "blank.txt": " \n"})
    done = workplace.pair("ingest", "notes", "--json").succeeds()
    assert (done.json["added"], sorted(each["path"] for each in done.json["skipped"])) == (
        1,
        ["notes/blank.txt", "notes/empty.md"],
    )
    assert "notes/empty.md: it holds no text" in done.stderr
    for path in ("notes/empty.md", "notes/blank.txt"):
        workplace.pair("ingest", path).exits(1).says("E213")
    write_files(workplace.folder, {"lines.jsonl": '{"id": "line", "text": ""}\n'})
    lines = workplace.pair("ingest", "lines.jsonl")
    assert (lines.status, "E213" in lines.stderr) == (1, True)


def test_an_empty_file_that_is_synced_is_reported_and_not_stored(tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    notes = workplace.folder / ".pair" / "knowledge"
    write_files(notes, {"full.md": "A castle has a moat.", "empty.md": ""})
    workplace.pair("sync").succeeds().says("empty.md", "it holds no text")
    assert [each["id"] for each in workplace.pair("docs", "list", "--json").json["documents"]] == ["full.md"]
    write_files(notes, {"full.md": "\n", "empty.md": "A moat has a bridge."})
    assert workplace.pair("sync").status == 0
    assert [each["id"] for each in workplace.pair("docs", "list", "--json").json["documents"]] == ["empty.md"]
