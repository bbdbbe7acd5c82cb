"""A malformed export is read, or refused with a code."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pair.engine.backup.export import open_export
from support.damage import bounded, damaged_json, refusal, tried

HEADER: dict[str, Any] = {
    "format": "pair-documents",
    "format_version": 1,
    "kb_id": "default",
    "manifest_version": 3,
    "embedder": "ngram-2-v1",
    "dimension": 2,
    "hashed_as": "",
    "documents": 1,
    "chunks": 1,
    "vectors": True,
}
DOCUMENT: dict[str, Any] = {
    "id": "a",
    "title": "A",
    "url": "",
    "owner": "ingest",
    "metadata": {"year": 1999, "tags": ["x"]},
    "content_hash": "0a" * 16,
    "text": "Some text.",
    "chunks": [{"start": 0, "end": 10, "context": "A > B", "vector": "AACAPwAAAEA="}],
    "graph": {"mentions": [["Ada", 1.5, 0]], "edges": [["Ada", "Turin", "in", 0.5, 0]]},
}


def sealed(lines: list[bytes]) -> bytes:
    """Return the lines with a valid trailer, so that only the lines are wrong."""
    content = b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines)
    end = {"documents": len(lines) - 1, "sha256": hashlib.sha256(content).hexdigest()}
    return content + json.dumps({"end": end}).encode() + b"\n"


def read(path: Path) -> None:
    lines = open_export(path)
    lines.verify()
    for document in lines.documents():
        assert document.vectors.shape == (len(document.chunks), lines.header.dimension) or not lines.header.has_vectors


def test_what_is_right_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(sealed([json.dumps(HEADER).encode(), json.dumps(DOCUMENT).encode()]))
    assert refusal(lambda: read(tmp_path / "file")) is None


@tried(quick=150, nightly=5000)
@given(header=st.just(None) | damaged_json(HEADER), document=st.just(None) | damaged_json(DOCUMENT))
def test_what_is_wrong_is_refused(tmp_path_factory: Any, header: bytes | None, document: bytes | None) -> None:
    path = tmp_path_factory.getbasetemp() / "export.jsonl"
    lines = [header or json.dumps(HEADER).encode(), document or json.dumps(DOCUMENT).encode()]
    path.write_bytes(sealed(lines))
    with bounded():
        fault = refusal(lambda: read(path))
    assert fault is None or fault.code in {"E224", "E225"}
