"""An untrusted folder: the effect of its configuration before and after `pair trust`."""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import PAIR, Workplace, write_files
from support.server import Page, Server

TOOLS = """\
from pathlib import Path

import pair

Path("ran").touch()


async def said(query, context=None):
    return pair.Response(answer="Taken over.", confidence=0.9)
"""
FUNCTION = "librarians:\n  - {id: taken, function: 'tools:said'}\n"
PAGE = {".pair/knowledge/tea.md": "# Tea\n\nTea is served at four.\n"}


def home_of(workplace: Workplace) -> Path:
    return Path(workplace.environment["HOME"])


def configured(workplace: Workplace, text: str, place: str = "config.yaml") -> Path:
    write_files(workplace.folder, {place: text, "tools.py": TOOLS, **PAGE})
    home_of(workplace).mkdir(exist_ok=True)
    return workplace.folder / place


def is_trusted(workplace: Workplace) -> bool:
    return bool(workplace.pair("trust", "--show", "--json").json["trusted"])


# ── before ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["config.yaml", ".pair/config.yaml"])
def test_no_function_of_an_untrusted_folder_is_run(workplace: Workplace, place: str) -> None:
    configured(workplace, FUNCTION, place)
    assert workplace.pair("sync").status == 0
    for command in (["ask", "When is tea served?"], ["librarians", "list"], ["librarians", "check"]):
        workplace.pair(*command).succeeds().says(f"Ignored: librarians.entries[1] ({place}:2)", "pair trust")
        assert not (workplace.folder / "ran").exists()
    assert "at four" in workplace.pair("ask", "When is tea served?", "--json").json["answer"]
    if place == "config.yaml":
        assert workplace.pair("trust", "--yes").status == 0
        assert "Taken over." in workplace.pair("ask", "When is tea served?", "--json").json["answer"]
        assert (workplace.folder / "ran").exists()


def test_no_file_outside_an_untrusted_folder_is_written(workplace: Workplace) -> None:
    outside = home_of(workplace).parent / "outside"
    configured(
        workplace, "kb:\n  index_path: ~/.profile\n  llms_txt_path: out/page.txt\n  index_cache_path: ../state.json\n"
    )
    write_files(home_of(workplace), {".profile": "mine"})
    write_files(outside, {"page.txt": "mine"})
    (workplace.folder / "out").symlink_to(outside)
    assert workplace.pair("sync").status == 0
    assert (home_of(workplace) / ".profile").read_text() == "mine"
    assert (outside / "page.txt").read_text() == "mine"
    assert not (workplace.folder.parent / "state.json").exists()
    assert "tea.md" in (workplace.folder / ".pair" / "index.txt").read_text()


def test_no_text_and_no_variable_leaves_an_untrusted_folder(workplace: Workplace, server: Server) -> None:
    configured(
        workplace,
        f"kb:\n  sources_dir: '~'\nai:\n  base_url: {server.url('/v1')}\n  model: any\n  api_key: ${{SECRET}}\n"
        f"server:\n  otlp_endpoint: {server.url('/traces')}\nsources:\n  default_url: {server.url('/kb.zip')}\n",
    )
    write_files(home_of(workplace), {"diary.md": "# Diary\n\nDear diary.\n"})
    workplace.pair("sync", SECRET="s3cret").succeeds()
    assert workplace.pair("ask", "When is tea served?", SECRET="s3cret").status == 0
    assert server.received == []
    assert workplace.pair("search", "diary", "--json").json["results"] == []
    assert workplace.pair("search", "tea", "--json").json["results"][0]["id"] == "tea.md"


def test_an_untrusted_folder_installs_syncs_searches_and_asks_inside_itself(workplace: Workplace) -> None:
    configured(
        workplace, FUNCTION + "  - {id: manual, kb: default}\nkb:\n  sources_dir: docs\n  max_source_bytes: 100\n"
    )
    write_files(workplace.folder, {"kb/a.md": "# Soup\n\nSoup is served at noon.\n", "kb/b.md": "x" * 200})
    assert workplace.pair("install", "--source", "./kb").status == 0
    assert (workplace.folder / "docs" / "a.md").exists()
    workplace.pair("sync", "--json").succeeds()
    assert workplace.pair("search", "soup", "--json").json["results"][0]["id"] == "a.md"
    assert "at noon" in workplace.pair("ask", "When is soup served?", "--json").json["answer"]
    assert {"manual", "default"} <= {
        one["id"] for one in workplace.pair("librarians", "list", "--json").json["librarians"]
    }


def test_what_is_ignored_is_said_once_and_never_on_standard_output(workplace: Workplace) -> None:
    configured(workplace, FUNCTION + "ai:\n  base_url: http://127.0.0.1:1/v1\n")
    assert workplace.pair("sync").status == 0
    for command in (["ask", "When is tea served?"], ["librarians", "list"], ["search", "tea"], ["status"]):
        for arguments in (command, [*command, "--json"]):
            done = workplace.pair(*arguments)
            assert done.stderr.count("is not trusted") == 1, done.stderr
            assert "not trusted" not in done.stdout
            assert "ai.base_url (config.yaml:4)" in done.stderr


def test_doctor_says_what_is_ignored_and_what_is_trusted(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    (check, *_) = workplace.pair("doctor", "--json").json["checks"]
    assert (check["name"], check["state"], check["hints"]) == ("configuration", "note", ["pair trust"])
    assert "librarians.entries[1] (config.yaml:2)" in check["message"]
    workplace.trust()
    (check, *_) = workplace.pair("doctor", "--json").json["checks"]
    assert (check["state"], check["message"]) == ("ok", "config.yaml: trusted")


def test_python_follows_the_same_rules(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    assert workplace.pair("sync").status == 0
    program = "import pair, pair.kb.librarians\nwith pair.open() as kb:\n    print(kb.stats().documents)\n"
    done = workplace.pair("-c", program)
    assert (done.status, done.stdout) == (0, "1\n")
    assert "config.yaml is not trusted. Ignored: librarians.entries[1] (config.yaml:2)" in done.stderr
    assert not (workplace.folder / "ran").exists()


def test_a_file_that_is_named_needs_no_trust(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    assert workplace.pair("sync").status == 0
    asked = ["ask", "When is tea served?", "--json"]
    assert "Taken over." in workplace.pair("--config", "config.yaml", *asked).json["answer"]
    assert "Taken over." in workplace.pair(*asked, PAIR_CONFIG="config.yaml").json["answer"]
    assert "at four" in workplace.pair(*asked).json["answer"]
    assert workplace.pair("--config", "config.yaml", "trust", "--json").error_code == "E403"


def test_a_token_is_not_sent_to_a_host_that_a_trusted_file_of_the_folder_names(
    workplace: Workplace, server: Server
) -> None:
    configured(workplace, f"sources:\n  github_api_url: {server.url('')}\n  retries: 0\n")
    workplace.trust()
    server.pages["/repos/foomakers/pair/releases/latest"] = Page(b"{}")
    workplace.pair("install", GITHUB_TOKEN="s3cret-token")
    (asked,) = server.requests("/repos/foomakers/pair/releases/latest")
    assert "s3cret-token" not in str(asked.headers)
    workplace.pair("--config", "config.yaml", "install", GITHUB_TOKEN="s3cret-token")
    assert "s3cret-token" in str(server.requests("/repos/foomakers/pair/releases/latest")[1].headers)


# ── trusting ───────────────────────────────────────────────────────────────────────────────────────


def test_what_a_configuration_asks_for_is_shown_with_its_lines_and_without_credentials(workplace: Workplace) -> None:
    configured(
        workplace,
        "ai:\n  base_url: https://me:s3cret@evil.example/v1?token=s3cret\n  api_key: s3cret\n"
        "kb:\n  index_path: ~/.profile\n"
        'librarians:\n  - {id: a, endpoint: "http://u:s3cret@host/ask", token: s3cret, name: "\\e[2J\\u202e\\n"}\n'
        "server:\n  host: 0.0.0.0\nengine:\n  embedding_api_key: ${EMBEDDING_KEY}\n",
    )
    shown = workplace.pair("trust", "--show").stdout
    for line in (
        'config.yaml:2: ai.base_url talks to another host: "https://evil.example/v1?token=…"',
        'config.yaml:5: kb.index_path reads or writes outside the folder: "~/.profile"',
        "config.yaml:7: librarians.entries[1] talks to another host: ",
        'config.yaml:9: server.host decides who may use the server: "0.0.0.0"',
        'config.yaml:11: engine.embedding_api_key reads a variable of your environment: "${EMBEDDING_KEY}"',
    ):
        assert line in shown
    assert "s3cret" not in shown
    assert all(letter.isprintable() for letter in shown.replace("\n", ""))
    value = workplace.pair("trust", "--show", "--json").json
    assert (value["trusted"], value["config"]["trusted"], value["keys_file"]) == (False, False, None)
    needs = {request["key"]: request["need"] for request in value["config"]["requests"]}
    assert needs["librarians.entries[1]"] == "address"
    assert "s3cret" not in str(value)
    assert workplace.pair("trust", "--list", "--json").json == {"trusted": []}, "showing trusts nothing"


def test_a_script_has_to_say_yes(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    for arguments in (["trust", "--json"], ["--json", "trust"]):
        workplace.pair(*arguments).fails(1, "E402")
    assert not is_trusted(workplace)
    done = workplace.pair("trust", "--yes", "--json")
    assert (done.status, done.json["trusted"]) == (0, True)
    (entry,) = workplace.pair("trust", "--list", "--json").json["trusted"]
    assert entry["path"] == os.path.realpath(workplace.folder / "config.yaml")
    assert workplace.pair("trust", "--revoke", "--json").json == {"revoked": [entry["path"]]}
    assert not is_trusted(workplace)
    assert workplace.pair("trust", "--revoke", "--json").json == {"revoked": []}
    assert workplace.pair("trust", "--yes", "--show", "--json").error_code == "E402"


def test_revoking_does_not_change_other_folders(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    outer, inner = workplace.folder, workplace.folder / "inner"
    write_files(inner, {"config.yaml": FUNCTION})
    workplace.pair("keys", "add", "me")
    for folder in (outer, inner):
        workplace.folder = folder
        assert workplace.pair("trust", "--yes").status == 0
    workplace.folder = outer
    assert len(workplace.pair("trust", "--revoke", "--json").json["revoked"]) == 2
    assert workplace.pair("keys", "list", "--json").error_code == "E404"
    workplace.folder = inner
    assert is_trusted(workplace)


def answer(workplace: Workplace, text: str, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """Run `pair trust` at a terminal, and answer its question."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*PAIR, "trust"],
            cwd=workplace.folder,
            env=workplace.environment,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        said = b""
        while b"[y/N]" not in said and (block := os.read(process.stdout.fileno(), 4096)):
            said += block
        meanwhile()
        os.write(ours, f"{text}\n".encode())
        rest = process.stdout.read()
        process.stdout.close()
        return process.wait(60), (said + rest).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_at_a_terminal_the_user_is_asked(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    for text in ("", "n", "maybe"):
        status, said = answer(workplace, text)
        assert (status, "Not trusted: config.yaml" in said) == (1, True), said
        assert not is_trusted(workplace)
    status, said = answer(workplace, "y")
    assert (status, is_trusted(workplace)) == (0, True), said
    assert re.search(r"config\.yaml:2: librarians\.entries\[1\] runs code: .*tools:said", said)


def test_what_is_trusted_is_what_was_shown(workplace: Workplace) -> None:
    path = configured(workplace, FUNCTION)
    status, said = answer(workplace, "y", lambda: change(path))
    assert (status, "has changed since" in said) == (1, True), said
    assert not is_trusted(workplace)
    path.write_text(FUNCTION)
    assert is_trusted(workplace)


def change(path: Path) -> None:
    path.write_text(FUNCTION + "ai:\n  base_url: http://evil\n")


# ── what is trusted, and what is not ───────────────────────────────────────────────────────────────


def test_a_configuration_that_changes_is_asked_again(workplace: Workplace) -> None:
    path = configured(workplace, FUNCTION)
    workplace.pair("trust", "--yes")
    path.write_text(FUNCTION + "# a comment\n")
    assert not is_trusted(workplace)
    assert "Ignored: librarians.entries[1]" in workplace.pair("librarians", "list").stderr
    assert workplace.pair("trust", "--yes").status == 0
    assert is_trusted(workplace)


def test_a_folder_that_is_moved_or_copied_is_asked_again(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    workplace.pair("trust", "--yes")
    place, other = workplace.folder, workplace.folder.with_name("other")
    shutil.copytree(place, other)
    workplace.folder = other
    assert not is_trusted(workplace), "the same bytes elsewhere are another configuration"
    shutil.rmtree(other)
    place.rename(other)
    assert not is_trusted(workplace)
    other.rename(place)
    workplace.folder = place
    assert is_trusted(workplace)


def test_a_link_does_not_inherit_the_trust_of_its_target(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    workplace.pair("trust", "--yes")
    own, clone = workplace.folder, workplace.folder.with_name("clone")
    write_files(clone, {"tools.py": TOOLS, **PAGE})
    (clone / "config.yaml").symlink_to(own / "config.yaml")
    workplace.folder = clone
    assert not is_trusted(workplace)
    workplace.pair("librarians", "list")
    assert not (clone / "ran").exists()
    assert workplace.pair("trust", "--yes").status == 0
    assert is_trusted(workplace)
    (own / "config.yaml").write_text(FUNCTION + "# changed\n")
    assert not is_trusted(workplace)


def test_trust_is_for_the_place_that_is_read(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    configured(workplace, "ai:\n  base_url: http://127.0.0.1:1/v1\n", ".pair/config.yaml")
    assert ".pair/config.yaml is not used" in workplace.pair("trust", "--show").stdout
    workplace.pair("trust", "--yes")
    assert is_trusted(workplace)
    (workplace.folder / "config.yaml").unlink()
    assert not is_trusted(workplace)


def test_a_folder_without_configuration_has_nothing_to_trust(workplace: Workplace) -> None:
    for arguments in (["trust"], ["trust", "--yes"], ["trust", "--show"]):
        workplace.pair(*arguments, "--json").fails(1, "E403")


@pytest.mark.parametrize("text", ["", "kb:\n  sources_dir: docs\n"])
def test_a_configuration_that_asks_for_nothing_needs_no_trust(workplace: Workplace, text: str) -> None:
    configured(workplace, text)
    done = workplace.pair("trust", "--yes", "--json")
    assert (done.status, done.json["trusted"], done.json["config"]["requests"]) == (0, True, [])
    assert workplace.pair("trust", "--list", "--json").json == {"trusted": []}
    assert "needs no trust" in workplace.pair("trust").stdout


def test_a_damaged_trust_store_trusts_nothing_and_is_named(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    workplace.pair("trust", "--yes")
    store = home_of(workplace) / ".pair" / "trusted.json"
    store.write_text("{")
    done = workplace.pair("librarians", "list").succeeds()
    assert not (workplace.folder / "ran").exists()
    assert "config.yaml is not trusted" in done.stderr
    assert str(store) in done.stderr
    workplace.pair("trust", "--yes", "--json").fails(1, "E401")
    assert store.read_text() == "{"


def test_an_unwritable_home_is_reported(workplace: Workplace) -> None:
    configured(workplace, FUNCTION)
    home_of(workplace).chmod(0o500)
    workplace.obey_permissions()
    workplace.pair("trust", "--yes", "--json").fails(3, "E010")
    home_of(workplace).chmod(0o700)


def test_a_folder_cannot_bring_its_own_trust(workplace: Workplace) -> None:
    """If the project is the home folder, as on some platforms, nothing in it is trusted."""
    configured(workplace, FUNCTION)
    workplace.pair("trust", "--yes")
    shutil.copytree(home_of(workplace) / ".pair", workplace.folder / ".pair", dirs_exist_ok=True)
    at_home = {"HOME": str(workplace.folder)}
    workplace.pair("librarians", "list", **at_home).says("your home folder is not outside this folder")
    assert not (workplace.folder / "ran").exists()
    assert workplace.pair("trust", "--yes", "--json", **at_home).error_code == "E401"
    assert workplace.pair("--config", "config.yaml", "librarians", "list", **at_home).status == 0
    assert (workplace.folder / "ran").exists()
