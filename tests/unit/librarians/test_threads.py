"""Blocking work in daemon threads, which delay no exit."""

import asyncio
import contextlib
import contextvars
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from pair import errors
from pair.librarians.threads import ThreadShare, in_thread, share

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_the_result_and_the_fault_are_those_of_the_work() -> None:
    def fail() -> None:
        raise KeyError("what was raised")

    assert asyncio.run(in_thread(lambda: 42)) == 42
    with pytest.raises(KeyError, match="what was raised"):
        asyncio.run(in_thread(fail))


def test_work_sees_the_context_variables_of_the_caller() -> None:
    async def wanted() -> str:
        VARIABLE.set("set")
        return await in_thread(VARIABLE.get)

    assert asyncio.run(wanted()) == "set"


def test_many_pieces_of_work_are_done_at_once() -> None:
    """Each job waits for all others, so consecutive jobs would never end."""
    together = threading.Barrier(16)

    async def all_callers() -> list[int]:
        return await asyncio.gather(*(in_thread(lambda: together.wait(timeout=20)) for _ in range(16)))

    assert sorted(asyncio.run(all_callers())) == list(range(16))


def test_a_process_ends_although_work_does_not() -> None:
    script = """
import asyncio, threading
from pair import errors
from pair.librarians.threads import in_thread
async def main():
    try:
        await asyncio.wait_for(in_thread(threading.Event().wait), 0.1)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "given up\n"


def test_the_work_of_one_owner_takes_no_more_threads_than_its_share() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(0.02)
        with lock:
            running -= 1

    async def all_callers() -> None:
        share.set(ThreadShare("eve", 3))
        await asyncio.gather(*(in_thread(work) for _ in range(30)))

    together = threading.Event()
    asyncio.run(all_callers())
    assert most == 3


def test_work_that_blocks_all_threads_of_its_owner_delays_no_other_owner() -> None:
    release = threading.Event()

    async def all_callers() -> list[int]:
        share.set(ThreadShare("eve", 2))
        blocked = [asyncio.ensure_future(in_thread(release.wait)) for _ in range(200)]
        await asyncio.sleep(0)
        share.set(ThreadShare("ada", 2))
        answered = await asyncio.gather(*(in_thread(lambda: 42) for _ in range(100)))
        share.set(None)
        answered += await asyncio.gather(*(in_thread(lambda: 42) for _ in range(100)))
        assert not any(each.done() for each in blocked)
        release.set()
        await asyncio.gather(*blocked)
        return answered

    assert asyncio.run(all_callers()) == [42] * 200


def test_more_work_of_one_owner_than_may_wait_is_refused() -> None:
    release = threading.Event()

    async def all_callers() -> list[object]:
        share.set(ThreadShare("mallory", 1))
        asked = [asyncio.ensure_future(in_thread(release.wait)) for _ in range(400)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
        release.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    answers = asyncio.run(all_callers())
    refused = [each for each in answers if isinstance(each, errors.PairError)]
    assert {each.code for each in refused} == {"E608"}
    assert len(answers) - len(refused) == 257


def test_failed_work_leaves_nothing_in_memory() -> None:
    """Memory is freed before any garbage collection, because the body of a request may be large."""

    class Large:
        """An object that the work refers to."""

    left: list[weakref.ref[Large]] = []

    async def fail_once() -> None:
        large = Large()
        left.append(weakref.ref(large))

        def work() -> None:
            raise KeyError(large)

        with contextlib.suppress(KeyError):
            await in_thread(work)

    async def fail_often() -> None:
        for _ in range(20):
            await fail_once()
        await in_thread(lambda: None)

    gc.disable()
    try:
        asyncio.run(fail_often())
        assert sum(each() is not None for each in left) <= 1
    finally:
        gc.enable()
