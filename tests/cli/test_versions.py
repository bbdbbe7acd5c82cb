"""`pair versions`, `pair rollback` and the option `--at`."""

import json

import pytest

from support.command import Workplace, write_files

FIRST = {"id": "tea", "text": "Tea is served at four in the garden."}
SECOND = {"id": "tea", "text": "Tea is served at five in the hall."}


@pytest.fixture
def tea(workplace: Workplace) -> Workplace:
    for name, document in (("one.jsonl", FIRST), ("two.jsonl", SECOND)):
        write_files(workplace.folder, {name: json.dumps(document)})
        assert workplace.pair("ingest", name).status == 0
    return workplace


def test_the_past_is_searched_and_asked(tea: Workplace) -> None:
    for at, words in ((("--at", "1"), "at four"), ((), "at five")):
        assert words in tea.pair("search", "when is tea served", *at).stdout
        answer = tea.pair("ask", "When is tea served?", *at, "--json").json
        assert words in answer["answer"]
    told = tea.pair("search", "tea", "--at", "1", "--json").json
    assert told["manifest_version"] == 1


def test_a_roll_back_brings_the_past_back_and_is_a_version_itself(tea: Workplace) -> None:
    done = tea.pair("rollback", "1")
    assert done.stderr == "Restored version 1 of default as version 3: 1 document.\n"
    assert "at four" in tea.pair("search", "when is tea served").stdout
    assert tea.pair("versions").stdout.splitlines()[0].endswith("rolled back to version 1")
    assert tea.pair("rollback", "3", "--json").json["changed"] is False
    assert tea.pair("rollback", "2", "--json").json["manifest_version"] == 4
    assert "at five" in tea.pair("search", "when is tea served").stdout


@pytest.mark.parametrize(
    "command", [("rollback", "7"), ("search", "tea", "--at", "7"), ("search", "tea", "--at", "2.0.0")]
)
def test_a_version_that_is_not_kept_is_refused(tea: Workplace, command: tuple[str, ...]) -> None:
    tea.pair(*command, "--json").fails(1, "E218")
    assert "Kept versions: 2, 1" in tea.pair(*command).stderr


def test_an_answer_of_the_past_is_refused_where_it_is_not_kept_or_not_known(tea: Workplace) -> None:
    refused = tea.pair("ask", "When is tea served?", "--at", "7", "--json").exits(1)
    assert refused.json["error"]["code"] == "NOT_FOUND"
    assert tea.pair("ask", "When?", "--at", "1", "--librarian", "catalogue", "--json").error_code == "E402"


def test_a_librarian_that_replaces_that_of_the_kb_does_not_answer_for_the_past(tea: Workplace) -> None:
    write_files(
        tea.folder,
        {
            "own.py": "from pair.librarians import Response\n\n\nasync def said(query):\n"
            "    return Response(answer='Tea is served at noon.', confidence=0.9)\n",
            "config.yaml": "librarians:\n  - {id: default, function: 'own:said'}\n",
        },
    )
    tea.trust()
    assert "at noon" in tea.pair("ask", "When is tea served?", "--json").json["answer"]
    assert "at four" in tea.pair("ask", "When is tea served?", "--at", "1", "--json").json["answer"]
    (listed,) = [
        each for each in tea.pair("librarians", "list", "--json").json["librarians"] if each["id"] == "default"
    ]
    assert listed["answers_from"] == "function own:said"


def test_versions_of_a_missing_kb_are_refused(workplace: Workplace) -> None:
    for command in (("versions",), ("rollback", "1")):
        workplace.pair(*command, "--json").fails(1, "E201")
    assert not (workplace.folder / ".pair").exists()
