"""Whether a person who sees the index alone would open the right page."""

import json
import math
import re
from collections import Counter
from pathlib import Path

from pair.ai.summariser import ExtractiveSummariser

EXAMPLES = Path(__file__).parents[3] / "examples"
HANDBOOK = EXAMPLES / "handbook"
LOOKED_AT = 3
WANTED_SHARE = 0.8


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def index_of_the_handbook() -> dict[str, set[str]]:
    """The words of every entry: its path and its summary."""
    summariser = ExtractiveSummariser()
    entries = {}
    for page in sorted(HANDBOOK.rglob("*.md")):
        path = page.relative_to(HANDBOOK).as_posix()
        entries[path] = words_of(path + " " + summariser.summarise(path, page.read_text(encoding="utf-8")))
    return entries


def ranking(question: str, entries: dict[str, set[str]]) -> list[str]:
    """Pages by the words they share with the question; a word in few entries weighs more."""
    frequency = Counter(word for words in entries.values() for word in words)
    asked = words_of(question)

    def score(path: str) -> float:
        return sum(math.log(len(entries) / frequency[word]) for word in asked & entries[path])

    return sorted(entries, key=lambda path: (-score(path), path))


def test_the_summaries_alone_lead_to_a_right_page_for_most_questions() -> None:
    entries = index_of_the_handbook()
    lines = (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    missed = [
        question["question"]
        for question in questions
        if not set(question["pages"]) & set(ranking(question["question"], entries)[:LOOKED_AT])
    ]
    assert len(entries) > 40
    assert len(questions) >= 30
    assert 1 - len(missed) / len(questions) >= WANTED_SHARE, missed


def test_an_index_is_several_times_shorter_than_its_pages_would_be() -> None:
    page = (HANDBOOK / "protocols" / "ntp.md").read_text(encoding="utf-8")
    assert len(ExtractiveSummariser().summarise("protocols/ntp.md", page)) < len(page) / 2
