"""The data of a published site: a KB in units that a browser fetches by byte range and checks one by one.

Layout
    start   One file, fetched whole with the first query: the index of all units, row lengths, the tokens of the
            embedder with the vectors of those that are frequent in the KB, and the vectors of all rows.
    terms   Units of sorted terms, each with the rows that hold it and its frequency in them.
    texts   Units of rows: documents with the texts of their chunks.
    words   One unit: all terms and written forms, for prefixes, misspelled words and languages other than English.
    tokens  Units of the vectors of the other tokens.
All but `start` is cut into files. The manifest has the SHA-256 of `start`; the index in it has a hash for each unit.

Invariants
    Rows are numbered in the order of document ids, then chunks: equal scores are in this order in every search.
    Files are named by their content, so two versions of a site never share a name for different bytes.
    The same KB gives the same bytes.
"""

import hashlib
import itertools
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai import wordllama
from pair.engine.format.columns import KeywordRows, concatenate_rows
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.format.vectors import Vectors, quantize
from pair.engine.storage.shard_cache import OpenShard, ShardCache
from pair.engine.write.prepare import split_by_size
from pair.engine.write.writer import live_mask
from pair.text.languages import LANGUAGES, STOP_WORDS
from pair.text.tokenizer import fold, stem

FORMAT = 1
_FILE_BYTES = 4 * 1024 * 1024
"""Maximum size of a file. A host that does not serve ranges sends a whole file for each unit."""
_TERM_UNIT_BYTES = 24 * 1024
_TEXT_UNIT_BYTES = 32 * 1024
"""Sizes of units before compression."""
_TOKENS_IN_UNIT = 32
_FREQUENT_TOKENS = 1024
_SAMPLE_ROWS = 2000
"""Number of rows in the sample that determines the frequent tokens."""
_EXACT_ROWS = 8192
"""Maximum number of rows for which the site stores whole vectors, so that scores equal those of an exact search."""
_CODES_BYTES = 1_700_000
_CODE_PARTS = (32, 16, 8)
"""Sizes of a code in bytes. The largest whose codes together stay below `_CODES_BYTES` is used, else the smallest."""
_HASH_BYTES = 16
_LONGEST_ENDING = 6
_MOST_GAP = 200

PutFile = Callable[[str, bytes], None]
"""A function that stores a file of the site under its name."""


@dataclass(frozen=True)
class SiteData:
    """The part of the site's manifest that describes its data, and the documents in the order of their ids."""

    description: dict[str, Any]
    documents: Sequence[tuple[str, str, str]]
    """Id, title and URL of each document."""


@dataclass(frozen=True, eq=False)
class _Shard:
    ref: ShardRef
    search: SearchFile
    opened: OpenShard
    """A reference prevents eviction."""

    def live_rows(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(live_mask(self.ref)[self.search.doc_of_row])


@dataclass(frozen=True, eq=False)
class _Row:
    """A row of the site, and its place in the KB."""

    id: str
    shard: int
    row: int


@dataclass(eq=False)
class _UnitWriter:
    """A writer that appends units to files of limited size. `put`: stores a complete file."""

    kind: str
    put: PutFile
    sizes: list[int] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    files: list[tuple[str, int]] = field(default_factory=list)
    _begun: bytearray = field(default_factory=bytearray)

    def add(self, content: bytes) -> None:
        if self._begun and len(self._begun) + len(content) > _FILE_BYTES:
            self._finish_file()
        self.sizes.append(len(content))
        self.hashes.append(_hash(content))
        self._begun += content

    def _finish_file(self) -> None:
        if self._begun:
            self.files.append(_put_named(self.kind, bytes(self._begun), self.put))
            self._begun = bytearray()

    def finish(self) -> dict[str, Any]:
        """Return the directory of the units. Their offsets follow from their sizes: files have no gaps."""
        self._finish_file()
        return {"sizes": self.sizes, "hashes": "".join(self.hashes)}


def write_site(manifest: Manifest, cache: ShardCache, put: PutFile) -> SiteData:
    """Write the data of a KB. Raises E014 for a shard without keywords, E207, E305."""
    opened = map(cache.open, manifest.shards)
    shards = [_Shard(ref, shard.search(0.0), shard) for ref, shard in zip(manifest.shards, opened, strict=True)]
    order = _order_rows(shards)
    keywords = _read_keywords(manifest.kb_id, shards, order)
    has_vectors = manifest.embedder == wordllama.WordLlamaEmbedder.name and bool(order)
    numbers = np.unique(keywords.languages).tolist()
    languages = sorted({LANGUAGES[number] if number < len(LANGUAGES) else "en" for number in numbers})
    terms, texts, words, tokens = (_UnitWriter(kind, put) for kind in ("terms", "texts", "words", "tokens"))
    firsts = _write_terms(keywords, terms)
    words.add(_compress(_encode_words(keywords)))
    first_rows, documents = _write_texts(shards, order, texts)
    index: dict[str, Any] = {
        "terms": {"first": firsts, **terms.finish()},
        "texts": {"first": first_rows, **texts.finish()},
        "words": words.finish(),
        "stop_words": {code: sorted(STOP_WORDS[code]) for code in sorted({"en", *languages})},
        "endings": {code: _learn_endings(keywords, code) for code in languages if code != "en"},
    }
    sections = {"lengths": _compress(_encode_numbers(keywords.lengths))}
    if has_vectors:
        index["tokens"], own = _write_tokens(shards, order, languages, tokens)
        sections |= own
        vectors = np.stack([shards[row.shard].search.vectors[row.row] for row in order])
        index["vectors"], sections["vectors"] = _encode_vectors(vectors)
    sections = {"index": _compress(json.dumps(index, ensure_ascii=False).encode()), **sections}
    start = b"".join(sections.values())
    ends = [*itertools.accumulate(map(len, sections.values()))]
    name, size = _put_named("start", start, put)
    description = {
        "format": FORMAT,
        "documents": len(documents),
        "rows": len(order),
        "words": int(keywords.lengths.sum(dtype=np.int64)),
        "languages": languages,
        "embedder": manifest.embedder if has_vectors else "",
        "vector_weight": wordllama.WordLlamaEmbedder.hybrid_weight if has_vectors else 0.0,
        "start": {"name": name, "size": size, "sha256": hashlib.sha256(start).hexdigest()},
        "sections": {name: [end - len(sections[name]), end] for name, end in zip(sections, ends, strict=True)},
        "files": {writer.kind: writer.files for writer in (terms, texts, words, tokens)},
    }
    return SiteData(description, documents)


def _order_rows(shards: Sequence[_Shard]) -> list[_Row]:
    rows = [
        _Row(shard.search.header(int(shard.search.doc_of_row[row])).id, number, row)
        for number, shard in enumerate(shards)
        for row in shard.live_rows().tolist()
    ]
    rows.sort(key=lambda row: (row.id, row.row))
    return rows


def _read_keywords(kb_id: str, shards: Sequence[_Shard], order: Sequence[_Row]) -> KeywordRows:
    """Return the keywords of all rows, in the order of the site."""
    parts = []
    for shard in shards:
        index = shard.opened.keywords()
        if index is None:
            raise errors.cannot_package(kb_id, "a shard has no keywords; run: pair compact --all")
        parts.append(index.read_rows(shard.live_rows()))
    together = concatenate_rows(parts)
    places = {
        (number, row): place
        for place, (number, row) in enumerate(
            (number, row) for number, shard in enumerate(shards) for row in shard.live_rows().tolist()
        )
    }
    return together.pick(np.array([places[row.shard, row.row] for row in order], np.int64))


# ── terms ──────────────────────────────────────────────────────────────────────────────────────────


def _write_terms(keywords: KeywordRows, units: _UnitWriter) -> list[str]:
    """Write the terms with their rows, and return the first term of each unit."""
    order = np.argsort(keywords.terms, kind="stable")
    rows = np.repeat(np.arange(keywords.count), np.diff(keywords.starts))[order]
    counts = keywords.counts[order]
    starts = np.searchsorted(keywords.terms[order], np.arange(len(keywords.words) + 1)).tolist()
    entries = (
        (word, _encode_term(word, rows[begin:end], counts[begin:end], keywords.count))
        for word, (begin, end) in zip(keywords.words, itertools.pairwise(starts), strict=True)
    )
    firsts: list[str] = []
    for unit in split_by_size(entries, lambda entry: len(entry[1]), sys.maxsize, _TERM_UNIT_BYTES):
        units.add(_compress(b"".join(content for _, content in unit)))
        firsts.append(unit[0][0].decode(errors="replace"))
    return firsts


def _encode_term(word: bytes, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.uint32], every: int) -> bytes:
    """Return the term, its number of rows, and their counts: with gaps between rows (0), or for every row (1)."""
    if 2 * len(rows) > every:
        dense = np.zeros(every, np.int64)
        dense[rows] = counts
        kind, values = 1, dense
    else:
        kind, values = 0, np.empty(2 * len(rows), np.int64)
        values[::2], values[1::2] = np.diff(rows, prepend=0), counts
    content = _encode_numbers(values)
    return b"".join([_encode_number(len(word)), word, *map(_encode_number, (len(rows), kind, len(content))), content])


def _encode_words(keywords: KeywordRows) -> bytes:
    """Return all terms, all forms, the number of rows with each term, and the number of the term of each form."""
    parts = [b"\n".join(keywords.words), b"\n".join(form for form, _ in keywords.forms)]
    frequencies = np.bincount(keywords.terms, minlength=len(keywords.words))
    numbers = np.concatenate([frequencies, np.array([term for _, term in keywords.forms], np.int64)])
    sized = (_encode_number(len(part)) + part for part in parts)
    return b"".join([*sized, _encode_numbers(numbers)])


def _learn_endings(keywords: KeywordRows, language: str) -> dict[str, Any]:
    """Return stemming rules: for each ending, the number of letters to remove and the letters to append.

    The longest matching ending decides. Its rule is right for most words of the KB with this ending, and is omitted if
    a shorter ending has the same rule. `words` has the stems of the words for which the rules are wrong.
    """
    forms = {*keywords.words, *(form for form, _ in keywords.forms)}
    words = sorted(word for form in forms if (word := form.decode(errors="replace")).isalpha())
    # Questions have stop words that no document has.
    stop_words = {fold(word): stem(word, language) for word in sorted(STOP_WORDS[language]) if word.isalpha()}
    stems = stop_words | {word: stem(word, language) for word in words}
    seen: dict[str, Counter[tuple[int, str]]] = {}
    for word, own in stems.items():
        pairs = zip(word, own, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        for size in range(min(len(word), _LONGEST_ENDING) + 1):
            seen.setdefault(word[len(word) - size :], Counter())[len(word) - shared, own[shared:]] += 1
    kept: dict[str, list[Any]] = {}
    for ending in sorted(seen, key=lambda ending: (len(ending), ending)):
        found = seen[ending]
        rule = [*min(found, key=lambda rule: (-found[rule], rule))]
        if not ending or kept[_find_ending(ending[1:], kept)] != rule:
            kept[ending] = rule
    wrong = {}
    for word, own in stems.items():
        removed, added = kept[_find_ending(word, kept)]
        if word[: len(word) - removed] + added != own:
            wrong[word] = own
    return {"rules": kept, "words": wrong}


def _find_ending(word: str, known: Collection[str]) -> str:
    """Return the longest known ending of a word."""
    longest = min(len(word), _LONGEST_ENDING)
    return next((word[len(word) - size :] for size in range(longest, -1, -1) if word[len(word) - size :] in known), "")


# ── texts ──────────────────────────────────────────────────────────────────────────────────────────


def _write_texts(
    shards: Sequence[_Shard], order: Sequence[_Row], units: _UnitWriter
) -> tuple[list[int], list[tuple[str, str, str]]]:
    """Write the rows, and return the first row of each unit, and the documents."""
    firsts: list[int] = []
    documents: list[tuple[str, str, str]] = []
    number = 0

    def measure(piece: dict[str, Any]) -> int:
        return sum(len(row[2]) for row in piece["rows"])

    for pieces in split_by_size(_cut_documents(shards, order), measure, sys.maxsize, _TEXT_UNIT_BYTES):
        documents += [(piece["id"], piece["title"], piece["url"]) for piece in pieces if piece["chunk"] == 0]
        units.add(_compress(_to_json(pieces)))
        firsts.append(number)
        number += sum(len(piece["rows"]) for piece in pieces)
    return firsts, documents


def _to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # Texts of broken files may have surrogates, which JSON escapes.
        return json.dumps(value).encode()


def _cut_documents(shards: Sequence[_Shard], order: Sequence[_Row]) -> Iterator[dict[str, Any]]:
    """Yield documents, long documents in pieces.

    A row has the start and end of the chunk in the document, its text, the text up to the next chunk if both may join
    a passage, and the page of a document with pages.
    """
    for (_, shard_number), group in itertools.groupby(order, key=lambda row: (row.id, row.shard)):
        search = shards[shard_number].search
        rows = [row.row for row in group]
        doc = int(search.doc_of_row[rows[0]])
        header, text = search.header(doc), search.text(doc)
        chunks = [(int(search.chunks[row]["start"]), int(search.chunks[row]["end"])) for row in rows]
        entries: list[list[Any]] = []
        for place, (start, end) in enumerate(chunks):
            following = chunks[place + 1][0] if place + 1 < len(chunks) else -1
            gap = text[end:following] if 0 <= following - end <= _MOST_GAP else None
            joins = gap if gap is not None and not gap.strip() else None
            page = [text.count("\f", 0, start) + 1] if "pages" in header.metadata else []
            entries.append([start, end, text[start:end], joins, *page])
        begin = 0
        for own in split_by_size(entries, lambda entry: len(entry[2]), sys.maxsize, _TEXT_UNIT_BYTES):
            yield {"id": header.id, "title": header.title, "url": header.url, "chunk": begin, "rows": own}
            begin += len(own)


# ── vectors ────────────────────────────────────────────────────────────────────────────────────────


def _write_tokens(
    shards: Sequence[_Shard], order: Sequence[_Row], languages: Sequence[str], units: _UnitWriter
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Write the vectors of rare tokens; return their directory, and sections with all tokens and frequent vectors."""
    words, table = wordllama.read_token_table()
    sample = order[:: max(1, len(order) // _SAMPLE_ROWS)]
    counts = wordllama.count_tokens([shards[row.shard].search.row_text(row.row) for row in sample])
    # Questions have more stop words than texts.
    common = [word for code in languages for word in STOP_WORDS[code]]
    counts[wordllama.count_tokens([" ".join([*common, *map(str.title, common)])]) > 0] += len(sample)
    frequent = np.sort(np.lexsort((np.arange(len(counts)), -counts))[:_FREQUENT_TOKENS])
    rare = np.setdiff1d(np.arange(len(words)), frequent)
    for begin in range(0, len(rare), _TOKENS_IN_UNIT):
        units.add(table[rare[begin : begin + _TOKENS_IN_UNIT]].astype("<f2").tobytes())
    directory = {"frequent": frequent.tolist(), "in_unit": _TOKENS_IN_UNIT, **units.finish()}
    spelled = _compress(json.dumps(words, ensure_ascii=False).encode())
    return directory, {"tokens": spelled, "token_vectors": table[frequent].astype("<f2").tobytes()}


def _encode_vectors(vectors: Vectors) -> tuple[dict[str, Any], bytes]:
    """Return the form of the vectors and their bytes.

    A small KB stores each row as a factor and 16-bit integers, which is more exact than float16. A large KB stores a
    table of values, and codes that refer to the table.
    """
    rows, dimension = vectors.shape
    if rows <= _EXACT_ROWS:
        factors = np.maximum(np.abs(vectors).max(axis=1), 1e-30).astype("<f4") / np.float32(32767)
        numbers = np.rint(vectors / factors[:, None]).astype("<i2")
        return {"kind": "int16", "dimension": dimension}, factors.tobytes() + numbers.tobytes()
    parts = next((parts for parts in _CODE_PARTS if rows * parts <= _CODES_BYTES), _CODE_PARTS[-1])
    values, codes = quantize(vectors, parts)
    return {"kind": "codes", "dimension": dimension, "parts": parts}, values.astype("<f2").tobytes() + codes.tobytes()


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────


def _put_named(kind: str, content: bytes, put: PutFile) -> tuple[str, int]:
    name = f"{kind}-{_hash(content)}.bin"
    put(name, content)
    return name, len(content)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[: 2 * _HASH_BYTES]


def _compress(content: bytes) -> bytes:
    """Return raw deflate, which browsers read without a library."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(content) + deflate.flush()


def _encode_number(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; the eighth bit says that another group follows."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _encode_numbers(values: npt.NDArray[Any]) -> bytes:
    """Return numbers one after the other, each as `_encode_number` does."""
    most = int(values.max(initial=0))
    if most < 128:
        return values.astype(np.uint8).tobytes()
    places = np.arange(-(-most.bit_length() // 7))
    table = (values.astype(np.int64)[:, None] >> 7 * places).astype(np.uint8) & 127
    is_used = (values[:, None] >= np.int64(1) << 7 * places) | (places == 0)
    table[:, :-1][is_used[:, 1:]] |= 128
    return bytes(table[is_used])
