"""Keys that came with a folder are refused; keys made by `pair keys` are accepted."""

import json
import secrets
from pathlib import Path

import pytest

from pair.auth.keys import KeyFile
from pair.auth.rules import Scope
from pair.clock import SystemClock
from support.command import Workplace, write_files
from support.served import Served, error_of


def foreign_keys(folder: Path, scope: Scope = "admin", name: str = "keys.json") -> str:
    """Write a keys file made on another machine, and return its key."""
    return KeyFile(folder / ".pair" / name, SystemClock(), secrets.token_hex).add("author", scope, [], None)[1]


def status_of(server: Served, key: str) -> int:
    return server.get("/rag/docs", key=key).status_code


@pytest.mark.parametrize(
    "text", ["", "server:\n  auth: keys\n", "server:\n  auth: keys\n  keys_file: ./.pair/keys.json\n"]
)
def test_a_server_does_not_start_with_keys_that_came_with_the_folder(workplace: Workplace, text: str) -> None:
    foreign_keys(workplace.folder)
    write_files(workplace.folder, {"config.yaml": text})
    refused = workplace.pair("serve", "--port", "0", "--json", PAIR__SERVER__AUTH="keys").fails(1, "E404")
    assert "pair trust" in refused.json["error"]["suggestion"]
    (check,) = [
        check
        for check in workplace.pair("doctor", "--json", PAIR__SERVER__AUTH="keys").json["checks"]
        if check["name"] == "server"
    ]
    assert (check["state"], check["code"]) == ("failed", "E404")


def test_a_folder_that_asks_for_keys_is_not_served_without(workplace: Workplace) -> None:
    """`auth: keys` counts although the folder is not trusted: it only makes the server stricter."""
    foreign_keys(workplace.folder)
    write_files(workplace.folder, {".pair/config.yaml": "server:\n  auth: keys\n"})
    assert workplace.pair("serve", "--port", "0", "--json").error_code == "E404"


def test_the_command_adds_no_key_to_a_file_that_came_with_the_folder(workplace: Workplace) -> None:
    foreign_keys(workplace.folder)
    before = (workplace.folder / ".pair" / "keys.json").read_bytes()
    for arguments in (["add", "me"], ["list"], ["revoke", "0a1b2c3d4e5f"]):
        assert workplace.pair("keys", *arguments, "--json").error_code == "E404"
    assert (workplace.folder / ".pair" / "keys.json").read_bytes() == before
    assert not (Path(workplace.environment["HOME"]) / ".pair" / "trusted.json").exists()


def test_keys_are_shown_before_they_are_trusted(workplace: Workplace) -> None:
    foreign_keys(workplace.folder)
    workplace.pair("trust", "--show").prints(".pair/keys.json (not trusted) accepts:\n  author: admin, all KBs")
    done = workplace.pair("trust", "--yes", "--json")
    assert (done.status, done.json["keys_file"]["trusted"]) == (0, True)
    assert [key["name"] for key in workplace.pair("keys", "list", "--json").json["keys"]] == ["author"]


def test_keys_that_the_command_made_count_at_once_also_where_a_server_runs(tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    first = workplace.pair("keys", "add", "first", "--json").json["key"]
    with Served(workplace.folder, HOME=workplace.environment["HOME"], PAIR__SERVER__AUTH="keys") as server:
        assert status_of(server, first) != 401
        for number in range(5):
            made = workplace.pair("keys", "add", f"key-{number}", "--json").json
            assert status_of(server, made["key"]) != 401
            assert workplace.pair("keys", "revoke", made["id"]).status == 0
            assert status_of(server, made["key"]) == 401
        assert status_of(server, first) != 401


def test_a_swapped_file_of_keys_gives_no_access(tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    own = workplace.pair("keys", "add", "own", "--json").json["key"]
    path = workplace.folder / ".pair" / "keys.json"
    with Served(workplace.folder, HOME=workplace.environment["HOME"], PAIR__SERVER__AUTH="keys") as server:
        assert status_of(server, own) != 401
        author = foreign_keys(workplace.folder, name="swapped.json")
        (workplace.folder / ".pair" / "swapped.json").replace(path)
        refused = server.get("/rag/docs", key=author)
        assert error_of(refused) == (503, "E404")
        assert str(tmp_path) not in refused.text
        assert server.get("/healthz").status_code == 200


def test_an_older_file_of_keys_does_not_count_again(workplace: Workplace) -> None:
    path = workplace.folder / ".pair" / "keys.json"
    made = workplace.pair("keys", "add", "gone", "--json").json
    before = path.read_bytes()
    workplace.pair("keys", "revoke", made["id"])
    path.write_bytes(before)
    assert workplace.pair("keys", "list", "--json").error_code == "E404"


def test_a_file_of_keys_that_the_user_names_counts(workplace: Workplace) -> None:
    foreign_keys(workplace.folder)
    listed = workplace.pair("keys", "list", "--json", PAIR__SERVER__KEYS_FILE=".pair/keys.json")
    assert [key["name"] for key in listed.json["keys"]] == ["author"]
    write_files(workplace.folder, {"mine.yaml": "server:\n  keys_file: .pair/keys.json\n"})
    assert workplace.pair("--config", "mine.yaml", "keys", "list", "--json").json["keys"]
    elsewhere = workplace.folder.parent / "elsewhere"
    foreign_keys(elsewhere)
    write_files(workplace.folder, {"config.yaml": f"server:\n  keys_file: {elsewhere / '.pair' / 'keys.json'}\n"})
    assert workplace.pair("keys", "list", "--json").error_code == "E404", "without trust the default place counts"
    workplace.trust()
    assert workplace.pair("keys", "list", "--json").json["keys"]


def test_a_keys_file_behind_a_link_is_not_that_of_the_target(workplace: Workplace) -> None:
    workplace.pair("keys", "add", "own", "--json")
    own, clone = workplace.folder, workplace.folder.with_name("clone")
    clone.mkdir()
    (clone / ".pair").symlink_to(own / ".pair")
    workplace.folder = clone
    assert workplace.pair("keys", "list", "--json").error_code == "E404"


def test_the_keys_file_is_never_readable_by_others(workplace: Workplace) -> None:
    workplace.pair("keys", "add", "own", "--json")
    path = workplace.folder / ".pair" / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_bytes())["version"] == 1
    assert [name for name in sorted(each.name for each in path.parent.iterdir()) if name.endswith(".tmp")] == []
