"""Collections that are read through a source: its events become records, texts and a cursor.

Invariants
    The cursor enters the journal after all events before it, so a killed run may repeat events, but loses none.
    A document that a source does not report is kept, unless the source reported all of its documents.
"""

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pair import errors
from pair.clock import Clock
from pair.reading.contract import Reader, Reading, UnreadableDocument
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, Source, SourceFault, Unchanged
from pair.sync.discover import NamedCollection, find_name_fault
from pair.sync.report import SyncCounts
from pair.sync.rules import SyncSettings, source_interval
from pair.sync.source_text import PageCache, hash_reading
from pair.sync.state import ItemRecord, format_time, read_collection
from pair.sync.store import StateStore
from pair.values import redact_url

Change = Literal["new", "changed"]


@dataclass(frozen=True)
class ItemParts:
    """The parts that all sources of a run share."""

    settings: SyncSettings
    store: StateStore
    copies: PageCache
    reader: Reader
    counts: SyncCounts
    clock: Clock
    owners: frozenset[str]
    """URLs of links files, which no source may own."""
    summarise: Callable[[str, Change], None]
    """A function that is called for each item that needs a summary."""
    must_stop: Callable[[], bool]


@dataclass
class SourceSync:
    """The sync of one source."""

    named: NamedCollection
    parts: ItemParts
    _cursor: object = None
    _mentioned: set[str] = field(default_factory=set)
    _touched: set[str] = field(default_factory=set)
    """Items that were counted, and are not unchanged."""
    _failed: set[str] = field(default_factory=set)

    def read(self, open_source: Callable[[NamedCollection], Source], *, ignore_cursor: bool) -> set[str]:
        """Read the source from its cursor; events before a fault count. Return the faults of items and source."""
        parts, name = self.parts, self.named.name
        known = parts.store.state.cursors.get(name, {})
        items = {source_id: value for source_id, value in parts.store.state.sources.copy().items() if "item" in value}
        items = {source_id: value for source_id, value in items.items() if read_collection(value) == name}
        # An item that lost its text must be reported again, and so must one whose id has a token.
        is_whole = all(parts.copies.exists(source_id) and redact_url(source_id) == source_id for source_id in items)
        if not ignore_cursor and is_whole and known.get("definition") == self.named.collection.definition:
            self._cursor = known.get("value")
        before = {source_id for source_id, value in items.items() if not value.get("summary_pending")}
        problem = ""
        try:
            for event in open_source(self.named).read(self._cursor):
                self._apply(event)
                if parts.must_stop():
                    return self._failed
        except SourceFault as fault:
            problem = redact_url(str(fault))
        except errors.PairError as fault:
            problem = redact_url(fault.message)
        is_waiting = not problem or bool(items or self._mentioned)  # Every run tries a new source, like a new URL.
        if problem:
            self._fail(name, problem)
        parts.counts.add("unchanged", len(before - self._touched))
        self._save_cursor(problem, is_finished=is_waiting)
        return self._failed

    def _save_cursor(self, problem: str = "", *, is_finished: bool) -> None:
        now, settings, given = self.parts.clock.now(), self.parts.settings, self.named.collection
        wait = settings.runtime_refresh_tick_seconds if problem else source_interval(given, settings)
        due = now + datetime.timedelta(seconds=wait) if is_finished else now
        value = {"next_check_at": format_time(due), "definition": given.definition, "value": self._cursor}
        self.parts.store.put_cursor(self.named.name, value | ({"problem": problem} if problem else {}))

    def _apply(self, event: Event) -> None:
        match event:
            case Cursor(value):
                self._cursor = value
                self._save_cursor(is_finished=False)
            case Complete():
                for source_id, value in self.parts.store.state.sources.copy().items():
                    is_own = "item" in value and read_collection(value) == self.named.name
                    if is_own and source_id not in self._mentioned:
                        self._remove(source_id)
            case Unchanged(item_id):
                self._mentioned.add(self._make_id(item_id))
            case Deleted(item_id):
                self._remove(self._make_id(item_id))
            case Failed(item_id, reason):
                self._fail(self._make_id(item_id), reason)
            case Item():
                self._apply_item(event)

    def _make_id(self, item_id: str) -> str:
        """Return the id of a document: a URL, without its tokens, has the same id in every collection."""
        return redact_url(item_id) if _is_url(item_id) else f"{self.named.name}/{item_id}"

    def _apply_item(self, item: Item) -> None:
        parts, source_id = self.parts, self._make_id(item.id)
        fault = find_name_fault(source_id, "id") or self._find_other_owner(source_id)
        if fault is None and len(item.content) > parts.settings.max_source_bytes:
            fault = f"larger than {parts.settings.max_source_bytes:,} bytes"
        try:
            if fault is not None:
                raise UnreadableDocument(fault)
            read = parts.reader.read(item.content, item.name or item.id, item.content_type, item.charset)
        except UnreadableDocument as unreadable:
            self._fail(source_id, str(unreadable))
            return
        self._mentioned.add(source_id)
        reading = Reading(read.text, item.title or read.title, {**read.metadata, **item.metadata})
        parts.counts.add("fetched")
        parts.counts.add("bytes_read", len(item.content))
        self._put(source_id, redact_url(item.url) or (source_id if _is_url(item.id) else ""), reading)

    def _put(self, source_id: str, url: str, reading: Reading) -> None:
        parts, record = self.parts, self.parts.store.state.item(source_id)
        is_known = record is not None and record.item_url == url and parts.copies.exists(source_id)
        if record is not None and is_known and record.content_hash == hash_reading(reading):
            return
        kept = dataclasses.replace(reading, text=parts.copies.write(source_id, reading.text))
        now = parts.clock.now()
        parts.store.put(
            ItemRecord(
                source_id,
                hash_reading(kept),
                record.summary_text if record is not None else "",
                summary_pending=True,
                last_indexed_at=record.last_indexed_at if record is not None else now,
                last_fetched_at=now,
                collection=self.named.name,
                item_url=url,
                title=kept.title,
                metadata=kept.metadata,
            )
        )
        change: Change = "new" if record is None else "changed"
        if source_id not in self._touched:
            self._touched.add(source_id)
            parts.counts.add("added" if record is None else "changed")
        parts.summarise(source_id, change)

    def _find_other_owner(self, source_id: str) -> str | None:
        """Return why an item does not belong to this collection."""
        if source_id in self.parts.owners:
            return "a links file lists it"
        value = self.parts.store.state.sources.get(source_id)
        if value is None or read_collection(value) == self.named.name:
            return None
        return f"it belongs to collection {read_collection(value)}" if read_collection(value) else "a file has this id"

    def _fail(self, source_id: str, reason: str) -> None:
        self._mentioned.add(source_id)
        self._touched.add(source_id)
        self._failed.add(source_id)
        self.parts.counts.add("failed")
        self.parts.counts.note_problem(source_id, redact_url(reason))

    def _remove(self, source_id: str) -> None:
        record = self.parts.store.state.item(source_id)
        if record is not None and record.collection == self.named.name:
            self.parts.store.remove(source_id)
            self.parts.copies.remove(source_id)
            self._touched.add(source_id)
            self.parts.counts.add("removed")


def _is_url(item_id: str) -> bool:
    return item_id.startswith(("http://", "https://"))


def move_renamed(collections: Sequence[NamedCollection], store: StateStore, copies: PageCache) -> None:
    """Move the items of a renamed source, and then its cursor, so that a killed run moves the rest next time."""
    state, names = store.state, {entry.name for entry in collections}
    for entry in collections:
        if not entry.collection.is_source or entry.fault or entry.name in state.cursors:
            continue
        definition = entry.collection.definition
        known = (name for name, cursor in state.cursors.items() if cursor.get("definition") == definition)
        former = next((name for name in known if name not in names), None)
        if former is None:
            continue
        for source_id in sorted(state.ids("item")):
            record = state.item(source_id)
            if record is not None and record.collection == former:
                _move_item(record, entry.name, store, copies)
        store.put_cursor(entry.name, state.cursors[former])
        store.put_cursor(former, None)


def _move_item(record: ItemRecord, name: str, store: StateStore, copies: PageCache) -> None:
    source_id, prefix = record.source_id, f"{record.collection}/"
    moved = f"{name}/{source_id.removeprefix(prefix)}" if source_id.startswith(prefix) else source_id
    text = copies.read(source_id)
    if moved != source_id and text is not None:
        copies.write(moved, text)
    store.put(dataclasses.replace(record, source_id=moved, collection=name))
    if moved != source_id:
        store.remove(source_id)
        copies.remove(source_id)
