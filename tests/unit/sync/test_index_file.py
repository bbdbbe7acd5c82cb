"""How `index.txt` and `llms.txt` are formatted, and where the links of `llms.txt` lead."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pair.sync.state import LlmsFile, format_index, format_llms, tidy_summary


def file(summary: str, **others: Any) -> dict[str, Any]:
    return {"source_type": "file", "summary_text": summary, **others}


def url(summary: str, **others: Any) -> dict[str, Any]:
    return {"source_type": "url", "summary_text": summary, **others}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"a.md": file("One line.")}, "a.md\nOne line.\n", id="one"),
        pytest.param({"a.md": file("One.\nTwo.\nThree.")}, "a.md\nOne.\nTwo.\nThree.\n", id="several lines"),
        pytest.param({"a.md": file("A."), "b.md": file("B.")}, "a.md\nA.\n\nb.md\nB.\n", id="one blank line between"),
        pytest.param({"b.md": file("B."), "a.md": file("A.")}, "a.md\nA.\n\nb.md\nB.\n", id="sorted"),
        pytest.param(
            {"b": file("B."), "B": file("b."), "a/b": file("C."), "a.b": file("D."), "ä": file("E.")},
            "B\nb.\n\na.b\nD.\n\na/b\nC.\n\nb\nB.\n\nä\nE.\n",
            id="sorted by code point",
        ),
        pytest.param(
            {"https://a": url("Page."), "z.md": file("File.")},
            "z.md\nFile.\n\nhttps://a\nPage.\n",
            id="files before URLs",
        ),
        pytest.param({"a.md": file(""), "b.md": file("B.")}, "b.md\nB.\n", id="without summary: left out"),
        pytest.param({"a.md": file(" \n\t\n")}, "", id="blank summary: left out"),
        pytest.param({"a.md": file("Old.", summary_pending=True)}, "a.md\nOld.\n", id="pending: the old one is shown"),
        pytest.param({"a.md": file("One.\n\n \n\nTwo.")}, "a.md\nOne.\nTwo.\n", id="blank lines inside go"),
        pytest.param({"a.md": file("\n\nOne.\n\n")}, "a.md\nOne.\n", id="blank lines around go"),
        pytest.param(
            {"a.md": file("One.  \r\nTwo.\t\r\n")}, "a.md\nOne.\nTwo.\n", id="line ends and the space before them"
        ),
        pytest.param({"a.md": file("  - indented")}, "a.md\n  - indented\n", id="indentation stays"),
        pytest.param({"ö.md": file("Für 你好 🙂")}, "ö.md\nFür 你好 🙂\n", id="any language"),
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


# ── llms.txt ───────────────────────────────────────────────────────────────────────────────────────


def test_files_come_first_then_pages_in_the_order_of_the_index() -> None:
    sources = {"https://b.example/": url("Page B."), "b.md": file("B."), "a/c.md": file("C."), "https://a": url("A.")}
    assert format_llms(sources, "knowledge/") == (
        "# Knowledge base\n\n"
        "> 2 files and 2 pages\n\n"
        "## Files\n\n"
        "- [a/c.md](knowledge/a/c.md): C.\n"
        "- [b.md](knowledge/b.md): B.\n\n"
        "## Pages\n\n"
        "- [https://a](https://a): A.\n"
        "- [https://b.example/](https://b.example/): Page B.\n"
    )
    named = re.findall(r"^- \[(.*?)\]", format_llms(sources, ""), re.MULTILINE)
    assert named == [entry.partition("\n")[0] for entry in format_index(sources).split("\n\n")]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        pytest.param({}, "# Knowledge base\n\n> 0 files and 0 pages\n", id="nothing"),
        pytest.param({"a.md": file("")}, "# Knowledge base\n\n> 0 files and 0 pages\n", id="without summary: left out"),
        pytest.param(
            {"https://a": url("A.")},
            "# Knowledge base\n\n> 0 files and 1 page\n\n## Pages\n\n- [https://a](https://a): A.\n",
            id="no files",
        ),
    ],
)
def test_sections_without_sources_are_left_out(sources: dict[str, Any], expected: str) -> None:
    assert format_llms(sources, "") == expected


@pytest.mark.parametrize(
    ("source_id", "source", "line"),
    [
        pytest.param("a.md", file("One.\n\nTwo  \n three."), "- [a.md](a.md): One. Two three.", id="one line"),
        pytest.param("a b (1).md", file("A."), "- [a b (1).md](a%20b%20%281%29.md): A.", id="spaces and brackets"),
        pytest.param("a[1].md", file("A."), r"- [a\[1\].md](a%5B1%5D.md): A.", id="square brackets"),
        pytest.param("a](x).md", file("A."), r"- [a\](x).md](a%5D%28x%29.md): A.", id="the end of a link"),
        pytest.param("a\\b.md", file("A."), r"- [a\\b.md](a%5Cb.md): A.", id="backslash"),
        pytest.param("`a`.md", file("A."), r"- [\`a\`.md](%60a%60.md): A.", id="code"),
        pytest.param("100%.md", file("A."), "- [100%.md](100%25.md): A.", id="percent"),
        pytest.param("a#b?c.md", file("A."), "- [a#b?c.md](a%23b%3Fc.md): A.", id="fragment and query"),
        pytest.param("ä.md", file("Ä."), "- [ä.md](%C3%A4.md): Ä.", id="other letters"),
        pytest.param("c:d.md", file("A."), "- [c:d.md](c%3Ad.md): A.", id="colon"),
        pytest.param("a.md", file("See [x](y) <b>"), r"- [a.md](a.md): See \[x\](y) \<b\>", id="links in descriptions"),
        pytest.param(
            "https://a/x?q=1&r=%20#f", url("A."), "- [https://a/x?q=1&r=%20#f](https://a/x?q=1&r=%20#f): A.", id="URL"
        ),
        pytest.param("https://a/(b)", url("A."), "- [https://a/(b)](https://a/%28b%29): A.", id="URL with brackets"),
    ],
)
def test_names_and_descriptions_cannot_break_a_link(source_id: str, source: dict[str, Any], line: str) -> None:
    assert format_llms({source_id: source}, "").splitlines()[-1] == line


@pytest.mark.parametrize(
    "llms_path", ["llms.txt", ".pair/llms.txt", "public/deep/llms.txt", "kb (1)/llms.txt", "../llms.txt"]
)
def test_a_link_leads_to_the_file_from_where_the_list_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llms_path: str
) -> None:
    home = tmp_path / "home"
    (home / "kb (1)/deep").mkdir(parents=True)
    monkeypatch.chdir(home)
    Path("kb (1)/deep/a b.md").write_text("A.")
    place = LlmsFile(Path(llms_path), Path("kb (1)"))
    content = place.content({"deep/a b.md": file("A.")}).decode()
    link = re.search(r"\]\((.*?)\): A\.", content)
    assert link is not None
    place.path.parent.mkdir(parents=True, exist_ok=True)
    assert (place.path.parent / unquote(link[1])).samefile("kb (1)/deep/a b.md")


def test_the_mark_holds_content_and_folder() -> None:
    here = LlmsFile(Path("llms.txt"), Path("kb"))
    elsewhere = LlmsFile(Path("llms.txt"), Path("other"))
    assert here.make_mark(b"a") == LlmsFile(Path("./llms.txt"), Path("./kb")).make_mark(b"a")
    assert len({here.make_mark(b"a"), here.make_mark(b"b"), elsewhere.make_mark(b"a")}) == 3
