"""The state of a sync on disk: saved together with the index, and never behind reported progress.

Invariants
    A change is in the journal before it is reported, so a killed run repeats no finished work.
    The journal is on disk moments later: changes that finish together share one fsync.
    State, index and llms.txt are written together, by one thread; changes that come during a save share
    the next. A change is in all of them within a second, or ten times as long as the last save took.
    Saving takes at most an eighth of the time.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from pair import errors, files
from pair.clock import Clock
from pair.sync.rules import FileSeen
from pair.sync.state import (
    JOURNAL_VALUES,
    SCHEMA_VERSION,
    JournalLine,
    LlmsFile,
    Record,
    StoredSkip,
    SyncState,
    format_index,
    format_time,
    parse_time,
    record_to_json,
    state_from_json,
)
from pair.text.characters import clip
from pair.values import convert_json

_GROUP_SECONDS = 0.05
"""Time for changes to share one fsync of the journal. On many disks, an fsync blocks appends."""
_REST_SECONDS = 0.5
_RESTS_PER_SAVE = 7
"""Pause between saves, as a multiple of their duration. A change is saved within the time of ten saves."""
_END = b"\n}}\n"
_PROBLEMS = 200
_REASON_CHARACTERS = 300


class StateHead(msgspec.Struct):
    """The first line of the state: enough to know that there is nothing to do."""

    schema_version: int
    index_sha256: str
    source_count: int
    settled: str
    """Fingerprint of the source set after a complete run; empty after an incomplete one."""
    next_check_at: Any
    """The time of the first due check of a URL; null without URLs."""
    last_check_at: Any
    skipped: dict[str, StoredSkip]
    llms_mark: str = ""


@dataclass(frozen=True)
class Loaded:
    state: SyncState
    newest_journal: int | None
    """The generation of the newest journal; None when the saved state is complete."""


class StateStore:
    """The state of one sync. `open` it under the lock; change it from any thread."""

    def __init__(self, cache_path: Path, index_path: Path, clock: Clock, llms: LlmsFile | None = None) -> None:
        self._cache_path = cache_path
        self._index_path = index_path
        self._llms = llms
        self._paths = (cache_path, index_path, llms.path) if llms is not None else (cache_path, index_path)
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._appended = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._lines: dict[str, tuple[dict[str, Any], bytes]] = {}
        self._journal = -1
        self._is_journal_new = False
        self._is_unsynced = False
        self._is_dirty = False
        self._is_closed = False
        self._fault: BaseException | None = None
        self.state = SyncState()
        self.saves = 0
        self.bytes_written = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Self]:
        """Load and repair the state. Everything is saved when the block ends, even after an error."""
        loaded = load(self._cache_path, self._clock)
        self.state = loaded.state
        self._remove_saved_journals(self.state.generation)
        files.remove_half_written(*self._paths)
        self._is_dirty = loaded.newest_journal is not None or not self._is_written()
        if loaded.newest_journal is not None:
            self.state.generation = loaded.newest_journal + 1
        threads = [
            threading.Thread(target=self._save_until_closed, name="pair-save"),
            threading.Thread(target=self._sync_journal_until_closed, name="pair-journal"),
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            with self._lock:
                self._closing.set()
                self._changed.notify_all()
                self._appended.notify_all()
            for thread in threads:
                thread.join()
            if self._journal >= 0:
                os.close(self._journal)
        if self._fault is not None:
            raise self._fault
        if self._is_dirty:
            raise RuntimeError("the saving thread ended before everything was saved")

    def read_settled_head(self) -> StateHead | None:
        """Return the head; None if the state is missing, a run was interrupted, or the index differs."""
        try:
            with self._cache_path.open("rb") as stream:
                value = json.loads(stream.readline().rstrip()[: -len(b"{")] + b"{}}")
                stream.seek(-len(_END), os.SEEK_END)
                is_whole = stream.read() == _END
            head = convert_json(value, StateHead)
        except (OSError, ValueError, RecursionError):
            return None
        if not is_whole or head.schema_version != SCHEMA_VERSION or _journals(self._cache_path):
            return None
        self.state.index_sha256, self.state.llms_mark = head.index_sha256, head.llms_mark
        return head if head.settled and self._is_written() else None

    def settle(self, fingerprint: str) -> None:
        """Note that this run was complete."""
        self._note("settled", fingerprint)

    def _note(self, name: str, value: object) -> None:
        """Set a field of the state. An equal value does not count as a change."""
        with self._lock:
            if getattr(self.state, name) != value:
                setattr(self.state, name, value)
                self._is_dirty = True

    def note_problems(self, problems: dict[str, str]) -> None:
        """Keep the first problems, shortened. The same problems again do not count as a change."""
        kept = {source_id: clip(problems[source_id], _REASON_CHARACTERS) for source_id in sorted(problems)[:_PROBLEMS]}
        self._note("problems", kept)

    def note_pause(self, host: str, until: datetime.datetime) -> None:
        """Note that a host asked for no request before this time."""
        with self._lock:
            self.state.pauses[host] = format_time(until)
            self._is_dirty = True
            self._changed.notify()

    def note_interval(self, seconds: float) -> None:
        """Note the refresh interval of this run."""
        self._note("interval_seconds", seconds)

    def note_reader(self, version: int, readers: list[str]) -> None:
        """Note that this version of the reader read every file, with the readers of these extras."""
        with self._lock:
            self._note("reader_version", version)
            self._note("readers", readers)

    # Changes

    def put(self, record: Record) -> None:
        self._change("source", record.source_id, record_to_json(record))

    def remove(self, source_id: str) -> None:
        self._change("source", source_id, None)

    def skip(self, path: str, seen: FileSeen, reason: str) -> None:
        """Note that a file is not a source, so that it is not read again."""
        self._change("skipped", path, {"size_bytes": seen.size_bytes, "mtime_ns": seen.mtime_ns, "reason": reason})

    def unskip(self, path: str) -> None:
        self._change("skipped", path, None)

    def put_cursor(self, collection: str, value: dict[str, Any] | None) -> None:
        """Note the position of the next read of a source. All events before it are in the journal by then."""
        self._change("cursor", collection, value)

    def _change(self, kind: str, key: str, value: dict[str, Any] | None) -> None:
        with self._lock:
            if self._fault is not None:
                raise self._fault
            if self._is_closed:
                raise RuntimeError("a change came after the run was abandoned")
            self._append_to_journal({"kind": kind, "key": key, "value": value})
            _apply(self.state, kind, key, value)
            self.state.settled = ""
            self._is_dirty = self._is_unsynced = True
            self._changed.notify()
            self._appended.notify()

    def _append_to_journal(self, change: dict[str, Any]) -> None:
        if self._journal < 0:
            path = self._cache_path.with_name(f"{self._cache_path.name}.journal-{self.state.generation}")
            files.make_folder(path.parent)
            self._journal = files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._is_journal_new = True
        line = json.dumps(change).encode() + b"\n"
        whole_bytes = os.fstat(self._journal).st_size
        try:
            files.write_all(self._journal, line)
        except OSError:
            # Half a line on a full disk would damage the next one.
            os.ftruncate(self._journal, whole_bytes)
            raise
        self.bytes_written += len(line)

    def _sync_journal_until_closed(self) -> None:
        while True:
            with self._lock:
                self._appended.wait_for(lambda: self._is_unsynced or self._closing.is_set())
            self._closing.wait(_GROUP_SECONDS)
            with self._lock:
                if not self._is_unsynced:
                    return
                self._is_unsynced = False
                # A concurrent save may close the journal; it syncs the journal before that.
                journal = os.dup(self._journal) if self._journal >= 0 else -1
                is_new, self._is_journal_new = self._is_journal_new, False
            if journal < 0:
                continue
            try:
                with files.closing(journal):
                    os.fsync(journal)
                    if is_new:
                        files.sync_folder(self._cache_path.parent)
            except OSError as fault:
                self._fail(fault)
                return

    # Saving

    def _save_until_closed(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._is_dirty or self._closing.is_set())
                if not self._is_dirty:
                    self._is_closed = True
                    return
            began = self._clock.monotonic()
            try:
                self._save()
            except (OSError, errors.PairError) as fault:
                self._fail(fault)
                return
            # Changes during this pause are part of the next save.
            self._closing.wait(max(_REST_SECONDS, _RESTS_PER_SAVE * (self._clock.monotonic() - began)))

    def _fail(self, fault: BaseException) -> None:
        with self._lock:
            self._fault = self._fault or fault

    def _save(self) -> None:
        with self._lock:
            snapshot = dataclasses.replace(
                self.state,
                sources=dict(self.state.sources),
                skipped=dict(self.state.skipped),
                cursors=dict(self.state.cursors),
                pauses=dict(self.state.pauses),
                generation=self.state.generation + 1,
            )
            self.state.generation = snapshot.generation
            if self._journal >= 0:
                os.fsync(self._journal)
                os.close(self._journal)
                self._journal = -1
            self._is_dirty = False
        index = format_index(snapshot.sources).encode("utf-8", errors="surrogateescape")
        snapshot.index_sha256 = self.state.index_sha256 = hashlib.sha256(index).hexdigest()
        llms = [self._llms.content(snapshot.sources)] if self._llms is not None else []
        snapshot.llms_mark = self.state.llms_mark = self._llms.make_mark(*llms) if self._llms is not None else ""
        contents = [self._encode(snapshot), index, *llms]
        for path in self._paths:
            files.make_folder(path.parent)
        files.write_together(*zip(self._paths, contents, strict=True))
        self._remove_saved_journals(snapshot.generation)
        self.saves += 1
        self.bytes_written += sum(map(len, contents))

    def _remove_saved_journals(self, generation: int) -> None:
        """Remove journals whose changes are part of the state of this generation."""
        for number, path in _journals(self._cache_path):
            if number < generation:
                files.unlink(path, missing_ok=True)

    def _encode(self, snapshot: SyncState) -> bytes:
        """Encode the state, one source per line. A source that did not change is not encoded again."""
        self._lines = {source_id: self._line(source_id, value) for source_id, value in snapshot.sources.items()}
        checks = [value["url"].get("next_check_at") for value in snapshot.sources.values() if "url" in value]
        checks += [cursor["next_check_at"] for cursor in snapshot.cursors.values()]
        now = self._clock.now()
        pauses = {host: until for host, until in snapshot.pauses.items() if parse_time(until) > now}
        head = {
            "schema_version": SCHEMA_VERSION,
            "generated_at": format_time(now),
            "generation": snapshot.generation,
            "index_sha256": snapshot.index_sha256,
            **({"llms_mark": snapshot.llms_mark} if snapshot.llms_mark else {}),
            "source_count": len(snapshot.sources),
            "settled": snapshot.settled,
            "next_check_at": min(checks, key=parse_time, default=None),
            "last_check_at": max(checks, key=parse_time, default=None),
            "interval_seconds": snapshot.interval_seconds,
            "reader_version": snapshot.reader_version,
            **({"readers": snapshot.readers} if snapshot.readers is not None else {}),
            **({"pauses": pauses} if pauses else {}),
            "skipped": {path: snapshot.skipped[path] for path in sorted(snapshot.skipped)},
            "problems": snapshot.problems,
            **({"cursors": snapshot.cursors} if snapshot.cursors else {}),
        }
        lines = [self._lines[source_id][1] for source_id in sorted(snapshot.sources)] or [b""]
        # Joined once, because the state of many sources is large.
        lines[0] = f'{json.dumps(head)[:-1]}, "sources": {{\n'.encode() + lines[0]
        lines[-1] += _END
        return b",\n".join(lines)

    def _line(self, source_id: str, value: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return a record and its line. A change replaces a record, and never alters it."""
        known = self._lines.get(source_id)
        if known is not None and known[0] is value:
            return known
        return value, f"{json.dumps(source_id)}: {json.dumps(value)}".encode()

    def _is_written(self) -> bool:
        """Return whether index and llms.txt belong to the state; a state that was never saved needs neither."""
        try:
            index = hashlib.sha256(self._index_path.read_bytes()).hexdigest()
            if index != self.state.index_sha256 or self._llms is None:
                return index == self.state.index_sha256
            return self._llms.make_mark(self._llms.path.read_bytes()) == self.state.llms_mark
        except OSError:
            return not self.state.index_sha256


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def load(cache_path: Path, clock: Clock) -> Loaded:
    """Return the saved state with the changes of journals. Raises E102, and moves a damaged file aside."""
    try:
        return read(cache_path)
    except ValueError as fault:
        stamp = clock.now().strftime("%Y%m%dT%H%M%S.%f")
        kept_at = cache_path.with_name(f"{cache_path.name}.damaged-{stamp}")
        while kept_at.exists():
            kept_at = kept_at.with_name(f"{kept_at.name}-again")
        files.rename(cache_path, kept_at)
        for generation, path in _journals(cache_path):
            files.rename(path, path.with_name(f"{kept_at.name}.{generation}"))
        raise errors.sync_state_unreadable(str(cache_path), str(fault), str(kept_at)) from fault


def read_state(cache_path: Path) -> SyncState:
    """Return the saved state with the changes of journals. Raises E102, and does not move a damaged file."""
    try:
        return read(cache_path).state
    except ValueError as fault:
        raise errors.sync_state_unreadable(str(cache_path), str(fault), str(cache_path)) from fault


def read_signature(cache_path: Path) -> str:
    """Return a value that changes whenever the state is saved."""
    seen = cache_path.stat() if cache_path.exists() else None
    return f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns}" if seen else "none"


_READING_TRIES = 20


def read(cache_path: Path) -> Loaded:
    """Read a state; a missing file is an empty state. Raises ValueError with a readable reason if it is damaged."""
    for _ in range(_READING_TRIES):
        before = read_signature(cache_path)
        loaded = _read_once(cache_path)
        # A concurrent save writes a new file and removes the journal: read again.
        if read_signature(cache_path) == before:
            break
    return loaded


def _read_once(cache_path: Path) -> Loaded:
    try:
        content = cache_path.read_bytes()
    except FileNotFoundError:
        state = SyncState()
    else:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as fault:
            raise ValueError("It is not valid JSON") from fault
        state = state_from_json(value)
    newest = None
    for generation, path in _journals(cache_path):
        if generation >= state.generation:
            newest = generation
            _replay(path, state)
    return Loaded(state, newest)


def _replay(path: Path, state: SyncState) -> None:
    """Apply the journal to the state. A truncated last line is ignored."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                change = convert_json(json.loads(line), JournalLine)
                convert_json(change.value, JOURNAL_VALUES[change.kind])
                _apply(state, change.kind, change.key, change.value)


def _apply(state: SyncState, kind: str, key: str, value: dict[str, Any] | None) -> None:
    known = {"source": state.sources, "skipped": state.skipped, "cursor": state.cursors}[kind]
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def _journals(cache_path: Path) -> list[tuple[int, Path]]:
    """Return the journals by generation, oldest first."""
    pattern = re.compile(re.escape(cache_path.name) + r"\.journal-(\d+)")
    if not cache_path.parent.is_dir():
        return []
    names = ((pattern.fullmatch(path.name), path) for path in cache_path.parent.iterdir())
    return sorted((int(match[1]), path) for match, path in names if match)
