"""State as `index.txt`: tables."""

from typing import Any

import pytest

from pair.sync.state import format_index, tidy_summary


def row(*values: object, id: str) -> Any:
    return pytest.param(*values, id=id)


def file(summary: str, **others: Any) -> dict[str, Any]:
    return {"source_type": "file", "summary_text": summary, **others}


def url(summary: str, **others: Any) -> dict[str, Any]:
    return {"source_type": "url", "summary_text": summary, **others}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        row({}, "", id="nothing"),
        row({"a.md": file("One line.")}, "a.md\nOne line.\n", id="one"),
        row({"a.md": file("One.\nTwo.\nThree.")}, "a.md\nOne.\nTwo.\nThree.\n", id="several lines"),
        row({"a.md": file("A."), "b.md": file("B.")}, "a.md\nA.\n\nb.md\nB.\n", id="one blank line between"),
        row({"b.md": file("B."), "a.md": file("A.")}, "a.md\nA.\n\nb.md\nB.\n", id="sorted"),
        row(
            {"b": file("B."), "B": file("b."), "a/b": file("C."), "a.b": file("D."), "ä": file("E.")},
            "B\nb.\n\na.b\nD.\n\na/b\nC.\n\nb\nB.\n\nä\nE.\n",
            id="sorted by code point",
        ),
        row(
            {"https://a": url("Page."), "z.md": file("File.")},
            "z.md\nFile.\n\nhttps://a\nPage.\n",
            id="files before URLs",
        ),
        row({"a.md": file(""), "b.md": file("B.")}, "b.md\nB.\n", id="without summary: left out"),
        row({"a.md": file(" \n\t\n")}, "", id="blank summary: left out"),
        row({"a.md": file("Old.", summary_pending=True)}, "a.md\nOld.\n", id="pending: the old one is shown"),
        row({"a.md": file("One.\n\n \n\nTwo.")}, "a.md\nOne.\nTwo.\n", id="blank lines inside go"),
        row({"a.md": file("\n\nOne.\n\n")}, "a.md\nOne.\n", id="blank lines around go"),
        row({"a.md": file("One.  \r\nTwo.\t\r\n")}, "a.md\nOne.\nTwo.\n", id="line ends and the space before them"),
        row({"a.md": file("  - indented")}, "a.md\n  - indented\n", id="indentation stays"),
        row({"ö.md": file("Für 你好 🙂")}, "ö.md\nFür 你好 🙂\n", id="any language"),
    ],
)
@pytest.mark.rule("sync-38")
@pytest.mark.rule("sync-39")
def test_the_index_has_an_entry_for_each_source_with_a_summary(sources: dict[str, Any], expected: str) -> None:
    assert format_index(sources) == expected


@pytest.mark.rule("sync-3")
def test_the_same_state_gives_the_same_index_in_whatever_order_it_was_made() -> None:
    sources = {f"{number}.md": file(f"Number {number}.") for number in range(30)}
    backwards = dict(reversed(sources.items()))
    assert format_index(sources) == format_index(backwards)


@pytest.mark.parametrize("separator", ["\n\n", "\r\n\r\n", "\r\r", "\n \n", "\n\x0b\n", "\u2029", "\n\u2028\n", "\x85"])
@pytest.mark.rule("sync-39")
def test_no_kind_of_line_end_makes_a_blank_line_in_an_entry(separator: str) -> None:
    assert tidy_summary(f"One.{separator}Two.") == "One.\nTwo."


@pytest.mark.rule("sync-3")
@pytest.mark.rule("sync-39")
def test_an_index_can_be_read_back_by_splitting_at_blank_lines() -> None:
    sources = {
        "a.md": file("One.\n\nTwo."),
        "dir/b c.md": file("Three."),
        "none.md": file(""),
        "https://example.com/?q=1#x": url("\nFour.\n"),
    }
    text = format_index(sources)
    assert text.endswith(".\n")
    assert not text.endswith("\n\n")
    entries = dict(entry.split("\n", 1) for entry in text.rstrip("\n").split("\n\n"))
    assert entries == {"a.md": "One.\nTwo.", "dir/b c.md": "Three.", "https://example.com/?q=1#x": "Four."}
