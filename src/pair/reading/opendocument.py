"""OpenDocument texts and presentations (.odt, .odp): headings, paragraphs, lists, tables and notes as HTML."""

from html import escape
from xml.etree.ElementTree import Element

from pair.reading.archives import find_property, open_archive, parse_part, read_properties
from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.html import read_page

_NAMES = "{urn:oasis:names:tc:opendocument:xmlns:"
_TEXT, _TABLE, _OFFICE = f"{_NAMES}text:1.0}}", f"{_NAMES}table:1.0}}", f"{_NAMES}office:1.0}}"
_DRAW, _SHOW = f"{_NAMES}drawing:1.0}}", f"{_NAMES}presentation:1.0}}"
_ELEMENTS = {
    f"{_TEXT}p": "p",
    f"{_TEXT}list": "ul",
    f"{_TEXT}list-item": "li",
    f"{_TEXT}list-header": "li",
    f"{_TABLE}table": "table",
    f"{_TABLE}table-row": "tr",
    f"{_TABLE}table-cell": "td",
}
_SPACES = {f"{_TEXT}line-break": "<br>", f"{_TEXT}tab": " ", f"{_TEXT}s": " "}
_UNREAD = frozenset(
    {
        f"{_TEXT}tracked-changes", f"{_TEXT}table-of-content", f"{_TEXT}sequence-decls", f"{_OFFICE}forms",
        f"{_OFFICE}annotation", f"{_TEXT}soft-page-break", f"{_SHOW}settings", f"{_OFFICE}scripts",
    }
)  # fmt: skip
_MOST_REPEATED = 100
_LEVELS = frozenset("123456")


def read_opendocument(content: bytes) -> Reading:
    """Read an .odt or .odp file. Raises UnreadableDocument, MemoryError."""
    with open_archive(content, ".odt") as archive:
        manifest = read_properties(archive, "META-INF/manifest.xml")
        if manifest is not None and manifest.find(".//{*}encryption-data") is not None:
            raise UnreadableDocument("is encrypted")
        properties = read_properties(archive, "meta.xml")
        body = parse_part(archive, "content.xml").find(f"{_OFFICE}body")
        page = "" if body is None else _format_element(body)
        reading = read_page(f"<html><body>{page}</body></html>")
    return Reading(reading.text, find_property(properties, "title") or reading.title)


def _format_element(element: Element) -> str:
    """Return an element and its children as HTML."""
    tag = element.tag
    if tag in _UNREAD:
        return ""
    if tag in _SPACES:
        return _SPACES[tag]
    inner = escape(element.text or "") if tag.startswith(_TEXT) else ""
    for child in element:
        inner += _format_element(child)
        inner += escape(child.tail or "") if tag.startswith(_TEXT) else ""
    if tag == f"{_TEXT}h":
        level = element.get(f"{_TEXT}outline-level", "1")
        level = level if level in _LEVELS else "6"
        return f"<h{level}>{inner}</h{level}>"
    if tag == f"{_DRAW}page":
        return f"<h2>{escape(_name_page(element))}</h2>{inner}"
    if tag == f"{_DRAW}frame" and element.get(f"{_SHOW}class") == "title":
        return ""
    if tag == f"{_SHOW}notes":
        return f"<h3>Notes</h3>{inner}" if inner.strip() else ""
    if tag == f"{_TEXT}note":
        body = element.find(f"{_TEXT}note-body")
        return f" ({escape(' '.join(''.join(body.itertext()).split()))})" if body is not None else ""
    name = _ELEMENTS.get(tag)
    repeated = element.get(f"{_TABLE}number-columns-repeated", "1") if name == "td" else "1"
    times = min(int(repeated), _MOST_REPEATED) if repeated.isdecimal() and len(repeated) < 9 else 1
    return f"<{name}>{inner}</{name}>" * times if name else inner


def _name_page(page: Element) -> str:
    """Return the title of a slide, or its name."""
    titles = (frame for frame in page.iter(f"{_DRAW}frame") if frame.get(f"{_SHOW}class") == "title")
    words = " ".join(" ".join("".join(title.itertext()) for title in titles).split())
    return words or page.get(f"{_DRAW}name", "Slide")
