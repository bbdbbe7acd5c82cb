"""`pair mcp` in the configuration of assistants: what to write, and where.

Invariants
    All else in a file stays as it was; one that cannot be read as what it should be is not touched.
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
"""Of the entry."""
_PLACES: Mapping[Client, tuple[str, str]] = {
    "claude": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}
"""In the folder of a project; and under which key servers are listed there."""
_USUAL_INDENT = "  "


@dataclass(frozen=True)
class ClientEntry:
    """How to start a server."""

    command: str
    arguments: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"type": "stdio", "command": self.command, "args": list(self.arguments)}


@dataclass(frozen=True)
class ConfigChange:
    """A file as it would be."""

    path: Path
    content: str
    outcome: Outcome

    def carry_out(self) -> None:
        """Raises E010."""
        if self.outcome == "unchanged":
            return
        with files.storage_errors():
            files.make_folder(self.path.parent)
            mode = self.path.stat().st_mode & 0o777 if self.path.exists() else None
            files.write_atomically(self.path, self.content.encode())
            if mode is not None:
                self.path.chmod(mode)


def own_command(started_as: str) -> list[str]:
    """What starts this program from anywhere. `started_as`: the first word of the command line."""
    found = shutil.which(started_as)
    if found is None or Path(found).name == "__main__.py":
        return [sys.executable, "-m", "pair"]
    return [os.path.abspath(found)]  # noqa: PTH100 - keeps links, which outlive what they lead to


def plan(client: Client, project: Path, entry: ClientEntry) -> ConfigChange:
    """Raises E010, and E401 for a file that is not what it should be."""
    name, key = _PLACES[client]
    path = (project / name).resolve()
    with files.storage_errors():
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    value = _read(path, text, key)
    servers = value.get(key, {})
    known = servers.get(NAME)
    if known == entry.to_json():
        return ConfigChange(path, text, "unchanged")
    merged = {**value, key: {**servers, NAME: entry.to_json()}}
    content = json.dumps(merged, indent=_indent_of(text), ensure_ascii=False) + "\n"
    return ConfigChange(path, content, "added" if known is None else "changed")


def _read(path: Path, text: str, key: str) -> dict[str, Any]:
    """Raises E401."""
    hints = ["Nothing was changed", "Repair it, or add the entry by hand: --dry-run prints it"]
    try:
        value = json.loads(text, object_pairs_hook=_without_doubles) if text.strip() else {}
        text.encode()
    except (ValueError, RecursionError) as fault:
        raise errors.settings_invalid(str(path), "not JSON, or JSON with comments", hints=hints) from fault
    if not isinstance(value, dict) or not isinstance(value.get(key, {}), dict):
        raise errors.settings_invalid(str(path), f"{key} is to be an object of servers", hints=hints)
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What is there twice would be lost."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


def _indent_of(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else _USUAL_INDENT
