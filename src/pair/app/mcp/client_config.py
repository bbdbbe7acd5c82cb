"""The entry of `pair mcp` in the configuration files of assistants.

Invariants
    All other entries stay unchanged. A file that cannot be parsed is not changed.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pair import errors, files

Client = Literal["claude", "cursor", "vscode"]
Outcome = Literal["added", "changed", "unchanged"]

NAME = "pair"
_PLACES: Mapping[Client, tuple[str, str]] = {
    "claude": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}
"""The configuration file in a project, and the key of its servers."""


@dataclass(frozen=True)
class ConfigChange:
    """The new content of a configuration file."""

    path: Path
    content: str
    outcome: Outcome

    def carry_out(self) -> None:
        """Write the file. Raises E010."""
        if self.outcome == "unchanged":
            return
        with files.storage_errors():
            files.make_folder(self.path.parent)
            mode = self.path.stat().st_mode & 0o777 if self.path.exists() else None
            files.write_atomically(self.path, self.content.encode())
            if mode is not None:
                self.path.chmod(mode)


def own_command(started_as: str) -> list[str]:
    """Return the command that starts this program from any folder. `started_as`: the first word of the command line."""
    path = shutil.which(started_as)
    if path is None or Path(path).name == "__main__.py":
        return [sys.executable, "-m", "pair"]
    return [os.path.abspath(path)]  # noqa: PTH100 - keeps symbolic links, which outlive their targets


def plan(client: Client, project: Path, entry: dict[str, Any]) -> ConfigChange:
    """Return the file with the entry added. Raises E010, and E401 if the file cannot be parsed."""
    name, key = _PLACES[client]
    path = (project / name).resolve()
    with files.storage_errors():
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    hints = ["Nothing was changed", "Repair the file, or add the entry by hand: --dry-run prints it"]
    try:
        value = json.loads(text, object_pairs_hook=_refuse_doubles) if text.strip() else {}
        text.encode()
    except (ValueError, RecursionError) as fault:
        raise errors.settings_invalid(str(path), "not JSON, or JSON with comments", hints=hints) from fault
    if not isinstance(value, dict) or not isinstance(value.get(key, {}), dict):
        raise errors.settings_invalid(str(path), f"{key} must be an object of servers", hints=hints)
    servers = value.get(key, {})
    known = servers.get(NAME)
    if known == entry:
        return ConfigChange(path, text, "unchanged")
    merged = {**value, key: {**servers, NAME: entry}}
    indent = re.search(r"\n([ \t]+)\S", text)
    content = json.dumps(merged, indent=indent[1] if indent else "  ", ensure_ascii=False) + "\n"
    return ConfigChange(path, content, "added" if known is None else "changed")


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError if a key occurs twice: one of them would be lost."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
