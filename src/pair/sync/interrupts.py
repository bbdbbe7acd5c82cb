"""Signals during a run: work ends early, and a save never does."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
            self._deliver()

    def _deliver(self) -> None:
        for number in self._received[:2]:
            # The handler of a command leaves the process with the second one: threads may still be at work.
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(number)
        if self._received:
            raise KeyboardInterrupt
