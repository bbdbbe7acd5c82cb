"""config.yaml as nodes that know their line, so that an error can name it."""

from pathlib import Path
from typing import Any

import yaml

from pair import errors

_MOST_BYTES = 1_000_000
_MOST_VALUES = 100_000
_DEEPEST = 50


def read(path: Path) -> bytes:
    """Return the bytes of the file, read once: what is trusted is what is parsed."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as fault:
        raise errors.settings_invalid(str(path), "not a readable YAML file") from fault
    if len(content) > _MOST_BYTES:
        raise errors.settings_invalid(str(path), f"larger than {_MOST_BYTES:,} bytes")
    return content


def root_of(content: bytes, path: Path) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark else 1
        raise errors.settings_invalid(f"{path}:{line}", f"not valid YAML: {fault.problem}") from fault
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise errors.settings_invalid(str(path), "not a readable YAML file") from fault
    except RecursionError as fault:
        raise errors.settings_invalid(str(path), "nested too deeply") from fault
    _refuse_endless(root, path)
    return root


def _refuse_endless(root: yaml.Node | None, path: Path) -> None:
    """Aliases are counted wherever they stand: a few lines of them can mean more than any memory holds."""
    waiting = [(root, 1)] if root is not None else []
    values = 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > _MOST_VALUES or depth > _DEEPEST:
            raise errors.settings_invalid(place(path, node), "too many values, or nested too deeply")
        if isinstance(node, yaml.MappingNode):
            waiting += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(each, depth + 1) for each in node.value]


def pairs(node: yaml.Node | None, path: Path) -> list[tuple[str, tuple[yaml.Node, yaml.Node]]]:
    """Keys of a mapping with their nodes; an empty file or section has none."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise errors.settings_invalid(place(path, node), "expected keys with values")
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in found:
            raise errors.settings_invalid(place(path, key), f"given twice: {name}")
        found[name] = (key, value)
    return list(found.items())


def place(path: Path, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"


def value_of(node: yaml.Node, where: str) -> Any:
    try:
        return yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError) as fault:
        raise errors.settings_invalid(where, "not a value that can be read") from fault


def is_list(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode)


def places_of_items(node: yaml.Node, path: Path) -> list[str]:
    """Return where each item of a list stands; nothing for what is no list."""
    return [place(path, item) for item in node.value] if isinstance(node, yaml.SequenceNode) else []
