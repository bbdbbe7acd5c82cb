"""Run again every tick: never two at once, never stopped by an error."""

import logging
from collections.abc import Callable

from pair import errors
from pair.clock import Clock

logger = logging.getLogger(__name__)


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
            self._tick()
            elapsed = self._clock.monotonic() - began
            if self._wait(max(0.0, self._tick_seconds - elapsed)):
                return

    def _tick(self) -> None:
        try:
            self._run()
            self.runs += 1
        except errors.ConflictError as busy:
            self.skipped += 1
            logger.info("tick skipped", extra={"reason": busy.message})
        except Exception as fault:  # noqa: BLE001 - a long-running process outlives a failed run
            self._on_error(fault)
