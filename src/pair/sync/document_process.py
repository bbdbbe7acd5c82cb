"""Convert documents in a child process that has limits of time, memory and output.

A document can be made to keep its converter busy for hours, or to fill the memory, from a few kilobytes. The child
alone meets it: when a limit is reached the child ends, the document is refused with the reason, and the next document
gets a new child. One child converts many documents, because starting it takes half a second; an idle one ends.

Invariants
    The child gets bytes and returns bytes; nothing that it sends is executed or unpickled.
    The child ends with this process, however this process ends, and is always waited for.
Not here
    The conversion, and what runs in the child: document_loader.py.
"""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from pair.sync.contract import UnreadableDocument

_MEGABYTE = 1_000_000
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


def default_command() -> list[str]:
    """Return the command that starts the child, with the modules that this process can import."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from pair.sync.document_loader import serve; serve(0)"
    return [sys.executable, "-I", "-c", code]


class DocumentProcess:
    """Reads documents through a child process. May be used from several threads; they take turns."""

    def __init__(self, limits: DocumentLimits | None = None, command: Sequence[str] | None = None) -> None:
        self._limits = limits or DocumentLimits()
        self._command = command
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._idle = threading.Timer(0, self.close)

    def text_of(self, path: Path) -> str:
        """Return the text as Markdown; raises UnreadableDocument."""
        try:
            content = path.read_bytes()
        except OSError as fault:
            raise UnreadableDocument(f"cannot be read: {fault.strerror}") from fault
        with self._lock:
            self._idle.cancel()
            if self._child is None:
                self._child = _Child(self._command or default_command())
            try:
                text, is_converted = self._child.convert(content, path.suffix.lower(), self._limits)
            except BaseException:
                # Nothing is known of a child that failed; an interrupted one must not go on.
                self._end_child()
                raise
            self._idle = threading.Timer(self._limits.idle_seconds, self.close)
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
        cpu_seconds, memory_bytes = limits.cpu_for(len(content)), limits.memory_for(len(content))
        head = {"suffix": suffix, "cpu_seconds": cpu_seconds, "memory_bytes": memory_bytes}
        is_late = threading.Event()
        timer = threading.Timer(cpu_seconds * limits.wall_to_cpu, self._kill, [is_late])
        timer.daemon = True
        timer.start()
        try:
            self._connection.send_bytes(json.dumps({**head, "text_bytes": limits.text_bytes}).encode())
            self._connection.send_bytes(content)
            answer = self._connection.recv_bytes(limits.text_bytes + 1)
        except (EOFError, OSError) as fault:
            self._refuse(cpu_seconds, is_late=is_late.is_set(), cause=fault)
        finally:
            timer.cancel()
        try:
            kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as fault:
            raise UnreadableDocument("its converter gave no usable answer") from fault
        if kind not in {b"T", b"R"}:
            raise UnreadableDocument("its converter gave no usable answer")
        return text, kind == b"T"

    def _kill(self, is_late: threading.Event) -> None:
        is_late.set()
        self._process.kill()

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


def limit_process() -> int:
    """Forbid files and core dumps; return the address space in use, which limits of memory are added to."""
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (0, 0))
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 512 * _MEGABYTE


def limit_document(cpu_seconds: float, memory_bytes: int) -> None:
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
