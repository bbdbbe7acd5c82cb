"""Shared parts of web sources: requests, error reasons, XML without entities, and links of a page."""

import re
import zlib
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from selectolax.lexbor import LexborHTMLParser

from pair.network import PageFault
from pair.reading.contract import UnreadableDocument
from pair.reading.encoding import decode
from pair.reading.html import refuse_deep
from pair.web.ssrf import RefusedAddress

ACCEPT = "text/markdown, text/html;q=0.9, */*;q=0.1"
HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_MARKDOWN_TYPES = frozenset({"text/markdown", "text/x-markdown", "text/plain"})
_MARKDOWN_LINK = re.compile(
    r"\]\(\s*<?([^()\s<>]{1,2000})|<(https?://[^\s<>]{1,2000})>|^\[[^\]\n]{1,200}\]:\s*(\S+)", re.MULTILINE
)
_REFRESH = re.compile(r"""[;,]\s*url\s*=\s*["']?([^"'\s]+)""", re.IGNORECASE)
_GZIP_MAGIC = b"\x1f\x8b"
_DEEPEST = 100
_MOST_PARTS = 2_000_000
"""Maximum number of elements and attributes; a sitemap has at most 50,000 URLs."""


def describe_page_fault(fault: PageFault) -> str:
    """Return the reason why a request failed, with the setting that would allow it."""
    hint = "; kb.allow_private_addresses: true allows it" if isinstance(fault.__cause__, RefusedAddress) else ""
    return f"{fault}{hint}"


def find_name(url: str) -> str:
    """Return the last part of the path of a URL."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def parse_xml(content: bytes, max_bytes: int) -> Element:
    """Parse XML, which may be compressed with gzip. Names have the form `{namespace}name`. Raises ValueError.

    A document that declares entities is refused: a few entities can expand to gigabytes, or to local files.
    """
    if content.startswith(_GZIP_MAGIC):
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            content = unpacker.decompress(content, max_bytes)
        except zlib.error as fault:
            raise ValueError("the compressed file is damaged") from fault
        if not unpacker.eof:
            raise ValueError(f"the compressed file is truncated, or longer than {max_bytes:,} bytes")
    builder, depth, count = TreeBuilder(), 0, 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth += 1
        count += 1 + len(attributes)
        if depth > _DEEPEST:
            raise ValueError(f"its elements are nested more than {_DEEPEST} deep")
        if count > _MOST_PARTS:
            raise ValueError(f"it has more than {_MOST_PARTS:,} elements and attributes")
        builder.start(_name(name), {_name(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_name(name))

    def refuse_entities(*_: object) -> NoReturn:
        raise ValueError("it declares entities, which are not allowed")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = builder.data, refuse_entities
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, LookupError) as fault:  # LookupError: an unknown charset
        raise ValueError(f"not XML: {fault}") from fault
    return builder.close()


def _name(name: str) -> str:
    return f"{{{name}" if "}" in name else name


def find_links(content: bytes, content_type: str, charset: str | None, url: str) -> tuple[list[str], str]:
    """Return the absolute links of a page of HTML or Markdown, and its canonical URL; empty if it has none."""
    if content_type not in HTML_TYPES | _MARKDOWN_TYPES:
        return [], ""
    is_html = content_type in HTML_TYPES
    try:
        text = decode(content, charset=charset, is_markup=is_html)
        if is_html:
            refuse_deep(text)
    except UnreadableDocument:
        return [], ""
    if not is_html:
        return _join_all(url, (next(filter(None, found)) for found in _MARKDOWN_LINK.findall(text))), ""
    tree = LexborHTMLParser(text)
    base = _join(url, _read_attribute(tree, "base[href]")) or url
    targets = []
    for node in tree.css("a[href]:not([rel~=nofollow]), frame[src], meta[http-equiv=refresh i][content]"):
        refresh = _REFRESH.search(node.attributes.get("content") or "") if node.tag == "meta" else None
        targets.append(refresh[1] if refresh else node.attributes.get("href") or node.attributes.get("src") or "")
    canonical = _read_attribute(tree, "link[rel~=canonical][href]")
    return _join_all(base, targets), canonical and _join(base, canonical)


def _read_attribute(tree: LexborHTMLParser, selector: str) -> str:
    node = tree.css_first(selector)
    return (node.attributes.get("href") or "") if node is not None else ""


def _join_all(base: str, addresses: Iterable[str]) -> list[str]:
    """Return absolute addresses without fragments, each once."""
    different = dict.fromkeys(address.partition("#")[0].strip() for address in addresses)
    return [_join(base, address) for address in different if address]


def _join(base: str, address: str) -> str:
    try:
        return urljoin(base, address.strip())
    except ValueError:
        return ""
