"""`pair reproduce`: whether the passages of a stored answer are found again, and the reason if not."""

import json
from typing import Any

import pytest

from support.command import Outcome, Workplace, write_files

TEA = "Tea is served at four in the garden."
SOUP = "Soup is served on Fridays in the hall."
QUESTION = "When is tea served?"


def store(workplace: Workplace, *documents: tuple[str, str], kb: str = "default") -> None:
    lines = "\n".join(json.dumps({"id": name, "text": text}) for name, text in documents)
    write_files(workplace.folder, {"lines.jsonl": lines})
    assert workplace.pair("ingest", "lines.jsonl", "--kb", kb).status == 0


def stored_answer(workplace: Workplace, **variables: str) -> dict[str, Any]:
    answer = workplace.pair("ask", QUESTION, "--json", **variables).succeeds()
    write_files(workplace.folder, {"answer.json": answer.stdout})
    found: dict[str, Any] = answer.json
    return found


@pytest.fixture
def tea(workplace: Workplace) -> Workplace:
    """Return a project with a stored answer from version 2."""
    store(workplace, ("other", "Nothing to see."))
    store(workplace, ("tea", TEA), ("soup", SOUP))
    stored_answer(workplace)
    return workplace


def states(done: Outcome) -> dict[str, tuple[str, int | None]]:
    (told,) = done.json["retrievals"]
    return {each["documentId"]: (each["state"], each.get("changedIn")) for each in told["passages"]}


def test_an_answer_says_how_its_passages_were_found(tea: Workplace) -> None:
    answer = json.loads((tea.folder / "answer.json").read_text())
    (retrieval,) = answer["metadata"]["retrieval"]
    assert (retrieval["kbId"], retrieval["manifestVersion"], retrieval["query"]) == ("default", 2, QUESTION)
    assert {"commitId", "embedder", "mode", "limit"} < retrieval.keys()
    assert retrieval["passages"][0] == {
        "documentId": "tea",
        "start": 0,
        "end": len(TEA),
        "sha256": answer["sources"][0]["provenance"]["contentSha256"][:16],
        "score": retrieval["passages"][0]["score"],
    }


def test_the_version_that_was_asked_is_asked_again(tea: Workplace) -> None:
    store(tea, ("tea", "Tea is served at five."))
    same = tea.pair("reproduce", "answer.json")
    assert (same.status, same.stderr) == (0, "")
    assert same.stdout.startswith("default, version 2: the same ")
    told = tea.pair("reproduce", "answer.json", "--json").json
    assert (told["isSame"], told["retrievals"][0]["isRecordedVersion"]) == (True, True)


def test_a_change_is_reported_with_the_version_that_made_it(tea: Workplace) -> None:
    store(tea, ("far", "Quite another thing."))
    store(tea, ("tea", "Tea is served at five in the hall."))
    assert tea.pair("docs", "delete", "soup").status == 0
    done = tea.pair("reproduce", "answer.json", "--at", "current", "--json").exits(1)
    assert states(done)["tea"] == ("changed", 4)
    assert states(done)["soup"] == ("gone", 5)
    assert "tea" in [each["documentId"] for each in done.json["retrievals"][0]["new"]]
    shown = tea.pair("reproduce", "answer.json", "--at", "current").stdout
    assert f"1. tea 0-{len(TEA)}: changed in version 4\n" in shown
    assert f"soup 0-{len(SOUP)}: document deleted in version 5\n" in shown
    assert "(the answer names version 2 of default)" in shown


def test_a_version_that_is_not_kept_is_replaced_by_the_current_one(tea: Workplace) -> None:
    keep_none = {"PAIR__ENGINE__KEEP_VERSIONS": "0", "PAIR__ENGINE__KEEP_DAYS": "0"}
    store(tea, ("tea", "Tea is served at six."))
    assert tea.pair("gc", "--grace", "0", **keep_none).status == 0
    done = tea.pair("reproduce", "answer.json", "--json", **keep_none)
    assert (done.status, done.json["retrievals"][0]["isRecordedVersion"]) == (1, False)
    assert states(done)["tea"][0] == "changed"
    told = next(each for each in done.json["retrievals"][0]["passages"] if each["documentId"] == "tea")
    assert told["changedIn"] == 3 or told["orBefore"]


def test_another_kb_with_the_same_documents_gives_the_same_passages(tea: Workplace) -> None:
    store(tea, ("other", "Nothing to see."), ("tea", TEA), ("soup", SOUP), kb="twin")
    same = tea.pair("reproduce", "answer.json", "--kb", "twin", "--json")
    assert (same.status, same.json["retrievals"][0]["isRecordedVersion"]) == (0, False)
    store(tea, ("tea", "Tea is served at seven."), kb="young")
    other = tea.pair("reproduce", "answer.json", "--kb", "young", "--json")
    assert (other.status, states(other)["tea"], states(other)["soup"]) == (1, ("changed", 1), ("gone", 1))


def test_a_package_gives_the_same_passages_on_a_machine_without_the_kb(workplace: Workplace) -> None:
    folder = write_files(workplace.folder / "kb", {"tea.md": f"# Tea\n\n{TEA}\n", "soup.md": f"# Soup\n\n{SOUP}\n"})
    workplace.pair("package", f"./{folder.name}", "--output", "kb.zip", "--with-index", "--json").succeeds()
    assert workplace.pair("install", "--source", "./kb.zip").status == 0
    stored_answer(workplace)
    elsewhere = {"PAIR__ENGINE__STORE": "./empty"}
    same = workplace.pair("reproduce", "answer.json", "--package", "kb.zip", "--json", **elsewhere)
    assert (same.status, same.json["isSame"]) == (0, True)
    write_files(folder, {"tea.md": "# Tea\n\nTea is served at five.\n"})
    assert workplace.pair("package", f"./{folder.name}", "--output", "two.zip", "--with-index").status == 0
    other = workplace.pair("reproduce", "answer.json", "--package", "two.zip", "--json", **elsewhere)
    assert (other.status, states(other)["tea.md"][0], states(other)["soup.md"][0]) == (1, "changed", "scored")


def test_answers_of_several_keep_each_ones_retrieval(workplace: Workplace) -> None:
    store(workplace, ("tea", TEA), kb="one")
    store(workplace, ("tea", "Tea is served in cups."), kb="two")
    entries = "\n".join(f"  - id: {name}\n    kb: {name}\n    description: Tea." for name in ("one", "two"))
    write_files(workplace.folder, {"config.yaml": f"librarians:\n{entries}\n"})
    answer = stored_answer(workplace)
    asked = [each["kbId"] for each in answer["metadata"]["retrieval"]]
    assert asked
    assert set(asked) <= {"one", "two"}
    assert len(workplace.pair("reproduce", "answer.json", "--json").json["retrievals"]) == len(asked)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "E232"),
        ("", "E232"),
        ("[]", "E232"),
        ("{}", "E232"),
        (b"\xff\xfe", "E232"),
        ("[" * 100_000, "E232"),
        ('{"answer": "yes"}', "E233"),
        ('{"answer": "yes", "metadata": {"retrieval": []}}', "E233"),
        ('{"answer": "yes", "metadata": {"retrieval": {}}}', "E232"),
        ('{"answer": "yes", "metadata": []}', "E232"),
        ('{"answer": "yes", "metadata": {"retrieval": [{"kbId": 7}]}}', "E232"),
    ],
)
def test_what_is_not_a_stored_answer_is_refused(workplace: Workplace, content: str | bytes | None, code: str) -> None:
    if content is not None:
        write_files(workplace.folder, {"answer.json": content})
    workplace.pair("reproduce", "answer.json", "--json").fails(2, code)


def test_trouble_is_not_a_difference(tea: Workplace) -> None:
    for arguments, code in (
        (("--kb", "never"), "E201"),
        (("--at", "77"), "E218"),
        (("--package", "no.zip"), "E012"),
        (("--package", "no.zip", "--kb", "x"), "E402"),
    ):
        tea.pair("reproduce", "answer.json", *arguments, "--json").fails(2, code)
