"""Small real files: Office, OpenDocument, EPUB, RTF and e-mail."""

import io
import zipfile
from collections.abc import Mapping
from email.message import EmailMessage

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
LINKS = "http://schemas.openxmlformats.org/package/2006/relationships"
PROPERTIES = (
    '<p:coreProperties xmlns:p="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Winter plan</dc:title></p:coreProperties>'
)
OPEN = "urn:oasis:names:tc:opendocument:xmlns"
OPEN_NAMES = (
    f'xmlns:office="{OPEN}:office:1.0" xmlns:text="{OPEN}:text:1.0" xmlns:table="{OPEN}:table:1.0" '
    f'xmlns:draw="{OPEN}:drawing:1.0" xmlns:presentation="{OPEN}:presentation:1.0"'
)
RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title Winter plan}}"
    rb"\f0 Gr\'f6\'dfe matters.\par We deploy on \b Mondays\b0 .\par}"
)
OLE = bytes.fromhex("d0cf11e0a1b11ae1")


def pack(parts: Mapping[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(
                name, content, compress_type=zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            )
    return packed.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def declare_size(content: bytes, name: str, size: int) -> bytes:
    """Return the archive with a false unpacked size of one part in its directory."""
    at = content.rindex(name.encode()) - 46
    assert content[at : at + 4] == b"PK\1\2"
    return content[: at + 24] + size.to_bytes(4, "little") + content[at + 28 :]


def link(*targets: tuple[str, str]) -> str:
    links = "".join(
        f'<Relationship Id="r{number}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets)
    )
    return f'<Relationships xmlns="{LINKS}">{links}</Relationships>'


def shape(*texts: str, kind: str = "") -> str:
    paragraphs = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in texts)
    placeholder = f'<p:ph type="{kind}"/>' if kind else ""
    return f"<p:sp><p:nvSpPr><p:nvPr>{placeholder}</p:nvPr></p:nvSpPr><p:txBody>{paragraphs}</p:txBody></p:sp>"


def pptx() -> bytes:
    names = (
        'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
        f'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="{OFFICE}"'
    )
    cell = "<a:tc><a:txBody><a:p><a:r><a:t>{}</a:t></a:r></a:p></a:txBody></a:tc>"
    rows = "".join(f"<a:tr>{''.join(map(cell.format, row))}</a:tr>" for row in (("Street", "Cost"), ("Main", "40")))
    table = f"<p:graphicFrame><p:nvGraphicFramePr><p:nvPr/></p:nvGraphicFramePr><a:tbl>{rows}</a:tbl></p:graphicFrame>"
    return pack(
        {
            "docProps/core.xml": PROPERTIES,
            "ppt/presentation.xml": f'<p:presentation {names}><p:sldIdLst><p:sldId r:id="r1"/><p:sldId r:id="r0"/>'
            "</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": link(
                ("slide", "slides/slide1.xml"), ("slide", "/ppt/slides/slide2.xml")
            ),
            "ppt/slides/slide1.xml": f"<p:sld {names}>{shape('7', kind='sldNum')}{table}{shape('A free text')}</p:sld>",
            "ppt/slides/slide2.xml": f"<p:sld {names}>{shape('Salt the steps', 'Close bridges', kind='body')}"
            f"{shape('Roads &amp; bridges', kind='title')}</p:sld>",
            "ppt/slides/_rels/slide2.xml.rels": link(("notesSlide", "../notesSlides/notesSlide1.xml")),
            "ppt/notesSlides/notesSlide1.xml": f"<p:notes {names}>{shape('Mention costs.', kind='body')}</p:notes>",
        }
    )


def xlsx(rows: str | None = None) -> bytes:
    """Return a workbook with one sheet. Style 1 is a date."""
    names = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{OFFICE}"'
    text = '<c r="{}" t="inlineStr"><is><t>{}</t></is></c>'.format
    if rows is None:
        rows = (
            f'<row r="1">{text("A1", "Report of 2025")}</row>'
            f'<row r="3">{text("A3", "day")}{text("B3", "item")}{text("C3", "price")}</row>'
            f'<row r="4"><c r="A4" s="1"><v>45717</v></c>{text("B4", "salt|grit")}<c r="C4"><v>3.5</v></c></row>'
            '<row r="5"><c r="A5" s="1"><v>45718.5</v></c><c r="B5" t="b"><v>1</v></c>'
            '<c r="C5"><f>C4*2</f><v>7</v></c></row>'
        )
    return pack(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
            "_rels/.rels": link(("officeDocument", "xl/workbook.xml")),
            "docProps/core.xml": PROPERTIES,
            "xl/workbook.xml": f'<workbook {names}><sheets><sheet name="Sales" sheetId="1" r:id="r0"/></sheets>'
            "</workbook>",
            "xl/_rels/workbook.xml.rels": link(("worksheet", "worksheets/sheet1.xml"), ("styles", "styles.xml")),
            "xl/styles.xml": f'<styleSheet {names}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
            "</styleSheet>",
            "xl/worksheets/sheet1.xml": f"<worksheet {names}><sheetData>{rows}</sheetData></worksheet>",
        }
    )


def opendocument(kind: str, body: str, **parts: str) -> bytes:
    return pack(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}",
            "content.xml": f"<office:document-content {OPEN_NAMES}><office:body><office:{kind}>{body}"
            f"</office:{kind}></office:body></office:document-content>",
            "meta.xml": f"<office:document-meta {OPEN_NAMES}>{PROPERTIES}</office:document-meta>",
            "META-INF/manifest.xml": parts.get("manifest", "<manifest/>"),
        }
    )


def odt(body: str = "") -> bytes:
    table = "".join(
        f"<table:table-row>{''.join(f'<table:table-cell><text:p>{cell}</text:p></table:table-cell>' for cell in row)}"
        "</table:table-row>"
        for row in (("Street", "Cost"), ("Main", "40"))
    )
    return opendocument(
        "text",
        body
        or '<text:h text:outline-level="2">Roads</text:h><text:p>Größe<text:s/>matters'
        "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>in &lt;cm&gt;</text:p>"
        "</text:note-body></text:note>.</text:p><text:list><text:list-item><text:p>Salt</text:p></text:list-item><text:list-item>"
        f"<text:p>Grit</text:p></text:list-item></text:list><table:table>{table}</table:table>",
    )


def odp() -> bytes:
    return opendocument(
        "presentation",
        '<draw:page draw:name="page1"><draw:frame presentation:class="title"><draw:text-box><text:p>Roads</text:p>'
        "</draw:text-box></draw:frame><draw:frame><draw:text-box><text:p>Salt the steps</text:p></draw:text-box>"
        "</draw:frame><presentation:notes><text:p>Mention costs.</text:p></presentation:notes></draw:page>",
    )


def ods() -> bytes:
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'.format
    rows = "".join(f"<table:table-row>{cell(a)}{cell(b)}</table:table-row>" for a, b in (("a", "b"), ("1", "2")))
    return opendocument("spreadsheet", f'<table:table table:name="Numbers">{rows}</table:table>')


def epub(**parts: str) -> bytes:
    page = "<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title>{}</title></head><body>{}</body></html>"
    items = "".join(
        f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml"{more}/>'
        for name, more in (("nav", ' properties="nav"'), ("two", ""), ("one", ""))
    )
    return pack(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
            '<rootfile full-path="book/content.opf"/></rootfiles></container>',
            "book/content.opf": '<package xmlns="http://www.idpf.org/2007/opf"><metadata '
            'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Winter plan</dc:title><dc:language>en</dc:language>'
            f"<dc:creator>Ada</dc:creator></metadata><manifest>{items}</manifest><spine>"
            '<itemref idref="nav"/><itemref idref="one"/><itemref idref="two"/></spine></package>',
            "book/nav.xhtml": page.format("Contents", "<ol><li>Roads</li></ol>"),
            "book/one.xhtml": page.format("x", "<h1>Roads</h1><p>Salt the steps.</p>"),
            "book/two.xhtml": page.format("Bridges", "<p>Close them.</p>"),
            **parts,
        }
    )


def eml(*, is_page: bool = False, subject: str = "Größe of the plan") -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ada <ada@a.example>", "bob@b.example", subject
    message["Date"] = "Sat, 01 Mar 2025 10:00:00 +0100"
    if is_page:
        message.set_content("<p>We deploy on <b>Mondays</b>.</p>", subtype="html")
    else:
        message.set_content("We deploy on Mondays — überall.", cte="quoted-printable")
        message.add_alternative("<p>unread page</p>", subtype="html")
    message.add_attachment(b"%PDF-unread", maintype="application", subtype="pdf", filename="plan.pdf")
    return bytes(message)
