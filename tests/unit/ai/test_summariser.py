"""The summaries of every kind of source, without a model."""

import json
import math
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from pair.ai.summariser import ExtractiveSummariser
from pair.text.characters import clip, drop_unprintable, estimate_tokens

SUMMARISER = ExtractiveSummariser()

PAGE = """\
---
title: "Leap seconds"
---

[![Build](https://ci.example/badge.svg?a=(b))](https://ci.example) ![logo](logo.png)

<!-- a note to editors -->
<p align="center"><b>Leap seconds</b> keep UTC near UT1, as [RFC 3339](https://example.org/rfc) says. They are rare.</p>

## Who decides

The *IERS* announces each one in Bulletin C. Read `CLOCK_TAI` with `clock_gettime`, or pass `--no-leap` to it.

| Year | Seconds |
| ---- | ------- |
| 1972 | 2       |

```sh
secret_command --inside-a-fence
```

## What goes wrong

- Error E0432 was seen in Linux on 2012-06-30.
- Insertion after insertion: each insertion repeats a number.

## See also

- [NTP](ntp.md)
"""


def lines_of(source_id: str, text: str) -> list[str]:
    return SUMMARISER.summarise(source_id, text).split("\n")


def terms_of(line: str) -> list[str]:
    return line.partition(": ")[2].split("; ")


def test_a_page_is_named_by_its_title_its_first_sentences_its_sections_and_its_terms() -> None:
    first, *others = lines_of("leap.md", PAGE)
    assert first.startswith("Leap seconds keep UTC near UT1, as RFC 3339 says. They are rare. The IERS announces each ")
    assert first.endswith("Read CLOCK_TAI with clock_gettime, or pass --no-leap to it.")
    assert others == [
        "Sections: Who decides; What goes wrong",
        "Mentions: E0432; Linux; 1972; 2012-06-30",
        "Topics: insertion; repeats; number; error",
    ]


def test_markup_badges_links_comments_and_fences_are_left_out() -> None:
    summary = SUMMARISER.summarise("leap.md", PAGE)
    for mark in ("[", "](", "**", "`", "<", "|", "https", "badge", "editors", "secret_command", "---", "See also"):
        assert mark not in summary


def test_codes_come_before_names_and_names_before_dates() -> None:
    body = "In 2016 people saw Lisbon again, and it used kernel_flag once."
    assert lines_of("a.md", f"# T\n\nA short and plain beginning of it all.\n\n- {body}")[1] == (
        "Mentions: kernel_flag; Lisbon; 2016"
    )


def test_a_term_that_a_line_already_shows_is_not_repeated() -> None:
    summary = SUMMARISER.summarise("a.md", "# The NTP pool\n\nThe NTP pool serves NTP to many. Ask the NTP pool.")
    assert "Mentions" not in summary


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Title\n=====\n\nIt says something useful here.", "Title. It says something useful here."),
        ("====\nTitle\n====\n\n:author: me\n\nUse :ref:`the thing <x>` now.", "Title. Use the thing now."),
        ("= Title\n\nIt says something useful here.", "Title. It says something useful here."),
        ("# Title #\n\n> Quoted words first.\n\nThen a sentence follows.", "Title. Then a sentence follows."),
        ("Only one sentence, e.g. this one. And more.", "Only one sentence, e.g. this one. And more."),
        ("Subject: Lunch\nFrom: a@b\nTo: c@d\n\nLunch will be at one.", "Lunch will be at one."),
        ("+++\ntitle = 'Deploy'\n+++\nPush the button to ship.", "Deploy. Push the button to ship."),
        ("# T\n\nCopyright 2020 Somebody.\n\nThis is what it does.", "T. This is what it does."),
        ("```\nonly code\n```", "only code"),
        ("hello", "hello"),
        ("---", "---"),
    ],
)
def test_the_first_line_is_the_title_and_the_first_real_sentence(text: str, first: str) -> None:
    assert lines_of("page.md", text)[0] == first


def test_headings_of_plain_text_are_seen_by_how_they_stand() -> None:
    text = "NAME\n    ls - list files\n\nSYNOPSIS\n    ls [FILE]\n\nDESCRIPTION\n    Lists the files of a folder.\n"
    assert "Sections: SYNOPSIS; DESCRIPTION" in lines_of("ls.txt", text)


def test_a_web_page_is_read_without_its_scripts_and_its_navigation() -> None:
    text = (
        "<!DOCTYPE html><html><head><title>Cats &amp; dogs - Pets</title>"
        '<meta name="description" content="All about pets."><style>p {}</style></head><body><nav>Home</nav>'
        "<h1>Cats &amp; dogs</h1><p>Dogs <b>bark</b>.</p><h2>Food</h2><script>var hidden = 1</script></body></html>"
    )
    assert lines_of("https://pets.example/index.html?a=1", text) == [
        "Cats & dogs. All about pets. Dogs bark.",
        "Sections: Food",
    ]


def test_code_is_named_by_its_first_comment_and_what_it_defines() -> None:
    text = (
        "/*\n * Copyright 2020 Somebody\n * Licensed under the Apache License\n */\npackage shop;\n\n"
        "/**\n * Keeps users in memory.\n */\npublic final class UserStore {\n  private void save() {}\n}\n"
    )
    assert lines_of("UserStore.java", text)[:2] == ["Keeps users in memory.", "Names: UserStore; save"]
    assert "Apache" not in SUMMARISER.summarise("UserStore.java", text)


@pytest.mark.parametrize(
    ("source_id", "text", "line"),
    [
        ("a.py", '"""Route requests."""\n\nclass Router:\n    def add(self): ...\n', "Names: Router; add"),
        ("m.rs", "pub fn handle(r: &Router) {}\nimpl Router {\n", "Names: handle; Router"),
        ("s.sql", "-- Orders\nCREATE TABLE IF NOT EXISTS orders (id int);\n", "Names: orders"),
        ("run.sh", "#!/bin/sh\n# Deploys.\nTARGET=prod\n", "Names: TARGET"),
        (
            "p.json",
            '{"name": "left-pad", "version": 1, "scripts": {"test": "x"}}',
            "Names: name; version; scripts; test",
        ),
        ("p.jsonl", '{"question": "a"}\n{"question": "b", "pages": []}\n', "Names: question; pages"),
        ("half.json", '{"first": 1, "second": "cut he', "Names: first; second"),
        ("c.yaml", "# The shop\nopenapi: 3\ninfo:\n  title: Pets\n", "Names: openapi; info; title"),
        ("c.toml", "[project]\nname = 'x'\n[tool.ruff]\nlint = 1\n", "Names: project; name; tool.ruff; lint"),
        ("t.csv", 'id,"born, year",name\n1,1815,Ada\n', 'id,"born, year",name 1,1815,Ada'),
    ],
)
def test_a_file_that_is_not_prose_is_named_by_its_parts(source_id: str, text: str, line: str) -> None:
    assert line in lines_of(source_id, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# 时间同步\n\n网络时间协议同步时钟。闰秒很少。\n\n- 国际机构宣布闰年\n- 国际机构决定闰年", "国际机构"),
        ("# 設定\n\n時刻を直します。\n\n- サーバーとクライアント\n- サーバー", "サーバー"),
        ("# 시간대\n\n서울은 표준시를 쓴다.\n\n- 지역 이름\n- 지역 시간", "지역"),
        ("# Время\n\nЧасы идут вперёд.\n\n- протокол времени\n- протокол сети", "протокол"),  # noqa: RUF001
        ("# समय\n\nयह समय है।\n\n- क्षेत्र और क्षेत्र", "क्षेत्र"),
        ("# الوقت\n\nهذا نص قصير.\n\n- الشبكة في الشبكة", "الشبكة"),  # noqa: RUF001
        ("# Zeit\n\nDie Uhr geht vor.\n\n- Die Sommerzeit und eine Sommerzeit", "Sommerzeit"),
    ],
)
def test_every_language_has_terms(text: str, expected: str) -> None:
    assert expected in terms_of(lines_of("a.md", text)[-1])


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n ", "\ufeff", "\x00\x07"])
def test_a_blank_text_has_an_empty_summary(text: str) -> None:
    assert SUMMARISER.summarise("a.md", text) == ""


def test_characters_that_hide_or_cannot_be_written_never_come_out() -> None:
    summary = SUMMARISER.summarise(
        "a.md", "# Ti\x1b[31mtle\u202e\n\nBroken \udc80 text\u2028with\x85odd line ends in it."
    )
    assert summary == "Ti[31mtle. Broken \ufffd text with odd line ends in it."
    assert summary.encode()


def test_hashes_and_keys_are_not_terms() -> None:
    text = "# Keys\n\nA list of what is installed here.\n\n- sk-a81bc81bdead4e5dabff90865d1e13b1 and lib_one"
    assert lines_of("a.md", text)[1] == "Mentions: lib_one"


def test_a_short_code_is_a_term_although_its_letters_are_in_other_words() -> None:
    text = "# Training\n\nMain training with a plain brain.\n\n- Ask the AI about it."
    assert lines_of("a.md", text)[1] == "Mentions: AI"


@pytest.mark.parametrize("source_id", ["", "http://[bad", "https://h/a.md?x=.py#y", "a\x00b", "..", "\ud800"])
def test_every_name_of_a_source_is_taken(source_id: str) -> None:
    assert SUMMARISER.summarise(source_id, "# Title\n\nIt says something.") == "Title. It says something."


def test_sections_that_do_not_fit_are_taken_from_the_whole_source() -> None:
    text = "# Book\n\nA long book about things.\n\n" + "".join(f"## Chapter number {n}\n\ntext\n\n" for n in range(100))
    sections = lines_of("book.md", text)[1]
    assert len(sections) <= 200
    assert "Chapter number 0" in sections
    assert "Chapter number 9" in sections.rpartition("; ")[2]


def test_deep_sections_give_way_to_high_ones() -> None:
    text = "# Book\n\nAbout things.\n\n" + "".join(
        f"## Part {n}\n\ntext\n\n### A section with a long name {n}\n\ntext\n\n" for n in range(10)
    )
    assert lines_of("book.md", text)[1] == "Sections: " + "; ".join(f"Part {n}" for n in range(10))


def seconds_for(source_id: str, text: str) -> float:
    """Return the CPU seconds of this thread, so that a busy machine does not matter."""
    started = time.thread_time()
    lines = lines_of(source_id, text)
    assert len(lines) <= 4
    assert all(len(line) <= 200 for line in lines)
    return time.thread_time() - started


HOSTILE = [
    "[",
    "#",
    "`",
    "*",
    "_",
    "<",
    "<!--",
    "![",
    "[a](",
    "(",
    '\\"',
    '"',
    "{",
    "|",
    "a\n",
    "\n",
    "# a\n",
    "A ",
    "字",
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("source_id", ["a.md", "a.html", "a.py", "a.json", "a.yaml", "a.csv", "a.log"])
def test_hostile_repetitions_cost_no_more_than_their_length(unit: str, source_id: str) -> None:
    # A tenth of this is usual; what must not happen takes minutes.
    assert seconds_for(source_id, unit * (250_000 // len(unit))) < 2


@pytest.mark.parametrize("text", ["word " * 1_000_000, "a\n" * 1_000_000, PAGE * 4_000])
def test_two_megabytes_a_second_are_read(text: str) -> None:
    assert seconds_for("a.md", text) < len(text) / 2_000_000


def test_the_same_text_gives_the_same_lines_and_all_are_short() -> None:
    text = PAGE * 200
    summary = SUMMARISER.summarise("a.md", text)
    assert summary == ExtractiveSummariser().summarise("a.md", text)
    assert 2 <= len(summary.splitlines()) <= 4
    assert all(0 < len(line) <= 200 for line in summary.splitlines())


def test_tokens_are_counted_by_script() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("a" * 400) == 100
    assert estimate_tokens("字" * 100) == 100
    assert estimate_tokens("é" * 100) == 50
    assert estimate_tokens("字" * 100 + "a" * 400) == 200


def test_text_is_clipped_between_words_and_kept_printable() -> None:
    assert clip("one two three", 13) == "one two three"
    assert clip("one two three", 10) == "one two…"
    assert clip("字" * 20, 5) == "字字字字…"
    assert drop_unprintable("a\x00b\ud800c\td\u200bé") == "ab\ufffdc\tdé"


# ── quality of the summaries of a handbook ─────────────────────────────────────────────────────────

EXAMPLES = Path(__file__).parents[3] / "examples"
HANDBOOK = EXAMPLES / "handbook"
LOOKED_AT = 3
WANTED_SHARE = 0.8


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def index_of_the_handbook() -> dict[str, set[str]]:
    """Return the words of every entry: its path and its summary."""
    summariser = ExtractiveSummariser()
    entries = {}
    for page in sorted(HANDBOOK.rglob("*.md")):
        path = page.relative_to(HANDBOOK).as_posix()
        entries[path] = words_of(path + " " + summariser.summarise(path, page.read_text(encoding="utf-8")))
    return entries


def ranking(question: str, entries: dict[str, set[str]]) -> list[str]:
    """Rank pages by the words that they share with the question; rare words weigh more."""
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
