"""Settings from config.yaml and PAIR_* variables; the only module that reads settings from the environment.

Later sources override earlier ones: defaults, the configuration file, the specification's variables
(`PAIR_KB_CACHE_DIR`, ...), `PAIR__SECTION__KEY`.
A configuration found in the current folder is used in full only if the user trusts it (auth/trust.py).
"""

import dataclasses
import datetime
import difflib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le

from pair import errors
from pair.ai.prompts import ModelSettings
from pair.auth.settings import ServerSettings
from pair.auth.trust import (
    VARIABLE,
    TrustRequest,
    TrustStore,
    find_need,
    find_need_of_collection,
    find_need_of_librarian,
    resolve_place,
)
from pair.engine.settings import EngineSettings
from pair.librarians.settings import LibrariansSettings
from pair.packages.rules import SourcesSettings
from pair.sync.collection import NAME, CollectionSettings
from pair.sync.rules import SyncSettings

logger = logging.getLogger(__name__)

CONFIG_PLACES = ("config.yaml", ".pair/config.yaml")
OVERRIDE_PREFIX = "PAIR__"
_MOST_CHARACTERS = 200
_MOST_KEYS_SHOWN = 5
_MOST_BYTES = 1_000_000
_MOST_VALUES = 100_000
_DEEPEST = 50
_MOST_DIGITS = 18
NAMED_VARIABLES = {
    "PAIR_KB_CACHE_DIR": ("sources", "cache_dir"),
    "PAIR_KB_DEFAULT_URL": ("sources", "default_url"),
}


@dataclass(frozen=True)
class FolderConfig:
    """A configuration file found in the current folder, and whether the user trusts it."""

    path: Path
    sha256: str
    requests: tuple[TrustRequest, ...] = ()
    """Values that need trust."""
    is_trusted: bool = False
    fault: str = ""
    """Why the trust store could not be read."""

    @property
    def ignored(self) -> tuple[TrustRequest, ...]:
        return () if self.is_trusted else self.requests

    @property
    def warning(self) -> str:
        """One line that lists the ignored keys and how to trust them; empty if none is ignored."""
        if not self.ignored:
            return ""
        shown = ", ".join(f"{request.key} ({request.where})" for request in self.ignored[:_MOST_KEYS_SHOWN])
        more = len(self.ignored) - _MOST_KEYS_SHOWN
        shown += f" and {more:,} more" if more > 0 else ""
        because = f" ({self.fault})" if self.fault else ""
        return f"{self.path} is not trusted{because}. Ignored: {shown}. To review and trust it: pair trust"


@dataclass(frozen=True)
class Settings:
    kb: SyncSettings = field(default_factory=SyncSettings)
    sources: SourcesSettings = field(default_factory=SourcesSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    ai: ModelSettings = field(default_factory=ModelSettings)
    librarians: LibrariansSettings = field(default_factory=LibrariansSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    named: frozenset[str] = frozenset()
    """Keys that were set, as `section.key`."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each key was set: a line of the configuration file, or a variable."""
    config_path: Path | None = None
    """The configuration file that was read."""
    folder_config: FolderConfig | None = field(default=None, compare=False)
    """The same file, if it was found in the current folder and not named."""
    from_folder: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys whose value comes from a configuration that was found in the current folder."""
    diagnostics: bool = False
    """PAIR_DIAG: Log every decision."""
    source_date: datetime.datetime | None = None
    """SOURCE_DATE_EPOCH: Date in the manifest of packages, in seconds since 1970."""
    github_token: str = field(default="", repr=False)
    """GITHUB_TOKEN: Token for the GitHub API. It is never sent to a host that a file of the folder names."""
    sign_password: str = field(default="", repr=False)
    """PAIR_SIGN_PASSWORD: Password of the encrypted key for `pair package --sign`."""

    @staticmethod
    def load(
        config_path: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_ignored: Callable[[str], None] = logger.warning,
    ) -> "Settings":
        """Read all settings. Raises E401 with the key, its place, and the nearest valid name.

        `on_ignored`: called with one line if keys of an untrusted configuration are ignored.
        """
        variables = os.environ if environment is None else environment
        path, is_named = find_config(config_path, variables)
        values: _ConfigValues = {}
        folder_config = None
        if path is not None:
            content = _read(path)
            parsed = _parse(content, path)
            folder_config = None if is_named else _check_trust(path, content, parsed)
            values = _expand_values(parsed, folder_config, variables)
        values |= _read_environment(variables)
        if folder_config is not None and folder_config.ignored:
            on_ignored(folder_config.warning)
        from_folder = frozenset(name for name, given in values.items() if given.is_from_folder)
        collection_places = _list_collections(values)
        sections = {name: _make_section(name, kind, values) for name, kind in SECTIONS.items()}
        is_host_from_folder = "sources.github_api_url" in from_folder
        may_send_token = not is_host_from_folder or (
            sections["sources"].github_api_url == SourcesSettings.github_api_url
        )
        return Settings(
            **sections,
            named=frozenset(values),
            places={name: given.where for name, given in values.items()} | collection_places,
            config_path=path,
            folder_config=folder_config,
            from_folder=from_folder,
            diagnostics=variables.get("PAIR_DIAG", "").strip().lower() in {"1", "true", "yes", "on"},
            source_date=_read_source_date(variables),
            github_token=variables.get("GITHUB_TOKEN", "") if may_send_token else "",
            sign_password=variables.get("PAIR_SIGN_PASSWORD", ""),
        )


SECTIONS: dict[str, Any] = {
    "kb": SyncSettings,
    "sources": SourcesSettings,
    "engine": EngineSettings,
    "ai": ModelSettings,
    "librarians": LibrariansSettings,
    "server": ServerSettings,
}
_ENTRIES = "librarians.entries"
"""The key that a list in place of the `librarians` section sets."""
COLLECTIONS = "kb.collections"


@dataclass(frozen=True)
class CheckedConfig:
    """The values of a configuration file by `section.key`, and those that need trust."""

    values: Mapping[str, Any]
    requests: tuple[TrustRequest, ...]


def check_config(content: bytes, path: Path) -> CheckedConfig:
    """Return the values of a configuration, variables not expanded. Raises E401 for a collection that is not valid."""
    parsed = _parse(content, path)
    _list_collections(parsed)
    if COLLECTIONS in parsed:
        given = parsed[COLLECTIONS]
        value = _expand_variables(given.value, os.environ, "")
        _make_section("kb", SyncSettings, {COLLECTIONS: dataclasses.replace(given, value=value)})
    return CheckedConfig({name: given.value for name, given in parsed.items()}, _find_requests(parsed))


def read_folder_config(config_path: str | Path | None = None) -> FolderConfig | None:
    """Return the configuration of the current folder; None without one, or if another file is named."""
    path, is_named = find_config(config_path, os.environ)
    if path is None or is_named:
        return None
    content = _read(path)
    return _check_trust(path, content, _parse(content, path))


def find_config(named: str | Path | None, variables: Mapping[str, str] | None = None) -> tuple[Path | None, bool]:
    """Return the file, and whether it was named: a named file needs no trust."""
    variables = os.environ if variables is None else variables
    for given, where in ((named, "--config"), (variables.get("PAIR_CONFIG"), "PAIR_CONFIG")):
        if given:
            if not Path(given).is_file():
                raise errors.settings_invalid(where, f"no such file: {given}", hints=["Check the path, or omit it"])
            return Path(given), True
    return next((Path(place) for place in CONFIG_PLACES if Path(place).is_file()), None), False


def _read_source_date(variables: Mapping[str, str]) -> datetime.datetime | None:
    value = variables.get("SOURCE_DATE_EPOCH", "")
    if not value:
        return None
    try:
        return datetime.datetime.fromtimestamp(int(value), datetime.UTC)
    except (ValueError, OverflowError, OSError) as fault:
        raise errors.settings_invalid("SOURCE_DATE_EPOCH", f"{value!r} is not a number of seconds") from fault


# ── values ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _ConfigValue:
    """A value and the place where it was set, for error messages."""

    value: Any
    where: str
    item_places: tuple[str, ...] = ()
    """Places of the items of a list or a mapping."""
    is_from_folder: bool = False


_ConfigValues = dict[str, _ConfigValue]
"""Values by `section.key`."""


def _expand_values(
    parsed: _ConfigValues, folder_config: FolderConfig | None, variables: Mapping[str, str]
) -> _ConfigValues:
    """Return the trusted values of the file, with variables expanded."""
    ignored = {request.key for request in folder_config.ignored} if folder_config is not None else set()
    values: _ConfigValues = {}
    for name, given in parsed.items():
        if name in ignored:
            continue
        value, refuse_at = given.value, given.where
        if name == _ENTRIES:
            refuse_at = ""  # Other entries still work.
            if isinstance(value, list):
                value = [entry for number, entry in enumerate(value, 1) if _entry_name(number) not in ignored]
        if name == COLLECTIONS and isinstance(
            value, dict
        ):  # An ignored collection stays known, so that its documents are kept.
            value = {
                key: item if f"{name}.{key}" in ignored else _expand_variables(item, variables, refuse_at)
                for key, item in value.items()
            }
        else:
            value = _expand_variables(value, variables, refuse_at)
        values[name] = dataclasses.replace(given, value=value, is_from_folder=folder_config is not None)
    return values


def _read_environment(variables: Mapping[str, str]) -> _ConfigValues:
    values = {
        f"{section}.{key}": _ConfigValue(variables[name], name)
        for name, (section, key) in NAMED_VARIABLES.items()
        if variables.get(name)
    }
    for name in sorted(variables):
        if name.startswith(OVERRIDE_PREFIX):
            section, _, key = name.removeprefix(OVERRIDE_PREFIX).lower().partition("__")
            _check_name(section, SECTIONS, name, "section")
            _check_name(key, _fields(section), name, f"key of {section}")
            value: str | list[str] = variables[name]
            if _fields(section)[key].type == tuple[str, ...]:
                value = [part.strip() for part in variables[name].split(",") if part.strip()]
            values[f"{section}.{key}"] = _ConfigValue(value, name)
    return values


def _list_collections(values: _ConfigValues) -> dict[str, str]:
    """Return the place of each collection by its key. Raises E401 for a name or a key that is not valid."""
    given = values.get(COLLECTIONS)
    if given is None or not isinstance(given.value, dict):
        return {}
    places = given.item_places or (given.where,) * len(given.value)
    for (name, entry), where in zip(given.value.items(), places, strict=True):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            reason = f"{COLLECTIONS}: {_clip(str(name))!r} is not a valid name: use letters, digits, - and _"
            raise errors.settings_invalid(where, reason)
        if isinstance(entry, dict):
            for key in entry:
                _check_name(str(key), CollectionSettings.__dataclass_fields__, where, f"key of the collection {name}")
    return {f"{COLLECTIONS}.{name}": where for name, where in zip(given.value, places, strict=True)}


def _make_section(section: str, kind: Any, values: _ConfigValues) -> Any:
    given = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}
    plain = {key: _read_plain(item.value, _fields(section)[key].type) for key, item in given.items()}
    if None not in plain.values():
        return kind(**plain)
    import pydantic  # noqa: PLC0415 - plain values need no check, and it takes 80 ms to load

    for key, item in given.items():
        if not _is_usable(item.value):
            raise errors.settings_invalid(item.where, f"{section}.{key}: it has characters that no name can have")
    try:
        return pydantic.TypeAdapter(kind).validate_python({key: item.value for key, item in given.items()})
    except pydantic.ValidationError as fault:
        first = fault.errors()[0]
        key, *below = map(str, first["loc"])
        where, name = given[key].where, f"{section}.{key}"
        if below and isinstance(given[key].value, dict):
            name = ".".join([name, *below])
            where = dict(zip(given[key].value, given[key].item_places, strict=False)).get(below[0], where)
        if first["type"] == "value_error":
            raise errors.settings_invalid(where, f"{name}: {first['ctx']['error']}") from fault
        expected = re.sub(r"valid dictionary|dictionary or an instance of \w+", "mapping", first["msg"])
        expected = expected.replace("valid tuple", "list")
        reason = f"{name}: {expected.lower()}, got {_clip(repr(first['input']))}"
        raise errors.settings_invalid(where, reason, hints=[f"Remove {name} to use its default"]) from fault


def _read_plain(value: Any, kind: Any) -> str | int | None:
    """Return a value that is surely valid: a text, one of several texts, or a whole number. None for any other."""
    origin, details = get_origin(kind), get_args(kind)
    if isinstance(value, str) and value.isprintable():
        if kind is str or (origin is Literal and value in details):
            return value
        if not (value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS):
            return None
        value = int(value)
    if type(value) is not int or not (kind is int or (origin is Annotated and details[0] is int)):
        return None
    return value if all(_is_within(value, bound) for bound in details[1:]) else None


def _is_within(value: Any, bound: Any) -> bool:
    match bound:
        case Gt():
            return bool(value > bound.gt)
        case Ge():
            return bool(value >= bound.ge)
        case Le():
            return bool(value <= bound.le)
    return False


def _check_trust(path: Path, content: bytes, parsed: _ConfigValues) -> FolderConfig:
    """Find the values that need trust, and whether the user trusts the file."""
    config = FolderConfig(path, hashlib.sha256(content).hexdigest(), _find_requests(parsed))
    if not config.requests:
        return config
    try:
        return dataclasses.replace(config, is_trusted=TrustStore().trusts(resolve_place(path), content))
    except errors.PairError as fault:
        return dataclasses.replace(config, fault=fault.message)


def _find_requests(parsed: _ConfigValues) -> tuple[TrustRequest, ...]:
    """Return the values that need trust."""
    requests: list[TrustRequest] = []
    for name, given in parsed.items():
        section, _, key = name.partition(".")
        if name in {_ENTRIES, COLLECTIONS} and isinstance(given.value, list | dict):
            find = find_need_of_librarian if name == _ENTRIES else find_need_of_collection
            for item, entry, where in _list_items(name, given):
                if need := find(entry):
                    requests.append(TrustRequest(item, need, entry, where))
        elif need := find_need(name, given.value, _fields(section)[key].default):
            requests.append(TrustRequest(name, need, given.value, given.where))
    return tuple(requests)


def _list_items(name: str, given: _ConfigValue) -> list[tuple[str, Any, str]]:
    """Return the key, the value and the place of each item of a list or mapping."""
    if isinstance(given.value, dict):
        keys = [f"{name}.{key}" for key in given.value]
        return list(zip(keys, given.value.values(), given.item_places, strict=True))
    items = given.value if isinstance(given.value, list) else []
    return [(_entry_name(number), *item) for number, item in enumerate(zip(items, given.item_places, strict=True), 1)]


def _entry_name(number: int) -> str:
    return f"{_ENTRIES}[{number}]"


def _fields(section: str) -> dict[str, Any]:
    return {item.name: item for item in dataclasses.fields(SECTIONS[section])}


def _check_name(name: str, valid: Iterable[str], where: str, kind: str) -> None:
    names = list(valid)
    if name in names:
        return
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hints = [f"Did you mean {nearest[0]}?"] if nearest else []
    hints.append(f"Use one of: {', '.join(names)}")
    raise errors.settings_invalid(where, f"unknown {kind} {_clip(name)!r}", hints=hints)


def _is_usable(value: Any) -> bool:
    """Return whether the operating system accepts the text as a file name."""
    if isinstance(value, list | dict):
        return all(map(_is_usable, value.values() if isinstance(value, dict) else value))
    if not isinstance(value, str):
        return True
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


# ── the configuration file ─────────────────────────────────────────────────────────────────────────


def _read(path: Path) -> bytes:
    """Return the bytes of the file, read once, so that exactly the trusted bytes are parsed."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as fault:
        raise errors.settings_invalid(str(path), "it is not a readable YAML file") from fault
    if len(content) > _MOST_BYTES:
        raise errors.settings_invalid(str(path), f"it is larger than {_MOST_BYTES:,} bytes")
    return content


def _parse(content: bytes, path: Path) -> _ConfigValues:
    """Return the values of the file with their line numbers; variables are not expanded."""
    values: _ConfigValues = {}
    for section, (section_key, section_node) in _list_pairs(compose_config(content, path), path):
        where = _place(path, section_key)
        _check_name(section, SECTIONS, where, "section")
        if section == "librarians" and section_node.id == "sequence":
            values[_ENTRIES] = _read_node(section_node, where, path)
            continue
        for key, (key_node, value_node) in _list_pairs(section_node, path):
            place = _place(path, key_node)
            _check_name(key, _fields(section), place, f"key of {section}")
            if f"{section}.{key}" == COLLECTIONS and (not value_node.value or value_node.tag.endswith(":null")):
                continue  # a key whose collections were all removed
            values[f"{section}.{key}"] = _read_node(value_node, place, path)
    return values


def compose_config(content: bytes, path: Path) -> Any:
    """Return the nodes of a configuration file; None for an empty one. Raises E401."""
    import yaml  # noqa: PLC0415 - not needed where there is no file

    try:
        root = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark else 1
        raise errors.settings_invalid(f"{path}:{line}", f"it is not valid YAML: {fault.problem}") from fault
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise errors.settings_invalid(str(path), "it is not a readable YAML file") from fault
    except RecursionError as fault:
        raise errors.settings_invalid(str(path), "it is nested too deeply") from fault
    _refuse_endless(root, path)
    return root


def _refuse_endless(root: Any, path: Path) -> None:
    """Refuse too many values. Aliases count each time, because a few lines can expand beyond any memory."""
    waiting = [(root, 1)] if root is not None else []
    values = 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > _MOST_VALUES or depth > _DEEPEST:
            raise errors.settings_invalid(_place(path, node), "it has too many values, or is nested too deeply")
        if node.id == "mapping":
            waiting += [(part, depth + 1) for pair in node.value for part in pair]
        elif node.id == "sequence":
            waiting += [(item, depth + 1) for item in node.value]


def _list_pairs(node: Any, path: Path) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the keys of a mapping with their nodes; none for an empty file or section."""
    if node is None or (node.id == "scalar" and node.tag.endswith(":null")):
        return []
    if node.id != "mapping":
        raise errors.settings_invalid(_place(path, node), "expected keys with values", hints=["Write KEY: VALUE"])
    pairs: dict[str, tuple[Any, Any]] = {}
    for key, value in node.value:
        name = str(key.value)
        if name in pairs:
            raise errors.settings_invalid(_place(path, key), f"{name} is set twice")
        pairs[name] = (key, value)
    return list(pairs.items())


def _read_node(node: Any, where: str, path: Path) -> _ConfigValue:
    import yaml  # noqa: PLC0415 - as above

    try:
        value = yaml.safe_load(yaml.serialize(node))
    except (yaml.YAMLError, ValueError) as fault:
        raise errors.settings_invalid(where, "the value cannot be read") from fault
    places = [_place(path, item) for item in node.value] if node.id == "sequence" else []
    if node.id == "mapping" and isinstance(value, dict):
        _list_pairs(node, path)  # refuses a key that is set twice
        places = [_place(path, key) for key, _ in node.value]
    return _ConfigValue(value, where, tuple(places))


def _place(path: Path, node: Any) -> str:
    return f"{path}:{node.start_mark.line + 1}"


# ── variables ──────────────────────────────────────────────────────────────────────────────────────


def _expand_variables(value: Any, variables: Mapping[str, str], refuse_at: str) -> Any:
    """Replace `${NAME}` by the variable's value, and `$${NAME}` by `${NAME}`.

    `refuse_at`: the place to name in the error for a variable that is not set. If empty, the name stays.
    """
    if isinstance(value, list):
        return [_expand_variables(item, variables, refuse_at) for item in value]
    if isinstance(value, dict):
        return {key: _expand_variables(item, variables, refuse_at) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    missing = [name for dollars, name in VARIABLE.findall(value) if dollars == "$" and name not in variables]
    if missing and refuse_at:
        hints = ["Set it, or write $${NAME} for a text that is not a variable"]
        raise errors.settings_invalid(refuse_at, f"environment variable not set: {', '.join(missing)}", hints=hints)
    return VARIABLE.sub(
        lambda match: variables.get(match[2], match[0]) if match[1] == "$" else f"${{{match[2]}}}", value
    )
