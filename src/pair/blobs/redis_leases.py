"""Leases in Redis (extra `[redis]`): one key with a time to live, and a counter for the fence.

Invariants
    Every step is one script, and so atomic. If a script is sent again after a lost answer, it finds its own token and
    gives the same answer.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from pair import errors
from pair.blobs.contract import Lease, LeaseLostError
from pair.blobs.leases import end_of_lease
from pair.clock import Clock, to_timestamp
from pair.values import redact_url

# The value contains the token and the holder, so that a refused writer can show the holder.
_ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
    return {0, held, redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if held then
    return {tonumber(redis.call('GET', KEYS[2])), held, 0}
end
return {redis.call('INCR', KEYS[2]), ARGV[1], 0}
"""
_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
"""
_TIMEOUT_SECONDS = 5.0
_RETRIES = 2


class RedisLeases:
    """Leases that end by the monotonic clock of the Redis server."""

    def __init__(
        self, url: str, *, holder: str, new_token: Callable[[], str], clock: Clock, prefix: str = "pair:lease:"
    ) -> None:
        self._address = redact_url(url)
        self._holder = holder
        self._new_token = new_token
        self._clock = clock
        self._prefix = prefix
        self._client = redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), _RETRIES),
        )
        self._acquire_script = self._client.register_script(_ACQUIRE)
        self._renew_script = self._client.register_script(_RENEW)
        self._release_script = self._client.register_script(_RELEASE)

    def acquire(self, name: str, *, seconds: float) -> Lease:
        token = self._new_token()
        expires_at = end_of_lease(self._clock, seconds)
        with self._translate_errors():
            fence, current, left_ms = self._acquire_script(
                keys=self._keys(name), args=[_value(token, self._holder), round(seconds * 1000)]
            )
        if fence == 0:
            raise errors.lease_held(
                name, current.partition("\n")[2], to_timestamp(end_of_lease(self._clock, left_ms / 1000))
            )
        return Lease(name, self._holder, token, fence, expires_at)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        expires_at = end_of_lease(self._clock, seconds)
        with self._translate_errors():
            is_renewed = self._renew_script(
                keys=self._keys(lease.name), args=[_value(lease.token, lease.holder), round(seconds * 1000)]
            )
        if not is_renewed:
            raise LeaseLostError(lease.name)
        return replace(lease, expires_at=expires_at)

    def release(self, lease: Lease) -> None:
        with self._translate_errors():
            self._release_script(keys=self._keys(lease.name), args=[_value(lease.token, lease.holder)])

    def close(self) -> None:
        self._client.close()

    def _keys(self, name: str) -> list[str]:
        # Braces keep both keys on one node of a cluster.
        return [f"{self._prefix}{{{name}}}", f"{self._prefix}{{{name}}}:fence"]

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as fault:
            raise errors.lease_server_unreachable(self._address, _reason(fault)) from fault


def _value(token: str, holder: str) -> str:
    return f"{token}\n{holder}"


def _reason(fault: redis.RedisError) -> str:
    match fault:
        case redis.AuthenticationError():
            return "Redis refuses the credentials"
        case redis.TimeoutError():
            return "Redis did not answer in time"
        case redis.ConnectionError():
            return "No connection to Redis"
        case _:
            return f"Redis answered: {fault}"
