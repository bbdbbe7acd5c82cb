"""Untrusted texts, titles, names and replies: the terminal shows control sequences and does not execute them."""

import json
import os
import pty
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.command import PAIR, Workplace, write_files
from support.git_server import commit, git
from support.kbs import zip_of
from support.model_server import Answer, ModelServer

# A window title, colours in 7 and 8 bits, a link, a bell, DEL, a reversed direction, separators, hidden characters.
ESCAPES = (
    "\x1b]0;owned\x07\x1b[5;35mred\x9b31m\x1b]8;;http://x.invalid\x1b\\link\x7f\x08\u202egpj\u2066\u2028\u2029\u0085"
    "\u200b\ufeff\u2060a\u200db[bold]\U000e0041"
)
FORGED = "\nok: signed by FORGED\r\nError: FORGED\tFORGED"
NAME = f"deploy{ESCAPES.replace('/', '')}{FORGED}.md"
"""A file name: it may contain anything except a slash."""
HIDDEN = "\u202egpj\u2066\u200b\ufeff"
"""Characters that sync allows in a file name."""
BODY = f"# Deploying{ESCAPES}\n\nWe deploy on Tuesdays{ESCAPES} with `make ship`.\n"
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e01ef]|a\u200db"
)
OWN_SEQUENCES = re.compile(r"\x1b\[(?!5;35m)\??[\d;]*[A-Za-z]|\r")
"""Control sequences that pair sends itself: for progress bars and overwritten lines."""


def assert_is_harmless(shown: str, *, is_terminal: bool) -> None:
    text = OWN_SEQUENCES.sub("", shown) if is_terminal else shown
    assert not FORBIDDEN.search(text), ascii(text)
    assert not [
        line for line in text.split("\n") if line.lstrip().startswith(("ok: signed by FORGED", "Error: FORGED"))
    ], text


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Return a synced folder, a package and a repository, all made by an attacker."""
    workplace = Workplace(tmp_path_factory.mktemp("hostile"))
    write_files(
        workplace.target,
        {NAME: BODY, f"b{NAME}": b"\xff\xfe\x00", f"lun{HIDDEN}ch.md": f"# Lunch{HIDDEN}\n\nLunch is at one.\n"},
    )
    os.mkfifo(workplace.target / f"pipe{NAME}")
    (workplace.target / "link.md").symlink_to(f"/nowhere{NAME}")
    manifest = {"schema_version": 1, "name": f"n{ESCAPES}{FORGED}", "version": f"1{ESCAPES}{FORGED}", "files": {}}
    (workplace.folder / "kb.zip").write_bytes(zip_of({NAME: BODY, "manifest.json": json.dumps(manifest)}))
    (workplace.folder / "plain.zip").write_bytes(zip_of({NAME: BODY, "a.md": "# A\n"}))
    write_files(
        workplace.folder, {f"plain{NAME}.zip": "no archive", "odd.txt": "", f"keys{NAME}.yaml": f"a{ESCAPES}: ["}
    )
    repository = workplace.folder / "repository.git"
    repository.mkdir()
    git(repository, "init", "-q")
    commit(repository, {"a.md": "# A\n"})
    document = {"id": NAME, "title": f"Deploying{ESCAPES}{FORGED}", "text": BODY, "url": f"http://x/{ESCAPES}{FORGED}"}
    write_files(workplace.folder, {"documents.jsonl": json.dumps(document)})
    assert workplace.pair("ingest", "documents.jsonl").status == 0
    assert workplace.pair("sync").status == 0
    return workplace


COMMANDS: list[list[str]] = [
    ["sync"],
    ["sync", "--log-level", "debug"],
    ["sync", "--dry-run"],
    ["status"],
    ["search", "deploy"],
    ["search", "deploy", "--explain", "--mode", "keyword"],
    ["search", "deploy", "--filter", f"a{ESCAPES}{FORGED}"],
    ["search", "deploy", "--at", f"9{ESCAPES}{FORGED}"],
    ["search", "deploy", "--kb", f"k{ESCAPES}{FORGED}"],
    ["ask", "When do we deploy?"],
    ["ask", "When do we deploy?", "--librarian", f"nobody{ESCAPES}{FORGED}"],
    ["cite", f"default/{NAME}#0-9@0123456789ab"],
    ["cite", f"x{ESCAPES}{FORGED}"],
    ["docs", "list"],
    ["docs", "list", "--limit", "1"],
    ["docs", "get", NAME],
    ["docs", "get", f"absent{NAME}"],
    ["diff", "1", f"9{ESCAPES}{FORGED}"],
    ["diff", ".pair/knowledge", "plain.zip", "--text"],
    ["versions"],
    ["rollback", f"9{ESCAPES}{FORGED}"],
    ["fsck"],
    ["ingest", "--kb", "other", ".pair/knowledge"],
    ["ingest", f"absent{NAME}"],
    ["info", "kb.zip"],
    ["info", f"plain{NAME}.zip"],
    ["verify", "kb.zip"],
    ["verify", f"absent{NAME}"],
    ["install", "--source", "./kb.zip", "one"],
    ["install", "--source", "./plain.zip", "--dry-run", f"two{NAME}"],
    ["install", "--source", f"./absent{NAME}"],
    ["install", "--source", f"odd{ESCAPES}{FORGED}"],
    ["install", "--source", f"./repository.git#{ESCAPES}", "three"],
    ["package", ".pair/knowledge", "-o", "out.zip", "--name", "x", "--version", f"1{ESCAPES}{FORGED}"],
    ["package", ".pair/knowledge", "-o", "out.zip", "--name", "x", "--version", "1.0.0"],
    ["status", "--config", f"keys{NAME}.yaml"],
    ["status", "--log-level", f"loud{ESCAPES}{FORGED}"],
    ["keys", "revoke", f"k{ESCAPES}{FORGED}"],
    ["lock", f"absent{NAME}"],
    ["reproduce", f"absent{NAME}"],
    ["eval", f"absent{NAME}"],
    ["librarians", "list"],
    ["doctor"],
    [f"nothing{ESCAPES}{FORGED}"],
    ["status", f"--option{ESCAPES}{FORGED}"],
]


def run_on_terminal(workplace: Workplace, *arguments: str, **variables: str) -> str:
    """Run a command and return what the terminal shows."""
    ours, theirs = pty.openpty()
    environment = workplace.environment | {"TERM": "xterm-256color", "COLUMNS": "200"} | variables
    with subprocess.Popen(
        [*PAIR, *arguments],
        cwd=workplace.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        shown = b""
        while block := _read(ours):
            shown += block
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("arguments", COMMANDS, ids=[ascii(" ".join(command))[1:40] for command in COMMANDS])
def test_untrusted_texts_are_harmless_in_a_pipe(project: Workplace, arguments: list[str]) -> None:
    done = project.pair(*arguments)
    assert done.status != 70, done.stderr
    assert "Traceback" not in done.stderr or "debug" in arguments
    assert_is_harmless(done.stdout, is_terminal=False)
    assert_is_harmless(done.stderr, is_terminal=False)


ON_A_TERMINAL = [
    ["sync"],
    ["status"],
    ["search", "deploy"],
    ["ask", "When do we deploy?"],
    ["docs", "list"],
    ["docs", "get", NAME],
    ["ingest", "--kb", "another", ".pair/knowledge"],
    ["verify", "kb.zip"],
    ["install", "--source", "./plain.zip", "four"],
    ["install", "--source", f"./absent{NAME}"],
    ["export", "-o", "-"],
]


@pytest.mark.parametrize("arguments", ON_A_TERMINAL, ids=[ascii(" ".join(command))[1:40] for command in ON_A_TERMINAL])
def test_untrusted_texts_are_harmless_on_a_terminal(project: Workplace, arguments: list[str]) -> None:
    if arguments == ["sync"]:
        (project.folder / ".pair" / "index-cache.json").unlink()
    assert_is_harmless(run_on_terminal(project, *arguments), is_terminal=True)


def test_names_and_titles_are_shown_with_escapes(project: Workplace) -> None:
    listed = project.pair("docs", "list").stdout
    assert r"deploy\x1b]0;owned\x07" in listed
    assert r"\nok: signed by FORGED\r\nError: FORGED\tFORGED.md" in listed
    assert len(listed.splitlines()) == 2
    assert "[bold]" in listed


def test_json_holds_what_was_written_and_only_printable_ascii(project: Workplace) -> None:
    done = project.pair("docs", "list", "--json")
    assert NAME in [document["id"] for document in done.json["documents"]]
    assert re.fullmatch(r"[\n\x20-\x7e]*", done.stdout)
    assert project.pair("docs", "get", NAME, "--json").json["text"] == BODY


def test_a_streamed_answer_of_a_model_cannot_command_the_terminal(project: Workplace) -> None:
    with ModelServer() as server:
        server.answers += [Answer(text=f"On Tuesdays {ESCAPES} [1].")] * 9
        model = {"PAIR__AI__BASE_URL": server.url, "PAIR__AI__MODEL": "stub"}
        shown = run_on_terminal(project, "ask", "When do we deploy?", **model)
        assert r"On Tuesdays \x1b]0;owned" in shown
        assert_is_harmless(shown, is_terminal=True)
        assert_is_harmless(project.pair("ask", "When do we deploy?", **model).stdout, is_terminal=False)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server that gives this answer to every request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


STATUS_LINES = {
    "c1": b"HTTP/1.1 404 \x9b31mred\xc2\x9b31m\r\nContent-Length: 0\r\n\r\n",
    "tab": b"HTTP/1.1 404 ok:\tsigned\r\nContent-Length: 0\r\n\r\n",
    "escape": b"HTTP/1.1 404 \x1b[5;35mred\r\nContent-Length: 0\r\n\r\n",
    "no http": b"220 \x1b[5;35mred\x07 mail ready\r\n",
}


@pytest.mark.parametrize("status_line", STATUS_LINES.values(), ids=STATUS_LINES.keys())
def test_what_a_server_says_is_not_obeyed(workplace: Workplace, status_line: bytes) -> None:
    with answering(status_line) as address:
        write_files(workplace.folder / ".pair", {"links.txt": f"{address}/a\n"})
        for arguments in (["install", "--source", f"{address}/kb.zip"], ["sync"], ["status"]):
            done = workplace.pair(*arguments, PAIR__KB__ALLOW_PRIVATE_ADDRESSES="true", PAIR__SOURCES__RETRIES="0")
            assert_is_harmless(done.stdout + done.stderr, is_terminal=False)


def test_what_a_package_is_called_cannot_add_a_line_to_the_report(project: Workplace) -> None:
    shown = project.pair("info", "kb.zip")
    assert not [line for line in (shown.stdout + shown.stderr).splitlines() if line.startswith("ok:")]


def test_log_lines_of_a_server_stay_on_their_lines(project: Workplace) -> None:
    code = (
        "import logging; from pair.app.http.server import start_logging; start_logging('text', 'info')\n"
        f"hostile = {ESCAPES + FORGED!r}\n"
        "log = logging.getLogger('pair.http')\nlog.info('failed %s', hostile, extra={'path': hostile})\n"
        "try: raise ValueError(hostile)\nexcept ValueError: log.exception('failed')\n"
        "start_logging('json', 'info'); log.info('failed %s', hostile)\n"
    )
    done = subprocess.run([PAIR[0], "-c", code], capture_output=True, text=True, check=True, cwd=project.folder)
    assert not FORBIDDEN.search(done.stderr)
    assert all(re.match(r"\d{4}-|  |\{", line) for line in done.stderr.splitlines()), done.stderr
