"""`pair.connect`: a KB on a server has the same methods as a local KB."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pair
from pair import errors
from pair.app.http.openapi import EXAMPLES
from pair.client import RemoteKnowledgeBase
from pair.kb.kb import KnowledgeBase
from pair.librarians.contract import Context, User
from pair.settings import Settings
from pair.values import Document, GraphParameters, SearchOptions
from support.engine_parts import stats_of
from support.errors import raises_code
from support.listening import LoopbackServer, QuietHandler, QuietServer
from support.ports import free_ports
from support.served import Keyed, Served, error_of, opened
from support.threads import run_together

HANDBOOK = [
    Document("deploy.md", "# Deploying\n\nDeploy on Tuesdays. Roll back with make rollback.", metadata={"year": 2026}),
    Document("a/b c?#%.md", "Lunch is at one.", title="Lunch \u2028 time", url="https://example.com/é"),
    Document("..", "Soup on Fridays 🍲.", metadata={"year": 2020, "tags": ["food"]}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("client") / "project"
    (folder / ".pair" / "knowledge").mkdir(parents=True)
    with Served(folder, PAIR__SERVER__SYNC="false", PAIR__ENGINE__GRAPH="off") as running:
        yield running


def here(folder: Path, kb_id: str) -> KnowledgeBase:
    variables = {"EMBEDDER": "ngram", "CACHE_DIR": str(folder / "cache"), "GRAPH": "off"}
    settings = Settings.load(environment={f"PAIR__ENGINE__{name}": value for name, value in variables.items()})
    return pair.open(kb_id, store=str(folder / "store"), settings=settings)


# ── the same verbs ─────────────────────────────────────────────────────────────────────────────────


def used(kb: KnowledgeBase | RemoteKnowledgeBase) -> list[Any]:
    """Use every method of a KB and return what a program sees."""
    seen: list[Any] = [kb.kb_id, kb.stats(), kb.count(), kb.facets("year"), kb.existing_ids(["a"])]
    seen += [kb.delete(["a"]), kb.delete(filter={"year": 2020}), refusal(kb.documents), refusal(lambda: kb.search("x"))]
    seen.append(kb.upsert(HANDBOOK))
    told: list[Any] = []
    seen.append(
        kb.upsert([HANDBOOK[0], dataclasses.replace(HANDBOOK[1], text="Lunch is at two.")], on_batch=told.append)
    )
    seen += told
    for found in (
        kb.search("roll back"),
        kb.search("lunch", limit=1, mode="keyword", options=SearchOptions(highlights=True)),
        kb.search("soup", filter={"year": {"lte": 2020}}, explain=True),
        kb.search("soup", filter=["year>=2021"], mode="vector", options=SearchOptions(max_distance=5.0)),
    ):
        seen.append([dataclasses.replace(hit, shard="") for hit in found])
        seen += [len(found), found.mode_used, found.partial, found.reason, found.manifest_version]
    seen += [kb.document("a/b c?#%.md"), kb.document("..").text]
    seen += [kb.documents(limit=2), kb.documents(after="..", owner="ingest"), kb.documents(owner="sync")]
    either = {"$or": [{"year": 2026}, {"tags": {"contains": "food"}}]}
    for chosen in (either, {"year": {"exists": False}}, ["year?", "year!=2020"], None):
        seen += [kb.documents(filter=chosen), kb.count(filter=chosen), kb.facets("year", filter=chosen, limit=2)]
    seen += [kb.documents(ids=["..", "absent", "deploy.md"], vectors=True), kb.existing_ids(["..", "absent"])]
    seen += [kb.documents(ids=["..", "deploy.md"], limit=1).next, kb.documents(ids=["..", "deploy.md"], after="..")]
    seen += [kb.documents(vectors=True, filter={"year": 2026}), kb.documents(ids=[])]
    seen += search_by_vector(kb)
    seen += [kb.documents(contains="lunch"), kb.documents(limit=1).next, kb.count(owner="sync")]
    for wrong in (
        lambda: kb.count(filter={"$or": 1}),
        lambda: kb.facets("year", filter=["="]),
        lambda: kb.document("absent"),
        lambda: kb.search("x", mode="psychic"),
        lambda: kb.search("  "),
        lambda: kb.search("x", filter={"year": {"above": 3}}),
        lambda: kb.upsert([Document("", "Some text.")]),
        lambda: kb.upsert([Document("nan", "Some text.", metadata={"x": float("nan")})]),
        kb.sync,
    ):
        seen.append(refusal(wrong))
    answer = asyncio.run(kb.ask("How do I roll back?", first=kb.kb_id))
    seen += [answer.answer, answer.partial, answer.error, [(each.name, each.quote) for each in answer.sources]]
    nobody = asyncio.run(kb.ask("Anybody?", first="nobody")).error
    seen.append(nobody.code if nobody else None)
    seen += [kb.upsert([Document("given", "", metadata={"year": 1}, vector=[0.5] * 384)]), kb.delete(filter=["year=1"])]
    seen += [kb.delete(["..", "absent"]), [each.id for each in kb.documents()]]
    stats = stats_of(kb)
    seen += [stats.documents, stats.chunks, stats.embedder, stats.dimension, stats.manifest_version]
    seen += [kb.compact(everything=True), kb.maintenance.collect(grace_seconds=0), kb.sweep().evicted_ttl]
    return seen


def search_by_vector(kb: KnowledgeBase | RemoteKnowledgeBase) -> list[Any]:
    [document] = kb.documents(ids=["deploy.md"], vectors=True)
    assert document.vector is not None
    near = kb.search_vector(document.vector, limit=2)
    assert near[0].document_id == "deploy.md"
    narrow = kb.search_vector(document.vector, filter={"year": 2020}, max_distance=3.0)
    # The vector of the query is that of another document: only the words choose this one.
    steered = kb.search("lunch", limit=3, options=SearchOptions(vector=document.vector, allow_weak=True, diversity=0.3))
    wrong = refusal(lambda: kb.search_vector([1.0])), refusal(lambda: kb.search_vector(["x"]))  # type: ignore[list-item]
    found = [[dataclasses.replace(hit, shard="") for hit in hits] for hits in (near, narrow, steered)]
    return [*found, *wrong, [hit.cite(kb.kb_id) for hit in near]]


def refusal(work: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(pair.PairError) as caught:
        work()
    return type(caught.value), caught.value.code


def test_a_program_sees_the_same_here_and_there(server: Served, tmp_path: Path):
    with here(tmp_path, "both") as local:
        expected = used(local)
    with pair.connect(server.url, kb_id="both") as remote:
        seen = used(remote)
    assert len(seen) == len(expected)
    for mine, theirs in zip(seen, expected, strict=True):
        assert mine == theirs


def test_files_of_the_server_are_synced_when_asked(server: Served):
    knowledge = server.folder / ".pair" / "knowledge"
    (knowledge / "tea.md").write_text("Tea is at four.")
    (knowledge / "picture.bin").write_bytes(b"\xff\x00")
    with pair.connect(server.url) as kb:
        report = kb.sync()
        assert (report.added, report.stored, report.unstored) == (1, 1, 0)
        assert [name for name, _ in report.skipped] == ["picture.bin"]
        assert kb.sync(wait=False).unchanged == 1
        assert [hit.document_id for hit in kb.search("tea")] == ["tea.md"]
        results: list[int] = []
        (knowledge / "milk.md").write_text("Milk is in the fridge.")
        run_together(*[lambda: results.append(kb.sync().stored)] * 6)
        assert len(results) == 6
        assert kb.document("milk.md").owner == "sync"
    assert server.post("/sync", {}).json().keys() == EXAMPLES["SyncResponse"].keys()
    assert error_of(server.request("DELETE", "/rag/docs/milk.md")) == (400, "E105")
    assert server.get("/rag/docs/milk.md").status_code == 200, "its source would bring it back"


def test_a_value_that_http_cannot_carry_is_refused_before_anything_is_sent():
    with pair.connect("http://127.0.0.1:9", retries=0) as kb:
        for work in (
            lambda: kb.search_vector([0.0, 1.0], exact=True),
            lambda: kb.search("x", exact=True),
            lambda: kb.documents(ids=["a"], contains="x"),
            lambda: kb.search("x", options=SearchOptions(graph=GraphParameters(hops=2))),
            lambda: kb.upsert([], owner="sync"),
            lambda: kb.delete(owner="ingest"),
        ):
            assert refusal(work) == (errors.UsageError, "E620")
        for document in (
            Document("", "text"),
            Document("blank", " "),
            Document("n", "text", metadata={"x": float("nan")}),
            Document("o", "text", metadata={"x": object()}),
        ):
            assert refusal(functools.partial(kb.upsert, [document])) == (errors.UsageError, "E213")
        assert refusal(lambda: kb.document("\ud800")) == (errors.UsageError, "E601")
    for address in ("ftp://x", "localhost:8080", "http://", "http://x:y", "http://a:b@x", "http://x/?q=1", ""):
        assert refusal(functools.partial(pair.connect, address)) == (errors.UsageError, "E401")
    assert refusal(lambda: pair.connect("http://x", key="a\nb")) == (errors.UsageError, "E401")
    assert refusal(lambda: pair.connect("http://x", kb_id="../x")) == (errors.UsageError, "E212")


def test_an_answer_can_be_followed_and_errors_are_answers(server: Served):
    with pair.connect(server.url, kb_id="asked") as kb:
        kb.upsert([Document("lunch", "Lunch is at one.")])
        pieces: list[str] = []
        context = Context(request_id="followed-1", user=User("eve", roles=("boss",)), on_text=pieces.append)
        answer = asyncio.run(kb.ask("When is lunch?", context=context, timeout=20))
        assert "Lunch is at one" in str(answer.answer)
        assert answer.metadata["requestId"] == "followed-1"
        looped = asyncio.run(kb.ask("When?", context=Context(delegation_chain=("asked",))))
        assert looped.error is not None
        assert (looped.error.code, looped.error.librarian) == ("LOOP_DETECTED", "asked")
        empty = asyncio.run(kb.ask(""))
        assert (empty.answer, empty.error.code if empty.error else "") == (None, "INVALID_QUERY")

        async def many() -> list[pair.Response]:
            return await asyncio.gather(*(kb.ask("When is lunch?") for _ in range(8)))

        assert all("Lunch is at one" in str(each.answer) for each in asyncio.run(many()))
    with pair.connect("http://127.0.0.1:9", retries=0) as nowhere:
        away = asyncio.run(nowhere.ask("Anybody?"))
    assert away.error is not None
    assert (away.error.code, away.error.recoverable) == ("DATA_SOURCE_ERROR", True)


# ── large loads ────────────────────────────────────────────────────────────────────────────────────


def notes(count: int, size: int = 0) -> Iterator[Document]:
    return (Document(f"n{number:05}", f"Note number {number}. {'x' * size}") for number in range(count))


def test_a_stream_of_documents_is_stored_batch_by_batch_and_read_page_by_page(server: Served):
    told: list[int] = []
    with pair.connect(server.url, kb_id="large") as kb:
        report = kb.upsert(notes(2300), on_batch=lambda batch: told.append(batch.added))
        assert (report.added, report.unchanged, told) == (2300, 0, [1000, 1000, 300])
        assert kb.upsert(notes(2300)).unchanged == 2300
        assert [each.id for each in kb.documents(limit=2200)] == [each.id for each in notes(2200)]
        assert refusal(lambda: kb.upsert([*notes(150), Document("z", "t", metadata={"a.b": {}})], chunk_size=1)) == (
            errors.UsageError,
            "E601",
        )
    with pair.connect(server.url, kb_id="heavy") as kb:
        told.clear()
        assert kb.upsert(notes(6, 1_000_000), on_batch=lambda batch: told.append(batch.added)).added == 6
        assert told == [3, 3]


def test_a_server_that_dies_in_the_middle_and_comes_back_has_everything_once(tmp_path: Path):
    (port,) = free_ports(1)
    settings = {"PAIR__SERVER__SYNC": "false", "PAIR__SERVER__PORT": str(port), "PAIR__ENGINE__GRAPH": "off"}
    batches: list[int] = []
    with contextlib.ExitStack() as held:
        first = held.enter_context(Served(tmp_path / "project", **settings))

        def restart() -> None:
            first.stop(signal.SIGKILL)
            held.enter_context(Served(tmp_path / "project", **settings))

        def kill_after_the_first(report: Any) -> None:
            batches.append(report.added + report.unchanged)
            if len(batches) == 1:
                killer.start()  # while the second is on its way

        killer = threading.Thread(target=restart)
        with pair.connect(first.url, retries=30) as kb:
            report = kb.upsert(notes(3000), on_batch=kill_after_the_first)
            killer.join(timeout=60)
            assert report.added + report.unchanged == 3000
            assert batches == [1000] * 3
            assert stats_of(kb).documents == 3000
    with opened(tmp_path / "project") as stored:
        assert [each.id for each in stored.documents(limit=6000)] == [each.id for each in notes(3000)]


# ── credentials and errors ─────────────────────────────────────────────────────────────────────────


def shown(fault: BaseException) -> str:
    """Return every text of the client that a log or a crash report could contain."""
    lines = traceback.TracebackException.from_exception(fault, capture_locals=False).format()
    chain = [fault, fault.__cause__, fault.__context__]
    return "".join(lines) + "".join(f"{each!r} {vars(each)}" for each in chain if each is not None)


def test_a_key_opens_what_it_is_for_and_is_shown_nowhere(keyed: Keyed):
    read, mine = keyed.key("read"), keyed.key("write", "client-kb")
    url = keyed.server.url
    with pair.connect(url, key=read) as kb:
        assert kb.search("lunch")[0].document_id == "lunch.md"
        assert read not in repr(kb)
        assert repr(kb) == f"<RemoteKnowledgeBase 'default' at {url}>"
        with pytest.raises(errors.AccessError) as caught:
            kb.upsert([Document("x", "No.")])
        assert (caught.value.code, read in shown(caught.value)) == ("E603", False)
        assert refusal(kb.sync) == (errors.AccessError, "E603")
    with pair.connect(url, kb_id="client-kb", key=mine) as kb:
        assert kb.upsert([Document("x", "The canteen is open on Sundays.")]).added == 1
        assert "Sundays" in str(asyncio.run(kb.ask("When is the canteen open?")).answer)
    with pair.connect(url, key=mine) as other:
        assert refusal(lambda: other.search("x")) == (errors.AccessError, "E603")
        refused = asyncio.run(other.ask("x?")).error
        assert refused is not None
        assert refused.code == "UNAUTHORIZED"
    with pair.connect(url, key="pair_000000000000_" + "0" * 64) as stranger:
        with raises_code("E602", errors.AccessError) as unknown:
            stranger.search("x")
        assert "pair keys add" in "\n".join(unknown.value.hints)
        assert unknown.value.details["request_id"]


class Scripted(LoopbackServer):
    """A server that sends the given responses, one for each request."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes] | None) -> None:
        """`answers`: None closes the connection."""
        self._answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        scripted = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                scripted.requests.append((f"{self.command} {self.path}", headers, self.read_body()))
                answer = scripted._answers.pop(0) if scripted._answers else (404, {}, b"")
                if answer is None:
                    self.close_connection = True
                    return
                status, more, content = answer
                self.answer(status, content, more)

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

        super().__init__(QuietServer(("127.0.0.1", 0), Handler))
        self.url = f"http://127.0.0.1:{self.port}"


def error_answer(code: str, status: int, *, wait: str = "0") -> tuple[int, dict[str, str], bytes]:
    value = {"error": {"code": code, "message": "not now", "recoverable": True, "suggestion": "wait\nor not"}}
    return status, {"retry-after": wait}, json.dumps(value).encode()


STORED = {"ingested_docs": 1, "replaced_docs": 0, "unchanged_docs": 0, "ingested_chunks": 1, "manifest_version": 3}
GOOD = 200, {"content-type": "application/json"}, json.dumps(STORED).encode()


def test_a_passing_error_is_retried_with_the_same_idempotency_key():
    busy = error_answer("E608", 429, wait="1")
    answers = (busy, None, error_answer("E203", 409), error_answer("E611", 503), (502, {"retry-after": "0"}, b"<html>"))
    began = time.monotonic()
    with Scripted(*answers, GOOD) as scripted, pair.connect(scripted.url, key="k") as kb:
        assert kb.upsert([Document("a", "Some text.")]).added == 1
        assert time.monotonic() - began > 1  # the time in Retry-After
        sent = scripted.requests
        assert len(sent) == 6
        assert len({(line, headers["idempotency-key"], body) for line, headers, body in sent}) == 1
        assert {headers["authorization"] for _, headers, _ in sent} == {"Bearer k"}


def test_tries_are_bounded_and_the_last_error_is_reported():
    with Scripted(*[error_answer("E203", 409)] * 9) as scripted, pair.connect(scripted.url, retries=2) as kb:
        with pytest.raises(errors.ConflictError) as caught:
            kb.maintenance.compact()
        assert (caught.value.code, caught.value.message, caught.value.hints) == ("E203", "not now", ("wait", "or not"))
        assert len(scripted.requests) == 3


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        pytest.param(error_answer("E208", 409), errors.ConflictError, "E208", id="outcome-unknown"),
        pytest.param(error_answer("E608", 429, wait="4000"), errors.ConflictError, "E608", id="too-long-a-wait"),
        pytest.param(error_answer("E207", 500), errors.DataError, "E207", id="damaged"),
        pytest.param(error_answer("E999", 404), errors.NotFoundError, "E999", id="a-code-of-the-future"),
        pytest.param(error_answer("INTERNAL_ERROR", 500), errors.DataError, "INTERNAL_ERROR", id="bug"),
        pytest.param((403, {}, b"<html>"), errors.DownloadError, "E621", id="a-proxy-in-between"),
        pytest.param((200, {}, b"<html>"), errors.DownloadError, "E621", id="another-server"),
        pytest.param((200, {}, b'{"results": 7}'), errors.DownloadError, "E621", id="another-api"),
        pytest.param((200, {}, b"[" * 100_000), errors.DownloadError, "E621", id="too-deep"),
    ],
)
def test_a_permanent_error_is_raised_at_once(answer: Any, kind: type, code: str):
    with Scripted(answer) as scripted, pair.connect(scripted.url) as kb:
        assert refusal(lambda: kb.search("x")) == (kind, code)
        assert len(scripted.requests) == 1


def test_a_question_is_not_asked_twice_when_its_answer_is_lost():
    with Scripted(None, GOOD) as scripted, pair.connect(scripted.url) as kb:
        lost = asyncio.run(kb.ask("x?"))
        assert lost.error is not None
        assert lost.error.details["code"] == "E621"
        assert len(scripted.requests) == 1
    with (
        Scripted(error_answer("E608", 429), (200, {}, b'{"answer": "Yes."}')) as scripted,
        pair.connect(scripted.url) as kb,
    ):
        assert asyncio.run(kb.ask("x?")).answer == "Yes."
        assert len(scripted.requests) == 2


def test_a_redirect_is_not_followed_and_the_key_stays():
    with Scripted() as elsewhere:
        leads = 307, {"location": f"{elsewhere.url}/rag/query"}, b""
        with Scripted(leads) as scripted, pair.connect(scripted.url, key="secret-key") as kb:
            with raises_code("E621", errors.DownloadError) as caught:
                kb.search("x")
            assert elsewhere.url in "\n".join(caught.value.hints)
            assert "secret-key" not in shown(caught.value)
        assert elsewhere.requests == []


def test_an_unavailable_server_is_reported_without_the_key():
    (port,) = free_ports(1)
    kb = pair.connect(f"http://127.0.0.1:{port}/prefix/", key="secret-key", retries=1)
    with kb, pytest.raises(errors.DownloadError) as caught:
        kb.stats()
    assert (caught.value.code, caught.value.retryable) == ("E621", True)
    assert f"http://127.0.0.1:{port}/prefix:" in caught.value.message
    assert "secret-key" not in shown(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
