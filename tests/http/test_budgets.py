"""Limits of a request: header, body, filter, time, threads, and memory after it."""

import concurrent.futures
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from support.served import Keyed, Served, error_of
from support.threads import threads_running

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
HEADER_SECONDS = 1.5
MOST_CONNECTIONS = 1_050
DOCUMENTS = 1_500


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Return a server with keys, low limits and documents to filter."""
    folder = tmp_path_factory.mktemp("guarded") / "project"
    variables = {
        "AUTH": "keys",
        "BODY_TIMEOUT_SECONDS": "1.5",
        "HEADER_TIMEOUT_SECONDS": str(HEADER_SECONDS),
        "CLIENT_WORKERS": "2",
        "MAX_CONNECTIONS": str(MOST_CONNECTIONS),
        "MAX_BODY_BYTES": "4000000",
        "MAX_BUFFERED_BYTES": "3500000",
        "SYNC": "false",
    }
    with Served(folder, **{f"PAIR__SERVER__{name}": value for name, value in variables.items()}) as server:
        keyed = Keyed(server, folder)
        documents = [
            {
                "id": f"{number}",
                "text": f"Note {number} about lunch.",
                "metadata": {"n": number, "kind": f"k{number % 7}"},
            }
            for number in range(DOCUMENTS)
        ]
        stored = server.post("/rag/ingest", {"documents": documents}, key=keyed.key("write"))
        assert stored.status_code == 200, stored.text
        yield keyed


def error_in(answer: bytes) -> tuple[int, str]:
    """Return the status and the error code of a raw HTTP response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def resident_bytes(server: Served) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def is_held(server: Served, client: socket.socket) -> bool:
    """Return whether the server process still holds the connection; the kernel may keep it longer."""
    ends = f":{server.port:04X}", f":{client.getsockname()[1]:04X}"
    entries = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(entry[1].endswith(ends[0]) and entry[2].endswith(ends[1]) and entry[9] != "0" for entry in entries)


@contextlib.contextmanager
def watched_health(server: Served) -> Iterator[list[float]]:
    """Measure the duration of `/healthz` requests, one after another, each on a new connection."""
    took: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            began = time.perf_counter()
            assert httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200
            took.append(time.perf_counter() - began)

    with threads_running(ask):
        try:
            yield took
        finally:
            stop.set()


# ── heads ──────────────────────────────────────────────────────────────────────────────────────────


def sent_until_closed(server: Served, first: bytes, more: bytes, most_bytes: int) -> tuple[int, bytes]:
    """Return the number of bytes that the server accepted before it closed, and its response."""
    taken, answer = 0, b""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
        contextlib.suppress(ConnectionError, TimeoutError),
    ):
        connection.sendall(first)
        connection.settimeout(0)
        while taken < most_bytes and not answer:
            with contextlib.suppress(BlockingIOError):
                taken += connection.send(more)
            with contextlib.suppress(BlockingIOError):
                answer = connection.recv(65536)
        connection.settimeout(20)
        while block := connection.recv(65536):
            answer += block
    return taken, answer


@pytest.mark.parametrize(
    ("first", "more"),
    [
        pytest.param(b"GET /", b"a" * 10_000, id="path"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * 10_000, id="value-of-a-header"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-", b"a" * 10_000, id="name-of-a-header"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"x: y\r\n" * 2_000, id="headers"),
    ],
)
def test_an_endless_head_is_refused_once_64_kilobytes_arrived(guarded: Keyed, first: bytes, more: bytes):
    taken, answer = sent_until_closed(guarded.server, first, more, 20_000_000)
    assert taken < 10_000_000
    assert error_in(answer) == (431, "E616")
    assert guarded.server.get("/healthz").status_code == 200


def test_a_head_of_many_headers_is_refused_and_one_of_60_kilobytes_is_not(guarded: Keyed):
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert error_in(guarded.server.raw(head + b"x: y\r\n" * 100 + b"\r\n")) == (431, "E616")
    assert guarded.server.raw(head + b"x: " + b"y" * 55_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert guarded.server.raw(head + b"x: y\r\n" * 90 + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_endless_trailers_of_a_body_are_refused(guarded: Keyed):
    head = (
        f"POST /rag/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {guarded.key('read')}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Trailer: "
    )
    taken, _ = sent_until_closed(guarded.server, head.encode(), b"a" * 10_000, 20_000_000)
    assert taken < 10_000_000


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"]
)
def test_a_malformed_http_request_gets_our_error(guarded: Keyed, sent: bytes):
    assert error_in(guarded.server.raw(sent)) == (400, "E601")


def test_thousands_of_requests_on_one_connection_do_not_pile_up(guarded: Keyed):
    with socket.create_connection(("127.0.0.1", guarded.server.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4_000)
        answer = closing_answer(connection)
    assert answer.count(b"HTTP/1.1 200") < 4_000
    assert guarded.server.get("/healthz").status_code == 200


def trickle(connections: list[socket.socket], stop: threading.Event) -> None:
    """Send one byte on each connection at intervals."""
    while not stop.wait(0.5):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b"a")


def test_1_000_connections_that_send_heads_and_bodies_byte_by_byte_delay_no_other(guarded: Keyed):
    server, key = guarded.server, guarded.key("read")
    body = f"POST /rag/query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 100000\r\n\r\n"
    opened: list[socket.socket] = []
    stop = threading.Event()
    try:
        for number in range(1_000):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            opened.append(connection)
            connection.sendall(b"GET /x" if number % 2 else body.encode())
            connection.setblocking(False)
        with threads_running(lambda: trickle(opened, stop)):
            honest = guarded.key("read")
            for number in range(10):
                assert httpx2.get(f"{server.url}/healthz", timeout=20).status_code == 200
                assert server.post("/rag/query", {"query": f"lunch {number}"}, key=honest).status_code == 200
            answers = [closing_answer(connection) for connection in opened]
            stop.set()
    finally:
        for connection in opened:
            connection.close()
    assert [answer for number, answer in enumerate(answers) if number % 2] == [b""] * 500
    assert {error_in(answer) for number, answer in enumerate(answers) if not number % 2} == {(408, "E610")}


def closing_answer(connection: socket.socket) -> bytes:
    """Return everything that the server sends until it closes."""
    connection.settimeout(30)
    answer = b""
    with contextlib.suppress(ConnectionError):
        while block := connection.recv(65536):
            answer += block
    return answer


def test_a_new_connection_takes_the_place_of_one_that_only_waits(guarded: Keyed):
    opened: list[socket.socket] = []
    try:
        address = "127.0.0.1", guarded.server.port
        opened.extend(socket.create_connection(address, timeout=20) for _ in range(MOST_CONNECTIONS + 50))
        last = opened[-1]
        last.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last.recv(100).startswith(b"HTTP/1.1 200 ")
        assert opened[0].recv(100) == b""
    finally:
        for connection in opened:
            connection.close()


def test_a_client_that_does_not_read_its_answers_is_cut_off(guarded: Keyed):
    head = (
        f"GET /rag/docs?limit=1000&text=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {guarded.key('read')}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", guarded.server.port))
        connection.settimeout(30)
        assert in_time(lambda: is_held(guarded.server, connection))
        connection.sendall(head.encode() * 30)
        assert in_time(lambda: not is_held(guarded.server, connection))


# ── bodies ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_of_50_megabytes_does_not_keep_others_waiting(plain: Served):
    values = b"[" + b"[]," * 17_000_000 + b"0]"
    bodies = {
        "/rag/query": b'{"query": "x", "filter": ' + values + b"}",
        "/rag/ingest": b'{"documents": ' + values + b"}",
    }
    with watched_health(plain) as took:
        for path, body in bodies.items():
            with contextlib.suppress(httpx2.WriteError):  # refused before it was sent
                assert error_of(plain.request("POST", path, content=body, headers=JSON)) == (413, "E607")
        text = json.dumps({"documents": [{"id": "huge", "text": " ".join(["word"] * 9_000_000)}], "chunk_size": 1})
        assert plain.request("POST", "/rag/ingest", content=text.encode(), headers=JSON).status_code == 400
    assert max(took) < 3
    assert len(took) > 2


def test_bodies_in_memory_have_a_limit_and_are_counted_until_their_request_ends(guarded: Keyed):
    """The limit is for concurrent requests: one body above it is refused, many smaller ones in turn are not."""
    key = guarded.key("write")

    def code_of(size: int) -> tuple[int, str]:
        answer = guarded.server.request("POST", "/rag/ingest", content=b" " * size, headers=JSON, key=key)
        return answer.status_code, answer.json()["error"]["code"]

    assert code_of(3_900_000) == (503, "E617")
    assert {code_of(2_000_000) for _ in range(5)} == {(400, "E601")}
    assert code_of(3_900_000) == (503, "E617")


def test_blank_lines_do_not_keep_a_stream_of_documents_open(guarded: Keyed):
    head = (
        f"POST /rag/ingest HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {guarded.key('write')}\r\n"
        "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = b""
    with socket.create_connection(("127.0.0.1", guarded.server.port), timeout=20) as connection:
        connection.sendall(head.encode())
        connection.settimeout(0.2)
        for _ in range(150):
            connection.sendall(b"1\r\n\n\r\n")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1)
                break
        assert answer, "the server waits for as long as blank lines come"
        answer += closing_answer(connection)
    assert error_in(answer) == (408, "E610")


# ── filters and threads ────────────────────────────────────────────────────────────────────────────


def heavy_filter(number: int) -> dict[str, Any]:
    """Return a filter at the limit: 100 conditions with 20 values each, different for each number."""
    values = [f"k{each}" for each in range(7)] + [f"{number}-{each}" for each in range(12)]
    conditions: dict[str, Any] = {"kind": values}
    conditions |= {f"key-{number}-{each}": values for each in range(98)}
    return conditions


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param({f"key-{number}": number for number in range(10_000)}, id="mapping"),
        pytest.param([f"key-{number}={number}" for number in range(10_000)], id="assignments"),
        pytest.param({"n": list(range(10_000))}, id="values"),
        pytest.param({f"key-{number}": number for number in range(1_001)}, id="over-a-thousand"),
    ],
)
def test_a_filter_with_10_000_conditions_is_refused_with_the_limit(guarded: Keyed, conditions: Any):
    answer = guarded.server.post("/rag/query", {"query": "lunch", "filter": conditions}, key=guarded.key("read"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "E211")
    assert ("at most 100 are" in error["message"]) != ("at most 2,000 are" in error["message"])


@pytest.mark.parametrize("path", ["/rag/query", "/ask", "/mcp"])
def test_a_request_of_too_many_values_is_refused_before_it_is_parsed(guarded: Keyed, path: str):
    answer = guarded.server.post(path, {"query": "lunch", "filter": [[]] * 60_000}, key=guarded.key("read"))
    assert error_of(answer) == (400, "E601")
    assert "more than 50,000 values" in answer.json()["error"]["message"]


def test_heavy_filters_of_one_key_leave_threads_to_others_and_their_memory_comes_back(guarded: Keyed):
    server, attacker, honest = guarded.server, guarded.key("read"), guarded.key("read")
    assert server.post("/rag/query", {"query": "lunch", "filter": {"n": 1}}, key=honest).status_code == 200
    before = resident_bytes(server)

    def attack(number: int) -> int:
        body = {"query": "lunch", "filter": heavy_filter(number)}
        headers = {"authorization": f"Bearer {attacker}"}
        return httpx2.post(f"{server.url}/rag/query", json=body, headers=headers, timeout=120).status_code

    with concurrent.futures.ThreadPoolExecutor(70) as pool:
        attacks = [pool.submit(attack, number) for number in range(140)]
        answered = [
            server.post("/rag/query", {"query": f"lunch {number}", "filter": {"n": number}}, key=honest).status_code
            for number in range(10)
        ]
        waiting = sum(not attack.done() for attack in attacks)
        statuses = {attack.result() for attack in attacks}
    assert answered == [200] * 10
    assert waiting > 0, "the others were answered while heavy filters were running"
    assert statuses <= {200, 503}
    assert resident_bytes(server) - before < 300_000_000


# ── what is remembered ─────────────────────────────────────────────────────────────────────────────


def test_two_keys_of_one_name_do_not_share_what_was_answered_to_an_idempotency_key(guarded: Keyed):
    one, two = (same_name(guarded) for _ in range(2))
    body = {"kb_id": "twice", "documents": [{"text": "Whose is this?"}]}
    headers = {"idempotency-key": "import"}
    first = guarded.server.post("/rag/ingest", body, key=one, headers=headers)
    again = guarded.server.post("/rag/ingest", body, key=one, headers=headers)
    other = guarded.server.post("/rag/ingest", body, key=two, headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in other.headers
    assert first.json()["doc_ids"] == again.json()["doc_ids"] != other.json()["doc_ids"]


def same_name(guarded: Keyed) -> str:
    return guarded.keys.add("importer", "write", (), None)[1]


def test_hits_of_the_shard_cache_are_counted(guarded: Keyed):
    def hits() -> float:
        text = guarded.server.get("/metrics", key=key).text
        line = next(
            line for line in text.splitlines() if line.startswith('pair_shard_cache_hits_total{kb_id="default"}')
        )
        return float(line.split()[-1])

    key = guarded.key("read")
    assert guarded.server.post("/rag/query", {"query": "lunch at one"}, key=key).status_code == 200
    before = hits()
    for number in range(5):
        assert guarded.server.post("/rag/query", {"query": f"lunch at {number}"}, key=key).status_code == 200
    assert hits() - before >= 5


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────────


class SilentIssuer:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self._listening.getsockname()[1]
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(self._listening.accept()[0])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for connection in self.taken:
            connection.close()


def test_tokens_of_unknown_keys_occupy_no_threads_while_the_issuer_is_silent(tmp_path: Path):
    with contextlib.closing(SilentIssuer()) as issuer:
        settings = {
            "AUTH": "jwt",
            "JWT_JWKS": f"http://127.0.0.1:{issuer.port}/jwks",
            "JWT_ISSUER": "issuer",
            "JWT_AUDIENCE": "pair",
            "SYNC": "false",
        }
        private = ec.generate_private_key(ec.SECP256R1())
        with Served(
            tmp_path / "project", **{f"PAIR__SERVER__{name}": value for name, value in settings.items()}
        ) as server:

            def ask(number: int) -> tuple[int, str]:
                claims = {"sub": "eve", "iss": "issuer", "aud": "pair", "exp": time.time() + 600}
                token = jwt.encode(claims, private, algorithm="ES256", headers={"kid": f"made-up-{number}"})
                headers = {"authorization": f"Bearer {token}"}
                answer = httpx2.get(f"{server.url}/rag/kbs", headers=headers, timeout=120)
                return answer.status_code, answer.json()["error"]["code"]

            with concurrent.futures.ThreadPoolExecutor(80) as pool:
                asked = [pool.submit(ask, number) for number in range(160)]
                waited = in_time(lambda: len(issuer.taken) > 0)
                assert waited
                ready = [server.get("/readyz").status_code for _ in range(3)]
                is_under_way = any(not each.done() for each in asked)
                answers = {each.result() for each in asked}
            assert ready == [200] * 3
            assert is_under_way, "the server was ready while callers waited for public keys"
            assert answers <= {(503, "E614"), (401, "E602")}
            assert len(issuer.taken) <= 4


def in_time(is_so: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()
