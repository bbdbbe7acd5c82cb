"""First use: help that fits the terminal, queries without quotes, and hints that name the next command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.test_hostile_texts import run_on_terminal
from support.command import PAIR, Workplace, write_files
from support.ports import free_ports

HEADINGS = [
    "Get a knowledge base:",
    "Keep it current:",
    "Search and ask:",
    "Serve:",
    "Versions:",
    "Maintain:",
    "Develop:",
]
PAGE = (
    "# Rolling back\n\n## How\n\nA release is **rolled back** with `ship undo`. It takes about 4 minutes.\n\n"
    "| step | who |\n|---|---|\n| undo | on call |\n"
)


@pytest.fixture
def project(workplace: Workplace) -> Workplace:
    write_files(workplace.target, {"rollback.md": PAGE, "coffee.md": "# Coffee\n\nThe machine is cleaned at noon.\n"})
    workplace.pair("sync").succeeds()
    return workplace


def test_the_help_groups_the_commands_and_cuts_no_summary(workplace: Workplace) -> None:
    shown = workplace.pair("--help", COLUMNS="80").succeeds().stdout
    assert [line for line in shown.splitlines() if line in HEADINGS] == HEADINGS
    assert "..." not in shown.partition(HEADINGS[0])[2]
    assert max(map(len, shown.splitlines())) <= 80


def test_the_version_is_printed_with_any_shared_option(workplace: Workplace) -> None:
    text = workplace.pair("--version").succeeds().stdout
    assert workplace.pair("--log-level", "debug", "-V").succeeds().stdout == text
    for arguments in (["--json", "--version"], ["--version", "--json"]):
        assert workplace.pair(*arguments).succeeds().json == {"version": text.split()[1]}
    workplace.pair("--json").fails(1, "E402")


def test_the_help_loads_no_command(workplace: Workplace) -> None:
    code = (
        "import sys; from pair.app.cli.entry import main; main(['--help'])\n"
        "print([name for name in sys.modules if name.startswith(('pair.kb', 'pair.engine', 'pair.settings'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_words_need_no_quotes(project: Workplace) -> None:
    assert project.pair("search", "how", "roll", "back", "--json").json["query"] == "how roll back"
    project.pair("ask", "how", "is", "a", "release", "rolled", "back").succeeds().prints("ship undo")


def test_a_dash_reads_the_question_from_standard_input(project: Workplace) -> None:
    for command in ("search", "ask"):
        done = subprocess.run(
            [*PAIR, command, "-"],
            input="how is a release rolled back?\n",
            cwd=project.folder,
            env=project.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "ship undo" in done.stdout


def test_a_pipe_gets_text_without_markup(project: Workplace) -> None:
    for command in (["search", "release"], ["ask", "how is a release rolled back?"]):
        shown = project.pair(*command).succeeds().stdout
        assert not [mark for mark in ("**", "##", "`", "|", "\x1b") if mark in shown], shown
        assert "A release is rolled back with ship undo." in shown


def test_matches_are_bold_on_a_terminal_unless_colours_are_off(project: Workplace) -> None:
    assert "\x1b[1mrelease\x1b[0m" in run_on_terminal(project, "search", "release", TERM="xterm")
    assert "\x1b" not in run_on_terminal(project, "search", "release", TERM="xterm", NO_COLOR="1")


def test_an_error_is_red_on_a_terminal_only(project: Workplace) -> None:
    assert "\x1b[31mError:\x1b[0m " in run_on_terminal(project, "docs", "get", "nowhere.md", TERM="xterm")
    assert "\x1b" not in project.pair("docs", "get", "nowhere.md").stderr


def test_a_source_shows_the_quoted_sentence(project: Workplace) -> None:
    shown = project.pair("ask", "how long does it take to roll back a release?").succeeds().stdout
    below = shown.partition("Sources:\n")[2]
    assert "It takes about 4 minutes." in below


def test_no_results_say_what_to_try(project: Workplace) -> None:
    project.pair("search", "release", "--filter", "year=1999").succeeds().prints("No results. Remove a --filter")


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (["init"], ["pair add ./docs && pair sync", "pair ingest ./docs", "pair install --source ./docs"]),
        (["sync", "./docs"], ["pair ingest ./docs", "pair add ./docs && pair sync"]),
        (["query", "leap", "seconds"], ["pair search leap seconds"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_of_another_program_is_refused_with_the_right_one(
    workplace: Workplace, arguments: list[str], hints: list[str]
) -> None:
    workplace.pair(*arguments).exits(1).says("E402", *hints)


def test_an_install_without_a_source_says_what_to_name(workplace: Workplace) -> None:
    nowhere = {
        "PAIR__SOURCES__GITHUB_API_URL": f"http://127.0.0.1:{free_ports(1)[0]}",
        "PAIR__SOURCES__RETRIES": "0",
    }
    hint = "pair install --source ./docs"
    workplace.pair("install", **nowhere).exits(2).says("Code: E005", hint)
    named = workplace.pair("install", PAIR__SOURCES__RELEASE_REPOSITORY="team/kb", **nowhere).exits(2)
    assert hint not in named.stderr


def test_an_empty_project_says_what_to_do_next(workplace: Workplace) -> None:
    for command in (["sync"], ["status"], ["search", "tea"], ["ask", "when", "is", "tea"]):
        done = workplace.pair(*command)
        assert "pair ingest PATH" in done.stdout + done.stderr, command


def test_completion_of_a_name_loads_no_command(workplace: Workplace) -> None:
    variables = {"_PAIR_COMPLETE": "complete_bash", "COMP_WORDS": "pair se", "COMP_CWORD": "1"}
    done = subprocess.run(
        [Path(sys.executable).parent / "pair"],
        env=workplace.environment | variables | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["search", "serve"]
