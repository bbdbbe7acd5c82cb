"""Which file a key is kept in: reversible, and the same on file systems that fold case or normalise Unicode.

Invariants
    Ordinary keys look as they are: `handbook.duckdb.shards/0a1b/shard-00000.duckdb` is that file.
    The name of a folder has no dot or ends in `.shards`, that of a blob's file has a dot and does not end so: `a` and
    `a/b` can both be blobs.
    No name in the top folder begins with a dot, so a hidden folder there is free for the store itself.
"""

import re
from collections.abc import Sequence
from urllib.parse import unquote

_UNTOUCHED = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_DOTLESS_FILE = ".%"
"""Ends the name of a file that would look like a folder's; a `%` without two digits comes from no key."""
_FOLDER_ENDING = ".shards"
_CONTINUED = "%~"
"""Ends the name of a folder that holds the rest of a part too long for one name."""
_MAX_NAME_BYTES = 240


def names_of(key: str) -> tuple[str, ...]:
    """`a/b.json` -> `("a", "b.json")`; the last one is the file."""
    *folders, file = key.split("/")
    return (*folder_names(folders), *_cut(_file_name(file)))


def folder_names(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for part in parts for name in _cut(_folder_name(part)))


def key_of(names: Sequence[str]) -> str | None:
    """None for a file that no key leads to."""
    parts, begun = [], ""
    for name in names:
        if name.endswith(_CONTINUED):
            begun += name.removesuffix(_CONTINUED)
        else:
            parts.append(begun + name)
            begun = ""
    if begun or not parts:
        return None
    parts[-1] = parts[-1].removesuffix(_DOTLESS_FILE)
    try:
        key = "/".join(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        return None
    return key if names_of(key) == tuple(names) else None


def _folder_name(part: str) -> str:
    name = _quoted(part)
    return name if name.endswith(_FOLDER_ENDING) else name.replace(".", "%2e")


def _file_name(part: str) -> str:
    name = _quoted(part)
    return name if "." in name and not name.endswith(_FOLDER_ENDING) else name + _DOTLESS_FILE


def _quoted(part: str) -> str:
    quoted = "".join(character if character in _UNTOUCHED else _codes(character) for character in part)
    return re.sub(r"^\.", "%2e", quoted)


def _codes(character: str) -> str:
    # Capital letters too: `Readme` and `readme` are one name on some file systems.
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8"))


def _cut(name: str) -> list[str]:
    pieces = [name[start : start + _MAX_NAME_BYTES] for start in range(0, len(name), _MAX_NAME_BYTES)]
    return [*(piece + _CONTINUED for piece in pieces[:-1]), pieces[-1]]
