"""Trust for a folder without running the command, for tests of other features."""

import hashlib
import os
from pathlib import Path

from pair.auth.trust import TrustStore
from pair.settings import CONFIG_PLACES


def trust_folder(folder: Path, home: Path) -> None:
    """Trust the configuration of a folder for the user of this home, as `pair trust --yes` does."""
    store, root = TrustStore(home / ".pair" / "trusted.json"), Path(os.path.realpath(folder))
    for place in CONFIG_PLACES:
        path = root / place
        if path.is_file():
            store.record(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
