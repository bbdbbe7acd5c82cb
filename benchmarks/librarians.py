"""What does a question cost: dispatch compared with a function call, and a thousand questions at once?

    python benchmarks/librarians.py

A hop is one librarian in the chain of a question. Both columns of a chain do the same: each librarian names the next
one. One column follows the names in a loop, the other uses `ask` with its checks, deadlines and threads. The benchmark
prints the fastest of several runs, because other load only adds time. At the end, it compares `pair ask` with `pair
search` from the shell.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pair.librarians import Context, Registry, Response, ask

RUNS = 7
CHAIN = 5
QUESTIONS = 1000
QUESTION = "Which TCP port and TLS version does NTS key establishment use?"


async def instant(query: str, _context: Context | None = None) -> Response:
    return Response(answer=f"About {query}", confidence=0.9)


def handing(to: str) -> Callable[..., Awaitable[Response]]:
    async def librarian(_query: str, _context: Context | None = None) -> Response:
        return Response.delegating(to)

    return librarian


LIBRARIANS: dict[str, Callable[..., Awaitable[Response]]] = {
    "instant": instant,
    **{f"hop-{number}": handing("instant" if number == 1 else f"hop-{number - 1}") for number in range(1, CHAIN)},
}
REGISTRY = Registry(LIBRARIANS)
FIRST = f"hop-{CHAIN - 1}"


async def by_hand(librarian_id: str) -> Response:
    while True:
        response = await LIBRARIANS[librarian_id]("x", Context())
        if not response.delegates:
            return response
        librarian_id = response.delegates[0].to


async def one_by_one(work: Callable[[], Awaitable[Response]]) -> float:
    """Return the seconds for each call."""
    best = float("inf")
    for _ in range(RUNS):
        began_at = time.perf_counter()
        for _ in range(QUESTIONS // 5):
            await work()
        best = min(best, (time.perf_counter() - began_at) / (QUESTIONS // 5))
    return best


async def at_once(librarian_id: str) -> tuple[float, float]:
    """Return the answers per second, and per second of CPU time."""
    wall = cpu = float("inf")
    for _ in range(RUNS):
        began_at, used = time.perf_counter(), time.process_time()
        responses = await asyncio.gather(*(ask(REGISTRY, librarian_id, "x") for _ in range(QUESTIONS)))
        wall, cpu = min(wall, time.perf_counter() - began_at), min(cpu, time.process_time() - used)
        if any(response.answer is None for response in responses):
            raise SystemExit("not everybody was answered")
    return QUESTIONS / wall, QUESTIONS / cpu


async def main() -> None:
    await ask(REGISTRY, "instant", "x")
    print(f"{'one question after another':36}{'by hand':>10}{'ask':>10}{'over, per hop':>16}   (aim: 100 µs)")
    for name, first, hops in (("one librarian", "instant", 1), (f"a chain of {CHAIN}", FIRST, CHAIN)):
        direct = await one_by_one(lambda first=first: by_hand(first))  # type: ignore[misc]
        asked = await one_by_one(lambda first=first: ask(REGISTRY, first, "x"))  # type: ignore[misc]
        over = (asked - direct) / hops
        print(f"{name:36}{direct * 1e6:>7.1f} µs{asked * 1e6:>7.1f} µs{over * 1e6:>13.1f} µs")
    print()
    print(f"{f'{QUESTIONS:,} questions at once':36}{'a second':>10}{'a second of one core':>24}   (aim: 5,000)")
    for name, first in (("one librarian", "instant"), (f"a chain of {CHAIN}", FIRST)):
        wall, cpu = await at_once(first)
        print(f"{name:36}{wall:>10,.0f}{cpu:>24,.0f}")


def from_the_shell() -> None:
    """Time `pair ask` and `pair search` as commands, on the handbook of the examples."""
    handbook = Path(__file__).parent.parent / "examples" / "handbook"
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as folder:

        def run(*arguments: str) -> float:
            began_at = time.perf_counter()
            subprocess.run([sys.executable, "-m", "pair", *arguments], cwd=folder, check=True, capture_output=True)
            return time.perf_counter() - began_at

        run("ingest", str(handbook))
        seconds = {name: min(run(name, QUESTION) for _ in range(RUNS)) for name in ("search", "ask")}
    ratio = seconds["ask"] / seconds["search"]
    print(f"\npair ask {seconds['ask']:.2f} s, pair search {seconds['search']:.2f} s: {ratio:.2f} x   (aim: 3)")


if __name__ == "__main__":
    asyncio.run(main())
    from_the_shell()
