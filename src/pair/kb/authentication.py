"""Authentication of a server's callers, by keys or by signed tokens."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pair import errors, files
from pair.auth.rules import Principal, is_loopback
from pair.clock import SystemClock
from pair.kb.trust import key_file
from pair.settings import Settings

if TYPE_CHECKING:
    from pair.auth.tokens import TokenVerifier

_MOST_JWKS_BYTES = 1_000_000
_JWKS_SECONDS = 5.0


def verifier(settings: Settings) -> Callable[[str], Principal] | None:
    """Return what identifies a credential, and raises E602; None without authentication. Raises E401, E404."""
    server = settings.server
    if server.auth == "none":
        if not is_loopback(server.host):
            raise errors.settings_invalid(
                "server.auth",
                f"{server.host} can be reached from other machines, and nobody would be asked who they are",
                hints=[
                    "Let keys in: server.auth: keys, then pair keys add NAME",
                    "Let signed tokens in: server.auth: jwt",
                    "Serve this machine only: --host 127.0.0.1",
                ],
            )
        return None
    if server.auth == "keys":
        keys = key_file(settings)
        keys.all()  # a server whose keys cannot be read does not start
        return keys.authenticate
    return token_verifier(settings).authenticate


def token_verifier(settings: Settings) -> "TokenVerifier":
    """Raises E401."""
    from pair.auth.tokens import TokenVerifier  # noqa: PLC0415 - loads cryptography

    address = settings.server.jwt_jwks
    url = urlsplit(address)
    if url.netloc and url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise errors.settings_invalid("server.jwt_jwks", "keys come over https, or from this machine")
    read = _download if url.netloc else _read
    return TokenVerifier(settings.server, lambda: read(address), SystemClock())


def _read(path: str) -> bytes:
    with files.storage_errors():
        return Path(files.expand_path(path)).read_bytes()


def _download(url: str) -> bytes:
    """Raises E614."""
    import httpx2  # noqa: PLC0415 - only where keys are at an address

    try:
        began = time.monotonic()
        with httpx2.stream("GET", url, timeout=_JWKS_SECONDS, follow_redirects=False) as answer:
            answer.raise_for_status()
            body = b""
            for block in answer.iter_bytes():
                body += block
                if time.monotonic() - began > _JWKS_SECONDS:
                    raise errors.jwks_unreadable(f"it did not arrive within {_JWKS_SECONDS:g} s")
                if len(body) > _MOST_JWKS_BYTES:
                    raise errors.jwks_unreadable("the document is too long")
            return body
    except httpx2.HTTPError as fault:
        raise errors.jwks_unreadable(type(fault).__name__) from fault
