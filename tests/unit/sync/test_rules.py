"""The rules about files and URLs, as tables."""

import dataclasses
import datetime
from typing import Any

import pytest

from pair.network import PageFault
from pair.sync import rules
from pair.sync.rules import FileSeen, PageSeen, SyncSettings
from pair.sync.state import FileRecord, UrlRecord
from pair.testing.clock import NOON
from support.sync_parts import later

POLICY = SyncSettings(url_refresh_min_interval_seconds=3600, runtime_refresh_tick_seconds=300)
YESTERDAY = later(-86400)
URL = "https://example.com/page"

FILE = FileRecord(
    "guide.md",
    content_hash="hash-1",
    summary_text="A guide.",
    summary_pending=False,
    last_indexed_at=YESTERDAY,
    size_bytes=10,
    mtime_ns=111,
)
PENDING_FILE = dataclasses.replace(FILE, summary_pending=True)
SEEN = FileSeen(size_bytes=10, mtime_ns=111)

PAGE_RECORD = UrlRecord(
    URL,
    content_hash="hash-1",
    summary_text="A page.",
    summary_pending=False,
    last_indexed_at=YESTERDAY,
    last_fetched_at=YESTERDAY,
    etag='"1"',
    last_modified="Sun, 01 Mar 2026 10:00:00 GMT",
    fetch_status="success",
    next_check_at=later(-1),
    problem="",
)


def page(content_hash: str = "hash-1", **others: Any) -> PageSeen:
    return PageSeen(content_hash, **({"etag": None, "last_modified": None} | others))


def changes(before: object, after: object) -> dict[str, Any]:
    """Return the fields that differ."""
    was, has = dataclasses.asdict(before), dataclasses.asdict(after)  # type: ignore[call-overload]
    return {name: value for name, value in has.items() if was[name] != value}


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "seen", "reason"),
    [
        pytest.param(None, SEEN, "new", id="no record"),
        pytest.param(FILE, SEEN, "unchanged", id="same size and time"),
        pytest.param(FILE, FileSeen(11, 111), "changed", id="another size"),
        pytest.param(FILE, FileSeen(10, 112), "changed", id="a nanosecond later"),
        pytest.param(FILE, FileSeen(10, 110), "changed", id="a nanosecond earlier"),
        pytest.param(PENDING_FILE, SEEN, "pending", id="same size and time, but no summary yet"),
        pytest.param(PENDING_FILE, FileSeen(11, 111), "changed", id="pending and changed"),
    ],
)
@pytest.mark.rule("sync-14")
@pytest.mark.rule("sync-15")
@pytest.mark.rule("sync-17")
def test_size_and_time_decide_what_to_do_with_a_file(record: FileRecord | None, seen: FileSeen, reason: str) -> None:
    assert rules.file_reason(record, seen) == reason


@pytest.mark.parametrize(
    ("record", "content_hash", "needed"),
    [
        pytest.param(None, "hash-1", True, id="new"),
        pytest.param(FILE, "hash-1", False, id="same content"),
        pytest.param(FILE, "hash-2", True, id="other content"),
        pytest.param(PENDING_FILE, "hash-1", True, id="pending, same content"),
        pytest.param(PENDING_FILE, "hash-2", True, id="pending, other content"),
        pytest.param(
            dataclasses.replace(FILE, summary_text=""), "hash-1", False, id="a blank file has a blank summary"
        ),
    ],
)
@pytest.mark.rule("sync-18")
def test_a_file_is_summarised_when_it_is_new_changed_or_pending(
    record: FileRecord | None, content_hash: str, needed: bool
) -> None:
    assert rules.file_needs_summary(record, content_hash) is needed


FRESH = FileRecord(
    "guide.md",
    content_hash="hash-2",
    summary_text="",
    summary_pending=True,
    last_indexed_at=NOON,
    size_bytes=20,
    mtime_ns=222,
)


@pytest.mark.rule("sync-18")
def test_a_summary_settles_a_file() -> None:
    after = rules.add_summary(FRESH, "New.", later(5))
    assert changes(FRESH, after) == {"summary_text": "New.", "summary_pending": False, "last_indexed_at": later(5)}


@pytest.mark.rule("sync-13")
def test_a_new_file_without_summary_is_pending_with_an_empty_one() -> None:
    after = rules.file_summary_failed(None, FRESH)
    assert (after.summary_text, after.summary_pending) == ("", True)


@pytest.mark.parametrize("record", [FILE, PENDING_FILE], ids=["settled", "pending"])
@pytest.mark.rule("sync-19")
def test_a_changed_file_without_summary_keeps_the_old_one_under_the_new_hash(record: FileRecord) -> None:
    after = rules.file_summary_failed(record, FRESH)
    assert after == FileRecord("guide.md", "hash-2", "A guide.", True, YESTERDAY, 20, 222)


@pytest.mark.rule("sync-16")
def test_a_pending_file_that_fails_again_keeps_its_record() -> None:
    fresh = dataclasses.replace(FRESH, size_bytes=10, mtime_ns=111)
    assert rules.file_summary_failed(PENDING_FILE, fresh) == PENDING_FILE


@pytest.mark.rule("sync-20")
def test_a_touched_file_gets_its_new_size_and_time_and_nothing_else() -> None:
    assert changes(FILE, rules.file_touched(FILE, FileSeen(12, 333))) == {"size_bytes": 12, "mtime_ns": 333}


# ── URLs ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("next_check_at", "is_pending", "reason"),
    [
        pytest.param(later(-3600), False, "due", id="an hour ago"),
        pytest.param(NOON, False, "due", id="now"),
        pytest.param(later(0.000001), False, "unchanged", id="in a microsecond"),
        pytest.param(later(3600), False, "unchanged", id="in an hour"),
        pytest.param(NOON, True, "due", id="due comes before pending"),
        pytest.param(later(3600), True, "pending", id="pending and not due"),
        pytest.param(later(3600.000001), False, "due", id="further away than an interval: the clock was ahead"),
        pytest.param(
            NOON.astimezone(datetime.timezone(datetime.timedelta(hours=9))),
            False,
            "due",
            id="now, said in another time zone",
        ),
    ],
)
@pytest.mark.rule("sync-24")
@pytest.mark.rule("sync-33")
def test_a_url_is_due_from_the_moment_of_its_next_check(
    next_check_at: datetime.datetime, is_pending: bool, reason: str
) -> None:
    record = dataclasses.replace(PAGE_RECORD, next_check_at=next_check_at, summary_pending=is_pending)
    assert rules.url_reason(record, NOON, POLICY) == reason


@pytest.mark.rule("sync-21")
def test_a_url_without_record_is_new() -> None:
    assert rules.url_reason(None, NOON, POLICY) == "new"


@pytest.mark.rule("sync-22")
@pytest.mark.rule("sync-23")
def test_a_first_fetch_is_stored_without_summary_and_with_its_validators() -> None:
    after = rules.url_after_first_fetch(URL, page(etag='"7"', last_modified="Monday"), NOON, POLICY)
    assert after == UrlRecord(
        URL,
        content_hash="hash-1",
        summary_text="",
        summary_pending=True,
        last_indexed_at=NOON,
        last_fetched_at=NOON,
        etag='"7"',
        last_modified="Monday",
        fetch_status="success",
        next_check_at=later(3600),
    )


@pytest.mark.parametrize(
    ("changed", "content_hash", "needed"),
    [
        pytest.param({}, "hash-1", False, id="same content"),
        pytest.param({}, "hash-2", True, id="other content"),
        pytest.param({"summary_pending": True}, "hash-1", True, id="pending"),
        pytest.param({"summary_text": ""}, "hash-1", True, id="empty summary"),
        pytest.param({"summary_text": " \n\t"}, "hash-1", True, id="summary of white space"),
    ],
)
@pytest.mark.rule("sync-28")
def test_a_fetched_page_is_summarised_when_changed_pending_or_without_summary(
    changed: dict[str, Any], content_hash: str, needed: bool
) -> None:
    record = dataclasses.replace(PAGE_RECORD, **changed)
    assert rules.url_needs_summary(record, content_hash) is needed
    assert rules.url_after_fetch(record, page(content_hash), NOON, POLICY).summary_pending is needed


@pytest.mark.rule("sync-29")
@pytest.mark.rule("sync-31")
def test_new_content_is_acknowledged_with_its_validators_before_the_summary() -> None:
    record = dataclasses.replace(PAGE_RECORD, fetch_status="error", problem="HTTP 500")
    after = rules.url_after_fetch(record, page("hash-2", etag='"2"', last_modified="Monday"), NOON, POLICY)
    assert changes(record, after) == {
        "content_hash": "hash-2",
        "summary_pending": True,
        "etag": '"2"',
        "last_modified": "Monday",
        "fetch_status": "success",
        "last_fetched_at": NOON,
        "next_check_at": later(3600),
        "problem": "",
    }


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            page(), (PAGE_RECORD.etag, PAGE_RECORD.last_modified), id="same content, none: the old ones still hold"
        ),
        pytest.param(page(etag='"2"'), ('"2"', PAGE_RECORD.last_modified), id="same content, an entity tag"),
        pytest.param(page(last_modified="Monday"), (PAGE_RECORD.etag, "Monday"), id="same content, a date"),
        pytest.param(page("hash-2"), (None, None), id="other content, none"),
        pytest.param(page("hash-2", last_modified="Monday"), (None, "Monday"), id="other content, a date"),
        pytest.param(page("hash-2", etag='"2"'), ('"2"', PAGE_RECORD.last_modified), id="other content, an entity tag"),
    ],
)
@pytest.mark.rule("sync-31")
def test_validators_belong_to_the_content_they_came_with(
    seen: PageSeen, expected: tuple[str | None, str | None]
) -> None:
    after = rules.url_after_fetch(PAGE_RECORD, seen, NOON, POLICY)
    assert (after.etag, after.last_modified) == expected


def test_validators_are_kept_with_the_origin_that_gave_them() -> None:
    elsewhere = dataclasses.replace(page("hash-2", etag='"2"'), validated_at="https://elsewhere.example")
    assert rules.url_after_first_fetch(URL, elsewhere, NOON, POLICY).validated_at == "https://elsewhere.example"
    after = rules.url_after_fetch(PAGE_RECORD, elsewhere, NOON, POLICY)
    assert after.validated_at == "https://elsewhere.example"
    again = rules.url_after_fetch(after, page("hash-2"), NOON, POLICY)
    assert (again.etag, again.validated_at) == ('"2"', "https://elsewhere.example")
    assert rules.url_after_fetch(after, page("hash-3"), NOON, POLICY).validated_at is None


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.rule("sync-26")
def test_not_modified_changes_status_times_and_nothing_else(is_pending: bool) -> None:
    record = dataclasses.replace(PAGE_RECORD, summary_pending=is_pending, problem="HTTP 500")
    assert changes(record, rules.url_not_modified(record, NOON, POLICY)) == {
        "fetch_status": "not_modified",
        "last_fetched_at": NOON,
        "next_check_at": later(3600),
        "problem": "",
    }


@pytest.mark.parametrize("status", ["timeout", "error"])
@pytest.mark.rule("sync-32")
def test_a_failed_fetch_is_tried_again_after_a_tick_and_touches_no_content(status: Any) -> None:
    after = rules.url_failed(PAGE_RECORD, PageFault("HTTP 503", kind=status), NOON, POLICY)
    assert changes(PAGE_RECORD, after) == {
        "fetch_status": status,
        "next_check_at": later(300),
        "problem": "HTTP 503",
    }


@pytest.mark.rule("sync-30")
def test_a_failed_summary_after_a_fetch_brings_the_next_check_forward_to_a_tick() -> None:
    record = dataclasses.replace(PAGE_RECORD, summary_pending=True, next_check_at=later(3600))
    after = rules.url_summary_failed(record, later(10), POLICY)
    assert changes(record, after) == {"next_check_at": later(310)}
    settled = dataclasses.replace(record, summary_pending=False)
    assert rules.url_summary_failed(settled, later(10), POLICY).summary_pending


@pytest.mark.rule("sync-33")
def test_a_summary_settles_a_url_and_leaves_its_schedule() -> None:
    record = dataclasses.replace(PAGE_RECORD, summary_pending=True, summary_text="")
    after = rules.add_summary(record, "New.", NOON)
    assert changes(record, after) == {"summary_text": "New.", "summary_pending": False, "last_indexed_at": NOON}


@pytest.mark.rule("sync-32")
def test_what_the_server_asks_for_is_not_part_of_the_next_check() -> None:
    failure = PageFault("HTTP 429", retry_after_seconds=7200)
    assert rules.url_failed(PAGE_RECORD, failure, NOON, POLICY).next_check_at == later(300)


@pytest.mark.rule("sync-24")
def test_an_interval_of_nothing_makes_a_url_due_again_at_once() -> None:
    policy = SyncSettings(url_refresh_min_interval_seconds=0)
    assert rules.url_reason(rules.url_not_modified(PAGE_RECORD, NOON, policy), NOON, policy) == "due"


# ── the links file ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("\n \n\t\n", [], id="blank lines"),
        pytest.param("https://a\nhttps://b\n", ["https://a", "https://b"], id="two"),
        pytest.param("https://a", ["https://a"], id="no line end"),
        pytest.param("  https://a \t\n", ["https://a"], id="trimmed"),
        pytest.param("https://a\r\nhttps://b\r\n", ["https://a", "https://b"], id="line ends of Windows"),
        pytest.param("\ufeffhttps://a\n", ["https://a"], id="byte order mark"),
        pytest.param("Xample.org\n", ["Xample.org"], id="only a byte order mark is cut off"),
        pytest.param("# comment\nhttps://a\n  # another\n#https://b", ["https://a"], id="comments"),
        pytest.param("https://a#part\n", ["https://a#part"], id="a fragment is no comment"),
        pytest.param(
            "https://a # of a\nhttps://b#part\t#of b\n", ["https://a", "https://b#part"], id="comments after URLs"
        ),
        pytest.param("https://b\nhttps://a\n https://b\n", ["https://b", "https://a"], id="each once, in order"),
        pytest.param(
            "https://a\nhttps://a/\nHTTPS://a", ["https://a", "https://a/", "HTTPS://a"], id="exact match only"
        ),
        pytest.param("not a url", ["not a url"], id="every line is a URL string"),
    ],
)
@pytest.mark.rule("sync-10")
def test_links_are_the_trimmed_lines_each_once(text: str, urls: list[str]) -> None:
    assert rules.parse_links(text) == urls
