"""What is stored for requests with an Idempotency-Key."""

import asyncio

from starlette.responses import Response

from pair.app.http.limits import Idempotency
from pair.testing.clock import ManualClock


def test_answers_are_forgotten_by_their_size_the_oldest_first():
    done: list[str] = []

    async def ask(known: Idempotency, key: str, size: int) -> bool:
        async def work() -> Response:
            done.append(key)
            return Response(b"x" * size)

        return (await known.once("ada", key, b"body", work))[1]

    async def everybody() -> None:
        known = Idempotency(3600, ManualClock())
        for number in range(20):
            assert not await ask(known, f"key-{number}", 4_000_000)
        assert await ask(known, "key-19", 4_000_000)
        assert await ask(known, "key-13", 4_000_000)
        assert not await ask(known, "key-0", 10)
        assert not await ask(known, "huge", 100_000_000)
        assert not await ask(known, "huge", 100_000_000)

    asyncio.run(everybody())
    assert done.count("huge") == 2
