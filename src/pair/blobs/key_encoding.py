"""Valid keys of blobs, and the file name of each: reversible, and the same where file systems fold case or Unicode.

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
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+"
KEY = re.compile(f"{_PART}(?:/{_PART})*")
"""What a key looks like. SeaweedFS for one takes a backslash for a slash."""
MAX_KEY_BYTES = 1000
"""S3 allows 1,024, and the prefix of the store needs some of them."""


def check_key(key: str) -> str:
    """Return the key. Raises ValueError for one that not every store can hold."""
    if reason := _find_fault(key):
        raise ValueError(f"{reason}: {key!r}")
    return key


def find_folder(prefix: str) -> tuple[str, ...] | None:
    """Return the folder of all keys that begin so; None when no key can."""
    parts = tuple(prefix.split("/")[:-1])
    return None if parts and _find_fault("/".join(parts)) else parts


def _find_fault(key: str) -> str:
    if not KEY.fullmatch(key):
        return "a key has no empty part, none that leads elsewhere, no control character, backslash or surrogate"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"a key has at most {MAX_KEY_BYTES} bytes in UTF-8"
    return ""


def encode_key(key: str) -> tuple[str, ...]:
    """Return the names of the folders and, last, of the file: `a/b.json` -> `("a", "b.json")`."""
    *folders, part = key.split("/")
    name = _quote(part)
    if "." not in name or name.endswith(_FOLDER_ENDING):
        name += _DOTLESS_FILE
    return (*encode_folders(folders), *_cut(name))


def encode_folders(parts: Sequence[str]) -> tuple[str, ...]:
    quoted = [_quote(part) for part in parts]
    names = [name if name.endswith(_FOLDER_ENDING) else name.replace(".", "%2e") for name in quoted]
    return tuple(piece for name in names for piece in _cut(name))


def decode_key(names: Sequence[str]) -> str | None:
    """Return the key of a file; None for a file that no key leads to."""
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
    return key if encode_key(key) == tuple(names) else None


def _quote(part: str) -> str:
    """Quote also capital letters: `Readme` and `readme` are one name on some file systems."""
    quoted = "".join(chr(byte) if chr(byte) in _UNTOUCHED else f"%{byte:02x}" for byte in part.encode("utf-8"))
    return re.sub(r"^\.", "%2e", quoted)


def _cut(name: str) -> list[str]:
    pieces = [name[start : start + _MAX_NAME_BYTES] for start in range(0, len(name), _MAX_NAME_BYTES)]
    return [*(piece + _CONTINUED for piece in pieces[:-1]), pieces[-1]]
