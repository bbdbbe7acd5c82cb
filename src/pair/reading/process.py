"""Read documents. Risky kinds are read in child processes with limits of time, memory and output.

A hostile document of a few kilobytes can keep its reader busy for hours, or fill the memory. So a child reads it. When
the child reaches a limit, it ends, the document is refused with the reason, and the next document gets a new child.
There is at most one child for each core. A child starts when a document needs it, and ends when it is idle.

Invariants
    A child gets bytes and returns bytes; nothing that it sends is executed or unpickled.
    A child ends with this process, however this process ends, and is always waited for.
    Plain text is read in this process, and starts no child.
"""

import contextlib
import functools
import hashlib
import importlib.util
import json
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pair.clock import call_when_late
from pair.files import resource
from pair.reading.contract import OCR_CPU_SECONDS, OCR_MEMORY_BYTES, Reading, UnreadableDocument
from pair.reading.reader import CONVERTED, Kind, can_cut_code, convert, find_kind, read, read_uncut

_MEGABYTE = 1_000_000
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
_PACKAGES: dict[Kind, tuple[str, str]] = {
    "pdf": (".pdf", "pypdfium2"),
    "word": (".docx", "mammoth"),
    "sheet": (".xlsx and .ods", "python_calamine"),
    "rtf": (".rtf", "striprtf"),
}
"""Kinds that need the extra `documents`: the suffix, and the module that reads them."""
_SCANS = "scan"
_MOST_CHILDREN = 8
_AHEAD = 16
"""Number of documents to read ahead."""
_MOST_KEPT_BYTES = 96_000_000
_MOST_HEAD_BYTES = 200_000
"""Maximum size of title and metadata."""
_OUT_OF_MEMORY = "bytes of memory to convert"
_UNUSABLE = "its converter gave no usable answer"


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def read_ahead(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield the result for each item, in their order, while threads work on the next items."""
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(_count_cores() + 1, thread_name_prefix="pair-read") as threads:
        try:
            for item in items:
                waiting.append(threads.submit(function, item))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


def _count_cores() -> int:
    return min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, _MOST_CHILDREN
    )


def explain_extra(kind: Kind) -> str:
    """Return why a document of this kind cannot be read; an empty text if it can."""
    suffix, package = _PACKAGES.get(kind, ("", "json"))
    if importlib.util.find_spec(package) is not None:
        return ""
    return f"{suffix} files need an extra: pip install 'pair-kb[documents]'"


@functools.cache
def has_ocr() -> bool:
    """Return whether the extra `ocr` is installed."""
    return importlib.util.find_spec("rapidocr") is not None


def list_readers() -> list[str]:
    """Return the kinds of documents that the installed extras read."""
    kinds = [kind for kind in _PACKAGES if not explain_extra(kind)]
    return sorted([*kinds, *(["source"] if can_cut_code() else []), *([_SCANS] if has_ocr() else [])])


def is_read_by(readers: Collection[str], name: str) -> bool:
    """Return whether one of the readers reads a document of this name."""
    kind = find_kind(name)
    return kind in readers or (kind == "pdf" and _SCANS in readers)


@dataclass(frozen=True)
class DocumentLimits:
    """Limits of the conversion of one document; a larger file has higher limits."""

    cpu_seconds: float = 60.0
    cpu_seconds_per_megabyte: float = 10.0
    memory_bytes: int = 1_000_000_000
    memory_bytes_per_byte: int = 20
    text_bytes: int = 32_000_000
    wall_to_cpu: float = 2.0
    """Elapsed time, as a multiple of CPU time: for a converter that waits, or a busy machine."""

    idle_seconds: float = 10.0
    """How long the child waits for the next document before it ends."""

    def cpu_for(self, size_bytes: int) -> float:
        return self.cpu_seconds + self.cpu_seconds_per_megabyte * size_bytes / _MEGABYTE

    def memory_for(self, size_bytes: int) -> int:
        return self.memory_bytes + self.memory_bytes_per_byte * size_bytes


@dataclass(eq=False)
class ReaderProcesses:
    """A reader of documents of every kind. Thread-safe; each thread has its own child."""

    limits: DocumentLimits = field(default_factory=DocumentLimits)
    command: Sequence[str] | None = None
    """The command that starts a child; a test may start another program."""
    children: int = 0
    """Maximum number of children; 0 for one on each core."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _free: "list[_Child]" = field(default_factory=list, init=False)
    _idle: threading.Timer | None = field(default=None, init=False)
    _places: threading.Semaphore = field(init=False)
    _keepers: int = field(default=0, init=False)
    _kept: dict[bytes, bytes] = field(default_factory=dict, init=False)
    _kept_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._places = threading.Semaphore(self.children or _count_cores())

    def read(self, content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Reading:
        """Read a document. Raises UnreadableDocument."""
        kind = find_kind(name, content_type, content)
        if kind not in CONVERTED:
            return read(content, name, content_type, charset)
        if reason := explain_extra(kind):
            raise UnreadableDocument(reason)
        try:
            return self._convert(content, kind, name, charset)
        except UnreadableDocument as fault:
            if kind != "source" or fault.is_passing:
                raise
        return read_uncut(content, name, content_type, charset)

    def _convert(self, content: bytes, kind: Kind, name: str, charset: str | None) -> Reading:
        base = os.path.basename(name) if kind == "source" else ""  # noqa: PTH119
        key = hashlib.sha256(f"{kind} {charset} {base}\n".encode() + content).digest() if self._keepers else b""
        if (packed := self._kept.get(key)) is not None:
            return Reading(*json.loads(zlib.decompress(packed)))
        with self._places:
            child = self._take_child()
            try:
                reading = child.convert(content, {"kind": kind, "charset": charset, "name": base}, self.limits)
            except BaseException:
                # The state of a child that failed is unknown, and an interrupted one must stop.
                child.end()
                raise
            if isinstance(reading, UnreadableDocument) and _OUT_OF_MEMORY in str(reading):
                child.end()  # The child keeps much of the memory.
            else:
                self._return_child(child)
        if isinstance(reading, UnreadableDocument):
            raise reading
        if key:
            self._keep(key, reading)
        return reading

    @contextlib.contextmanager
    def keep_readings(self) -> Iterator[None]:
        """Keep readings by the hash of their content while the block runs, so that no document is converted twice."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._keepers -= 1
                if not self._keepers:
                    self._kept.clear()
                    self._kept_bytes = 0

    def _keep(self, key: bytes, reading: Reading) -> None:
        packed = zlib.compress(json.dumps([reading.text, reading.title, reading.metadata]).encode(), 1)
        with self._lock:
            if self._keepers and self._kept_bytes + len(packed) <= _MOST_KEPT_BYTES:
                self._kept[key] = packed
                self._kept_bytes += len(packed)

    def _take_child(self) -> "_Child":
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._free:
                return self._free.pop()
        # The child can import the same modules as this process.
        code = f"import sys; sys.path[:] = {sys.path!r}; from pair.reading.process import serve; serve(0)"
        return _Child(self.command or [sys.executable, "-I", "-c", code])

    def _return_child(self, child: "_Child") -> None:
        with self._lock:
            self._free.append(child)
            if self._idle is not None:
                self._idle.cancel()
            self._idle = threading.Timer(self.limits.idle_seconds, self.close)
            self._idle.daemon = True
            self._idle.start()

    def close(self) -> None:
        """End idle children. The next document starts another one."""
        with self._lock:
            children, self._free = self._free, []
        for child in children:
            child.end()


class _Child:
    """A running child. It is killed and waited for when this object is deleted, at the latest."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # In another session Ctrl-C does not reach it: the document in progress is finished and saved.
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

    def convert(self, content: bytes, request: dict[str, Any], limits: DocumentLimits) -> Reading | UnreadableDocument:
        """Return the reading. Raises UnreadableDocument with the reason, also when the child failed."""
        cpu_seconds = limits.cpu_for(len(content))
        head = request | {
            "cpu_seconds": cpu_seconds,
            "memory_bytes": limits.memory_for(len(content)),
            "text_bytes": limits.text_bytes,
            "ocr_seconds": OCR_CPU_SECONDS if request["kind"] == "pdf" and has_ocr() else 0,
        }
        seconds = (cpu_seconds + head["ocr_seconds"]) * limits.wall_to_cpu
        with call_when_late(seconds, self._process.kill) as is_late:
            try:
                self._connection.send_bytes(json.dumps(head).encode())
                self._connection.send_bytes(content)
                answer = self._connection.recv_bytes(limits.text_bytes + _MOST_HEAD_BYTES)
            except (EOFError, OSError) as fault:
                self._refuse(head, is_late=is_late.is_set(), cause=fault)
        try:
            kind, head_line, text = answer[:1], *answer[1:].decode().split("\n", 1)
            if kind == b"R":
                return UnreadableDocument(text)
            title, metadata = json.loads(head_line)
        except ValueError as fault:
            raise UnreadableDocument(_UNUSABLE) from fault
        if kind != b"T" or not isinstance(title, str) or not isinstance(metadata, dict):
            raise UnreadableDocument(_UNUSABLE)
        return Reading(text, title, metadata)

    def _refuse(self, head: dict[str, Any], *, is_late: bool, cause: Exception) -> NoReturn:
        """Raise UnreadableDocument with the reason why the child ended."""
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            raise UnreadableDocument(_UNUSABLE) from cause
        if is_late or status == -signal.SIGXCPU:
            more = f" ({head['cpu_seconds'] + head['ocr_seconds']:.0f} s with OCR)" if head["ocr_seconds"] else ""
            raise UnreadableDocument(f"takes more than {head['cpu_seconds']:.0f} s to convert{more}") from cause
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        if how in _FROM_OUTSIDE:
            raise UnreadableDocument(f"its converter was ended by {how}", is_passing=True) from cause
        if head["kind"] in {"pdf", "sheet", "source"} and -status in {signal.SIGABRT, signal.SIGTRAP}:
            # Libraries that are not written in Python end their process when there is no memory left.
            raise UnreadableDocument(_describe_memory(head)) from cause
        raise UnreadableDocument(f"its converter crashed ({how})") from cause


def _describe_memory(head: dict[str, Any]) -> str:
    return f"takes more than {head['memory_bytes']:,} {_OUT_OF_MEMORY}"


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
    # Load readers now: later, their memory would count for a document.
    for module in ("pair.reading.html", "tree_sitter", *(package for _, package in _PACKAGES.values())):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    own_bytes = _limit_process()
    while True:
        head, content = requests.get()
        connection.send_bytes(_answer(json.loads(head), content, own_bytes))


def _receive(connection: Connection, requests: "queue.SimpleQueue[tuple[bytes, bytes]]") -> None:
    """Receive in another thread, so that the child ends with its parent even in the middle of a document."""
    try:
        while True:
            requests.put((connection.recv_bytes(), connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


def _answer(head: dict[str, Any], content: bytes, own_bytes: int) -> bytes:
    """Return `T`, a line of title and metadata, and the text; or `R`, an empty line, and the reason for no text."""
    kept_bytes = OCR_MEMORY_BYTES if "rapidocr" in sys.modules else 0
    _limit_document(head["cpu_seconds"], own_bytes + kept_bytes + head["memory_bytes"])
    too_large = b"R\n" + _describe_memory(head).encode()
    text = None
    # An error keeps the memory of the work before it, so send the answer after that memory is free.
    with contextlib.suppress(MemoryError):
        try:
            reading = convert(content, head["kind"], head["name"], head["charset"])
            text = reading.text.encode()
        except UnreadableDocument as fault:
            return b"R\n" + str(fault).encode("utf-8", "replace")
    if text is None:
        return too_large
    if len(text) > head["text_bytes"]:
        return b"R\n" + f"has more than {head['text_bytes']:,} bytes of text".encode()
    described = json.dumps([reading.title, reading.metadata]).encode()
    if len(described) > _MOST_HEAD_BYTES - 10:
        described = b'["", {}]'
    return b"T" + described + b"\n" + text


def _limit_process() -> int:
    """Forbid files and core dumps; return the address space in use, which limits of memory are added to."""
    if resource is None:
        return 512 * _MEGABYTE
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (0, 0))
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError):
        return 512 * _MEGABYTE


def _limit_document(cpu_seconds: float, memory_bytes: int) -> None:
    """Limit the time and memory of this process from now on. SIGXCPU ends it; the caller handles MemoryError."""
    if resource is None:  # The clock still ends it.
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + cpu_seconds) + 1,
        resource.RLIMIT_AS: memory_bytes,
    }
    for kind, limit in soft.items():
        with contextlib.suppress(OSError, ValueError):  # If the system has no such limit, the time limit still applies.
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (limit, hard))
