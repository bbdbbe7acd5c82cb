"""What is decided about access: which scopes cover which, who is local, and who comes too often."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from pair import errors

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Each covers those before it."""

ASYMMETRIC = frozenset(
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES256K", "ES384", "ES512", "EdDSA"]
)
"""Algorithms whose public key cannot be used to sign."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request, as verified."""

    id: str
    scope: Scope
    kbs: frozenset[str] | None = None
    """Names of the KBs that it may use; None for all."""
    user: bool = True
    """Whether it is somebody at all: without authentication, nobody knows who it is."""
    email: str = ""
    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    credential: str = ""
    """What it was verified by, where several credentials may have one `id`."""

    @property
    def client(self) -> str:
        """Name the one whose limits, and whose repeated requests, are counted."""
        return self.credential or self.id

    @property
    def sees_all(self) -> bool:
        return self.kbs is None


ANYBODY = Principal("anonymous", "admin", user=False)
"""On a loopback address without authentication."""


def covers(scope: Scope, needed: Scope) -> bool:
    return SCOPES.index(scope) >= SCOPES.index(needed)


def check_scope(principal: Principal, needed: Scope) -> None:
    """Raises E603."""
    if not covers(principal.scope, needed):
        raise errors.not_allowed(f"this needs the scope {needed}, and yours is {principal.scope}")


def check_kb(principal: Principal, kb_id: str) -> None:
    """Raises E603, also for a KB that does not exist: who may not use it is not told."""
    if principal.kbs is not None and kb_id not in principal.kbs:
        shown = kb_id if len(kb_id) <= 128 else f"{kb_id[:128]}…"
        raise errors.not_allowed(f"the knowledge base {shown!r}")


def widest(scopes: Iterable[str]) -> Scope | None:
    """Of those that are scopes."""
    given = set(scopes)
    return next((scope for scope in reversed(SCOPES) if scope in given), None)


def is_loopback(host: str) -> bool:
    """A name or an address, without its port."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """`Example.org:8080` -> `example.org`; "" for what is no host."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def check_origin(host: str, origin: str, *, only_loopback: bool, is_named: bool = False) -> None:
    """Pages of other sites may not act in the name of whoever looks at them. Raises E603.

    `only_loopback`: the server asks nobody who they are, so a name that leads here by a trick counts for nothing.
    `is_named`: the origin is one that may.
    """
    if only_loopback and not is_loopback(host_of(host)):
        raise errors.not_allowed("without authentication only loopback names are served", hints=["Set server.auth"])
    if origin and not is_named and origin.partition("://")[2].lower() != host.lower():
        raise errors.not_allowed(
            "requests from pages of other sites", hints=["Name the site in server.cors_origins if it is yours"]
        )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens that a client has left."""

    tokens: float
    at: float
    """By the monotonic clock."""


def taken(bucket: Bucket | None, now: float, *, per_second: float, burst: int) -> tuple[Bucket, float]:
    """The bucket after one request, and the seconds to wait before it may be made: 0 for now."""
    full = float(burst)
    tokens = full if bucket is None else min(full, bucket.tokens + (now - bucket.at) * per_second)
    if tokens >= 1.0:
        return Bucket(tokens - 1.0, now), 0.0
    return Bucket(tokens, now), (1.0 - tokens) / per_second
