"""A source that runs a command, which prints its documents as JSON lines.

The command gets the cursor of its last run as one JSON line on standard input; `null` on the first run. It prints one
object per line: a document (`id` and `text`, `path` or `url`), `deleted`, `cursor` or `complete`. A document is fetched
from its `url` unless the line has its text or path.

Invariants
    Only whole, valid lines count. The first invalid line ends the run; the lines before it count.
    `complete` counts only if the command ends with status 0.
    The command and its children end with the run, and with this process, even if it is killed.
    Memory is bounded by the longest line, not by the output.
"""

import contextlib
import json
import os
import selectors
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pair import files
from pair.clock import Clock
from pair.network import PageFault
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, SourceFault
from pair.sources.pages import describe_page_fault, find_name
from pair.values import parse_json

if TYPE_CHECKING:
    from pair.web.pages import PageClient

MAX_LINE_BYTES = 8 * 1024 * 1024
_READ_BYTES = 256 * 1024
_POLL_SECONDS = 0.1
_TAIL_BYTES = 2_000
_TAIL_LINES = 5
# A second process of the group waits for the end of a pipe that only we hold open, then kills the group. The kernel
# closes the pipe when we die. The watcher is not a child of the command, which may wait for all of its children.
_GUARD = '( {{ exec 3</dev/fd/{0}; read -r _ <&3; kill -9 0; }} </dev/null >/dev/null 2>&1 & ); exec "$@"'
_EXPECTED = 'expected an object with "id" and "text", "path" or "url", or with "deleted", "cursor" or "complete"'

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: _Id | None = None
    text: str | None = None
    path: str | None = None
    url: str | None = None
    title: str = ""
    metadata: dict[str, Any] = {}
    content_type: str = ""
    deleted: _Id | None = None
    cursor: Any = msgspec.UNSET
    complete: bool | None = None


@dataclass(frozen=True)
class CommandSource:
    """A command that runs in a folder. Relative paths that it prints are paths in this folder."""

    command: Sequence[str]
    folder: Path
    limit_seconds: float
    """Maximum time to wait for the command; the time of the caller does not count."""
    max_bytes: int
    """Size limit of a document."""
    open_client: "Callable[[], PageClient]"
    """A function that is called for each document that the command gives by its URL."""
    clock: Clock

    def read(self, cursor: Any) -> Iterator[Event]:
        """Run the command and yield its events; of two lines about one id, the later counts."""
        is_complete = False
        with _start(self.command, self.folder, cursor) as process:
            output = _CommandOutput(process, self.clock, self.clock.monotonic() + self.limit_seconds)
            try:
                for number, content in output.read_lines():
                    line = _parse(number, content)
                    is_complete = bool(line.complete) if line.complete is not None else is_complete
                    paused_at = self.clock.monotonic()
                    yield from self._to_events(line)
                    output.deadline += self.clock.monotonic() - paused_at
            except TimeoutError:
                reason = f"the command did not end within {self.limit_seconds:g} s and was stopped"
                raise SourceFault(f"{reason}{output.describe_errors()}") from None
            if status := process.wait():
                end = f"status {status}" if status > 0 else f"signal {-status} ({signal.strsignal(-status)})"
                raise SourceFault(f"the command ended with {end}{output.describe_errors()}")
        if is_complete:
            yield Complete()

    def _to_events(self, line: _Line) -> Iterator[Event]:
        if line.id is not None:
            try:
                yield self._to_item(line.id, line)
            except PageFault as fault:
                yield Failed(line.id, describe_page_fault(fault))
            except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
                yield Failed(line.id, f"{line.path!r} cannot be read: {_describe(fault)}")
        elif line.deleted is not None:
            yield Deleted(line.deleted)
        elif line.cursor is not msgspec.UNSET:
            yield Cursor(line.cursor)

    def _to_item(self, id_: str, line: _Line) -> Event:
        content_type, charset, name = line.content_type.partition(";")[0].strip().lower(), None, ""
        if line.text is not None:
            content, charset = line.text.encode(), "utf-8"
        elif line.path is not None:
            # Not `read_bytes`: do not wait for a pipe, and read at most one byte beyond the limit.
            descriptor = os.open(self.folder / line.path, os.O_RDONLY | files.CLOSE_ON_EXEC | files.NON_BLOCKING)
            with os.fdopen(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError("not a regular file")
                content, name = stream.read(self.max_bytes + 1), Path(line.path).name
        else:
            answer = self.open_client().get(line.url or "", etag=None, last_modified=None)
            content, name = answer.body, find_name(answer.url)
            content_type, charset = content_type or answer.content_type, answer.charset
        if len(content) > self.max_bytes:
            return Failed(id_, f"longer than {self.max_bytes:,} bytes")
        return Item(id_, content, name, content_type, charset, line.title, line.url or "", line.metadata)


def _parse(number: int, content: bytes) -> _Line:
    """Parse a line. Raises SourceFault."""
    try:
        line = parse_json(content, _Line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise SourceFault(f"line {number} of the output is not valid ({fault}): {_EXPECTED}") from fault
    contents = (line.text, line.path, line.url)
    kinds = [line.id is not None, line.deleted is not None, line.cursor is not msgspec.UNSET, line.complete is not None]
    is_described = any(contents) or bool(line.title or line.metadata or line.content_type)
    is_whole = contents != (None, None, None) and None in contents[:2] if line.id is not None else not is_described
    if kinds.count(True) != 1 or not is_whole:
        raise SourceFault(f"line {number} of the output is not valid: {_EXPECTED}")
    return line


def _describe(fault: OSError | ValueError) -> str:
    return files.describe_os_error(fault) if isinstance(fault, OSError) else str(fault)


# ── process ────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _start(command: Sequence[str], folder: Path, cursor: Any) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command in a process group that ends with the block."""
    watched, held = os.pipe()
    # The cursor comes from a file, so that the command may read it late or not at all.
    with open(watched), open(held, "w") as lifeline, tempfile.TemporaryFile() as standard_input:  # noqa: PTH123
        standard_input.write(json.dumps(cursor).encode() + b"\n")
        standard_input.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - the command of the user, which no shell interprets
                ["/bin/sh", "-c", _GUARD.format(watched), "sh", *command],
                cwd=folder,
                stdin=standard_input,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(watched,),
                start_new_session=True,
            )
        except (OSError, ValueError) as fault:  # ValueError: a NUL in an argument
            raise SourceFault(f"the command cannot be started in {folder}: {_describe(fault)}") from fault
        with process:
            try:
                yield process
            finally:
                lifeline.close()
                process.kill()


@dataclass
class _CommandOutput:
    """The output of a running command."""

    process: "subprocess.Popen[bytes]"
    clock: Clock
    deadline: float
    errors: bytearray = field(default_factory=bytearray)

    def read_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines with their numbers. Raises SourceFault for one that is too long or cut, TimeoutError."""
        number, line = 1, bytearray()
        for block in self._read_blocks():
            *whole, rest = block.split(b"\n")
            for part in whole:
                line += part
                self._check_length(number, line)
                if line and not line.isspace():
                    yield number, bytes(line)
                line.clear()
                number += 1
            line += rest
            self._check_length(number, line)
        try:
            status = self.process.wait(max(0.0, self.deadline - self.clock.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if line.strip() and not status:
            raise SourceFault(f"line {number} of the output does not end with a line feed, and may be cut")

    def describe_errors(self) -> str:
        """Return a colon and the end of standard error of the command; "" if it wrote nothing."""
        lines = self.errors.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        text = " ".join(" ".join(lines).split())
        printable = "".join(character if character.isprintable() else "\ufffd" for character in text)
        return f": {printable}" if printable else ""

    def _check_length(self, number: int, line: bytearray) -> None:
        if len(line) > MAX_LINE_BYTES:
            limit = f"{MAX_LINE_BYTES:,} bytes"
            raise SourceFault(f"line {number} of the output is longer than {limit}: give a large document by its path")

    def _read_blocks(self) -> Iterator[bytes]:
        """Yield the blocks of standard output, and keep the end of standard error."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout or 0, selectors.EVENT_READ, "output")
            selector.register(self.process.stderr or 0, selectors.EVENT_READ, "errors")
            while selector.get_map():
                seconds = self.deadline - self.clock.monotonic()
                if seconds <= 0:
                    raise TimeoutError
                has_ended = self.process.poll() is not None
                ready = selector.select(0 if has_ended else min(seconds, _POLL_SECONDS))
                if has_ended and not ready:
                    return  # Another process, which the command started, keeps the pipe open.
                for key, _ in ready:
                    if not (block := os.read(key.fd, _READ_BYTES)):
                        selector.unregister(key.fileobj)
                    elif key.data == "output":
                        yield block
                    else:
                        self.errors += block
                        del self.errors[:-_TAIL_BYTES]
