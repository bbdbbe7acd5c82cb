"""PowerPoint presentations: a section for each slide, with its title, texts, tables and notes."""

import posixpath
import zipfile
from collections.abc import Iterator
from html import escape
from xml.etree.ElementTree import Element

from pair.reading.archives import find_property, open_archive, parse_part, read_properties
from pair.reading.contract import Reading
from pair.reading.html import read_page

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_LINKS = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_PRESENTATION = "ppt/presentation.xml"
_SHAPES = frozenset({f"{_P}sp", f"{_P}graphicFrame"})
_TITLES = frozenset({"title", "ctrTitle"})
_UNREAD = frozenset({"dt", "ftr", "hdr", "sldNum", "sldImg"})
"""Placeholders for text that every slide repeats."""
_GIVEN_TITLE = "PowerPoint Presentation"
"""The title that PowerPoint gives a file without a title."""


def read_slides(content: bytes) -> Reading:
    """Read a .pptx file. Raises UnreadableDocument, MemoryError."""
    with open_archive(content, ".pptx") as archive:
        title = find_property(read_properties(archive, "docProps/core.xml"), "title").replace(_GIVEN_TITLE, "")
        links = _read_links(archive, _PRESENTATION)
        ids = [slide.get(f"{_LINKS}id", "") for slide in parse_part(archive, _PRESENTATION).iter(f"{_P}sldId")]
        slides = [_format_slide(archive, links[each][1], number) for number, each in enumerate(ids, 1)]
        reading = read_page(f"<html><body>{''.join(slides)}</body></html>")
    return Reading(reading.text, title or reading.title, {"slides": len(slides)})


def _read_links(archive: zipfile.ZipFile, name: str) -> dict[str, tuple[str, str]]:
    """Return the kind and the name of each part that a part refers to, by id."""
    folder, base = posixpath.split(name)
    path = f"{folder}/_rels/{base}.rels"
    if path not in archive.namelist():
        return {}
    return {
        link.get("Id", ""): (
            link.get("Type", "").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/", folder, link.get("Target", "")))[1:],
        )
        for link in parse_part(archive, path)
        if link.get("TargetMode") != "External"
    }


def _format_slide(archive: zipfile.ZipFile, name: str, number: int) -> str:
    """Return a slide as HTML."""
    title, body = "", []
    for shape in parse_part(archive, name).iter():
        if shape.tag not in _SHAPES:
            continue
        kind = _read_placeholder(shape)
        if kind in _TITLES and not title:
            title = " ".join(_list_paragraphs(shape))
        elif kind not in _UNREAD:
            body.append(_format_shape(shape))
    parts = [f"<h2>{escape(title or f'Slide {number}')}</h2>", *body]
    for kind, target in _read_links(archive, name).values():
        if kind == "notesSlide":
            notes = [
                shape for shape in parse_part(archive, target).iter(f"{_P}sp") if _read_placeholder(shape) == "body"
            ]
            texts = [f"<p>{escape(text)}</p>" for shape in notes for text in _list_paragraphs(shape)]
            parts += ["<h3>Notes</h3>", *texts] if texts else []
    return "".join(parts)


def _read_placeholder(shape: Element) -> str:
    """Return the kind of a placeholder, `title` or `body`; "" for other shapes."""
    found = shape.find(f"./*/{_P}nvPr/{_P}ph")
    return found.get("type", "body") if found is not None else ""


def _format_shape(shape: Element) -> str:
    """Return a table as a table, several paragraphs of a placeholder as a list, and other texts as paragraphs."""
    rows = [
        "".join(f"<td>{escape(' '.join(_list_paragraphs(cell)))}</td>" for cell in row) for row in shape.iter(f"{_A}tr")
    ]
    if rows:
        return f"<table><tr>{'</tr><tr>'.join(rows)}</tr></table>"
    texts = [escape(text) for text in _list_paragraphs(shape)]
    if len(texts) < 2 or not _read_placeholder(shape):
        return "".join(f"<p>{text}</p>" for text in texts)
    return f"<ul><li>{'</li><li>'.join(texts)}</li></ul>"


def _list_paragraphs(shape: Element) -> Iterator[str]:
    """Yield the text of each paragraph that is not blank."""
    for paragraph in shape.iter(f"{_A}p"):
        pieces = (" " if piece.tag == f"{_A}br" else piece.text or "" for piece in paragraph.iter())
        if text := " ".join("".join(pieces).split()):
            yield text
