"""Front matter: YAML between `---` or TOML between `+++` at the top of a text, as title and metadata.

Front matter stays in the text if it is too long, refers to itself, or is not a mapping.
"""

import datetime
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from pair.reading.contract import Reading

_LONGEST = 64_000
"""Maximum length of front matter, in characters."""
_DEEPEST = 12
_BLOCK = re.compile(r"(?:\s*\n)?(---|\+\+\+)[ \t]*\r?\n(.*?)^(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LARGEST_NUMBER = 2**63
_MERGE = "tag:yaml.org,2002:merge"
_SIMPLE_LINE = re.compile(
    r"""([a-zA-Z]\w{0,63}):[ ]+(?:
        (?P<text>[^\W\d_][\w .,()/'+-]*) | "(?P<quoted>[\w .,()/:?!-]*)" | (?P<number>[1-9][0-9]{0,9})
        | \[(?P<list>[^\W\d_][\w-]*(?:,[ ]*[^\W\d_][\w-]*)*)\] | (?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})
    )[ ]*""",
    re.VERBOSE,
)
_NO_TEXTS = re.compile(r"yes|no|true|false|on|off|null", re.IGNORECASE)
_SIMPLE_VALUES: Mapping[str, Callable[[str], Any]] = {
    "text": str.rstrip,
    "quoted": str,
    "number": int,
    "date": datetime.date.fromisoformat,
}
_MAY_BE_ENDLESS = re.compile(r"^ {8}|(?:[-?][ \t]+){3}|<<", re.MULTILINE)


def split_front_matter(text: str) -> Reading:
    """Return a text without its front matter, and the title and metadata of the front matter, if any."""
    block = _BLOCK.match(text, 0, _LONGEST) if text[:100].lstrip().startswith(("---", "+++")) else None
    if block is None:
        return Reading(text)
    try:
        fields = tomllib.loads(block[2]) if block[1] == "+++" else _load_simple(block[2]) or _load_yaml(block[2])
    except (ValueError, RecursionError, yaml.YAMLError):
        return Reading(text)
    if not isinstance(fields, Mapping):
        return Reading(text)
    metadata = {str(key): _make_json(value) for key, value in fields.items() if value is not None}
    title = metadata.pop("title", "")
    return Reading(text[block.end() :], " ".join(str(title).split()), metadata)


def _load_simple(source: str) -> dict[str, Any] | None:
    """Return the fields of YAML that has one short value on each line; None for all other YAML.

    Most front matter is like that, and the parser of YAML would take a fifth of the time of a first sync.
    """
    fields: dict[str, Any] = {}
    for line in source.removesuffix("\n").split("\n"):
        found = _SIMPLE_LINE.fullmatch(line)
        if found is None:
            return None
        kind, value = str(found.lastgroup), found[str(found.lastgroup)].rstrip()
        words = value.replace(" ", "").split(",") if kind == "list" else [value] if kind == "text" else []
        if any(map(_NO_TEXTS.fullmatch, (found[1], *words))):
            return None
        try:
            fields[found[1]] = words if kind == "list" else _SIMPLE_VALUES[kind](found[kind])
        except ValueError:  # a day that no calendar has
            return None
    return fields


def _load_yaml(source: str) -> Any:
    """Return the value of YAML. Raises YAMLError for aliases, which can expand without limit, and for deep nesting."""
    if _MAY_BE_ENDLESS.search(source) or source.count("[") + source.count("{") > _DEEPEST:
        _refuse_endless(source)  # Deep nesting overflows the stack of libyaml, and merged aliases expand without limit.
    loader = yaml.CSafeLoader(source)
    try:
        root = loader.get_single_node()
        try:
            return _construct(loader, root, set())
        except (ValueError, yaml.constructor.ConstructorError):  # A value such as 2025-13-45, or a tag.
            _refuse_endless(source)
            return yaml.load(source, Loader=yaml.CBaseLoader)  # noqa: S506 - all values are texts
    finally:
        loader.dispose()


def _refuse_endless(source: str) -> None:
    """Raise YAMLError for aliases and for deep nesting."""
    depth = 0
    for event in yaml.parse(source, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError("nested too deeply")


def _construct(loader: Any, node: Any, seen: set[int]) -> Any:
    """Return the value of a node. Raises YAMLError for an alias, ValueError for a value that is valid only as text.

    `seen`: the nodes so far. Most values are texts, for which the loader would take twice as long.
    """
    if node is None:
        return None
    if id(node) in seen:
        raise yaml.YAMLError("an alias")
    seen.add(id(node))
    if node.tag == "tag:yaml.org,2002:str":
        return node.value
    if node.tag == "tag:yaml.org,2002:seq":
        return [_construct(loader, item, seen) for item in node.value]
    if node.tag == "tag:yaml.org,2002:map" and all(key.id == "scalar" and key.tag != _MERGE for key, _ in node.value):
        return {_construct(loader, key, seen): _construct(loader, value, seen) for key, value in node.value}
    return loader.construct_object(node, deep=True)


def _make_json(value: Any) -> Any:
    """Return a value for JSON and filters; dates become ISO 8601."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _make_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_make_json(item) for item in value]
    is_number = isinstance(value, int) and abs(value) < _LARGEST_NUMBER
    is_number |= isinstance(value, float) and math.isfinite(value)
    return value if value is None or isinstance(value, str) or is_number else str(value)
