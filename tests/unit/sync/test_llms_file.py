"""State as `llms.txt`: tables, and what its links lead to."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pair.sync.state import LlmsFile, format_index, format_llms


def row(*values: object, id: str) -> Any:
    return pytest.param(*values, id=id)


def file(summary: str) -> dict[str, Any]:
    return {"source_type": "file", "summary_text": summary}


def url(summary: str) -> dict[str, Any]:
    return {"source_type": "url", "summary_text": summary}


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
        row({}, "# Knowledge base\n\n> 0 files and 0 pages\n", id="nothing"),
        row({"a.md": file("")}, "# Knowledge base\n\n> 0 files and 0 pages\n", id="without summary: left out"),
        row(
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
        row("a.md", file("One.\n\nTwo  \n three."), "- [a.md](a.md): One. Two three.", id="one line"),
        row("a b (1).md", file("A."), "- [a b (1).md](a%20b%20%281%29.md): A.", id="spaces and brackets"),
        row("a[1].md", file("A."), r"- [a\[1\].md](a%5B1%5D.md): A.", id="square brackets"),
        row("a](x).md", file("A."), r"- [a\](x).md](a%5D%28x%29.md): A.", id="the end of a link"),
        row("a\\b.md", file("A."), r"- [a\\b.md](a%5Cb.md): A.", id="backslash"),
        row("`a`.md", file("A."), r"- [\`a\`.md](%60a%60.md): A.", id="code"),
        row("100%.md", file("A."), "- [100%.md](100%25.md): A.", id="percent"),
        row("a#b?c.md", file("A."), "- [a#b?c.md](a%23b%3Fc.md): A.", id="fragment and query"),
        row("ä.md", file("Ä."), "- [ä.md](%C3%A4.md): Ä.", id="other letters"),
        row("c:d.md", file("A."), "- [c:d.md](c%3Ad.md): A.", id="colon"),
        row("a.md", file("See [x](y) <b>"), r"- [a.md](a.md): See \[x\](y) \<b\>", id="links in descriptions"),
        row("https://a/x?q=1&r=%20#f", url("A."), "- [https://a/x?q=1&r=%20#f](https://a/x?q=1&r=%20#f): A.", id="URL"),
        row("https://a/(b)", url("A."), "- [https://a/(b)](https://a/%28b%29): A.", id="URL with brackets"),
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


def test_the_mark_tells_content_and_folder() -> None:
    here = LlmsFile(Path("llms.txt"), Path("kb"))
    elsewhere = LlmsFile(Path("llms.txt"), Path("other"))
    assert here.make_mark(b"a") == LlmsFile(Path("./llms.txt"), Path("./kb")).make_mark(b"a")
    assert len({here.make_mark(b"a"), here.make_mark(b"b"), elsewhere.make_mark(b"a")}) == 3
