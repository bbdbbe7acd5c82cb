"""Print errors, results and log lines, as text for people or JSON for programs. Nothing else prints.

Titles, file names, documents, replies of servers and models can hold characters that move the cursor, change what is
on the screen, reverse the reading direction, or hide. They are shown as escapes: `\\x1b`, `\\u202e`.

Invariants
    Text of others is escaped here, on its way out. A line stays one line, so that such text cannot add lines to a
    report; only a text of several lines is printed as one.
"""

import contextlib
import datetime
import getpass
import json
import logging
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pair.errors import PairError

_NAMES_SHOWN = 5
_PERCENT_STEP = 10
_SOURCES_WORTH_PERCENTS = 50
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Control characters, with DEL and C1; line and paragraph separators; characters that embed, override or isolate a
# direction; characters without width that join nothing; tags and other carriers of hidden text; half a surrogate pair.
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e01ef"
)
# Joiners and direction marks belong to scripts that need them, behind a letter of such a script, one at a time.
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
    """Return JSON of ASCII characters without DEL, the one control character that JSON leaves as it is."""
    return dumped.replace("\x7f", "\\u007f")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


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
        _write(sys.stderr, format_error(error) + "\n")


def print_result(*lines: str) -> None:
    """Print lines of the result to standard output."""
    _write_lines(sys.stdout, lines)


def print_text(text: str) -> None:
    """Print a result that is a text of several lines, such as a document."""
    _write(sys.stdout, escape_text(text) + "\n")


def print_piece(text: str) -> None:
    """Print a part of a result as it arrives."""
    _write(sys.stdout, escape_text(text))
    sys.stdout.flush()


def print_note(*lines: str) -> None:
    """Print lines for people to standard error."""
    _write_lines(sys.stderr, lines)


def print_progress(text: str) -> None:
    """Print a line that the next one replaces; print nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        _write(sys.stderr, f"\r\x1b[K{escape_line(text)}")
        sys.stderr.flush()


def end_progress() -> None:
    if sys.stderr.isatty():
        _write(sys.stderr, "\r\x1b[K")


def ask_password() -> str:
    """Return the password that the user types; "" where standard input is no terminal."""
    return getpass.getpass("Password of the key: ", sys.stderr) if sys.stdin is not None and sys.stdin.isatty() else ""


def ask_confirmation(question: str) -> bool | None:
    """Return the answer to a yes-or-no question; None where standard input is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    _write(sys.stderr, f"{escape_line(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _write_lines(stream: Any, lines: Sequence[str]) -> None:
    _write(stream, "".join(f"{escape_line(line)}\n" for line in lines))


def _write(stream: Any, text: str) -> None:
    """Write safe text; escape the characters that the encoding of the terminal lacks."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))


def pluralize(count: int, noun: str) -> str:
    """3, `file` -> `3 files`"""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_names(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_NAMES_SHOWN])
    return f"{shown} and {len(paths) - _NAMES_SHOWN:,} more" if len(paths) > _NAMES_SHOWN else shown


def format_size(count: float) -> str:
    """1536 -> `1.5 kB`, by thousands"""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class LogFormatter(logging.Formatter):
    """`INFO pair.http: request method='GET' status=200`, all on one line; a traceback is indented below it."""

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


class _PercentLines:
    """Prints a line at every further ten percent."""

    def __init__(self, last_percent: int = -1) -> None:
        self._last_percent = last_percent

    def update(self, done: int, total: int, whole: str, prefix: str = "") -> None:
        percent = done * 100 // max(1, total) // _PERCENT_STEP * _PERCENT_STEP
        if percent > self._last_percent:
            self._last_percent = percent
            print_note(f"{prefix}{percent}% of {whole}")


class CountProgress:
    """Shows a count out of a total: one line on a terminal, lines of percent elsewhere."""

    def __init__(self, noun: str, *, is_quiet: bool) -> None:
        self._noun = noun
        self._is_quiet = is_quiet
        self._percents = _PercentLines(0)

    def __call__(self, done: int, total: int) -> None:
        if self._is_quiet:
            return
        whole = pluralize(total, self._noun)
        print_progress(f"{done:,} of {whole}")
        if not sys.stderr.isatty():
            self._percents.update(done, total, whole)


class ProgressObserver:
    """Shows downloads and the progress of a sync: bars on a terminal, lines of percent elsewhere.

    A quiet one, for `--json`, prints notes only.
    """

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._total = 0
        self._done = 0
        self._percents = _PercentLines()
        self._bar: Any = None
        # A signal may come while its own thread holds it.
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        print_note(text)

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        if self._is_quiet:
            yield lambda count: None
        elif not sys.stderr.isatty():
            yield _start_percents(name, total_bytes, have_bytes)
        else:
            with _new_bar(is_transfer=True) as progress:
                task = progress.add_task(escape_line(name), total=total_bytes, completed=have_bytes)
                yield lambda count: progress.advance(task, count)

    def planned(self, total: int) -> None:
        if self._is_quiet:
            return
        self.close()
        self._total, self._done, self._percents = total, 0, _PercentLines()
        if sys.stderr.isatty():
            progress = _new_bar(is_transfer=False)
            progress.start()
            self._bar = progress, progress.add_task("", total=total)

    def finished(self, source_id: str) -> None:
        with self._lock:
            self._done += 1
            if self._bar is not None:
                progress, task = self._bar
                progress.update(task, advance=1, description=escape_line(source_id)[-40:])
                if self._done == self._total:
                    self.close()
            elif self._total >= _SOURCES_WORTH_PERCENTS:
                self._percents.update(self._done, self._total, pluralize(self._total, "source"))

    def close(self) -> None:
        """Remove the bar and show the cursor; sources that finish later are not shown."""
        with self._lock:
            bar, self._bar, self._total = self._bar, None, 0
        if bar is not None:
            bar[0].stop()


def _new_bar(*, is_transfer: bool) -> Any:
    """Return a progress bar of bytes, or of finished sources."""
    from rich import progress  # noqa: PLC0415 - only where there is a terminal
    from rich.console import Console  # noqa: PLC0415

    bytes_columns = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        *(bytes_columns if is_transfer else (progress.MofNCompleteColumn(),)),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=not is_transfer,
    )


def _start_percents(name: str, total_bytes: int | None, have_bytes: int) -> Callable[[int], None]:
    """Return what prints the progress of a transfer when it is given a count of further bytes."""
    done_bytes, percents = have_bytes, _PercentLines()

    def advance(count: int) -> None:
        nonlocal done_bytes
        done_bytes += count
        if total_bytes:
            percents.update(done_bytes, total_bytes, format_size(total_bytes), f"{name}: ")

    if have_bytes:
        print_note(f"{name}: resuming at {format_size(have_bytes)}")
    return advance
