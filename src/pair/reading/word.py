"""Word documents: mammoth converts them to HTML, which is read like any page."""

import io
from typing import Any

import mammoth

from pair.reading.archives import find_property, open_archive, read_properties
from pair.reading.contract import Reading
from pair.reading.html import read_page


def read_word(content: bytes) -> Reading:
    """Read a .docx file. Linked resources are not fetched. Raises UnreadableDocument, MemoryError."""
    with open_archive(content, ".docx") as archive:
        title = find_property(read_properties(archive, "docProps/core.xml"), "title")
        page = mammoth.convert_to_html(io.BytesIO(content), convert_image=_skip_image).value
    reading = read_page(f"<html><body>{page}</body></html>")
    return Reading(reading.text, title or reading.title)


def _skip_image(_image: Any) -> list[Any]:
    return []
