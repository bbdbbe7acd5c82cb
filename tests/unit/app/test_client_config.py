"""The entry of `pair mcp` in the configuration files of assistants."""

import json
import os
import sys
from pathlib import Path

import pytest

from pair import errors
from pair.app.mcp.client_config import Client, own_command, plan

ENTRY = {"type": "stdio", "command": "/opt/bin/pair", "args": ["mcp", "--project", "/srv/handbook"]}
FILES: dict[Client, tuple[str, str]] = {
    "claude": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}


@pytest.mark.parametrize("client", FILES)
def test_a_file_that_is_not_there_is_made_once(client: Client, tmp_path: Path):
    name, key = FILES[client]
    planned = plan(client, tmp_path, ENTRY)
    assert (planned.path, planned.outcome) == (tmp_path / name, "added")
    assert not (tmp_path / name).exists()
    planned.carry_out()
    assert json.loads((tmp_path / name).read_text()) == {key: {"pair": ENTRY}}
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


@pytest.mark.parametrize(
    "given",
    [
        b'{"mcpServers": {}, // mine\n}',
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
