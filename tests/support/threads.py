"""Threads that work at the same time."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def threads_running(*targets: Callable[[], object]) -> Iterator[None]:
    """Run each target in a separate thread during the block, and wait for all of them at its end."""
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def run_together(*targets: Callable[[], object]) -> None:
    """Run the targets at the same time, each in a separate thread, until all have ended."""
    with threads_running(*targets):
        pass
