"""Threads and timing of a sync: worker pools, signals, and runs at every tick and after changes."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from pair import errors
from pair.clock import Clock
from pair.sync.contract import SyncObserver
from pair.sync.patterns import IGNORE_FILES
from pair.sync.rules import SyncSettings

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNREACHABLE_MODEL_TRIES = 3
_LOOK_SECONDS = 0.1
"""Time after which a waiting run notices an interrupt."""
_WATCH_MILLISECONDS = 400
_SHARES_PER_THREAD = 32
_MOST_TOGETHER = 50
"""Maximum number of tasks for a thread at a time: few, so that the run does not wait for one thread."""

_Task = TypeVar("_Task")


class Interrupts:
    """Signals that came during a run. They are deferred until everything is saved.

    After the first, a run begins nothing new. After the second, it does not wait for work in progress either.
    """

    def __init__(self) -> None:
        self._received: list[int] = []

    @property
    def is_stopping(self) -> bool:
        return bool(self._received)

    @property
    def is_abandoning(self) -> bool:
        return len(self._received) > 1

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Defer signals of the main thread while the block runs, then deliver them and raise KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        is_holding = True

        def note(number: int, frame: object) -> None:
            if is_holding:
                self._received.append(number)
            elif callable(handler := handlers[signal.Signals(number)]):
                handler(number, frame)  # type: ignore[arg-type]

        held = [number for number, handler in handlers.items() if handler is not None and handler != signal.SIG_IGN]
        try:
            for number in held:
                signal.signal(number, note)
            yield
        finally:
            is_holding = False
            for number in held:
                signal.signal(number, handlers[number])
            for received in self._received[:2]:
                # The handler of a command ends the process at the second signal: threads may still be running.
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(received)
            if self._received:
                raise KeyboardInterrupt


class WorkerPools:
    """Threads that fetch and threads that summarise. The end of the block waits for all of them.

    After an interrupt, they start no new work, and notify the observer. A second interrupt ends the waiting.
    """

    def __init__(self, settings: SyncSettings, interrupts: Interrupts, observer: SyncObserver) -> None:
        self._interrupts = interrupts
        self._observer = observer
        self._is_interrupted = False
        self._summariser_count = settings.summarization_concurrency
        self._fetchers = ThreadPoolExecutor(settings.url_download_concurrency, thread_name_prefix="pair-fetch")
        self._summarisers = ThreadPoolExecutor(settings.summarization_concurrency, thread_name_prefix="pair-summary")
        self._fetching: list[Future[object]] = []
        self._summarising: list[Future[object]] = []
        self._last: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                # Wait for fetches first, because they may add work for the summarisers.
                self._wait_for(self._fetching)
                for work, arguments in self._last:
                    self.summarise(work, *arguments)
                self._wait_for(self._summarising)
        finally:
            for threads in (self._fetchers, self._summarisers):
                threads.shutdown(wait=not self._interrupts.is_abandoning, cancel_futures=True)

    def _wait_for(self, futures: list[Future[object]]) -> None:
        for future in futures:
            while not self._interrupts.is_abandoning and wait([future], _LOOK_SECONDS).not_done:
                if self._interrupts.is_stopping and not self._is_interrupted:
                    self._is_interrupted = True
                    self._observer.say("finishing work in progress; press Ctrl-C again to stop at once")
            if future.done():
                future.result()

    def fetch(self, work: Callable[..., object], *arguments: object) -> None:
        self._fetching.append(self._fetchers.submit(self._do, work, *arguments))

    def summarise(self, work: Callable[..., object], *arguments: object) -> None:
        self._summarising.append(self._summarisers.submit(self._do, work, *arguments))

    def summarise_each(self, work: Callable[[_Task], object], tasks: Sequence[_Task]) -> None:
        """Do the work for each task. A thread gets many tasks at once, because each waiting task costs memory."""
        size = min(_MOST_TOGETHER, len(tasks) // (self._summariser_count * _SHARES_PER_THREAD) + 1)

        def do_each(batch: Sequence[_Task]) -> None:
            for task in batch:
                self._do(work, task)

        for start in range(0, len(tasks), size):
            self._summarising.append(self._summarisers.submit(do_each, tasks[start : start + size]))

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        if not self._interrupts.is_stopping:
            work(*arguments)

    def summarise_last(self, work: Callable[..., object], *arguments: object) -> None:
        """Summarise after all new sources: a source that failed before may fail again, and close the gate."""
        self._last.append((work, arguments))


class ModelGate:
    """A gate that closes when a model cannot be reached; the rest waits for the next run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures_in_a_row = 0

    @property
    def is_closed(self) -> bool:
        return self._failures_in_a_row >= _UNREACHABLE_MODEL_TRIES

    def note_failure(self, fault: errors.ModelError) -> None:
        with self._lock:
            if fault.code == errors.MODEL_UNREACHABLE:
                self._failures_in_a_row += 1

    def note_success(self) -> None:
        with self._lock:
            self._failures_in_a_row = 0


@dataclass
class Ticker:
    """A timer that calls `run` at once and then every `tick_seconds`, from start to start.

    `wait(seconds)` returns True to stop; it may return early, which makes the next run start early.
    """

    run: Callable[[], object]
    wait: Callable[[float], bool]
    on_error: Callable[[Exception], None]
    clock: Clock
    tick_seconds: float
    runs: int = 0
    skipped: int = 0

    def loop(self) -> None:
        while True:
            began = self.clock.monotonic()
            try:
                self.run()
                self.runs += 1
            except errors.ConflictError as busy:
                self.skipped += 1
                logger.info("tick skipped", extra={"reason": busy.message})
            except Exception as fault:  # noqa: BLE001 - a long-running process outlives a failed run
                self.on_error(fault)
            elapsed = self.clock.monotonic() - began
            if self.wait(max(0.0, self.tick_seconds - elapsed)):
                return


class Watcher:
    """A watcher of source folders and links files. It also notices changes between two calls of `wait`.

    `pair install` may replace a whole folder, and an editor a links file: `stat` shows both.
    """

    def __init__(
        self, folders: Sequence[Path], links_files: Sequence[Path], stop: threading.Event, clock: Clock
    ) -> None:
        self._folders = folders
        self._links_files = links_files
        self._stop = stop
        self._clock = clock
        self._seen = self._look()
        self._changes = self._watch()

    def wait(self, seconds: float) -> bool:
        """Wait; return early after a change. Return True to stop."""
        deadline = self._clock.monotonic() + seconds
        for has_changed in self._changes:
            seen = self._look()
            if self._stop.is_set():
                return True
            if seen != self._seen:
                is_other_folder = seen[0] != self._seen[0]
                self._seen = seen
                if is_other_folder:
                    self._changes = self._watch()
                return False
            if has_changed or self._clock.monotonic() >= deadline:
                return False
        return True

    def _look(self) -> tuple[list[object], list[object]]:
        return (
            [_identity(folder, content=False) for folder in self._folders],
            [_identity(path, content=True) for path in self._links_files],
        )

    def _watch(self) -> Iterator[bool]:
        """Yield after each check whether files may have changed since the last one. End when the watcher stops."""
        while not self._stop.is_set():
            if any(folder.is_dir() for folder in self._folders):
                # A folder may vanish at any moment; the next check notices it.
                with contextlib.suppress(FileNotFoundError):
                    yield from self._follow_notifications()
            self._stop.wait(_WATCH_MILLISECONDS / 1000)
            yield False

    def _follow_notifications(self) -> Iterator[bool]:
        """Yield changes from notifications. Hidden files are not sources."""
        import watchfiles  # noqa: PLC0415 - only where it is used

        # Changes between the last run and the start of notifications cause no notification.
        may_have_missed = True
        # Notifications about a folder behind a link have its real path.
        folders = [os.path.realpath(folder) for folder in self._folders if folder.is_dir()]
        for changes in watchfiles.watch(
            *folders,
            stop_event=self._stop,
            watch_filter=lambda _change, path: any(_is_seen(path, folder) for folder in folders),
            rust_timeout=_WATCH_MILLISECONDS,
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            yield may_have_missed or bool(changes)
            may_have_missed = False


def _identity(path: Path, *, content: bool) -> object:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size) if content else (seen.st_dev, seen.st_ino)


def _is_seen(path: str, folder: str) -> bool:
    """Return whether a path is below a folder and not hidden there. Ignore files count, because they select files."""
    below = os.path.relpath(path, folder)
    return Path(below).name in IGNORE_FILES or not any(part.startswith(".") for part in Path(below).parts)
