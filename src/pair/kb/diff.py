"""Two sides compared, each a version of a KB, a package, a folder, or what was installed into one.

Invariants
    Files are compared with files by their bytes, and with a version by their text, as sync would read it.
    A description is made here of each text, by rules alone: index.txt may hold what a model said of another one.
"""

import contextlib
import difflib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pair import errors, files, folders
from pair.ai.summaries.extractive import ExtractiveSummariser
from pair.engine.maintenance.diff import CURRENT, ManifestDiff
from pair.kb.open import document_loader, open_kb
from pair.packages import archive, file_listing, package, record
from pair.packages.rules import MANIFEST_NAME, is_local_path, is_of_index
from pair.settings import Settings
from pair.sync.contract import UnreadableDocument
from pair.sync.discover import find_files
from pair.sync.file_text import FileTextReader
from pair.sync.index_file import tidy_summary
from pair.sync.rules import FileSeen

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase

Change = Literal["added", "removed", "changed"]
Texts = tuple[str | None, str | None]
"""Before and after; None where there is none."""

_CONTEXT_LINES = 3
_MOST_DIFFERING_LINES = 4_000
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """What is told of one that differs: lines of unified diffs."""

    id: str
    change: Change
    entry: tuple[str, ...] | None = None
    """Of what index.txt says of it; None where nobody asked."""
    text: tuple[str, ...] | None = None
    left_out_lines: int = 0
    """Of `text`."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"id": self.id, "change": self.change}
        if self.entry is not None:
            value["entry"] = list(self.entry)
        if self.text is not None:
            value |= {"text": list(self.text), "left_out_lines": self.left_out_lines}
        return value


@dataclass(frozen=True)
class DiffRequest:
    """What is to be told of documents that differ."""

    entries: bool = True
    texts: bool = False
    most_lines: int | None = None
    """Of the diff of a text."""
    most_width: int | None = None
    """Characters of a line of it."""


@dataclass(frozen=True)
class DiffReport:
    """Two sides, by the names they were given, and the ids of documents that differ, sorted."""

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
        """All of them, by id."""
        kinds: tuple[tuple[Change, tuple[str, ...]], ...] = (
            ("added", self.added),
            ("removed", self.removed),
            ("changed", self.changed),
        )
        return sorted((each, kind) for kind, ids in kinds for each in ids)

    def told(self, those: Sequence[tuple[str, Change]], wanted: DiffRequest) -> Iterator[ChangedDocument]:
        for document_id, change in those:
            if not (wanted.entries or wanted.texts):
                yield ChangedDocument(document_id, change)
                continue
            before, after = self.texts(document_id)
            entry = unified(_entry(document_id, before), _entry(document_id, after)) if wanted.entries else None
            if not wanted.texts:
                yield ChangedDocument(document_id, change, entry)
                continue
            lines = unified((before or "").splitlines(), (after or "").splitlines())
            kept = tuple(_clipped(line, wanted.most_width) for line in lines[: wanted.most_lines])
            yield ChangedDocument(document_id, change, entry, kept, len(lines) - len(kept))


def _clipped(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else f"{line[:width]}…"


def unified(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The lines of a unified diff, without its head."""
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    if len(before) + len(after) - 2 * (start + end) > _MOST_DIFFERING_LINES:
        # Which of so many lines were kept takes for ever to find out, and helps nobody.
        first = max(start - _CONTEXT_LINES, 0)
        old, new = before[start : len(before) - end], after[start : len(after) - end]
        head = f"@@ -{_span(first, start + len(old))} +{_span(first, start + len(new))} @@"
        return (
            head,
            *(f" {each}" for each in before[first:start]),
            *(f"-{each}" for each in old),
            *(f"+{each}" for each in new),
        )
    return tuple(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""))[2:]


def _span(begin: int, end: int) -> str:
    """Lines from 1 on; of none, the one before them is named."""
    return f"{begin + 1 if end > begin else begin},{end - begin}"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines both begin with."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def _entry(document_id: str, text: str | None) -> list[str]:
    """As index.txt has it; nothing for a document that is not there."""
    if text is None:
        return []
    return [document_id, *tidy_summary(ExtractiveSummariser().summarise(document_id, text)).splitlines()]


def of_versions(comparison: ManifestDiff) -> DiffReport:
    found = comparison.changes
    return DiffReport(str(found.before), str(found.after), found.added, found.removed, found.changed, comparison.texts)


# ── sides ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _VersionSide:
    kb_id: str
    wanted: str

    @property
    def at(self) -> str | None:
        return None if self.wanted == CURRENT else self.wanted


@dataclass(frozen=True)
class _FolderSide:
    """Files of a folder."""

    folder: Path
    names: frozenset[str] | None
    """Of those that count; None for all that a KB may hold."""
    reader: FileTextReader
    is_package: bool = False
    """Then its manifest.json is about the others."""

    def hashes(self) -> dict[str, str]:
        listed = file_listing.list_kb_files(self.folder).listing.files
        return file_listing.hash_files(self.folder, [path for path in listed if self._counts(path)])

    def sources(self) -> dict[str, FileSeen]:
        """Files that sync would look at."""
        return {path: seen for path, seen in find_files(self.folder).files.items() if self._counts(path)}

    def _counts(self, path: str) -> bool:
        if is_of_index(path):  # which follows from the texts
            return False
        return path in self.names if self.names is not None else path != MANIFEST_NAME or not self.is_package

    def text(self, path: str, seen: FileSeen | None = None) -> str | None:
        """As sync reads it; None for what is no text, or too large where that counts."""
        try:
            return self.reader.text_of_any_size(path) if seen is None else self.reader.text_of(path, seen)
        except (UnreadableDocument, FileNotFoundError):
            return None


@contextlib.contextmanager
def compared(settings: Settings, a: str, b: str | None, kb_id: str) -> "Iterator[DiffReport]":
    """For as long as the block runs. Raises E230, E231, and what reading either side raises."""
    before = _side(a, kb_id)
    if b is None and isinstance(before, Path):
        raise errors.cannot_compare(a, "there is nothing to compare it with", "Name the other side, too")
    after = (
        _VersionSide(before.kb_id, CURRENT) if b is None and isinstance(before, _VersionSide) else _side(b or "", kb_id)
    )
    shown = a, b or CURRENT
    with contextlib.ExitStack() as held, files.storage_errors():
        match before, after:
            case _VersionSide(), _VersionSide():
                yield _versions(settings, before, after, shown, held)
            case _VersionSide(), Path():
                kb = held.enter_context(open_kb(before.kb_id, settings=settings, at=before.at))
                yield _turned(_with_version((shown[1], shown[0]), _tree(settings, after, held), kb))
            case Path(), _VersionSide():
                kb = held.enter_context(open_kb(after.kb_id, settings=settings, at=after.at))
                yield _with_version(shown, _tree(settings, before, held), kb)
            case Path(), Path():
                yield _files(shown, _tree(settings, before, held), _tree(settings, after, held))


def _side(text: str, kb_id: str) -> _VersionSide | Path:
    if is_local_path(text):
        path = Path(text)
        if not (path.is_dir() or (path.is_file() and path.suffix == ".zip")):
            raise errors.nothing_to_compare(text)
        return path
    if "/" in text or "\\" in text or text.endswith(".zip"):
        raise errors.cannot_compare(text, "it is no version of a KB", f"A path begins with ./ : ./{text}")
    name, mark, wanted = text.rpartition("@")
    if (mark and not name) or not wanted:
        raise errors.cannot_compare(text, "it is no version of a KB", "As in 7, 1.0.0, current or handbook@7")
    return _VersionSide(name or kb_id, wanted)


def _versions(
    settings: Settings, before: _VersionSide, after: _VersionSide, shown: tuple[str, str], held: contextlib.ExitStack
) -> DiffReport:
    if before.kb_id != after.kb_id:
        reason = f"it is of {after.kb_id}, and the other side of {before.kb_id}"
        raise errors.cannot_compare(shown[1], reason, "Compare versions of one KB")
    kb = held.enter_context(open_kb(before.kb_id, settings=settings))
    found = of_versions(kb.versions.compare(before.wanted, after.wanted))
    names = f"{before.kb_id}@{found.a}", f"{after.kb_id}@{found.b}"
    return DiffReport(*names, found.added, found.removed, found.changed, found.texts)


def _tree(settings: Settings, path: Path, held: contextlib.ExitStack) -> _FolderSide:
    names = None
    if path.is_file():
        folder = folders.resolve(Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pair-diff-")))) / "package"
        archive.unpack(path, folder, settings.sources, shown=str(path))
    else:
        folder = path
        installed = record.read_record(path)
        names = None if installed is None else frozenset(installed.files)
    reader = FileTextReader(folder, settings.kb.max_source_bytes, document_loader())
    return _FolderSide(folder, names, reader, is_package=path.is_file() and _has_manifest(folder / MANIFEST_NAME))


def _has_manifest(path: Path) -> bool:
    return path.is_file() and package.parse_manifest(path.read_bytes()) is not None


def _files(shown: tuple[str, str], before: _FolderSide, after: _FolderSide) -> DiffReport:
    old, new = before.hashes(), after.hashes()

    def texts(path: str) -> Texts:
        return before.text(path) if path in old else None, after.text(path) if path in new else None

    changed = (path for path in old.keys() & new.keys() if old[path] != new[path])
    return DiffReport(
        *shown, _sorted(new.keys() - old.keys()), _sorted(old.keys() - new.keys()), _sorted(changed), texts
    )


def _with_version(shown: tuple[str, str], files_there: _FolderSide, kb: "KnowledgeBase") -> DiffReport:
    """From files to what is stored."""
    seen = files_there.sources()
    added, changed, same = [], [], set()
    for document_id, text in _stored(kb):
        if document_id in seen and (there := files_there.text(document_id, seen[document_id])) is not None:
            same.add(document_id)
            if there != text:
                changed.append(document_id)
        else:
            added.append(document_id)
    removed = [path for path in seen if path not in same and files_there.text(path, seen[path]) is not None]

    def texts(document_id: str) -> Texts:
        before = files_there.text(document_id, seen[document_id]) if document_id in seen else None
        return before, kb.document(document_id).text if document_id not in gone else None

    gone = frozenset(removed)
    return DiffReport(*shown, _sorted(added), _sorted(removed), _sorted(changed), texts)


def _sorted(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ids))


def _stored(kb: "KnowledgeBase") -> Iterator[tuple[str, str]]:
    after = ""
    while page := kb.documents(after=after, limit=_PAGE):
        yield from ((each.id, each.text) for each in page)
        after = page[-1].id


def _turned(found: DiffReport) -> DiffReport:
    """From the other side."""

    def texts(document_id: str) -> Texts:
        before, after = found.texts(document_id)
        return after, before

    return DiffReport(found.b, found.a, found.removed, found.added, found.changed, texts)
