"""Markdown as plain lines, and the excerpts that are shown."""

import pytest

from pair.app.cli.search import cut_excerpt, match_lines, match_words
from pair.text.markdown import format_markdown, format_passages, strip_inline, strip_streamed

MARKDOWN = """\
# Secure `time`

Some **bold** text with a [link](https://x.invalid/a "title"), *stress* and
_more_ of it.

| port | use |
|------|:---:|
| 4460 | **NTS** |

- one item
  that goes on
1. a number

```sh
# not a heading
pair ask
```

> quoted text [1]
>
> more [2]

Underlined
==========
"""
PLAIN = """\
Secure time

Some bold text with a link, stress and more of it.

port · use
4460 · NTS

• one item that goes on
1. a number

    # not a heading
    pair ask

  quoted text [1]
  more [2]

Underlined"""


def test_markdown_becomes_plain_text() -> None:
    assert "\n".join(format_markdown(MARKDOWN, 100)) == PLAIN


@pytest.mark.parametrize(
    "text",
    ["2 * 3 * 4", "a_b_c", "git checkout <branch>", "__init__", "*.md and *.txt", "x ** y", "a | b"],
)
def test_text_that_only_looks_like_markdown_stays(text: str) -> None:
    assert strip_inline(text) == text


def test_code_keeps_the_marks_inside_it() -> None:
    assert strip_inline("call `__init__(*a, **b)` now") == "call __init__(*a, **b) now"


def test_a_link_whose_text_is_code_is_shown_as_its_text() -> None:
    assert strip_inline("use [`git gc`](gc.md) or `[a](b)`") == "use git gc or [a](b)"


def test_a_streamed_text_only_grows() -> None:
    text, shown = "## Title\n\nIt is **bold**, `code` and 2 * 3.", ""
    for end in range(len(text) + 1):
        plain = strip_streamed(text[:end])
        assert plain.startswith(shown)
        shown = plain
    assert shown == "Title\n\nIt is bold, code and 2 * 3."


def test_an_excerpt_holds_the_lines_with_most_matches() -> None:
    text = "\n\n".join(f"Line {number} about {'leap seconds' if number == 7 else 'clocks'}." for number in range(20))
    (passage,) = format_passages([text], 100, "  ")
    lines = [line.text for line in cut_excerpt(passage, match_words(["leap", "seconds"]), "  ", 3)]
    assert lines[0] == lines[-1] == "  …"
    assert "  Line 7 about leap seconds." in lines
    assert len(lines) == 5


def test_a_quoted_sentence_is_found_wherever_its_lines_break() -> None:
    sentence = "It says that **NTS** runs on port 4460, " + "and that many words follow here " * 5
    statement, passage = format_passages([f"> {sentence}", f"- Before it. {sentence} After it."], 100, "")
    found = match_lines(statement).search("\n".join(passage))
    assert found is not None
    assert "\n" in found[0]
