"""The librarian suite, run on the built-in librarians."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from pair.librarians import Context
from pair.librarians.kb_librarian import KbLibrarian
from pair.librarians.routing import IndexEntry, IndexLibrarian, Router
from pair.testing.librarian_suite import LibrarianCase, LibrarianSuite
from pair.values import Document
from support.engine_parts import Ground

UNKNOWN = "Which enzyme unwinds the double helix of chromosomes?"


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    ground = Ground(tmp_path_factory.mktemp("built-in"), embedder="static", embedding_dimension=0)
    with ground.open() as opened:
        opened.upsert(
            [
                Document("releases.md", "Releases are made on Fridays at noon.", "Releases"),
                Document("coffee.md", "The coffee machine is cleaned by whoever is last.", "Coffee"),
            ]
        )
        yield opened


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with Ground(tmp_path, embedder="static", embedding_dimension=0).open("never-made") as opened:
        yield opened


@pytest.mark.rule("librarian-28")
class TestShelf(LibrarianSuite):
    @pytest.fixture
    def case(self, kb: KnowledgeBase) -> LibrarianCase:
        return LibrarianCase(
            KbLibrarian(kb.collection),
            "On which day are releases made?",
            handed_over=UNKNOWN,
            colleagues=("biology", "chemistry"),
        )


def test_a_kb_librarian_without_a_kb_answers_with_an_error(empty: KnowledgeBase) -> None:
    case = LibrarianCase(KbLibrarian(empty.collection), "", failing="Is anybody there?")
    LibrarianSuite().test_error_handling_what_goes_wrong_is_a_response(case)


@pytest.mark.rule("librarian-28")
class TestCatalogue(LibrarianSuite):
    @pytest.fixture
    def case(self, kb: KnowledgeBase) -> LibrarianCase:
        entries = [IndexEntry("releases.md", "When releases are made"), IndexEntry("coffee.md", "Who cleans it")]
        return LibrarianCase(IndexLibrarian(lambda: entries, kb.collection.embedding), "Where are releases described?")


@pytest.mark.rule("librarian-28")
class TestRouter(LibrarianSuite):
    @pytest.fixture
    def case(self, kb: KnowledgeBase) -> LibrarianCase:
        return LibrarianCase(
            Router(kb.collection.embedding),
            "Who knows about releases?",
            handed_over="Who knows about releases?",
            colleagues=("releases", "coffee"),
            context=Context(request_id="somebody must be there to hand over to"),
        )
