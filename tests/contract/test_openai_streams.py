"""Streamed replies from a real server with faults."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pair.ai.openai import OpenAiLanguageModel
from pair.ai.prompts import ModelSettings
from pair.errors import ModelError
from support.model_server import Answer, ModelServer

KEY = "sk-very-secret-0123456789"
DONE = "data: [DONE]\n\n"


@pytest.fixture
def language_model(model: ModelServer) -> Iterator[OpenAiLanguageModel]:
    made = OpenAiLanguageModel(ModelSettings(model.url, "tiny", KEY, timeout_seconds=10, retries=0))
    yield made
    made.close()


def event(text: str, finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n"


def streamed(*events: str) -> Answer:
    return Answer(body="".join(events), headers={"Content-Type": "text/event-stream"})


def test_a_reply_is_given_piece_by_piece(model: ModelServer, language_model: OpenAiLanguageModel) -> None:
    model.answers.append(Answer(text="Cats sleep all day."))
    assert list(filter(None, language_model.stream("Answer.", "What do cats do?"))) == [
        "Cats ",
        "sleep ",
        "all ",
        "day.",
    ]
    assert model.requests[0]["stream"] is True
    assert model.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_server_that_does_not_stream_is_asked_once_more(
    model: ModelServer, language_model: OpenAiLanguageModel
) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Cats sleep."}}]})
    model.answers += [Answer(body=body), Answer(body=body)]
    assert list(language_model.stream("Answer.", "?")) == ["Cats sleep."]
    assert [request.get("stream") for request in model.requests] == [True, None]


def test_comments_line_separators_and_events_without_text_are_no_fault(
    model: ModelServer, language_model: OpenAiLanguageModel
) -> None:
    separator = "\u2028"
    events = [": still here\r\n\r\n", "event: x\n", event(f"one{separator}two"), 'data: {"choices": []}\r\n\r\n']
    model.answers.append(streamed(*events, event("", "stop"), DONE, "data: never read\n\n"))
    assert "".join(language_model.stream("Answer.", "?")) == f"one{separator}two"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (streamed(event("one"), 'data: {"error": {"message": "overloaded"}}\n\n'), "overloaded"),
        (streamed(event("one"), "data: {not json\n\n"), "Expecting"),
        (streamed(event("one"), f"data: {'[' * 200_000}\n\n"), "recursion"),
        (streamed(event("one"), DONE), "ended early"),
        (Answer(text="one two three", cut_after=1), "ended early"),
        (Answer(429, body=f"too many for {KEY}"), "HTTP 429"),
    ],
)
def test_a_reply_that_ends_early_is_an_error(
    model: ModelServer, language_model: OpenAiLanguageModel, answer: Any, reason: str
) -> None:
    model.answers.append(answer)
    with pytest.raises(ModelError) as caught:
        list(language_model.stream("Answer.", "?"))
    assert caught.value.code == "E301"
    assert reason in caught.value.explanation
    assert KEY not in str(caught.value.to_json())
