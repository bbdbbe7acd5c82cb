"""Pages after their scripts have run: a Chromium that is installed, under the guard of the page client.

Invariants
    Unless private addresses are allowed, all that the browser sends goes through the gateway, which judges addresses.
    A render ends soon after its time, even when the page blocks its browser: the browser is ended then.
"""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from playwright.sync_api import Browser, BrowserContext, Error, Page, Playwright, Route, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout

from pair.clock import SystemClock
from pair.network_faults import describe_fault
from pair.web.guarded_connect import GuardedConnector, Refuse, RefusedAddress, Resolve, system_addresses
from pair.web.pages import PageFault, checked_url
from pair.web.socks_proxy import SocksProxy
from pair.web.ssrf import refusal

_EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
_SCHEMES = ("http:", "https:", "data:", "blob:")
_WITHOUT_TEXT = frozenset({"image", "media", "font"})
_SETTLE_SECONDS = 5.0
# The limit is for a page; its scripts and what they load come on top.
_TRAFFIC_FACTOR = 10
# Playwright's own limits end nearly everything; this is for a page that blocks the thread that would answer.
_GRACE_SECONDS = 2.0
_ARGUMENTS = (
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class BrowserRenderer:
    """May be used from several threads; renders one page at a time, in a thread that alone touches the browser."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        max_bytes: int,
        allow_private_addresses: bool,
        executable_path: str | None,
        resolve: Resolve = system_addresses,
        refuse: Refuse = refusal,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes
        self._executable_path = executable_path
        self._clock = SystemClock()
        self._dialler = (
            None if allow_private_addresses else GuardedConnector(resolve=resolve, refuse=refuse, clock=self._clock)
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pair-browser")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._gateway: SocksProxy | None = None
        self._process_id = 0

    def render(self, url: str) -> bytes:
        """HTML in UTF-8; raises PageFault. The time counts from when the pages before it are done."""
        return self._thread.submit(self._render, url).result()

    def close(self) -> None:
        self._thread.submit(self._stop).result()
        self._thread.shutdown()

    def _render(self, url: str) -> bytes:
        self._check_address(url)
        try:
            html = self._html_in_time(url)
        except Error as fault:
            self._check_traffic()
            raise PageFault(fault.message.partition("\n")[0]) from fault
        self._check_traffic()
        return html

    def _html_in_time(self, url: str) -> bytes:
        browser = self._started()
        with self._ended_in_time() as is_ended:
            try:
                return self._html_of(browser, url)
            except Error as fault:
                if is_ended.is_set() or isinstance(fault, BrowserTimeout):
                    reason = f"the page was not ready after {self._timeout_seconds:g}s"
                    raise PageFault(reason, kind="timeout") from fault
                raise

    def _check_address(self, url: str) -> None:
        """The gateway would refuse as well, but a browser does not hand on why."""
        target = checked_url(url)
        if self._dialler is None:
            return
        deadline = self._clock.monotonic() + self._timeout_seconds
        try:
            self._dialler.judged_addresses(target.host, target.port or 443, deadline)
        except RefusedAddress as fault:
            raise PageFault(fault.reason) from fault
        except TimeoutError as fault:
            raise PageFault(f"{target.host} was not found in time", kind="timeout") from fault
        except OSError as fault:
            raise PageFault(describe_fault(fault)) from fault

    def _check_traffic(self) -> None:
        """What was cut off may be missing in the page."""
        if self._gateway is not None and self._gateway.is_used_up():
            raise PageFault(f"the page loads more than {_TRAFFIC_FACTOR * self._max_bytes:,} bytes")

    def _started(self) -> Browser:
        if self._browser is not None and self._browser.is_connected():
            return self._browser
        executable = self._executable_path or next(filter(None, map(shutil.which, _EXECUTABLES)), None)
        if executable is None:
            raise PageFault(f"no browser is installed: put one of {', '.join(_EXECUTABLES)} on the PATH")
        self._playwright = self._playwright or sync_playwright().start()
        browser = self._playwright.chromium.launch(
            executable_path=executable,
            args=[*_ARGUMENTS, *self._guard()],
            # Chromium refuses to run as root with its sandbox.
            chromium_sandbox=os.geteuid() != 0,
        )
        self._process_id = _process_id_of(browser)
        self._browser = browser
        return browser

    def _guard(self) -> tuple[str, ...]:
        if self._dialler is None:
            return ()
        if self._gateway is None:
            self._gateway = SocksProxy(self._dialler, connect_seconds=self._timeout_seconds, clock=self._clock)
        return (
            f"--proxy-server=socks5://127.0.0.1:{self._gateway.port}",
            "--proxy-bypass-list=<-loopback>",
            # Names are the gateway's business; nothing is looked up beside it.
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            # One switch under its old and its new name.
            "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        )

    @contextlib.contextmanager
    def _ended_in_time(self) -> Iterator[threading.Event]:
        """Ends the browser, which ends every call to it, when the block takes too long; sets the event then."""
        is_ended = threading.Event()

        def end(process_id: int) -> None:
            is_ended.set()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

        timer = threading.Timer(self._timeout_seconds + _GRACE_SECONDS, end, args=(self._process_id,))
        timer.daemon = True
        timer.start()
        try:
            yield is_ended
        finally:
            timer.cancel()

    def _html_of(self, browser: Browser, url: str) -> bytes:
        if self._gateway is not None:
            self._gateway.allow(_TRAFFIC_FACTOR * self._max_bytes)
        context = browser.new_context(accept_downloads=False, service_workers="block")
        try:
            return self._loaded(context, url)
        finally:
            context.close()

    def _loaded(self, context: BrowserContext, url: str) -> bytes:
        deadline = self._clock.monotonic() + self._timeout_seconds
        context.route("**/*", _pass_or_abort)
        page = context.new_page()
        response = page.goto(url, wait_until="load", timeout=self._timeout_seconds * 1000)
        if response is None or not response.ok:
            status = None if response is None else response.status
            raise PageFault(f"HTTP {status}" if status else "the browser got no answer", status=status)
        settle_seconds = min(_SETTLE_SECONDS, (deadline - self._clock.monotonic()) / 2)
        with contextlib.suppress(BrowserTimeout):
            # Some pages never fall silent: what they show by then is taken.
            page.wait_for_load_state("networkidle", timeout=max(settle_seconds * 1000, 1.0))
        return self._content(page)

    def _content(self, page: Page) -> bytes:
        too_long = PageFault(f"the page is longer than {self._max_bytes:,} bytes", status=200)
        # Asked for first, because the text itself comes in one piece. The page can make this anything, or nothing.
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
        if self._gateway is not None:
            self._gateway.close()
        self._browser = self._playwright = self._gateway = None


def _pass_or_abort(route: Route) -> None:
    request = route.request
    if request.resource_type in _WITHOUT_TEXT or not request.url.startswith(_SCHEMES):
        route.abort()
    else:
        route.continue_()


def _process_id_of(browser: Browser) -> int:
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return cast("int", next(process["id"] for process in processes if process["type"] == "browser"))
