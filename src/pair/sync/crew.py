"""Threads that fetch and threads that summarise, and who is not asked any more during a run."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self
from urllib.parse import urlsplit

from pair import errors
from pair.clock import Clock
from pair.sync.rules import SyncPolicy

_UNREACHABLE_MODEL_TRIES = 3


class Crew:
    """Threads that fetch and threads that summarise; leaving the block waits for all of them."""

    def __init__(self, policy: SyncPolicy) -> None:
        self._fetchers = ThreadPoolExecutor(policy.url_download_concurrency, thread_name_prefix="pair-fetch")
        self._summarisers = ThreadPoolExecutor(policy.summarization_concurrency, thread_name_prefix="pair-summary")
        self._fetching: list[Future[object]] = []
        self._summarising: list[Future[object]] = []
        self._last: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                # A fetch may still hand something to the summarisers, so it is waited for first.
                for future in self._fetching:
                    future.result()
                for work, arguments in self._last:
                    self.summarise(work, *arguments)
                for future in self._summarising:
                    future.result()
        finally:
            self._fetchers.shutdown(cancel_futures=True)
            self._summarisers.shutdown(cancel_futures=True)

    def fetch(self, work: Callable[..., object], *arguments: object) -> None:
        self._fetching.append(self._fetchers.submit(work, *arguments))

    def summarise(self, work: Callable[..., object], *arguments: object) -> None:
        self._summarising.append(self._summarisers.submit(work, *arguments))

    def summarise_last(self, work: Callable[..., object], *arguments: object) -> None:
        """After all that is new: what failed before may fail again, and must not close the gate for the rest."""
        self._last.append((work, arguments))


class ModelGate:
    """Stops asking a model that cannot be reached: everything else is left for the next run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures_in_a_row = 0

    @property
    def is_closed(self) -> bool:
        return self._failures_in_a_row >= _UNREACHABLE_MODEL_TRIES

    def failed(self, fault: errors.ModelError) -> None:
        with self._lock:
            if fault.code == errors.MODEL_UNREACHABLE:
                self._failures_in_a_row += 1

    def succeeded(self) -> None:
        with self._lock:
            self._failures_in_a_row = 0


class RestingHosts:
    """Hosts that asked for a pause during this run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, url: str, pause_seconds: float | None) -> None:
        if pause_seconds:
            self._until[_host(url)] = self._clock.monotonic() + pause_seconds

    def rests(self, url: str) -> bool:
        return self._until.get(_host(url), 0.0) > self._clock.monotonic()


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return url
