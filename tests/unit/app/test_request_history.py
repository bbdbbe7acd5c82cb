"""Requests since the start, in a bounded number of intervals."""

from hypothesis import given
from hypothesis import strategies as st

from pair.app.metrics import RequestHistory


@given(st.lists(st.tuples(st.floats(0, 3_000_000), st.booleans()), max_size=30))
def test_no_request_is_lost_however_long_the_server_runs(requests: list[tuple[float, bool]]):
    history = RequestHistory()
    for uptime, is_error in sorted(requests):
        history.add(uptime, is_error, 2.0)
    now = max((uptime for uptime, _ in requests), default=0.0)
    told = history.to_json(now)
    assert sum(told["requests"]) == len(requests)
    assert sum(told["errors"]) == sum(is_error for _, is_error in requests)
    assert sum(told["latency_ms"]) == 2.0 * len(requests)
    assert len(told["requests"]) == len(told["errors"]) == int(now / told["interval_seconds"]) + 1 <= 120


def test_each_request_is_in_the_interval_of_its_time():
    history = RequestHistory()
    for uptime in (5, 15, 1195, 1201):
        history.add(uptime, False, 1.0)
    told = history.to_json(1250)
    assert told["interval_seconds"] == 20
    assert [place for place, count in enumerate(told["requests"]) if count] == [0, 59, 60]
    assert told["requests"][0] == 2
