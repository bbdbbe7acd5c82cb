"""The data of a site, read in Python: every unit, its hash, and its content."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pair import Document, KnowledgeBase
from pair.engine.backup import site
from pair.kb.open import temporary_kb
from pair.settings import Settings
from pair.text.tokenizer import stem

DOCUMENTS = [
    Document("b.md", "# Clocks\n\nThe Network Time Protocol keeps clocks in step. Clocks drift.", title="Clocks"),
    Document("a.md", "# Lunch\n\nLunch is at one. On Fridays there is soup.", title="Lunch"),
    Document(
        "c/zeit.md", "Die Uhren im Rathaus gehen nach, und das ist nicht gut für die Bücher der Stadt.", title="Zeit"
    ),
    Document("d.md", "".join(f"## Part {n}\n\nParagraph {n} of a long page about antennas.\n\n" for n in range(80))),
]


@pytest.fixture
def kb() -> Iterator[KnowledgeBase]:
    with temporary_kb(Settings()) as opened:
        opened.upsert(DOCUMENTS)
        yield opened


class Reader:
    """A reader of the files of a site that works like the browser."""

    def __init__(self, kb: KnowledgeBase) -> None:
        self.files: dict[str, bytes] = {}
        self.data = kb.backup.write_site(self.files.__setitem__)
        self.about = self.data.description
        self.index = json.loads(self.inflate(self.section("index")))

    def section(self, name: str) -> bytes:
        begin, end = self.about["sections"][name]
        return self.files[self.about["start"]["name"]][begin:end]

    def units(self, kind: str) -> list[bytes]:
        directory = self.index[kind]
        content = b"".join(self.files[name] for name, _ in self.about["files"][kind])
        ends = np.cumsum(directory["sizes"]).tolist()
        found = [content[end - size : end] for size, end in zip(directory["sizes"], ends, strict=True)]
        hashes = "".join(hashlib.sha256(unit).hexdigest()[:32] for unit in found)
        assert hashes == directory["hashes"]
        assert sum(directory["sizes"]) == len(content)
        return found

    @staticmethod
    def inflate(content: bytes) -> bytes:
        return zlib.decompress(content, -15)

    def postings(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for unit in map(self.inflate, self.units("terms")):
            numbers = Numbers(unit)
            while numbers.place < len(unit):
                term = numbers.take(numbers.next()).decode()
                count, kind, size = numbers.next(), numbers.next(), numbers.next()
                own = Numbers(numbers.take(size))
                if kind:
                    rows = {row: n for row in range(self.about["rows"]) if (n := own.next())}
                else:
                    place, rows = 0, {}
                    for _ in range(count):
                        place += own.next()
                        rows[place] = own.next()
                assert len(rows) == count
                found[term] = rows
        return found

    def rows(self) -> list[tuple[str, int, list[Any]]]:
        pieces = [piece for unit in self.units("texts") for piece in json.loads(self.inflate(unit))]
        return [
            (piece["id"], piece["chunk"] + place, row) for piece in pieces for place, row in enumerate(piece["rows"])
        ]


class Numbers:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.place]
            self.place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        self.place += size
        return self.content[self.place - size : self.place]


def test_the_manifest_has_the_hash_of_the_start_and_files_are_named_by_their_content(kb: KnowledgeBase) -> None:
    reader = Reader(kb)
    start = reader.about["start"]
    assert hashlib.sha256(reader.files[start["name"]]).hexdigest() == start["sha256"]
    for name, content in reader.files.items():
        assert name.partition("-")[2] == f"{hashlib.sha256(content).hexdigest()[:32]}.bin"
    listed = [name for kind in reader.about["files"].values() for name, _ in kind]
    assert sorted(reader.files) == sorted([start["name"], *listed])


def test_rows_are_in_the_order_of_document_ids_with_their_texts(kb: KnowledgeBase) -> None:
    rows = Reader(kb).rows()
    assert [(document_id, number) for document_id, number, _ in rows] == sorted(
        (document_id, number) for document_id, number, _ in rows
    )
    texts = {document.id: document.text for document in DOCUMENTS}
    assert {document_id for document_id, _, _ in rows} == texts.keys()
    for (document_id, _, (start, end, text, gap)), following in zip(rows, [*rows[1:], None], strict=True):
        assert texts[document_id][start:end] == text
        if gap is not None:
            assert following is not None
            assert texts[document_id][start : following[2][0]] == text + gap


def test_terms_have_the_rows_and_counts_of_the_index(kb: KnowledgeBase) -> None:
    reader = Reader(kb)
    rows, postings = reader.rows(), reader.postings()
    assert list(postings) == sorted(postings)
    clocks = {rows[row][0]: count for row, count in postings[stem("clocks")].items()}
    assert clocks == {"b.md": 6}  # three in the text and heading, and the title counts three times
    assert {rows[row][0] for row in postings["antenna"]} == {"d.md"}
    assert {rows[row][0] for row in postings[stem("Bücher", "de")]} == {"c/zeit.md"}
    lengths = Numbers(reader.inflate(reader.section("lengths")))
    assert sum(lengths.next() for _ in rows) == reader.about["words"]
    assert reader.about["languages"] == ["de", "en"]


def test_vectors_are_those_of_the_rows(kb: KnowledgeBase) -> None:
    reader = Reader(kb)
    rows = reader.about["rows"]
    content = reader.section("vectors")
    factors = np.frombuffer(content, "<f4", rows)
    vectors = factors[:, None] * np.frombuffer(content, "<i2", offset=4 * rows).reshape(rows, -1)
    for query in ("clocks in step", "soup on Fridays"):
        [hit] = kb.search_vector(embed(query), limit=1, exact=True)
        distances = np.linalg.norm(vectors - embed(query), axis=1)
        nearest = int(np.argmin(distances))
        document_id, number, _ = reader.rows()[nearest]
        assert f"{document_id}#{number}" == hit.chunk_id
        assert hit.distance == pytest.approx(distances[nearest], abs=1e-5)


def embed(text: str) -> np.ndarray:
    from pair.ai.wordllama import WordLlamaEmbedder  # noqa: PLC0415

    return np.asarray(WordLlamaEmbedder().embed([text])[0])


def test_frequent_and_rare_tokens_have_their_vectors(kb: KnowledgeBase) -> None:
    from pair.ai.wordllama import read_token_table  # noqa: PLC0415

    reader = Reader(kb)
    words, table = read_token_table()
    assert json.loads(reader.inflate(reader.section("tokens"))) == words
    frequent = reader.index["tokens"]["frequent"]
    held = np.frombuffer(reader.section("token_vectors"), "<f2").reshape(len(frequent), -1)
    assert np.array_equal(held, table[frequent])
    rare = np.setdiff1d(np.arange(len(words)), frequent)
    others = np.frombuffer(b"".join(reader.units("tokens")), "<f2").reshape(len(rare), -1)
    assert np.array_equal(others, table[rare])


def test_the_same_kb_gives_the_same_bytes_and_a_deleted_document_is_left_out(kb: KnowledgeBase) -> None:
    first, again = Reader(kb), Reader(kb)
    assert first.files == again.files
    assert first.about == again.about
    kb.delete(["b.md"])
    after = Reader(kb)
    assert [document_id for document_id, _, _ in after.data.documents] == ["a.md", "c/zeit.md", "d.md"]
    assert stem("clocks") not in after.postings()


def test_an_empty_kb_and_many_rows_have_a_layout(monkeypatch: pytest.MonkeyPatch, kb: KnowledgeBase) -> None:
    kb.delete([document.id for document in DOCUMENTS])
    empty = Reader(kb)
    assert (empty.about["rows"], empty.about["documents"], empty.about["embedder"]) == (0, 0, "")
    assert empty.postings() == {}
    kb.upsert([Document(f"{n}.md", f"Note {n} about clock {n % 7} and antenna {n % 11}.") for n in range(600)])
    monkeypatch.setattr(site, "_EXACT_ROWS", 500)
    many = Reader(kb)
    parts = many.index["vectors"]["parts"]
    assert len(many.section("vectors")) == 256 * 256 * 2 + many.about["rows"] * parts


@pytest.mark.parametrize("language", ["de", "fr", "ru"])
def test_endings_give_the_stem_of_every_word_of_the_kb(kb: KnowledgeBase, language: str) -> None:
    words = ["uhren", "rathaus", "gehen", "clocks", "parking", "hours", "chevaux", "книги"]
    kb.upsert([Document(f"{language}.md", " ".join(words), metadata={"lang": language})])
    endings = Reader(kb).index["endings"][language]
    for word in words:
        removed, added = endings["rules"][site._find_ending(word, endings["rules"])]
        assert endings["words"].get(word, word[: len(word) - removed] + added) == stem(word, language)
