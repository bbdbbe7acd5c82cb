"""The keys of the server, for whoever makes them and whoever asks for them."""

import secrets

from pair import files
from pair.access.keys import KeyFile
from pair.clock import SystemClock
from pair.settings import Settings


def key_file(settings: Settings) -> KeyFile:
    return KeyFile(files.expanded(settings.server.keys_file), SystemClock(), secrets.token_hex)
