"""JSON lines as documents, and invalid lines."""

from pathlib import Path

import pytest

from pair import errors
from pair.kb.ingest import read_documents

WHOLE = b'{"id": "a", "text": "One."}\n'


@pytest.mark.parametrize("line", [b"{", b"[" * 100_000, b"\xff", b"9" * 5000], ids=["torn", "deep", "bytes", "number"])
def test_a_line_that_is_not_json_is_reported_with_its_place(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_bytes(WHOLE + line + b"\n")
    documents = read_documents([str(path)], lambda _path, _reason: None)
    assert next(documents).id == "a"
    with pytest.raises(errors.UsageError) as raised:
        next(documents)
    assert raised.value.code == "E213"
    assert f"{path}:2" in raised.value.message
