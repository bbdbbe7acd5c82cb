"""When and in which threads a sync works: worker pools, signals, runs at every tick and when a source changes."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
"""So soon an interrupt is noticed while work is waited for."""
_WATCH_MILLISECONDS = 400
_SHARES_PER_THREAD = 32
_MOST_TOGETHER = 50
"""So few that the last ones of a thread do not keep the run waiting."""

_Task = TypeVar("_Task")


class Interrupts:
    """Signals that came during a run. They are held back until everything is saved.

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
        """Hold back signals while the block runs, then deliver them and raise KeyboardInterrupt.

        Only the main thread gets signals; in another one, nothing is to be held back.
        """
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
                # The handler of a command leaves the process with the second one: threads may still be at work.
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(received)
            if self._received:
                raise KeyboardInterrupt


class WorkerPools:
    """Threads that fetch and threads that summarise; leaving the block waits for all of them.

    Once interrupted, they begin nothing new, and say so to the observer. A second interrupt ends the waiting.
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
                # A fetch may still hand something to the summarisers, so it is waited for first.
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
        """Do the work for each task. Many tasks are handed to a thread together: each costs memory while it waits."""
        size = min(_MOST_TOGETHER, len(tasks) // (self._summariser_count * _SHARES_PER_THREAD) + 1)
        for start in range(0, len(tasks), size):
            batch = tasks[start : start + size]
            self._summarising.append(self._summarisers.submit(self._do_each, work, batch))

    def _do_each(self, work: Callable[[_Task], object], tasks: Sequence[_Task]) -> None:
        for task in tasks:
            self._do(work, task)

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        if not self._interrupts.is_stopping:
            work(*arguments)

    def summarise_last(self, work: Callable[..., object], *arguments: object) -> None:
        """Summarise after everything new: a source that failed before may fail again, and close the gate."""
        self._last.append((work, arguments))


class ModelGate:
    """Stops asking a model that cannot be reached: everything else is left for the next run."""

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


class Ticker:
    """Calls `run` at once and then every `tick_seconds`, from start to start.

    `wait(seconds)` returns True to stop; it may return early, which makes the next run start early.
    """

    def __init__(
        self,
        run: Callable[[], object],
        wait: Callable[[float], bool],
        on_error: Callable[[Exception], None],
        clock: Clock,
        tick_seconds: float,
    ) -> None:
        self._run = run
        self._wait = wait
        self._on_error = on_error
        self._clock = clock
        self._tick_seconds = tick_seconds
        self.runs = 0
        self.skipped = 0

    def loop(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                self._run()
                self.runs += 1
            except errors.ConflictError as busy:
                self.skipped += 1
                logger.info("tick skipped", extra={"reason": busy.message})
            except Exception as fault:  # noqa: BLE001 - a long-running process outlives a failed run
                self._on_error(fault)
            elapsed = self._clock.monotonic() - began
            if self._wait(max(0.0, self._tick_seconds - elapsed)):
                return


class Watcher:
    """Notices changes in the folders of sources and of links files, also between two calls of `wait`.

    A folder itself may be replaced as a whole (`pair install` does that) and a links file by an editor: both are
    noticed by what `stat` says of them.
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
        """Returns early when something changed; True when it is time to stop."""
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
        """A look at a time; True when files may have changed since the last. Ends when it is time to stop."""
        while not self._stop.is_set():
            if any(folder.is_dir() for folder in self._folders):
                # A folder may vanish at any moment; the next look says so.
                with contextlib.suppress(FileNotFoundError):
                    yield from self._follow_notifications()
            self._stop.wait(_WATCH_MILLISECONDS / 1000)
            yield False

    def _follow_notifications(self) -> Iterator[bool]:
        """Hidden files are no sources."""
        import watchfiles  # noqa: PLC0415 - only where it is used

        # What changed between the last run and the moment that notifications begin raised none.
        may_have_missed = True
        # A folder behind a link is notified of under its real path.
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
    """Return whether a path is below a folder and not hidden there. An ignore file decides what is seen."""
    below = os.path.relpath(path, folder)
    return Path(below).name in IGNORE_FILES or not any(part.startswith(".") for part in Path(below).parts)
