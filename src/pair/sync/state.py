"""The state of a sync for each file, URL and item: its JSON, `index.txt` and `llms.txt`.

The same state gives the same bytes.

Records are made from JSON only when they are used: a run with nothing to do compares numbers.
"""

import datetime
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from pair.values import convert_json

SCHEMA_VERSION = 1
READER_VERSION = 4
"""The version of the reader. A new version reads all files again."""
FetchStatus = Literal["success", "not_modified", "timeout", "error"]

_LONG_AGO = datetime.datetime.fromtimestamp(0, datetime.UTC)


def format_time(instant: datetime.datetime) -> str:
    """Return the instant as RFC 3339 in UTC, with microseconds unless they are 0."""
    return instant.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: Any) -> datetime.datetime:
    """Parse an instant. An invalid text counts as long ago, so that its source is checked."""
    try:
        instant = datetime.datetime.fromisoformat(str(text))
        return instant.astimezone(datetime.UTC) if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        return _LONG_AGO


@dataclass(frozen=True, slots=True)
class FileRecord:
    source_id: str
    content_hash: str
    summary_text: str
    summary_pending: bool
    last_indexed_at: datetime.datetime
    size_bytes: int
    mtime_ns: int
    collection: str = ""


@dataclass(frozen=True, slots=True)
class UrlRecord:
    source_id: str
    content_hash: str
    summary_text: str
    summary_pending: bool
    last_indexed_at: datetime.datetime
    last_fetched_at: datetime.datetime
    etag: str | None
    last_modified: str | None
    fetch_status: FetchStatus
    next_check_at: datetime.datetime
    problem: str = ""
    """The reason why the last fetch failed, as a message."""
    validated_at: str | None = None
    """The origin that gave the validators, if redirects led to another one."""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    collection: str = ""


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """A document that a source reported. Its text is stored like that of a page."""

    source_id: str
    content_hash: str
    summary_text: str
    summary_pending: bool
    last_indexed_at: datetime.datetime
    last_fetched_at: datetime.datetime
    collection: str
    item_url: str = ""
    """The URL for display."""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


Record = FileRecord | UrlRecord | ItemRecord
SourceType = Literal["file", "url", "item"]
_Kind = TypeVar("_Kind", FileRecord, UrlRecord, ItemRecord)
_KINDS: Mapping[type[Record], tuple[SourceType, str]] = {
    FileRecord: ("file", "rel_path"),
    UrlRecord: ("url", "url"),
    ItemRecord: ("item", "item_id"),
}
"""The type of a record, and the name of its id, in the stored form."""
_SHARED = ("content_hash", "summary_text", "summary_pending", "last_indexed_at")
_TIMES = frozenset({"last_indexed_at", "last_fetched_at", "next_check_at"})
_OPTIONAL = {"title": "", "metadata": {}, "collection": "", "item_url": ""}
"""Fields that are omitted from the JSON if they are empty."""
_MISSING = {"summary_pending": False, "fetch_status": "success", "problem": "", **_OPTIONAL}


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the stored form of a record: the fields of all kinds, then an object for its kind."""
    source_type, id_name = _KINDS[type(record)]
    own = msgspec.to_builtins(record)
    source_id = own.pop("source_id")
    return {
        "source_type": source_type,
        **{name: own.pop(name) for name in _SHARED},
        source_type: {id_name: source_id, **{name: own[name] for name in own if own[name] or name not in _OPTIONAL}},
    }


def record_from_json(kind: type[_Kind], source_id: str, value: dict[str, Any]) -> _Kind:
    """Return a record from its stored form. A missing time counts as long ago."""
    stored = {**_MISSING, **value, **value[_KINDS[kind][0]]}
    names = kind.__slots__[1:]  # All fields except the id.
    own: dict[str, Any] = {name: parse_time(stored.get(name)) if name in _TIMES else stored.get(name) for name in names}
    return kind(source_id, **own)


def read_collection(value: Mapping[str, Any]) -> str:
    """Return the name of the collection of a stored record; empty for `kb.sources_dir` and the links file."""
    return str(value.get(value["source_type"], {}).get("collection", ""))


def holds_text(value: Mapping[str, Any]) -> bool:
    """Return whether a stored record has a document: a blank source has none."""
    return bool(value["summary_text"] or value.get("summary_pending"))


# ── checks of stored values ───────────────────────────────────────────────────────────

_Text = Annotated[str, Meta(pattern=r"\A[^\ud800-\udc7f\udd00-\udfff]*\Z")]
"""A text that can be written again; lone surrogates are allowed only in file names."""
_Validator = Annotated[str, Meta(pattern=r"\A[ -~\x80-\xff]*\Z")]
"""A text that is sent in a header; a line end in it would begin another header."""


class _StoredStat(msgspec.Struct):
    size_bytes: int
    mtime_ns: int
    collection: _Text = ""


class _StoredPage(msgspec.Struct):
    etag: _Validator | None = None
    last_modified: _Validator | None = None
    fetch_status: _Text | None = None
    problem: _Text | None = None
    validated_at: _Text | None = None
    title: _Text = ""
    metadata: dict[_Text, Any] = {}
    collection: _Text = ""


class _StoredItem(msgspec.Struct):
    collection: _Text
    item_url: _Text = ""
    title: _Text = ""
    metadata: dict[_Text, Any] = {}


class _StoredFileSource(msgspec.Struct, tag_field="source_type", tag="file"):
    content_hash: _Text
    summary_text: _Text
    file: _StoredStat
    summary_pending: bool = False


class _StoredUrlSource(msgspec.Struct, tag_field="source_type", tag="url"):
    content_hash: _Text
    summary_text: _Text
    url: _StoredPage
    summary_pending: bool = False


class _StoredItemSource(msgspec.Struct, tag_field="source_type", tag="item"):
    content_hash: _Text
    summary_text: _Text
    item: _StoredItem
    summary_pending: bool = False


StoredSource: Any = _StoredFileSource | _StoredUrlSource | _StoredItemSource


class StoredCursor(msgspec.Struct):
    """The position of the next read of a source, and the time when it is due."""

    next_check_at: _Text
    definition: _Text = ""
    """The definition of the collection that was read: the cursor is valid only for it."""
    value: Any = None
    problem: _Text = ""
    """The reason why the last read failed, as a message."""


class StoredSkip(msgspec.Struct):
    size_bytes: int
    mtime_ns: int
    reason: _Text


class JournalLine(msgspec.Struct):
    """A change of a source, a skipped file or a cursor."""

    kind: Literal["source", "skipped", "cursor"]
    key: _Text
    value: Any


JOURNAL_VALUES: Mapping[str, Any] = {
    "source": StoredSource | None,
    "skipped": StoredSkip | None,
    "cursor": StoredCursor | None,
}


class _StoredHead(msgspec.Struct):
    generation: Annotated[int, Meta(ge=0, le=2**53)] = 0
    sources: dict[_Text, Any] = {}
    skipped: dict[_Text, StoredSkip] = {}
    cursors: dict[_Text, StoredCursor] = {}


@dataclass
class SyncState:
    """The state: records as JSON by source id, skipped files, and the cursors of collections."""

    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, dict[str, Any]] = field(default_factory=dict)
    cursors: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """The messages of sources that failed or stayed pending at their last attempt."""
    pauses: dict[str, str] = field(default_factory=dict)
    """The time until which each host asked for a pause."""
    interval_seconds: float | None = None
    """The refresh interval of the run that saved this state."""
    reader_version: int = READER_VERSION
    """The version of the reader that read all files; another version reads them again."""
    readers: list[str] | None = None
    """The readers of installed extras; files of an added one are read again. None if no run noted them."""
    generation: int = 0
    """The number of the save. The saved state includes all older journals."""
    index_sha256: str = ""
    """SHA-256 of the index file that belongs to this state."""
    llms_mark: str = ""
    """Hash of the llms.txt that belongs to this state, if one is written."""
    settled: str = ""
    """Fingerprint of the source set after a complete run."""

    def file(self, source_id: str) -> FileRecord | None:
        """Return the record of a file; None if it is missing, or is a different kind and will be replaced."""
        return self._read(FileRecord, source_id)

    def url(self, source_id: str) -> UrlRecord | None:
        return self._read(UrlRecord, source_id)

    def item(self, source_id: str) -> ItemRecord | None:
        return self._read(ItemRecord, source_id)

    def _read(self, kind: type[_Kind], source_id: str) -> _Kind | None:
        value = self.sources.get(source_id)
        return record_from_json(kind, source_id, value) if value is not None and _KINDS[kind][0] in value else None

    def page(self, source_id: str) -> UrlRecord | ItemRecord | None:
        """Return the record of a source whose text is kept."""
        return self.url(source_id) or self.item(source_id)

    def ids(self, source_type: SourceType) -> set[str]:
        return {source_id for source_id, value in self.sources.items() if value["source_type"] == source_type}

    def file_is_settled(self, source_id: str, size_bytes: int, mtime_ns: int, collection: str = "") -> bool:
        """Return whether a file needs no action. Equivalent to `rules.file_reason`, but faster."""
        value = self.sources.get(source_id)
        if value is None:
            return self.is_skipped(source_id, size_bytes, mtime_ns)
        if "file" not in value or value.get("summary_pending", False):
            return False
        seen = value["file"]
        is_same = seen["size_bytes"] == size_bytes and seen["mtime_ns"] == mtime_ns
        return bool(is_same and seen.get("collection", "") == collection)

    def is_skipped(self, source_id: str, size_bytes: int, mtime_ns: int) -> bool:
        """Return whether a file was skipped before and has not changed."""
        seen = self.skipped.get(source_id)
        return seen is not None and seen["size_bytes"] == size_bytes and seen["mtime_ns"] == mtime_ns


def state_from_json(value: Any) -> SyncState:
    """Parse a state. Raises ValueError with a readable reason."""
    if not isinstance(value, dict) or not isinstance(value.get("schema_version"), int):
        raise ValueError("It is not the state of a sync")
    if value["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"It was written by another version of pair (schema {value['schema_version']})")
    try:
        head = convert_json(value, _StoredHead)
    except ValueError as fault:
        raise ValueError("Its first line is damaged") from fault
    for source_id, record in head.sources.items():
        try:
            convert_json(record, StoredSource)
        except ValueError as fault:
            raise ValueError(f"Its record of {source_id!a:.200} is damaged") from fault
    interval_seconds: Any = value.get("interval_seconds")
    readers: Any = value.get("readers")
    return SyncState(
        head.sources,
        value.get("skipped", {}),
        value.get("cursors", {}),
        # The state is complete without these, so damage here is not an error.
        problems=_texts(value.get("problems")),
        pauses=_texts(value.get("pauses")),
        interval_seconds=float(interval_seconds) if type(interval_seconds) in {int, float} else None,
        reader_version=reader_version if type(reader_version := value.get("reader_version")) is int else 0,
        readers=[str(reader) for reader in readers] if type(readers) is list else None,
        generation=head.generation,
        index_sha256=str(value.get("index_sha256", "")),
        llms_mark=str(value.get("llms_mark", "")),
        settled=str(value.get("settled", "")),
    )


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if type(value) is dict else {}


# ── index.txt and llms.txt ─────────────────────────────────────────────────────────────────────────

_TITLE = "Knowledge base"
_MARKUP = re.compile(r"[\\`\[\]<>]")
_KEPT_IN_ADDRESSES = "!#$%&'*+,-./:;=?@[]_~"
"""Characters to encode in a link: brackets and spaces would end it."""


def format_index(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Return id and description of each source: files, URLs, and then each collection below its name."""
    entries = [*list_entries(sources, "file"), *list_entries(sources, "url")]  # sync-35..38
    blocks = [f"{source_id}\n{summary}\n" for source_id, summary in entries]
    for name in list_collections(sources):
        described = list_entries(sources, None, name)
        blocks += [f"# {name}\n", *(f"{source_id}\n{summary}\n" for source_id, summary in described)]
    return "\n".join(blocks)


def list_collections(sources: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of collections that have sources."""
    return sorted({name for value in sources.values() if (name := read_collection(value))})


def list_entries(
    sources: Mapping[str, Mapping[str, Any]], source_type: SourceType | None, collection: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield id and description, sorted by id. A source that never had a summary is left out."""
    for source_id in sorted(
        source_id
        for source_id, value in sources.items()
        if source_type in {None, value["source_type"]} and read_collection(value) == collection
    ):
        summary = tidy_summary(sources[source_id]["summary_text"])
        if summary:
            yield source_id, summary


def tidy_summary(text: str) -> str:
    """Remove blank lines, which would end an entry, and replace lone surrogates, which cannot be written."""
    lines = (line.rstrip() for line in text.encode("utf-8", errors="replace").decode("utf-8").splitlines())
    return "\n".join(line for line in lines if line)


@dataclass(frozen=True)
class LlmsFile:
    """The path of `llms.txt`, and the folders of the files that it links to, by collection."""

    path: Path
    sources_dir: Path
    folders: Mapping[str, Path] = field(default_factory=dict)

    def content(self, sources: Mapping[str, Mapping[str, Any]]) -> bytes:
        ways = {name: self._find_way(folder) for name, folder in self.folders.items()}
        text = format_llms(sources, self._find_way(self.sources_dir), ways)
        return text.encode("utf-8", errors="surrogateescape")

    def make_mark(self, content: bytes) -> str:
        """Return a hash of the content and of the path to the folder: if the folder moves, the links change."""
        ways = [self._find_way(folder) for folder in (self.sources_dir, *self.folders.values())]
        return hashlib.sha256(os.fsencode("\n".join(ways)) + b"\0" + content).hexdigest()

    def _find_way(self, folder: Path) -> str:
        """Return the relative path from the folder of the file to that of the sources."""
        way = os.path.relpath(folder, self.path.parent)
        return "" if way == "." else f"{Path(way).as_posix()}/"


def format_llms(
    sources: Mapping[str, Mapping[str, Any]], way: str, ways: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the entries of the index as Markdown links. `way` leads to the files: it is empty, or ends in a slash.

    `ways`: the paths to the files of named collections, by name.
    """

    def format_entries(source_type: SourceType | None, collection: str = "") -> list[str]:
        return [
            f"- [{_escape(source_id)}]({_find_address(source_id, sources[source_id], way, ways)}): {_escape(text)}"
            for source_id, text in list_entries(sources, source_type, collection)
        ]

    sections = {"Files": format_entries("file"), "Pages": format_entries("url")}
    counted = [_count(len(sections["Files"]), "file"), _count(len(sections["Pages"]), "page")]
    for name in list_collections(sources):
        sections[name] = format_entries(None, name)
        counted.append(f"{len(sections[name])} in {name}")
    blocks = [f"# {_TITLE}", f"> {', '.join(counted[:-1])} and {counted[-1]}"]
    for heading, lines in sections.items():
        if lines:
            blocks += [f"## {heading}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _find_address(source_id: str, value: Mapping[str, Any], way: str, ways: Mapping[str, str]) -> str:
    """Return the target of a link; for an item without a URL, its id."""
    if value["source_type"] == "file":
        name = read_collection(value)
        path = ways.get(name, "") + source_id.removeprefix(f"{name}/") if name else way + source_id
        return quote(path, errors="surrogateescape")
    return quote(str(value.get("item", {}).get("item_url") or source_id), _KEPT_IN_ADDRESSES)


def _escape(text: str) -> str:
    """Return the text on one line, with the marks of links, code and HTML escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
