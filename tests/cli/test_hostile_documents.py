"""`pair sync` and `pair ingest` over documents that are made to exhaust their reader."""

from contract.test_document_process import inflated_pdf
from contract.test_documents import docx
from support.command import Workplace, write_files


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
    workplace.pair("ingest", "papers").succeeds().says("skipped: papers/bomb.pdf: ", "1 added")
