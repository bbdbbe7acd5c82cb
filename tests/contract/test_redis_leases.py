"""The data of a lease in Redis, and the errors when Redis refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from pair import errors
from pair.blobs.contract import Lease, LeaseLostError
from pair.blobs.redis_leases import RedisLeases
from pair.testing.clock import NOON, ManualClock
from support.redis_server import RedisServer

TOKENS = (f"token-{number}" for number in range(1000))
PREFIXES = (f"kept-{number}:" for number in range(1000))


def token() -> str:
    return next(TOKENS)


@pytest.fixture
def prefix() -> str:
    return next(PREFIXES)


@pytest.fixture
def leases(redis_server: RedisServer, prefix: str) -> Iterator[RedisLeases]:
    made = RedisLeases(redis_server.url, holder="host-a", new_token=token, clock=ManualClock(), prefix=prefix)
    yield made
    made.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as made:
        yield made


def test_a_lease_describes_itself_under_two_keys_of_one_node(leases: RedisLeases, prefix: str, client: Any) -> None:
    lease = leases.acquire("kb", seconds=90)
    assert (lease.name, lease.holder, lease.fence) == ("kb", "host-a", 1)
    assert lease.token.startswith("token-")
    assert (lease.expires_at - NOON).total_seconds() == 90
    assert client.get(f"{prefix}{{kb}}") == f"{lease.token}\nhost-a"
    assert client.get(f"{prefix}{{kb}}:fence") == "1"
    assert 80_000 < client.pttl(f"{prefix}{{kb}}") <= 90_000
    renewed = leases.renew(lease, seconds=200)
    assert (renewed.name, renewed.holder, renewed.token, renewed.fence) == ("kb", "host-a", lease.token, 1)
    assert (renewed.expires_at - NOON).total_seconds() == 200
    assert 190_000 < client.pttl(f"{prefix}{{kb}}") <= 200_000
    leases.release(renewed)
    assert client.get(f"{prefix}{{kb}}") is None
    assert client.get(f"{prefix}{{kb}}:fence") == "1", "the next fence has to be greater"


def test_the_default_place_of_leases(redis_server: RedisServer, client: Any) -> None:
    plain = RedisLeases(redis_server.url, holder="host-a", new_token=token, clock=ManualClock())
    lease = plain.acquire("kb-of-defaults", seconds=30)
    assert client.get("pair:lease:{kb-of-defaults}") is not None
    plain.release(lease)
    plain.close()


def test_the_holder_and_the_remaining_time_are_reported(leases: RedisLeases, prefix: str, client: Any) -> None:
    client.set(f"{prefix}{{kb}}", "theirs\nhost-b\nprocess 2", px=3_600_000)
    with pytest.raises(errors.ConflictError) as raised:
        leases.acquire("kb", seconds=30)
    told = raised.value.details
    assert (told["name"], told["holder"]) == ("kb", "host-b\nprocess 2")
    assert "2026-03-01T12:59:00Z" < told["expires_at"] <= "2026-03-01T13:00:00Z"


def test_the_lease_of_another_is_neither_renewed_nor_released(leases: RedisLeases, prefix: str, client: Any) -> None:
    client.set(f"{prefix}{{kb}}", "theirs\nhost-b", px=60_000)
    mine = Lease("kb", "host-a", "mine", 1, NOON)
    with pytest.raises(LeaseLostError, match=r"^kb$"):
        leases.renew(mine, seconds=30)
    leases.release(mine)
    assert client.get(f"{prefix}{{kb}}") == "theirs\nhost-b"


def test_a_refusal_of_redis_is_reported_with_its_address(
    leases: RedisLeases, redis_server: RedisServer, prefix: str, client: Any
) -> None:
    client.set(f"{prefix}{{kb}}:fence", "no number")
    with pytest.raises(errors.StorageError) as raised:
        leases.acquire("kb", seconds=30)
    assert raised.value.details["address"] == f"redis://127.0.0.1:{redis_server.port}/0"
    assert raised.value.details["reason"].startswith("Redis answered: ")
    assert "not an integer" in raised.value.details["reason"]


def test_a_refused_password_is_reported_as_such(redis_server: RedisServer) -> None:
    url = f"redis://:wrong@127.0.0.1:{redis_server.port}/0"
    refused = RedisLeases(url, holder="h", new_token=token, clock=ManualClock())
    with pytest.raises(errors.StorageError) as raised:
        refused.acquire("kb", seconds=30)
    assert raised.value.details["reason"] == "Redis refuses the credentials"
    refused.close()
