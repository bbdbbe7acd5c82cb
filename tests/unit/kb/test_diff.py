"""Unified diffs: for any two texts, the diff turns one into the other."""

import re

from hypothesis import given
from hypothesis import strategies as st

from pair.kb import diff
from pair.kb.diff import make_diff

LINES = st.lists(st.sampled_from(["", "a", "b", "-a", "+a", "@@ -1 +1 @@", " "]), max_size=30)
PLACE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def applied(before: list[str], lines: tuple[str, ...]) -> list[str]:
    done: list[str] = []
    taken, number = 0, 0
    while number < len(lines):
        found = PLACE.fullmatch(lines[number])
        assert found is not None
        start, old, new = int(found[1]), int(found[2] or 1), int(found[4] or 1)
        begin = start if old == 0 else start - 1
        done += before[taken:begin]
        taken = begin
        number += 1
        while old or new:
            mark, line = lines[number][0], lines[number][1:]
            if mark in " -":
                assert before[taken] == line
                taken, old = taken + 1, old - 1
            if mark in " +":
                done.append(line)
                new -= 1
            number += 1
    return done + before[taken:]


@given(LINES, LINES)
def test_a_diff_leads_from_one_text_to_the_other(before: list[str], after: list[str]) -> None:
    assert applied(before, make_diff(before, after)) == after


def test_texts_that_have_nothing_in_common_are_recognised_at_once() -> None:
    many = diff._MOST_DIFFERING_LINES
    head, tail = [f"head {n}" for n in range(9)], ["tail"]
    before = [*head, *(f"old {n}" for n in range(many)), *tail]
    after = [*head, *(f"new {n}" for n in range(7)), *tail]
    lines = make_diff(before, after)
    assert applied(before, lines) == after
    assert lines[0] == f"@@ -7,{many + 3} +7,10 @@"
    assert applied(tail, make_diff(tail, [*before, *tail])) == [*before, *tail]
    assert applied([*before, *tail], make_diff([*before, *tail], tail)) == tail
    assert applied([], make_diff([], after * many)) == after * many
    assert applied(after * many, make_diff(after * many, [])) == []
