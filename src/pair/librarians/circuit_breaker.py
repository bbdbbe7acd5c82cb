"""A circuit breaker: a librarian that fails too often is not asked for a while.

Invariants
    Every response with an error of the server kind counts, raised or not; errors of the caller do not.
"""

import threading
from collections import deque

from pair.clock import Clock
from pair.librarians.contract import ErrorCode, Response
from pair.librarians.settings import LibrariansSettings

FAILURES = frozenset(
    {
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.TIMEOUT,
        ErrorCode.SERVICE_UNAVAILABLE,
        ErrorCode.DATA_SOURCE_ERROR,
        ErrorCode.AI_UNAVAILABLE,
        ErrorCode.DELEGATION_FAILED,
    }
)


class CircuitBreaker:
    """Closed, open or half-open: half-open after a while, then successes close it and one failure opens it again.

    May be used from several threads at once.
    """

    def __init__(self, settings: LibrariansSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._calls: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._open_until: float | None = None
        self._successes = 0
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        with self._lock:
            return self._state(self._clock.monotonic())

    def refusal(self) -> Response | None:
        """Return why the librarian is not asked now; None when it may be."""
        with self._lock:
            if self._open_until is None:
                return None
            seconds = self._open_until - self._clock.monotonic()
        if seconds <= 0:
            return None
        return Response.failing(
            ErrorCode.SERVICE_UNAVAILABLE,
            "It failed too often of late, and is not asked for a while",
            recoverable=True,
            suggestion="Try again later, or ask somebody else",
            details={"retryAfter": max(1, round(seconds))},
        )

    def note(self, response: Response) -> None:
        """Count a response of the librarian."""
        failed = response.error is not None and response.error.code in FAILURES
        with self._lock:
            now = self._clock.monotonic()
            state = self._state(now)
            if state == "closed":
                self._count(now, failed=failed)
            elif state == "half-open":
                self._try(now, failed=failed)
            # A call that began before the breaker opened says nothing new.

    def _state(self, now: float) -> str:
        if self._open_until is None:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def _count(self, now: float, *, failed: bool) -> None:
        calls, settings = self._calls, self._settings
        calls.append((now, failed))
        self._failures += failed
        while calls[0][0] <= now - settings.breaker_window_seconds:
            self._failures -= calls.popleft()[1]
        if (
            failed
            and len(calls) >= settings.breaker_min_calls
            and self._failures >= settings.breaker_failure_ratio * len(calls)
        ):
            self._open(now)

    def _try(self, now: float, *, failed: bool) -> None:
        if failed:
            self._open(now)
            return
        self._successes += 1
        if self._successes >= self._settings.breaker_successes:
            self._open_until = None

    def _open(self, now: float) -> None:
        self._open_until = now + self._settings.breaker_open_seconds
        self._successes = 0
        self._calls.clear()
        self._failures = 0
