"""The entry of `pair mcp` in the configuration files of assistants."""

import codecs
import json
import os
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair import errors
from pair.app.mcp.client_config import Client, apply, edit_json, entry_for, own_command, plan, read_json

ENTRY = {"type": "stdio", "command": "/opt/bin/pair", "args": ["mcp", "--project", "/srv/handbook"]}
FILES: dict[Client, tuple[str, str]] = {
    "claude": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "zed": (".zed/settings.json", "context_servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
}
"""The documented file of each assistant in a project, and the key of its servers."""
SHARED: dict[Client, str] = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
}
"""Configuration files in the home folder of the user, on Linux."""


def read(path: Path) -> Any:
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


@pytest.mark.parametrize("client", FILES)
def test_a_missing_file_is_made_once(client: Client, tmp_path: Path):
    name, key = FILES[client]
    planned = plan(client, tmp_path, ENTRY)
    assert (planned.path, planned.outcome) == (tmp_path / name, "added")
    assert not (tmp_path / name).exists()
    planned.carry_out()
    assert read(tmp_path / name) == {key: {"pair": ENTRY}}
    before = (tmp_path / name).stat()
    again = plan(client, tmp_path, ENTRY)
    again.carry_out()
    assert again.outcome == "unchanged"
    assert (tmp_path / name).stat() == before


def test_the_rest_of_a_file_is_unchanged(tmp_path: Path):
    path = tmp_path / ".mcp.json"
    servers = '{"z": {"command": "x"}, "pair": {"command": "old"}}'
    path.write_text(f'{{\n    "first": "größer",\n    "mcpServers": {servers},\n    "n": 1\n}}')
    path.chmod(0o640)
    planned = plan("claude", tmp_path, ENTRY)
    planned.carry_out()
    written = json.loads(path.read_text())
    assert planned.outcome == "changed"
    assert list(written) == ["first", "mcpServers", "n"]
    assert written["first"] == "größer"
    assert written["mcpServers"] == {"z": {"command": "x"}, "pair": ENTRY}
    assert path.read_text().startswith('{\n    "first": "größer"')
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == [".mcp.json"]


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "shared.json").write_text("{}")
    (tmp_path / ".mcp.json").symlink_to("shared.json")
    plan("claude", tmp_path, ENTRY).carry_out()
    assert (tmp_path / ".mcp.json").is_symlink()
    assert "mcpServers" in json.loads((tmp_path / "shared.json").read_text())


@pytest.mark.parametrize("link", [".cursor", ".cursor/mcp.json"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_that_leads_out_of_the_project_is_not_followed(link: str, exists: bool, tmp_path: Path):
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside)
    if exists and link.endswith(".json"):
        outside.write_text("{}")
    elif exists:
        outside.mkdir()
    with pytest.raises(errors.StorageError) as caught:
        plan("cursor", project, ENTRY)
    assert caught.value.code == "E025"
    assert not outside.is_dir() or os.listdir(outside) == []
    assert not outside.is_file() or outside.read_text() == "{}"


@pytest.mark.parametrize(
    "given",
    [
        b'{"mcpServers": {}, / mine\n}',
        b'{"mcpServers": {}} trailing',
        b'{"mcpServers": []}',
        b'{"mcpServers": {"a": 1, "a": 2}}',
        b"[]",
        b"null",
        b'{"note": "\xff"}',
        b"[" * 100_000,
    ],
    ids=range(8),
)
def test_a_file_that_is_not_what_it_should_be_is_not_touched(given: bytes, tmp_path: Path):
    (tmp_path / ".mcp.json").write_bytes(given)
    with pytest.raises(errors.UsageError) as caught:
        plan("claude", tmp_path, ENTRY)
    assert caught.value.code == "E401"
    assert any("--dry-run" in hint for hint in caught.value.hints)
    assert (tmp_path / ".mcp.json").read_bytes() == given


def test_the_command_can_be_started_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pair").write_text("#!/bin/sh\n")
    (tmp_path / "pair").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert own_command("./pair") == [str(tmp_path / "pair")]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command("pair") == [str(tmp_path / "pair")]
    for started_as in ("/somewhere/pair/__main__.py", "-c", "no-such-command"):
        assert own_command(started_as) == [sys.executable, "-m", "pair"]


@pytest.mark.parametrize("client", FILES)
def test_an_added_entry_can_be_removed(client: Client, tmp_path: Path):
    name, key = FILES[client]
    plan(client, tmp_path, ENTRY).carry_out()
    removed = plan(client, tmp_path, None)
    removed.carry_out()
    assert removed.outcome == "removed"
    assert read(tmp_path / name).get(key, {}) == {}
    assert plan(client, tmp_path, None).outcome == "unchanged"


COMMENTED = """{
  // the theme of the house
  "theme": "dark", /* do not change */
  "context_servers": {
    "other": {"command": "x"}, // keep
    // last
  },
}
"""


def test_comments_trailing_commas_and_layout_stay(tmp_path: Path):
    path = tmp_path / ".zed" / "settings.json"
    path.parent.mkdir()
    path.write_text(COMMENTED)
    plan("zed", tmp_path, ENTRY).carry_out()
    written = path.read_text()
    assert read_json(written)["context_servers"] == {"other": {"command": "x"}, "pair": ENTRY}
    assert [line for line in COMMENTED.splitlines() if line not in written.splitlines()] == []
    changed = {**ENTRY, "args": ["mcp"]}
    plan("zed", tmp_path, changed).carry_out()
    assert read_json(path.read_text())["context_servers"]["pair"] == changed
    plan("zed", tmp_path, None).carry_out()
    assert path.read_text() == COMMENTED


def test_comments_of_a_toml_file_stay(tmp_path: Path):
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    before = '# mine\nmodel = "large" # the big one\n\n[mcp_servers.other]\ncommand = "x"\n'
    path.write_text(before + '\n[mcp_servers.pair]\ncommand = "old"\n\n[mcp_servers.pair.env]\nA = "1"\n')
    plan("codex", tmp_path, ENTRY).carry_out()
    assert path.read_text().startswith(before)
    assert tomllib.loads(path.read_text())["mcp_servers"] == {"other": {"command": "x"}, "pair": ENTRY}
    plan("codex", tmp_path, None).carry_out()
    assert path.read_text().rstrip() == before.rstrip()


@pytest.mark.parametrize(
    "given", ['mcp_servers = {pair = {command = "x"}}', "mcp_servers = 1", "model = ", 'mcp_servers.pair.command = "x"']
)
def test_a_toml_file_that_cannot_be_edited_is_not_touched(given: str, tmp_path: Path):
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(given)
    with pytest.raises(errors.UsageError) as caught:
        plan("codex", tmp_path, ENTRY)
    assert caught.value.code == "E401"
    assert path.read_text() == given


@pytest.mark.parametrize("client", SHARED)
def test_a_file_of_the_user_serves_several_projects(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("/srv/handbook", "/srv/My Wiki"):
        entry = entry_for(client, ["/opt/bin/pair", "mcp", "--project", folder])
        plan(client, Path(folder), entry).carry_out()
        assert plan(client, Path(folder), entry).outcome == "unchanged"
    assert list(read(tmp_path / SHARED[client])["mcpServers"]) == ["pair-my-wiki", "pair-handbook"]
    other = entry_for(client, ["/opt/bin/pair", "mcp", "--project", "/home/handbook"])
    with pytest.raises(errors.UsageError) as caught:
        plan(client, Path("/home/handbook"), other)
    assert "--name" in " ".join(caught.value.hints)
    plan(client, Path("/home/handbook"), other, "home").carry_out()
    assert len(read(tmp_path / SHARED[client])["mcpServers"]) == 3


@pytest.mark.parametrize("client", FILES)
@pytest.mark.parametrize("head", [b"", codecs.BOM_UTF8], ids=["plain", "marked"])
def test_line_endings_and_the_byte_order_mark_stay(client: Client, head: bytes, tmp_path: Path):
    name, key = FILES[client]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    before = b'# mine\r\nmodel = "x"\r\n' if path.suffix == ".toml" else b'{\r\n  // mine\r\n  "a": [1, 2,]\r\n}\r\n'
    path.write_bytes(head + before)
    plan(client, tmp_path, ENTRY).carry_out()
    written = path.read_bytes()
    assert written.startswith(head)
    assert set(before.splitlines(keepends=True)) <= set(written[len(head) :].splitlines(keepends=True))
    assert written.count(b"\n") == written.count(b"\r\n") > before.count(b"\n")
    text = written[len(head) :].decode()
    assert (tomllib.loads if path.suffix == ".toml" else read_json)(text)[key]["pair"] == ENTRY


def test_a_read_only_file_is_not_touched(tmp_path: Path):
    path = tmp_path / ".mcp.json"
    path.write_text("{}")
    path.chmod(0o444)
    with pytest.raises(errors.UsageError, match="read-only"):
        plan("claude", tmp_path, ENTRY)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("{}", 0o444)


def test_entries_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = [f"/srv/project-{number}" for number in range(24)]

    def add(folder: str) -> None:
        apply("windsurf", Path(folder), entry_for("windsurf", ["pair", "mcp", "--project", folder]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, folders))
    written = read(tmp_path / SHARED["windsurf"])["mcpServers"]
    assert {entry["args"][2] for entry in written.values()} == set(folders)


_KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["mcpServers", "pair"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=3),
    st.sampled_from([None, 0, 2, "\t"]),
)
def test_any_file_says_the_same_as_before_beside_the_entry(value: dict[str, Any], indent: int | str | None):
    text = json.dumps(value, indent=indent)
    assert read_json(text) == value
    if not isinstance(value.get("mcpServers", {}), dict):
        with pytest.raises(ValueError, match="object"):
            edit_json(text, "mcpServers", "pair", ENTRY)
        return
    added = edit_json(text, "mcpServers", "pair", ENTRY)
    assert json.loads(added) == {**value, "mcpServers": {**value.get("mcpServers", {}), "pair": ENTRY}}
    removed = json.loads(edit_json(added, "mcpServers", "pair", None))
    servers = {name: each for name, each in value.get("mcpServers", {}).items() if name != "pair"}
    assert removed == {**value, "mcpServers": servers}
