"""Text of PDF, Word and HTML files, through markitdown; loaded only when the extra `documents` is installed."""

import io
import zipfile
from pathlib import Path

from markitdown import FileConversionException, MarkItDown, MarkItDownException, StreamInfo
from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter

from pair.sync.contract import UnreadableDocument, UnreadablePage
from pair.sync.page_text import decoded
from pair.sync.reading import DOCUMENT_SUFFIXES

_MARKUP = frozenset({".html", ".htm"})
_OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")
# A packed file can grow a thousandfold, and its reader keeps all of it in memory.
_MOST_UNPACKED_BYTES = 256 * 1024 * 1024
_SIGNS_OF_A_PASSWORD = ("PDFPassword", "PDFEncryption")


class DocumentLoader:
    """Nothing is ever fetched: content is handed over as bytes, and only these three converters are there to get it.

    Among those left out are some that ask a service on the network, chosen by what a file looks like inside.
    """

    def __init__(self) -> None:
        self._converter = MarkItDown(enable_builtins=False, enable_plugins=False)
        for converter in (
            HtmlConverter(),
            DocxConverter(),  # type: ignore[no-untyped-call]
            PdfConverter(),
        ):
            self._converter.register_converter(converter)

    def text_of(self, path: Path) -> str:
        """As Markdown; raises UnreadableDocument, also for a PDF that holds pictures only."""
        suffix = path.suffix.lower()
        try:
            content = _checked(path.read_bytes(), suffix)
        except OSError as fault:
            raise UnreadableDocument(f"cannot be read: {fault.strerror}") from fault
        kind = StreamInfo(extension=suffix, charset="utf-8" if suffix in _MARKUP else None)
        try:
            text = self._converter.convert_stream(io.BytesIO(content), stream_info=kind).markdown
        except FileConversionException as fault:
            raise UnreadableDocument(_reason_of(fault, suffix)) from fault
        except MarkItDownException as fault:
            raise UnreadableDocument(f"cannot be read as {suffix}") from fault
        if suffix == ".pdf" and not text.strip():
            raise UnreadableDocument("holds no text; is it a scan?")
        return text


def _checked(content: bytes, suffix: str) -> bytes:
    """Content that the converter of this suffix may be given."""
    if suffix not in DOCUMENT_SUFFIXES:
        raise UnreadableDocument(f"{suffix or 'a file without suffix'} is no kind of document that can be read")
    if suffix in _MARKUP:
        return _as_utf8(content)
    if suffix == ".docx":
        _check_docx(content)
    elif b"%PDF-" not in content[:1024]:
        raise UnreadableDocument("is damaged, or no PDF")
    return content


def _as_utf8(content: bytes) -> bytes:
    # The converter looks at no <meta charset>.
    try:
        return decoded(content, charset=None, is_markup=True).encode("utf-8", "replace")
    except UnreadablePage as fault:
        raise UnreadableDocument("is not text in any known charset") from fault


def _check_docx(content: bytes) -> None:
    if content.startswith(_OLE_MAGIC):
        raise UnreadableDocument("is encrypted, or an old .doc under another name")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked_bytes = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as fault:
        raise UnreadableDocument("is damaged, or no .docx") from fault
    if unpacked_bytes > _MOST_UNPACKED_BYTES:
        raise UnreadableDocument(f"unpacks to more than {_MOST_UNPACKED_BYTES:,} bytes")


def _reason_of(fault: FileConversionException, suffix: str) -> str:
    if any(sign in str(fault) for sign in _SIGNS_OF_A_PASSWORD):
        return "is encrypted"
    return f"is damaged, or cannot be read as {suffix}"
