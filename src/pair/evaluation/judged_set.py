"""A judged set on disk: documents, questions, and which documents answer which question.

    corpus.jsonl     {"id": ..., "text": ..., "title": ...} a line; url and metadata if there are any
    queries.jsonl    {"id": ..., "text": ...} a line
    qrels.tsv        query id, document id, relevance: separated by tabs; above 0 is relevant

Other fields are ignored. As in published sets, `_id` may stand for `id`, and qrels.tsv may begin with headings.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.values import Document

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels.tsv"
_HEADINGS = frozenset({"score", "relevance", "rel"})


@dataclass(frozen=True, slots=True)
class Judgement:
    query_id: str
    document_id: str
    grade: float


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    text: str
    grades: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Selection:
    """The queries to ask, and how much was left out."""

    queries: tuple[JudgedQuery, ...]
    skipped_queries: int
    """Queries without a relevant document."""
    skipped_judgements: int
    """Judgements of unknown queries or documents."""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """Queries and judgements in memory; documents are read from disk each time."""

    folder: Path
    queries: Mapping[str, str]
    judgements: Sequence[Judgement]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def documents(self) -> Iterator[Document]:
        """Raises E501, E502."""
        return _read_documents(_require_file(self.folder, CORPUS))

    def select(self, known: Collection[str], *, skip_unknown: bool = False, limit: int | None = None) -> Selection:
        """Return the queries that have a relevant document, in order. Raises E503, and E502 when there are none."""
        path = self.folder / JUDGEMENTS
        unknown = {
            "queries": [item.query_id for item in self.judgements if item.query_id not in self.queries],
            "documents": [item.document_id for item in self.judgements if item.document_id not in known],
        }
        for what, ids in unknown.items():
            if ids and not skip_unknown:
                raise errors.judgements_unmatched(str(path), what, len(ids), list(dict.fromkeys(ids)))
        grades: dict[str, dict[str, float]] = {}
        used = [item for item in self.judgements if item.query_id in self.queries and item.document_id in known]
        for judgement in used:
            grades.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
        if not grades:
            reason = "no judgement is of a known query and a known document" if self.judgements else "no judgements"
            raise errors.judged_set_invalid(str(path), reason)
        queries = [JudgedQuery(text, grades[name]) for name, text in self.queries.items() if name in grades]
        return Selection(tuple(queries[:limit]), len(self.queries) - len(queries), len(self.judgements) - len(used))


def read_judged_set(folder: str | Path) -> JudgedSet:
    """Raises E501 for a file that is missing, E502 for a line that is wrong."""
    place = Path(folder)
    queries, judgements = _require_file(place, QUERIES), _require_file(place, JUDGEMENTS)
    return JudgedSet(place, _read_queries(queries), _read_judgements(judgements))


def is_judged_set(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (CORPUS, QUERIES, JUDGEMENTS))


def _require_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise errors.judged_set_missing(str(path), "the file" if folder.is_dir() else "the folder")
    return path


def _read_queries(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, value in _read_objects(path):
        if not value["text"].strip():
            raise errors.judged_set_invalid(where, "text is empty")
        texts[value["id"]] = value["text"]
    return texts


def _read_documents(path: Path) -> Iterator[Document]:
    for where, value in _read_objects(path):
        title, url, metadata = value.get("title") or "", value.get("url") or "", value.get("metadata") or {}
        if not (isinstance(title, str) and isinstance(url, str) and isinstance(metadata, dict)):
            raise errors.judged_set_invalid(where, "title and url are texts, and metadata is an object")
        yield Document(id=value["id"], text=value["text"], title=title, url=url, metadata=metadata)


def _read_judgements(path: Path) -> list[Judgement]:
    """Return the judgements of relevant documents."""
    grades: dict[tuple[str, str], float] = {}
    for number, line in _read_lines(path):
        where, fields = f"{path}:{number}", [field.strip() for field in line.split("\t")]
        if len(fields) != 3 or not all(fields):
            raise errors.judged_set_invalid(where, "a line is query id, tab, document id, tab, relevance")
        query_id, document_id, word = fields
        if number == 1 and word.lower() in _HEADINGS:
            continue
        try:
            grade = float(word)
        except ValueError:
            grade = math.nan
        if not math.isfinite(grade):
            raise errors.judged_set_invalid(where, f"relevance is not a number: {word}")
        if grades.setdefault((query_id, document_id), grade) != grade:
            raise errors.judged_set_invalid(where, f"{document_id} was judged otherwise for {query_id} before")
    return [Judgement(query_id, document_id, grade) for (query_id, document_id), grade in grades.items() if grade > 0]


def _read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield JSON objects with a unique id and a text, each with its place."""
    seen: set[str] = set()
    for number, line in _read_lines(path):
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise errors.judged_set_invalid(where, "the line is not JSON") from fault
        if not isinstance(value, dict):
            raise errors.judged_set_invalid(where, "the line is not a JSON object")
        value["id"] = value.get("id", value.get("_id"))
        if not (isinstance(value["id"], str) and value["id"] and isinstance(value.get("text"), str)):
            raise errors.judged_set_invalid(where, "id and text are needed, and are texts")
        if value["id"] in seen:
            raise errors.judged_set_invalid(where, f"id was used before: {value['id']}")
        seen.add(value["id"])
        yield where, value


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    with files.storage_errors(), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as fault:
                raise errors.judged_set_invalid(f"{path}:{number}", "the line is not UTF-8") from fault
            if text.strip():
                yield number, text
