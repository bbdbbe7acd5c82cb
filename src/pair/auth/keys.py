"""API keys: add, list, revoke and verify them. Only their hashes are stored.

A key has 256 random bits, so a plain SHA-256 of it cannot be reversed.
Invariants
    The key itself is shown once, when it is made, and never stored.
    A revoked key is refused from the next request on: the file is read again after every change.
    A keys file in the folder counts only if `pair keys` wrote it or `pair trust` accepted it.
"""

import contextlib
import datetime
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pair import errors, files
from pair.auth.rules import Principal, Scope
from pair.auth.trust import TrustedFile
from pair.clock import Clock, to_timestamp
from pair.values import convert_json

_KEY = re.compile(r"pair_([0-9a-f]{12})_([0-9a-f]{64})")
_READ_ATTEMPTS = 10
_UNKNOWN_HASH = hashlib.sha256(b"").hexdigest()
"""The hash to compare with for an unknown id, so that the comparison takes the same time."""


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored part of a key. One invalid key makes the whole file unreadable."""

    id: str
    name: str
    scope: Scope
    sha256: str
    created_at: str
    kbs: tuple[str, ...] | None
    """KBs that the key allows; None for all."""
    expires_at: str = ""
    revoked_at: str = ""

    def __post_init__(self) -> None:
        if self.expires_at:
            datetime.datetime.fromisoformat(self.expires_at)

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the hash."""
        names = ("id", "name", "scope", "kbs", "created_at", "expires_at", "revoked_at")
        return {name: getattr(self, name) for name in names}


class KeyFile:
    """The keys of a server. Thread-safe; several processes may change the file."""

    def __init__(
        self, path: Path, clock: Clock, new_secret: Callable[[int], str], trust: TrustedFile | None = None
    ) -> None:
        """Prepare the file without reading it. `new_secret`: returns random bytes as hex. `trust`: None to trust any
        content.
        """
        self._path = path
        self._clock = clock
        self._new_secret = new_secret
        self._trust = trust
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int, int] | None, dict[str, ApiKey]] = (None, {})

    def add(
        self, name: str, scope: Scope, kbs: Sequence[str], lifetime: datetime.timedelta | None
    ) -> tuple[ApiKey, str]:
        """Add a key. Return its stored part, and the key itself."""
        key_id, secret = self._new_secret(6), self._new_secret(32)
        text = f"pair_{key_id}_{secret}"
        now = self._clock.now()
        key = ApiKey(
            key_id,
            name,
            scope,
            hashlib.sha256(text.encode()).hexdigest(),
            to_timestamp(now),
            tuple(sorted(set(kbs))) or None,
            "" if lifetime is None else to_timestamp(now + lifetime),
        )
        with self._change() as keys:
            keys[key_id] = key
        return key, text

    def all(self) -> list[ApiKey]:
        """Return all keys. Raises E401, E404."""
        return list(self._load().values())

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key. Raises E613."""
        with self._change() as keys:
            if key_id not in keys:
                raise errors.no_such_key(key_id)
            if not keys[key_id].revoked_at:
                keys[key_id] = msgspec.structs.replace(keys[key_id], revoked_at=to_timestamp(self._clock.now()))
            return keys[key_id]

    def authenticate(self, text: str) -> Principal:
        """Return the owner of a key. Raises E602; E404 while the file is not trusted."""
        match = _KEY.fullmatch(text)
        key = self._load().get(match[1]) if match else None
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        stored = key.sha256 if key else _UNKNOWN_HASH
        if not hmac.compare_digest(digest.encode(), stored.encode("utf-8", "replace")) or key is None:
            raise errors.credentials_refused("the key is not known")
        if key.revoked_at:
            raise errors.credentials_refused("the key was revoked")
        if key.expires_at and key.expires_at <= to_timestamp(self._clock.now()):
            raise errors.credentials_refused("the key has expired")
        kbs = None if key.kbs is None else frozenset(key.kbs)
        return Principal(f"key:{key.name}", key.scope, kbs, credential=f"key {key.id}")

    def _load(self) -> dict[str, ApiKey]:
        """Return the keys by id; read the file only after a change."""
        signature = self._signature()
        with self._lock:
            if signature is None:
                return {}
            if self._read[0] != signature:
                self._read = signature, parse_keys(self._read_trusted(), self._path)
            return self._read[1]

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read_trusted(self) -> bytes:
        """Return the bytes of the file if they are trusted; read again after another process replaced it."""
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
    def _change(self) -> Iterator[dict[str, ApiKey]]:
        """Yield the keys, and store them as the block changes them."""
        lock_path = self._path.with_name(f".{self._path.name}.lock")
        with files.storage_errors(), files.exclusive_lock(lock_path, on_wait=lambda _holder: None):
            old = self._read_trusted() if self._path.exists() else None
            keys = {} if old is None else parse_keys(old, self._path)
            yield keys
            entries = [{**key.to_json(), "sha256": key.sha256} for key in keys.values()]
            content = json.dumps({"version": 1, "keys": entries}, indent=2).encode() + b"\n"
            with contextlib.nullcontext() if self._trust is None else self._trust.replacing(old, content):
                files.write_atomically(self._path, content, mode=0o600)


def parse_keys(content: bytes, path: Path) -> dict[str, ApiKey]:
    """Return the keys of a file by id. Raises E401."""
    try:
        keys = convert_json(json.loads(content)["keys"], list[ApiKey])
    except (ValueError, LookupError, TypeError, RecursionError) as fault:
        hint = "Restore it from a backup, or move it away and create new keys: pair keys add NAME"
        raise errors.settings_invalid(str(path), "not a file of keys", hints=[hint]) from fault
    return {key.id: key for key in keys}
