"""Signed tokens (JWT): verified with the public keys of whoever issues them.

Invariants
    Only asymmetric algorithms that the settings list; never `none`, never a shared secret.
    A token needs an end, an issuer, an audience and a subject; what it claims counts once its signature is right.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from pair import errors, request_errors
from pair.access.policy import ServerPolicy
from pair.access.rules import ASYMMETRIC, Principal, widest
from pair.clock import Clock

_REQUIRED = ["exp", "iss", "aud", "sub"]
_SECONDS_BETWEEN_READS = 30.0
_MOST_SECONDS_OF_AGE = 300.0
"""A key that its issuer took back is trusted so long."""
_MOST_TOKEN_CHARACTERS = 16_384


class TokenVerifier:
    """Used from several threads at once."""

    def __init__(self, policy: ServerPolicy, read_jwks: Callable[[], bytes], clock: Clock) -> None:
        """`read_jwks`: the JWKS document as it is now; may raise PairError. Raises E401."""
        self._policy = policy
        self._read_jwks = read_jwks
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = 0.0
        self._algorithms = checked_algorithms(policy)

    def verified(self, token: str) -> Principal:
        """Raises E602, E614."""
        if len(token) > _MOST_TOKEN_CHARACTERS:
            raise request_errors.credentials_refused("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError) as fault:
            raise request_errors.credentials_refused("the token is not valid") from fault
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise request_errors.credentials_refused("the token is not signed in an accepted way")
        key = self._key(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._policy.jwt_audience,
                issuer=self._policy.jwt_issuer,
                leeway=self._policy.jwt_leeway_seconds,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError as fault:
            raise request_errors.credentials_refused("the token has expired") from fault
        except (jwt.PyJWTError, ValueError, TypeError) as fault:
            raise request_errors.credentials_refused("the token is not valid") from fault
        return _principal(claims)

    def _key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """Raises E602, E614. Keys change: one that is not known is looked for again, but not all the time."""
        key_id = str(header.get("kid", ""))
        with self._lock:
            if not self._keys:
                self._keys = _keys_of(self._read_jwks())  # nobody can be let in before
                self._read_at = self._clock.monotonic()
            age = self._clock.monotonic() - self._read_at
            is_known = self._found(key_id) is not None
            is_due = age >= (_MOST_SECONDS_OF_AGE if is_known else _SECONDS_BETWEEN_READS)
            if is_due:
                self._read_at = self._clock.monotonic()
        if is_due:
            # The others do not wait for this; and keys that are known do while they cannot be read again.
            with contextlib.suppress(*([errors.StorageError] if is_known else [])):
                self._keys = _keys_of(self._read_jwks())
        found = self._found(key_id)
        if found is None or (found.algorithm_name and found.algorithm_name != header["alg"]):
            raise request_errors.credentials_refused("the token is signed with a key that is not known")
        return found

    def _found(self, key_id: str) -> jwt.PyJWK | None:
        """A token that names no key can only mean the only one there is."""
        keys = self._keys
        if not key_id and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(key_id)


def checked_algorithms(policy: ServerPolicy) -> frozenset[str]:
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
        raise request_errors.jwks_unreadable("not a JWKS document") from fault
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
        widest(each.removeprefix("pair:") for each in named) or "read",
        None if kbs is None else frozenset(_texts(kbs)),
        email=str(claims.get("email", "")),
        teams=tuple(_texts(claims.get("teams"))),
        roles=tuple(_texts(claims.get("roles"))),
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
