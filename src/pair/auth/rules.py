"""The rules of access: scopes, permitted KBs, origins, and rate limits (pure)."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from pair import errors

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""The scopes; each includes those before it."""

ASYMMETRIC = frozenset(
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES256K", "ES384", "ES512", "EdDSA"]
)
"""Algorithms whose public key cannot be used to sign."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified caller of a request."""

    id: str
    scope: Scope
    kbs: frozenset[str] | None = None
    """The permitted KBs; None for all."""
    user: bool = True
    """Whether the caller is known; False without authentication."""
    email: str = ""
    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    credential: str = ""
    """A value that distinguishes credentials with the same `id`."""

    @property
    def client(self) -> str:
        """The key of rate limits and idempotent requests."""
        return self.credential or self.id

    @property
    def sees_all(self) -> bool:
        return self.kbs is None


ANYBODY = Principal("anonymous", "admin", user=False)
"""The caller on a loopback address without authentication."""


def covers(scope: Scope, needed: Scope) -> bool:
    return SCOPES.index(scope) >= SCOPES.index(needed)


def check_scope(principal: Principal, needed: Scope) -> None:
    """Check that a caller has a scope. Raises E603."""
    if not covers(principal.scope, needed):
        raise errors.not_allowed(f"this needs the scope {needed}, and yours is {principal.scope}")


def check_kb(principal: Principal, kb_id: str) -> None:
    """Check that a caller may use a KB. Raises E603, even for a missing KB, so that the error does not reveal which KBs
    exist.
    """
    if principal.kbs is not None and kb_id not in principal.kbs:
        shown = kb_id if len(kb_id) <= 128 else f"{kb_id[:128]}…"
        raise errors.not_allowed(f"the knowledge base {shown!r}")


def choose_widest(names: Iterable[str]) -> Scope | None:
    """Return the widest scope among the names; ignore other names."""
    given = set(names)
    return next((scope for scope in reversed(SCOPES) if scope in given), None)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address, without a port, is this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_origin(host: str, origin: str, *, only_loopback: bool, is_named: bool = False) -> None:
    """Refuse cross-site requests of pages in a browser. Raises E603.

    `only_loopback`: without authentication, refuse foreign host names that resolve to this machine.
    `is_named`: the settings permit the origin.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    if only_loopback and not is_loopback(name):
        raise errors.not_allowed("without authentication only loopback names are served", hints=["Set server.auth"])
    if origin and not is_named and origin.partition("://")[2].lower() != host.lower():
        raise errors.not_allowed(
            "requests from pages of other sites", hints=["Name the site in server.cors_origins if it is yours"]
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """The remaining tokens of a client."""

    tokens: float
    at: float
    """Time of the last request, by the monotonic clock."""


def take_token(bucket: Bucket | None, now: float, *, per_second: float, burst: int) -> tuple[Bucket, float]:
    """Return the bucket after one request, and the seconds to wait before the request is permitted."""
    full = float(burst)
    tokens = full if bucket is None else min(full, bucket.tokens + (now - bucket.at) * per_second)
    if tokens >= 1.0:
        return Bucket(tokens - 1.0, now), 0.0
    return Bucket(tokens, now), (1.0 - tokens) / per_second
