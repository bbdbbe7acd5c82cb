"""Chat clients: the official `openai` package against a server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from pair.app.http.openapi import EXAMPLES
from support.listening import LoopbackServer, QuietHandler, QuietServer
from support.served import BURST, Keyed, Served, error_of

ROLLBACK: Any = [{"role": "user", "content": "How do I roll back?"}]


class FarLibrarian(LoopbackServer):
    """A librarian behind HTTP that answers when the test allows it."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.reply: tuple[int, dict[str, Any]] = 200, {"answer": "Far away. [1]", "sources": [{"name": "map"}]}
        self.asked: list[dict[str, Any]] = []
        far = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                far.asked.append(json.loads(self.read_body()))
                far.may_answer.wait(20)
                status, value = far.reply
                self.answer(status, json.dumps(value).encode())

        super().__init__(QuietServer(("127.0.0.1", 0), Handler))
        self.url = f"http://127.0.0.1:{self.port}/ask"

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        super().__exit__()


@pytest.fixture(scope="module")
def shared_far() -> Iterator[FarLibrarian]:
    with FarLibrarian() as far:
        yield far


@pytest.fixture
def far(shared_far: FarLibrarian) -> FarLibrarian:
    shared_far.may_answer.clear()
    shared_far.asked.clear()
    return shared_far


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, plain: Served, shared_far: FarLibrarian) -> Iterator[Keyed]:
    """A server with keys, two KBs and a remote librarian."""
    folder = tmp_path_factory.mktemp("chat") / "project"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"librarians:\n  - id: far\n    endpoint: {shared_far.url}\n")
    with Served(folder, PAIR__SERVER__AUTH="keys", PAIR__SERVER__SYNC="false") as server:
        keyed = Keyed(server, folder)
        key = keyed.key("write")
        server.ingest({"lunch.md": "Lunch is at one."}, key=key)
        server.ingest({"lunch.md": "Lunch is at two."}, kb_id="mine", key=key)
        server.ingest({"pay.md": "Wages are paid on Mondays."}, kb_id="secret", key=key)
        yield keyed


def client_of(server: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(plain: Served) -> Iterator[openai.OpenAI]:
    with client_of(plain) as made:
        yield made


def extra(value: Any) -> dict[str, Any]:
    """Return the fields that only pair adds to the API."""
    assert value.model_extra is not None
    return dict(value.model_extra)


def api_error(fault: openai.APIError) -> dict[str, Any]:
    assert isinstance(fault.body, dict)
    assert fault.body.keys() == {"message", "type", "param", "code"}
    return fault.body


# ── answers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "shown"), [("chatcmpl-7", "chatcmpl-7"), ("seven", "chatcmpl-seven")], ids=["prefixed", "plain"]
)
def test_the_id_of_an_answer_has_its_prefix_once(client: openai.OpenAI, given: str, shown: str):
    headers = {"X-Request-ID": given}
    made = client.chat.completions.with_raw_response.create(model="pair", messages=ROLLBACK, extra_headers=headers)
    assert made.headers["X-Request-ID"] == given
    assert json.loads(made.text)["id"] == shown


def test_a_question_is_answered_with_numbered_sources(client: openai.OpenAI):
    given = client.chat.completions.create(model="pair", messages=ROLLBACK, temperature=0.3, top_p=0.5, seed=7)
    message, about = given.choices[0].message, extra(given)
    assert message.content is not None
    said, listed = message.content.split("\n\nSources:\n\n")
    assert "make rollback" in said
    assert "[1]" in said
    assert listed.startswith("- [1] deploy.md")
    assert about["sources"][0]["provenance"]["documentId"] == "deploy.md"
    assert about["librarian"] == "default"
    assert 0 < about["confidence"] <= 1
    assert (given.choices[0].finish_reason, given.model, given.object) == ("stop", "pair", "chat.completion")
    assert given.system_fingerprint is not None
    assert "manifest" in given.system_fingerprint
    assert given.usage is not None
    assert given.usage.prompt_tokens == -(-len("How do I roll back?") // 4)
    assert given.usage.completion_tokens == -(-len(message.content) // 4)
    value = given.to_dict()
    assert value.keys() == EXAMPLES["CompletionResponse"].keys()
    assert message.to_dict().keys() == EXAMPLES["CompletionResponse"]["choices"][0]["message"].keys()


def test_a_source_with_an_address_is_linked_and_a_dangerous_one_is_not(plain: Served, client: openai.OpenAI):
    documents = [
        {"id": "tea", "text": "Tea is at four.", "title": "Tea\ntime", "url": "https://example.com/tea?é=1"},
        {"id": "bad", "text": "Coffee is at ten.", "url": "javascript:alert(1)"},
    ]
    plain.post("/rag/ingest", {"kb_id": "drinks", "documents": documents})
    given = client.chat.completions.create(model="drinks", messages=[{"role": "user", "content": "When is tea?"}])
    message = given.choices[0].message
    assert message.content is not None
    assert "- [1] Tea time <https://example.com/tea?é=1>" in message.content
    assert message.annotations
    for annotation in message.annotations:
        cited = annotation.url_citation
        assert (annotation.type, cited.url) == ("url_citation", "https://example.com/tea?é=1")
        assert message.content[cited.start_index : cited.end_index] == "[1]"
    bad = client.chat.completions.create(model="drinks", messages=[{"role": "user", "content": "When is coffee?"}])
    assert "javascript" not in str(bad.choices[0].message.content)
    assert bad.choices[0].message.annotations == []


def test_a_stream_has_the_same_text_in_pieces_and_ends_with_its_sources(client: openai.OpenAI):
    whole = client.chat.completions.create(model="default", messages=ROLLBACK)
    chunks = list(
        client.chat.completions.create(
            model="default", messages=ROLLBACK, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len(list(filter(None, pieces))) > 1
    assert "".join(pieces) == whole.choices[0].message.content
    *before, last, usage = chunks
    assert [chunk.choices[0].finish_reason for chunk in before] == [None] * len(before)
    assert last.choices[0].finish_reason == "stop"
    assert extra(last)["sources"] == extra(whole)["sources"]
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1
    plain = list(client.chat.completions.create(model="default", messages=ROLLBACK, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in plain)


def test_a_program_that_awaits_is_answered_too(plain: Served):
    async def asked() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{plain.url}/v1", api_key="none", max_retries=0) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model="pair", messages=ROLLBACK),
                client.chat.completions.create(model="pair", messages=ROLLBACK, stream=True),
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return str(whole.choices[0].message.content), "".join(pieces)

    whole, streamed = asyncio.run(asked())
    assert "make rollback" in whole
    assert streamed == whole


def test_letters_of_all_kinds_come_through(plain: Served, client: openai.OpenAI):
    text = "Die Brücke heißt 虹の橋 🌈 und ist é lang."
    plain.ingest({"brücke": text}, kb_id="letters")
    asked: Any = [{"role": "user", "content": [{"type": "text", "text": "Wie heißt die Brücke 虹の橋 🌈?"}]}]
    whole = client.chat.completions.create(model="letters", messages=asked)
    assert text in str(whole.choices[0].message.content)
    stream = client.chat.completions.create(model="letters", messages=asked, stream=True)
    assert text in "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_a_question_that_says_nothing_by_itself_is_understood_from_the_one_before(client: openai.OpenAI):
    alone: Any = [{"role": "user", "content": "And why is that so?"}]
    assert "This is the knowledge base default." in str(
        client.chat.completions.create(model="default", messages=alone).choices[0].message.content
    )
    turns: Any = [
        {"role": "system", "content": "You are terse."},
        *ROLLBACK,
        {"role": "assistant", "content": "With a command. [1]"},
        *alone,
    ]
    again = client.chat.completions.create(model="default", messages=turns)
    assert "make rollback" in str(again.choices[0].message.content)
    other: Any = [*turns[:3], {"role": "user", "content": "When is lunch?"}]
    assert "rollback" not in str(client.chat.completions.create(model="default", messages=other).choices[0].message)


def test_a_short_answer_is_cut_and_says_so(plain: Served, client: openai.OpenAI):
    plain.ingest({"long": "The harbour opens at six. The harbour closes at nine in the evening."}, kb_id="harbour")
    asked: Any = [{"role": "user", "content": "When does the harbour close?"}]
    whole = client.chat.completions.create(model="harbour", messages=asked)
    short = client.chat.completions.create(model="harbour", messages=asked, max_completion_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert extra(short)["partial"] is True
    assert len(str(short.choices[0].message.content)) < len(str(whole.choices[0].message.content))


# ── models ─────────────────────────────────────────────────────────────────────────────────────────


def test_librarians_are_models(plain: Served, client: openai.OpenAI):
    plain.ingest({"a": "A note."}, kb_id="notes-of-models")
    names = [model.id for model in client.models.list()]
    assert names[:2] == ["pair", "default"]
    assert {"catalogue", "notes-of-models"} <= set(names)
    assert len(set(names)) == len(names)
    found = client.models.retrieve("notes-of-models")
    assert (found.id, found.object, found.owned_by) == ("notes-of-models", "model", "pair")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("../gpt-4o")
    assert api_error(caught.value)["code"] == "E605"


def test_an_unknown_model_gets_a_list_of_the_known_ones(client: openai.OpenAI):
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-4o", messages=ROLLBACK, stream=stream)
        told = api_error(caught.value)
        assert (told["code"], told["param"], told["type"]) == ("E605", "model", "not_found_error")
        assert "pair, default" in told["message"]


def test_a_key_for_some_kbs_has_the_models_of_these(chat: Keyed):
    with client_of(chat.server, chat.key("read", "mine")) as client:
        assert [model.id for model in client.models.list()] == ["pair", "mine"]
        for model in ("pair", "mine"):
            lunch: Any = [{"role": "user", "content": "When is lunch?"}]
            given = client.chat.completions.create(model=model, messages=lunch)
            assert "Lunch is at two" in str(given.choices[0].message.content)
        for model in ("default", "secret", "far", "never-made"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.chat.completions.create(model=model, messages=ROLLBACK)
            assert "secret" not in api_error(caught.value)["message"].replace(f"'{model}'", "")
    with client_of(chat.server, chat.key("read", "mine", "secret")) as both:
        assert [model.id for model in both.models.list()] == ["mine", "secret"]
    with client_of(chat.server, chat.key("read", "default", "mine")) as client:
        given = client.chat.completions.create(model="pair", messages=[{"role": "user", "content": "When is lunch?"}])
        assert "Lunch is at one" in str(given.choices[0].message.content)


# ── refusals ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        pytest.param({"n": 2}, "n", id="two-answers"),
        pytest.param({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", id="tools"),
        pytest.param({"response_format": {"type": "json_object"}}, "response_format.type", id="json"),
        pytest.param({"max_tokens": 0}, "max_tokens", id="no-tokens"),
        pytest.param({"modalities": ["text", "audio"]}, "modalities", id="audio"),
        pytest.param({"messages": []}, "messages", id="no-messages"),
        pytest.param({"messages": [{"role": "system", "content": "x"}]}, "messages", id="no-question"),
        pytest.param({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", id="unknown-role"),
        pytest.param({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", id="tool-role"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages.0.content.0.type",
            id="image",
        ),
    ],
)
def test_an_unsupported_option_is_refused_by_name(client: openai.OpenAI, more: dict[str, Any], parameter: str):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "pair", "messages": ROLLBACK, **more})
    told = api_error(caught.value)
    assert (told["code"], told["type"], told["param"]) == ("E601", "invalid_request_error", parameter)


def test_everything_below_v1_has_errors_of_one_shape_and_the_rest_keeps_its_own(chat: Keyed):
    with (
        client_of(chat.server, "pair_000000000000_" + "0" * 64) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.chat.completions.create(model="pair", messages=ROLLBACK)
    assert (api_error(caught.value)["code"], api_error(caught.value)["type"]) == ("E602", "authentication_error")
    key = chat.key("read")
    nowhere = chat.server.get("/v1/nothing", key=key)
    assert error_of(nowhere) == (404, "E604")
    assert nowhere.json()["error"].keys() == {"message", "type", "param", "code"}
    assert chat.server.get("/nowhere").json()["error"].keys() == {"code", "message", "recoverable", "suggestion"}
    wrong = chat.server.get("/v1/chat/completions", key=key)
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()["error"]["code"]) == (405, "POST", "E606")


def test_too_many_questions_get_a_retry_time(keyed: Keyed):
    with client_of(keyed.server, keyed.key("read")) as client:
        for _ in range(BURST):
            client.models.retrieve("default")
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="pair", messages=ROLLBACK)
    assert api_error(caught.value)["type"] == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0


# ── librarians that take their time, or fail ───────────────────────────────────────────────────────


def test_a_librarian_gets_the_earlier_messages(chat: Keyed, far: FarLibrarian):
    far.may_answer.set()
    long = "Once upon a time. " * 2000
    turns: Any = [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": long},
        {"role": "user", "content": "And now?"},
    ]
    with client_of(chat.server, chat.key("read")) as client:
        given = client.chat.completions.create(model="pair", messages=turns)
    assert str(given.choices[0].message.content) == "Far away. [1]\n\nSources:\n\n- [1] map"
    (asked,) = far.asked
    told = asked["context"]["metadata"]["conversation"]
    assert asked["query"] == "And now?"
    assert [turn["role"] for turn in told] == ["assistant"]
    assert len(told[0]["content"]) == 8000


def test_a_librarian_that_fails_has_the_status_of_its_fault(chat: Keyed, far: FarLibrarian):
    far.may_answer.set()
    far.reply = 503, {"error": {"code": "AI_UNAVAILABLE", "message": "no model", "suggestion": "wait"}}
    with client_of(chat.server, chat.key("read")) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="far", messages=ROLLBACK, stream=stream)
            assert caught.value.status_code == 503
            assert api_error(caught.value)["code"] == "AI_UNAVAILABLE"
            assert "retry-after" in caught.value.response.headers


def test_a_librarian_that_fails_in_the_middle_of_a_stream_ends_it_with_the_error(chat: Keyed, far: FarLibrarian):
    far.reply = 503, {"error": {"code": "AI_UNAVAILABLE", "message": "no model"}}
    with client_of(chat.server, chat.key("read")) as client:
        stream = client.chat.completions.create(model="far", messages=ROLLBACK, stream=True)
        first = next(stream)  # comes before there is an answer
        assert first.choices[0].delta.role == "assistant"
        far.may_answer.set()
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    assert api_error(caught.value)["code"] == "AI_UNAVAILABLE"
    far.may_answer.clear()
    far.reply = 200, {"answer": "At last."}
    body = {"model": "far", "messages": ROLLBACK, "stream": True}
    headers = {"authorization": f"Bearer {chat.key('read')}"}
    with httpx2.stream("POST", f"{chat.server.url}/v1/chat/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith('data: {"id":"chatcmpl-')
        far.may_answer.set()
        rest = [line for line in lines if line]
    assert "At last." in rest[0]
    assert rest[-1] == "data: [DONE]"
    assert "text/event-stream" in answer.headers["content-type"]
