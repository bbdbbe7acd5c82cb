"""Decisions about the sources of a sync: read, fetch, summarise, and the time of the next check (pure).

Each rule of the specification is named where it is applied: docs/reference/rules.md.
"""

import dataclasses
import datetime
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Gt, Le

from pair.sync.collection import CollectionSettings
from pair.sync.state import FileRecord, ItemRecord, UrlRecord, parse_time
from pair.values import LONGEST_WAIT_SECONDS

if TYPE_CHECKING:  # pair.network loads ssl, which settings do not need
    from pair.network import PageFault

_LONGEST_PAUSE = datetime.timedelta(days=7)
_LONGEST_INTERVAL_SECONDS = 1_000_000_000
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SyncSettings:
    """Settings of sync: the files and pages of this project, and how often they are checked."""

    collections: Mapping[str, CollectionSettings] = field(default_factory=dict)
    """Folders, links files, sites, feeds, buckets and commands to sync, by name."""
    sources_dir: str = ".pair/knowledge"
    """Folder that `pair install` fills and `pair sync` reads."""
    links_file_path: str = ".pair/links.txt"
    """File with URLs to sync, one a line. `#` starts a comment."""
    index_path: str = ".pair/index.txt"
    """Index of all sources, as text."""
    llms_txt_path: str = ""
    """The same index in llms.txt format, with links. Empty to write none."""
    index_cache_path: str = ".pair/index-cache.json"
    """File with the state of the sync."""
    web_fetch_cache_dir: str = ".pair/web-cache"
    """Folder for fetched pages."""
    web_fetch_timeout_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] = 30.0
    """Maximum time to fetch a page, including redirects."""
    web_fetch_renderer: Literal["http", "browser"] = "http"
    """How pages are fetched: http, or browser to run their scripts in an installed Chromium (extra `browser`)."""
    allow_private_addresses: bool = False
    """Also fetch pages from loopback, private and link-local addresses."""
    max_source_bytes: Annotated[int, Gt(0)] = 2_000_000
    """Maximum size of a file or page."""
    url_refresh_min_interval_seconds: Annotated[float, Ge(0), Le(_LONGEST_INTERVAL_SECONDS)] = 3600.0
    """Minimum time between two checks of a URL."""
    runtime_refresh_tick_seconds: Annotated[float, Gt(0), Le(_LONGEST_INTERVAL_SECONDS)] = 300.0
    """Time between two syncs of a server or `--watch`, and before a failed URL is tried again."""
    url_download_concurrency: Annotated[int, Gt(0)] = 8
    """Number of pages to fetch in parallel."""
    summarization_concurrency: Annotated[int, Gt(0)] = 4
    """Number of summaries to write in parallel."""


Reason = Literal["new", "changed", "pending", "due", "unchanged"]
_Record = TypeVar("_Record", bound=FileRecord | UrlRecord | ItemRecord)


def add_summary(record: _Record, summary: str, now: datetime.datetime) -> _Record:
    """Return the record after a summary. `record` has the current hash, size and time."""
    return dataclasses.replace(record, summary_text=summary, summary_pending=False, last_indexed_at=now)


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


class FileSeen(NamedTuple):
    size_bytes: int
    mtime_ns: int
    collection: str = ""


def file_reason(record: FileRecord | None, seen: FileSeen) -> Reason:
    """Return the action for a file, from `stat` alone; "changed" means that it must be read."""
    if record is None:
        return "new"  # sync-13
    if (record.size_bytes, record.mtime_ns) != (seen.size_bytes, seen.mtime_ns):
        return "changed"  # sync-17
    return "pending" if record.summary_pending else "unchanged"  # sync-14, sync-15


def file_needs_summary(record: FileRecord | None, content_hash: str) -> bool:
    """Return whether a file that was read must be summarised."""  # sync-18
    return record is None or record.summary_pending or record.content_hash != content_hash


def file_summary_failed(record: FileRecord | None, fresh: FileRecord) -> FileRecord:
    """Return the record after a failed summary. `fresh` is pending. An unchanged file keeps its record."""
    if record is None:
        return fresh  # sync-13
    if (record.size_bytes, record.mtime_ns) == (fresh.size_bytes, fresh.mtime_ns):
        return record  # sync-16
    # sync-19
    return dataclasses.replace(fresh, summary_text=record.summary_text, last_indexed_at=record.last_indexed_at)


def file_touched(record: FileRecord, seen: FileSeen) -> FileRecord:
    """Return the record of a file with the same content and a different size or time."""  # sync-20
    return dataclasses.replace(record, size_bytes=seen.size_bytes, mtime_ns=seen.mtime_ns)


# ── URLs ───────────────────────────────────────────────────────────────────────────────────────────


def url_reason(
    record: UrlRecord | None, now: datetime.datetime, settings: SyncSettings, *, refresh: bool = False
) -> Reason:
    """Return the action for a URL; `refresh` makes a known URL due now."""
    if record is None:
        return "new"  # sync-21
    if refresh or is_due(record.next_check_at, now, settings):
        return "due"  # sync-24
    return "pending" if record.summary_pending else "unchanged"  # sync-33


def is_due(next_check_at: datetime.datetime, now: datetime.datetime, settings: SyncSettings) -> bool:
    """Return whether a check is due. A time later than any rule allows came from a clock that was ahead."""
    furthest = max(settings.url_refresh_min_interval_seconds, settings.runtime_refresh_tick_seconds)
    return next_check_at <= now or (next_check_at - now).total_seconds() > furthest


def reschedule_url(record: UrlRecord, last_interval_seconds: float | None, settings: SyncSettings) -> UrlRecord:
    """Make the next check earlier if the interval was lowered since the last run."""
    if last_interval_seconds is None or settings.url_refresh_min_interval_seconds >= last_interval_seconds:
        return record
    if record.summary_pending or record.fetch_status not in {"success", "not_modified"}:
        return record
    if (record.next_check_at - record.last_fetched_at).total_seconds() <= settings.url_refresh_min_interval_seconds:
        return record
    return dataclasses.replace(record, next_check_at=_after_interval(record.last_fetched_at, settings))


def pause_until(now: datetime.datetime, seconds: float) -> datetime.datetime:
    """Return the time when a host that asked for a pause may get requests again: after a week at most."""
    return now + datetime.timedelta(seconds=min(seconds, _LONGEST_PAUSE.total_seconds()))


def is_paused(until: datetime.datetime, now: datetime.datetime) -> bool:
    """Return whether a host still pauses. A longer pause than the maximum came from a clock that was ahead."""
    return now < until and until - now <= _LONGEST_PAUSE


@dataclass(frozen=True)
class PageSeen:
    """A page that was fetched."""

    content_hash: str
    etag: str | None
    last_modified: str | None
    validated_at: str | None = None
    """The origin that gave the validators, if redirects led to another one."""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def url_after_first_fetch(url: str, page: PageSeen, now: datetime.datetime, settings: SyncSettings) -> UrlRecord:
    """Return the record to store before the summary, so that the page need not be fetched again."""  # sync-22
    validated_at = page.validated_at
    blank = UrlRecord(url, page.content_hash, "", True, now, now, None, None, "success", now, validated_at=validated_at)
    return url_after_fetch(blank, page, now, settings)


def url_needs_summary(record: UrlRecord, content_hash: str) -> bool:
    """Return whether a page that was fetched again must be summarised."""  # sync-28
    return record.content_hash != content_hash or record.summary_pending or not record.summary_text.strip()


def url_after_fetch(record: UrlRecord, page: PageSeen, now: datetime.datetime, settings: SyncSettings) -> UrlRecord:
    """Return the record after HTTP 200. It acknowledges the new content before it is summarised."""  # sync-29, sync-31
    etag, last_modified, validated_at = _validators_after(record, page)
    return dataclasses.replace(
        record,
        content_hash=page.content_hash,
        summary_pending=url_needs_summary(record, page.content_hash),
        etag=etag,
        last_modified=last_modified,
        fetch_status="success",
        last_fetched_at=now,
        next_check_at=_after_interval(now, settings),
        problem="",
        validated_at=validated_at,
        title=page.title,
        metadata=page.metadata,
    )


def _validators_after(record: UrlRecord, page: PageSeen) -> tuple[str | None, str | None, str | None]:
    """Return the validators after an answer. Missing validators keep their old value if that is safe.

    For new content, an old entity tag would let the server confirm content that no longer exists, and so would an old
    date without an entity tag. With an entity tag, servers ignore the date (RFC 9110, 13.1.3).
    """
    etag, last_modified = page.etag, page.last_modified
    if not (etag or last_modified) and page.content_hash == record.content_hash:
        return record.etag, record.last_modified, record.validated_at
    if page.validated_at == record.validated_at:
        if page.content_hash == record.content_hash:
            etag = etag or record.etag
        if etag:
            last_modified = last_modified or record.last_modified
    return etag, last_modified, page.validated_at


def url_not_modified(record: UrlRecord, now: datetime.datetime, settings: SyncSettings) -> UrlRecord:
    """Return the record after HTTP 304."""  # sync-26
    due = _after_interval(now, settings)
    return dataclasses.replace(record, fetch_status="not_modified", last_fetched_at=now, next_check_at=due, problem="")


def url_failed(record: UrlRecord, fault: "PageFault", now: datetime.datetime, settings: SyncSettings) -> UrlRecord:
    """Return the record after a failure. It keeps content and summary; the URL is due after a tick."""  # sync-32
    next_check_at = _after_tick(now, settings)
    return dataclasses.replace(record, fetch_status=fault.kind, next_check_at=next_check_at, problem=fault.reason)


def url_summary_failed(record: UrlRecord, now: datetime.datetime, settings: SyncSettings) -> UrlRecord:
    """Return the record after a failed summary: the old summary, due after a tick."""  # sync-30
    return dataclasses.replace(record, summary_pending=True, next_check_at=_after_tick(now, settings))


def _after_interval(now: datetime.datetime, settings: SyncSettings) -> datetime.datetime:
    return now + datetime.timedelta(seconds=settings.url_refresh_min_interval_seconds)


def _after_tick(now: datetime.datetime, settings: SyncSettings) -> datetime.datetime:
    return now + datetime.timedelta(seconds=settings.runtime_refresh_tick_seconds)


# ── sources of items ───────────────────────────────────────────────────────────────────────────────


def source_interval(collection: CollectionSettings, settings: SyncSettings) -> float:
    """Return the minimum time between two reads of a source."""
    seconds = collection.interval_seconds
    return settings.url_refresh_min_interval_seconds if seconds is None else seconds


def source_is_due(
    collection: CollectionSettings, cursor: Mapping[str, Any] | None, now: datetime.datetime, settings: SyncSettings
) -> bool:
    """Return whether a source must be read now: it is due, new, or defined differently."""
    if cursor is None or cursor.get("definition") != collection.definition:
        return True
    own = dataclasses.replace(settings, url_refresh_min_interval_seconds=source_interval(collection, settings))
    return is_due(parse_time(cursor["next_check_at"]), now, own)


# ── the source set ─────────────────────────────────────────────────────────────────────────────────


def parse_links(text: str) -> list[str]:
    """Return the lines of the file, each once; `#` at the start or after a space begins a comment."""
    lines = (_COMMENT.sub("", line).strip() for line in text.lstrip("\ufeff").splitlines())  # sync-10
    return list(dict.fromkeys(line for line in lines if line))


def matches_pattern(url: str, pattern: str) -> bool:
    """Return whether a URL matches a pattern: a glob if the pattern has wildcards, else a part of the URL."""
    return fnmatch.fnmatchcase(url, pattern) if _WILDCARD.search(pattern) else pattern in url
