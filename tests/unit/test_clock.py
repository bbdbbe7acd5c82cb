"""Cancelled work stops at its next step."""

import pytest

from pair import clock, errors
from pair.clock import Cancellation


def test_work_that_was_given_up_before_it_began_does_nothing() -> None:
    given_up, done = Cancellation(1.0), list[int]()
    given_up.cancel()
    with pytest.raises(errors.StorageError, match="within 1 s"):
        given_up.run(lambda: done.append(1))
    assert done == []


def test_work_stops_at_its_next_check_and_other_work_continues() -> None:
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
