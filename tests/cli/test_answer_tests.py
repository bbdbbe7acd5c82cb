"""`pair test` and `pair diff --answers`: test questions for folders, packages and KBs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command import Workplace, write_files

EXAMPLES = Path(__file__).parents[2] / "examples"

FILES = {
    "tea.md": "# Tea\n\nTea is served at four in the garden.\n",
    "soup.md": "# Soup\n\nSoup is served on Fridays in the hall.\n",
    "bread.md": "# Bread\n\nThe baker brings the bread at seven.\n",
}
QUESTIONS: list[dict[str, Any]] = [
    {"question": "When is tea served?", "documents": ["tea.md"], "phrases": ["at  FOUR"]},
    {"question": "On which day is soup served?", "documents": ["other.md", "soup.md"]},
    {"question": "Who won the football match?", "no_answer": True},
]


def lines(*questions: object) -> str:
    return "".join(f"{json.dumps(question)}\n" for question in questions)


@pytest.fixture
def house(workplace: Workplace) -> Workplace:
    write_files(workplace.folder / "house", {**FILES, "questions.jsonl": lines(*QUESTIONS)})
    return workplace


def test_a_folder_a_package_and_a_kb_pass_their_questions(house: Workplace) -> None:
    assert house.pair("test", "house").succeeds().stdout == "3 of 3 questions passed.\n"
    house.pair("package", "house", "-o", "plain.zip").succeeds()
    house.pair("package", "house", "-o", "indexed.zip", "--with-index").succeeds()
    for package in ("plain.zip", "indexed.zip"):
        assert house.pair("test", package, "--json").succeeds().json["failed"] == 0
    house.pair("install", "--offline", "--source", "./house").succeeds()
    house.pair("sync").succeeds()
    tested = house.pair("test", "--json").succeeds().json
    assert [row["outcome"] for row in tested["questions"]][:2] == ["answer", "answer"]
    assert house.pair("docs", "get", "questions.jsonl").status != 0


def test_failures_say_what_was_expected_and_found(house: Workplace) -> None:
    wrong = [
        {"question": "When is tea served?", "documents": ["soup.md"], "phrases": ["five", "garden"]},
        {"question": "When is the tea served?", "no_answer": True},
        {"question": "Who won the football match?", "phrases": ["us"]},
    ]
    write_files(house.folder, {"wrong.jsonl": lines(*wrong)})
    done = house.pair("test", "house", "--questions", "wrong.jsonl").exits(1)
    shown = done.stdout.splitlines()
    assert shown[:3] == ["✗ When is tea served?", "    cites tea.md, not soup.md", "    does not contain 'five'"]
    assert shown[3] == "✗ When is the tea served?"
    assert shown[4].startswith("    answered from tea.md (confidence 0.")
    assert shown[5] == "✗ Who won the football match?"
    assert shown[-1] == "0 of 3 questions passed."


def test_the_result_is_the_same_every_time(house: Workplace) -> None:
    write_files(house.folder / "house", {f"copy-{number}.md": FILES["tea.md"] for number in range(5)})
    outputs = {house.pair("test", "house", "--json").stdout for _ in range(3)}
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", ":2: "),
        ('"tea"', ":2: "),
        ('{"question": "?"}', "give documents or phrases, or else no_answer"),
        ('{"question": "?", "no_answer": true, "phrases": ["a"]}', "give documents or phrases, or else no_answer"),
        ('{"question": " ", "phrases": ["a"]}', "the question is empty"),
        ('{"question": "?", "phrases": "a"}', "phrases"),
        ('{"question": "?", "document": ["a"]}', "document"),
        ("\\xff", ":2: "),
        (f" {lines({**QUESTIONS[0], 'phrases': ['five']})}", "the question is on an earlier line too"),
    ],
)
def test_a_line_that_is_not_a_question_is_refused_with_its_number(house: Workplace, line: str, reason: str) -> None:
    content = lines(QUESTIONS[0]).encode() + line.encode().replace(b"\\xff", b"\xff")
    (house.folder / "bad.jsonl").write_bytes(content)
    done = house.pair("test", "house", "--questions", "bad.jsonl").exits(2)
    done.says("Cannot read the test questions bad.jsonl:2: ", reason, "Code: E511")


def test_a_report_cuts_long_questions_and_phrases(house: Workplace) -> None:
    long = {"question": f"When is tea served{'?' * 1_000_000}", "phrases": ["x" * 1_000_000]}
    write_files(house.folder, {"long.jsonl": lines(long)})
    assert len(house.pair("test", "house", "--questions", "long.jsonl").exits(1).stdout) < 1_000


def test_missing_questions_and_targets_are_errors(house: Workplace) -> None:
    (house.folder / "house/questions.jsonl").unlink()
    house.pair("test", "house").exits(2).says("Cannot find test questions in house", "Code: E512")
    house.pair("test", "house", "--questions", "none.jsonl").exits(2).says("E512")
    house.pair("test", "nowhere").exits(2).says("E003")
    house.pair("test", "house", "--kb", "house").exits(2).says("Cannot use --kb")
    write_files(house.folder / "house", {"questions.jsonl": "\n\n"})
    house.pair("test", "house").exits(2).says("it has no questions")


def test_a_kb_that_does_not_exist_is_an_error(house: Workplace) -> None:
    house.pair("test", "--kb", "none", "--questions", "house/questions.jsonl").exits(2).says("E201")


def test_a_diff_of_answers_names_each_question_that_changed(house: Workplace) -> None:
    after = {
        **FILES,
        "meals.md": "# Meals\n\nTea is served at four in the garden, said twice: tea is served at four.\n",
    }
    del after["soup.md"], after["tea.md"]
    write_files(house.folder / "after", {**after, "questions.jsonl": lines(*QUESTIONS)})
    done = house.pair("diff", "./house", "./after", "--answers", "--stat", "--json").exits(1)
    changes = {row["question"]: row["change"] for row in done.json["answers"]}
    assert changes["When is tea served?"] == "other_document"
    assert changes["On which day is soup served?"] == "unanswered"
    assert "Who won the football match?" not in changes
    shown = house.pair("diff", "./house", "./after", "--answers", "--stat").exits(1).stdout
    assert "? When is tea served?\n    answered from meals.md, earlier from tea.md\n" in shown
    assert "    no longer answered, earlier from soup.md\n" in shown
    back = house.pair("diff", "./after", "./house", "--answers", "--stat").exits(1).stdout
    assert "    now answered from soup.md\n" in back


def test_versions_are_compared_with_the_questions_of_the_synced_folder(house: Workplace) -> None:
    house.pair("install", "--offline", "--source", "./house").succeeds()
    house.pair("sync").succeeds()
    (house.folder / ".pair/knowledge/soup.md").unlink()
    house.pair("sync").succeeds()
    done = house.pair("diff", "1", "2", "--answers", "--json").exits(1)
    assert [(row["question"], row["change"]) for row in done.json["answers"]] == [
        ("On which day is soup served?", "unanswered")
    ]
    same = house.pair("diff", "2", "--answers").succeeds().stdout
    assert "All questions are answered as before." in same
    house.pair("diff", "1", "2", "--questions", "x").exits(2).says("Cannot use --questions without --answers")


def test_the_action_fails_on_a_wrong_answer_and_shows_what_changed(house: Workplace) -> None:
    """The scripts of examples/ci run as they are, in a repository with two revisions."""
    action = yaml.safe_load((EXAMPLES / "ci/action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"]]
    hook = yaml.safe_load((EXAMPLES / "ci/pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "house"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], cwd=house.folder, check=True)

    def run(script: str, base: str = "HEAD", folder: str = "house") -> subprocess.CompletedProcess[str]:
        places = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(house.folder / "home")}
        variables = {**places, "FOLDER": folder, "BASE": base}
        command = ["bash", "-eo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=house.folder, env=variables, capture_output=True, text=True, check=False)

    assert [run(script).returncode for script in scripts] == [0, 0]
    (house.folder / "house/soup.md").unlink()
    tested, compared = (run(script) for script in scripts)
    assert (tested.returncode, compared.returncode) == (1, 0)
    assert "no longer answered, earlier from soup.md" in compared.stdout
    write_files(house.folder / "new", {"soup.md": FILES["soup.md"]})
    assert "HEAD has no folder new: there is nothing to compare.\n" in run(scripts[1], folder="new").stdout
    assert run(scripts[1], "no-such-branch").returncode != 0
    assert run(hook["entry"].replace("docs", "house")).returncode == 1
