"""The rules of access."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair import errors
from pair.auth import rules


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST.", "::1", "[::1]"])
def test_these_lead_to_this_machine_only(host: str):
    assert rules.is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", "", "localhost.evil"]
)
def test_these_may_lead_elsewhere(host: str):
    assert not rules.is_loopback(host)


@pytest.mark.parametrize(
    ("host", "origin", "only_loopback"),
    [
        ("localhost:8080", "", True),
        ("localhost:8080", "http://localhost:8080", True),
        ("[::1]:8080", "", True),
        ("kb.example.org", "https://KB.example.org", False),
    ],
)
def test_local_requests_are_allowed(host: str, origin: str, only_loopback: bool):
    rules.check_origin(host, origin, only_loopback=only_loopback)


@pytest.mark.parametrize(
    ("host", "origin", "only_loopback"),
    [
        ("rebound.example", "", True),
        ("", "", True),
        ("[", "", True),
        ("localhost:8080", "null", True),
        ("localhost:8080", "http://localhost:9090", True),
        ("kb.example.org", "https://elsewhere.example", False),
    ],
)
def test_requests_of_others_are_refused(host: str, origin: str, only_loopback: bool):
    with pytest.raises(errors.AccessError):
        rules.check_origin(host, origin, only_loopback=only_loopback)


@given(
    per_second=st.floats(0.01, 100),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 10), min_size=1, max_size=100),
)
def test_no_client_gets_more_than_its_burst_and_its_rate(per_second: float, burst: int, pauses: list[float]):
    bucket, now, let_in = None, 0.0, 0
    for pause in pauses:
        now += pause
        bucket, wait = rules.take_token(bucket, now, per_second=per_second, burst=burst)
        let_in += wait == 0
        assert let_in <= burst + now * per_second + 1e-6
        if wait:
            # A client that waits as long as requested is admitted.
            _, after = rules.take_token(bucket, now + wait + 1e-6, per_second=per_second, burst=burst)
            assert after == 0
