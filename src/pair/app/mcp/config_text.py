"""Edits of one entry in a JSON or TOML file. Comments, order and layout of the rest stay.

Invariants
    The edited text is parsed again: unless it says exactly what was meant, the edit fails with ValueError.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tomli_w

_TOKEN = re.compile(
    r'(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[{}\[\],:])|(?P<word>[^\s{}\[\],:"/]+)',
    re.DOTALL,
)
_MOST_DEPTH = 100
Entry = dict[str, Any]


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    end: int


@dataclass
class _Node:
    """A parsed value and its place in the text."""

    value: Any
    start: int
    end: int = 0
    members: dict[str, tuple[int, "_Node"]] = field(default_factory=dict)
    """Members of an object: where the key begins, and the value."""


class _JsonParser:
    """A parser of JSON with comments and trailing commas, as editors accept it. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_split(text), _Token("", len(text), len(text))]
        self._place = 0

    def read(self) -> _Node:
        node = self._read_value(0)
        if self._peek().text:
            raise ValueError("text after the end")
        return node

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, wanted: str = "") -> _Token:
        token = self._peek()
        if not token.text or (wanted and token.text != wanted):
            raise ValueError(f"{wanted or 'a value'} is missing")
        self._place += 1
        return token

    def _read_value(self, depth: int) -> _Node:
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        token = self._take()
        node = _Node(None, token.start)
        if token.text == "{":
            self._read_members(node, depth)
        elif token.text == "[":
            node.value = []
            while self._peek().text != "]":
                node.value.append(self._read_value(depth + 1).value)
                if self._peek().text != "]":
                    self._take(",")
            self._take("]")
        else:
            node.value = json.loads(token.text)
        node.end = self._tokens[self._place - 1].end
        return node

    def _read_members(self, node: _Node, depth: int) -> None:
        while self._peek().text != "}":
            key = self._take()
            name = json.loads(key.text)
            if not isinstance(name, str) or name in node.members:
                raise ValueError("a key occurs twice, or is not a string")
            self._take(":")
            node.members[name] = key.start, self._read_value(depth + 1)
            if self._peek().text != "}":
                self._take(",")
        self._take("}")
        node.value = {name: member.value for name, (_, member) in node.members.items()}


def _split(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError("not JSON")
        if match.lastgroup != "skip":
            yield _Token(match[0], match.start(), match.end())
        place = match.end()


def read_json(text: str) -> Any:
    """Parse JSON with comments. Raises ValueError."""
    return _JsonParser(text).read().value if text.strip() else {}


def edit_json(text: str, key: str, name: str, entry: Entry | None) -> str:
    """Return the text with `entry` at `key.name`; None removes it. Raises ValueError."""
    if not text.strip():
        return json.dumps({key: {name: entry}}, indent=2, ensure_ascii=False) + "\n" if entry is not None else text
    root = _JsonParser(text).read()
    wanted = _change(root.value, key, name, entry)
    indent = _find_indent(text)
    group = root.members[key][1] if key in root.members else None
    if entry is None:
        edited = text if group is None or name not in group.members else _cut(text, *group.members[name])
    elif group is None:
        edited = _insert(text, root, "", key, json.dumps({name: entry}, indent=indent, ensure_ascii=False))
    else:
        value = json.dumps(entry, indent=indent, ensure_ascii=False)
        if name in group.members:
            node = group.members[name][1]
            edited = text[: node.start] + value.replace("\n", "\n" + indent * 2) + text[node.end :]
        else:
            edited = _insert(text, group, indent, name, value)
    if read_json(edited) != wanted:
        raise ValueError("the entry cannot be edited")
    return edited


def _find_indent(text: str) -> str:
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _insert(text: str, target: _Node, outer: str, name: str, value: str) -> str:
    """Add a member at the beginning of an object, where no comma or comment is in the way."""
    place, indent = target.start + 1, outer + _find_indent(text)
    member = f"\n{indent}{json.dumps(name)}: " + value.replace("\n", "\n" + indent)
    rest = text[place:]
    if target.members:
        return text[:place] + member + "," + rest
    is_on_one_line = not rest.partition("}")[0].strip(" \t")
    return text[:place] + member + (f"\n{outer}{rest.lstrip()}" if is_on_one_line else rest)


def _cut(text: str, start: int, node: _Node) -> str:
    """Remove a member, its line break, and the comma after it or before it."""
    before, after = text[:start], text[node.end :]
    if after.lstrip().startswith(","):
        after = after.lstrip()[1:]
    elif before.rstrip().endswith(","):
        before = before.rstrip()[:-1]
    return before.rstrip() + after


def _change(value: Any, key: str, name: str, entry: Entry | None) -> Any:
    """Return the value with the entry changed. Raises ValueError if it cannot hold entries."""
    if not isinstance(value, dict) or not isinstance(value.get(key, {}), dict):
        raise ValueError(f"{key} must be an object of servers")
    if entry is None:
        if name not in value.get(key, {}):
            return value
        return {**value, key: {other: each for other, each in value[key].items() if other != name}}
    return {**value, key: {**value.get(key, {}), name: entry}}


def edit_toml(text: str, key: str, name: str, entry: Entry | None) -> str:
    """Return the text with the table `[key.name]` changed; None removes it with its sub-tables. Raises ValueError."""
    old = tomllib.loads(text)
    wanted = _change(old, key, name, entry)
    header = rf"\[{re.escape(key)}\.(?:{re.escape(name)}|{re.escape(json.dumps(name))})"
    block = re.compile(rf"^[ \t]*{header}(?:\.[^\]\n]+)?\][^\n]*\n?(?:(?![ \t]*\[)[^\n]*(?:\n|$))*", re.MULTILINE)
    edited = block.sub("", text)
    if entry is not None:
        gap = "" if not edited.strip() else "\n" if edited.endswith("\n") else "\n\n"
        edited = f"{edited}{gap}{tomli_w.dumps({key: {name: entry}})}"
    parsed = tomllib.loads(edited)
    if wanted.get(key) == {} and key not in parsed:
        parsed[key] = {}
    if parsed != wanted:
        raise ValueError("the entry cannot be edited")
    return edited
