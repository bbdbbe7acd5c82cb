"""The router: a question reaches the KB that answers it, whatever the descriptions say."""

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.values import Document
from support.engine_parts import engine_settings

CLOCKS = {
    "ntp.md": "NTP servers listen on UDP port 123. A stratum 1 server has a reference clock.",
    "leap.md": "A leap second was inserted on 31 December 2016. Smearing spreads it over 24 hours.",
    "nts.md": "NTS key establishment runs over TLS 1.3 on TCP port 4460.",
}
KITCHEN = {
    "coffee.md": "The coffee machine is descaled with citric acid every two weeks.",
    "bread.md": "Sourdough rests for 12 hours at room temperature before it is baked.",
    "tea.md": "Green tea is brewed at 70 degrees for two minutes.",
}
QUESTIONS = {
    "Which UDP port do NTP servers listen on?": "clocks",
    "When was a leap second inserted?": "clocks",
    "Over which TCP port does NTS key establishment run?": "clocks",
    "How often is the coffee machine descaled?": "kitchen",
    "How long does sourdough rest before it is baked?": "kitchen",
    "At how many degrees is green tea brewed?": "kitchen",
}


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """Return one of two KBs whose librarians have uninformative descriptions."""
    settings = engine_settings(tmp_path_factory.mktemp("routing"), embedder="static", embedding_dimension=0)
    entries = tuple({"id": name, "kb": name, "description": "Notes of a team"} for name in ("clocks", "kitchen"))
    settings = dataclasses.replace(settings, librarians=dataclasses.replace(settings.librarians, entries=entries))
    for name, texts in {"clocks": CLOCKS, "kitchen": KITCHEN}.items():
        with open_kb(name, settings=settings) as opened:
            opened.upsert([Document(document_id, text) for document_id, text in texts.items()])
    with open_kb("clocks", settings=settings) as opened:
        yield opened


@pytest.mark.parametrize(("question", "kb_id"), QUESTIONS.items())
def test_a_question_is_answered_by_the_kb_that_holds_the_answer(kb: KnowledgeBase, question: str, kb_id: str) -> None:
    response = asyncio.run(kb.ask(question))
    assert response.error is None
    assert response.sources
    assert response.sources[0].provenance is not None
    assert response.sources[0].provenance.kb_id == kb_id
    assert response.metadata["delegationChain"][0] == "router"
