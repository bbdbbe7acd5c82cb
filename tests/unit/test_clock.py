"""Work whose caller has given up stops, also in the middle of a query."""

import contextlib
import threading

import duckdb
import pytest

from pair import clock, errors
from pair.clock import Cancellation

ENDLESS = "SELECT count(*) FROM range(1000000000000) AS t(n) WHERE n % 7 = hash(n) % 5"


def test_a_query_that_runs_is_interrupted_and_its_thread_comes_free() -> None:
    given_up, raised = Cancellation(3.0), list[errors.PairError]()
    begun = threading.Event()

    def count() -> None:
        with duckdb.connect(config={"threads": 1}) as connection, clock.interruptible(connection.interrupt):
            begun.set()
            connection.execute(ENDLESS)

    def work() -> None:
        try:
            given_up.run(count)
        except errors.PairError as fault:
            raised.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    while thread.is_alive():  # an interrupt that comes before the query begins is lost
        given_up.cancel()
        thread.join(0.05)
    assert [fault.code for fault in raised] == ["E609"]
    assert "3 s" in raised[0].message


def test_work_that_was_given_up_before_it_began_does_nothing() -> None:
    given_up, done = Cancellation(1.0), list[int]()
    given_up.cancel()
    with pytest.raises(errors.StorageError, match="within 1 s"):
        given_up.run(lambda: done.append(1))
    assert done == []


def test_work_stops_at_its_next_check_and_others_go_on() -> None:
    given_up = Cancellation(1.0)
    steps: list[int] = []

    def work() -> None:
        for step in range(10):
            clock.check_cancelled()
            steps.append(step)
            if step == 3:
                given_up.cancel()

    with pytest.raises(errors.StorageError):
        given_up.run(work)
    assert steps == [0, 1, 2, 3]
    clock.check_cancelled()
    with contextlib.ExitStack() as held:
        held.enter_context(clock.interruptible(steps.clear))
    assert steps == [0, 1, 2, 3]
