"""config.yaml and PAIR_* as Settings; the only reader of the environment.

Order, later wins: defaults, the configuration file, the specification's variables (`PAIR_KB_CACHE_DIR`, ...),
`PAIR__SECTION__KEY`.
A configuration found in the current folder counts in full only if the user trusts it (access/folder_settings.py).
"""

import dataclasses
import datetime
import difflib
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pair import errors
from pair.ai.prompts import ModelSettings
from pair.auth.settings import ServerSettings
from pair.auth.trust import VARIABLE, TrustRequest, TrustStore, find_need, find_need_of_librarian, resolve_place
from pair.engine.settings import EngineSettings
from pair.librarians.settings import LibrariansSettings
from pair.packages.rules import SourcesSettings
from pair.sync.rules import SyncSettings

logger = logging.getLogger(__name__)

CONFIG_PLACES = ("config.yaml", ".pair/config.yaml")
OVERRIDE_PREFIX = "PAIR__"
_MOST_CHARACTERS = 200
_MOST_KEYS_SHOWN = 5
NAMED_VARIABLES = {
    "PAIR_KB_CACHE_DIR": ("sources", "cache_dir"),
    "PAIR_KB_DEFAULT_URL": ("sources", "default_url"),
}


@dataclass(frozen=True)
class FolderConfig:
    """A configuration that was found in the current folder, and whether it counts in full."""

    path: Path
    sha256: str
    requests: tuple[TrustRequest, ...] = ()
    """What it asks for that needs trust."""
    is_trusted: bool = False
    fault: str = ""
    """Why the trust store could not be read."""

    @property
    def ignored(self) -> tuple[TrustRequest, ...]:
        return () if self.is_trusted else self.requests

    @property
    def warning(self) -> str:
        """One line for people about what is ignored, with the way out; empty when nothing is."""
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
    """Keys that were given a value, as `section.key`."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where: a line of the configuration file, or a variable."""
    config_path: Path | None = None
    """The configuration file that was read."""
    folder_config: FolderConfig | None = field(default=None, compare=False)
    """The same, if it was found in the current folder and not named."""
    from_folder: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys whose value comes from a configuration that was found in the current folder."""
    diagnostics: bool = False
    """PAIR_DIAG: log every decision."""
    source_date: datetime.datetime | None = None
    """SOURCE_DATE_EPOCH: the date that packages carry."""
    github_token: str = field(default="", repr=False)
    """GITHUB_TOKEN: sent to the release feed's host only, and never to one that a file of the folder names."""
    sign_password: str = field(default="", repr=False)
    """PAIR_SIGN_PASSWORD: opens the encrypted key of `pair package --sign`."""

    @staticmethod
    def load(
        config_path: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        on_ignored: Callable[[str], None] = logger.warning,
    ) -> "Settings":
        """Raises E401 with the key, its place, and the nearest valid name.

        `on_ignored`: is given one line when keys of the folder's configuration do not count, because it is not trusted.
        """
        variables = os.environ if environment is None else environment
        path, is_named = _find_config(config_path, variables)
        values = _Values()
        folder_config = None if path is None else values.read_file(path, variables, is_named=is_named)
        values.read_environment(variables)
        if folder_config is not None and folder_config.ignored:
            on_ignored(folder_config.warning)
        sources = values.section("sources", SourcesSettings)
        is_host_from_folder = "sources.github_api_url" in values.from_folder()
        may_send_token = not is_host_from_folder or sources.github_api_url == SourcesSettings.github_api_url
        return Settings(
            kb=values.section("kb", SyncSettings),
            sources=sources,
            engine=values.section("engine", EngineSettings),
            ai=values.section("ai", ModelSettings),
            librarians=values.section("librarians", LibrariansSettings),
            server=values.section("server", ServerSettings),
            named=frozenset(values.places()),
            places=values.places(),
            config_path=path,
            folder_config=folder_config,
            from_folder=values.from_folder(),
            diagnostics=variables.get("PAIR_DIAG", "").strip().lower() in {"1", "true", "yes", "on"},
            source_date=_source_date(variables),
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
_LISTS = {"librarians": "entries"}
"""Sections that may be a list: then it is this key's value."""


def read_folder_config(config_path: str | Path | None = None) -> FolderConfig | None:
    """Return what the configuration of the current folder asks for; None without one, or when another is named."""
    from pair import config_file  # noqa: PLC0415 - where there is no file, nobody waits for YAML

    path, is_named = _find_config(config_path, os.environ)
    if path is None or is_named:
        return None
    content = config_file.read(path)
    return _judge(path, content, _parse(content, path))


def _find_config(named: str | Path | None, variables: Mapping[str, str]) -> tuple[Path | None, bool]:
    """Return the file, and whether it was named: then it counts in full."""
    for given, where in ((named, "--config"), (variables.get("PAIR_CONFIG"), "PAIR_CONFIG")):
        if given:
            if not Path(given).is_file():
                raise errors.settings_invalid(where, f"no such file: {given}")
            return Path(given), True
    return next((Path(place) for place in CONFIG_PLACES if Path(place).is_file()), None), False


def _source_date(variables: Mapping[str, str]) -> datetime.datetime | None:
    value = variables.get("SOURCE_DATE_EPOCH", "")
    if not value:
        return None
    try:
        return datetime.datetime.fromtimestamp(int(value), datetime.UTC)
    except (ValueError, OverflowError, OSError) as fault:
        raise errors.settings_invalid("SOURCE_DATE_EPOCH", f"not a number of seconds: {value}") from fault


@dataclass(frozen=True)
class _Given:
    value: Any
    where: str
    is_from_folder: bool = False


class _Values:
    """Values by section and key, each with where it was given, so that an error can name the place."""

    def __init__(self) -> None:
        self._given: dict[str, dict[str, _Given]] = {name: {} for name in SECTIONS}

    def read_file(self, path: Path, variables: Mapping[str, str], *, is_named: bool) -> FolderConfig | None:
        """Return what a file asks for that was found, not named."""
        from pair import config_file  # noqa: PLC0415 - where there is no file, nobody waits for YAML

        content = config_file.read(path)
        raw = _parse(content, path)
        found = None if is_named else _judge(path, content, raw)
        ignored = {request.key for request in found.ignored} if found is not None else set()
        for (section, key), (value, where, _) in raw.items():
            if f"{section}.{key}" in ignored:
                continue
            if _LISTS.get(section) == key:
                expanded = _with_known_variables(_without_entries(value, ignored), variables)
            else:
                expanded = _with_variables(value, variables, where)
            self._given[section][key] = _Given(expanded, where, is_from_folder=found is not None)
        return found

    def read_environment(self, variables: Mapping[str, str]) -> None:
        for name, (section, key) in NAMED_VARIABLES.items():
            if variables.get(name):
                self._given[section][key] = _Given(variables[name], name)
        for name in sorted(variables):
            if name.startswith(OVERRIDE_PREFIX):
                section, _, key = name.removeprefix(OVERRIDE_PREFIX).lower().partition("__")
                _check_name(section, SECTIONS, name, "section")
                _check_name(key, _keys_of(section), name, f"key of {section}")
                self._given[section][key] = _Given(_as_listed(section, key, variables[name]), name)

    def from_folder(self) -> frozenset[str]:
        return frozenset(
            f"{section}.{key}"
            for section, keys in self._given.items()
            for key, item in keys.items()
            if item.is_from_folder
        )

    def places(self) -> dict[str, str]:
        return {f"{section}.{key}": item.where for section, keys in self._given.items() for key, item in keys.items()}

    def section(self, name: str, policy: Any) -> Any:
        given = self._given[name]
        if not given:
            return policy()
        import pydantic  # noqa: PLC0415 - where nothing is given, there is nothing to check

        for key, item in given.items():
            if not _is_usable(item.value):
                raise errors.settings_invalid(item.where, f"{name}.{key}: not text that a system could be given")
        try:
            return pydantic.TypeAdapter(policy).validate_python({key: item.value for key, item in given.items()})
        except pydantic.ValidationError as fault:
            first = fault.errors()[0]
            key = str(first["loc"][0])
            reason = f"{name}.{key}: {first['msg'].lower()}, got {_clipped(repr(first['input']))}"
            raise errors.settings_invalid(given[key].where, reason) from fault


_Raw = dict[tuple[str, str], tuple[Any, str, list[str]]]
"""By section and key: the value without variables, where it stands, and where the items of a list stand."""


def _parse(content: bytes, path: Path) -> _Raw:
    from pair import config_file  # noqa: PLC0415 - as above

    raw: _Raw = {}

    def add(section: str, key: str, node: Any, where: str) -> None:
        raw[section, key] = config_file.value_of(node, where), where, config_file.places_of_items(node, path)

    for section, section_node in config_file.pairs(config_file.root_of(content, path), path):
        where = config_file.place(path, section_node[0])
        _check_name(section, SECTIONS, where, "section")
        if section in _LISTS and config_file.is_list(section_node[1]):
            add(section, _LISTS[section], section_node[1], where)
            continue
        for key, key_node in config_file.pairs(section_node[1], path):
            place = config_file.place(path, key_node[0])
            _check_name(key, _keys_of(section), place, f"key of {section}")
            add(section, key, key_node[1], place)
    return raw


def _judge(path: Path, content: bytes, raw: _Raw) -> FolderConfig:
    """Find what a configuration of the folder asks for, and whether the user trusts it."""
    requests: list[TrustRequest] = []
    for (section, key), (value, where, item_places) in raw.items():
        if _LISTS.get(section) == key and isinstance(value, list):
            for number, entry in enumerate(value, 1):
                if need := find_need_of_librarian(entry):
                    requests.append(TrustRequest(_entry_name(number), need, entry, item_places[number - 1]))
        elif need := find_need(f"{section}.{key}", value, _default_of(section, key)):
            requests.append(TrustRequest(f"{section}.{key}", need, value, where))
    config = FolderConfig(path, hashlib.sha256(content).hexdigest(), tuple(requests))
    if not requests:
        return config
    try:
        return dataclasses.replace(config, is_trusted=TrustStore().trusts(resolve_place(path), content))
    except errors.PairError as fault:
        return dataclasses.replace(config, fault=fault.message)


def _without_entries(value: Any, ignored: Collection[str]) -> Any:
    if not isinstance(value, list):
        return value
    return [entry for number, entry in enumerate(value, 1) if _entry_name(number) not in ignored]


def _entry_name(number: int) -> str:
    return f"librarians.entries[{number}]"


def _default_of(section: str, key: str) -> Any:
    (default,) = (each.default for each in dataclasses.fields(SECTIONS[section]) if each.name == key)
    return default


def _as_listed(section: str, key: str, text: str) -> str | list[str]:
    """A variable holds one text: where a list of them is wanted, commas stand between them."""
    if any(each.name == key and each.type == tuple[str, ...] for each in dataclasses.fields(SECTIONS[section])):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _keys_of(section: str) -> list[str]:
    return [key.name for key in dataclasses.fields(SECTIONS[section])]


def _check_name(name: str, valid: Iterable[str], where: str, kind: str) -> None:
    names = list(valid)
    if name in names:
        return
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hints = [f"Did you mean {nearest[0]} ?"] if nearest else []
    hints.append(f"Valid: {', '.join(names)}")
    raise errors.settings_invalid(where, f"unknown {kind}: {_clipped(name)}", hints=hints)


def _is_usable(value: Any) -> bool:
    """Names of files may be in any encoding, but not every text can be a name."""
    if isinstance(value, list):
        return all(map(_is_usable, value))
    if not isinstance(value, str):
        return True
    try:
        return b"\0" not in value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _clipped(text: str) -> str:
    """For one line of an error."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


# ── variables ──────────────────────────────────────────────────────────────────────────────────────


def _with_variables(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """`${NAME}` becomes the variable's value; `$${NAME}` stays as it is, with one dollar."""
    if isinstance(value, list):
        return [_with_variables(each, variables, where) for each in value]
    if not isinstance(value, str):
        return value
    missing = [name for dollars, name in VARIABLE.findall(value) if dollars == "$" and name not in variables]
    if missing:
        raise errors.settings_invalid(where, f"not set in the environment: {', '.join(missing)}")
    return _substituted(value, variables)


def _with_known_variables(value: Any, variables: Mapping[str, str]) -> Any:
    """The same in all texts of a list, but for variables that are not set: one bad entry is no fault of the others."""
    if isinstance(value, list):
        return [_with_known_variables(each, variables) for each in value]
    if isinstance(value, dict):
        return {key: _with_known_variables(each, variables) for key, each in value.items()}
    return _substituted(value, variables) if isinstance(value, str) else value


def _substituted(text: str, variables: Mapping[str, str]) -> str:
    return VARIABLE.sub(
        lambda match: variables.get(match[2], match[0]) if match[1] == "$" else f"${{{match[2]}}}", text
    )
