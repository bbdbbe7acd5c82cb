"""API keys: made, listed, revoked and verified; only their hashes are kept.

A key is 256 random bits, so a plain SHA-256 of it cannot be turned back: there is nothing to guess.
Invariants
    The key itself is shown once, by whoever made it, and never written anywhere.
    A key that is revoked is refused by the next request: the file is read again whenever it changed.
    A file of the folder that neither `pair keys` wrote nor `pair trust` accepted lets no key in.
"""

import contextlib
import datetime
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.auth.rules import SCOPES, Principal, Scope
from pair.auth.trust import TrustedFile
from pair.clock import Clock, to_timestamp

_KEY = re.compile(r"pair_([0-9a-f]{12})_([0-9a-f]{64})")
_READ_ATTEMPTS = 10
_NOBODY = hashlib.sha256(b"").hexdigest()
"""Compared with when no key has that id, so that this takes as long."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key."""

    id: str
    name: str
    scope: Scope
    sha256: str
    created_at: str
    kbs: tuple[str, ...] | None = None
    """None for all."""
    expires_at: str = ""
    revoked_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """Without the hash: for people."""
        return {
            "id": self.id,
            "name": self.name,
            "scope": self.scope,
            "kbs": None if self.kbs is None else list(self.kbs),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revoked_at": self.revoked_at,
        }


class KeyFile:
    """Used from several threads at once, and changed by several processes."""

    def __init__(
        self, path: Path, clock: Clock, new_secret: Callable[[int], str], trust: TrustedFile | None = None
    ) -> None:
        """`new_secret`: so many random bytes, in hexadecimal. `trust`: decides which bytes count; None for all."""
        self._path = path
        self._clock = clock
        self._new_secret = new_secret
        self._trust = trust
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int, int] | None, dict[str, ApiKey]] = (None, {})

    def add(
        self, name: str, scope: Scope, kbs: Sequence[str], lifetime: datetime.timedelta | None
    ) -> tuple[ApiKey, str]:
        """What is kept, and the key itself."""
        key_id, secret = self._new_secret(6), self._new_secret(32)
        text = f"pair_{key_id}_{secret}"
        now = self._clock.now()
        made = ApiKey(
            key_id,
            name,
            scope,
            hashlib.sha256(text.encode()).hexdigest(),
            to_timestamp(now),
            tuple(sorted(set(kbs))) or None,
            "" if lifetime is None else to_timestamp(now + lifetime),
        )
        with self._changing() as keys:
            keys[key_id] = made
        return made, text

    def all(self) -> list[ApiKey]:
        """Raises E401, E404."""
        return list(self._current().values())

    def revoke(self, key_id: str) -> ApiKey:
        """Raises E613."""
        with self._changing() as keys:
            if key_id not in keys:
                raise errors.no_such_key(key_id)
            if not keys[key_id].revoked_at:
                keys[key_id] = replace(keys[key_id], revoked_at=to_timestamp(self._clock.now()))
            return keys[key_id]

    def verified(self, text: str) -> Principal:
        """Raises E602; E404 while the file is not trusted."""
        found = _KEY.fullmatch(text)
        key = self._current().get(found[1]) if found else None
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        is_same = hmac.compare_digest(digest.encode(), (key.sha256 if key else _NOBODY).encode("utf-8", "replace"))
        if key is None or not is_same:
            raise errors.credentials_refused("the key is not known")
        if key.revoked_at:
            raise errors.credentials_refused("the key was revoked")
        if key.expires_at and key.expires_at <= to_timestamp(self._clock.now()):
            raise errors.credentials_refused("the key has expired")
        kbs = None if key.kbs is None else frozenset(key.kbs)
        return Principal(f"key:{key.name}", key.scope, kbs, credential=f"key {key.id}")

    def _current(self) -> dict[str, ApiKey]:
        signature = self._signature()
        with self._lock:
            if signature is None:
                return {}
            if self._read[0] != signature:
                self._read = signature, self._from_disk()
            return self._read[1]

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            seen = self._path.stat()
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_size, seen.st_mtime_ns

    def _from_disk(self) -> dict[str, ApiKey]:
        return parse_keys(self._trusted_content(), self._path)

    def _trusted_content(self) -> bytes:
        """Read the file once, and check the same bytes; again when another process replaced it in between."""
        for _ in range(_READ_ATTEMPTS):
            signature = self._signature()
            with files.storage_errors():
                content = self._path.read_bytes()
            if self._trust is None or self._trust.trusts(content):
                return content
            if signature == self._signature():
                break
        raise errors.keys_untrusted(str(self._path))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, ApiKey]]:
        with (
            files.storage_errors(),
            files.exclusive_lock(self._path.with_name(f".{self._path.name}.lock"), on_wait=_wait),
        ):
            old = self._trusted_content() if self._path.exists() else None
            keys = {} if old is None else parse_keys(old, self._path)
            yield keys
            entries = [{**key.to_json(), "sha256": key.sha256} for key in keys.values()]
            content = json.dumps({"version": 1, "keys": entries}, indent=2).encode() + b"\n"
            with contextlib.nullcontext() if self._trust is None else self._trust.replacing(old, content):
                files.write_atomically(self._path, content, mode=0o600)


def parse_keys(content: bytes, path: Path) -> dict[str, ApiKey]:
    """Return the keys of a file by id. Raises E401."""
    try:
        kept = [_key_from(each) for each in json.loads(content)["keys"]]
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise errors.settings_invalid(str(path), "not a file of keys") from fault
    return {key.id: key for key in kept}


def _key_from(value: dict[str, Any]) -> ApiKey:
    """Whoever may do what is not guessed: one key of another shape makes the whole file unreadable."""
    kbs = value["kbs"]
    texts = [*(each for name, each in value.items() if name != "kbs"), *(kbs or ())]
    if not all(isinstance(each, str) for each in texts) or not isinstance(kbs, list | None):
        raise ValueError("something else where a text belongs")
    if value["scope"] not in SCOPES:
        raise ValueError("unknown scope")
    if value.get("expires_at"):
        datetime.datetime.fromisoformat(value["expires_at"])
    return ApiKey(**{**value, "kbs": None if kbs is None else tuple(kbs)})


def _wait(_holder: str) -> None:
    """It is not long."""
