"""How passages were found: written, read, and put together."""

import json
from typing import Any

import pytest

from pair.librarians.aggregate import merge_responses
from pair.librarians.citations import RETRIEVAL_KEY, FoundPassage, Retrieval, join_retrievals
from pair.librarians.contract import Response

FOUND = Retrieval("handbook", 7, "abc", "ngram-16", "tea?", "adaptive", 8, (FoundPassage("tea", 0, 9, "0a1b", 0.5),))


def test_what_is_written_is_read_again() -> None:
    assert Retrieval.from_json(json.loads(json.dumps(FOUND.to_json()))) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"kbId": 7},
        {"manifestVersion": -1},
        {"manifestVersion": True},
        {"limit": "8"},
        {"passages": {}},
        {"passages": [{}]},
        {"passages": [[]]},
        {"passages": [{**FOUND.passages[0].to_json(), "score": "high"}]},
        {"passages": [FOUND.passages[0].to_json()] * 1001},
    ],
)
def test_what_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is "):
        Retrieval.from_json({**FOUND.to_json(), **change})
    for name in FOUND.to_json():
        with pytest.raises(ValueError, match=name):
            Retrieval.from_json({key: each for key, each in FOUND.to_json().items() if key != name})


def test_several_answers_that_become_one_keep_each_ones_retrieval() -> None:
    answers = [
        Response(
            answer=f"Answer {number}.",
            confidence=0.9,
            metadata={RETRIEVAL_KEY: [{**FOUND.to_json(), "kbId": f"kb-{number}"}]},
        )
        for number in range(2)
    ]
    assert [each["kbId"] for each in merge_responses(answers).metadata[RETRIEVAL_KEY]] == ["kb-0", "kb-1"]
    assert join_retrievals([{}, {RETRIEVAL_KEY: 7}, {RETRIEVAL_KEY: "text"}, {RETRIEVAL_KEY: None}]) == {}
