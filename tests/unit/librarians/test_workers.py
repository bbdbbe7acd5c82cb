"""Blocking work in threads that nobody has to wait for."""

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from pair.librarians.workers import in_thread

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_the_result_and_the_fault_are_those_of_the_work() -> None:
    def fail() -> None:
        raise KeyError("what was raised")

    assert asyncio.run(in_thread(lambda: 42)) == 42
    with pytest.raises(KeyError, match="what was raised"):
        asyncio.run(in_thread(fail))


def test_work_sees_the_context_variables_of_whoever_wants_it() -> None:
    async def wanted() -> str:
        VARIABLE.set("set")
        return await in_thread(VARIABLE.get)

    assert asyncio.run(wanted()) == "set"


def test_many_pieces_of_work_are_done_at_once() -> None:
    """Each waits for all others: one after another they would never end."""
    together = threading.Barrier(16)

    async def everybody() -> list[int]:
        return await asyncio.gather(*(in_thread(lambda: together.wait(timeout=20)) for _ in range(16)))

    assert sorted(asyncio.run(everybody())) == list(range(16))


def test_more_work_than_threads_is_done_all_the_same() -> None:
    async def everybody() -> list[int]:
        return await asyncio.gather(*(in_thread(lambda number=number: number) for number in range(1000)))  # type: ignore[misc]

    assert asyncio.run(everybody()) == list(range(1000))


def test_a_process_ends_although_work_does_not() -> None:
    script = """
import asyncio, threading
from pair.librarians.workers import in_thread
async def main():
    try:
        await asyncio.wait_for(in_thread(threading.Event().wait), 0.1)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "given up\n"
