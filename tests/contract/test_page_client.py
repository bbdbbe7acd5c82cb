"""The page client on a real server: answers, limits and faults."""

import contextlib
import datetime
import gzip
import os
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pair.clock import SystemClock
from pair.network import PageFault
from pair.web.pages import PageAnswer, PageClient
from support.page_server import (
    Asked,
    Names,
    PageServer,
    RawReply,
    Reply,
    dripping,
    endless,
    gzip_bomb,
    html,
    redirect,
    silence,
)

LIMIT = 100_000


@pytest.fixture
def client() -> Iterator[PageClient]:
    with opened(timeout_seconds=20.0) as made:
        yield made


@contextlib.contextmanager
def opened(*, timeout_seconds: float, max_bytes: int = LIMIT, **more: Any) -> Iterator[PageClient]:
    """Open a client that allows every address, unless `more` says otherwise."""
    options = {"allow_private_addresses": True, **more}
    made = PageClient(timeout_seconds=timeout_seconds, max_bytes=max_bytes, clock=SystemClock(), **options)
    with contextlib.closing(made):
        yield made


def got(client: PageClient, url: str, *, etag: str | None = None, last_modified: str | None = None) -> PageAnswer:
    return client.get(url, etag=etag, last_modified=last_modified)


def fault_of(client: PageClient, url: str, *, etag: str | None = None) -> PageFault:
    with pytest.raises(PageFault) as raised:
        got(client, url, etag=etag)
    return raised.value


def test_a_page_comes_with_what_the_server_said_of_it(server: PageServer, client: PageClient) -> None:
    server.pages["/a?b=%20c"] = Reply(
        headers=[
            ("Content-Type", 'Text/HTML; Charset="UTF-8"'),
            ("ETag", 'W/"one"'),
            ("Last-Modified", "Sun, 01 Mar 2026 12:00:00 GMT"),
        ],
        body=b"<p>hello",
    )
    answer = got(client, server.url("/a?b= c"))
    assert answer == PageAnswer(
        status=200,
        url=server.url("/a?b=%20c"),
        etag='W/"one"',
        last_modified="Sun, 01 Mar 2026 12:00:00 GMT",
        content_type="text/html",
        charset="utf-8",
        body=b"<p>hello",
    )
    assert server.asked[0].headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": "pair",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
    }


def test_validators_are_sent_unchanged_and_304_is_an_answer(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = Reply(304, headers=[("ETag", 'W/"one"')])
    answer = got(client, server.url(), etag='W/"one"', last_modified="Sun, 01 Mar 2026 12:00:00 GMT")
    assert (answer.status, answer.body, answer.etag) == (304, b"", 'W/"one"')
    assert server.asked[0].headers["if-none-match"] == 'W/"one"'
    assert server.asked[0].headers["if-modified-since"] == "Sun, 01 Mar 2026 12:00:00 GMT"


def test_304_to_a_request_without_condition_is_a_fault(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = Reply(304)
    fault = fault_of(client, server.url())
    assert (fault.kind, fault.status) == ("error", 304)


def test_an_etag_that_changes_each_time_brings_the_page_each_time(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = lambda _: Reply(headers=[("ETag", f'"{len(server.asked)}"')], body=b"same")
    first = got(client, server.url())
    second = got(client, server.url(), etag=first.etag)
    assert (first.etag, second.etag, second.status, second.body) == ('"1"', '"2"', 200, b"same")


@pytest.mark.parametrize("status", [201, 204, 206, 300, 400, 401, 403, 404, 410, 418, 429, 500, 502, 503, 504])
def test_every_other_status_is_a_fault_that_names_it(server: PageServer, client: PageClient, status: int) -> None:
    server.pages["/"] = Reply(status)
    fault = fault_of(client, server.url())
    assert fault.reason.startswith(f"HTTP {status}")
    assert (fault.kind, fault.status, fault.retry_after_seconds) == ("error", status, None)


def test_retry_after_is_read_as_seconds_and_as_a_date(server: PageServer, client: PageClient) -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=10)
    values = ["120", f"{moment:%a, %d %b %Y %H:%M:%S GMT}", "Sun, 01 Mar 2020 12:00:00 GMT", "soon", "9" * 400]
    server.pages["/"] = lambda _: Reply(503, headers=[("Retry-After", values[len(server.asked) - 1])])
    pauses = [fault_of(client, server.url()).retry_after_seconds for _ in values]
    assert pauses[0] == 120.0
    assert pauses[1] == pytest.approx(600, abs=30)
    assert pauses[2:] == [0.0, None, 2.0**31]


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("text/plain", ("text/plain", None)),
        ("text/html;charset=ISO-8859-1", ("text/html", "iso-8859-1")),
        ("text/html; charset = 'utf-8' ; x=y", ("text/html", "utf-8")),
        ("text/html; charset=no-such-thing", ("text/html", "no-such-thing")),
        ("text/html; charset=", ("text/html", None)),
        ("; charset=utf-8", ("", "utf-8")),
        (None, ("", None)),
    ],
)
def test_type_and_charset_are_distinguished(
    server: PageServer, client: PageClient, content_type: str | None, expected: tuple[str, str | None]
) -> None:
    server.pages["/"] = Reply(headers=[("Content-Type", content_type)] if content_type else [])
    answer = got(client, server.url())
    assert (answer.content_type, answer.charset) == expected


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)]
)
def test_compressed_pages_are_decompressed(
    server: PageServer, client: PageClient, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    server.pages["/"] = Reply(headers=[("Content-Encoding", encoding)], body=pack(b"hello " * 1000))
    assert got(client, server.url()).body == b"hello " * 1000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        pytest.param("br", b"x", id="not-asked-for"),
        pytest.param("gzip, br", b"x", id="two"),
        pytest.param("gzip", b"not gzip", id="nonsense"),
        pytest.param("gzip", gzip.compress(b"x")[:-4], id="cut"),
    ],
)
def test_a_page_that_cannot_be_unpacked_is_a_fault(
    server: PageServer, client: PageClient, encoding: str, body: bytes
) -> None:
    server.pages["/"] = Reply(headers=[("Content-Encoding", encoding)], body=body)
    assert fault_of(client, server.url()).kind == "error"


def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit(server: PageServer) -> None:
    bomb = gzip_bomb(10 * 1024**3)
    assert 8_000_000 < len(bomb) < 16_000_000
    server.pages["/"] = Reply(headers=[("Content-Encoding", "gzip")], body=bomb)
    limit = 16 * 1024 * 1024
    with opened(timeout_seconds=60.0, max_bytes=limit) as client:
        tracemalloc.start()
        try:
            fault = fault_of(client, server.url())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert "longer than" in fault.reason
    assert peak_bytes < 5 * limit


def test_a_page_of_the_limit_is_taken_and_one_byte_more_is_not(server: PageServer, client: PageClient) -> None:
    for extra, headers in ((0, []), (1, []), (1, [("Content-Encoding", "gzip")])):
        body = os.urandom(LIMIT + extra)
        server.pages["/"] = Reply(headers=headers, body=gzip.compress(body) if headers else body, declared_length=-1)
        if extra:
            assert "longer than 100,000 bytes" in fault_of(client, server.url()).reason
        else:
            assert got(client, server.url()).body == body


def test_an_announced_length_beyond_the_limit_is_refused_before_the_body(
    server: PageServer, client: PageClient
) -> None:
    server.pages["/"] = RawReply(announcing_too_much)
    assert "longer than" in fault_of(client, server.url()).reason


def announcing_too_much(server: PageServer) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n"
    yield from silence(server)


def test_an_endless_page_is_left_at_the_limit(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = Reply(pieces=endless)
    assert "longer than" in fault_of(client, server.url()).reason


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", id="too-short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two-lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="negative-length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", id="absurd-length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="bad-chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, id="endless-header"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another-protocol"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_an_answer_that_is_not_http_is_a_fault(server: PageServer, client: PageClient, wire: bytes) -> None:
    server.pages["/"] = RawReply(lambda _: iter((wire,)))
    assert fault_of(client, server.url()).kind == "error"


def test_a_page_longer_than_its_length_is_cut_and_the_next_one_is_whole(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = Reply(body=b"0123456789", declared_length=4)
    server.pages["/next"] = Reply(body=b"next")
    assert got(client, server.url()).body == b"0123"
    assert got(client, server.url("/next")).body == b"next"


def test_a_request_whose_idle_connection_is_closed_is_sent_on_another_one(
    server: PageServer, client: PageClient
) -> None:
    hanging_up = RawReply(lambda _: iter(()))
    replies: list[Reply | RawReply] = [hanging_up, Reply(body=b"next"), hanging_up, hanging_up, Reply(body=b"late")]
    server.pages["/"] = Reply(body=b"first")
    server.pages["/next"] = lambda _: replies.pop(0)
    assert got(client, server.url()).body == b"first"
    assert got(client, server.url("/next")).body == b"next"
    assert (len(server.asked), server.connections) == (3, 2)
    assert fault_of(client, server.url("/next")).kind == "error", "once more, and no more"
    assert fault_of(client, server.url("/gone")).status == 404
    assert len(replies) == 1


def test_a_request_whose_new_connection_is_closed_is_not_sent_again(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = RawReply(lambda _: iter(()))
    assert fault_of(client, server.url()).kind == "error"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(RawReply(silence), id="silent"),
        pytest.param(RawReply(dripping(b"HTTP/1.1 200 OK\r\nX-Header: x\r\n")), id="dripping-headers"),
        pytest.param(RawReply(dripping(b"HTTP/1.1 100 Continue\r\n\r\n")), id="dripping-interim-answers"),
        pytest.param(Reply(pieces=dripping(b"x")), id="dripping-body"),
        pytest.param(Reply(headers=[("Content-Encoding", "gzip")], pieces=silence), id="silent-body"),
    ],
)
def test_a_slow_server_is_left_when_the_time_is_up(server: PageServer, page: Reply | RawReply) -> None:
    server.pages["/"] = page
    clock = SystemClock()
    with opened(timeout_seconds=0.5) as client:
        started_at = clock.monotonic()
        fault = fault_of(client, server.url())
        seconds = clock.monotonic() - started_at
    assert (fault.kind, fault.reason, fault.status) == ("timeout", "no complete answer after 0.5s", None)
    assert 0.4 < seconds < 5


def test_the_time_is_for_all_redirects_together(server: PageServer) -> None:
    def slowly(asked: Asked) -> Reply:
        server.stopped.wait(0.2)
        return redirect(f"/{len(server.asked)}")

    server.pages.update({f"/{number}": slowly for number in range(20)})
    with opened(timeout_seconds=0.7) as client:
        assert fault_of(client, server.url("/0")).kind == "timeout"
    assert len(server.asked) < 8


def test_a_resolver_that_hangs_does_not_hold_the_client(server: PageServer) -> None:
    def hanging(host: str, port: int) -> list[str]:
        server.stopped.wait()
        return []

    with opened(timeout_seconds=0.3, resolve=hanging) as client:
        assert fault_of(client, "http://slow.example/").kind == "timeout"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_and_the_final_url_is_returned(
    server: PageServer, client: PageClient, status: int
) -> None:
    server.pages["/old"] = redirect("new?x=1", status)
    server.pages["/new?x=1"] = html("moved")
    answer = got(client, server.url("/old"))
    assert (answer.url, b"moved" in answer.body) == (server.url("/new?x=1"), True)


def test_ten_redirects_are_followed_and_no_eleventh(server: PageServer, client: PageClient) -> None:
    server.pages.update({f"/{number}": redirect(f"/{number - 1}") for number in range(1, 12)})
    server.pages["/0"] = html("there")
    assert got(client, server.url("/10")).status == 200
    assert fault_of(client, server.url("/11")).reason == "more than 10 redirects"


def test_a_redirect_loop_ends(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = redirect("/")
    assert fault_of(client, server.url()).reason == "more than 10 redirects"
    assert len(server.asked) == 11


@pytest.mark.parametrize(
    "location", ["", None, "file:///etc/passwd", "ftp://127.0.0.1/", "javascript:alert(1)", "http://", "http://[::1/"]
)
def test_a_redirect_to_no_page_is_a_fault(server: PageServer, client: PageClient, location: str | None) -> None:
    server.pages["/"] = Reply(302, headers=[] if location is None else [("Location", location)])
    assert fault_of(client, server.url()).kind == "error"


def test_validators_go_to_the_first_origin_only(server: PageServer, client: PageClient) -> None:
    with PageServer() as other:
        server.pages["/start"] = redirect("/second")
        server.pages["/second"] = redirect(other.url("/third"))
        other.pages["/third"] = redirect(server.url("/fourth"))
        server.pages["/fourth"] = html("end")
        got(client, server.url("/start"), etag='"one"', last_modified="Sun, 01 Mar 2026 12:00:00 GMT")
        assert [asked.headers.get("if-none-match") for asked in server.asked] == ['"one"'] * 3
        assert other.asked[0].headers.keys().isdisjoint({"if-none-match", "if-modified-since"})


def test_304_from_another_origin_is_a_fault(server: PageServer, client: PageClient) -> None:
    with PageServer() as other:
        server.pages["/"] = redirect(other.url())
        other.pages["/"] = Reply(304)
        assert fault_of(client, server.url(), etag='"one"').status == 304


def test_an_unreachable_server_is_a_fault(client: PageClient) -> None:
    with PageServer() as gone:
        url = gone.url()
    fault = fault_of(client, url)
    assert (fault.kind, fault.reason) == ("error", "Connection refused")


def test_the_next_address_is_tried_when_one_does_not_answer(server: PageServer) -> None:
    server.pages["/"] = html("hello")
    names = Names({"pages.example": [["127.0.0.9", "127.0.0.1"]]})
    with opened(timeout_seconds=20, resolve=names) as client:
        assert got(client, server.url(host="pages.example")).status == 200
    assert server.asked[0].headers["host"] == f"pages.example:{server.port}"


def test_a_connection_is_used_again(server: PageServer, client: PageClient) -> None:
    server.pages["/"] = html("hello")
    for _ in range(5):
        got(client, server.url())
    assert (server.connections, len(server.asked)) == (1, 5)


def test_eight_threads_get_their_own_answers(server: PageServer, client: PageClient) -> None:
    paths = [f"/{number}" for number in range(200)]
    server.pages.update({path: Reply(headers=[("ETag", f'"{path}"')], body=path.encode() * 100) for path in paths})
    barrier = threading.Barrier(8)

    def get_some(offset: int) -> list[PageAnswer]:
        barrier.wait()
        return [got(client, server.url(path)) for path in paths[offset::8]]

    with ThreadPoolExecutor(8) as threads:
        for offset, answers in enumerate(threads.map(get_some, range(8))):
            wanted = paths[offset::8]
            assert [answer.body for answer in answers] == [path.encode() * 100 for path in wanted]
            assert [answer.etag for answer in answers] == [f'"{path}"' for path in wanted]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    before = dict(os.environ)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    try:
        yield os.environ  # type: ignore[misc]
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_proxy_of_the_environment_is_used_where_every_address_is_allowed(
    server: PageServer, environment: dict[str, str]
) -> None:
    environment["http_proxy"] = f"http://me:secret@127.0.0.1:{server.port}"
    environment["no_proxy"] = "direct.example"
    server.pages["http://far.example/page"] = html("through the proxy")
    server.pages["/page"] = html("direct")
    names = Names({"127.0.0.1": [["127.0.0.1"]], "direct.example": [["127.0.0.1"]]})
    with opened(timeout_seconds=20, resolve=names) as client:
        assert b"through the proxy" in got(client, "http://far.example/page").body
        assert server.asked[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
        assert b"direct" in got(client, server.url("/page", host="direct.example")).body


def test_a_proxy_of_the_environment_is_not_used_under_guard(server: PageServer, environment: dict[str, str]) -> None:
    environment["http_proxy"] = environment["all_proxy"] = server.url()
    names = Names({"far.example": [["127.0.0.1"]]})
    with opened(timeout_seconds=5, allow_private_addresses=False, resolve=names) as client:
        assert "loopback" in fault_of(client, "http://far.example/").reason
    assert server.connections == 0


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "https://127.0.0.1:1"])
def test_an_unsupported_proxy_is_refused_and_not_bypassed(environment: dict[str, str], proxy: str) -> None:
    environment["all_proxy"] = proxy
    with opened(timeout_seconds=5) as client:
        assert "proxy" in fault_of(client, "http://far.example/").reason
