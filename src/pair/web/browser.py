"""A renderer of pages in an installed Chromium, with the address checks of the page client.

Invariants
    Unless private addresses are allowed, all traffic of the browser goes through a proxy that checks addresses.
    A render ends soon after its time limit: a browser that is blocked by its page is killed.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import Browser, Error, Page, Playwright, Route, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout

from pair.clock import Clock, SystemClock, call_when_late
from pair.network import PageFault, describe_fault
from pair.web.pages import check_url
from pair.web.ssrf import GuardedConnector, Refuse, RefusedAddress, Resolve, find_refusal, resolve_host

_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
_SCHEMES = ("http:", "https:", "data:", "blob:")
_WITHOUT_TEXT = frozenset({"image", "media", "font"})
_SETTLE_SECONDS = 5.0
# The limit applies to the page itself; its scripts and their downloads need more.
_TRAFFIC_FACTOR = 10
# Playwright enforces its own time limits, except when a page blocks the thread that would answer.
_GRACE_SECONDS = 2.0
_ARGUMENTS = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_BLOCK_BYTES = 64 * 1024
_IDLE_SECONDS = 120.0

# RFC 1928
_VERSION = 5
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE, _NOT_ALLOWED, _UNREACHABLE, _NOT_SUPPORTED = 0, 2, 4, 7


class BrowserRenderer:
    """A renderer of pages for several threads, one at a time; a single thread controls the browser."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        max_bytes: int,
        allow_private_addresses: bool,
        executable_path: str | None,
        resolve: Resolve = resolve_host,
        refuse: Refuse = find_refusal,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes
        self._executable_path = executable_path
        self._clock = SystemClock()
        self._connector = (
            None if allow_private_addresses else GuardedConnector(resolve=resolve, refuse=refuse, clock=self._clock)
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pair-browser")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._proxy: SocksProxy | None = None
        self._process_id = 0

    def render(self, url: str) -> bytes:
        """Return the rendered HTML in UTF-8. Time in the queue does not count towards the limit. Raises PageFault."""
        return self._thread.submit(self._render, url).result()

    def close(self) -> None:
        if self._playwright is not None:
            self._thread.submit(self._stop).result()
        self._thread.shutdown()

    def _render(self, url: str) -> bytes:
        self._check_address(url)
        try:
            html = self._load_in_time(url)
        except Error as fault:
            self._check_traffic()
            raise PageFault(fault.message.partition("\n")[0]) from fault
        self._check_traffic()
        return html

    def _load_in_time(self, url: str) -> bytes:
        browser = self._start_browser()

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process_id, signal.SIGKILL)  # This ends every call to the browser.

        with call_when_late(self._timeout_seconds + _GRACE_SECONDS, kill) as is_killed:
            try:
                return self._load(browser, url)
            except Error as fault:
                if is_killed.is_set() or isinstance(fault, BrowserTimeout):
                    reason = f"the page was not ready after {self._timeout_seconds:g}s"
                    raise PageFault(reason, kind="timeout") from fault
                raise

    def _check_address(self, url: str) -> None:
        """Refuse an address with its reason. The proxy would refuse it too, but without a reason."""
        target = check_url(url)
        if self._connector is None:
            return
        deadline = self._clock.monotonic() + self._timeout_seconds
        try:
            self._connector.find_addresses(target.host, target.port or 443, deadline)
        except RefusedAddress as fault:
            raise PageFault(str(fault)) from fault
        except TimeoutError as fault:
            raise PageFault(f"{target.host} was not found in time", kind="timeout") from fault
        except OSError as fault:
            raise PageFault(describe_fault(fault)) from fault

    def _check_traffic(self) -> None:
        """Refuse a page whose traffic exceeded the limit: parts of it may be missing."""
        if self._proxy is not None and self._proxy.allowance_bytes < 0:
            raise PageFault(f"the page loads more than {_TRAFFIC_FACTOR * self._max_bytes:,} bytes")

    def _start_browser(self) -> Browser:
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        executable = self._executable_path or next(filter(None, map(shutil.which, _EXECUTABLES)), None)
        if executable is None:
            raise PageFault(f"no browser is installed: put one of {', '.join(_EXECUTABLES)} on the PATH")
        self._playwright = self._playwright or sync_playwright().start()
        browser = self._playwright.chromium.launch(
            executable_path=executable,
            args=[*_ARGUMENTS, *self._proxy_arguments()],
            # Chromium refuses to run as root with its sandbox.
            chromium_sandbox=os.geteuid() != 0,
        )
        session = browser.new_browser_cdp_session()
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        session.detach()
        self._process_id = next(process["id"] for process in processes if process["type"] == "browser")
        self._browser = browser
        return browser

    def _proxy_arguments(self) -> tuple[str, ...]:
        if self._connector is None:
            return ()
        if self._proxy is None:
            self._proxy = SocksProxy(self._connector, connect_seconds=self._timeout_seconds, clock=self._clock)
        return (
            f"--proxy-server=socks5://127.0.0.1:{self._proxy.port}",
            "--proxy-bypass-list=<-loopback>",
            # Only the proxy resolves names.
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            # The old and the new name of one switch.
            "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        )

    def _load(self, browser: Browser, url: str) -> bytes:
        if self._proxy is not None:
            self._proxy.allow(_TRAFFIC_FACTOR * self._max_bytes)
        with contextlib.closing(browser.new_context(accept_downloads=False, service_workers="block")) as context:
            deadline = self._clock.monotonic() + self._timeout_seconds
            context.route("**/*", _pass_or_abort)
            page = context.new_page()
            response = page.goto(url, wait_until="load", timeout=self._timeout_seconds * 1000)
            if response is None or not response.ok:
                status = None if response is None else response.status
                raise PageFault(f"HTTP {status}" if status else "the browser got no answer", status=status)
            settle_seconds = min(_SETTLE_SECONDS, (deadline - self._clock.monotonic()) / 2)
            with contextlib.suppress(BrowserTimeout):
                # Some pages never become idle: use their content at the limit.
                page.wait_for_load_state("networkidle", timeout=max(settle_seconds * 1000, 1.0))
            return self._read_html(page)

    def _read_html(self, page: Page) -> bytes:
        too_long = PageFault(f"the page is longer than {self._max_bytes:,} bytes", status=200)
        # Check the length first, because the text is transferred in one piece. A page can fake this value.
        length = page.evaluate("document.documentElement.outerHTML.length")
        if not isinstance(length, int) or length > self._max_bytes:
            raise too_long
        html = page.content().encode("utf-8", "replace")
        if len(html) > self._max_bytes:
            raise too_long
        return html

    def _stop(self) -> None:
        with contextlib.suppress(Error):
            if self._browser is not None:
                self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        if self._proxy is not None:
            self._proxy.close()
        self._browser = self._playwright = self._proxy = None


def _pass_or_abort(route: Route) -> None:
    request = route.request
    if request.resource_type in _WITHOUT_TEXT or not request.url.startswith(_SCHEMES):
        route.abort()
    else:
        route.continue_()


# ── proxy ──────────────────────────────────────────────────────────────────────────────────────────


class SocksProxy:
    """A SOCKS proxy on loopback that lets a browser connect only to checked addresses, until `close`.

    A browser resolves names and follows redirects itself, so each connection is checked when it is opened. SOCKS covers
    every kind of traffic: pages, TLS, web sockets. The number of bytes is limited.
    """

    def __init__(self, connector: GuardedConnector, *, connect_seconds: float, clock: Clock) -> None:
        self._connector = connector
        self._connect_seconds = connect_seconds
        self._clock = clock
        self.allowance_bytes = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="pair-gateway", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def allow(self, size_bytes: int) -> None:
        """Set how many more bytes all connections together may receive."""
        with self._lock:
            self.allowance_bytes = size_bytes

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # `close` alone does not wake the thread that waits in `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="pair-gateway-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError, UnicodeError):
            client.settimeout(_IDLE_SECONDS)
            target = _read_request(client)
            if target is None:
                _reply(client, _NOT_SUPPORTED)
                return
            try:
                server = self._connector.connect(*target, self._clock.monotonic() + self._connect_seconds)
            except RefusedAddress:
                _reply(client, _NOT_ALLOWED)
            except OSError:
                _reply(client, _UNREACHABLE)
            else:
                with server:
                    server.settimeout(_IDLE_SECONDS)
                    _reply(client, _DONE)
                    self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while ready := selector.select(timeout=_IDLE_SECONDS):
                for key, _ in ready:
                    block = client.recv(_BLOCK_BYTES) if key.fileobj is client else server.recv(_BLOCK_BYTES)
                    if not block:
                        return
                    if key.fileobj is server:
                        with self._lock:
                            self.allowance_bytes -= len(block)
                            if self.allowance_bytes < 0:
                                return
                    key.data.sendall(block)


def _read_request(client: socket.socket) -> tuple[str, int] | None:
    """Return the requested host and port; None for a request other than a connection."""
    version, methods = _receive(client, 2)
    if version != _VERSION:
        raise EOFError("not SOCKS 5")
    _receive(client, methods)
    client.sendall(bytes((_VERSION, 0)))  # no authentication
    _, command, _, kind = _receive(client, 4)
    if kind == _IPV4:
        host = socket.inet_ntop(socket.AF_INET, _receive(client, 4))
    elif kind == _IPV6:
        host = socket.inet_ntop(socket.AF_INET6, _receive(client, 16))
    elif kind == _NAME:
        host = _receive(client, _receive(client, 1)[0]).decode("ascii")
    else:
        return None
    port = int.from_bytes(_receive(client, 2), "big")
    return (host, port) if command == _CONNECT else None


def _reply(client: socket.socket, outcome: int) -> None:
    client.sendall(bytes((_VERSION, outcome, 0, _IPV4, 0, 0, 0, 0, 0, 0)))


def _receive(client: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        block = client.recv(size_bytes - len(received))
        if not block:
            raise EOFError("the client closed the connection")
        received += block
    return received
