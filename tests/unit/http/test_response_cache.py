"""Cached responses expire with their version, version checks are shared, and repeated requests run once."""

import asyncio

import pytest
from starlette.responses import Response

from pair.app.http.response_cache import CachedResponse, Idempotency, ResponseCache, SharedRuns
from pair.app.kb_access import Version
from pair.testing.clock import ManualClock


class Store:
    """A store that returns its version when the test allows it."""

    def __init__(self) -> None:
        self.number = 1
        self.looks = 0
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    async def look(self) -> Version:
        self.looks += 1
        seen = self.number, "commit"
        self.begun.set()
        await self.release.wait()
        return seen


def test_a_cancelled_caller_does_not_cancel_the_shared_lookup():
    async def story() -> None:
        store = Store()
        runs = SharedRuns()
        leaving = asyncio.ensure_future(runs.next("a", store.look))
        await store.begun.wait()
        staying = asyncio.ensure_future(runs.next("a", store.look))
        await asyncio.sleep(0)
        leaving.cancel()
        store.release.set()
        assert await staying == (1, "commit")

    asyncio.run(story())


def test_a_failed_lookup_fails_only_for_the_callers_that_shared_it():
    async def story() -> None:
        is_away = True

        async def look() -> Version:
            if is_away:
                raise ConnectionError
            return 7, "commit"

        runs = SharedRuns()
        outcomes = await asyncio.gather(*(runs.next("a", look) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in outcomes] == [ConnectionError] * 3
        is_away = False
        assert await runs.next("a", look) == (7, "commit")

    asyncio.run(story())


def known(size: int = 10) -> CachedResponse:
    return CachedResponse("a", None, (1, "commit"), 1, b"x" * size)


def test_what_was_not_asked_for_longest_is_forgotten_first():
    cache = ResponseCache()
    for number in range(1001):
        cache.put(b"%d" % number, known())
        cache.get(b"0")
    assert cache.get(b"0") is not None
    assert cache.get(b"1") is None


def test_only_the_time_of_a_cached_response_changes():
    json = b'{"kb_id":"null","took_ms":null,"results":[{"content":"\\"took_ms\\":null","took_ms":null}]}'
    written = CachedResponse("null", None, (1, "commit"), 1, json).to_bytes(1.23456)
    assert written == json.replace(b'"took_ms":null', b'"took_ms":1.235', 1)


@pytest.mark.parametrize("size", [20_000_000, 40_000_000])
def test_large_answers_do_not_pile_up(size: int):
    cache = ResponseCache()
    for request in (b"first", b"second"):
        cache.put(request, known(size))
    assert cache.get(b"first") is None
    assert (cache.get(b"second") is not None) == (size < 32_000_000)


def test_answers_are_forgotten_by_their_size_the_oldest_first():
    done: list[str] = []

    async def ask(known: Idempotency, key: str, size: int) -> bool:
        async def work() -> Response:
            done.append(key)
            return Response(b"x" * size)

        return (await known.once("ada", key, b"body", work))[1]

    async def all_callers() -> None:
        known = Idempotency(3600, ManualClock())
        for number in range(20):
            assert not await ask(known, f"key-{number}", 4_000_000)
        assert await ask(known, "key-19", 4_000_000)
        assert await ask(known, "key-13", 4_000_000)
        assert not await ask(known, "key-0", 10)
        assert not await ask(known, "huge", 100_000_000)
        assert not await ask(known, "huge", 100_000_000)

    asyncio.run(all_callers())
    assert done.count("huge") == 2


def test_a_request_that_failed_leaves_nothing_behind():
    async def all_callers() -> None:
        known = Idempotency(3600, ManualClock())

        async def fail() -> Response:
            raise KeyError("failed")

        async def work() -> Response:
            return Response(b"done")

        for _ in range(3):
            try:
                await known.once("ada", "key", b"", fail)
            except KeyError:
                continue
        assert (await known.once("ada", "key", b"", work))[1] is False
        assert (await known.once("ada", "key", b"", work))[1] is True

    asyncio.run(all_callers())
