"""Office, OpenDocument, EPUB, RTF and e-mail files: the text of small real files."""

import pytest

from contract.test_documents import docx, pdf
from pair.reading.contract import UnreadableDocument
from pair.reading.reader import find_kind, read
from support.office_files import (
    OLE,
    RTF,
    declare_size,
    eml,
    epub,
    odp,
    ods,
    odt,
    opendocument,
    pack,
    pptx,
    unpack,
    xlsx,
)

TABLE = "| Street | Cost |\n| --- | --- |\n| Main | 40 |"


def test_slides_are_sections_in_their_order_with_tables_and_notes() -> None:
    reading = read(pptx(), "plan.pptx")
    assert (reading.title, reading.metadata) == ("Winter plan", {"slides": 2})
    assert reading.text == (
        "## Roads & bridges\n\n- Salt the steps\n- Close bridges\n\n### Notes\n\nMention costs.\n\n"
        f"## Slide 2\n\n{TABLE}\n\nA free text"
    )


def test_a_sheet_is_a_table_with_computed_values_and_iso_dates() -> None:
    reading = read(xlsx(), "sales.xlsx")
    assert reading.title == "Winter plan"
    assert reading.text == (
        "## Sales\n\nReport of 2025\n\n| day | item | price |\n| --- | --- | --- |\n"
        "| 2025-03-01 | salt\\|grit | 3.5 |\n| 2025-03-02 12:00:00 | TRUE | 7 |"
    )


def test_a_sheet_lists_what_is_cut() -> None:
    rows = "".join(
        f'<row r="{row}"><c r="A{row}"><v>{row}</v></c><c r="B{row}"><v>2</v></c></row>' for row in (1, 50_002)
    )
    text = read(xlsx(rows), "long.xlsx").text
    assert text.endswith("Only the first 50,000 of 50,002 rows are read.")
    wide = read(
        xlsx('<row r="1"><c r="A1"><v>1</v></c><c r="B1"><v>3</v></c><c r="ZZ1"><v>2</v></c></row>'), "wide.xlsx"
    )
    assert wide.text.endswith("Only the first 256 of 702 columns are read.")


def test_an_opendocument_text_keeps_headings_lists_tables_and_notes() -> None:
    reading = read(odt(), "plan.odt")
    assert reading.title == "Winter plan"
    assert reading.text == f"## Roads\n\nGröße matters (in <cm>).\n\n- Salt\n- Grit\n\n{TABLE}"


def test_an_opendocument_presentation_and_a_spreadsheet_are_read() -> None:
    assert read(odp(), "plan.odp").text == "## Roads\n\nSalt the steps\n\n### Notes\n\nMention costs."
    assert read(ods(), "numbers.ods").text == "## Numbers\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_a_book_is_read_in_the_order_of_its_spine_without_its_contents() -> None:
    reading = read(epub(), "plan.epub")
    assert (reading.title, reading.metadata) == ("Winter plan", {"language": "en", "author": "Ada"})
    assert reading.text == "# Roads\n\nSalt the steps.\n\n# Bridges\n\nClose them."


def test_rich_text_is_read_in_its_charset() -> None:
    reading = read(RTF, "plan.rtf")
    assert (reading.title, reading.text) == ("Winter plan", "Größe matters.\n\nWe deploy on Mondays.")


@pytest.mark.parametrize("end", [r"\cell ", r"\par \cell "], ids=["cells", "cells of paragraphs"])
def test_a_table_of_rich_text_is_a_table(end: str) -> None:
    rows = "".join(
        r"\trowd\cellx100\cellx200 " + "".join(f"{cell}{end}" for cell in row) + r"\row "
        for row in (("kind", "minutes"), ("green", "2"), ("black", "4"))
    )
    text = read(rf"{{\rtf1\ansi Kinds of tea.\par {rows}\pard The end.\par}}".encode(), "a.rtf").text
    assert text == "Kinds of tea.\n\n| kind | minutes |\n| --- | --- |\n| green | 2 |\n| black | 4 |\n\nThe end."


def test_headers_of_a_message_are_metadata_and_attachments_are_named() -> None:
    reading = read(eml(), "plan.eml")
    assert reading.title == "Größe of the plan"
    assert reading.metadata == {
        "from": "Ada <ada@a.example>",
        "to": "bob@b.example",
        "date": "2025-03-01T09:00:00Z",
        "attachments": ["plan.pdf"],
    }
    assert reading.text == "We deploy on Mondays — überall.\n\nAttachments: plan.pdf"


def test_a_message_without_plain_text_is_read_from_its_page() -> None:
    assert read(eml(is_page=True), "plan.eml").text == "We deploy on Mondays.\n\nAttachments: plan.pdf"


def test_a_mailbox_has_a_section_for_each_message() -> None:
    messages = [b"From a@a.example Sat Mar  1 2025\n" + eml(subject=subject) for subject in ("One", "Two")]
    reading = read(b"\n\n".join(messages) + b"\n\n>From here it is quoted\n", "inbox.mbox")
    assert reading.metadata == {"messages": 2}
    assert reading.text.startswith(
        "# One\n\nFrom: Ada <ada@a.example>\nTo: bob@b.example\nDate: 2025-03-01T09:00:00Z\n\n"
    )
    assert reading.text.count("We deploy on Mondays") == 2


@pytest.mark.parametrize(
    "content",
    [
        b"Subject: =?bad?Q?x?=\nDate: never\nContent-Type: text/plain; charset=nonsense\n\nwords",
        b"Subject: a\nContent-Type: multipart/mixed; boundary=x\n\n--x\n\nwords\n",
        b"From: a@[\nSubject: a\n\nwords",
        b"From: @@,<,\nContent-Transfer-Encoding: base64\n\n!!!words",
    ],
)
def test_a_message_that_breaks_rules_is_read(content: bytes) -> None:
    assert read(content, "a.eml").text is not None


# ── what a file is ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.docx", pdf("words"), "pdf"),
        ("a.pdf", b"<!doctype html><html><body>words", "html"),
        ("a.pdf", docx("words"), "word"),
        ("a.xlsx", pptx(), "slides"),
        ("a.docx", odt(), "opendocument"),
        ("a.pptx", epub(), "epub"),
        ("a.odt", ods(), "sheet"),
        ("a.doc", RTF, "rtf"),
        ("a.doc", docx("words"), "word"),
        ("noname", xlsx(), "sheet"),
        ("a.docx", pack({**unpack(docx("words")), "word/embeddings/a.xlsx": xlsx()}), "word"),
        ("a.md", b"%PDF- is how a PDF begins", "text"),
        ("a.eml", b"<html> in a message", "mail"),
    ],
)
def test_the_content_decides_when_the_suffix_is_wrong(name: str, content: bytes, kind: str) -> None:
    assert find_kind(name, "", content) == kind
    if kind not in {"text", "mail"}:
        assert read(content, name).text.strip()


BILLION = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
ENCRYPTED = '<m:manifest xmlns:m="urn:x"><m:file-entry><m:encryption-data/></m:file-entry></m:manifest>'
DRM = '<e><CipherReference URI="book/one.xhtml"/></e>'
PACKAGE = OLE + bytes(500) + "EncryptedPackage".encode("utf-16-le")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pptx", b"", "is damaged, or not a .pptx file"),
        ("a.pptx", pptx()[:-40], "is damaged, or not a .pptx file"),
        ("a.pptx", pack({"ppt/presentation.xml": "<no"}), "is damaged, or cannot be read as .pptx"),
        ("a.xlsx", b"", "is damaged, or not a .xlsx file"),
        ("a.xls", OLE + bytes(504), "is damaged, or cannot be read as .xlsx"),
        ("a.xlsx", xlsx()[:-40], "is damaged, or not a .xlsx file"),
        ("a.xlsx", pack({"xl/workbook.xml": "<no"}), "is damaged, or cannot be read as .xlsx"),
        ("a.xlsx", b"just words", "is damaged, or not a .xlsx file"),
        ("a.odt", b"", "is damaged, or not a .odt file"),
        ("a.odt", pack({"mimetype": "x"}), "is damaged, or cannot be read as .odt"),
        ("a.epub", epub()[:-40], "is damaged, or not a .epub file"),
        ("a.epub", pack({"META-INF/container.xml": "<a/>"}), "is damaged, or cannot be read as .epub"),
        ("a.rtf", b"just words", "is damaged, or not a .rtf file"),
        ("a.rtf", b"", "is damaged, or not a .rtf file"),
        ("a.eml", b"", "is damaged, or not an e-mail"),
        ("a.eml", b"just words", "is damaged, or not an e-mail"),
        ("a.mbox", b"just words", "is damaged, or not a .mbox file"),
        ("a.pptx", PACKAGE, "is encrypted"),
        ("a.docx", PACKAGE, "is encrypted"),
        ("a.doc", OLE + bytes(504), "is encrypted, or an old .doc, .ppt or .xls: save it in a newer format"),
        ("a.xlsx", PACKAGE, "is encrypted"),
        ("a.odt", opendocument("text", "", manifest=ENCRYPTED), "is encrypted"),
        ("a.epub", epub(**{"META-INF/encryption.xml": DRM}), "is encrypted"),
        ("a.pptx", declare_size(pptx(), "ppt/slides/slide1.xml", 64_000_000), "unpacks to more than 64,000,000 bytes"),
        ("a.odt", declare_size(odt(), "content.xml", 64_000_000), "unpacks to more than 64,000,000 bytes"),
        ("a.odt", declare_size(odt(), "content.xml", 6), "is damaged, or cannot be read as .odt"),
        ("a.epub", declare_size(epub(), "book/two.xhtml", 64_000_000), "unpacks to more than 64,000,000 bytes"),
        ("a.xlsx", declare_size(xlsx(), "xl/styles.xml", 256_000_000), "unpacks to more than 256,000,000 bytes"),
        (
            "a.odt",
            pack({**unpack(odt()), "content.xml": f"{BILLION}<a>&b;</a>"}),
            "is damaged, or cannot be read as .odt",
        ),
        ("a.pptx", pack({"ppt/presentation.xml": f"{BILLION}<a>&b;</a>"}), "is damaged, or cannot be read as .pptx"),
        ("a.odt", odt("<text:span>" * 50_000 + "</text:span>" * 50_000), "is damaged, or cannot be read as .odt"),
        (
            "a.zip",
            pack({"inner.zip": pack({"a.docx": docx("words")})}),
            "a compressed file; unpack it to add the documents in it",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument) as raised:
        read(content, name)
    assert str(raised.value) == reason


def test_macros_of_office_files_are_not_read() -> None:
    macros = {"vbaProject.bin": b"Sub AutoOpen() secret words"}
    for name, content, folder in (
        ("a.docm", docx("words"), "word"),
        ("a.pptm", pptx(), "ppt"),
        ("a.xlsm", xlsx(), "xl"),
    ):
        parts = unpack(content) | {f"{folder}/{part}": macro for part, macro in macros.items()}
        reading = read(pack(parts), name)
        assert reading.text == read(content, name).text
        assert "secret" not in reading.text


def test_markup_in_the_text_of_a_document_is_text() -> None:
    content = odt("<text:p>&lt;script&gt;alert(1)&lt;/script&gt; # no heading</text:p>")
    assert read(content, "a.odt").text == "<script>alert(1)</script> # no heading"
