"""Pages of the web as text: one conditional request, then what a reader would read."""

from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from pair.sync.contract import FetchedPage, NotModified, PageUnavailable, UnreadablePage
from pair.sync.rules import FetchFailure
from pair.web.pages import PageAnswer, PageClient, PageFault
from pair.web.ssrf import RefusedAddress

ExtractText = Callable[[str, str | None, bytes], str]
"""Content type, charset and body as text; raises UnreadablePage."""


class Renderer(Protocol):
    def render(self, url: str) -> bytes:
        """HTML of a page after its scripts have run; raises PageFault."""
        ...


class WebPages:
    """Pages over HTTP; with a renderer, the text is taken from what a browser makes of a changed page."""

    def __init__(self, client: PageClient, renderer: Renderer | None, extract_text: ExtractText) -> None:
        self._client = client
        self._renderer = renderer
        self._extract_text = extract_text

    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        try:
            answer = self._client.get(url, etag=etag, last_modified=last_modified, validated_at=validated_at)
            if answer.status == 304:
                return NotModified()
            text = self._read_text(url, answer)
        except PageFault as fault:
            reason = fault.reason
            if isinstance(fault.__cause__, RefusedAddress):
                reason += "; kb.allow_private_addresses: true allows it"
            raise PageUnavailable(FetchFailure(fault.kind, reason, fault.retry_after_seconds)) from fault
        except UnreadablePage as fault:
            raise PageUnavailable(FetchFailure("error", str(fault))) from fault
        # The path and query of a redirect may be secrets; the origin is all that is needed.
        origin = _find_origin(answer.url)
        validated_at = origin if origin != _find_origin(url) else None
        return FetchedPage(text, answer.etag, answer.last_modified, len(answer.body), validated_at=validated_at)

    def _read_text(self, url: str, answer: PageAnswer) -> str:
        if self._renderer is not None and answer.content_type in {"text/html", "application/xhtml+xml"}:
            return self._extract_text("text/html", "utf-8", self._renderer.render(url))
        return self._extract_text(answer.content_type, answer.charset, answer.body)


def _find_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
