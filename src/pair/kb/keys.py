"""The keys of the server, for whoever makes them and whoever asks for them."""

import secrets

from pair import files
from pair.auth.keys import KeyFile
from pair.auth.trust import TrustedFile, TrustStore
from pair.clock import SystemClock
from pair.settings import Settings


def key_file(settings: Settings) -> KeyFile:
    """Open the keys file. One that the user did not name counts only with bytes that the trust store knows."""
    path = files.expand_path(settings.server.keys_file)
    trust = TrustedFile(TrustStore(), path) if needs_trust(settings) else None
    return KeyFile(path, SystemClock(), secrets.token_hex, trust)


def needs_trust(settings: Settings) -> bool:
    """Tell whether the keys file is at a place in the folder that the user did not name."""
    name = "server.keys_file"
    is_named = name in settings.named and name not in settings.from_folder
    return not is_named and not files.expand_path(settings.server.keys_file).is_absolute()
