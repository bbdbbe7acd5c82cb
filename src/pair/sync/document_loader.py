"""Text of PDF, Word and HTML files, through markitdown; loaded only when the extra `documents` is installed.

Outside of tests this runs in a child process with limits: document_process.py.
"""

import io
import json
import os
import queue
import signal
import threading
import zipfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from markitdown import FileConversionException, MarkItDown, MarkItDownException, StreamInfo
from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter

from pair.sync.contract import UnreadableDocument, UnreadablePage
from pair.sync.document_process import limit_document, limit_process
from pair.sync.page_text import decode_page
from pair.sync.source_text import DOCUMENT_SUFFIXES

_MARKUP = frozenset({".html", ".htm"})
_OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")
# A packed file can grow a thousandfold, and its reader keeps all of it in memory.
_MOST_UNPACKED_BYTES = 256 * 1024 * 1024
_SIGNS_OF_A_PASSWORD = ("PDFPassword", "PDFEncryption")


class DocumentConverter:
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
        """Return the text as Markdown; raises UnreadableDocument, also for a PDF that holds pictures only."""
        try:
            content = path.read_bytes()
        except OSError as fault:
            raise UnreadableDocument(f"cannot be read: {fault.strerror}") from fault
        return self.convert(content, path.suffix.lower())

    def convert(self, content: bytes, suffix: str) -> str:
        """Return the text of a file with this content and suffix; raises as `text_of` does, and MemoryError."""
        content = _check_content(content, suffix)
        kind = StreamInfo(extension=suffix, charset="utf-8" if suffix in _MARKUP else None)
        try:
            text = self._converter.convert_stream(io.BytesIO(content), stream_info=kind).markdown
        except FileConversionException as fault:
            if any(_is_out_of_memory(attempt.exc_info[1]) for attempt in fault.attempts or () if attempt.exc_info):
                raise MemoryError from fault
            is_encrypted = any(sign in str(fault) for sign in _SIGNS_OF_A_PASSWORD)
            reason = "is encrypted" if is_encrypted else f"is damaged, or cannot be read as {suffix}"
            raise UnreadableDocument(reason) from fault
        except MarkItDownException as fault:
            raise UnreadableDocument(f"cannot be read as {suffix}") from fault
        if suffix == ".pdf" and not text.strip():
            raise UnreadableDocument("holds no text; is it a scan?")
        return text


def _check_content(content: bytes, suffix: str) -> bytes:
    """Return content that the converter of this suffix may be given."""
    if suffix not in DOCUMENT_SUFFIXES:
        raise UnreadableDocument(f"{suffix or 'a file without suffix'} is no kind of document that can be read")
    if suffix in _MARKUP:
        return _encode_utf8(content)
    if suffix == ".docx":
        _check_docx(content)
    elif b"%PDF-" not in content[:1024]:
        raise UnreadableDocument("is damaged, or no PDF")
    return content


def _encode_utf8(content: bytes) -> bytes:
    # The converter looks at no <meta charset>.
    try:
        return decode_page(content, charset=None, is_markup=True).encode("utf-8", "replace")
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


def _is_out_of_memory(fault: BaseException | None) -> bool:
    """Readers that clean up after a MemoryError often fail again, with another error in front of it."""
    while fault is not None and not isinstance(fault, MemoryError):
        fault = fault.__cause__ or fault.__context__
    return fault is not None


# ── in the child process ───────────────────────────────────────────────────────────────────────────


def serve(descriptor: int) -> None:
    """Answer requests on this socket until its other end is closed; see document_process.py."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    requests: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    loader = DocumentConverter()
    own_bytes = limit_process()
    while True:
        head, content = requests.get()
        connection.send_bytes(_answer(loader, json.loads(head), content, own_bytes))


def _receive(connection: Connection, requests: "queue.SimpleQueue[tuple[bytes, bytes]]") -> None:
    """Receive beside the work, so that the child also ends with its parent in the middle of a document."""
    try:
        while True:
            requests.put((connection.recv_bytes(), connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


def _answer(loader: DocumentConverter, head: dict[str, Any], content: bytes, own_bytes: int) -> bytes:
    """Return `T` and the text, or `R` and the reason why there is none."""
    limit_document(head["cpu_seconds"], own_bytes + head["memory_bytes"])
    try:
        text = loader.convert(content, head["suffix"]).encode("utf-8", "surrogatepass")
    except UnreadableDocument as fault:
        return b"R" + str(fault).encode("utf-8", "replace")
    except MemoryError:
        return b"R" + f"takes more than {head['memory_bytes']:,} bytes of memory to convert".encode()
    if len(text) > head["text_bytes"]:
        return b"R" + f"has more than {head['text_bytes']:,} bytes of text".encode()
    return b"T" + text
