"""Graphs from a language model, on a real server with faults."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair import errors
from pair.ai.contract import EntityExtractor, Extraction
from pair.ai.llm_entities import ExtractionCounts, ModelExtractor, ModelGrapher
from pair.ai.openai import OpenAiLanguageModel
from pair.ai.prompts import ModelSettings
from pair.kb.open import open_kb
from pair.text.entity_rules import DocumentText
from pair.values import Document, GraphRows
from support.engine_parts import engine_settings
from support.model_server import Answer, ModelServer


@pytest.fixture
def extractor(model: ModelServer) -> Iterator[EntityExtractor]:
    language_model = OpenAiLanguageModel(ModelSettings(model.url, "tiny", retries=0, retry_wait_seconds=0.01))
    yield ModelExtractor(language_model)
    language_model.close()


def reply(*edges: tuple[str, str, float]) -> Answer:
    return Answer(
        text=json.dumps({"edges": [{"src": src, "dst": dst, "rel": "knows", "weight": w} for src, dst, w in edges]})
    )


MALFORMED = Answer(text="I see no names in it.")
BROKEN = Answer(500, body="oh no")


@pytest.mark.rule("engine-30")
def test_each_chunk_is_asked_for_and_its_names_are_canonical(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [reply(("The Beatles", "U.S.", 0.5)), reply(("Ada", "Ada", 1.0))]
    grapher = ModelGrapher(extractor, workers=1)
    graphs = grapher.graphs_of([DocumentText("Bands", ["one"]), DocumentText("", ["two"])])
    assert graphs == [
        GraphRows((("beatle", 2.0, 0), ("us", 2.0, 0), ("band", 2.0, 0)), (("beatle", "us", "knows", 0.5, 0),)),
        GraphRows((("ada", 1.0, 0),), ()),
    ]
    assert [request["messages"][-1]["content"] for request in model.requests] == ["one", "two"]
    assert grapher.counts == ExtractionCounts(extracted=2)


@pytest.mark.rule("engine-30")
def test_weights_that_are_none_become_one(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [reply(("a", "b", 0.0), ("b", "c", -2.0))]
    (graph,) = ModelGrapher(extractor).graphs_of([DocumentText("", ["text"])])
    assert [weight for _, _, _, weight, _ in graph.edges] == [1.0, 1.0]


@pytest.mark.rule("engine-29")
def test_a_request_that_failed_once_is_sent_again(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [MALFORMED, reply(("a", "b", 1.0)), BROKEN, reply(("c", "d", 1.0))]
    grapher = ModelGrapher(extractor, workers=1)
    graphs = grapher.graphs_of([DocumentText("", ["one", "two"])])
    assert {name for name, _, _ in graphs[0].mentions} == {"a", "b", "c", "d"}
    assert (model.calls, grapher.counts) == (4, ExtractionCounts(extracted=2))


@pytest.mark.rule("engine-29")
def test_a_chunk_that_fails_for_good_is_skipped_and_counted(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [MALFORMED, MALFORMED, reply(("a", "b", 1.0))]
    grapher = ModelGrapher(extractor, workers=1)
    (graph,) = grapher.graphs_of([DocumentText("", ["bad", "good"])])
    assert {chunk for _, _, chunk in graph.mentions} == {1}
    assert grapher.counts == ExtractionCounts(extracted=1, skipped=1)


class DyingServer:
    """A server that stops before its n-th request."""

    def __init__(self, extractor: EntityExtractor, model: ModelServer, calls: int) -> None:
        self._extractor, self._server, self._calls = extractor, model, calls
        self.name = extractor.name

    def extract(self, text: str) -> Extraction:
        self._calls -= 1
        if self._calls == 0:
            self._server.stop()
        return self._extractor.extract(text)


@pytest.mark.rule("engine-29")
def test_a_dead_server_is_skipped_without_waiting_for_it(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [reply(("a", "b", 1.0))] * 3
    dying = DyingServer(extractor, model, 4)
    grapher = ModelGrapher(dying, workers=1, batch_chunks=2)
    graphs = grapher.graphs_of([DocumentText("", ["text"])] * 200)
    assert [bool(graph.mentions) for graph in graphs] == [True] * 3 + [False] * 197
    assert grapher.counts == ExtractionCounts(extracted=3, skipped=197)
    model.start()
    model.answers += [reply(("a", "b", 1.0))]
    assert grapher.graphs_of([DocumentText("", ["later"])])[0].mentions, "the next ingest asks it again"


@pytest.mark.rule("engine-29")
def test_many_workers_give_the_graphs_of_one(model: ModelServer, extractor: EntityExtractor) -> None:
    model.answers += [reply(("a", "b", 1.0))] * 40
    grapher = ModelGrapher(extractor, workers=4, batch_chunks=7)
    graphs = grapher.graphs_of([DocumentText("", ["x"] * number) for number in range(9)])
    assert [len({chunk for _, _, chunk in graph.mentions}) for graph in graphs] == list(range(9))
    assert grapher.counts == ExtractionCounts(extracted=36)


@pytest.mark.rule("engine-30")
@pytest.mark.parametrize(
    ("text", "names", "edges"),
    [
        ('{"entities": ["Ada", "Bo', {"ada"}, 0),
        ('{"entities": ["Ada"], "edges": [{"src": "Ada", "dst": "Bo"}, {"src": "Ada", "ds', {"ada", "bo"}, 1),
        ('<think>{"entities": ["Eve"]}</think>```json\n{"entities": ["Ada"]}\n```', {"ada"}, 0),
    ],
)
def test_a_reply_that_was_cut_off_or_thinks_aloud_is_read_as_far_as_it_goes(
    model: ModelServer, extractor: EntityExtractor, text: str, names: set[str], edges: int
) -> None:
    model.answers.append(Answer(text=text))
    (graph,) = ModelGrapher(extractor).graphs_of([DocumentText("", ["text"])])
    assert ({name for name, _, _ in graph.mentions}, len(graph.edges)) == (names, edges)
    assert model.calls == 1


@pytest.mark.rule("engine-29")
def test_documents_stored_without_the_model_get_their_graph_later(model: ModelServer, tmp_path: Path) -> None:
    settings = dataclasses.replace(
        engine_settings(tmp_path, graph="model"), ai=ModelSettings(model.url, "tiny", retries=0)
    )
    documents = [Document("a", "Ada knows Bob."), Document("b", "Nothing.")]
    model.stop()
    with open_kb("default", settings=settings) as kb:
        assert kb.upsert(documents).added == 2
        again = kb.upsert(documents)
        assert (again.unchanged, again.manifest_version) == (2, 1), "nothing is gained by storing the same again"
        with pytest.raises(errors.NotFoundError):  # there is no graph to walk
            kb.search("Ada", mode="graph")
    model.start()
    model.answers += [reply(("Ada", "Bob", 1.0)), Answer(text="nothing here")] * 2
    with open_kb("default", settings=settings) as kb:
        assert kb.upsert(documents).replaced == 2
        assert next(iter(kb.search("Ada", mode="graph"))).document_id == "a"
        calls = model.calls
        assert kb.upsert(documents).unchanged == 2
    assert model.calls == calls
