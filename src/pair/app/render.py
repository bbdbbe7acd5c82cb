"""Errors and results as text for people or JSON for programs; the only place that prints.

Invariants
    What others wrote is escaped here, on its way out (terminal.py). A line that is handed over stays one line, so that
    nobody can add lines of their own to a report; only what is a text of several lines is printed as one.
"""

import contextlib
import getpass
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from pair.app.terminal import escape_json, escape_line, escape_text
from pair.errors import PairError

_NAMES_SHOWN = 5
_PERCENT_STEP = 10
_SOURCES_WORTH_PERCENTS = 50


def error_text(error: PairError) -> str:
    """The layout of the specification's error catalogue: message, explanation, what to do; then the code."""
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
    """One value of a stream of them."""
    sys.stdout.write(escape_json(json.dumps(value, ensure_ascii=True)) + "\n")
    sys.stdout.flush()


def print_error(error: PairError, *, as_json: bool) -> None:
    if as_json:
        print_json(error.to_json())
    else:
        _write(sys.stderr, error_text(error) + "\n")


def print_result(*lines: str) -> None:
    """What a command was asked for, line by line."""
    _write_lines(sys.stdout, lines)


def print_text(text: str) -> None:
    """A text of several lines that a command was asked for, such as a document."""
    _write(sys.stdout, escape_text(text) + "\n")


def binary_output() -> BinaryIO:
    """Standard output, for what a command was asked for and is no text."""
    return sys.stdout.buffer


def print_piece(text: str) -> None:
    """A part of a result, as it comes."""
    _write(sys.stdout, escape_text(text))
    sys.stdout.flush()


def print_note(*lines: str) -> None:
    """What a person should know besides, line by line."""
    _write_lines(sys.stderr, lines)


def print_progress(text: str) -> None:
    """A line that the next one replaces; nothing where nobody watches."""
    if sys.stderr.isatty():
        _write(sys.stderr, f"\r\x1b[K{escape_line(text)}")
        sys.stderr.flush()


def end_progress() -> None:
    if sys.stderr.isatty():
        _write(sys.stderr, "\r\x1b[K")


def ask_password() -> str:
    """Empty where nobody can be asked."""
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
    """Write text that is safe to show; what the encoding of the terminal lacks is escaped."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def names(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_NAMES_SHOWN])
    return f"{shown} and {len(paths) - _NAMES_SHOWN:,} more" if len(paths) > _NAMES_SHOWN else shown


def size(count: float) -> str:
    """1536 -> `1.5 kB`, by thousands"""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class TerminalObserver:
    """Lines and a progress bar on a terminal; lines and percents elsewhere."""

    def say(self, text: str) -> None:
        print_note(text)

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        shown = _bar if sys.stderr.isatty() else _percent_lines
        with shown(name, total_bytes, have_bytes) as advance:
            yield advance


class QuietObserver:
    """For `--json`: what a person should know still goes to stderr, progress nowhere."""

    def say(self, text: str) -> None:
        print_note(text)

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None

    def planned(self, total: int) -> None:
        pass

    def finished(self, source_id: str) -> None:
        pass

    def close(self) -> None:
        pass


class CountProgress:
    """So many of so many: one line on a terminal, lines of percent elsewhere."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._said_percent = 0

    def __call__(self, done: int, total: int) -> None:
        print_progress(f"{done:,} of {counted(total, self._noun)}")
        percent = done * 100 // max(1, total) // _PERCENT_STEP * _PERCENT_STEP
        if percent > self._said_percent and not sys.stderr.isatty():
            self._said_percent = percent
            print_note(f"{percent}% of {counted(total, self._noun)}")


class SyncProgress:
    """How far a sync is: a bar on a terminal, lines of percent elsewhere."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._said_percent = -1
        self._bar: Any = None
        # A signal may come while its own thread holds it.
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        print_note(text)

    def planned(self, total: int) -> None:
        self.close()
        self._total, self._done, self._said_percent = total, 0, -1
        if sys.stderr.isatty():
            self._bar = _count_bar(total)

    def finished(self, source_id: str) -> None:
        with self._lock:
            self._done += 1
            if self._bar is not None:
                progress, task = self._bar
                progress.update(task, advance=1, description=escape_line(source_id)[-40:])
                if self._done == self._total:
                    self.close()
                return
            percent = self._done * 100 // max(1, self._total) // _PERCENT_STEP * _PERCENT_STEP
            if percent > self._said_percent and self._total >= _SOURCES_WORTH_PERCENTS:
                self._said_percent = percent
                print_note(f"{percent}% of {counted(self._total, 'source')}")

    def close(self) -> None:
        """Take the bar off and show the cursor; what is finished later is not told."""
        with self._lock:
            bar, self._bar, self._total = self._bar, None, 0
        if bar is not None:
            bar[0].stop()


def _count_bar(total: int) -> tuple[Any, Any]:
    from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress, progress.add_task("", total=total)


@contextlib.contextmanager
def _bar(name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(escape_line(name), total=total_bytes, completed=have_bytes)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def _percent_lines(name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
    done_bytes, said_percent = have_bytes, -1

    def advance(count: int) -> None:
        nonlocal done_bytes, said_percent
        done_bytes += count
        if not total_bytes:
            return
        percent = done_bytes * 100 // total_bytes // _PERCENT_STEP * _PERCENT_STEP
        if percent > said_percent:
            said_percent = percent
            print_note(f"{name}: {percent}% of {size(total_bytes)}")

    if have_bytes:
        print_note(f"{name}: resuming at {size(have_bytes)}")
    yield advance
