"""Pages of the web as text: one conditional request, then what a reader would read."""

import contextlib
import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pair import errors
from pair.clock import Clock
from pair.sync.contract import FetchedPage, NotModified, PageUnavailable, UnreadableDocument
from pair.sync.discover import find_addresses
from pair.sync.rules import FetchFailure, SyncSettings

if TYPE_CHECKING:
    from pair.web.browser import BrowserRenderer
    from pair.web.pages import PageAnswer, PageClient


class WebPages:
    """Fetches pages; with a browser, the text is taken from what it makes of a changed page.

    The network, the browser and the text extraction are loaded with the first page.
    """

    def __init__(self, settings: SyncSettings, links_file: Path, clock: Clock) -> None:
        self._settings = settings
        self._links_file = links_file
        self._clock = clock
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._client: PageClient | None = None
        self._browser: BrowserRenderer | None = None

    def close(self) -> None:
        for part in (self._browser, self._client):
            if part is not None:
                part.close()

    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        from pair.web.pages import PageFault  # noqa: PLC0415 - loads the network
        from pair.web.ssrf import RefusedAddress  # noqa: PLC0415

        with self._lock:
            client = self._client = self._client or self._open()
        address = self._addresses.get(url, url)  # a source is known without the credentials that its page needs
        try:
            answer = client.get(address, etag=etag, last_modified=last_modified, validated_at=validated_at)
            if answer.status == 304:
                return NotModified()
            text = self._read_text(address, answer)
        except PageFault as fault:
            reason = fault.reason
            if isinstance(fault.__cause__, RefusedAddress):
                reason += "; kb.allow_private_addresses: true allows it"
            raise PageUnavailable(FetchFailure(fault.kind, reason, fault.retry_after_seconds)) from fault
        except UnreadableDocument as fault:
            raise PageUnavailable(FetchFailure("error", str(fault))) from fault
        # The path and query of a redirect may be secrets; the origin is all that is needed.
        origin = _find_origin(answer.url)
        validated_at = origin if origin != _find_origin(address) else None
        return FetchedPage(text, answer.etag, answer.last_modified, len(answer.body), validated_at=validated_at)

    def _open(self) -> "PageClient":
        from pair.web.pages import PageClient  # noqa: PLC0415 - loads the network

        settings = self._settings
        if settings.web_fetch_renderer != "http":
            self._browser = _open_browser(settings)
        with contextlib.suppress(OSError):
            self._addresses = find_addresses(self._links_file)
        return PageClient(
            timeout_seconds=settings.web_fetch_timeout_seconds,
            max_bytes=settings.max_source_bytes,
            allow_private_addresses=settings.allow_private_addresses,
            clock=self._clock,
        )

    def _read_text(self, url: str, answer: "PageAnswer") -> str:
        from pair.sync.page_text import extract_text  # noqa: PLC0415 - loads while the next pages are on their way

        if self._browser is not None and answer.content_type in {"text/html", "application/xhtml+xml"}:
            return extract_text("text/html", "utf-8", self._browser.render(url))
        return extract_text(answer.content_type, answer.charset, answer.body)


def _open_browser(settings: SyncSettings) -> "BrowserRenderer":
    if importlib.util.find_spec("playwright") is None:
        raise errors.settings_invalid(
            "kb.web_fetch_renderer", "browser needs an extra", hints=["pip install 'pair-kb[browser]'"]
        )
    from pair.web.browser import BrowserRenderer  # noqa: PLC0415 - loads playwright

    return BrowserRenderer(
        timeout_seconds=settings.web_fetch_timeout_seconds,
        max_bytes=settings.max_source_bytes,
        allow_private_addresses=settings.allow_private_addresses,
        executable_path=None,
    )


def _find_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
