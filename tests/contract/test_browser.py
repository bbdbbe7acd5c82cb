"""A guarded Chromium: it reads text that scripts write, and cannot reach forbidden addresses."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pair.clock import SystemClock
from pair.network import PageFault
from pair.web.browser import BrowserRenderer
from pair.web.ssrf import resolve_host
from support.page_server import (
    Asked,
    PageServer,
    RawReply,
    Reply,
    endless,
    html,
    only_first_loopback,
    redirect,
    silence,
)

HAS_BROWSER = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
needs_browser = pytest.mark.skipif(not HAS_BROWSER, reason="no Chromium on the PATH")

LIMIT = 200_000


@contextlib.contextmanager
def opened(*, timeout_seconds: float, **more: Any) -> Iterator[BrowserRenderer]:
    """Open a renderer that allows every address, unless `more` says otherwise."""
    options = {"allow_private_addresses": True, "executable_path": None, **more}
    with contextlib.closing(BrowserRenderer(timeout_seconds=timeout_seconds, max_bytes=LIMIT, **options)) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserRenderer]:
    with opened(timeout_seconds=60.0) as made:
        yield made


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    """Return the host names that the guarded browser resolves in addition to those of the system."""
    return {"pages.example": "127.0.0.1", "inside.example": "127.0.0.2"}


@pytest.fixture(scope="module")
def guarded(names: dict[str, str]) -> Iterator[BrowserRenderer]:
    """Treat 127.0.0.1 as the public web, and every other address as forbidden."""

    def resolve(host: str, port: int) -> Sequence[str]:
        return [names[host]] if host in names else resolve_host(host, port)

    with opened(
        timeout_seconds=60.0, allow_private_addresses=False, resolve=resolve, refuse=only_first_loopback
    ) as made:
        yield made


def fault_of(browser: BrowserRenderer, url: str) -> PageFault:
    with pytest.raises(PageFault) as raised:
        browser.render(url)
    return raised.value


OUTER_HTML = "Object.defineProperty(Element.prototype, 'outerHTML', "
WRITE = "document.getElementById('out').textContent = "


def script(code: str) -> Reply:
    return html(f"<div id=out>nothing yet</div><script>{code}</script>")


@needs_browser
def test_text_that_only_a_script_writes_is_read(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages["/data"] = Reply(body="from the größe server".encode())
    server.pages["/now"] = script(f"{WRITE} 'written ' + 'at once'")
    server.pages["/later"] = script(
        f"setTimeout(() => fetch('/data').then(r => r.text()).then(text => {{ {WRITE} text }}), 100)"
    )
    assert b"written at once" in browser.render(server.url("/now"))
    assert "from the größe server" in browser.render(server.url("/later")).decode("utf-8")


@needs_browser
def test_threads_get_their_own_pages(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages.update({f"/{number}": script(f"{WRITE} 'page ' + '{number}'") for number in range(4)})
    with ThreadPoolExecutor(4) as threads:
        pages = threads.map(lambda number: browser.render(server.url(f"/{number}")), range(4))
        for number, page in enumerate(pages):
            assert f"page {number}".encode() in page


@needs_browser
def test_one_page_leaves_nothing_behind_for_the_next(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages["/"] = script(f"{WRITE} 'seen: ' + document.cookie; document.cookie = 'visited=yes'")
    assert all(b"seen: <" in browser.render(server.url()) for _ in range(2))


@needs_browser
def test_an_error_page_is_a_fault(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages["/"] = Reply(500, body=b"sorry")
    fault = fault_of(browser, server.url())
    assert (fault.kind, fault.status, fault.reason) == ("error", 500, "HTTP 500")


@needs_browser
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(RawReply(silence), id="no-answer"),
        pytest.param(script("while (true) {}"), id="busy-script"),
        pytest.param(script("addEventListener('load', () => { while (true) {} })"), id="busy-after-load"),
        pytest.param(script(f"{OUTER_HTML} {{ get() {{ while (true) {{}} }} }})"), id="busy-when-read"),
    ],
)
def test_a_page_that_never_finishes_is_left_and_the_next_one_is_read(
    server: PageServer, page: Reply | RawReply
) -> None:
    server.pages["/"] = page
    server.pages["/next"] = script(f"{WRITE} 'all ' + 'is well'")
    clock = SystemClock()
    with opened(timeout_seconds=4.0) as browser:
        browser.render(server.url("/next"))
        started_at = clock.monotonic()
        fault = fault_of(browser, server.url())
        seconds = clock.monotonic() - started_at
        assert (fault.kind, fault.reason) == ("timeout", "the page was not ready after 4s")
        assert seconds < 20
        assert b"all is well" in browser.render(server.url("/next"))


@needs_browser
def test_a_page_that_never_becomes_idle_is_read_at_the_limit(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages["/poll"] = Reply(body=b"x")
    server.pages["/"] = script(f"{WRITE} 'shown ' + 'at last'; setInterval(() => fetch('/poll'), 50)")
    assert b"shown at last" in browser.render(server.url())


@needs_browser
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(script(f"{WRITE} 'x'.repeat({LIMIT})"), id="written"),
        pytest.param(html("ö" * (LIMIT // 2)), id="sent"),
        pytest.param(script(f"{OUTER_HTML} {{ value: {{ length: 'x' }} }})"), id="tampered"),
    ],
)
def test_a_page_beyond_the_limit_is_a_fault(server: PageServer, browser: BrowserRenderer, page: Reply) -> None:
    server.pages["/"] = page
    assert "longer than 200,000 bytes" in fault_of(browser, server.url()).reason


@needs_browser
def test_a_file_to_download_is_a_fault(server: PageServer, browser: BrowserRenderer) -> None:
    server.pages["/"] = Reply(headers=[("Content-Type", "application/zip")], body=b"PK")
    assert fault_of(browser, server.url()).kind == "error"


@needs_browser
def test_a_page_under_guard_loads_what_is_public(server: PageServer, guarded: BrowserRenderer) -> None:
    server.pages["/code.js"] = Reply(
        headers=[("Content-Type", "text/javascript")], body=f"{WRITE} 'from a ' + 'file'".encode()
    )
    server.pages["/start"] = redirect("/page")
    server.pages["/page"] = html("<div id=out></div><script src=/code.js></script>")
    assert b"from a file" in guarded.render(server.url("/start", host="pages.example"))
    assert server.asked[0].headers["host"] == f"pages.example:{server.port}"


@needs_browser
def test_a_page_that_loads_without_end_is_cut_off_under_guard(server: PageServer, guarded: BrowserRenderer) -> None:
    server.pages["/endless"] = Reply(pieces=endless)
    server.pages["/"] = script("fetch('/endless').then(r => r.arrayBuffer())")
    assert fault_of(guarded, server.url()).reason == "the page loads more than 2,000,000 bytes"
    server.pages["/next"] = script(f"{WRITE} 'all ' + 'is well'")
    assert b"all is well" in guarded.render(server.url("/next"))


# Each has its own path, so that the server can report which one arrived.
ATTEMPTS = {
    "fetch": "fetch('{url}', {{mode: 'no-cors'}})",
    "name": "fetch('http://inside.example:{port}/name', {{mode: 'no-cors'}})",
    "decimal": "fetch('http://2130706434:{port}/decimal', {{mode: 'no-cors'}})",
    "mapped": "fetch('http://[::ffff:127.0.0.2]:{port}/mapped', {{mode: 'no-cors'}})",
    "tls": "fetch('https://127.0.0.2:{port}/tls', {{mode: 'no-cors'}})",
    "request": "const r = new XMLHttpRequest(); r.open('GET', '{url}'); r.send()",
    "redirected": "fetch('/hop', {{mode: 'no-cors'}})",
    "frame": "const e = document.createElement('iframe'); e.src = '{url}'; document.body.append(e)",
    "picture": "new Image().src = '{url}'",
    "script": "const e = document.createElement('script'); e.src = '{url}'; document.body.append(e)",
    "style": "document.body.insertAdjacentHTML('beforeend', '<link rel=stylesheet href={url}>')",
    "connection": "document.body.insertAdjacentHTML('beforeend', '<link rel=preconnect href={url}>')",
    "prefetch": "document.body.insertAdjacentHTML('beforeend', '<link rel=prefetch href={url}>')",
    "socket": "new WebSocket('{url}'.replace('http', 'ws'))",
    "events": "new EventSource('{url}')",
    "beacon": "navigator.sendBeacon('{url}', 'x')",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch('{url}', {{mode: 'no-cors'}})`])))",
    "window": "window.open('{url}')",
}


def attempts_at(private: PageServer) -> Reply:
    """Return a page that attempts every kind of request, and counts those that it could start."""
    code = "".join(
        f"try {{ (() => {{ {attempt.format(url=private.url(f'/{name}'), port=private.port)} }})(); begun += 1 }}"
        " catch (e) { console.log(e) }"
        for name, attempt in ATTEMPTS.items()
    )
    return script(f"let begun = 0; {code} {WRITE} 'begun: ' + begun")


@needs_browser
def test_a_page_cannot_reach_a_refused_address_in_any_way(server: PageServer, guarded: BrowserRenderer) -> None:
    with PageServer("127.0.0.2") as private:
        server.pages["/hop"] = redirect(private.url("/redirected"))
        server.pages["/"] = attempts_at(private)
        page = guarded.render(server.url())
        assert f"begun: {len(ATTEMPTS)}".encode() in page
        assert "/hop" in [asked.path for asked in server.asked]
        assert private.asked == []
        assert private.connections == 0


@needs_browser
def test_most_of_these_means_succeed_without_the_guard(server: PageServer, browser: BrowserRenderer) -> None:
    with PageServer("127.0.0.2") as private:
        server.pages["/hop"] = redirect(private.url("/redirected"))
        server.pages["/"] = attempts_at(private)
        browser.render(server.url())
        came = {asked.path.strip("/") for asked in private.asked}
    assert came >= {"fetch", "decimal", "request", "redirected", "frame", "script", "style", "socket", "worker"}


@needs_browser
@pytest.mark.parametrize("means", ["location", "meta", "redirect"])
def test_a_page_cannot_move_on_to_a_refused_address(server: PageServer, guarded: BrowserRenderer, means: str) -> None:
    with PageServer("127.0.0.2") as private:
        private.pages["/"] = html("secret")
        url = private.url()
        server.pages["/location"] = script(f"location.href = '{url}'")
        server.pages["/meta"] = html(f'<meta http-equiv=refresh content="0; url={url}">')
        server.pages["/redirect"] = redirect(url)
        shown = b""
        with contextlib.suppress(PageFault):
            shown = guarded.render(server.url(f"/{means}"))
        assert b"secret" not in shown
        assert [asked.path for asked in server.asked] == [f"/{means}"]
        assert private.connections == 0


@needs_browser
def test_a_name_that_turns_private_is_not_followed(
    server: PageServer, guarded: BrowserRenderer, names: dict[str, str]
) -> None:
    def turn(asked: Asked) -> Reply:
        names["rebinding.example"] = "127.0.0.2"
        reply = script(f"fetch('/again').then(r => r.text()).then(text => {{ {WRITE} text }})")
        return Reply(headers=[*reply.headers, ("Connection", "close")], body=reply.body)

    names["rebinding.example"] = "127.0.0.1"
    server.pages["/"] = turn
    with PageServer("127.0.0.2", server.port) as private:
        private.pages["/again"] = Reply(body=b"secret")
        assert b"nothing yet" in guarded.render(server.url(host="rebinding.example"))
        assert private.connections == 0


@pytest.fixture
def datagrams() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.2", 0))
        listening.setblocking(False)
        yield listening


def calling(datagrams: socket.socket) -> Reply:
    """Return a page that starts a WebRTC call over this address, and stays busy until a packet would have arrived."""
    stun = f"stun:127.0.0.2:{datagrams.getsockname()[1]}"
    return script(
        f"const c = new RTCPeerConnection({{iceServers: [{{urls: '{stun}'}}]}}); c.createDataChannel('x');"
        f"c.createOffer().then(o => c.setLocalDescription(o)); setTimeout(() => {{ {WRITE} 'waited' }}, 1500);"
        "const stop = Date.now() + 1400; (function ask() { if (Date.now() < stop) fetch('/').then(ask) })()"
    )


@needs_browser
def test_no_packet_goes_past_the_guard(server: PageServer, guarded: BrowserRenderer, datagrams: socket.socket) -> None:
    server.pages["/"] = calling(datagrams)
    assert b"waited" in guarded.render(server.url())
    with pytest.raises(BlockingIOError):
        datagrams.recv(1)


@needs_browser
def test_the_probe_sends_a_packet_without_the_guard(
    server: PageServer, browser: BrowserRenderer, datagrams: socket.socket
) -> None:
    server.pages["/"] = calling(datagrams)
    assert b"waited" in browser.render(server.url())
    assert datagrams.recv(1)


@needs_browser
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.2/", "127.0.0.2 is a private address"),
        ("http://2130706434/", "2130706434 (127.0.0.2) is a private address"),
        ("file:///etc/passwd", "only http and https pages can be fetched, not file"),
        ("chrome://version", "only http and https pages can be fetched, not chrome"),
        ("http://user@127.0.0.1/", "a URL must not hold a user name or password"),
    ],
)
def test_a_refused_url_is_refused_with_its_reason(guarded: BrowserRenderer, url: str, reason: str) -> None:
    assert fault_of(guarded, url).reason == reason


def test_a_missing_browser_is_a_fault_that_says_so() -> None:
    with opened(timeout_seconds=10.0, executable_path="/no/such/browser") as browser:
        assert "/no/such/browser" in fault_of(browser, "http://127.0.0.1/").reason


def test_without_any_browser_the_fault_says_what_to_install() -> None:
    before = os.environ["PATH"]
    os.environ["PATH"] = ""
    try:
        with opened(timeout_seconds=10.0) as browser:
            assert "chromium" in fault_of(browser, "http://127.0.0.1/").reason
    finally:
        os.environ["PATH"] = before


def test_closing_without_rendering_starts_nothing() -> None:
    started: set[str] = set()
    is_watching = True

    def note_process(event: str, _arguments: tuple[object, ...]) -> None:
        if is_watching and event in {"subprocess.Popen", "os.posix_spawn", "os.fork"}:
            started.add(event)

    def note_thread(*_: object) -> None:
        started.add(threading.current_thread().name)

    sys.addaudithook(note_process)
    threading.setprofile(note_thread)  # called in each thread that starts from now on
    try:
        with opened(timeout_seconds=10.0):
            pass
        assert started == set()
        ThreadPoolExecutor(thread_name_prefix="watched").submit(lambda: subprocess.run(["true"], check=True)).result()
        assert started >= {"watched_0", "subprocess.Popen"}, "what is started is noticed"
    finally:
        is_watching = False
        threading.setprofile(None)
