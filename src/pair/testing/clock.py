"""A clock that a test sets."""

import datetime
from collections.abc import Callable

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


class ManualClock:
    """A clock that moves only when a test moves it. `on_look` is called whenever the time is read."""

    def __init__(self, now: datetime.datetime = NOON) -> None:
        self.instant = now
        self._monotonic = 1000.0
        self.on_look: Callable[[], None] = lambda: None

    def now(self) -> datetime.datetime:
        self.on_look()
        return self.instant

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self.instant += datetime.timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the time of day, in either direction."""
        self.instant += datetime.timedelta(seconds=seconds)
