"""The only place that knows the time or sleeps."""

import datetime
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime.datetime:
        """The current instant, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def to_timestamp(instant: datetime.datetime) -> str:
    """UTC instant -> `2026-01-31T12:00:00Z`."""
    return instant.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pause(seconds: float) -> None:
    time.sleep(seconds)
