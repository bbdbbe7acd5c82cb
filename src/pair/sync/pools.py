"""Threads that fetch and threads that summarise, and a model that is not asked any more during a run."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Self

from pair import errors
from pair.sync.interrupts import Interrupts
from pair.sync.rules import SyncSettings

_UNREACHABLE_MODEL_TRIES = 3
_LOOK_SECONDS = 0.1
"""So soon an interrupt is noticed while work is waited for."""


class WorkerPools:
    """Threads that fetch and threads that summarise; leaving the block waits for all of them.

    Once interrupted, they begin nothing new, and `on_interrupt` is called. A second interrupt ends the waiting.
    """

    def __init__(self, policy: SyncSettings, interrupts: Interrupts, on_interrupt: Callable[[], None]) -> None:
        self._interrupts = interrupts
        self._on_interrupt = on_interrupt
        self._is_interrupted = False
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
                    self._on_interrupt()
            if future.done():
                future.result()

    def fetch(self, work: Callable[..., object], *arguments: object) -> None:
        self._fetching.append(self._fetchers.submit(self._do, work, *arguments))

    def summarise(self, work: Callable[..., object], *arguments: object) -> None:
        self._summarising.append(self._summarisers.submit(self._do, work, *arguments))

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        if not self._interrupts.is_stopping:
            work(*arguments)

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
