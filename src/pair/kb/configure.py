"""Edits of collections in the configuration file, as text, so that comments and order stay; and of the links file.

Invariants
    The edited text is parsed before it is written. If more than the one collection differs, nothing is written.
    An edit does not change whether a file is trusted, or who may read it.
    A lock on the folder holds from reading to writing, so that edits at the same time are all kept.
"""

import contextlib
import json
import os
import re
import stat
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pair import errors, files
from pair.auth.trust import TrustedFile, TrustStore
from pair.settings import (
    COLLECTIONS,
    CONFIG_PLACES,
    CheckedConfig,
    Settings,
    check_config,
    compose_config,
    find_config,
)
from pair.sync.rules import parse_links

_PLAIN = re.compile(r"[A-Za-z./][A-Za-z0-9./_-]*")
_MOST_LINK_CHARACTERS = 2_000
_AMBIGUOUS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


@dataclass(frozen=True)
class EditedConfig:
    """The result of an edit."""

    path: Path
    lines: tuple[str, ...]
    """The lines that were added or removed."""
    needs_trust: bool = False
    """Whether the collection works only after `pair trust`."""


def add_collection(config: str | None, name: str, entry: Mapping[str, Any]) -> EditedConfig:
    """Add a collection to the configuration. Raises E401 and writes nothing if the name exists, or the edit is not
    possible.
    """
    with _edit(config) as edit:
        known = edit.checked.values.get(COLLECTIONS) or {}
        if name in known:
            hints = ["Choose another name: --name NAME", f"pair remove {name}"]
            raise edit.refuse(f"it has a collection {name}", hints)
        fields = [f"{key}: {_format_value(value)}" for key, value in entry.items()]
        edit.hint = f"Add to kb.collections: {name}: {{{', '.join(fields)}}}"
        lines = [f"{name}:", *(f"  {field}" for field in fields)]
        edited = edit.write(_insert(edit, lines), {**known, name: dict(entry)}, lines)
        return replace(edited, needs_trust=edit.lacks_trust(f"{COLLECTIONS}.{name}"))


def remove_collection(config: str | None, name: str) -> EditedConfig:
    """Remove a collection from the configuration. Raises E401 and writes nothing if it does not exist."""
    with _edit(config) as edit:
        known = dict(edit.checked.values.get(COLLECTIONS) or {})
        if name not in known:
            named = ", ".join(known) or "none"
            raise edit.refuse(f"it has no collection {name}", [f"Collections: {named}", "pair collections"])
        edit.hint = f"Remove {name} from kb.collections"
        del known[name]
        top, collections = _find_pair(_find_pair(edit.root, "kb")[1], "collections")
        is_whole = collections.flow_style and not known
        key, value = (top, collections) if is_whole else _find_pair(collections, name)
        removed = set(range(key.start_mark.line, _last_line(value) + 1))
        removed |= set() if known else {top.start_mark.line}  # Comments between the two stay.
        lines = list(enumerate(edit.text.splitlines(keepends=True)))
        rest = "".join(line for number, line in lines if number not in removed)
        gone = "".join(line for number, line in lines if number in removed)
        return edit.write(rest, known, textwrap.dedent(gone).splitlines())


@contextlib.contextmanager
def _edit(config: str | None) -> "Iterator[_Edit]":
    """Read the configuration for an edit, and keep other edits out until the block ends."""
    path, _ = find_config(config)
    folder = (path or Path(CONFIG_PLACES[0])).parent
    with files.storage_errors(), files.lock_folder(folder, on_wait=lambda _holder: None):
        yield _Edit(config)


def add_link(settings: Settings, url: str) -> bool:
    """Add a web page to the links file. Return False if the file names it already. Raises E601.

    Other processes may add links at the same time.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # of an IPv6 address
        parts = urlsplit("")
    is_plain = url.isprintable() and not any(mark in url for mark in ' \\"<>') and len(url) <= _MOST_LINK_CHARACTERS
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None or not is_plain:
        raise errors.request_invalid("url: not the address of a web page: https://example.com/guide")
    path = files.expand_path(settings.kb.links_file_path).absolute()
    with files.storage_errors(), files.lock_folder(path.parent, on_wait=lambda _holder: None):
        content = files.read_file(path) if path.exists() else b""
        if url in parse_links(content.decode("utf-8", errors="replace")):
            return False
        gap = b"" if not content or content.endswith(b"\n") else b"\n"
        files.write_atomically(path, content + gap + url.encode() + b"\n")
    return True


class _Edit:
    """The configuration file before the edit, and the check of the edited text."""

    def __init__(self, config: str | None) -> None:
        found, self.is_named = find_config(config)
        self.path = found or Path(CONFIG_PLACES[0])
        self.content = self.path.read_bytes() if found is not None else b""
        self.checked = check_config(self.content, self.path)
        self.root = compose_config(self.content, self.path)
        self.text = self.content.decode("utf-8")
        self.hint = ""
        """What the user can do if the form of the file cannot be edited."""

    def refuse(self, reason: str, hints: list[str]) -> errors.UsageError:
        return errors.settings_invalid(str(self.path), f"{reason}. Nothing was written", hints=hints)

    def write(self, text: str, collections: dict[str, Any], lines: list[str]) -> EditedConfig:
        """Write the text if it parses to the wanted settings, and keep the trust in the file."""
        content = text.encode("utf-8")
        after = check_config(content, self.path)
        expected = {name: value for name, value in self.checked.values.items() if name != COLLECTIONS}
        if collections:
            expected[COLLECTIONS] = collections
        if {
            name: value for name, value in after.values.items() if value is not None or name != COLLECTIONS
        } != expected:
            raise self.refuse_form()
        mode = 0o666
        if self.path.exists():
            os.close(files.open_file(self.path, os.O_WRONLY))  # A rename would replace a write-protected file.
            mode = stat.S_IMODE(self.path.stat().st_mode)
        with self._keep_trust(after, content):
            files.write_atomically(self.path, content, mode=mode)
        return EditedConfig(self.path, tuple(lines))

    def lacks_trust(self, key: str) -> bool:
        """Return whether the file, as it was written, sets this key without the trust that it needs."""
        content = self.path.read_bytes()
        is_request = any(request.key == key for request in check_config(content, self.path).requests)
        return is_request and not self.is_named and not TrustedFile(TrustStore(), self.path).trusts(content)

    def refuse_form(self) -> errors.UsageError:
        return self.refuse("its form cannot be edited", [self.hint])

    @contextlib.contextmanager
    def _keep_trust(self, after: CheckedConfig, content: bytes) -> Any:
        """Trust the new bytes if the old ones were trusted, or needed no trust: the user made the change."""
        store = TrustStore()
        needed = bool(self.checked.requests)
        if self.is_named or not after.requests:
            yield
        elif not needed or TrustedFile(store, self.path).trusts(self.content):
            old = self.content if needed else None
            with TrustedFile(store, self.path).replacing(old, content):
                yield
        else:
            yield


def _insert(edit: _Edit, lines: list[str]) -> str:
    """Return the text with the lines of a collection at their place. Raises E401 if the form of the file is not
    supported.
    """
    root = edit.root
    if _is_empty(root):
        return _append(edit.text, -1, 0, ["kb:", "  collections:", *(f"    {line}" for line in lines)])
    kb = _find_pair(root, "kb", optional=True)
    if root.flow_style:
        raise edit.refuse_form()
    if kb is None:
        block = ["kb:", "  collections:", *(f"    {line}" for line in lines)]
        return _append(edit.text, _last_line(root), root.start_mark.column, block)
    if _is_empty(kb[1]):
        column = kb[0].start_mark.column + 2
        return _append(edit.text, kb[0].start_mark.line, column, ["collections:", *(f"  {line}" for line in lines)])
    given = _find_pair(kb[1], "collections", optional=True)
    if given is None:
        column = kb[1].start_mark.column
        block = ["collections:", *(f"  {line}" for line in lines)]
        if kb[1].flow_style:
            raise edit.refuse_form()
        return _append(edit.text, _last_line(kb[1]), column, block)
    key, value = given
    if _is_empty(value):
        return _append(edit.text, key.start_mark.line, key.start_mark.column + 2, lines)
    if value.flow_style:
        raise edit.refuse_form()
    return _append(edit.text, _last_line(value), value.start_mark.column, lines)


def _append(text: str, line: int, column: int, added: list[str]) -> str:
    """Return the text with lines after one of its lines, indented to a column."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if line < 0:
        line = len(lines) - 1
    if lines and not lines[line].endswith("\n"):
        lines[line] += end
    lines[line + 1 : line + 1] = [" " * column + each + end for each in added]
    return "".join(lines)


def _find_pair(node: Any, name: str, *, optional: bool = False) -> Any:
    """Return the nodes of a key and its value."""
    for key, value in node.value if node is not None and node.id == "mapping" else ():
        if key.value == name:
            return key, value
    if optional:
        return None
    raise LookupError(name)


def _is_empty(node: Any) -> bool:
    return node is None or (node.id == "scalar" and node.tag.endswith(":null"))


def _last_line(node: Any) -> int:
    """Return the line that a value ends on; comments after the value are not part of it."""
    if node.id == "mapping" and not node.flow_style:
        return max(_last_line(value) for _, value in node.value)
    if node.id == "sequence" and not node.flow_style:
        return max(map(_last_line, node.value))
    is_block_scalar = bool(node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line)
    return int(node.end_mark.line) - is_block_scalar


def _format_value(value: Any) -> str:
    """Return a value as YAML: plain words, else JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _AMBIGUOUS:
        return value
    return json.dumps(value, ensure_ascii=False)
