"""Shard files with false offsets and sizes are refused when they are opened."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from pair import errors
from pair.engine.format.array_file import MOST_VALUES, ArrayFile, load_json, write_arrays
from pair.engine.format.columns import CHUNK_TYPE, DOC_TYPE
from pair.engine.format.manifest import FileRole
from pair.engine.format.shard import OPENERS, SearchFile, open_search
from pair.engine.format.vectors import ANN_MIN_ROWS, Vectors, compute_squares, encode
from pair.values import Document
from support.engine_parts import Ground, random_vectors
from support.hostile_shards import change_header, change_section, change_shard, make_ground, read_manifest

HUGE = struct.pack("<I", 0xFFFFFFFF)


def last_is_huge(section: bytes) -> bytes:
    return section[:-4] + HUGE


def first_is_huge(section: bytes) -> bytes:
    return HUGE + section[4:]


def not_utf8(section: bytes) -> bytes:
    return b"\xff" + section[1:]


def at(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda section: section[:place] + value + section[place + len(value) :]


SECTIONS: list[tuple[FileRole, str, Callable[[bytes], bytes]]] = [
    ("graph", "row_starts", last_is_huge),
    ("graph", "entity_starts", last_is_huge),
    ("graph", "entity_starts", at(4, HUGE)),
    ("graph", "row_entities", first_is_huge),
    ("graph", "entity_rows", first_is_huge),
    ("graph", "edges", first_is_huge),
    ("graph", "edges", at(12, HUGE)),
    ("graph", "row_weights", at(0, b"\0\0\xc0\x7f")),
    ("graph", "name_starts", at(8, HUGE * 2)),
    ("graph", "names", not_utf8),
    ("graph", "kinds", lambda section: b"[1]".ljust(len(section))),
    ("keywords", "about", at(8, HUGE * 2)),
    ("keywords", "about", at(16, HUGE)),
    ("keywords", "starts", last_is_huge),
    ("keywords", "starts", at(4, HUGE)),
    ("keywords", "rows", at(0, b"\xff")),
    ("keywords", "word_starts", at(4, HUGE)),
    ("keywords", "words", not_utf8),
    ("keywords", "form_terms", first_is_huge),
    ("ids", "lines", at(16, HUGE)),
    ("ids", "lines", at(20, HUGE)),
    ("ids", "lines", at(24, HUGE * 2)),
    ("ids", "lines", at(32, HUGE)),
    ("ids", "order", first_is_huge),
    ("ids", "order", lambda section: bytes(len(section))),
    ("ids", "names", not_utf8),
    ("ids", "owners", lambda section: b"{}".ljust(len(section))),
    ("search", "docs", at(0, HUGE)),
    ("search", "docs", at(8, HUGE)),
    ("search", "docs", at(12, HUGE)),
    ("search", "docs", at(16, HUGE)),
    ("search", "chunks", first_is_huge),
    ("search", "chunks", at(4, HUGE)),
    ("search", "chunks", at(8, HUGE)),
    ("search", "chunks", at(16, HUGE)),
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("shard"))


def refuse(ground: Ground, tmp_path: Path, role: FileRole, content: bytes) -> errors.DataError:
    [ref] = read_manifest(ground).shards
    path = tmp_path / "changed"
    path.write_bytes(content)
    with pytest.raises(errors.DataError) as caught:
        OPENERS[role](ref, path)
    assert caught.value.code == "E207"
    return caught.value


def content_of(ground: Ground, role: FileRole) -> bytes:
    [ref] = read_manifest(ground).shards
    return (ground.store / ref.key(role)).read_bytes()


@pytest.mark.parametrize(
    ("role", "section", "change"), SECTIONS, ids=[f"{role}-{name}-{n}" for n, (role, name, _) in enumerate(SECTIONS)]
)
def test_a_damaged_section_is_refused(
    ground: Ground, tmp_path: Path, role: FileRole, section: str, change: Callable[[bytes], bytes]
) -> None:
    refuse(ground, tmp_path, role, change_section(content_of(ground, role), section, change))


@pytest.mark.parametrize("role", ["search", "ids", "keywords", "graph"])
@pytest.mark.parametrize(
    "lie",
    [
        {"offset": -64},
        {"offset": 2**62},
        {"size": 2**62},
        {"size": -1},
        {"shape": [2**40]},
        {"shape": []},
        {"shape": None},
        {"type": [["", "|O"]]},
        {"type": [["", "|V0"]]},
        {"type": "x"},
    ],
    ids=str,
)
def test_a_header_that_misstates_a_section_is_refused(
    ground: Ground, tmp_path: Path, role: FileRole, lie: dict[str, Any]
) -> None:
    first = {"search": "docs", "ids": "lines", "keywords": "keys", "graph": "hashes"}[role]
    refuse(ground, tmp_path, role, change_header(content_of(ground, role), lambda header: header[first].update(lie)))


@pytest.mark.parametrize("role", ["rows", "search", "ids", "keywords", "graph"])
def test_a_file_that_was_cut_off_is_refused_before_it_is_mapped(ground: Ground, tmp_path: Path, role: FileRole) -> None:
    content = content_of(ground, role)
    for size in (0, 7, 8, 16, 64, len(content) // (8 if role == "rows" else 2)):
        refuse(ground, tmp_path, role, content[:size])


@pytest.mark.parametrize("role", ["rows", "search", "ids", "keywords", "graph"])
def test_a_file_of_another_shard_is_refused(ground: Ground, tmp_path: Path, role: FileRole) -> None:
    other = Ground(tmp_path / "other", graph="text")
    with other.open() as kb:
        kb.upsert([Document("alone", "Anna Berg met Karl Stein.")])
    refuse(ground, tmp_path, role, content_of(other, role))


def test_text_that_is_not_utf8_is_reported_as_damage_by_every_reader(tmp_path: Path) -> None:
    ground = make_ground(tmp_path / "kb")
    texts = content_of(ground, "search")
    ref = change_shard(ground, "search", lambda _: texts.replace(b"Text number 3", b"Text\xffnumber 3"))
    search = open_search(ref, ground.store / ref.key("search"))
    doc = next(number for number in range(25) if search.header(number).id == "doc-0003")
    with pytest.raises(errors.DataError, match="the stored data is damaged"):
        search.text(doc)
    with ground.open() as kb:
        for act in (lambda: kb.document("doc-0003"), lambda: kb.backup.export(tmp_path / "out")):
            with pytest.raises(errors.DataError) as caught:
                act()
            assert caught.value.code == "E207"


def write_search(path: Path, codes: npt.NDArray[np.uint8] | None) -> Vectors:
    """Write a search file of documents without text, with these codes or the right ones."""
    vectors = random_vectors(ANN_MIN_ROWS)
    made = encode(vectors)
    assert made is not None
    docs, chunks = np.zeros(len(vectors), DOC_TYPE), np.zeros(len(vectors), CHUNK_TYPE)
    docs["first_chunk"] = chunks["doc"] = np.arange(len(vectors))
    sections = {"docs": docs, "chunks": chunks, "vectors": vectors, "squares": compute_squares(vectors)}
    sections |= {"codes": made.index if codes is None else codes, "code_error": made.error}
    write_arrays(path, {**sections, "texts": [b""]})
    return vectors


def test_codes_of_the_wrong_kind_are_refused_when_their_file_is_opened(tmp_path: Path) -> None:
    vectors = write_search(tmp_path / "sound.search", None)
    index = SearchFile(ArrayFile.open(tmp_path / "sound.search"), "a/b").index
    assert 3 in index.estimate(vectors[3], 1, allowed=None, exact=False, within=None).rows
    flat = faiss.IndexFlatL2(vectors.shape[1])
    flat.add(vectors)
    write_search(tmp_path / "hostile.search", faiss.serialize_index(flat))
    with pytest.raises(ValueError, match="do not match"):
        SearchFile(ArrayFile.open(tmp_path / "hostile.search"), "a/b")


@pytest.mark.parametrize(
    "content", [b"[" + b"[]," * MOST_VALUES + b"0]", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b""]
)
def test_json_that_takes_more_memory_than_it_may_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        load_json(content)


def test_commas_within_a_text_are_not_values() -> None:
    text = ',[{\\"' * MOST_VALUES
    assert load_json(f'{{"text": "{text}"}}'.encode()) == {"text": ',[{"' * MOST_VALUES}
