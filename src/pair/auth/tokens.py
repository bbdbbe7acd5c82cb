"""Signed tokens (JWT): verified with the public keys of whoever issues them.

Invariants
    Only asymmetric algorithms that the settings list; never `none`, never a shared secret.
    A token needs an end, an issuer, an audience and a subject; what it claims counts once its signature is right.
    Of its scopes those count that begin with `pair:`; others are meant for somebody else.
    Public keys are read by one caller at a time, and not again before a pause, whatever tokens name and whether or not
    the last read succeeded.
"""

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from pair import errors
from pair.auth.rules import ASYMMETRIC, Principal, widest
from pair.auth.settings import ServerSettings
from pair.clock import Clock

_REQUIRED = ["exp", "iss", "aud", "sub"]
_SECONDS_BETWEEN_READS = 30.0
_LEAST_SECONDS_AFTER_FAILURE = 2.0
"""Doubled with every failure in a row, up to `_SECONDS_BETWEEN_READS`."""
_MOST_SECONDS_OF_AGE = 300.0
"""A key that its issuer took back is trusted so long."""
_SCOPE_PREFIX = "pair:"
_MOST_TOKEN_CHARACTERS = 16_384


class TokenVerifier:
    """Used from several threads at once."""

    def __init__(self, policy: ServerSettings, read_jwks: Callable[[], bytes], clock: Clock) -> None:
        """`read_jwks`: the JWKS document as it is now; may raise PairError. Raises E401."""
        self._policy = policy
        self._read_jwks = read_jwks
        self._clock = clock
        self._reading = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at: float | None = None
        """When they were last read with success."""
        self._tried_at: float | None = None
        self._failures = 0
        """Since then."""
        self._last_failure: errors.PairError | None = None
        self._algorithms = checked_algorithms(policy)

    def verified(self, token: str, *, may_read: bool = True) -> Principal:
        """Raises E602, E614. `may_read`: read public keys first if that is due, which takes its time."""
        header = self._header(token)
        if may_read and self._is_read_due(header):
            self.read_keys()
        key = self._key(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=self._policy.jwt_audience,
                issuer=self._policy.jwt_issuer,
                leeway=self._policy.jwt_leeway_seconds,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError as fault:
            raise errors.credentials_refused("the token has expired") from fault
        except (jwt.PyJWTError, ValueError, TypeError) as fault:
            raise errors.credentials_refused("the token is not valid") from fault
        return _principal(claims)

    def needs_keys(self, token: str) -> bool:
        """Whether public keys should be read before this token is verified. Raises E602."""
        return self._is_read_due(self._header(token))

    def read_keys(self) -> None:
        """Read them, unless somebody does already: then wait for that. What goes wrong is told by `verified`."""
        before = self._tried_at
        with self._reading:
            if self._tried_at != before:
                return
            self._tried_at = self._clock.monotonic()
            try:
                self._keys = _keys_of(self._read_jwks())
            except errors.PairError as fault:
                self._failures += 1
                self._last_failure = fault
            else:
                self._failures = 0
                self._read_at = self._clock.monotonic()

    def _header(self, token: str) -> Mapping[str, Any]:
        """Raises E602."""
        if len(token) > _MOST_TOKEN_CHARACTERS:
            raise errors.credentials_refused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError) as fault:
            raise errors.credentials_refused("the token is not valid") from fault
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise errors.credentials_refused("the token is not signed in an accepted way")
        return header

    def _is_read_due(self, header: Mapping[str, Any]) -> bool:
        """Keys change: one that is not known is looked for again, but not all the time."""
        if self._tried_at is None:
            return True
        now, pause = self._clock.monotonic(), _SECONDS_BETWEEN_READS
        if self._failures:
            pause = min(pause, _LEAST_SECONDS_AFTER_FAILURE * 2 ** min(self._failures - 1, 10))
        if now - self._tried_at < pause:
            return False
        is_fresh = self._read_at is not None and now - self._read_at < _MOST_SECONDS_OF_AGE
        return not is_fresh or self._found(header) is None

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """Raises E602; E614 before any key could be read. Keys that are known count while they cannot be read again."""
        if self._read_at is None:
            # A copy: an error that is raised again and again would gather tracebacks.
            raise copy.copy(self._last_failure) or errors.jwks_unreadable("there was no answer yet")
        found = self._found(header)
        if found is None or (found.algorithm_name and found.algorithm_name != header["alg"]):
            raise errors.credentials_refused("the token is signed with a key that is not known")
        return found

    def _found(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        """A token that names no key can only mean the only one there is."""
        keys, key_id = self._keys, str(header.get("kid", ""))
        if not key_id and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(key_id)


def checked_algorithms(policy: ServerSettings) -> frozenset[str]:
    """Raises E401."""
    given = frozenset(each.strip() for each in policy.jwt_algorithms.split(",") if each.strip())
    if not given or not given <= ASYMMETRIC:
        raise errors.settings_invalid(
            "server.jwt_algorithms",
            "only asymmetric algorithms are accepted",
            hints=[f"Valid: {', '.join(sorted(ASYMMETRIC))}"],
        )
    for name in ("jwt_jwks", "jwt_issuer", "jwt_audience"):
        if not getattr(policy, name):
            raise errors.settings_invalid(f"server.{name}", "it is needed with server.auth: jwt")
    return given


def _keys_of(document: bytes) -> dict[str, jwt.PyJWK]:
    """By id; those that could be used to sign as well as to verify are left out."""
    try:
        value = json.loads(document)
        usable = [each for each in value["keys"] if each.get("kty") != "oct" and each.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.jwks_unreadable("not a JWKS document") from fault
    keys: dict[str, jwt.PyJWK] = {}
    for each in usable:
        with contextlib.suppress(jwt.PyJWTError, ValueError, TypeError):  # of a kind that we do not know
            keys[str(each.get("kid", ""))] = jwt.PyJWK.from_dict(each)
    return keys


def _principal(claims: Mapping[str, Any]) -> Principal:
    scopes = claims.get("scope", "")
    named = scopes.split() if isinstance(scopes, str) else _texts(scopes)
    kbs = claims.get("kbs")
    return Principal(
        str(claims["sub"]),
        widest(each.removeprefix(_SCOPE_PREFIX) for each in named if each.startswith(_SCOPE_PREFIX)) or "read",
        None if kbs is None else frozenset(_texts(kbs)),
        email=str(claims.get("email", "")),
        teams=tuple(_texts(claims.get("teams"))),
        roles=tuple(_texts(claims.get("roles"))),
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
