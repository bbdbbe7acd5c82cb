"""Small real documents, valid and broken, and the text that is read from them."""

import bz2
import gzip
import io
import lzma
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pypdfium2
import pytest

from pair.reading import reader as readers
from pair.reading.contract import Reader, Reading, UnreadableDocument
from support.page_server import PageServer, html

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


class ReaderHere:
    """A reader that reads in this process, without limits."""

    def read(self, content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Reading:
        return readers.read(content, name, content_type, charset)


@pytest.fixture(scope="module")
def loader() -> Reader:
    return ReaderHere()


@pytest.fixture
def connections() -> Iterator[list[object]]:
    """Yield the list of addresses that this process tries to resolve or to contact."""
    tried: list[object] = []
    watching = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in {"socket.connect", "socket.getaddrinfo", "subprocess.Popen"}:
            tried.append((event, arguments))

    sys.addaudithook(hook)
    yield tried
    watching.clear()


def docx(*paragraphs: str, relationships: str = "") -> bytes:
    """Return the four required parts of a Word document."""
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>in a table</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/word/document.xml" ContentType='
        '"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
        f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f"{relationships}</Relationships>",
        "word/document.xml": f'<w:document xmlns:w="{WORD}" xmlns:r="{OFFICE}" '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
        'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
        'xmlns:pic="http://schemas.openxmlformats.org/drawingml/2006/picture">'
        f"<w:body>{body}{table}</w:body></w:document>",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{text}')
    return packed.getvalue()


def linked_picture(url: str) -> tuple[str, str]:
    """Return a picture at an external address, and its relationship."""
    drawing = (
        '</w:t></w:r><w:r><w:drawing><wp:inline><a:graphic><a:graphicData><pic:pic><pic:blipFill><a:blip r:link="r9"/>'
        "</pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r><w:r><w:t>"
    )
    return drawing, f'<Relationship Id="r9" Type="{OFFICE}/image" Target="{url}" TargetMode="External"/>'


def pdf(text: str, *, trailer: str = "", objects: tuple[bytes, ...] = ()) -> bytes:
    """Return a PDF of one page with one line of text and a valid cross-reference table."""
    stream = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET".encode("latin-1")
    parts = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        *objects,
    )
    written = bytearray(b"%PDF-1.4\n")
    places = []
    for number, part in enumerate(parts, start=1):
        places.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, part)
    table_at = len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n" % (len(parts) + 1)
    written += b"".join(b"%010d 00000 n \n" % place for place in places)
    head = f"<< /Size {len(parts) + 1} /Root 1 0 R {trailer} >>".encode()
    return bytes(written) + b"trailer\n%b\nstartxref\n%d\n%%%%EOF\n" % (head, table_at)


def encrypted_pdf() -> bytes:
    """Return a file whose check value no password matches."""
    secrets = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >>" % (b"11" * 32, b"22" * 32)
    return pdf("hidden words", trailer=f"/Encrypt 6 0 R /ID [<{'33' * 16}> <{'33' * 16}>]", objects=(secrets,))


def scan(*texts: str) -> bytes:
    """Return a PDF whose pages are pictures of these texts."""
    document = pypdfium2.PdfDocument.new()
    for text in texts:
        page = document.new_page(200, 100)
        picture = pypdfium2.PdfImage.new(document)
        picture.set_bitmap(
            pypdfium2.PdfDocument(pdf(text).replace(b"[0 0 99 99]", b"[0 80 250 140]"))[0].render(scale=2)
        )
        picture.set_matrix(pypdfium2.PdfMatrix().scale(200, 60))
        page.insert_obj(picture)
        page.gen_content()
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def filled_form() -> bytes:
    fields = (
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (city) /TU (Your city) /V (M\\374nchen) /Rect [0 0 9 9] >>",
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (empty) /Rect [0 0 9 9] >>",
        b"<< /Type /Annot /Subtype /Widget /FT /Ch /T (colour) /V (red) /Opt [(red) (green)] /Rect [0 0 9 9] >>",
    )
    form = b"/AcroForm << /Fields [6 0 R 7 0 R 8 0 R] >>"
    written = pdf("words", objects=fields).replace(b"/Type /Catalog", b"/Type /Catalog " + form)
    return written.replace(b"/Type /Page ", b"/Type /Page /Annots [6 0 R 7 0 R 8 0 R] ")


def packed_bomb() -> bytes:
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("word/document.xml", "w") as part,
    ):
        for _ in range(300):
            part.write(bytes(1024 * 1024))
    return packed.getvalue()


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def text_of(loader: Reader, path: Path) -> str:
    return loader.read(path.read_bytes(), path.name).text


def reason_of(loader: Reader, path: Path) -> str:
    with pytest.raises(UnreadableDocument) as raised:
        text_of(loader, path)
    return str(raised.value)


def test_a_word_document_is_read_with_its_tables(loader: Reader, tmp_path: Path) -> None:
    text = text_of(loader, put(tmp_path, "guide.docx", docx("Größe matters", "We deploy on Mondays")))
    assert "Größe matters" in text
    assert "We deploy on Mondays" in text
    assert "in a table" in text


def test_a_pdf_is_read(loader: Reader, tmp_path: Path) -> None:
    assert text_of(loader, put(tmp_path, "guide.PDF", pdf("We deploy on Mondays"))).strip() == "We deploy on Mondays"


def test_the_fields_of_a_form_are_read(loader: Reader, tmp_path: Path) -> None:
    text = text_of(loader, put(tmp_path, "form.pdf", filled_form()))
    assert text == "words\n\nYour city: München\ncolour: red"


def test_a_scanned_page_is_recognised(loader: Reader) -> None:
    reading = loader.read(scan("We deploy on Mondays"), "scan.pdf")
    assert reading.text == "We deploy on Mondays"
    assert reading.metadata == {"pages": 1}


def test_a_scan_without_the_extra_says_that_ocr_is_not_built_in(
    loader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    reason = reason_of(loader, put(tmp_path, "scan.pdf", scan("We deploy on Mondays")))
    assert reason == "holds no text, and OCR is not built in: scans need an extra: pip install 'pair-kb[ocr]'"


@pytest.mark.parametrize("name", ["guide.html", "guide.htm"])
@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-1"])
def test_html_is_read_in_the_charset_that_it_names(loader: Reader, tmp_path: Path, name: str, charset: str) -> None:
    page = (
        f'<html><head><meta charset="{charset}"><script>unseen()</script></head><body><h1>Größe</h1>'
        "<ul><li>one</li><li>two</li></ul></body></html>"
    )
    text = text_of(loader, put(tmp_path, name, page.encode(charset)))
    assert text.startswith("# Größe")
    assert "- one\n- two" in text
    assert "unseen" not in text


def test_the_same_document_gives_the_same_text(tmp_path: Path) -> None:
    for name, content in (("a.docx", docx("words")), ("a.pdf", pdf("words")), ("a.html", b"<p>words")):
        path = put(tmp_path, name, content)
        assert len({text_of(ReaderHere(), path) for _ in range(2)}) == 1


PACKED = "a compressed file; unpack it to add the documents in it"
BROKEN: list[tuple[str, Callable[[], bytes], str]] = [
    ("encrypted.pdf", encrypted_pdf, "is encrypted"),
    ("cut.pdf", lambda: pdf("words")[:40], "is damaged, or cannot be read as .pdf"),
    ("nothing.pdf", lambda: b"", "is damaged, or not a PDF file"),
    ("words.pdf", lambda: b"just words", "is damaged, or not a PDF file"),
    ("noise.pdf", lambda: b"%PDF-1.4\n" + bytes(range(256)) * 20, "is damaged, or cannot be read as .pdf"),
    ("blank.pdf", lambda: pdf(""), "holds no text"),
    ("encrypted.docx", lambda: bytes.fromhex("d0cf11e0a1b11ae1") + bytes(504), "is encrypted, or an old .doc"),
    ("cut.docx", lambda: docx("words")[:-60], "is damaged, or not a .docx file"),
    ("nothing.docx", lambda: b"", "is damaged, or not a .docx file"),
    ("words.docx", lambda: b"just words", "is damaged, or not a .docx file"),
    ("bomb.docx", packed_bomb, "unpacks to more than"),
    ("words.txt.gz", lambda: gzip.compress(b"words"), PACKED),
    ("words.tar.xz", lambda: lzma.compress(b"words"), PACKED),
    ("words.bz2", lambda: bz2.compress(b"words"), PACKED),
    ("noise.html", lambda: bytes(range(256)) * 20, "not text in any known charset"),
    ("sound.mp3", lambda: b"ID3\3\0\0\xff\xfb" * 20, "not text in any known charset"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_a_document_that_cannot_be_read_is_refused_with_a_reason(
    loader: Reader, tmp_path: Path, name: str, content: Callable[[], bytes], reason: str
) -> None:
    assert reason_of(loader, put(tmp_path, name, content())).startswith(reason)


def test_a_document_whose_contents_are_damaged_is_refused(loader: Reader, tmp_path: Path) -> None:
    sound = docx("words that are long enough to be packed " * 50)
    at = sound.index(b"word/document.xml") + 60
    assert "damaged" in reason_of(loader, put(tmp_path, "a.docx", sound[:at] + bytes(60) + sound[at + 60 :]))


def test_nothing_is_fetched_for_a_document(loader: Reader, tmp_path: Path, connections: list[object]) -> None:
    with PageServer() as server:
        server.pages["/picture.png"] = html("picture")
        url = server.url("/picture.png")
        page = f'<html><head><base href="{url}"><link rel=stylesheet href="{url}"></head><body><img src="{url}">words'
        drawing, relationship = linked_picture(url)
        text_of(loader, put(tmp_path, "page.html", page.encode()))
        # A Wikipedia or YouTube address would choose a special converter if there were any.
        text_of(loader, put(tmp_path, "video.html", b"<title>YouTube</title>https://www.youtube.com/watch?v=x"))
        pointing = put(tmp_path, "a.docx", docx(f"words {drawing}", relationships=relationship))
        assert "words" in text_of(loader, pointing)
        assert connections == []
        assert server.connections == 0


def test_the_watch_on_connections_sees_one(connections: list[object]) -> None:
    with PageServer() as server, socket.create_connection(("127.0.0.1", server.port)):
        assert len(connections) >= 1
