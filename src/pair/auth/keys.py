"""API keys: add, list, revoke and verify them. Only their hashes are stored.

A key has 256 random bits, so a plain SHA-256 of it cannot be turned back: there is nothing to guess.

Invariants
    The key itself is shown once, when it is made, and never written anywhere.
    A revoked key is refused by the next request: the file is read again whenever it changed.
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
from pathlib import Path
from typing import Any

import msgspec

from pair import errors, files
from pair.auth.rules import Principal, Scope
from pair.auth.trust import TrustedFile
from pair.clock import Clock, to_timestamp

_KEY = re.compile(r"pair_([0-9a-f]{12})_([0-9a-f]{64})")
_READ_ATTEMPTS = 10
_UNKNOWN_HASH = hashlib.sha256(b"").hexdigest()
"""Compared with when no key has that id, so that this takes as long."""


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored part of a key. Permissions are not guessed: one bad key makes the whole file unreadable."""

    id: str
    name: str
    scope: Scope
    sha256: str
    created_at: str
    kbs: tuple[str, ...] | None
    """None for all."""
    expires_at: str = ""
    revoked_at: str = ""

    def __post_init__(self) -> None:
        if self.expires_at:
            datetime.datetime.fromisoformat(self.expires_at)

    def to_json(self) -> dict[str, Any]:
        """Return the key for people: without the hash."""
        names = ("id", "name", "scope", "kbs", "created_at", "expires_at", "revoked_at")
        return {name: getattr(self, name) for name in names}


class StoredKeys(msgspec.Struct):
    """The content of a keys file."""

    keys: list[ApiKey]


class KeyFile:
    """The keys of a server. Used from several threads at once, and changed by several processes."""

    def __init__(
        self, path: Path, clock: Clock, new_secret: Callable[[int], str], trust: TrustedFile | None = None
    ) -> None:
        """`new_secret`: returns random bytes as hex. `trust`: decides which bytes count; None for all."""
        self._path = path
        self._clock = clock
        self._new_secret = new_secret
        self._trust = trust
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int, int] | None, dict[str, ApiKey]] = (None, {})

    def add(
        self, name: str, scope: Scope, kbs: Sequence[str], lifetime: datetime.timedelta | None
    ) -> tuple[ApiKey, str]:
        """Return the stored part, and the key itself."""
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
        """Raises E401, E404."""
        return list(self._load().values())

    def revoke(self, key_id: str) -> ApiKey:
        """Raises E613."""
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
        is_same = hmac.compare_digest(
            digest.encode(), (key.sha256 if key else _UNKNOWN_HASH).encode("utf-8", "replace")
        )
        if key is None or not is_same:
            raise errors.credentials_refused("the key is not known")
        if key.revoked_at:
            raise errors.credentials_refused("the key was revoked")
        if key.expires_at and key.expires_at <= to_timestamp(self._clock.now()):
            raise errors.credentials_refused("the key has expired")
        kbs = None if key.kbs is None else frozenset(key.kbs)
        return Principal(f"key:{key.name}", key.scope, kbs, credential=f"key {key.id}")

    def _load(self) -> dict[str, ApiKey]:
        """Return the keys by id; read the file only when it changed."""
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
    def _change(self) -> Iterator[dict[str, ApiKey]]:
        """Write the keys back as the block leaves them."""
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
        stored = msgspec.convert(json.loads(content), StoredKeys)
    except (ValueError, RecursionError) as fault:
        raise errors.settings_invalid(str(path), "not a file of keys") from fault
    return {key.id: key for key in stored.keys}
