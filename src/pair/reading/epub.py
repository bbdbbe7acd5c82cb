"""EPUB books: the chapters in reading order, each read like a page."""

import posixpath
import zipfile
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from pair.reading.archives import find_property, open_archive, parse_part, read_properties
from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.encoding import decode
from pair.reading.html import read_page

_PAGES = frozenset({"application/xhtml+xml", "text/html"})


def read_epub(content: bytes) -> Reading:
    """Read an .epub file. Raises UnreadableDocument, MemoryError."""
    with open_archive(content, ".epub") as archive:
        root = parse_part(archive, "META-INF/container.xml").find(".//{*}rootfile")
        package_name = root.get("full-path", "") if root is not None else ""
        package = parse_part(archive, package_name)
        names = list(_list_chapters(package, posixpath.dirname(package_name)))
        if _list_encrypted(archive).intersection(names):
            raise UnreadableDocument("is encrypted")
        title = find_property(package, "title")
        chapters = [_read_chapter(archive, name, title) for name in names]
    metadata = {"language": find_property(package, "language"), "author": find_property(package, "creator")}
    text = "\n\n".join(chapter for chapter in chapters if chapter.strip())
    return Reading(text, title, {key: value for key, value in metadata.items() if value})


def _list_chapters(package: Element, folder: str) -> Iterator[str]:
    """Yield the names of the pages in reading order, without the table of contents."""
    items = {item.get("id"): item for item in package.findall(".//{*}item")}
    for reference in package.findall(".//{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and item.get("media-type") in _PAGES and "nav" not in item.get("properties", "").split():
            yield posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))


def _list_encrypted(archive: zipfile.ZipFile) -> set[str]:
    """Return the names of the encrypted parts. Fonts are often encrypted although the book is not."""
    encryption = read_properties(archive, "META-INF/encryption.xml")
    references = encryption.findall(".//{*}CipherReference") if encryption is not None else ()
    return {unquote(reference.get("URI", "")) for reference in references}


def _read_chapter(archive: zipfile.ZipFile, name: str, book: str) -> str:
    reading = read_page(decode(archive.read(name), is_markup=True))
    if reading.text.startswith("#") or reading.title in {"", book}:
        return reading.text
    return f"# {reading.title}\n\n{reading.text}"
