"""Zip archives of XML, the container of Office, OpenDocument and EPUB files, opened with limits.

Linked parts are not fetched, macros are not read, and archives inside the archive are not unpacked.
"""

import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.parsers.expat import ExpatError

from pair.reading.contract import OLE_MAGIC, UnreadableDocument

MOST_UNPACKED_BYTES = 64_000_000
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
def open_archive(content: bytes, suffix: str, most_bytes: int = MOST_UNPACKED_BYTES) -> Iterator[zipfile.ZipFile]:
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


def parse_part(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """Parse a part of XML. Raises KeyError for a missing part, ValueError for entities, which can grow endlessly."""
    source = archive.read(name)
    if b"<!ENTITY" in source:
        raise ValueError("declares entities")
    return ElementTree.fromstring(source)  # noqa: S314 - no entities, and expat limits those that are hidden


def read_properties(archive: zipfile.ZipFile, name: str) -> ElementTree.Element | None:
    """Return the properties of the document from a part; None if the part is missing or cannot be parsed."""
    try:
        return parse_part(archive, name)
    except (KeyError, ValueError, ElementTree.ParseError):
        return None


def find_property(properties: ElementTree.Element | None, name: str) -> str:
    """Return a Dublin Core property on one line: `title`, `creator`, `language`. An empty text without one."""
    found = properties.find(f".//{_DUBLIN_CORE}{name}") if properties is not None else None
    return " ".join("".join(found.itertext()).split()) if found is not None else ""
