"""Web pages: one conditional request, then the same reader as for files."""

import contextlib
import importlib.util
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pair import errors
from pair.clock import Clock
from pair.network import PageFault
from pair.reading.contract import Reader, UnreadableDocument
from pair.sync.contract import FetchedPage, NotModified
from pair.sync.discover import find_addresses
from pair.sync.rules import SyncSettings

if TYPE_CHECKING:
    from pair.web.browser import BrowserRenderer
    from pair.web.pages import PageClient

_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})


class WebPages:
    """A fetcher of pages, rendered by a browser if there is one. Both are loaded with the first page."""

    def __init__(self, settings: SyncSettings, links_files: Iterable[Path], clock: Clock, reader: Reader) -> None:
        self._reader = reader
        self._settings = settings
        self._links_files = links_files
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
        from pair.web.ssrf import RefusedAddress  # noqa: PLC0415 - loads the network

        with self._lock:
            client = self._client = self._client or self._open()
        address = self._addresses.get(url, url)  # The id of a source lacks the credentials that its page needs.
        try:
            answer = client.get(address, etag=etag, last_modified=last_modified, validated_at=validated_at)
            if answer.status == 304:
                return NotModified()
            name = unquote(urlsplit(answer.url).path).rpartition("/")[2]
            if self._browser is not None and answer.content_type in _HTML_TYPES:
                reading = self._reader.read(self._browser.render(address), name, "text/html", "utf-8")
            else:
                content_type = answer.content_type or "application/octet-stream"
                reading = self._reader.read(answer.body, name, content_type, answer.charset)
        except PageFault as fault:
            if isinstance(fault.__cause__, RefusedAddress):
                fault.reason += "; kb.allow_private_addresses: true allows it"
            raise
        except UnreadableDocument as fault:
            raise PageFault(str(fault)) from fault
        # The path and query of a redirect may be secrets; only the origin is needed.
        origin = _find_origin(answer.url)
        validated_at = origin if origin != _find_origin(address) else None
        return FetchedPage(reading, answer.etag, answer.last_modified, len(answer.body), validated_at=validated_at)

    def _open(self) -> "PageClient":
        from pair.web.pages import PageClient  # noqa: PLC0415 - loads the network

        settings = self._settings
        if settings.web_fetch_renderer != "http":
            self._browser = _open_browser(settings)
        for path in self._links_files:
            with contextlib.suppress(OSError):
                self._addresses = find_addresses(path) | self._addresses
        return PageClient(
            timeout_seconds=settings.web_fetch_timeout_seconds,
            max_bytes=settings.max_source_bytes,
            allow_private_addresses=settings.allow_private_addresses,
            clock=self._clock,
        )


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
