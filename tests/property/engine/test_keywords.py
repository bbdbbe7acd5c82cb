"""Keyword search compared with the textbook formula of BM25, for every layout of shards."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pair.engine.format.array_file import ArrayFile
from pair.engine.format.columns import TITLE_WEIGHT, KeywordRows, RowText, concatenate_rows, count_terms
from pair.engine.format.keyword_index import KeywordIndex, write_keywords
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.postings import K1, B, KeywordPart
from pair.text.tokenizer import KeywordQuery, analyse, holds_phrase, parse_query

WORDS = [
    "engine",
    "engines",
    "river",
    "castle",
    "installation",
    "installing",
    "foo_bar",
    "E0432",
    "the",
    "\u65e5\u672c\u8a9e",
]
QUERIES = [
    "engine",
    "the",
    "what is the river?",
    "engine river castle foo_bar",
    "river -castle",
    '"river castle"',
    '"river castle" -"castle engine"',
    'which of the engines has long been on a "river castle" installation with E0432 by the river',
    "install*",
    "installa*",
    "\u672c",
    "nothing",
    "-river",
    "",
]

texts = st.lists(
    st.builds(
        lambda words, title: RowText(" ".join(words), " ".join(title)),
        st.lists(st.sampled_from(WORDS), max_size=12),
        st.lists(st.sampled_from(WORDS), max_size=2),
    ),
    min_size=1,
    max_size=30,
)
mixed_texts = st.lists(
    st.builds(
        lambda words, language: RowText(" ".join(words), "", "", language),
        st.lists(st.sampled_from([*WORDS, "die", "Flüsse", "Burgen", "Flussbrücke", "Brücken"]), max_size=12),
        st.sampled_from(["en", "de"]),
    ),
    min_size=1,
    max_size=30,
)
unhurried = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def parts_of(folder: Path, rows: Sequence[RowText], count: int, gone: set[int]) -> list[tuple[KeywordPart, list[int]]]:
    """Return this number of shards, each with the numbers of its rows."""
    found = []
    for number in range(count):
        own = [row for row in range(len(rows)) if row % count == number]
        path = folder / f"{count}-{number}.keywords"
        write_keywords(path, count_terms(rows[row] for row in own))
        live = np.array([row not in gone for row in own], np.bool_) if gone & set(own) else None

        def fields_of(row: int, own: list[int] = own) -> tuple[str, str]:
            return rows[own[row]].text, rows[own[row]].title

        found.append((KeywordPart(KeywordIndex(ArrayFile.open(path)), live, fields_of), own))
    return found


def best(parts: Sequence[tuple[KeywordPart, list[int]]], query: KeywordQuery, limit: int) -> dict[int, float]:
    search = KeywordSearch(query, [part for part, _ in parts])
    found: dict[int, float] = {}
    for position, (scores, rows) in search.best_together(range(len(parts)), limit, lambda _: None).items():
        np.testing.assert_array_equal(search.score_rows(position, rows)[0], scores)
        found |= {parts[position][1][row]: float(score) for row, score in zip(rows, scores, strict=True)}
    return found


def plainly(rows: Sequence[RowText], query: KeywordQuery, gone: set[int]) -> dict[int, float]:
    """Return the BM25 score of every live row with a matching term."""
    counted: dict[int, Counter[str]] = {}
    lengths: dict[int, int] = {}
    forms: dict[str, str] = {}
    for number, row in enumerate(rows):
        pieces = row.text.split() + row.title.split() * TITLE_WEIGHT
        counted[number] = Counter(term for piece in pieces for term in (*analyse(piece).terms, *analyse(piece).extras))
        lengths[number] = sum(len(analyse(piece).terms) for piece in pieces)
        forms |= {form: term for piece in pieces for form, term in analyse(piece).forms}
    live = [number for number in counted if number not in gone]
    average = sum(lengths[number] for number in live) / max(len(live), 1)
    vocabulary = {term for each in counted.values() for term in each}
    groups: list[tuple[set[str], float]] = [({term}, times) for term, times in query.terms.items()]
    for prefix in query.prefixes:
        expanded = {term for term in vocabulary if term.startswith(prefix)}
        groups.append((expanded | {term for form, term in forms.items() if form.startswith(prefix)}, 1))
    scores: dict[int, float] = {}
    idfs: dict[str, float] = {}
    groups += [({term}, weight) for term, weight in query.stop_words.items()]
    for group, times in groups:
        holding = [number for number in live if any(term in counted[number] for term in group)]
        idf = math.log(1 + (len(live) - len(holding) + 0.5) / (len(holding) + 0.5))
        idfs |= dict.fromkeys(group, idf * times)
        is_stop_word = not group.isdisjoint(query.stop_words)
        for number in scores.keys() & holding if is_stop_word else holding:
            frequency = sum(counted[number][term] for term in group)
            norm = K1 * (1 - B + B * lengths[number] / average)
            scores[number] = scores.get(number, 0.0) + times * idf * frequency * (K1 + 1) / (frequency + norm)

    def holds(number: int, phrase: tuple[str, ...]) -> bool:
        if len(phrase) == 1:
            return phrase[0] in counted[number]
        return any(holds_phrase(text, phrase) for text in (rows[number].text, rows[number].title))

    for number in list(scores):
        held = [phrase for phrase in query.phrases if holds(number, phrase)]
        is_refused = query.is_strict and len(held) < len(query.phrases)
        if is_refused or any(holds(number, phrase) for phrase in query.excluded):
            del scores[number]
        elif not query.is_strict:
            scores[number] += sum(idfs[term] for phrase in held for term in set(phrase))
    return scores


@unhurried
@given(
    rows=texts, query=st.sampled_from(QUERIES), limit=st.integers(1, 12), gone=st.sets(st.integers(0, 29), max_size=5)
)
def test_what_is_found_is_what_bm25_says(
    rows: list[RowText], query: str, limit: int, gone: set[int], tmp_path: Path
) -> None:
    asked = parse_query(query)
    expected = plainly(rows, asked, gone)
    found = best(parts_of(tmp_path, rows, 2, gone), asked, limit)
    assert len(found) >= min(limit, len(expected)), "as many as there are"
    assert {number: pytest.approx(expected[number], rel=1e-6) for number in found} == found
    worst_kept = min(found.values(), default=0.0)
    assert all(score <= worst_kept * (1 + 1e-6) for number, score in expected.items() if number not in found)


@unhurried
@given(
    rows=texts | mixed_texts,
    query=st.sampled_from([*QUERIES, "die Flussbrücken", "Fluß Burg", '"Burgen" Brucke', "enigne rivr", "die -Burg"]),
    gone=st.sets(st.integers(0, 29), max_size=5),
)
def test_no_score_knows_the_layout(rows: list[RowText], query: str, gone: set[int], tmp_path: Path) -> None:
    answers = [best(parts_of(tmp_path, rows, count, gone), parse_query(query), 7) for count in (1, 7, 50)]
    assert answers[0] == answers[1] == answers[2]


def test_long_lists_are_cut_short_without_losing_anything(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    names = [f"w{number}" for number in range(400)]
    likely = 1.0 / np.arange(1, 401)
    likely /= likely.sum()
    rows = [RowText(" ".join(random.choice(names, int(random.integers(3, 40)), p=likely))) for _ in range(2000)]
    parts = parts_of(tmp_path, rows, 3, {5, 9})
    for _ in range(30):
        query = parse_query(" ".join(random.choice(names, 6, p=likely)))
        all_scores = best(parts, query, len(rows))
        found = best(parts, query, 10)
        last = sorted(all_scores.values())[-10]
        assert found == {number: score for number, score in all_scores.items() if score >= last}


def test_a_word_may_occur_very_often_in_a_row(tmp_path: Path) -> None:
    rows = [RowText("river " * times + "castle " * 255) for times in (1, 255, 256, 70_000)]
    query = parse_query("riv* castle river")
    found = best(parts_of(tmp_path, rows, 2, set()), query, 10)
    assert found == {number: pytest.approx(score) for number, score in plainly(rows, query, set()).items()}


def test_a_filter_holds(tmp_path: Path) -> None:
    rows = [RowText("river " * (number % 5 + 1)) for number in range(1200)]
    [(part, _)] = parts_of(tmp_path, rows, 1, set())
    search = KeywordSearch(parse_query("river castle"), [part])
    for chosen in ([3], [], [7, 1100]):
        allowed = np.zeros(1200, np.bool_)
        allowed[chosen] = True
        assert search.best_together([0], 10, {0: allowed}.get)[0][1].tolist() == chosen


def described(rows: KeywordRows) -> list[tuple[dict[bytes, int], int, int]]:
    assert list(rows.words) == sorted(set(rows.words))
    return [
        (
            {rows.words[rows.terms[at]]: int(rows.counts[at]) for at in range(rows.starts[row], rows.starts[row + 1])},
            int(rows.lengths[row]),
            int(rows.languages[row]),
        )
        for row in range(rows.count)
    ]


@unhurried
@given(rows=texts | mixed_texts, chosen=st.data())
def test_a_merged_index_equals_one_that_is_built_again(
    rows: list[RowText], chosen: st.DataObject, tmp_path: Path
) -> None:
    numbers = sorted(chosen.draw(st.sets(st.integers(0, len(rows) - 1))))
    anew = count_terms([rows[number] for number in numbers])
    picked = count_terms(rows).pick(np.array(numbers, np.int64))
    write_keywords(tmp_path / "all.keywords", count_terms(rows))
    stored = KeywordIndex(ArrayFile.open(tmp_path / "all.keywords")).read_rows(np.array(numbers, np.int64))
    halves = concatenate_rows(
        [count_terms(rows[row] for row in numbers[:3]), count_terms(rows[row] for row in numbers[3:])]
    )
    for each in (picked, stored, halves):
        assert described(each) == described(anew)
        assert list(each.words) == list(anew.words)


def test_words_are_counted_the_same_however_many_rows_are_counted_together() -> None:
    random = np.random.default_rng(11)
    names = [f"Word{number}" for number in range(900)] + ["foo_bar", "Häuser", "running", "camelCase"]
    rows = [
        RowText(" ".join(random.choice(names, 400)), "Häuser", "above", ("en", "de", "fr")[number % 3])
        for number in range(400)
    ]
    together = count_terms(rows)
    apart = concatenate_rows([count_terms(rows[at : at + 50]) for at in range(0, len(rows), 50)])
    assert described(together) == described(apart)
    assert list(together.forms) == list(apart.forms)
