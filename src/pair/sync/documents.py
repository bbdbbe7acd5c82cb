"""Convert PDF, Word and HTML files to text, in a child process that has limits of time, memory and output.

A document can be made to keep its converter busy for hours, or to fill the memory, from a few kilobytes. The child
alone meets it: when a limit is reached the child ends, the document is refused with the reason, and the next document
gets a new child. One child converts many documents, because starting it takes half a second; an idle one ends.

Invariants
    The child gets bytes and returns bytes; nothing that it sends is executed or unpickled.
    The child ends with this process, however this process ends, and is always waited for.
    Only the child loads markitdown, which the extra `documents` installs.
"""

import contextlib
import io
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from pair.clock import call_when_late
from pair.sync.contract import UnreadableDocument
from pair.sync.pages import decode_page
from pair.sync.source_text import DOCUMENT_SUFFIXES

_MEGABYTE = 1_000_000
_MARKUP = frozenset({".html", ".htm"})
_OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")
# A packed file can grow a thousandfold, and its reader keeps all of it in memory.
_MOST_UNPACKED_BYTES = 256 * 1024 * 1024
_SIGNS_OF_A_PASSWORD = ("PDFPassword", "PDFEncryption")
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


@dataclass(frozen=True)
class DocumentLimits:
    """What the conversion of one document may take; a larger file may take more."""

    cpu_seconds: float = 60.0
    cpu_seconds_per_megabyte: float = 10.0
    memory_bytes: int = 1_000_000_000
    memory_bytes_per_byte: int = 20
    text_bytes: int = 32_000_000
    wall_to_cpu: float = 2.0
    """Time on the clock, as a multiple of CPU time: for a converter that waits, or a busy machine."""

    idle_seconds: float = 10.0
    """How long the child waits for the next document before it ends."""

    def cpu_for(self, size_bytes: int) -> float:
        return self.cpu_seconds + self.cpu_seconds_per_megabyte * size_bytes / _MEGABYTE

    def memory_for(self, size_bytes: int) -> int:
        return self.memory_bytes + self.memory_bytes_per_byte * size_bytes


@dataclass(eq=False)
class DocumentProcess:
    """Reads documents through a child process. May be used from several threads; they take turns."""

    limits: DocumentLimits = field(default_factory=DocumentLimits)
    command: Sequence[str] | None = None
    """Starts another child than ours."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _child: "_Child | None" = field(default=None, init=False)
    _idle: threading.Timer | None = field(default=None, init=False)

    def text_of(self, path: Path) -> str:
        """Return the text as Markdown; raises UnreadableDocument."""
        try:
            content = path.read_bytes()
        except OSError as fault:
            raise UnreadableDocument(f"cannot be read: {fault.strerror}") from fault
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._child is None:
                # The child can import what this process can.
                code = f"import sys; sys.path[:] = {sys.path!r}; from pair.sync.documents import serve; serve(0)"
                self._child = _Child(self.command or [sys.executable, "-I", "-c", code])
            try:
                text, is_converted = self._child.convert(content, path.suffix.lower(), self.limits)
            except BaseException:
                # Nothing is known of a child that failed; an interrupted one must not go on.
                self._end_child()
                raise
            self._idle = threading.Timer(self.limits.idle_seconds, self.close)
            self._idle.daemon = True
            self._idle.start()
        if not is_converted:
            raise UnreadableDocument(text)
        return text

    def close(self) -> None:
        """End the child. The next document starts another one."""
        with self._lock:
            self._end_child()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A running child, killed and waited for at the latest when this object goes."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # In a session of its own Ctrl-C does not reach it: a document under way is finished and saved.
                self._process = subprocess.Popen(  # noqa: S603 - ourselves
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as fault:
                ours.close()
                reason = f"its converter cannot be started: {fault.strerror}"
                raise UnreadableDocument(reason, is_passing=True) from fault
        self._connection = Connection(ours.detach())
        self.end = weakref.finalize(self, _end, self._process, self._connection)

    def convert(self, content: bytes, suffix: str, limits: DocumentLimits) -> tuple[str, bool]:
        """Return the text, or why there is none, and which of the two; raises as `DocumentProcess.text_of` does."""
        cpu_seconds = limits.cpu_for(len(content))
        head = {
            "suffix": suffix,
            "cpu_seconds": cpu_seconds,
            "memory_bytes": limits.memory_for(len(content)),
            "text_bytes": limits.text_bytes,
        }
        with call_when_late(cpu_seconds * limits.wall_to_cpu, self._process.kill) as is_late:
            try:
                self._connection.send_bytes(json.dumps(head).encode())
                self._connection.send_bytes(content)
                answer = self._connection.recv_bytes(limits.text_bytes + 1)
            except (EOFError, OSError) as fault:
                self._refuse(cpu_seconds, is_late=is_late.is_set(), cause=fault)
        try:
            kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as fault:
            raise UnreadableDocument("its converter gave no usable answer") from fault
        if kind not in {b"T", b"R"}:
            raise UnreadableDocument("its converter gave no usable answer")
        return text, kind == b"T"

    def _refuse(self, cpu_seconds: float, *, is_late: bool, cause: Exception) -> NoReturn:
        """Raise what the end of the child says about the document."""
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            raise UnreadableDocument("its converter gave no usable answer") from cause
        if is_late or status == -signal.SIGXCPU:
            raise UnreadableDocument(f"takes more than {cpu_seconds:.0f} s to convert") from cause
        if -status in _FROM_OUTSIDE:
            reason = f"its converter was ended by {signal.Signals(-status).name}"
            raise UnreadableDocument(reason, is_passing=True) from cause
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        raise UnreadableDocument(f"its converter crashed ({how})") from cause


def _end(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait()


# ── in the child ───────────────────────────────────────────────────────────────────────────────────


def serve(descriptor: int) -> None:
    """Answer requests on this socket until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    requests: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    loader = DocumentConverter()
    own_bytes = _limit_process()
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


def _answer(loader: "DocumentConverter", head: dict[str, Any], content: bytes, own_bytes: int) -> bytes:
    """Return `T` and the text, or `R` and the reason why there is none."""
    _limit_document(head["cpu_seconds"], own_bytes + head["memory_bytes"])
    try:
        text = loader.convert(content, head["suffix"]).encode("utf-8", "surrogatepass")
    except UnreadableDocument as fault:
        return b"R" + str(fault).encode("utf-8", "replace")
    except MemoryError:
        return b"R" + f"takes more than {head['memory_bytes']:,} bytes of memory to convert".encode()
    if len(text) > head["text_bytes"]:
        return b"R" + f"has more than {head['text_bytes']:,} bytes of text".encode()
    return b"T" + text


def _limit_process() -> int:
    """Forbid files and core dumps; return the address space in use, which limits of memory are added to."""
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (0, 0))
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 512 * _MEGABYTE


def _limit_document(cpu_seconds: float, memory_bytes: int) -> None:
    """Limit what this process may take from now on. SIGXCPU ends it, MemoryError is for its caller."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + cpu_seconds) + 1,
        resource.RLIMIT_AS: memory_bytes,
    }
    for kind, limit in soft.items():
        with contextlib.suppress(OSError, ValueError):  # where the system knows no such limit, the clock still ends it
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (limit, hard))


class DocumentConverter:
    """Nothing is ever fetched: content is handed over as bytes, and only these three converters are there to get it.

    Among those left out are some that ask a service on the network, chosen by what a file looks like inside.
    """

    def __init__(self) -> None:
        # Loaded in the child only, and before its limits: what is loaded later would count for a document.
        from markitdown import MarkItDown  # noqa: PLC0415
        from markitdown.converters import DocxConverter, HtmlConverter, PdfConverter  # noqa: PLC0415

        self._converter = MarkItDown(enable_builtins=False, enable_plugins=False)
        for converter in (
            HtmlConverter(),
            DocxConverter(),  # type: ignore[no-untyped-call]
            PdfConverter(),
        ):
            self._converter.register_converter(converter)

    def convert(self, content: bytes, suffix: str) -> str:
        """Return the text as Markdown. Raises UnreadableDocument, also for a PDF of pictures only, and MemoryError."""
        from markitdown import FileConversionException, MarkItDownException, StreamInfo  # noqa: PLC0415

        if suffix in _MARKUP:
            try:  # the converter looks at no <meta charset>
                content = decode_page(content, charset=None, is_markup=True).encode("utf-8", "replace")
            except UnreadableDocument as fault:
                raise UnreadableDocument("is not text in any known charset") from fault
        else:
            _check_content(content, suffix)
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


def _check_content(content: bytes, suffix: str) -> None:
    """Refuse what the converter of this suffix must not be given."""
    if suffix not in DOCUMENT_SUFFIXES:
        raise UnreadableDocument(f"{suffix or 'a file without suffix'} is no kind of document that can be read")
    if suffix != ".docx":
        if b"%PDF-" not in content[:1024]:
            raise UnreadableDocument("is damaged, or no PDF")
        return
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
