"""The documentation matches the code, and its commands work."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pair
from pair import errors, settings
from pair.app.cli.commands import build
from support.command import Workplace

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
README = ROOT / "README.md"
PAGES = sorted(
    [
        README,
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "changes").glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks_of(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(path), flags=re.MULTILINE | re.DOTALL)


# ── reference ──────────────────────────────────────────────────────────────────────────────────────


def command_tree() -> list[tuple[str, Any]]:
    root = build()
    return [("pair", root), *commands_below("pair", root)]


def commands_below(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_below(f"{path} {name}", command)
        elif not command.hidden:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("name", "command"), command_tree(), ids=[name for name, _ in command_tree()])
def test_every_option_of_a_command_is_in_the_reference(name: str, command: Any) -> None:
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text_of(REFERENCE / "cli.md"), re.MULTILINE | re.DOTALL)
    assert section is not None, name
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("-")]
    assert options
    assert [option for option in options if option not in section[1]] == []


@pytest.mark.parametrize(("name", "command"), command_tree()[1:], ids=[name for name, _ in command_tree()[1:]])
def test_every_command_has_a_help_text_with_an_example(name: str, command: Any) -> None:
    assert command.help
    assert f"  {name}" in command.epilog


def test_every_command_and_section_of_settings_has_its_line_in_the_scope() -> None:
    rows = re.findall(r"^\| (.*?) \| ", text_of(ROOT / "docs" / "scope.md"), flags=re.MULTILINE)
    earned = set(re.findall(r"\w+", " ".join(rows)))
    names = {word for name, _ in command_tree() for word in name.split()[1:]}
    assert {*names, *settings.SECTIONS} - earned == set()


def test_every_setting_is_in_the_reference_with_its_variable() -> None:
    page = text_of(REFERENCE / "settings.md")
    for section, policy in settings.SECTIONS.items():
        for key in dataclasses.fields(policy):
            assert f"`{section}.{key.name}`" in page
            assert f"`PAIR__{section}__{key.name}`".upper() in page
    for variable in settings.NAMED_VARIABLES:
        assert f"`{variable}`" in page


def test_every_error_code_is_in_the_reference_with_its_text() -> None:
    page = text_of(REFERENCE / "errors.md")
    for code in errors.CODES:
        assert f"\n## {code}\n" in page
        assert f"Code: {code}\n" in page


def test_every_public_name_is_in_the_reference() -> None:
    page = text_of(REFERENCE / "python.md")
    assert [name for name in pair.__all__ if f"\n## pair.{name}\n" not in page] == []


@pytest.mark.parametrize(
    "variables", [{}, {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "LANG": "C"}], ids=["as it is", "a wide terminal"]
)
def test_generated_pages_are_current(workplace: Workplace, variables: dict[str, str]) -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, env=workplace.environment | variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────


def listed_rules() -> set[str]:
    return set(re.findall(r"^\| ([a-z]+-\d+) \|", text_of(REFERENCE / "rules.md"), flags=re.MULTILINE))


def rules_with_a_test() -> set[str]:
    """Return the ids in every `pytest.mark.rule("...")` below tests/."""
    marks = (
        mark for path in (ROOT / "tests").rglob("*.py") for mark in re.findall(r"mark\.rule\(([^)]*)\)", text_of(path))
    )
    return {rule for mark in marks for rule in re.findall(r'"([a-z]+-\d+)"', mark)}


def rules_named_in_the_code() -> set[str]:
    comments = (
        comment
        for path in (ROOT / "src").rglob("*.py")
        for comment in re.findall(r"#\s(.*)$", text_of(path), re.MULTILINE)
    )
    return {rule for comment in comments for rule in re.findall(r"\bsource-\d+\b", comment)}


def test_every_rule_is_carried_by_a_test() -> None:
    assert sorted(listed_rules() - rules_with_a_test()) == []


def test_every_rule_that_a_test_or_a_comment_names_is_listed() -> None:
    assert sorted((rules_with_a_test() | rules_named_in_the_code()) - listed_rules()) == []


def test_the_rules_are_numbered_without_gaps() -> None:
    for group in ("source", "sync"):
        numbers = sorted(int(rule.partition("-")[2]) for rule in listed_rules() if rule.startswith(f"{group}-"))
        assert numbers == list(range(1, len(numbers) + 1)), group


# ── pages ──────────────────────────────────────────────────────────────────────────────────────────


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_relative_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def pages_linked_from(page: Path) -> set[Path]:
    links = re.findall(r"\]\(([^)\s#]+\.md)[^)\s]*\)", text_of(page))
    return {(page.parent / link).resolve() for link in links if not link.startswith("http")}


def test_the_index_leads_to_every_page() -> None:
    """The index links to every page except the decisions, which have a separate index."""
    docs = ROOT / "docs"
    linked = pages_linked_from(docs / "index.md") | pages_linked_from(docs / "decisions" / "README.md")
    assert sorted(set(docs.rglob("*.md")) - linked - {docs / "index.md"}) == []


def test_no_page_that_people_write_has_more_than_two_thousand_words() -> None:
    generated = {REFERENCE / f"{name}.md" for name in ("cli", "errors", "python", "rules", "settings")}
    assert [page.name for page in PAGES if page not in generated and len(text_of(page).split()) > 2_000] == []


def test_every_guide_shows_a_command_in_its_first_ten_lines() -> None:
    """Only a title and a short introduction may come before the command."""
    guides = sorted((ROOT / "docs" / "guides").glob("*.md"))
    openings = {page.name: "\n".join(text_of(page).splitlines()[:10]) for page in guides}
    assert [
        name for name, text in openings.items() if not re.search(r"^```(sh|console|python)\n.", text, re.MULTILINE)
    ] == []


def test_the_readme_has_at_most_110_lines() -> None:
    assert len(text_of(README).splitlines()) <= 110


def test_a_note_of_a_change_says_first_what_kind_it_is() -> None:
    notes = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert [note.name for note in notes if not text_of(note).startswith(("Added: ", "Changed: ", "Fixed: "))] == []


# ── what the README tells people to type ───────────────────────────────────────────────────────────


@pytest.fixture
def clone(workplace: Workplace) -> Workplace:
    """Return a folder with the example KB and the command on the path, as in a clone after `make demo`."""
    handbook = ROOT / "examples" / "handbook"
    for path in handbook.rglob("*.md"):
        copy = workplace.folder / "examples" / "handbook" / path.relative_to(handbook)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    commands = workplace.folder.parent / "bin"
    commands.mkdir()
    for name, options in (("pair", " -m pair"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{options} "$@"\n')
        (commands / name).chmod(0o755)
    workplace.environment["PATH"] = f"{commands}:{workplace.environment['PATH']}"
    del workplace.environment["PAIR__ENGINE__EMBEDDER"]  # the reader has the default
    return workplace


def run_in(workplace: Workplace, *command: str | Path) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(
        command,
        cwd=workplace.folder,
        env=workplace.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_sizes(text: str) -> str:
    """Remove sizes and times, which depend on the zlib library and the machine."""
    return re.sub(r"[\d.]+ s\)", "some s)", re.sub(r"[\d.]+ kB", "some kB", text))


def quickstart() -> str:
    return next(block for block in blocks_of(README, "sh") if "pair ask" in block)


def test_the_quickstart_of_the_readme_prints_what_the_readme_says(clone: Workplace) -> None:
    printed = run_in(clone, "bash", "-e", "-c", quickstart())
    assert without_sizes(printed) == without_sizes(blocks_of(README, "text")[0])


def test_the_python_example_of_the_readme_prints_what_the_readme_says(clone: Workplace) -> None:
    (example,) = blocks_of(README, "python")
    assert run_in(clone, sys.executable, "-c", example) == blocks_of(README, "text")[1]


def test_the_demo_that_the_readme_names_runs(clone: Workplace) -> None:
    assert "make demo\n" in blocks_of(README, "sh")
    assert "examples/demo.sh" in text_of(ROOT / "Makefile")
    clone.environment["BIN"] = str(clone.folder.parent / "bin")
    printed = run_in(clone, "bash", ROOT / "examples" / "demo.sh")
    assert "Installed handbook 1.0.0 in .pair/knowledge (checksum verified)." in printed
    assert [mode for mode in ("keyword", "vector", "graph") if f"    = mode {mode}, score " not in printed] == []
    assert "graph: the question names google public ntp" in printed
    assert "Ready to search: 43 documents in default, version 1 (1 of 1 shard new)." in printed
    assert "0 added, 0 removed, 1 changed" in printed
    assert "Restored version 1 (handbook 1.0.0) of default as version 3: 43 documents." in printed
    assert "  foundations/leap-smear.md\n" in printed.partition("examples/search_site.py")[2]


def test_the_quickstart_guide_prints_what_it_says(clone: Workplace) -> None:
    guide = ROOT / "docs" / "guides" / "quickstart.md"
    steps = [block for block in blocks_of(guide, "sh") if "make" not in block]
    printed = without_sizes(run_in(clone, "bash", "-e", "-c", "\n".join(steps)))
    assert [shown for shown in blocks_of(guide, "text") if without_sizes(shown) not in printed] == []
