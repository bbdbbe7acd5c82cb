"""Differences between two sides: a version of a KB, a package, a folder, or an installed KB.

Invariants
    Files are compared with files by their bytes, and with a version by their text, as sync would read it.
    Descriptions are made by rules alone, because index.txt may hold a model's description of another text.
"""

import contextlib
import difflib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pair import errors, files
from pair.ai.summariser import ExtractiveSummariser
from pair.engine.maintenance.versions import CURRENT, ManifestDiff
from pair.kb.answer_tests import ChangedAnswer, ask_questions, compare_answers, find_questions, open_side
from pair.kb.open import open_kb, open_reader
from pair.packages import archive, folders, package, record
from pair.packages.rules import MANIFEST_NAME, is_local_path, is_of_index
from pair.reading.contract import UnreadableDocument
from pair.settings import Settings
from pair.sync.discover import find_files
from pair.sync.rules import FileSeen
from pair.sync.source_text import FileTextReader
from pair.sync.state import tidy_summary

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase

Change = Literal["added", "removed", "changed"]
Texts = tuple[str | None, str | None]
"""The texts before and after; None for a missing one."""

_CONTEXT_LINES = 3
_MOST_DIFFERING_LINES = 4_000
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document that differs, with the lines of requested unified diffs."""

    id: str
    change: Change
    entry: tuple[str, ...] | None = None
    """The diff of its description."""
    text: tuple[str, ...] | None = None
    left_out_lines: int = 0
    """Number of lines of `text` beyond the limit."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"id": self.id, "change": self.change}
        if self.entry is not None:
            value["entry"] = list(self.entry)
        if self.text is not None:
            value |= {"text": list(self.text), "left_out_lines": self.left_out_lines}
        return value


@dataclass(frozen=True)
class DiffRequest:
    """The wanted diffs of a document."""

    entries: bool = True
    texts: bool = False
    most_lines: int | None = None
    """The longest diff of a text."""
    most_width: int | None = None
    """The longest line of that diff."""


@dataclass(frozen=True)
class DiffReport:
    """The names of two sides, and the sorted ids of documents that differ."""

    a: str
    b: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    texts: Callable[[str], Texts]

    @property
    def is_different(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    @property
    def counts(self) -> dict[str, int]:
        return {"added": len(self.added), "removed": len(self.removed), "changed": len(self.changed)}

    def ids(self) -> list[tuple[str, Change]]:
        """Return all ids with their change, sorted by id."""
        changes: dict[Change, tuple[str, ...]]
        changes = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return sorted((document_id, change) for change, ids in changes.items() for document_id in ids)

    def describe(self, documents: Sequence[tuple[str, Change]], wanted: DiffRequest) -> Iterator[ChangedDocument]:
        """Yield the documents with the wanted diffs."""
        for document_id, change in documents:
            before, after = self.texts(document_id) if wanted.entries or wanted.texts else (None, None)
            entry, text, left_out_lines = None, None, 0
            if wanted.entries:
                entry = make_diff(_describe_text(document_id, before), _describe_text(document_id, after))
            if wanted.texts:
                lines = make_diff((before or "").splitlines(), (after or "").splitlines())
                width = wanted.most_width
                text = tuple(
                    line if width is None or len(line) <= width else f"{line[:width]}…"
                    for line in lines[: wanted.most_lines]
                )
                left_out_lines = len(lines) - len(text)
            yield ChangedDocument(document_id, change, entry, text, left_out_lines)


def make_diff(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a unified diff, without its header."""
    start = _count_common(before, after)
    end = _count_common(before[start:][::-1], after[start:][::-1])
    if len(before) + len(after) - 2 * (start + end) <= _MOST_DIFFERING_LINES:
        return tuple(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""))[2:]
    # Matching this many lines takes too long: they are all shown as replaced.
    first = max(start - _CONTEXT_LINES, 0)
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    return (
        f"@@ -{_format_span(first, start + len(old))} +{_format_span(first, start + len(new))} @@",
        *(f" {line}" for line in before[first:start]),
        *(f"-{line}" for line in old),
        *(f"+{line}" for line in new),
    )


def _format_span(begin: int, end: int) -> str:
    """Return the first line, counted from 1, and the number of lines; without lines, the line before."""
    return f"{begin + 1 if end > begin else begin},{end - begin}"


def _count_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal lines at the beginning of both."""
    return sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))


def _describe_text(document_id: str, text: str | None) -> list[str]:
    """Return the lines of index.txt for a document; none for a missing document."""
    if text is None:
        return []
    return [document_id, *tidy_summary(ExtractiveSummariser().summarise(document_id, text)).splitlines()]


def diff_versions(comparison: ManifestDiff) -> DiffReport:
    ids = comparison.changes
    return DiffReport(str(ids.before), str(ids.after), ids.added, ids.removed, ids.changed, comparison.texts)


@dataclass(frozen=True, slots=True)
class _VersionSide:
    kb_id: str
    version: str

    def open(self, settings: Settings) -> "KnowledgeBase":
        return open_kb(self.kb_id, settings=settings, at=None if self.version == CURRENT else self.version)


@dataclass(frozen=True)
class _FolderSide:
    folder: Path
    names: frozenset[str] | None
    """The files to compare; None for all that a KB may hold."""
    reader: FileTextReader
    is_package: bool = False
    """Whether its manifest.json is that of a package."""

    def includes(self, path: str) -> bool:
        """Return whether a file is compared. An index is not compared: it follows from the texts."""
        if is_of_index(path):
            return False
        return path in self.names if self.names is not None else path != MANIFEST_NAME or not self.is_package

    def hash_files(self) -> dict[str, str]:
        listed = folders.list_kb_files(self.folder).files
        return folders.hash_files(self.folder, filter(self.includes, listed))

    def read_text(self, path: str, seen: FileSeen | None = None) -> str | None:
        """Return the text as sync reads it; None without text. `seen`: also None for a file that is too large."""
        try:
            return (self.reader.read_any_size(path) if seen is None else self.reader.read(path, seen)).text
        except (UnreadableDocument, FileNotFoundError):
            return None


@contextlib.contextmanager
def open_diff(settings: Settings, a: str, b: str | None, kb_id: str) -> "Iterator[DiffReport]":
    """Yield the differences between two sides. Raises E230, E231, and the errors of reading a side."""
    before = _parse_side(a, kb_id)
    if b is not None:
        after = _parse_side(b, kb_id)
    elif isinstance(before, Path):
        raise errors.cannot_compare(a, "the other side is missing", "Name the other side, too")
    else:
        after = _VersionSide(before.kb_id, CURRENT)
    shown = a, b or CURRENT
    with contextlib.ExitStack() as stack, files.storage_errors():
        match before, after:
            case _VersionSide(), _VersionSide():
                yield _compare_versions(settings, before, after, shown, stack)
            case _VersionSide(), Path():
                kb = stack.enter_context(before.open(settings))
                yield _swap(_compare_with_version(shown[::-1], _open_folder(settings, after, stack), kb))
            case Path(), _VersionSide():
                kb = stack.enter_context(after.open(settings))
                yield _compare_with_version(shown, _open_folder(settings, before, stack), kb)
            case Path(), Path():
                old, new = _open_folder(settings, before, stack), _open_folder(settings, after, stack)
                yield _compare_folders(shown, old, new)


def compare_side_answers(
    settings: Settings, a: str, b: str | None, kb_id: str, questions: Path | None
) -> list[ChangedAnswer]:
    """Return how the answers to the test questions differ. Raises E511, E512, and the errors of `open_diff`.

    `questions`: a file; None for the questions of B, else of A.
    """
    sides = [_parse_side(text, kb_id) for text in (a, b or CURRENT)]
    places = [str(side) if isinstance(side, Path) else None for side in sides]
    expected = find_questions(settings, places[::-1], questions)
    asked, given = [one.question for one in expected], []
    for side, place in zip(sides, places, strict=True):
        kb, at = (kb_id, None) if isinstance(side, Path) else (side.kb_id, side.version)
        with open_side(settings, place, kb, None if at == CURRENT else at) as opened:
            given.append(ask_questions(opened, asked))
    return compare_answers(asked, *given)


def _parse_side(text: str, kb_id: str) -> _VersionSide | Path:
    if is_local_path(text):
        path = Path(text)
        if not (path.is_dir() or (path.is_file() and path.suffix == ".zip")):
            raise errors.nothing_to_compare(text)
        return path
    if "/" in text or "\\" in text or text.endswith(".zip"):
        raise errors.cannot_compare(text, "it is not a version of a KB", f"A path begins with ./ : ./{text}")
    name, mark, version = text.rpartition("@")
    if (mark and not name) or not version:
        raise errors.cannot_compare(text, "it is not a version of a KB", "As in 7, 1.0.0, current or handbook@7")
    return _VersionSide(name or kb_id, version)


def _compare_versions(
    settings: Settings, before: _VersionSide, after: _VersionSide, shown: tuple[str, str], stack: contextlib.ExitStack
) -> DiffReport:
    if before.kb_id != after.kb_id:
        reason = f"it is of {after.kb_id}, and the other side of {before.kb_id}"
        raise errors.cannot_compare(shown[1], reason, "Compare versions of one KB")
    kb = stack.enter_context(open_kb(before.kb_id, settings=settings))
    report = diff_versions(kb.versions.compare(before.version, after.version))
    return replace(report, a=f"{before.kb_id}@{report.a}", b=f"{after.kb_id}@{report.b}")


def _open_folder(settings: Settings, path: Path, stack: contextlib.ExitStack) -> _FolderSide:
    names, folder, is_package = None, path, False
    if path.is_file():
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-diff-"))
        folder = files.resolve(Path(temporary)) / "package"
        archive.unpack(path, folder, settings.sources, shown=str(path))
        manifest = folder / MANIFEST_NAME
        is_package = manifest.is_file() and package.parse_manifest(manifest.read_bytes()) is not None
    elif (installed := record.read_record(path)) is not None:
        names = frozenset(installed.files)
    reader = FileTextReader(folder, settings.kb.max_source_bytes, open_reader())
    return _FolderSide(folder, names, reader, is_package)


def _compare_folders(shown: tuple[str, str], before: _FolderSide, after: _FolderSide) -> DiffReport:
    old, new = before.hash_files(), after.hash_files()

    def read_texts(path: str) -> Texts:
        return before.read_text(path) if path in old else None, after.read_text(path) if path in new else None

    changed = (path for path in old.keys() & new.keys() if old[path] != new[path])
    return DiffReport(
        *shown, _sort(new.keys() - old.keys()), _sort(old.keys() - new.keys()), _sort(changed), read_texts
    )


def _compare_with_version(shown: tuple[str, str], folder: _FolderSide, kb: "KnowledgeBase") -> DiffReport:
    """Compare the files that sync would read with the stored documents."""
    seen = {path: file for path, file in find_files(folder.folder).files.items() if folder.includes(path)}
    added, changed, in_both, after = [], [], set(), ""
    while page := kb.documents(after=after, limit=_PAGE):
        after = page[-1].id
        for document in page:
            there = folder.read_text(document.id, seen[document.id]) if document.id in seen else None
            if there is None:
                added.append(document.id)
                continue
            in_both.add(document.id)
            if there != document.text:
                changed.append(document.id)
    removed = frozenset(path for path in seen if path not in in_both and folder.read_text(path, seen[path]) is not None)

    def read_texts(document_id: str) -> Texts:
        before = folder.read_text(document_id, seen[document_id]) if document_id in seen else None
        return before, kb.document(document_id).text if document_id not in removed else None

    return DiffReport(*shown, _sort(added), _sort(removed), _sort(changed), read_texts)


def _sort(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))


def _swap(report: DiffReport) -> DiffReport:
    """Return the report with its sides exchanged."""

    def read_texts(document_id: str) -> Texts:
        before, after = report.texts(document_id)
        return after, before

    return DiffReport(report.b, report.a, report.removed, report.added, report.changed, read_texts)
