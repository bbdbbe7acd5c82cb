"""Trust: callers of a server by their credentials, and files of a folder by the trust store."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pair import errors, files
from pair.auth.keys import ApiKey, KeyFile, parse_keys
from pair.auth.rules import Principal, is_loopback
from pair.auth.settings import ServerSettings
from pair.auth.trust import TrustedFile, TrustRequest, TrustStore, resolve_place
from pair.clock import SystemClock
from pair.settings import CONFIG_PLACES, FolderConfig, Settings, read_folder_config
from pair.values import redact_url

if TYPE_CHECKING:
    from pair.auth.tokens import TokenVerifier

_HIDDEN = "…"
_MOST_JWKS_BYTES = 1_000_000
_JWKS_SECONDS = 5.0


def key_file(settings: Settings) -> KeyFile:
    """Open the keys file. A file that the user did not name is used only if the trust store knows its bytes."""
    path = files.expand_path(settings.server.keys_file)
    trust = TrustedFile(TrustStore(), path) if _needs_trust(settings) else None
    return KeyFile(path, SystemClock(), secrets.token_hex, trust)


def _needs_trust(settings: Settings) -> bool:
    """Return whether the keys file is in the folder and was not named by the user."""
    name = "server.keys_file"
    is_named = name in settings.named and name not in settings.from_folder
    return not is_named and not files.expand_path(settings.server.keys_file).is_absolute()


@dataclass(frozen=True)
class FolderKeys:
    """The keys file of the folder."""

    path: Path
    sha256: str
    keys: tuple[ApiKey, ...]
    is_trusted: bool

    def to_json(self) -> dict[str, Any]:
        keys = [key.to_json() for key in self.keys]
        return {"path": str(self.path), "sha256": self.sha256, "trusted": self.is_trusted, "keys": keys}


@dataclass(frozen=True)
class Review:
    """The files of a folder that need trust, with the hashes of the bytes that were read."""

    folder: str
    config: FolderConfig | None
    keys: FolderKeys | None
    unread: tuple[str, ...] = ()
    """Configurations that are not used, because another one comes first."""

    @property
    def pending(self) -> "list[FolderConfig | FolderKeys]":
        """The files that are not fully trusted yet."""
        config = [self.config] if self.config is not None and self.config.ignored else []
        return [*config, *([self.keys] if self.keys is not None and not self.keys.is_trusted else [])]

    def to_json(self) -> dict[str, Any]:
        config = self.config
        shown = config and {
            "path": str(config.path),
            "sha256": config.sha256,
            "trusted": not config.ignored,
            "requests": [request.to_json() | {"value": show_value(request)} for request in config.requests],
        }
        keys = self.keys and self.keys.to_json()
        return {"folder": self.folder, "trusted": not self.pending, "config": shown, "keys_file": keys}


def review(config_path: str | None = None) -> Review:
    """Read the files of the current folder. Raises E403 if there is nothing to trust, E401, E010."""
    folder = os.path.realpath(os.curdir)
    config, keys, path = read_folder_config(config_path), None, _keys_path(config_path)
    if path is not None and path.exists():
        with files.storage_errors():
            content = path.read_bytes()
        parsed = tuple(parse_keys(content, path).values())
        is_trusted = TrustStore().trusts(resolve_place(path), content)
        keys = FolderKeys(path, hashlib.sha256(content).hexdigest(), parsed, is_trusted)
    if config is None and keys is None:
        raise errors.nothing_to_trust(folder)
    read = config and str(config.path)
    unread = tuple(place for place in CONFIG_PLACES if config and place != read and Path(place).is_file())
    return Review(folder, config, keys, unread)


def _keys_path(config_path: str | None) -> Path | None:
    """Return the path of the keys file if it needs trust."""
    try:
        settings = Settings.load(config_path, on_ignored=lambda text: None)
    except errors.UsageError:
        return None  # No server starts with these settings.
    return files.expand_path(settings.server.keys_file) if _needs_trust(settings) else None


def trust(reviewed: FolderConfig | FolderKeys) -> None:
    """Trust the reviewed bytes. A file that changed since stays untrusted. Raises E401, E010."""
    TrustStore().record(resolve_place(reviewed.path), reviewed.sha256)


def revoke(config_path: str | None = None) -> list[str]:
    """Remove the files of the current folder from the trust store; return those that were in it. Raises E401, E010."""
    store = TrustStore()
    files_here = [*CONFIG_PLACES, ServerSettings.keys_file, _keys_path(config_path)]
    places = [resolve_place(path) for path in files_here if path is not None]
    known = [place for place in store.entries() if place in places]
    store.forget(*known)
    return known


def show_value(request: TrustRequest) -> Any:
    """Return the requested value of a configuration, without credentials."""
    return _HIDDEN if request.need == "credential" and isinstance(request.value, str) else _redact(request.value)


def _redact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _HIDDEN if key == "token" else _redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_redact(item) for item in value]
    return redact_url(value) if isinstance(value, str) else value if isinstance(value, int | float) else str(value)


def verifier(settings: Settings) -> Callable[[str], Principal] | None:
    """Return the function that authenticates a credential or raises E602; None without authentication.

    Raises E401, E404.
    """
    server = settings.server
    if server.auth == "none":
        if not is_loopback(server.host):
            raise errors.settings_invalid(
                "server.auth",
                f"{server.host} can be reached from other machines without authentication",
                hints=[
                    "Require keys: server.auth: keys, then pair keys add NAME",
                    "Require signed tokens: server.auth: jwt",
                    "Serve this machine only: --host 127.0.0.1",
                ],
            )
        return None
    if server.auth == "keys":
        keys = key_file(settings)
        keys.all()  # A server must not start with unreadable keys.
        return keys.authenticate
    return token_verifier(settings).authenticate


def token_verifier(settings: Settings) -> "TokenVerifier":
    """Return the verifier of signed tokens. Raises E401."""
    from pair.auth.tokens import TokenVerifier  # noqa: PLC0415 - loads cryptography

    address = settings.server.jwt_jwks
    try:
        url = urlsplit(address)
    except ValueError as fault:
        raise errors.settings_invalid("server.jwt_jwks", f"the address is not valid: {fault}") from fault
    if url.netloc and url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise errors.settings_invalid("server.jwt_jwks", "the address must use https, or be on this machine")

    def read_jwks() -> bytes:
        if url.netloc:
            return _download(address)
        with files.storage_errors():
            return Path(files.expand_path(address)).read_bytes()

    return TokenVerifier(settings.server, read_jwks, SystemClock())


def _download(url: str) -> bytes:
    """Return the document at an address. Raises E614."""
    from pair.network import RequestFault, RetryPolicy  # noqa: PLC0415 - only where keys are at an address
    from pair.web.http_client import HttpClient  # noqa: PLC0415

    # No retries: the verifier decides when to read again. No redirects: only this address is trusted.
    client = HttpClient(
        timeout_seconds=_JWKS_SECONDS, retry_policy=RetryPolicy(0, 0), clock=SystemClock(), follow_redirects=False
    )
    try:
        with contextlib.closing(client):
            answer = client.read(url, {}, limit_bytes=_MOST_JWKS_BYTES, limit_seconds=_JWKS_SECONDS)
    except RequestFault as fault:
        raise errors.jwks_unreadable(fault.reason) from fault
    if answer.status != 200:
        raise errors.jwks_unreadable(f"HTTP {answer.status}")
    return answer.body
