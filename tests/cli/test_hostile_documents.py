"""`pair sync` and `pair ingest` of documents that are made to exhaust their reader."""

from contract.test_document_process import inflated_pdf
from contract.test_documents import docx
from support.command import Workplace, write_files
from support.office_files import OLE, RTF, declare_size, eml, epub, odp, ods, odt, pptx, xlsx

SOUND: dict[str, str | bytes] = {
    "book.epub": epub(), "inbox.mbox": b"From a\n" + eml(), "letter.eml": eml(), "macros.xlsm": xlsx(),
    "numbers.ods": ods(), "plan.odt": odt(), "plan.rtf": RTF, "slides.odp": odp(), "slides.pptx": pptx(),
    "tool.go": b"package tool\n\nfunc Deploy(day string) error {\n\treturn nil\n}\n",
    "wrong.pptx": docx("We deploy on Mondays"),
}  # fmt: skip
BROKEN = {
    "bomb.odt": (declare_size(odt(), "content.xml", 64_000_000), "unpacks to more than 64,000,000 bytes"),
    "cut.pptx": (pptx()[:-40], "is damaged, or not a .pptx file"),
    "empty.xlsx": (b"", "is damaged, or not a .xlsx file"),
    "secret.xlsx": (OLE + "EncryptedPackage".encode("utf-16-le"), "is encrypted"),
}


def test_a_bomb_among_documents_is_skipped_with_the_reason_and_the_others_are_synced(workplace: Workplace) -> None:
    write_files(workplace.target, {"bomb.pdf": inflated_pdf(), "guide.docx": docx("We deploy on Mondays")})
    report = workplace.pair("sync", "--json").json
    assert report["added"] == 1
    assert report["stored"] == 1
    ((path, reason),) = [tuple(skipped.values()) for skipped in report["skipped"]]
    assert path == "bomb.pdf"
    assert reason.startswith("takes more than 1,02")
    assert reason.endswith(" bytes of memory to convert")
    assert "guide.docx" in workplace.pair("search", "deploy").stdout
    assert workplace.pair("sync", "--json").json["bytes_read"] == 0, "the bomb is not opened again"


def test_a_bomb_among_documents_is_left_out_of_an_ingest(workplace: Workplace) -> None:
    write_files(workplace.folder / "papers", {"bomb.pdf": inflated_pdf(), "guide.docx": docx("We deploy on Mondays")})
    workplace.pair("ingest", "papers").succeeds().says("Skipped papers/bomb.pdf: ", "1 added")


def test_each_bad_file_is_reported_once_and_tried_again_when_it_changes(workplace: Workplace) -> None:
    write_files(workplace.target, SOUND | {name: content for name, (content, _) in BROKEN.items()})
    first = workplace.pair("sync", "--json").json
    assert (first["added"], first["stored"], first["failed"]) == (len(SOUND), len(SOUND), 0)
    assert [tuple(skipped.values()) for skipped in first["skipped"]] == [
        (name, reason) for name, (_, reason) in BROKEN.items()
    ]
    write_files(workplace.target, {"cut.pptx": pptx(), "empty.xlsx": BROKEN["secret.xlsx"][0]})
    again = workplace.pair("sync").succeeds()
    again.says("Skipped: empty.xlsx: is encrypted")
    assert "secret.xlsx" not in again.stdout + again.stderr
    assert "cut.pptx" in workplace.pair("search", "salt the steps").stdout
    (hit, *_) = workplace.pair("search", "Deploy day string", "--json").json["results"]
    assert hit["id"] == "tool.go"
