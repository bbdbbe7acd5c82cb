"""Verification of signed tokens (JWT) with the public keys of their issuer.

Invariants
    Only asymmetric algorithms in the settings are accepted; never `none`, never a shared secret.
    A token needs an expiry, an issuer, an audience and a subject. Claims are used only after the signature is verified.
    Only scopes that begin with `pair:` count.
    One caller at a time reads public keys. A pause follows every read, even a failed one, for any token.
"""

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from pair import errors
from pair.auth.rules import ASYMMETRIC, Principal, choose_widest
from pair.auth.settings import ServerSettings
from pair.clock import Clock

_REQUIRED = ["exp", "iss", "aud", "sub"]
_SECONDS_BETWEEN_READS = 30.0
_LEAST_SECONDS_AFTER_FAILURE = 2.0
"""The pause after a failed read. It doubles with every consecutive failure, up to `_SECONDS_BETWEEN_READS`."""
_MOST_SECONDS_OF_AGE = 300.0
"""The age at which keys are read again: a withdrawn key is trusted at most this long."""
_SCOPE_PREFIX = "pair:"
_MOST_TOKEN_CHARACTERS = 16_384


class TokenVerifier:
    """A verifier of tokens. Thread-safe."""

    def __init__(self, settings: ServerSettings, read_jwks: Callable[[], bytes], clock: Clock) -> None:
        """Check the settings. `read_jwks`: returns the current JWKS document or raises PairError. Raises E401."""
        self._settings = settings
        self._algorithms = _check_algorithms(settings)
        self._read_jwks = read_jwks
        self._clock = clock
        self._read_lock = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at: float | None = None
        """Time of the last successful read."""
        self._tried_at: float | None = None
        self._failures = 0
        """Failures since the last success."""
        self._last_failure: errors.PairError | None = None

    def authenticate(self, token: str, *, may_read: bool = True) -> Principal:
        """Return the owner of a token. `may_read`: read public keys first if a read is due. Raises E602, E614."""
        header = self._parse_header(token)
        if may_read and self._is_read_due(header):
            self.read_keys()
        key = self._choose_key(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                audience=self._settings.jwt_audience,
                issuer=self._settings.jwt_issuer,
                leeway=self._settings.jwt_leeway_seconds,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError as fault:
            raise errors.credentials_refused("the token has expired") from fault
        except (jwt.PyJWTError, ValueError, TypeError) as fault:
            raise errors.credentials_refused("the token is not valid") from fault
        return _build_principal(claims)

    def needs_keys(self, token: str) -> bool:
        """Return whether a read of public keys is due before this token is verified. Raises E602."""
        return self._is_read_due(self._parse_header(token))

    def read_keys(self) -> None:
        """Read public keys, or wait for another thread that reads them. `authenticate` raises the error."""
        before = self._tried_at
        with self._read_lock:
            if self._tried_at != before:
                return
            self._tried_at = self._clock.monotonic()
            try:
                self._keys = _parse_jwks(self._read_jwks())
            except errors.PairError as fault:
                self._failures += 1
                self._last_failure = fault
            else:
                self._failures = 0
                self._read_at = self._clock.monotonic()

    def _parse_header(self, token: str) -> Mapping[str, Any]:
        """Return the header of a token. Raises E602."""
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
        """Return whether the pause is over, and the keys are old, or the key of the token is missing."""
        if self._tried_at is None:
            return True
        now, pause = self._clock.monotonic(), _SECONDS_BETWEEN_READS
        if self._failures:
            pause = min(pause, _LEAST_SECONDS_AFTER_FAILURE * 2 ** min(self._failures - 1, 10))
        if now - self._tried_at < pause:
            return False
        is_fresh = self._read_at is not None and now - self._read_at < _MOST_SECONDS_OF_AGE
        return not is_fresh or self._find_key(header) is None

    def _choose_key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """Return the key of a token. Raises E602; E614 before the first successful read. Known keys stay valid."""
        if self._read_at is None:
            # Raise a copy, because an error that is raised repeatedly collects tracebacks.
            raise copy.copy(self._last_failure) or errors.jwks_unreadable("there was no answer yet")
        key = self._find_key(header)
        if key is None or (key.algorithm_name and key.algorithm_name != header["alg"]):
            raise errors.credentials_refused("the token is signed with an unknown key")
        return key

    def _find_key(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        """Return the key that a token names; for a token without a name, the only key."""
        keys, key_id = self._keys, str(header.get("kid", ""))
        if not key_id and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(key_id)


def _check_algorithms(settings: ServerSettings) -> frozenset[str]:
    """Return the accepted algorithms. Raises E401, also for missing settings of tokens."""
    algorithms = frozenset(name.strip() for name in settings.jwt_algorithms.split(",") if name.strip())
    if not algorithms or not algorithms <= ASYMMETRIC:
        raise errors.settings_invalid(
            "server.jwt_algorithms",
            "only asymmetric algorithms are accepted",
            hints=[f"Valid: {', '.join(sorted(ASYMMETRIC))}"],
        )
    for name in ("jwt_jwks", "jwt_issuer", "jwt_audience"):
        if not getattr(settings, name):
            hint = f"Set server.{name} in config.yaml, or PAIR__SERVER__{name.upper()}"
            raise errors.settings_invalid(f"server.{name}", "server.auth: jwt needs it", hints=[hint])
    return algorithms


def _parse_jwks(document: bytes) -> dict[str, jwt.PyJWK]:
    """Return the public keys by id, without those that could also sign."""
    try:
        values = json.loads(document)["keys"]
        usable = [value for value in values if value.get("kty") != "oct" and value.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.jwks_unreadable("not a JWKS document") from fault
    keys: dict[str, jwt.PyJWK] = {}
    for value in usable:
        with contextlib.suppress(jwt.PyJWTError, ValueError, TypeError):  # an unknown kind of key
            keys[str(value.get("kid", ""))] = jwt.PyJWK.from_dict(value)
    return keys


def _build_principal(claims: Mapping[str, Any]) -> Principal:
    scope = claims.get("scope", "")
    scopes = scope.split() if isinstance(scope, str) else _list_texts(scope)
    kbs = claims.get("kbs")
    return Principal(
        str(claims["sub"]),
        choose_widest(name.removeprefix(_SCOPE_PREFIX) for name in scopes if name.startswith(_SCOPE_PREFIX)) or "read",
        None if kbs is None else frozenset(_list_texts(kbs)),
        email=str(claims.get("email", "")),
        teams=tuple(_list_texts(claims.get("teams"))),
        roles=tuple(_list_texts(claims.get("roles"))),
    )


def _list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
