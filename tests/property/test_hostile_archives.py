"""Archives with false directories: unpacked correctly or refused with a code, from a file and over ranges.

`HYPOTHESIS_PROFILE=nightly` tries hundreds of times as many.
"""

import hashlib
import io
import json
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.packages import archive, package
from pair.packages.package import IndexSelection
from pair.packages.partial_download import ChangedError, Supplies, UnfitError, assemble, find_missing
from pair.packages.rules import SourcesSettings
from support.damage import bounded, refusal, tried

TEXTS = {f"{name}.md": f"# {name}\n\n".encode() + bytes(range(256)) * 4 for name in ("almanacs", "calendars", "tides")}
MARKS = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\1\0\20\0")
NUMBERS = (0, 1, 7, 0x7FFF, 0xFFFE, 0xFFFF, 2**31, 2**32 - 2, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
POLICY = SourcesSettings()


def listed(sha256_of: dict[str, bytes]) -> bytes:
    files = {name: {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()} for name, text in sha256_of.items()}
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    checksum = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    index = {"kb_id": "clocks", "manifest_version": 1, "embedder": "none", "dimension": 8}
    counts = {"documents": 3, "chunks": 3, "shards": 1}
    value = {"schema_version": 1, "name": "clocks", "version": "1.0.0", "content_checksum": checksum, "files": files}
    return json.dumps({**value, "index": {**index, **counts}}).encode()


MANIFEST = listed(TEXTS)


def packed(*, is_large: bool) -> bytes:
    """Return an archive. `is_large`: with the fields of archives above 4 GB."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        for name, content in {"manifest.json": MANIFEST, **TEXTS}.items():
            with opened.open(zipfile.ZipInfo(name), "w", force_zip64=is_large) as entry:
                entry.write(content)
    return _with_large_fields(made.getvalue()) if is_large else made.getvalue()


def _with_large_fields(content: bytes) -> bytes:
    """Return the archive with ZIP64 sizes and offsets in its directory, and a ZIP64 end record."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        start, entries = opened.start_dir, opened.infolist()
    directory = b""
    for entry in entries:
        extra = struct.pack("<2H3Q", 1, 24, entry.file_size, entry.compress_size, entry.header_offset)
        name = entry.filename.encode()
        unset = 0xFFFFFFFF
        fields = (45, 45, 0, 0, 0, 33, entry.CRC, unset, unset, len(name), len(extra), 0, 0, 0, 0, unset)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields) + name + extra
    count, size = len(entries), len(directory)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, start + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return content[:start] + directory + end64 + locator + end


WHOLE = {is_large: packed(is_large=is_large) for is_large in (False, True)}


@st.composite
def lying(draw: st.DrawFn) -> bytes:
    """Draw an archive with changed, removed or inserted bytes in its headers, its directory or its end."""
    content = bytearray(WHOLE[draw(st.booleans())])
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as opened:
        places = [opened.start_dir, *(entry.header_offset for entry in opened.infolist())]
    for _ in range(draw(st.integers(1, 3))):
        near = draw(st.sampled_from([*places, places[0], places[0], len(content) - 22, len(content) - 98]))
        at = min(max(0, near + draw(st.integers(0, 120))), max(0, len(content) - 1))
        match draw(st.sampled_from(["number", "mark", "cut", "out", "in"])):
            case "number":
                form = draw(st.sampled_from(["<H", "<L", "<Q"]))
                number = draw(st.sampled_from(NUMBERS)) % 256 ** struct.calcsize(form)
                content[at : at + struct.calcsize(form)] = struct.pack(form, number)
            case "mark":
                content[at : at + 4] = draw(st.sampled_from(MARKS))
            case "cut":
                del content[at:]
            case "out":
                del content[at : at + draw(st.integers(1, 40))]
            case _:
                content[at:at] = draw(st.binary(min_size=1, max_size=40))
    return bytes(content)


@tried(300, 30_000)
@given(lying())
def test_an_archive_with_false_headers_is_unpacked_correctly_or_refused(content: bytes) -> None:
    with bounded(), tempfile.TemporaryDirectory() as name:
        path, folder = Path(name) / "kb.zip", Path(name) / "kb"
        path.write_bytes(content)
        refused = refusal(lambda: archive.unpack(path, folder, POLICY))
        assert refused is None or refused.code == "E009"
        assert folder.exists() == (refused is None)
        assert all((folder / each).read_bytes() == TEXTS[each] for each in TEXTS if (folder / each).exists())
        for look in (
            lambda: archive.read_entry(path, "manifest.json", POLICY),
            lambda: archive.hash_entries(path, POLICY),
            lambda: archive.refuse_unsafe(path, POLICY),
        ):
            told = refusal(look)
            assert told is None or told.code == "E009"


class Elsewhere:
    """An archive that is read in parts. A range beyond its end means that it was replaced."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size_bytes = len(content)

    def read(self, start: int, length: int) -> bytes:
        if not 0 <= start <= start + length <= self.size_bytes:
            raise ChangedError("kb.zip")
        return self._content[start : start + length]

    def copy(self, start: int, length: int, path: Path) -> None:
        path.write_bytes(self.read(start, length))


@tried(300, 30_000)
@given(lying())
def test_parts_of_an_archive_that_lies_are_what_the_manifest_says_or_nothing(content: bytes) -> None:
    manifest = package.parse_manifest(MANIFEST)
    assert manifest is not None
    supplies = Supplies(lambda sha256: None, IndexSelection(is_wanted=False))
    missing = find_missing(manifest, supplies, POLICY)
    assert missing is not None
    with bounded(), tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kb"
        try:
            assemble(MANIFEST, manifest, missing, Elsewhere(content), folder, supplies)
        except (UnfitError, ChangedError):
            return
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"manifest.json": MANIFEST, **TEXTS}


@pytest.mark.parametrize("is_large", [False, True])
def test_an_unmodified_archive_is_unpacked_and_assembled(is_large: bool, tmp_path: Path) -> None:
    (tmp_path / "kb.zip").write_bytes(WHOLE[is_large])
    assert archive.unpack(tmp_path / "kb.zip", tmp_path / "kb", POLICY).keys() == {"manifest.json", *TEXTS}
    manifest = package.parse_manifest(MANIFEST)
    assert manifest is not None
    supplies = Supplies(lambda sha256: None, IndexSelection())
    parts = assemble(MANIFEST, manifest, [*TEXTS], Elsewhere(WHOLE[is_large]), tmp_path / "parts", supplies)
    assert parts.keys() == TEXTS.keys()
