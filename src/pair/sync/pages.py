"""Pages of the web as text: one conditional request, then what a reader would read."""

import codecs
import contextlib
import importlib.util
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pair import errors
from pair.clock import Clock
from pair.network import PageFault
from pair.sync.contract import FetchedPage, NotModified, UnreadableDocument
from pair.sync.discover import find_addresses
from pair.sync.rules import SyncSettings

if TYPE_CHECKING:
    from pair.web.browser import BrowserRenderer
    from pair.web.pages import PageClient


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
        from pair.web.ssrf import RefusedAddress  # noqa: PLC0415 - loads the network

        with self._lock:
            client = self._client = self._client or self._open()
        address = self._addresses.get(url, url)  # a source is known without the credentials that its page needs
        try:
            answer = client.get(address, etag=etag, last_modified=last_modified, validated_at=validated_at)
            if answer.status == 304:
                return NotModified()
            if self._browser is not None and answer.content_type in _HTML_TYPES:
                text = extract_text("text/html", "utf-8", self._browser.render(address))
            else:
                text = extract_text(answer.content_type, answer.charset, answer.body)
        except PageFault as fault:
            if isinstance(fault.__cause__, RefusedAddress):
                fault.reason += "; kb.allow_private_addresses: true allows it"
            raise
        except UnreadableDocument as fault:
            raise PageFault(str(fault)) from fault
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


# ── the text of a page ─────────────────────────────────────────────────────────────────────────────

_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_NAMES = "ecmascript javascript json markdown sql toml x-javascript x-ndjson x-sh x-yaml xml yaml"
_TEXT_TYPES = frozenset(f"application/{name}" for name in _TEXT_NAMES.split())
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
_WITHOUT_TEXT = ["script", "style", "noscript", "template"]
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD_BYTES = 4096
_NAMED_IN_HEAD = re.compile(
    rb"""<meta[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)""", re.IGNORECASE
)
_LOOKS_LIKE_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)", re.IGNORECASE)
_OFTEN_UNCLOSED = re.compile(
    r"area|base|br|col|dd|dt|embed|hr|img|input|li|link|meta|option|p|source|td|th|tr|track|wbr", re.IGNORECASE
)
# Measured on pages made to be slow: the full extraction compares each paragraph with all others, the fast one does not,
# and a parser that keeps to HTML 5 builds up to one element for each tag and each level.
_MOST_TAGS_FOR_FULL_EXTRACTION = 10_000
# Below this the second opinion, asked for when little was found, costs ten times the first and finds no more.
_SMALL_PAGE_CHARACTERS = 2_000
_MOST_TAGS_FOR_EXTRACTION = 50_000
_MOST_TAGS_TIMES_DEPTH = 10_000_000
# Python's codecs of these names are for other things than the text of a page, and some are slow on purpose-made input.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})


def extract_text(content_type: str, charset: str | None, body: bytes) -> str:
    """Return what a reader would read. `content_type`: lower case, no parameters, empty when the server gave none.

    Raises UnreadableDocument.
    """
    if content_type in _HTML_TYPES or (not content_type and _looks_like_html(body)):
        return _extract_html(decode_page(body, charset=charset, is_markup=True))
    if content_type in _TEXT_TYPES or content_type.startswith("text/") or content_type.endswith(_TEXT_SUFFIXES):
        return decode_page(body, charset=charset, is_markup="xml" in content_type)
    text = None if body.startswith(b"%PDF-") else _decode_strictly(body, "utf-8")
    if text is None:
        raise UnreadableDocument(f"{content_type or 'a page without a type'} is not text")
    return text


def decode_page(body: bytes, *, charset: str | None, is_markup: bool) -> str:
    """Decode by the declared charset, else what the body says of itself, else UTF-8, else a guess."""
    for name in (charset, *_list_own_charsets(body, is_markup=is_markup), "utf-8"):
        text = _decode_strictly(body, name) if name else None
        if text is not None:
            return text
    if charset and _find_codec(charset):
        # A few broken bytes are likelier than a server that names another charset than it uses.
        return body.decode(_find_codec(charset) or "utf-8", errors="replace").removeprefix("\ufeff")
    import charset_normalizer  # noqa: PLC0415 - seldom needed

    guess = charset_normalizer.from_bytes(body).best()
    if guess is None:
        raise UnreadableDocument("the page is not text in any known charset")
    return str(guess).removeprefix("\ufeff")


def _list_own_charsets(body: bytes, *, is_markup: bool) -> Iterator[str]:
    yield from (name for mark, name in _MARKS if body.startswith(mark))
    if is_markup:
        for by_meta, by_xml in _NAMED_IN_HEAD.findall(body[:_HEAD_BYTES]):
            yield (by_meta or by_xml).decode("ascii", "replace")


def _decode_strictly(body: bytes, charset: str) -> str | None:
    """Return None when these bytes are not text in this charset; text has no NUL."""
    codec = _find_codec(charset)
    if codec is None:
        return None
    try:
        text = body.decode(codec)
    except UnicodeError:
        return None
    return None if "\0" in text else text.removeprefix("\ufeff")


def _find_codec(charset: str) -> str | None:
    """Return Python's name of the charset; None when it is none that Python knows."""
    try:
        name = codecs.lookup(charset).name
        b"-".decode(name, errors="ignore")  # refuses codecs that do not make text, such as zip
    except (LookupError, ValueError):
        return None
    if name.replace("_", "-") in _NO_CHARSETS:
        return None
    # On the web, Latin-1 means its superset: browsers read it so.
    return "cp1252" if name == "iso8859-1" else name


def _looks_like_html(body: bytes) -> bool:
    head = body[:_HEAD_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
    return head.startswith(b"<") and _LOOKS_LIKE_HTML.search(head) is not None


def _extract_html(html: str) -> str:
    """Return the main text of a page, else all that its body shows."""
    tags, depth = _measure(html)
    if tags * depth > _MOST_TAGS_TIMES_DEPTH:
        raise UnreadableDocument("the markup of the page is nested too deeply")
    if tags <= _MOST_TAGS_FOR_EXTRACTION:
        import trafilatura  # noqa: PLC0415 - loads while the next pages are on their way

        text = trafilatura.extract(
            html,
            fast=tags > _MOST_TAGS_FOR_FULL_EXTRACTION or len(html) < _SMALL_PAGE_CHARACTERS,
            include_comments=False,
            include_tables=True,
            prune_xpath=["//template", "//noscript"],
        )
        if text := (text or "").strip():
            return text
    from selectolax.lexbor import LexborHTMLParser  # noqa: PLC0415 - seldom needed

    tree = LexborHTMLParser(html)
    tree.strip_tags(_WITHOUT_TEXT)
    return tree.body.text(separator="\n", strip=True) if tree.body else ""


def _measure(html: str) -> tuple[int, int]:
    """Return how many tags there are, and about how deep they are nested."""
    tags = depth = deepest = 0
    for closing, name in _TAG.findall(html):
        tags += 1
        if not _OFTEN_UNCLOSED.fullmatch(name):
            depth = max(depth - 1, 0) if closing else depth + 1
            deepest = max(deepest, depth)
    return tags, deepest
