"""Threads that take turns: one runs at a time, chosen by one random generator.

Every thread stops before each request. The generator chooses the thread that continues, how far the clocks advance,
and which threads sleep. The same seed gives the same history.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pair.testing.clock import ManualClock
from pair.testing.faulty_store import Arrival

MOST_TURNS = 20_000
STUCK_SECONDS = 120.0
"""A limit for a thread that waits for another one. Without a bug no thread waits, however slow the machine."""


class StoppedError(BaseException):
    """Raised in all threads after a failure, so that the state stays unchanged. It is not caught."""


@dataclass(eq=False)
class Actor:
    name: str
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asleep_until: int = 0
    """The turn after which it may continue."""
    is_done: bool = False


@dataclass(frozen=True)
class Weather:
    """The probabilities of events at a turn."""

    sleep: float = 0.05
    clock_leap: float = 0.01
    arrival: float = 0.1
    switch: float = 0.6


class Turns:
    """The scheduler. Threads call `point` wherever another thread could act."""

    def __init__(self, dice: random.Random, clock: ManualClock, weather: Weather) -> None:
        self.trace: list[str] = []
        self.in_flight: list[Arrival] = []
        self.faults: list[BaseException] = []
        self._dice = dice
        self._clock = clock
        self._weather = weather
        self._actors: list[Actor] = []
        self._turn = 0
        self._is_calm = True
        self._is_over = threading.Event()

    # Called by the test

    def run(self, works: dict[Actor, Callable[[], None]]) -> None:
        """Run all threads to their end, or until one of them raises; see `faults`."""
        self._actors = list(works)
        self._is_calm = False
        threads = [
            threading.Thread(target=self._act, args=each, name=each[0].name, daemon=True) for each in works.items()
        ]
        for thread in threads:
            thread.start()
        self._next().go.release()
        if not self._is_over.wait(STUCK_SECONDS):
            raise TimeoutError("somebody waits for somebody who waits:\n" + "\n".join(self.trace))
        for thread in threads:
            thread.join()
        self._is_calm = True

    def deliver_all(self) -> None:
        while self.in_flight:
            self._deliver()

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self._turn:5} {who:12} {what}")

    # Called by the thread that has the turn

    def point(self, actor: Actor) -> None:
        """Choose the thread that continues."""
        if self._is_calm:
            return
        self._refuse_to_go_on()
        self._turn += 1
        if self._turn > MOST_TURNS:
            raise AssertionError(f"no end after {MOST_TURNS} turns")
        self._change_weather(actor)
        if self._dice.random() < self._weather.switch or actor.asleep_until > self._turn:
            self._hand_over(actor, self._next())
        self._refuse_to_go_on()

    def sleep(self, actor: Actor, turns: int = 0) -> None:
        """Sleep for this number of turns, or for a random number, while other threads run."""
        actor.asleep_until = self._turn + (turns or self._dice.choice((5, 20, 80)))
        self.note(actor.name, f"sleeps until {actor.asleep_until}")

    def rest(self, actor: Actor) -> None:
        """Sleep for a random number of turns, so that other threads may act first."""
        self.sleep(actor, self._dice.choice((1, 10, 30, 60)))
        self.point(actor)

    # Within

    def _act(self, actor: Actor, work: Callable[[], None]) -> None:
        actor.go.acquire()
        try:
            self._refuse_to_go_on()
            work()
        except StoppedError:
            pass
        except BaseException as fault:  # noqa: BLE001 - whatever it is, the test shows it
            self.note(actor.name, f"fails: {fault!r}")
            self.faults.append(fault)
        actor.is_done = True
        if all(each.is_done for each in self._actors):
            self._is_over.set()
        else:
            self._next().go.release()

    def _refuse_to_go_on(self) -> None:
        if self.faults:
            raise StoppedError

    def _hand_over(self, actor: Actor, other: Actor) -> None:
        if other is not actor:
            other.go.release()
            actor.go.acquire()

    def _next(self) -> Actor:
        waiting = [each for each in self._actors if not each.is_done]
        awake = [each for each in waiting if each.asleep_until <= self._turn]
        if awake:
            return self._dice.choice(awake)
        return min(waiting, key=lambda each: each.asleep_until)

    def _change_weather(self, actor: Actor) -> None:
        dice, weather = self._dice, self._weather
        self._clock.advance(dice.random() * 10)
        if dice.random() < weather.clock_leap:
            seconds = dice.choice((3_000.0, 20_000.0))
            self._clock.advance(seconds)
            self.note("clock", f"{seconds:+} s pass")
        if dice.random() < weather.clock_leap:
            seconds = dice.choice((-20_000.0, -3_600.0, 3_600.0, 20_000.0))
            self._clock.jump(seconds)
            self.note("clock", f"set by {seconds:+} s")
        if dice.random() < weather.sleep:
            self.sleep(actor)
        if self.in_flight and dice.random() < weather.arrival:
            self._deliver()

    def _deliver(self) -> None:
        arrive = self.in_flight.pop(self._dice.randrange(len(self.in_flight)))
        self.note("network", "a late request arrives")
        arrive()
