"""A judged set on disk: documents, questions, and which documents answer which question.

    corpus.jsonl     {"id": ..., "text": ..., "title": ...} a line; url and metadata if there are any
    queries.jsonl    {"id": ..., "text": ...} a line
    qrels.tsv        query id, document id, relevance: separated by tabs; above 0 is relevant

Fields that are not named here are left alone, as sets carry notes of their own. `_id` is taken for `id`, and a first
line of headings in qrels.tsv is passed over, as published sets have them.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    """What is to be asked, and what had to be left out."""

    queries: tuple[JudgedQuery, ...]
    skipped_queries: int
    """Without any relevant document."""
    skipped_judgements: int
    """Of queries or documents that are unknown."""


class JudgedSet:
    """Questions and judgements are in memory; documents are read when they are wanted."""

    def __init__(self, folder: Path, queries: Mapping[str, str], judgements: Sequence[Judgement]) -> None:
        self.folder = folder
        self.queries = queries
        self.judgements = judgements

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def documents(self) -> Iterator[Document]:
        """Raises E501, E502."""
        return _documents(_file(self.folder, CORPUS))

    def select(self, known: Collection[str], *, skip_unknown: bool = False, limit: int | None = None) -> Selection:
        """Queries that have a relevant document, in their order. Raises E503, and E502 when there are none."""
        path = self.folder / JUDGEMENTS
        strange_queries = [each.query_id for each in self.judgements if each.query_id not in self.queries]
        strange_documents = [each.document_id for each in self.judgements if each.document_id not in known]
        if not skip_unknown:
            for what, strange in (("queries", strange_queries), ("documents", strange_documents)):
                if strange:
                    raise errors.judgements_unmatched(str(path), what, len(strange), list(dict.fromkeys(strange)))
        grades: dict[str, dict[str, float]] = {}
        used = [each for each in self.judgements if each.query_id in self.queries and each.document_id in known]
        for each in used:
            grades.setdefault(each.query_id, {})[each.document_id] = each.grade
        if not grades:
            reason = "no judgement is of a known query and a known document" if self.judgements else "no judgements"
            raise errors.judged_set_invalid(str(path), reason)
        chosen = [JudgedQuery(text, grades[id]) for id, text in self.queries.items() if id in grades]  # noqa: A001
        return Selection(tuple(chosen[:limit]), len(self.queries) - len(chosen), len(self.judgements) - len(used))


def read_judged_set(folder: str | Path) -> JudgedSet:
    """Raises E501 for a file that is missing, E502 for a line that is wrong."""
    place = Path(folder)
    for name in (QUERIES, JUDGEMENTS):
        _file(place, name)
    return JudgedSet(place, _queries(place / QUERIES), _judgements(place / JUDGEMENTS))


def is_judged_set(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (CORPUS, QUERIES, JUDGEMENTS))


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise errors.judged_set_missing(str(path), "the file" if folder.is_dir() else "the folder")
    return path


def _queries(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for where, value in _objects(path):
        if not value["text"].strip():
            raise errors.judged_set_invalid(where, "text is empty")
        texts[value["id"]] = value["text"]
    return texts


def _documents(path: Path) -> Iterator[Document]:
    for where, value in _objects(path):
        title, url, metadata = value.get("title") or "", value.get("url") or "", value.get("metadata") or {}
        if not (isinstance(title, str) and isinstance(url, str) and isinstance(metadata, dict)):
            raise errors.judged_set_invalid(where, "title and url are texts, and metadata is an object")
        yield Document(id=value["id"], text=value["text"], title=title, url=url, metadata=metadata)


def _judgements(path: Path) -> list[Judgement]:
    """Of relevant documents only."""
    grades: dict[tuple[str, str], float] = {}
    for number, line in _lines(path):
        where, fields = f"{path}:{number}", [field.strip() for field in line.split("\t")]
        if len(fields) != 3 or not all(fields):
            raise errors.judged_set_invalid(where, "a line is query id, tab, document id, tab, relevance")
        query_id, document_id, word = fields
        if number == 1 and word.lower() in _HEADINGS:
            continue
        grade = _number(word)
        if not math.isfinite(grade):
            raise errors.judged_set_invalid(where, f"relevance is not a number: {word}")
        if grades.setdefault((query_id, document_id), grade) != grade:
            raise errors.judged_set_invalid(where, f"{document_id} was judged otherwise for {query_id} before")
    return [Judgement(*named, grade) for named, grade in grades.items() if grade > 0]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON objects with an id of their own and a text, each with its place."""
    seen: set[str] = set()
    for number, line in _lines(path):
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


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    with files.storage_errors(), path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as fault:
                raise errors.judged_set_invalid(f"{path}:{number}", "the line is not UTF-8") from fault
            if text.strip():
                yield number, text
