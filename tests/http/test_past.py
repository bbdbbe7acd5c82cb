"""Earlier versions over HTTP: search, ask and fetch; and rollbacks, which run once per idempotency key."""

import itertools
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pair
from pair.blobs.leases import LeaseQueue
from pair.clock import SystemClock, pause
from pair.engine.format.manifest import lease_name
from support.served import Keyed, Served, error_of, opened
from support.threads import threads_running

COLOURS = ("red", "green", "blue", "amber")


def paint(server: Served, kb_id: str, *colours: str) -> list[int]:
    """Return the number of the version after each write."""
    made = []
    for colour in colours:
        texts = {f"{name}.md": f"The {name} of the Old Mill is {colour}." for name in ("door", "gate")}
        made.append(server.ingest(texts, kb_id=kb_id).json()["manifest_version"])
    return made


def query(server: Served, kb_id: str, at: int | str | None = None, **more: Any) -> Any:
    asked = {"kb_id": kb_id, "query": "the door", **more} | ({} if at is None else {"at": at})
    return server.post("/rag/query", asked)


def colour(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["results"][0]["content"]).rpartition(" ")[2].rstrip(".")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server that keeps one earlier version, waits long for writers, and has several kinds of librarians."""
    folder = tmp_path_factory.mktemp("few") / "project"
    folder.mkdir()
    (folder / "own.py").write_text(
        "from pair.librarians import Response\n\n\n"
        "async def said(query: str) -> Response:\n"
        "    return Response(answer='The door is as it is now.', confidence=0.9)\n"
    )
    (folder / "config.yaml").write_text(
        "librarians:\n"
        "  - {id: mill, kb: mill, delegates_to: [painter]}\n"
        "  - {id: painter, function: 'own:said'}\n"
        "  - {id: shadowed, function: 'own:said'}\n"
        "  - {id: secret, kb: mill, permissions: {public: false, allowed_roles: [boss]}}\n"
    )
    variables = {"KEEP_VERSIONS": "1", "WRITE_ATTEMPTS": "100", "GRAPH": "text"}
    engine = {f"PAIR__ENGINE__{name}": value for name, value in variables.items()}
    with Served(folder, PAIR__SERVER__SYNC="false", **engine) as server:
        paint(server, "default", "white")
        paint(server, "mill", "red", "green")
        paint(server, "shadowed", "red", "green")
        yield server


# ── searching ──────────────────────────────────────────────────────────────────────────────────────


def test_the_same_question_at_another_version_is_another_question(plain: Served) -> None:
    numbers = paint(plain, "house", *COLOURS)
    for _ in range(3):  # from the second time on, what was found is remembered
        for number, wanted in zip(numbers, COLOURS, strict=True):
            for at in (number, str(number)):
                answer = query(plain, "house", at)
                assert (colour(answer), answer.json()["manifest_version"]) == (wanted, number)
        assert colour(query(plain, "house")) == COLOURS[-1]
    known = plain.get("/metrics/app").json()["query_stats"]["house"]["known"]
    assert known == 2 * (2 * len(COLOURS) + 1)
    paint(plain, "house", "white")
    assert [colour(query(plain, "house", at)) for at in (*numbers, None)] == [*COLOURS, "white"]
    plain.post("/rag/rollback", {"kb_id": "house", "version": numbers[1]})
    assert [colour(query(plain, "house", at)) for at in (*numbers, None)] == [*COLOURS, COLOURS[1]]


def test_a_hit_of_an_earlier_version_opens_in_that_version(plain: Served) -> None:
    first, second = paint(plain, "opened", "red", "green")
    plain.request("DELETE", "/rag/docs/gate.md?kb_id=opened")
    for at, wanted in ((first, "red"), (second, "green")):
        hit = query(plain, "opened", at).json()["results"][0]
        found = plain.get(f"/rag/docs/{hit['id']}", params={"kb_id": "opened", "at": str(at)}).json()
        assert found["text"][hit["start"] : hit["end"]] == hit["content"]
        gate = plain.get("/rag/docs/gate.md", params={"kb_id": "opened", "at": str(at)}).json()
        assert gate["text"] == f"The gate of the Old Mill is {wanted}."
    assert error_of(plain.get("/rag/docs/gate.md?kb_id=opened")) == (404, "E214")
    assert error_of(plain.get("/rag/docs/wall.md?kb_id=opened&at=1")) == (404, "E214")


def test_the_graph_of_an_earlier_version_is_that_of_then(few: Served) -> None:
    text = "The Network Time Protocol keeps clocks in step. NTP uses port 123."
    first = few.ingest({"clocks.md": text, "radio.md": text}, kb_id="drawn").json()["manifest_version"]
    few.ingest({"tower.md": "The Network Time Protocol is told from a tower."}, kb_id="drawn")
    asked = {"kb_id": "drawn", "entity": "network time protocol"}
    ids = [
        {each["id"] for each in few.get("/rag/graph", params=parameters).json()["documents"]}
        for parameters in (asked, {**asked, "at": str(first)})
    ]
    assert ids == [{"clocks.md", "radio.md", "tower.md"}, {"clocks.md", "radio.md"}]


@pytest.mark.parametrize("at", ["", 0, -1, True, 1.5, [], {}, "x" * 201, 2**60])
def test_an_invalid_name_of_a_version_is_refused(plain: Served, at: object) -> None:
    assert error_of(plain.post("/rag/query", {"query": "lunch", "at": at})) == (400, "E601")
    assert error_of(plain.post("/ask", {"query": "lunch", "at": at})) == (400, "E601")


@pytest.mark.parametrize("at", [77, "77", "0", "-1", "1.0.0", "current", "..", "9" * 200])
def test_a_version_that_is_not_kept_is_missing(plain: Served, at: int | str) -> None:
    plain.get("/rag/versions")
    for answer in (
        plain.post("/rag/query", {"query": "lunch", "at": at}),
        plain.post("/ask", {"query": "lunch", "at": at}),
        plain.post("/ask", {"query": "lunch", "at": at}, headers={"accept": "text/event-stream"}),
        plain.post("/librarians/default/ask", {"query": "lunch", "at": at}),
        plain.get("/rag/docs/lunch.md", params={"at": str(at)}),
    ):
        assert error_of(answer) == (404, "E218")
    assert error_of(plain.post("/rag/query", {"query": "x", "kb_id": "never", "at": at})) == (400, "E201")


def test_a_version_that_is_collected_between_two_requests_is_missing(few: Served) -> None:
    number = paint(few, "collected", "red", "green")[0]
    document = {"kb_id": "collected", "at": str(number)}
    for _ in range(2):
        assert colour(query(few, "collected", number)) == "red"
        assert few.get("/rag/docs/door.md", params=document).status_code == 200
        assert few.post("/ask", {"query": "Which colour is the door?", **document}).status_code == 200
    paint(few, "collected", "blue", "amber")
    assert few.post("/rag/gc", {"kb_id": "collected", "grace_seconds": 0}).json()["deleted_shards"] > 0
    for _ in range(2):
        assert error_of(query(few, "collected", number)) == (404, "E218")
        assert error_of(few.get("/rag/docs/door.md", params=document)) == (404, "E218")
        assert error_of(few.post("/ask", {"query": "Which colour is the door?", **document})) == (404, "E218")
    assert colour(query(few, "collected")) == "amber"


def test_requests_at_a_version_are_right_or_refused_while_it_is_rolled_back_compacted_and_collected(
    few: Served,
) -> None:
    colours = dict(zip(paint(few, "busy", "red", "green"), ("red", "green"), strict=True))
    done, wrong, right = threading.Event(), list[object](), list[int]()

    def ask() -> None:
        turns = itertools.count()
        while not done.is_set():
            number = sorted(colours)[-1 - next(turns) % 2]
            # Each question is different, so none is cached.
            answer = query(few, "busy", number, k=1 + next(turns) % 50)
            if answer.status_code == 200 and colour(answer) == colours[number]:
                right.append(number)
            elif answer.status_code != 404 or error_of(answer)[1] != "E218":
                wrong.append((number, answer.text))

    with threads_running(*[ask] * 3):
        try:
            for name in COLOURS * 2:
                before = max(colours)
                colours[paint(few, "busy", name)[0]] = name
                back = few.post("/rag/rollback", {"kb_id": "busy", "version": before}).json()
                colours[back["manifest_version"]] = colours[before]
                few.post("/rag/compact", {"kb_id": "busy", "everything": True})
                few.post("/rag/gc", {"kb_id": "busy", "grace_seconds": 0})
        finally:
            done.set()
    assert wrong == []
    assert right


def test_reading_many_versions_keeps_the_number_of_shards_in_use(plain: Served) -> None:
    numbers = paint(plain, "many", *[f"colour{number}" for number in range(12)])
    before = shards_in_use(plain)
    for k in (1, 2):
        for number in numbers:
            assert colour(query(plain, "many", number, k=k)).startswith("colour")
            assert plain.get("/rag/docs/gate.md", params={"kb_id": "many", "at": str(number)}).status_code == 200
    assert len(shards_in_use(plain) - before) <= 8


def shards_in_use(server: Served) -> set[str]:
    folder = f"/proc/{server.process.pid}/fd"
    files = {os.path.realpath(f"{folder}/{name}") for name in os.listdir(folder)}
    return {each for each in files if each.endswith("/use")}


# ── asking ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "at", "wanted"),
    [
        ("/ask", 1, "red"),
        ("/ask", "2", "green"),
        ("/librarians/mill/ask", 1, "red"),
    ],
)
def test_the_librarian_of_a_kb_answers_from_an_earlier_version(
    few: Served, path: str, at: int | str, wanted: str
) -> None:
    asked = {"query": "Which colour is the door of the Old Mill?", "kb_id": "mill", "at": at}
    answer = few.post(path, asked).json()
    assert f"The door of the Old Mill is {wanted}." in answer["answer"]
    assert answer["sources"][0]["provenance"]["manifestVersion"] == int(at)
    assert [each["manifestVersion"] for each in answer["metadata"]["retrieval"]] == [int(at)]
    events = few.post(path, asked, headers={"accept": "text/event-stream"}).text
    assert json.loads(events.rpartition("data: ")[2])["answer"] == answer["answer"]


def test_without_a_kb_the_librarian_of_the_default_one_answers(plain: Served, few: Served) -> None:
    for server in (plain, few):
        answer = server.post("/ask", {"query": "When is lunch, and which colour is the door?", "at": 1}).json()
        assert answer["metadata"]["librarian"] == "default"


def test_a_librarian_without_versions_refuses_and_does_not_answer_from_the_present(few: Served) -> None:
    asked = {"query": "Which colour is the door of the Old Mill?", "at": 1}
    for path, kb_id in (
        ("/librarians/painter/ask", "mill"),
        ("/librarians/router/ask", ""),
        ("/librarians/shadowed/ask", ""),
        ("/ask", "shadowed"),
    ):
        assert error_of(few.post(path, {**asked, "kb_id": kb_id})) == (400, "E615")
    strange = {"query": "What do zebras drink at night?", "kb_id": "mill"}
    for asked_then, chain in ((strange, ["mill", "painter"]), ({**strange, "at": 1}, ["mill"])):
        assert few.post("/librarians/mill/ask", asked_then).json()["metadata"]["delegationChain"] == chain
    assert few.post("/librarians/secret/ask", {**asked, "kb_id": "mill"}).status_code == 403


def test_credentials_for_other_kbs_do_not_open_the_past(keyed: Keyed) -> None:
    elsewhere, here = keyed.key("read", "elsewhere"), keyed.key("read", "default")
    for key, status in ((elsewhere, 403), (here, 200)):
        for answer in (
            keyed.server.post("/rag/query", {"query": "lunch", "at": 1}, key=key),
            keyed.server.post("/ask", {"query": "When is lunch?", "at": 1}, key=key),
            keyed.server.get("/rag/docs/lunch.md?at=1", key=key),
        ):
            assert answer.status_code == status


# ── going back, once ───────────────────────────────────────────────────────────────────────────────


def request_of(kb_id: str, version: int, key: str) -> bytes:
    body = json.dumps({"kb_id": kb_id, "version": version})
    return (
        "POST /rag/rollback HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def sent(server: Served, request: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(request)
    return connection


def received(connection: socket.socket) -> tuple[int, bool, dict[str, Any]]:
    """Return the status, whether the response is a replay, and the body."""
    with connection:
        content = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]), b"idempotent-replayed: true" in head.lower(), json.loads(body)


def newest(server: Served, kb_id: str) -> int:
    return int(server.get("/rag/versions", params={"kb_id": kb_id}).json()["versions"][0]["version"])


def wait_for_requests(server: Served, count: int) -> None:
    """Wait until the server has this many requests in progress, not counting this one."""
    for _ in range(2000):
        found = re.search(r"^pair_http_requests_in_flight (\d+)", server.get("/metrics").text, re.MULTILINE)
        if found and int(found[1]) > count:
            return
    raise AssertionError(count)


def test_a_retry_after_a_lost_answer_makes_no_second_version(plain: Served) -> None:
    first, last = paint(plain, "lost", "red", "green")
    request = request_of("lost", first, "back-1")
    sent(plain, request).close()
    answers = [received(sent(plain, request)) for _ in range(3)]
    assert {(status, is_repeated) for status, is_repeated, _ in answers} == {(200, True)}
    assert [body["manifest_version"] for *_, body in answers] == [last + 1] * 3
    assert newest(plain, "lost") == last + 1
    assert received(sent(plain, request_of("lost", first, "back-2")))[2]["manifest_version"] == last + 2


def test_a_retry_that_arrives_during_the_first_request_waits_for_its_answer(few: Served) -> None:
    first, last = paint(few, "waiting", "red", "green")
    request = request_of("waiting", first, "back-1")
    with opened(few.folder, "waiting") as kb:
        leases = kb._core.context.leases
        with LeaseQueue(leases, SystemClock(), pause).hold(lease_name("waiting"), seconds=30, attempts=1):
            connections = [sent(few, request) for _ in range(4)]
            wait_for_requests(few, 4)
        answers = [received(connection) for connection in connections]
    assert [status for status, *_ in answers] == [200] * 4
    assert sorted(is_repeated for _, is_repeated, _ in answers) == [False, True, True, True]
    assert {body["manifest_version"] for *_, body in answers} == {last + 1}
    assert newest(few, "waiting") == last + 1


def test_a_key_that_came_with_something_else_is_refused_and_one_that_failed_may_come_again(few: Served) -> None:
    first, last = paint(few, "keys", "red", "green")
    assert received(sent(few, request_of("keys", 77, "back-1")))[0] == 404
    assert received(sent(few, request_of("keys", first, "back-1")))[0] == 200
    status, _, body = received(sent(few, request_of("keys", last, "back-1")))
    assert (status, body["error"]["code"]) == (400, "E601")
    status, _, body = received(sent(few, request_of("keys", last, "x" * 256)))
    assert (status, body["error"]["code"]) == (400, "E601")
    assert newest(few, "keys") == last + 1
    described = few.get("/openapi.json").json()["paths"]["/rag/rollback"]["post"]["parameters"]
    assert "Idempotency-Key" in {each["name"] for each in described}


def test_a_program_that_loses_an_answer_goes_back_once(plain: Served) -> None:
    first, last = paint(plain, "program-back", "red", "green")
    with Forgetful(plain.port) as url, pair.connect(url, kb_id="program-back", retries=3) as kb:
        assert kb.versions.rollback(first).manifest_version == last + 1
    assert newest(plain, "program-back") == last + 1


class Forgetful:
    """A proxy that forwards everything and drops the first response."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        self._listening.close()

    def _serve(self) -> None:
        for is_lost in (True, False):
            client, _ = self._listening.accept()
            with client, socket.create_connection(("127.0.0.1", self._port), timeout=30) as server:
                request = b""
                while not request.endswith(b"}"):
                    request += client.recv(65536)
                server.sendall(re.sub(rb"(?i)connection: keep-alive", b"connection: close", request))
                answer = b"".join(iter(lambda: server.recv(65536), b""))
                if not is_lost:
                    client.sendall(answer)
