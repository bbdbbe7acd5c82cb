"""Office documents: Word, PowerPoint, workbooks, OpenDocument, EPUB and RTF. All but RTF are zip archives of XML.

Linked parts are not fetched, macros are not read, and archives inside an archive are not unpacked.
"""

import contextlib
import datetime
import io
import itertools
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ExpatError

from pair.reading.contract import OLE_MAGIC, Reading, UnreadableDocument
from pair.reading.encoding import decode
from pair.reading.html import read_page
from pair.reading.tables import format_table

_MOST_UNPACKED_BYTES = 64_000_000
"""Maximum unpacked size of the XML, which readers keep in memory. Pictures are not unpacked."""
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_MARKUP = (".xml", ".rels", ".xhtml", ".html", ".htm", ".opf", ".ncx", ".bin")
_OUT_OF_MEMORY = 1
"""An error code of expat."""
_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, ExpatError, LookupError, OSError, RuntimeError, SyntaxError, TypeError,
    ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of readers that trust their input."""
_DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"


@contextlib.contextmanager
def open_archive(content: bytes, suffix: str, most_bytes: int = _MOST_UNPACKED_BYTES) -> Iterator[zipfile.ZipFile]:
    """Open a packed document. An error inside the block counts as damage. Raises UnreadableDocument, MemoryError.

    `suffix`: the kind of file, such as `.docx`. `most_bytes`: maximum size of its unpacked markup.
    """
    if refuse_encrypted(content):
        raise UnreadableDocument("is encrypted, or an old .doc, .ppt or .xls: save it in a newer format")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = [part for part in archive.infolist() if part.filename.lower().endswith(_MARKUP)]
            if sum(part.file_size for part in parts) > most_bytes:
                raise UnreadableDocument(f"unpacks to more than {most_bytes:,} bytes")
            if any(part.flag_bits & 1 for part in parts):
                raise UnreadableDocument("is encrypted")
            yield archive
    except _DAMAGE as fault:
        if isinstance(fault, ExpatError | ElementTree.ParseError) and fault.code == _OUT_OF_MEMORY:
            raise MemoryError from fault
        is_whole = zipfile.is_zipfile(io.BytesIO(content))
        reason = f"is damaged, or cannot be read as {suffix}" if is_whole else f"is damaged, or not a {suffix} file"
        raise UnreadableDocument(reason) from fault


def refuse_encrypted(content: bytes) -> bool:
    """Raise UnreadableDocument for an encrypted Office file; return whether it has the old container."""
    is_old = content.startswith(OLE_MAGIC)
    if is_old and _ENCRYPTED_PACKAGE in content:
        raise UnreadableDocument("is encrypted")
    return is_old


def parse_part(archive: zipfile.ZipFile, name: str) -> Element:
    """Parse a part of XML. Raises KeyError for a missing part, ValueError for entities, which can grow endlessly."""
    source = archive.read(name)
    if b"<!ENTITY" in source:
        raise ValueError("declares entities")
    return ElementTree.fromstring(source)  # noqa: S314 - no entities, and expat limits those that are hidden


def read_properties(archive: zipfile.ZipFile, name: str) -> Element | None:
    """Return the properties of the document from a part; None if the part is missing or cannot be parsed."""
    try:
        return parse_part(archive, name)
    except (KeyError, ValueError, ElementTree.ParseError):
        return None


def find_property(properties: Element | None, name: str) -> str:
    """Return a Dublin Core property on one line: `title`, `creator`, `language`. An empty text without one."""
    found = properties.find(f".//{_DUBLIN_CORE}{name}") if properties is not None else None
    return " ".join("".join(found.itertext()).split()) if found is not None else ""


# ── Word ─────────────────────────────────────────────────────────────────────────────────────────────


def read_word(content: bytes) -> Reading:
    """Read a .docx file. Linked resources are not fetched. Raises UnreadableDocument, MemoryError."""
    import mammoth  # noqa: PLC0415 - needs the extra `documents`

    with open_archive(content, ".docx") as archive:
        title = find_property(read_properties(archive, "docProps/core.xml"), "title")
        page = mammoth.convert_to_html(io.BytesIO(content), convert_image=lambda _image: []).value
    reading = read_page(f"<html><body>{page}</body></html>")
    return Reading(reading.text, title or reading.title)


# ── PowerPoint ───────────────────────────────────────────────────────────────────────────────────────

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_LINKS = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_PRESENTATION = "ppt/presentation.xml"
_SHAPES = frozenset({f"{_P}sp", f"{_P}graphicFrame"})
_TITLES = frozenset({"title", "ctrTitle"})
_UNREAD_PLACEHOLDERS = frozenset({"dt", "ftr", "hdr", "sldNum", "sldImg"})
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
        elif kind not in _UNREAD_PLACEHOLDERS:
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


# ── workbooks: Excel and OpenDocument ────────────────────────────────────────────────────────────────

_MOST_ROWS = 50_000
_MOST_COLUMNS = 256
_MOST_SHEET_BYTES = 256_000_000
"""Maximum unpacked size. It is higher than for other documents, because the parser keeps values, not XML."""


def read_sheet(content: bytes) -> Reading:
    """Read a workbook: .xlsx, .xlsm, .xlsb, .xls or .ods. Raises UnreadableDocument, MemoryError."""
    import python_calamine  # noqa: PLC0415 - needs the extra `documents`

    title = ""
    if not refuse_encrypted(content):
        with open_archive(content, ".xlsx", _MOST_SHEET_BYTES) as archive:
            name = "meta.xml" if "meta.xml" in archive.namelist() else "docProps/core.xml"
            title = find_property(read_properties(archive, name), "title")
    try:
        with python_calamine.load_workbook(io.BytesIO(content)) as workbook:
            parts = [_format_sheet(workbook.get_sheet_by_name(name), name) for name in workbook.sheet_names]
    except python_calamine.PasswordError as fault:
        raise UnreadableDocument("is encrypted") from fault
    except (python_calamine.CalamineError, OSError, ValueError) as fault:
        reason = "is encrypted" if "password" in str(fault).lower() else "is damaged, or cannot be read as .xlsx"
        raise UnreadableDocument(reason) from fault
    return Reading("\n\n".join(part for part in parts if part), title)


def _format_sheet(sheet: Any, name: str) -> str:
    """Return a sheet as Markdown; "" for a sheet without values."""
    head = [row[:_MOST_COLUMNS] for row in itertools.islice(sheet.iter_rows(), _MOST_ROWS)]
    rows = [cells for row in head if any(cells := [_format_value(value) for value in row])]
    if not rows:
        return ""
    width = max(index for row in rows for index, cell in enumerate(row, 1) if cell)
    # Lines with one cell above a table describe the table.
    lines = list(itertools.takewhile(lambda row: sum(map(bool, row)) == 1, rows))
    table = [row[:width] for row in rows[len(lines) :]]
    blocks = [f"## {' '.join(name.split())}", *(next(filter(None, line)) for line in lines)]
    if table:
        blocks.append(format_table(table[0], table[1:]))
    for size, most, what in ((sheet.height, _MOST_ROWS, "rows"), (sheet.width, _MOST_COLUMNS, "columns")):
        if size > most:
            blocks.append(f"Only the first {most:,} of {size:,} {what} are read.")
    return "\n\n".join(blocks)


def _format_value(value: Any) -> str:
    """Return the value of a cell: dates as ISO 8601, whole numbers without a decimal point."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value).strip()


# ── OpenDocument texts and presentations ─────────────────────────────────────────────────────────────

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
_UNREAD_ELEMENTS = frozenset(
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
    if tag in _UNREAD_ELEMENTS:
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
        frames = (frame for frame in element.iter(f"{_DRAW}frame") if frame.get(f"{_SHOW}class") == "title")
        words = " ".join(" ".join("".join(frame.itertext()) for frame in frames).split())
        return f"<h2>{escape(words or element.get(f'{_DRAW}name', 'Slide'))}</h2>{inner}"
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


# ── EPUB ─────────────────────────────────────────────────────────────────────────────────────────────

_PAGES = frozenset({"application/xhtml+xml", "text/html"})


def read_epub(content: bytes) -> Reading:
    """Read an .epub file. Raises UnreadableDocument, MemoryError."""
    with open_archive(content, ".epub") as archive:
        root = parse_part(archive, "META-INF/container.xml").find(".//{*}rootfile")
        package_name = root.get("full-path", "") if root is not None else ""
        package = parse_part(archive, package_name)
        names = list(_list_chapters(package, posixpath.dirname(package_name)))
        encryption = read_properties(archive, "META-INF/encryption.xml")
        references = encryption.findall(".//{*}CipherReference") if encryption is not None else ()
        # Fonts are often encrypted although the book is not.
        if {unquote(reference.get("URI", "")) for reference in references}.intersection(names):
            raise UnreadableDocument("is encrypted")
        title = find_property(package, "title")
        pages = [read_page(decode(archive.read(name), is_markup=True)) for name in names]
    metadata = {"language": find_property(package, "language"), "author": find_property(package, "creator")}
    chapters = (
        page.text if page.text.startswith("#") or page.title in {"", title} else f"# {page.title}\n\n{page.text}"
        for page in pages
    )
    text = "\n\n".join(chapter for chapter in chapters if chapter.strip())
    return Reading(text, title, {key: value for key, value in metadata.items() if value})


def _list_chapters(package: Element, folder: str) -> Iterator[str]:
    """Yield the names of the pages in reading order, without the table of contents."""
    items = {item.get("id"): item for item in package.findall(".//{*}item")}
    for reference in package.findall(".//{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and item.get("media-type") in _PAGES and "nav" not in item.get("properties", "").split():
            yield posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))


# ── RTF ─────────────────────────────────────────────────────────────────────────────────────────────

_CELL_END = re.compile(r"\s*\n\|")
_RTF_TITLE = re.compile(rb"\{\\title\s+([^{}]{1,1000})\}")


def read_rtf(content: bytes) -> Reading:
    """Read an .rtf file. Raises UnreadableDocument."""
    import striprtf.striprtf  # noqa: PLC0415 - needs the extra `documents`

    rtf_to_text: Any = striprtf.striprtf.rtf_to_text
    if not content.lstrip().startswith(b"{\\rtf"):
        raise UnreadableDocument("is damaged, or not a .rtf file")
    title = _RTF_TITLE.search(content)
    try:
        text = rtf_to_text(content.decode("latin-1"), errors="replace")
        # The title uses the character codes of the whole document.
        head = content[:1000].partition(b"{")[2].partition(b"{")[0]
        named = rtf_to_text(f"{{{head.decode('latin-1')}{{}}{title[1].decode('latin-1')}}}") if title else ""
    except (LookupError, ValueError) as fault:
        raise UnreadableDocument("is damaged, or cannot be read as .rtf") from fault
    blocks: list[str] = []
    # A cell ends with "|", and may hold paragraphs.
    for is_row, lines in itertools.groupby(_CELL_END.sub("|", text).splitlines(), key=lambda line: line.endswith("|")):
        if is_row:
            header, *rows = [line[:-1].split("|") for line in lines]
            blocks.append(format_table(header, rows))
        else:
            blocks += [" ".join(line.split()) for line in lines]
    return Reading("\n\n".join(filter(None, blocks)), " ".join(named.split()))
