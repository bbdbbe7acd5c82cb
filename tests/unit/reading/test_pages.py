"""Reading a page: the main text of HTML, and unchanged plain text, in any charset."""

import codecs

import pytest

from pair.reading.contract import UnreadableDocument
from pair.reading.reader import read

PARAGRAPH = "We deploy on Mondays after the review, and never on a Friday, for reasons that everybody knows. " * 4
ARTICLE = f"""<!doctype html><html><head><title>Guide</title><style>p {{ color: red }}</style></head><body>
<nav><a href="/">Home</a> <a href="/imprint">Imprint</a></nav>
<article><h1>Deploy guide</h1><p>{PARAGRAPH}</p>
<ul><li>Ask the reviewer first</li><li>Then press the button</li></ul>
<table><tr><th>Day</th><th>Deploy</th></tr><tr><td>Monday</td><td>yes indeed</td></tr></table>
<p>{PARAGRAPH}</p><script>var secret = 'script text'</script></article>
<div id="comments"><div class="comment"><p>First! said somebody below the line.</p></div></div>
<footer>Copyright somebody</footer></body></html>"""


def extract_text(content_type: str, charset: str | None, body: bytes) -> str:
    """Read a page as a server sends it. A page without a type counts as bytes."""
    return read(body, "page", content_type or "application/octet-stream", charset).text


def test_the_main_text_of_a_page_has_lists_and_tables_but_no_comments_or_scripts() -> None:
    text = extract_text("text/html", "utf-8", ARTICLE.encode())
    for wanted in ("Deploy guide", "never on a Friday", "Ask the reviewer first", "Monday", "yes indeed"):
        assert wanted in text
    for unwanted in ("Imprint", "First! said", "script text", "color: red", "Copyright"):
        assert unwanted not in text


def test_a_heading_that_names_the_site_is_not_the_title_of_a_page() -> None:
    page = "<html><head><title>Streams | Tool 1.2 Manual</title></head><body><h1>Tool 1.2 manual</h1><p>Words</body>"
    assert read(page.encode(), "a.html").title == "Streams"
    assert read(page.replace("Streams | ", "").encode(), "a.html").title == "Tool 1.2 manual"


def test_the_same_page_gives_the_same_text() -> None:
    assert len({extract_text("application/xhtml+xml", None, ARTICLE.encode()) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<html><body><div>one</div><div>two</div></body></html>", ["one", "", "two"]),
        ("<html><body>bare text</body></html>", ["bare text"]),
        ("<html><body><nav>only navigation</nav></body></html>", ["only navigation"]),
        ("no tags at all", ["no tags at all"]),
        ("", []),
        ("<html><head><title>only a title</title></head></html>", []),
    ],
)
def test_a_page_without_main_text_gives_what_its_body_says(page: str, expected: list[str]) -> None:
    assert extract_text("text/html", None, page.encode()).split("\n") == (expected or [""])


@pytest.mark.parametrize("tag", ["script", "style", "noscript", "template"])
def test_invisible_text_is_left_out(tag: str) -> None:
    page = f"<html><body><{tag}>unseen words</{tag}><nav>seen words</nav></body></html>"
    assert extract_text("text/html", None, page.encode()) == "seen words"


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/markdown",
        "text/xml",
        "application/ld+json",
        "application/xml",
        "application/atom+xml",
    ],
)
def test_text_is_unchanged(content_type: str) -> None:
    assert extract_text(content_type, "utf-8", "<a>größer &amp; <b>\n".encode()) == "<a>größer &amp; <b>\n"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("application/octet-stream", bytes(range(256))),
        ("application/zip", b"PK\x03\x04\0\0\0"),
        ("", b"\x7fELF\x02\0\0"),
    ],
)
def test_content_that_is_not_text_is_refused_with_its_type(content_type: str, body: bytes) -> None:
    with pytest.raises(UnreadableDocument) as raised:
        extract_text(content_type, None, body)
    assert str(raised.value) == f"{content_type or 'application/octet-stream'} is not text in any known charset"


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/x-whatever", "image/x-odd", ""])
def test_text_under_another_name_is_read(content_type: str) -> None:
    assert extract_text(content_type, None, "# Größe\n".encode()) == "# Größe\n"


@pytest.mark.parametrize(
    ("start", "is_html"),
    [
        ("<!DOCTYPE html>", True),
        ("\ufeff\n <html lang=en>", True),
        ("<!-- hello --><html>", True),
        ("# How to write <html>\n", False),
        ("<htmlish>", False),
        ("<!---->" * 500, False),
    ],
)
def test_a_page_without_a_type_is_html_when_it_looks_like_it(start: str, is_html: bool) -> None:
    text = extract_text("", None, f"{start}<p>words of a page</p>".encode())
    assert ("<p>" not in text) == is_html


CHARSETS = [
    pytest.param("iso-8859-1", "größe".encode("latin-1"), "größe", id="declared"),
    pytest.param("ISO-8859-1", b"\x93quoted\x94", "“quoted”", id="latin-1-as-browsers-read-it"),
    pytest.param("shift_jis", "日本語".encode("shift_jis"), "日本語", id="declared-japanese"),
    pytest.param("koi8-r", "привет".encode("koi8-r"), "привет", id="declared-russian"),
    pytest.param("utf-8", codecs.BOM_UTF8 + "größe".encode(), "größe", id="declared-and-marked"),
    pytest.param("utf-16le", codecs.BOM_UTF16_LE + "größe".encode("utf-16-le"), "größe", id="declared-16-and-marked"),
    pytest.param(None, codecs.BOM_UTF8 + "größe".encode(), "größe", id="marked-8"),
    pytest.param(None, codecs.BOM_UTF16_LE + "größe".encode("utf-16-le"), "größe", id="marked-16-little"),
    pytest.param(None, codecs.BOM_UTF16_BE + "größe".encode("utf-16-be"), "größe", id="marked-16-big"),
    pytest.param(None, codecs.BOM_UTF32_LE + "größe".encode("utf-32-le"), "größe", id="marked-32"),
    pytest.param(None, "größe".encode(), "größe", id="utf-8"),
    pytest.param("no-such-charset", "größe".encode(), "größe", id="unknown"),
    pytest.param("zip", "größe".encode(), "größe", id="no-charset"),
    pytest.param("unicode_escape", rb"\u0041", r"\u0041", id="not-for-pages"),
    pytest.param("\0", b"text", "text", id="nonsense"),
    pytest.param("us-ascii", "größe".encode(), "größe", id="wrongly-ascii"),
    pytest.param("utf-8", b"almost gr\xfc\xdfe", "almost gr\ufffd\ufffde", id="broken-bytes"),
    pytest.param(
        None,
        "Schöne Grüße aus München, wo die Straßen größer und die Bäume grüner sind als früher".encode("latin-1"),
        "Schöne Grüße aus München, wo die Straßen größer und die Bäume grüner sind als früher",
        id="guessed",
    ),
]


@pytest.mark.parametrize(("charset", "body", "expected"), CHARSETS)
def test_text_is_read_in_its_charset(charset: str | None, body: bytes, expected: str) -> None:
    assert extract_text("text/plain", charset, body) == expected


@pytest.mark.parametrize(
    "head",
    [
        '<meta charset="koi8-r">',
        "<META content='text/html; charset=KOI8-R' http-equiv=Content-Type>",
        '<meta name="x"><meta charset=koi8-r>',
        '<?xml version="1.0" encoding="koi8-r"?>',
    ],
)
def test_a_page_may_name_its_charset_itself(head: str) -> None:
    body = f"{head}<html><body><nav>привет мир</nav></body></html>".encode("koi8-r")
    assert extract_text("text/html", None, body) == "привет мир"
    assert extract_text("text/html", "no-such-charset", body) == "привет мир"


def test_binary_content_under_a_text_type_is_refused() -> None:
    with pytest.raises(UnreadableDocument):
        extract_text("text/plain", None, bytes(range(256)) * 20)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("<div>" * 200_000, id="nested"),
        pytest.param("<script>" * 200_000, id="scripts"),
        pytest.param("".join(f"<b id={number}>" for number in range(20_000)) + "<p>x" * 20_000, id="formatting"),
        pytest.param("<path d='M1'/>" * 20_000, id="shapes without a drawing"),
        pytest.param("<svg><div>" + "<path d='M1'/>" * 20_000 + "</svg>", id="a drawing that an element ends"),
        pytest.param("<svg>" + "<path d=M1/>" * 20_000 + "</svg>", id="slashes that belong to values"),
        pytest.param("<svg>" + "<g>" * 20_000 + "</svg>", id="groups"),
    ],
)
@pytest.mark.timeout(60)
def test_markup_made_to_be_slow_is_refused(page: str) -> None:
    with pytest.raises(UnreadableDocument, match="nested too deeply"):
        extract_text("text/html", None, page.encode())


def test_a_page_with_large_drawings_is_read() -> None:
    shapes = '<path d="M1,2L3,4" style="fill:none" /><text x="1" y="2">label</text>\n' * 3_000
    page = f"<h1>Select</h1><svg viewBox='0 0 9 9'>\n{shapes}</svg><p>A query of a table.</p>"
    assert extract_text("text/html", None, page.encode()) == "# Select\n\nA query of a table."


@pytest.mark.parametrize("piece", ["<ul><li>item</ul>", "<p>x", "<td>x", "<", "<!--", "&amp;"])
@pytest.mark.timeout(60)
def test_a_long_page_takes_no_longer_than_it_must(piece: str) -> None:
    extract_text("text/html", None, (piece * 60_000).encode())
