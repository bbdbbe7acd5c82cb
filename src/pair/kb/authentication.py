"""Authentication of a server's callers, by keys or by signed tokens."""

import contextlib
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
    from pair.network import RequestFault, RetryPolicy  # noqa: PLC0415 - only where keys are at an address
    from pair.web.http_client import HttpClient  # noqa: PLC0415

    # The verifier itself decides when to ask again. The keys come from this address and no other.
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
