"""Print errors, results, progress and log lines, as text or as JSON. Nothing else prints.

Titles, file names, documents and replies of servers and models can hold characters that move the cursor, overwrite
the screen, reverse the reading direction, or hide. They are printed as escapes: `\\x1b`, `\\u202e`.

Invariants
    Untrusted text is escaped here, when it is printed. A line stays one line, so that such text cannot add lines to
    a report; only `print_text` and `print_piece` keep line breaks.
"""

import contextlib
import datetime
import getpass
import json
import logging
import math
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TextIO

from pair.errors import PairError

_NAMES_SHOWN = 5
_BOLD, _RED = 1, 31
_PERCENT_STEP = 10
_SECONDS_BETWEEN_NOTES = 10.0
_SECONDS_BEFORE_BAR = 1.0
_SLOW_RATE = 10
"""A lower rate is shown with a decimal."""
_SOURCES_WORTH_PERCENTS = 50
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Control characters, with DEL and C1; line and paragraph separators; characters that embed, override or isolate a
# direction; characters without width that join nothing; tags and other carriers of hidden text; half a surrogate pair.
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e01ef"
)
# Joiners and direction marks are allowed one at a time, after a letter of a script that needs them.
_MARKS = "\u061c\u200c-\u200f"
_STRAY_MARK = f"(?<![^\x00-\x7f{_MARKS}])[{_MARKS}]"
_IN_TEXT = re.compile(f"[{_UNSAFE}]|{_STRAY_MARK}")
_IN_LINE = re.compile(f"[{_UNSAFE}\t\n]|{_STRAY_MARK}")


def escape_line(text: str) -> str:
    """Return the text as one line: line breaks and tabs are escaped too."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def escape_text(text: str) -> str:
    """Return the text with its lines and tabs."""
    return _IN_TEXT.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(dumped: str) -> str:
    """Return JSON of ASCII characters without DEL, the one control character that JSON does not escape."""
    return dumped.replace("\x7f", "\\u007f")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


class SafeLine(NamedTuple):
    """A line whose untrusted parts are already escaped."""

    text: str


Line = str | SafeLine


def style(text: str, *, stream: TextIO | None = None, code: int = _BOLD) -> SafeLine:
    """Return the line escaped; on a terminal also bold, or in the style of another SGR code."""
    safe = escape_line(text)
    return SafeLine(f"\x1b[{code}m{safe}\x1b[0m" if safe and is_styled(stream or sys.stdout) else safe)


def join_line(*parts: Line) -> SafeLine:
    """Join parts into one line, and escape the parts that are not safe yet."""
    return SafeLine("".join(escape_line(part) if isinstance(part, str) else part.text for part in parts))


def is_styled(stream: TextIO) -> bool:
    """Return whether bold and colours may be written to a stream."""
    variables = os.environ  # noqa: TID251 - conventions of terminals, not settings of pair
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"


def format_error(error: PairError) -> str:
    """Return message, explanation, hints and code, laid out as in the error catalogue."""
    lines = [f"Error: {error.message}", ""]
    if error.explanation:
        lines += [*error.explanation_lines, ""]
    if error.hints:
        mark = "• " if len(error.hints) > 1 else ""
        lines += [error.lead, *(f"  {mark}{hint}" for hint in error.hints), ""]
    return "\n".join(escape_line(line) for line in [*lines, f"Code: {error.code}"])


def print_json(value: Any) -> None:
    sys.stdout.write(escape_json(json.dumps(value, indent=2, ensure_ascii=True)) + "\n")


def print_json_line(value: Any) -> None:
    """Print one value of a stream."""
    sys.stdout.write(escape_json(json.dumps(value, ensure_ascii=True)) + "\n")
    sys.stdout.flush()


def print_error(error: PairError, *, as_json: bool) -> None:
    if as_json:
        print_json(error.to_json())
    else:
        word = style("Error:", stream=sys.stderr, code=_RED).text
        _write(sys.stderr, f"{word}{format_error(error).removeprefix('Error:')}\n")


def print_result(*lines: Line) -> None:
    """Print lines of the result to standard output."""
    _write_lines(sys.stdout, lines)


def print_text(text: str) -> None:
    """Print a result that is a text of several lines, such as a document."""
    _write(sys.stdout, escape_text(text) + "\n")


def print_piece(text: str) -> None:
    """Print a part of a result as it arrives."""
    _write(sys.stdout, escape_text(text))
    sys.stdout.flush()


def print_note(*lines: Line) -> None:
    """Print lines to standard error."""
    _write_lines(sys.stderr, lines)


def ask_password() -> str:
    """Return the password that the user types; "" if standard input is not a terminal."""
    return getpass.getpass("Password of the key: ", sys.stderr) if sys.stdin is not None and sys.stdin.isatty() else ""


def ask_confirmation(question: str) -> bool | None:
    """Return the answer to a yes-or-no question; None if standard input is not a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    _write(sys.stderr, f"{escape_line(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _write_lines(stream: Any, lines: Sequence[Line]) -> None:
    _write(stream, "".join(f"{join_line(line).text}\n" for line in lines))


def _write(stream: Any, text: str) -> None:
    """Write safe text; escape the characters that the encoding of the terminal lacks."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: 3, `file` -> `3 files`; 2, `query` -> `2 queries`."""
    many = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def join_names(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_NAMES_SHOWN])
    return f"{shown} and {len(paths) - _NAMES_SHOWN:,} more" if len(paths) > _NAMES_SHOWN else shown


def format_size(count: float) -> str:
    """Return a size in decimal units: 1536 -> `1.5 kB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class LogFormatter(logging.Formatter):
    """A formatter of log lines, `INFO pair.http: request method='GET' status=200`, with indented tracebacks."""

    def __init__(self, *, with_time: bool = False) -> None:
        super().__init__(("%(asctime)s " if with_time else "") + "%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging names it
        fields = [f"{key}={value!r}" for key, value in log_fields(record).items()]
        return escape_line(" ".join([super().formatMessage(record), *fields]))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return textwrap.indent(escape_text(super().formatException(ei)), "  ")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - as above
        return format_log_time(record)


def log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a log call added to its record."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def format_log_time(record: logging.LogRecord) -> str:
    """Return the time like `2026-01-31T12:00:00.000Z`."""
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Progress:
    """A count with its rate and the time left: a bar on a terminal, at most a line a second elsewhere.

    Without a count, a bar with the elapsed time appears after a second. Use it as a context manager, so that the
    terminal gets its cursor back however the block ends.
    """

    def __init__(self, noun: str, *, is_quiet: bool, label: str = "") -> None:
        self._noun = noun
        self._is_quiet = is_quiet
        self._label = escape_line(label)
        self._first: tuple[float, int] | None = None
        self._noted_at = time.perf_counter()
        self._noted_percent = 0
        self._bar: Any = None
        self._lock = threading.RLock()
        self._idle = threading.Timer(_SECONDS_BEFORE_BAR, self._show_bar, (0, None, "", self._label))
        self._idle.daemon = True

    def __enter__(self) -> Self:
        if not self._is_quiet and sys.stderr.isatty():
            self._idle.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, done: int, total: int | None, detail: str = "") -> None:
        if self._is_quiet:
            return
        now = time.perf_counter()
        began, before = self._first = self._first or (now, done)
        rate = (done - before) / (now - began) if now - began >= 1 else 0
        pace = format_size(rate) if self._noun == "byte" else f"{rate:,.{int(rate < _SLOW_RATE)}f}"
        speed = f", {pace}/s" if rate else ""
        if total and rate and done < total:
            speed += f", {math.ceil((total - done) / rate):,} s left"
        if sys.stderr.isatty():
            count = f"{self._amount(done)} of {self._format(total)}" if total else self._format(done)
            self._show_bar(done, total, count + speed, self._label + escape_line(detail)[-40:])
        elif total:
            percent = done * 100 // total // _PERCENT_STEP * _PERCENT_STEP
            if percent > self._noted_percent and (done == total or now - self._noted_at >= 1):
                self._noted_percent, self._noted_at = percent, now
                print_note(f"{self._label}{percent}% of {self._format(total)}{speed}")
        elif now - self._noted_at >= _SECONDS_BETWEEN_NOTES and not self._noted_percent:
            self._noted_at = now
            print_note(f"{self._label}{self._format(done)}")

    def close(self) -> None:
        """Remove the bar and show the cursor."""
        self._idle.cancel()
        with self._lock:
            bar, self._bar, self._is_quiet = self._bar, None, True
        if bar is not None:
            bar[0].stop()

    def _show_bar(self, done: int, total: int | None, count: str, label: str) -> None:
        self._idle.cancel()
        with self._lock:
            if self._is_quiet:
                return
            if self._bar is None:
                bar = _new_bar()
                bar.start()
                self._bar = bar, bar.add_task(label, total=total or None, count=count)
            bar, task = self._bar
            bar.update(task, completed=done, total=total or None, count=count, description=label)

    def _amount(self, count: int) -> str:
        return format_size(count) if self._noun == "byte" else f"{count:,}"

    def _format(self, count: int) -> str:
        return format_size(count) if self._noun == "byte" else pluralize(count, self._noun)


class ProgressObserver:
    """The progress of downloads and syncs. A quiet one, for `--json`, prints notes only."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._total = 0
        self._done = 0
        self._progress: Progress | None = None
        # A signal handler may need the lock while its own thread holds it.
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        print_note(text)

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        done_bytes = have_bytes
        if have_bytes and not self._is_quiet:
            print_note(f"{name}: resuming at {format_size(have_bytes)}")
        with Progress("byte", is_quiet=self._is_quiet, label=f"{name}: ") as progress:

            def advance(count: int) -> None:
                nonlocal done_bytes
                done_bytes += count
                progress(done_bytes, total_bytes)

            yield advance

    def planned(self, total: int, phase: str = "reading") -> None:
        self.close()
        is_short = total < _SOURCES_WORTH_PERCENTS and not sys.stderr.isatty()
        self._total, self._done = total, 0
        self._progress = Progress("source", is_quiet=self._is_quiet or is_short or not total, label=f"{phase} ")
        self._progress(0, total)

    def finished(self, source_id: str) -> None:
        with self._lock:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, source_id)
                if self._done == self._total:
                    self.close()

    def close(self) -> None:
        """Remove the bar and show the cursor; sources that finish later are not shown."""
        with self._lock:
            progress, self._progress = self._progress, None
        if progress is not None:
            progress.close()


def _new_bar() -> Any:
    from rich import progress  # noqa: PLC0415 - only where there is a terminal
    from rich.console import Console  # noqa: PLC0415

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[count]}", markup=False),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
