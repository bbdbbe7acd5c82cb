"""Judged sets on disk: complete, odd and broken."""

from pathlib import Path

import pytest

from pair.errors import PairError
from pair.evaluation.measure import JudgedSet, read_judged_set
from support.command import write_files

WHOLE: dict[str, str | bytes] = {
    "corpus.jsonl": '{"id": "d1", "text": "one", "title": "T"}\n{"id": "d2", "text": "two", "title": null}\n',
    "queries.jsonl": '{"id": "q1", "text": "first?", "type": "odd"}\n{"id": "q2", "text": "second?"}\n',
    "qrels.tsv": "q1\td1\t2\nq1\td2\t1\n",
}


def set_of(folder: Path, files: dict[str, str | bytes] | None = None) -> JudgedSet:
    return read_judged_set(write_files(folder / "judged", WHOLE | (files or {})))


def refusal(folder: Path, files: dict[str, str | bytes]) -> tuple[str, str]:
    """The code, and the message without the folder."""
    with pytest.raises(PairError) as raised:
        list(set_of(folder, files).documents())
    return raised.value.code, raised.value.message.replace(f"{folder}/judged/", "")


def test_a_whole_set_is_read(tmp_path: Path) -> None:
    judged = set_of(tmp_path)
    assert judged.name == "judged"
    assert [(each.id, each.text, each.title) for each in judged.documents()] == [("d1", "one", "T"), ("d2", "two", "")]
    selection = judged.select({"d1", "d2"})
    assert [(each.text, dict(each.grades)) for each in selection.queries] == [("first?", {"d1": 2.0, "d2": 1.0})]
    assert (selection.skipped_queries, selection.skipped_judgements) == (1, 0)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\n"}, id="headings"),
        pytest.param({"qrels.tsv": "q1\td1\t2\r\n\r\nq1\td2\t1.0\r\n"}, id="Windows line ends"),
        pytest.param({"qrels.tsv": "q1\td1\t2\nq1\td2\t1\nq1\td1\t2\n"}, id="a line twice"),
        pytest.param({"qrels.tsv": "q1\td1\t2\nq1\td2\t1\nq2\td1\t0\nq2\tgone\t-1"}, id="not relevant"),
        pytest.param({"queries.jsonl": b'\xef\xbb\xbf{"_id": "q1", "text": "first?"}'}, id="other writers"),
    ],
)
def test_habits_of_other_writers_are_understood(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    (query,) = set_of(tmp_path, files).select({"d1", "d2"}).queries
    assert (query.text, dict(query.grades)) == ("first?", {"d1": 2.0, "d2": 1.0})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("corpus.jsonl", '{"id": "d1", "text": "one"}\n\n{"id": "d2"\n', "corpus.jsonl:3: the line is not JSON"),
        ("corpus.jsonl", "[1]\n", "corpus.jsonl:1: the line is not a JSON object"),
        ("corpus.jsonl", '{"id": 1, "text": "one"}', "corpus.jsonl:1: id and text are required and must be strings"),
        ("corpus.jsonl", '{"id": "", "text": "one"}', "corpus.jsonl:1: id and text are required and must be strings"),
        ("corpus.jsonl", '{"id": "d1"}', "corpus.jsonl:1: id and text are required and must be strings"),
        (
            "corpus.jsonl",
            '{"id": "d1", "text": "", "metadata": 7}',
            "corpus.jsonl:1: title and url must be strings, and metadata an object",
        ),
        ("corpus.jsonl", '{"id": "d1", "text": "1"}\n' * 2, "corpus.jsonl:2: duplicate id: d1"),
        ("queries.jsonl", b'{"id": "q1", "text": "\xff"}', "queries.jsonl:1: the line is not UTF-8"),
        ("queries.jsonl", '{"id": "q1", "text": " "}', "queries.jsonl:1: text is empty"),
        ("queries.jsonl", '{"id": "q1", "text": "?"}\n' * 2, "queries.jsonl:2: duplicate id: q1"),
        ("qrels.tsv", "q1 d1 1\n", "qrels.tsv:1: a line is query id, tab, document id, tab, relevance"),
        ("qrels.tsv", "q1\t\t1\n", "qrels.tsv:1: a line is query id, tab, document id, tab, relevance"),
        ("qrels.tsv", "q1\td1\tyes\n", "qrels.tsv:1: relevance is not a number: yes"),
        ("qrels.tsv", "q1\td1\t1\nq1\td2\tnan\n", "qrels.tsv:2: relevance is not a number: nan"),
        ("qrels.tsv", "q1\td1\t1\nq1\td1\t2\n", "qrels.tsv:2: d1 was judged otherwise for q1 before"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    assert refusal(tmp_path, {name: content}) == ("E502", f"Cannot read {said}.")


@pytest.mark.parametrize("name", WHOLE)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_files(tmp_path / "judged", {other: text for other, text in WHOLE.items() if other != name})
    with pytest.raises(PairError) as raised:
        list(read_judged_set(folder).documents())
    assert (raised.value.code, raised.value.message) == (
        "E501",
        f"Cannot read the judged set {folder / name}: the file is missing.",
    )


@pytest.mark.parametrize(
    ("judgements", "reason"),
    [
        ("", "no judgements"),
        ("q1\td1\t0\n", "no judgements"),
        ("q1\td9\t1\n", "no judgement names a known query and a known document"),
    ],
)
def test_a_set_that_leaves_nothing_to_measure_is_refused(tmp_path: Path, judgements: str, reason: str) -> None:
    judged = set_of(tmp_path, {"qrels.tsv": judgements})
    with pytest.raises(PairError) as raised:
        judged.select({"d1", "d2"}, skip_unknown=True)
    assert (raised.value.code, raised.value.details["reason"]) == ("E502", reason)
