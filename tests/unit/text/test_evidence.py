"""A passage as blocks that can be quoted."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.text.evidence import Evidence, read_evidence, show_evidence

ENOUGH = 100


def read(passage: str) -> list[Evidence]:
    return read_evidence(passage, ENOUGH)


def texts(passage: str) -> list[str]:
    return [each.text for each in read(passage)]


def shown(passage: str, word: str, *, steps: bool = False) -> str:
    """Show the first block whose statement holds a word."""
    found = read(passage)
    return show_evidence(found, next(number for number, each in enumerate(found) if word in each.text), steps=steps)


def test_a_paragraph_is_its_sentences() -> None:
    assert texts("The first one is short. The second\nruns over a line! Is the third a question? Yes it is.") == [
        "The first one is short.",
        "The second runs over a line!",
        "Is the third a question?",
        "Yes it is.",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "It holds for short words, e.g. Monday, and others.",
        "The table of Dr. Smith et al. Shows what is meant.",
        "See Fig. 3 of the report by J. R. Hartley for it.",
        "Version 2.0 was released on 1.2.2023 in the morning.",
    ],
)
def test_a_full_stop_that_ends_no_sentence_cuts_nothing(sentence: str) -> None:
    assert texts(sentence) == [sentence]


def test_headings_rules_and_mere_links_are_not_statements() -> None:
    passage = (
        "# A heading of words\n\nUnderlined heading here\n======\n\n---\n\n- [a link of words](https://example.org)\n"
    )
    assert texts(passage) == []


def test_sentences_of_scripts_without_spaces_end_at_their_own_stops() -> None:
    assert texts("今日は天気がいい。明日は雨が降る。") == ["今日は天気がいい。", "明日は雨が降る。"]


def test_a_text_without_full_stops_is_quoted_in_pieces() -> None:
    found = texts("statin breast cancer survival " * 60)
    assert len(found) > 3
    assert all(len(each) <= 700 for each in found)


def test_a_sentence_that_refers_back_is_quoted_with_the_one_before_it() -> None:
    passage = "The cache keeps ten versions. It drops the oldest one first."
    assert shown(passage, "oldest") == passage


def test_a_paragraph_that_refers_back_is_quoted_with_the_end_of_the_one_before_it() -> None:
    passage = "Fetch and merge are two commands.\n\nHowever, pull does both in one step."
    assert shown(passage, "pull") == passage


def test_an_item_is_quoted_with_its_lead_in() -> None:
    passage = "The server reads these files:\n\n- hosts.conf for the clients\n- users.conf for the people"
    assert shown(passage, "people") == "The server reads these files:\n- users.conf for the people"


def test_a_lead_in_is_quoted_with_what_it_leads_to() -> None:
    passage = "There are two kinds of copies:\n\n- a shallow copy shares its parts\n- a deep copy has its own parts"
    assert shown(passage, "two kinds").endswith("shares its parts\n- a deep copy has its own parts")


def test_a_row_is_quoted_with_the_head_of_its_table() -> None:
    passage = "| Item | Limit |\n|---|---|\n| columns per table | 1,600 |\n| columns per index | 32 |"
    assert shown(passage, "table") == "| Item | Limit |\n|---|---|\n| columns per table | 1,600 |"


def test_code_is_quoted_with_its_explanation() -> None:
    passage = "To restore a dump, run this:\n\n```sh\npsql -X name < dump\n```\n\nIt takes a while."
    assert shown(passage, "psql") == "To restore a dump, run this:\n\n```\npsql -X name < dump\n```"


def test_steps_are_quoted_together() -> None:
    passage = "To set it up:\n\n1. Edit the configuration file.\n2. Restart the server.\n3. Look at the log."
    assert shown(passage, "Restart", steps=True) == passage.replace("\n\n", "\n")


def test_a_definition_is_quoted_with_its_terms() -> None:
    passage = (
        "**-l**\n\n**--local**\n\nCopies the files of a local repository. Other files stay.\n\n**-q**\n\nBe very quiet."
    )
    assert shown(passage, "Copies").startswith("**-l**, **--local**\n\nCopies the files")
    assert shown(passage, "quiet") == "**-q**\n\nBe very quiet."
    assert [each.behind_term for each in read(passage)] == [0, 1, 0]


def test_an_item_with_a_term_is_a_definition() -> None:
    passage = "- work_mem: The memory of a sort.\n\n  The default is 4 MB.\n\nAnother paragraph has no term."
    assert [(each.term, each.behind_term) for each in read(passage)[:2]] == [("work_mem", 0), ("work_mem", 1)]
    assert read(passage)[2].term == ""
    assert shown(passage, "memory") == "- work_mem: The memory of a sort."
    assert shown(passage, "default") == "work_mem\n\nThe default is 4 MB."


def test_a_long_definition_is_its_sentences_with_the_term() -> None:
    passage = f"- work_mem: {'The memory of a sort is limited. ' * 20}Servers often use 64 MB."
    assert shown(passage, "Servers") == "work_mem\n\nServers often use 64 MB."


def test_indented_text_is_quoted_with_the_option_above_it_or_before_it() -> None:
    passage = (
        "DESCRIPTION\n       Overwrite a file.\n\n       -n, --iterations=N\n"
        "              overwrite  N times instead of 3\n\n       -u     remove the file after it\n\n"
        "       Other text that has\n       no indented lines."
    )
    assert [(each.headings, each.term, each.text) for each in read(passage)] == [
        (("DESCRIPTION",), "", "Overwrite a file."),
        (("DESCRIPTION",), "-n, --iterations=N", "overwrite N times instead of 3"),
        (("DESCRIPTION",), "-u", "remove the file after it"),
        (("DESCRIPTION",), "", "Other text that has no indented lines."),
    ]
    assert shown(passage, "overwrite N") == "-n, --iterations=N\n\noverwrite N times instead of 3"


def test_a_sentence_with_indented_lines_below_it_is_no_term() -> None:
    assert texts("The first line is a sentence.\n    The second is indented.") == [
        "The first line is a sentence.",
        "The second is indented.",
    ]


def test_indented_text_with_wide_gaps_is_read_in_linear_time() -> None:
    lines = "\n".join("    a" + "  b" * 200 for _ in range(40))
    began_at = time.process_time()
    read(f"name\n{lines}\nend")
    assert time.process_time() - began_at < 2


def test_a_passage_that_begins_inside_of_code_is_read_as_text_behind_it() -> None:
    passage = "x = 1\ny = 2\n```\n\nThe next paragraph is text.\n\n```\nz = 3\n```\n"
    assert [(each.kind, each.text) for each in read(passage)][:2] == [
        ("code", "x = 1 y = 2"),
        ("sentence", "The next paragraph is text."),
    ]
    assert [each.kind for each in read("```\n\nText behind the end of code.")] == ["sentence"]


def test_a_synopsis_and_a_sentence_about_the_text_are_thin() -> None:
    synopsis = "git [-v | --version] [-h | --help] [-C <path>]"
    passage = f"This chapter explains how the log is used.\n\nThe log is a file.\n\n```\n{synopsis}\n```"
    assert [each.is_thin for each in read(passage)] == [True, False, True]


def test_the_headings_above_a_block_are_known() -> None:
    first, second = read("# Time\n\n## Leaps\n\nOne second is added.\n\n# Space\n\nThere is much of it.")
    assert (first.headings, first.opening, second.headings) == (("Time", "Leaps"), 1.0, ("Space",))


@given(st.text(alphabet="aB .!?\n-|#>`1。[]()*:", max_size=300))
def test_any_text_can_be_read_and_shown(passage: str) -> None:
    found = read(passage)
    for number, each in enumerate(found):
        assert each.text
        assert show_evidence(found, number, steps=True)
        assert show_evidence(found, number, steps=False)


def test_code_behind_an_empty_line_of_an_item_is_code_and_the_text_below_it_is_not() -> None:
    text = (
        "- Start a branch here:\n\n  ```\n  git switch -c it\n  ```\n\n  It is empty so far.\n"
        "- Delete the branch:\n\n  ```\n  git branch -d it\n  ```\n"
    )
    assert [(each.kind, each.text) for each in read(text) if each.kind == "code"] == [
        ("code", "git switch -c it"),
        ("code", "git branch -d it"),
    ]
    assert "It is empty so far." in texts(text)
