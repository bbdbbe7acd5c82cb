"""config.yaml as nodes that know their line, so that an error can name it."""

from pathlib import Path
from typing import Any

import yaml

from pair import errors


def root_of(path: Path) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark else 1
        raise errors.settings_invalid(f"{path}:{line}", f"not valid YAML: {fault.problem}") from fault
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as fault:
        raise errors.settings_invalid(str(path), "not a readable YAML file") from fault
    return root


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
