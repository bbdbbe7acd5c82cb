"""The reader of all documents: each kind with real input, and difficult cases."""

import json
import re

import pytest

from contract.test_documents import docx, pdf
from pair.reading.contract import UnreadableDocument
from pair.reading.reader import read

# ── documentation ──────────────────────────────────────────────────────────────────────────────────

SPHINX = """<!DOCTYPE html><html lang="en"><head><title>json — JSON encoder &#8212; Python 3.11 documentation</title>
<link rel="canonical" href="https://docs.example/json.html"></head><body>
<div class="related" role="navigation"><h3>Navigation</h3><ul><li>next |</li><li>previous |</li></ul></div>
<div class="document"><div class="body" role="main"><section id="json"><h1><code>json</code> — JSON encoder
<a class="headerlink" href="#json" title="Permalink to this heading">¶</a></h1>
<p>A <a class="reference" href="x.html"><code class="xref py">dump()</code></a> writes text, as said in
<em>this</em> paragraph, which is long enough to be taken for the text of a page and not for a list of links. It
goes on for a while, as paragraphs of documentation do, and says little more than that it is a paragraph. That is all
that is asked of it here: to have more than four hundred characters, so that the contents beside it are left out.</p>
<div class="toctree-wrapper"><ul><li><a href="a.html">Contents of another page</a></li></ul></div>
<dl class="py function"><dt class="sig sig-object py" id="json.dump">json.dump(obj, fp)
<a class="headerlink" href="#json.dump">¶</a></dt><dd><p>Serialise <em>obj</em> to <em>fp</em>.</p>
<div class="highlight-python3"><div class="highlight"><pre><span></span>if x:
\tdump(x)
</pre></div></div></dd></dl></section></div></div>
<div class="sphinxsidebar"><h4>Previous topic</h4></div><div class="footer">&copy; Copyright.</div></body></html>"""


def test_a_page_of_sphinx_keeps_its_text_and_loses_what_is_around_it() -> None:
    reading = read(SPHINX.encode(), "json.html")
    assert reading.title == "json — JSON encoder"
    assert reading.metadata == {"language": "en", "canonical_url": "https://docs.example/json.html"}
    assert reading.text.startswith("# json — JSON encoder\n\nA `dump()` writes text, as said in this paragraph")
    assert "\n## json.dump(obj, fp)\n\nSerialise obj to fp.\n\n```python3\nif x:\n\tdump(x)\n```" in reading.text
    for unwanted in ("¶", "Navigation", "previous", "Previous topic", "Copyright", "Contents of another page"):
        assert unwanted not in reading.text


def test_a_page_of_asciidoc_keeps_its_name_and_options() -> None:
    page = """<body class="manpage"><div id="header"><h1>git-commit(1) Manual Page</h1><h2>NAME</h2>
    <div class="sectionbody"><p>git-commit - Record changes</p></div></div><div id="content"><h2>OPTIONS</h2>
    <dl><dt>-a</dt><dt>--all</dt><dd><p>Stage files.</p><p>But not new ones.</p></dd>
    <dt>-p</dt><dd><p>Choose.</p></dd></dl>
    </div><div id="footer"><div id="footer-text">Last updated 2024-05-31</div></div></body>"""
    reading = read(page.encode(), "git-commit.html")
    assert reading.title == "git-commit(1) Manual Page"
    assert reading.text == (
        "# git-commit(1) Manual Page\n\n## NAME\n\ngit-commit - Record changes\n\n## OPTIONS\n\n"
        "- -a, --all: Stage files.\n\n  But not new ones.\n\n- -p: Choose."
    )


def test_a_page_of_docbook_has_the_title_of_its_head() -> None:
    page = """<?xml version="1.0"?><html><head><title>5.2. Default Values</title></head><body><div class="navheader">
    <table><tr><td>Prev</td><td>Next</td></tr></table></div><div class="sect1">
    <h2 class="title">5.2. Default Values</h2>
    <a id="x"/><p>A column can have a default.</p></div><div class="navfooter">Prev Up Next</div></body></html>"""
    reading = read(page.encode(), "ddl-default.html")
    assert (reading.title, reading.text) == (
        "5.2. Default Values",
        "## 5.2. Default Values\n\nA column can have a default.",
    )


def test_a_page_of_docusaurus_is_read_from_its_article() -> None:
    page = """<html><head><title>Install | Tool</title><meta property="og:title" content="Install | Tool"></head><body>
    <nav>Docs Blog</nav><main><div class="row"><article><nav class="theme-doc-breadcrumbs">Home</nav>
    <div class="theme-doc-markdown markdown"><header><h1>Install</h1></header><p>Run the installer.</p>
    <ul><li>one<ul><li>inner</li></ul></li><li>two</li></ul></div><footer><a class="theme-edit-this-page">Edit</a>
    </footer></article><nav class="pagination-nav">Next: Use</nav></div></main></body></html>"""
    reading = read(page.encode(), "install.html")
    assert (reading.title, reading.text) == ("Install", "# Install\n\nRun the installer.\n\n- one\n  - inner\n- two")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("<title>Install | Tool</title>", "Install"),
        ("<title>Guide - Tool Documentation</title>", "Guide"),
        ("<title>Before - after</title>", "Before - after"),
        ('<title>x</title><meta property="og:title" content="Social">', "Social"),
        ('<title>A — B</title><meta property="og:site_name" content="B">', "A"),
        ("", ""),
    ],
)
def test_a_title_loses_the_name_of_its_site(head: str, expected: str) -> None:
    assert read(f"<html><head>{head}</head><body><p>words</body></html>".encode(), "a.html").title == expected


# ── pages that are hard ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param("<title>t</title><p>words", "words", id="no body"),
        pytest.param("<frameset><frame src=a><noframes><p>words</p></noframes></frameset>", "words", id="frames"),
        pytest.param("<base href='https://x.example/'><p>words", "words", id="base"),
        pytest.param("<meta http-equiv=refresh content='0; url=b'><p>Moved to <a>b</a>.", "Moved to b.", id="refresh"),
        pytest.param("<?xml version='1.0'?><body><script src='a.js'/><div/><p>words</p></body>", "words", id="XHTML"),
        pytest.param("<p dir=rtl>שלום עולם</p><p>ערב טוב</p>", "שלום עולם\n\nערב טוב", id="right to left"),
        pytest.param("<p>Let <math alttext='x^2'><mi>x</mi><mn>2</mn></math> be", "Let x^2 be", id="MathML"),
        pytest.param("<p>Is <math><mi>x</mi><mo>+</mo><mn>2</mn></math>", "Is x+2", id="MathML without a text"),
        pytest.param("<pre>\na\tb\n\tc\n</pre>", "```\na\tb\n\tc\n```", id="tabs"),
        pytest.param("<pre>```\nx</pre>", "````\n```\nx\n````", id="fence in code"),
        pytest.param("<p># no heading</p>", "\\# no heading", id="mark in text"),
        pytest.param("<p>one<br>two", "one\ntwo", id="line break"),
        pytest.param("<ol start=3><li>c<li>d</ol>", "3. c\n4. d", id="numbers"),
        pytest.param("<blockquote><p>a<p>b</blockquote>", "> a\n>\n> b", id="quotation"),
        pytest.param("<nav><a>Home</a></nav>", "Home", id="only navigation"),
        pytest.param("<p>2<sup>64</sup>, the 1<sup>st</sup>", "2^64, the 1st", id="power"),
        pytest.param("<p>a <code>x</code><code>y</code> b", "a `xy` b", id="adjacent code"),
        pytest.param(
            "<table><tr><th>a</th><th>b</th></tr><tr><td rowspan=2>1</td><td>2</td></tr><tr><td>3|4</td></tr></table>",
            "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 1 | 3\\|4 |",
            id="table",
        ),
        pytest.param(
            "<table><tr><td><p>left</p></td><td><table><tr><td>x</td><td>y</td></tr></table></td></tr></table>",
            "left\n\n| x | y |\n| --- | --- |",
            id="nested tables",
        ),
    ],
)  # fmt: skip
def test_a_hard_page_is_read(page: str, expected: str) -> None:
    assert read(page.encode(), "a.html").text == expected


PROSE = "<p>" + "Words about the subject of the page, as prose has them. " * 8 + "</p>"


@pytest.mark.parametrize(
    "around",
    [
        pytest.param("<p>[ <a href=a>prev</a> | <a href=b>next</a> | <a href=c>top</a> ]</p>{}", id="bar"),
        pytest.param("<p>Next: <a href=a>Bread</a>, Up: <a href=b>Food</a> [<a href=c>Index</a>]</p>{}", id="labels"),
        pytest.param(
            "{}<table><tr><td><a href=a>Back to Contents</a></td><td><a href=b>Next: Bread</a></td></tr></table>",
            id="table",
        ),
        pytest.param("<ul>" + "<li><a href=x>A neighbour</a>" * 6 + "</ul><h2>Title</h2>{}", id="links above the text"),
        pytest.param(
            "<table><tr><td>" + "<p><a href=x>A page</a></p>" * 6 + "</td><td><h2>Title</h2>{}</td></tr></table>",
            id="menu",
        ),
        pytest.param("{}<hr><p>Copyright © 2004 A. Writer</p><div>Generated by <a>tool</a> 1.9</div>", id="credits"),
        pytest.param("{}<p>Last modified: 1 May 2024</p>", id="date"),
    ],
)  # fmt: skip
def test_navigation_without_a_name_is_removed(around: str) -> None:
    expected = read(f"<body>{PROSE}</body>".encode(), "a.html").text
    text = read(f"<html><body>{around.format(PROSE)}</body>".encode(), "a.html").text
    assert text.replace("## Title\n\n", "") == expected


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("<p>See the <a href=a>next</a> chapter for the <a href=b>index</a> of words.</p>", id="sentence"),
        pytest.param("<ul>" + "<li><a href=x>A page about bread</a>" * 9 + "</ul>", id="page of links"),
        pytest.param("<h2>References</h2><ul>" + "<li><a href=x>A book of bread</a>" * 5 + "</ul>", id="references"),
        pytest.param("<p>Copyright 2004 is not held by anyone.</p>", id="short page"),
        pytest.param(PROSE + "<p>Next comes the index.</p>", id="words without links"),
        pytest.param(
            "<table><tr><td><a href=a>Up</a><td>Goes up.<tr><td><a href=b>Down</a><td>Goes down.</table>", id="data"
        ),
    ],
)  # fmt: skip
def test_text_that_only_resembles_navigation_stays(page: str) -> None:
    words = re.findall(r"\w+", re.sub("<[^>]*>", " ", page))
    assert re.findall(r"\w+", read(f"<body>{page}</body>".encode(), "a.html").text) == words


def test_nested_navigation_of_thousands_of_levels_is_read() -> None:
    page = "<div>" * 2_000 + "<p><a href=a>prev</a> <a href=b>next</a></p>" + PROSE + "</div>" * 2_000
    assert read(page.encode(), "a.html").text.startswith("Words about")


def test_headers_that_a_program_printed_before_a_page_are_not_text() -> None:
    page = b"Content-type: text/html; charset=UTF-8\n\n<html><head><title>Man page</title></head><body><p>words"
    reading = read(page, "a.html")
    assert (reading.title, reading.text) == ("Man page", "words")


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("Project: Thing Class Reference", "<div class=title>Thing Class Reference</div>", "Thing Class Reference"),
        ("GtkThing: GTK Reference Manual", "<h2>GtkThing</h2>", "GtkThing"),
        (
            "Lib: ns::A Class Reference",
            "<div class=title>ns::A Class Reference<i> more</i></div>",
            "ns::A Class Reference",
        ),
        ("TLS (SSL)", "<h2>TLS (SSL)</h2>", "TLS (SSL)"),
        ("Lib: a.h Source File", "<div class=title>a.h</div>", "a.h"),
        ("Lang -- Records", "<h1>11 Records</h1><h1>11.1 Fields</h1>", "11 Records"),
        ("Index Expressions (GNU Tool (version 7.3.0))", "<h3>8.1 Index Expressions</h3>", "8.1 Index Expressions"),
        ("threads: how they work", "<h2>threads</h2>", "threads: how they work"),
        ("page-12.html", "<h2>Style Variables</h2>", "Style Variables"),
        ("Validation", "<h1>The Parser</h1><h2>Validation</h2>", "Validation"),
        ("Docs", "<h1>Read a file<a href='#read'>#</a></h1>", "Read a file"),
    ],
)
def test_a_title_is_that_of_the_page_and_not_of_the_project(head: str, body: str, title: str) -> None:
    assert read(f"<title>{head}</title><body>{body}<p>words".encode(), "a.html").title == title


def test_a_table_that_arranges_a_note_is_not_a_table() -> None:
    note = "<table><tr><td rowspan=2><img src=a></td><th>Tip</th></tr><tr><td>Read the guide.</td></tr></table>"
    assert read(note.encode(), "a.html").text == "Tip\n\nRead the guide."


def test_links_from_footnotes_back_to_the_text_are_removed() -> None:
    page = b"<p>A note.<sup><a href='#fn1'>1</a></sup><ol><li id=fn1>About it. <a href='#fnref1'>\xe2\x86\xa9</a></ol>"
    assert read(page, "a.html").text == "A note.1\n\n1. About it."


def test_a_quotation_after_a_paragraph_begins_after_a_blank_line() -> None:
    page = b"<p>He said:</p><blockquote><p>a</p><p>b</p></blockquote><p>c"
    assert read(page, "a.html").text == "He said:\n\n> a\n>\n> b\n\nc"


def test_a_heading_with_only_the_name_of_the_site_is_no_text() -> None:
    site = "Tool 3.2 documentation"
    page = f"<title>Deploy - {site}</title><h1>{site}</h1><h1>Deploy</h1><p>words".encode()
    reading = read(page, "a.html")
    assert (reading.title, reading.text) == ("Deploy", "# Deploy\n\nwords")


def test_line_breaks_and_fixed_blanks_in_code_are_kept_as_text() -> None:
    page = b"<pre><code>fn add(<br>&nbsp;&nbsp;a: i32,<br/>&nbsp;&nbsp;b: i32)</code></pre>"
    assert read(page, "a.html").text == "```\nfn add(\n  a: i32,\n  b: i32)\n```"


def test_a_title_that_is_repeated_is_one_heading() -> None:
    assert read(b"<h1>Manual</h1><h1>Manual</h1><p>words", "a.html").text == "# Manual\n\nwords"


def test_a_page_without_a_title_is_titled_by_its_first_heading() -> None:
    assert read(b"<body><h2>Overview</h2><p>words</p><h2>More</h2></body>", "a.html").title == "Overview"


def test_a_wrongly_declared_charset_is_seen_through() -> None:
    page = '<html><head><meta charset="us-ascii"></head><body><p>größe</p></body></html>'
    assert read(page.encode(), "a.html").text == "größe"
    assert read(page.encode(), "a", "text/html", "ascii").text == "größe"


def test_a_page_of_20_megabytes_is_read() -> None:
    page = "<html><body><main><h1>Long</h1>" + "<p>Some words of a <b>paragraph</b>.</p>" * 500_000
    reading = read(page.encode(), "a.html")
    assert reading.title == "Long"
    assert reading.text.count("paragraph") == 500_000


def test_a_jekyll_page_may_have_front_matter() -> None:
    reading = read(b"---\ntitle: Front\nyear: 2024\n---\n<html><body><p>words", "a.html")
    assert (reading.text, reading.title, reading.metadata) == ("words", "Front", {"year": 2024})


# ── text ───────────────────────────────────────────────────────────────────────────────────────────


def test_front_matter_is_title_and_typed_metadata_and_no_text() -> None:
    source = (
        b"---\ntitle: A title\nyear: 2025\nwhen: 2024-05-06\ntags: [a, b]\ndraft: false\nnothing:\n---\n\n# Heading\n"
    )
    reading = read(source, "a.md")
    assert (reading.title, reading.text.strip()) == ("A title", "# Heading")
    assert reading.metadata == {"year": 2025, "when": "2024-05-06", "tags": ["a", "b"], "draft": False}
    toml = read(b"+++\ntitle = 'T'\nweight = 3\nwhen = 2024-05-06\n+++\ntext", "a.md")
    assert (toml.title, toml.text, toml.metadata) == ("T", "text", {"weight": 3, "when": "2024-05-06"})


@pytest.mark.parametrize(
    "front",
    [
        pytest.param("- a\n- b: c", id="no mapping"),
        pytest.param("just: a: b: c", id="no YAML"),
        pytest.param("a: &x [1, 2]\nb: *x", id="aliases"),
        pytest.param("a: &a [*a, *a]", id="bomb"),
        pytest.param("a:\n\tb: c", id="tabs"),
        pytest.param("a: " + "[" * 3000 + "]" * 3000, id="nested"),
        pytest.param("\n".join(f"key{number}: value" for number in range(60_000)), id="a megabyte"),
        pytest.param("a: !!python/object/apply:os.system [x]", id="code"),
    ],
)
@pytest.mark.timeout(20)
def test_front_matter_that_is_none_stays_in_the_text_or_is_harmless(front: str) -> None:
    reading = read(f"---\n{front}\n---\ntext".encode(), "a.md")
    assert reading.text.endswith("text")
    json.dumps(reading.metadata)


def test_the_last_of_two_equal_keys_counts_and_an_invalid_date_is_text() -> None:
    assert read(b"---\na: 1\na: 2\n---\nx", "a.md").metadata == {"a": 2}
    assert read(b"---\na: 2024-99-99\n---\nx", "a.md").metadata == {"a": "2024-99-99"}


def test_a_rule_between_paragraphs_is_not_front_matter() -> None:
    assert read(b"---\n\nOne.\n\n---\n\nTwo: three.", "a.md").text == "---\n\nOne.\n\n---\n\nTwo: three."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# One\n\n## Two", "One"),
        ("One\n===\n\ntext", "One"),
        ("```\n# comment\n```\n\n# Real", "Real"),
        ("## Two\n\ntext", ""),
        ("text only", ""),
    ],
)
def test_a_text_is_titled_by_its_first_heading(text: str, title: str) -> None:
    assert read(text.encode(), "a.md").title == title


@pytest.mark.parametrize("name", ["a.py", "Makefile", "conf.yaml", "x.sh", "data.json"])
def test_source_code_has_no_headings_and_no_title(name: str) -> None:
    reading = read(b"# comment\nx = 1\n", name)
    assert reading.title == ""
    assert reading.text.splitlines()[1:] == ["# comment", "x = 1", "```"]


def test_every_part_of_a_long_table_has_its_header() -> None:
    rows = "".join(f"name {number},{number}\n" for number in range(200))
    parts = read(f"name,age\n{rows}".encode(), "people.csv").text.split("\n\n")
    assert len(parts) > 5
    assert all(part.startswith("| name | age |\n| --- | --- |\n| name ") for part in parts)
    assert max(map(len, parts)) <= 480
    assert read(b"a\tb\n1\t2\n", "x.tsv").text == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert read(b"a;b\n1;2\n", "x.csv").text == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_rows_below_a_wide_header_name_their_columns() -> None:
    names = [f"a long name of column {number}" for number in range(10)]
    text = read(f"{','.join(names)}\n{','.join('0123456789')}\n".encode(), "x.csv").text
    assert text.startswith("- a long name of column 0: 0; a long name of column 1: 1; ")


def test_a_notebook_is_its_cells_without_pictures() -> None:
    notebook = {
        "nbformat": 4,
        "metadata": {"kernelspec": {"language": "python"}},
        "cells": [
            {"cell_type": "markdown", "source": ["# Study\n", "Some words."]},
            {
                "cell_type": "code",
                "source": "# comment\nprint(1)",
                "outputs": [
                    {"output_type": "stream", "text": ["1\n"]},
                    {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}},
                ],
            },
        ],
    }
    reading = read(json.dumps(notebook).encode(), "study.ipynb")
    assert reading.title == "Study"
    assert reading.text == (
        "# Study\nSome words.\n\n```python\n# comment\nprint(1)\n```\n\n```\n1\n```\n\n```\n<Figure>\n```"
    )
    assert read(b"[1]", "broken.ipynb").text == "```json\n[1]\n```"


# ── PDF and Word ───────────────────────────────────────────────────────────────────────────────────


def test_the_pages_of_a_pdf_are_separated_by_form_feeds() -> None:
    reading = read(many_pages("One page.", "A sentence that", "goes on."), "a.pdf")
    assert reading.text == "One page.\n\n\fA sentence that\n\fgoes on."
    assert reading.metadata == {"pages": 3}


@pytest.mark.timeout(60)
def test_2000_pages_are_read() -> None:
    reading = read(many_pages(*[f"Page {number} says so." for number in range(1, 2001)]), "a.pdf")
    assert reading.text.count("\f") == 1999
    assert reading.text.endswith("Page 2000 says so.")


def test_words_divided_at_the_end_of_a_line_are_joined_and_ligatures_spelled_out() -> None:
    content = pdf("informa-) Tj 0 -20 Td (tion of\\256ce")
    encoding = b"/BaseFont /Helvetica /Encoding << /Type /Encoding /Differences [174 /fi] >> >>"
    content = content.replace(b"/BaseFont /Helvetica >>", encoding)
    assert read(content, "a.pdf").text == "information office"


def test_columns_are_read_one_after_the_other() -> None:
    columns = "The left column) Tj 0 -20 Td (ends here.) Tj 200 20 Td (The right column) Tj 0 -20 Td (ends there."
    assert read(many_pages(columns), "a.pdf").text.split() == (
        ["The", "left", "column", "ends", "here.", "The", "right", "column", "ends", "there."]
    )


def test_dots_that_lead_to_a_page_number_are_one_sign() -> None:
    assert read(many_pages("Introduction . . . . . . . . . 7"), "a.pdf").text == "Introduction … 7"


def test_a_rotated_page_is_read() -> None:
    content = pdf("We deploy on Mondays").replace(b"/MediaBox [0 0 99 99]", b"/Rotate 90 /MediaBox [0 0 99 99]")
    assert read(content, "a.pdf").text == "We deploy on Mondays"


def test_a_word_document_has_headings_and_lists_like_a_page() -> None:
    heading = '</w:t></w:r></w:p><w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Deploy guide'
    reading = read(docx(f"x{heading}", "We deploy on Mondays"), "a.docx")
    assert "We deploy on Mondays" in reading.text
    assert reading.text.count("\n\n") >= 2


def many_pages(*texts: str) -> bytes:
    """Return a PDF with a line of text on each page."""
    objects: list[bytes] = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for text in texts:
        stream = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET".encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (b" ".join(kids), len(kids))
    written = bytearray(b"%PDF-1.4\n")
    places = []
    for number, part in enumerate(objects, start=1):
        places.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, part)
    table_at = len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    written += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(written) + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        table_at,
    )


# ── content types ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "name", "content_type"),
    [
        (b"---\nyear: 2025\n---\n# Title\n\ntext", "a.md", "text/markdown"),
        (b"---\nyear: 2025\n---\n# Title\n\ntext", "a.md", "text/plain"),
        (b"<html><body><p>words", "a.html", "text/html"),
        (b"a,b\n1,2\n", "a.csv", "text/csv"),
        (b'{"a": 1}', "a.json", "application/json"),
        (b"# c\n", "a.py", "text/x-python"),
        (b"plain", "a.txt", "application/octet-stream"),
        (pdf("words"), "a.pdf", "application/pdf"),
        (docx("words"), "a.docx", "application/octet-stream"),
    ],
)
def test_a_file_and_a_page_of_the_same_bytes_are_the_same_document(
    content: bytes, name: str, content_type: str
) -> None:
    assert read(content, name) == read(content, name, content_type)


def test_a_picture_under_any_name_is_refused() -> None:
    picture = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(100)
    for content_type in ("image/png", "text/plain", "application/json", ""):
        with pytest.raises(UnreadableDocument, match="not text in any known charset"):
            read(picture, "a.md", content_type)
