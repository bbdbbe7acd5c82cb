"""Records and their JSON, as tables; and a file of the first version, which must stay readable."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pair.sync.state import (
    FileRecord,
    SyncState,
    UrlRecord,
    format_time,
    parse_time,
    record_from_json,
    record_to_json,
    state_from_json,
)
from pair.testing.clock import NOON
from support.sync_parts import later

GOLDEN = Path(__file__).parent / "golden" / "index-cache-v1.json"
LONG_AGO = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
URL = "https://example.com/page"

FILE = FileRecord("dir/a.md", "hash", "A file.", True, NOON, size_bytes=5, mtime_ns=1_700_000_000_123_456_789)
PAGE = UrlRecord(
    URL,
    "hash",
    "A page.",
    False,
    last_indexed_at=NOON,
    last_fetched_at=later(1),
    etag='W/"1"',
    last_modified=None,
    fetch_status="error",
    next_check_at=later(2.5),
    problem="HTTP 500",
)


def with_page(**changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "sources": {URL: record_to_json(PAGE) | {"url": record_to_json(PAGE)["url"] | changes}},
    }


# ── instants ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        pytest.param(NOON, "2026-03-01T12:00:00Z", id="whole seconds"),
        pytest.param(later(0.000001), "2026-03-01T12:00:00.000001Z", id="microseconds"),
        pytest.param(
            NOON.astimezone(datetime.timezone(datetime.timedelta(hours=-5))),
            "2026-03-01T12:00:00Z",
            id="another time zone is written in UTC",
        ),
    ],
)
@pytest.mark.rule("sync-40")
def test_instants_are_written_as_rfc_3339_in_utc(instant: datetime.datetime, text: str) -> None:
    assert format_time(instant) == text
    assert parse_time(text) == instant


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        pytest.param("2026-03-01T12:00:00+00:00", NOON, id="offset for Z"),
        pytest.param("2026-03-01T13:00:00+01:00", NOON, id="another offset"),
        pytest.param("2026-03-01T12:00:00", NOON, id="no offset means UTC"),
        pytest.param("yesterday", LONG_AGO, id="words"),
        pytest.param("", LONG_AGO, id="empty"),
        pytest.param(None, LONG_AGO, id="null"),
        pytest.param(5, LONG_AGO, id="a number"),
        pytest.param({}, LONG_AGO, id="an object"),
    ],
)
@pytest.mark.rule("sync-24")
def test_an_instant_that_cannot_be_read_is_long_ago(text: Any, instant: datetime.datetime) -> None:
    assert parse_time(text) == instant


# ── records ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-41")
def test_a_file_record_has_these_fields() -> None:
    assert record_to_json(FILE) == {
        "source_type": "file",
        "content_hash": "hash",
        "summary_text": "A file.",
        "summary_pending": True,
        "last_indexed_at": "2026-03-01T12:00:00Z",
        "file": {"rel_path": "dir/a.md", "size_bytes": 5, "mtime_ns": 1_700_000_000_123_456_789},
    }


@pytest.mark.rule("sync-42")
def test_a_url_record_has_these_fields() -> None:
    assert record_to_json(PAGE) == {
        "source_type": "url",
        "content_hash": "hash",
        "summary_text": "A page.",
        "summary_pending": False,
        "last_indexed_at": "2026-03-01T12:00:00Z",
        "url": {
            "url": URL,
            "last_fetched_at": "2026-03-01T12:00:01Z",
            "etag": 'W/"1"',
            "last_modified": None,
            "fetch_status": "error",
            "next_check_at": "2026-03-01T12:00:02.500000Z",
            "problem": "HTTP 500",
            "validated_at": None,
        },
    }


@pytest.mark.rule("sync-41")
@pytest.mark.rule("sync-42")
def test_records_survive_their_json() -> None:
    assert record_from_json(FileRecord, "dir/a.md", json.loads(json.dumps(record_to_json(FILE)))) == FILE
    assert record_from_json(UrlRecord, URL, json.loads(json.dumps(record_to_json(PAGE)))) == PAGE


@pytest.mark.rule("sync-42")
def test_a_url_record_without_what_may_be_left_out_is_due() -> None:
    value = {"source_type": "url", "content_hash": "hash", "summary_text": "", "url": {"url": URL}}
    record = record_from_json(UrlRecord, URL, value)
    assert record.next_check_at == LONG_AGO
    assert (record.etag, record.last_modified, record.summary_pending) == (None, None, False)


# ── state ──────────────────────────────────────────────────────────────────────────────────────────

STATE = SyncState(
    sources={
        "dir/a.md": record_to_json(FILE) | {"summary_pending": False},
        "b.md": record_to_json(FILE),
        URL: record_to_json(PAGE),
    },
    skipped={"logo.png": {"size_bytes": 7, "mtime_ns": 8, "reason": "not UTF-8 text"}},
)


@pytest.mark.parametrize(
    ("path", "size_bytes", "mtime_ns", "is_settled"),
    [
        pytest.param("dir/a.md", 5, 1_700_000_000_123_456_789, True, id="same size and time"),
        pytest.param("dir/a.md", 6, 1_700_000_000_123_456_789, False, id="another size"),
        pytest.param("dir/a.md", 5, 1_700_000_000_123_456_788, False, id="another time"),
        pytest.param("b.md", 5, 1_700_000_000_123_456_789, False, id="pending"),
        pytest.param("new.md", 5, 1, False, id="new"),
        pytest.param("logo.png", 7, 8, True, id="no text, and the same as then"),
        pytest.param("logo.png", 7, 9, False, id="no text then, changed since"),
        pytest.param(URL, 5, 1, False, id="a record of the other kind"),
    ],
)
@pytest.mark.rule("sync-14")
def test_a_file_is_settled_by_size_and_time(path: str, size_bytes: int, mtime_ns: int, is_settled: bool) -> None:
    assert STATE.file_is_settled(path, size_bytes, mtime_ns) is is_settled


@pytest.mark.rule("sync-9")
def test_records_are_found_by_kind() -> None:
    assert (STATE.ids("file"), STATE.ids("url")) == ({"dir/a.md", "b.md"}, {URL})
    assert STATE.file(URL) is None
    assert STATE.url("b.md") is None
    assert STATE.file("b.md") == record_from_json(FileRecord, "b.md", record_to_json(FILE))
    assert STATE.url(URL) == PAGE


def state_with(**fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "generated_at": "2026-03-01T12:00:00Z", "sources": {}, "skipped": {}} | fields


def with_record(**fields: Any) -> dict[str, Any]:
    return state_with(sources={"a.md": record_to_json(FILE) | fields})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"sources": {}}, id="no schema version"),
        pytest.param(state_with(schema_version=2), id="a newer schema"),
        pytest.param(state_with(schema_version=0), id="an older schema"),
        pytest.param(state_with(sources={"a.md": {}}), id="empty record"),
        pytest.param(with_record(source_type="mail"), id="unknown kind"),
        pytest.param(with_record(file=None), id="file without its part"),
        pytest.param(state_with(generation=-1), id="generation below nothing"),
        pytest.param(state_with(generation=2**53 + 1), id="generation beyond counting"),
        pytest.param(with_record(summary_text="half a character \ud800"), id="text that cannot be written"),
        pytest.param(
            state_with(skipped={"\ud800": {"size_bytes": 1, "mtime_ns": 1, "reason": "x"}}), id="skipped by no name"
        ),
        pytest.param(state_with(sources={"\ud800": record_to_json(FILE)}), id="source by no name"),
        pytest.param(with_page(etag='"1"\r\nX-Evil: 1'), id="validator with a line end"),
        pytest.param(with_page(etag='"1"\n'), id="validator that ends its line"),
        pytest.param(with_page(last_modified="\u2028"), id="validator that cannot be sent"),
    ],
)
@pytest.mark.rule("sync-51")
def test_a_state_that_is_damaged_or_of_another_version_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        state_from_json(value)


def test_names_of_files_and_answers_of_servers_in_any_encoding_are_sound() -> None:
    odd = "caf\udce9.md"
    value = state_with(sources={odd: record_to_json(FILE), URL: with_page(etag='"\xe9\xa0"')["sources"][URL]})
    state = state_from_json(value)
    assert state.file(odd) is not None
    page = state.url(URL)
    assert page is not None
    assert page.etag == '"\xe9\xa0"'


@pytest.mark.rule("sync-51")
def test_the_reason_for_refusing_a_state_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"a\.md"):
        state_from_json(with_record(file=None))
    with pytest.raises(ValueError, match="another version of pair"):
        state_from_json(state_with(schema_version=2))


@pytest.mark.rule("sync-40")
def test_a_state_with_nothing_in_it_is_sound() -> None:
    assert state_from_json({"schema_version": 1}) == SyncState(reader_version=0)


@pytest.mark.rule("sync-40")
def test_fields_that_are_not_known_are_not_damage() -> None:
    state = state_from_json(with_record(colour="red") | {"future": True})
    assert state.file("a.md") == record_from_json(FileRecord, "a.md", record_to_json(FILE))


@pytest.mark.rule("sync-40")
@pytest.mark.rule("sync-41")
@pytest.mark.rule("sync-42")
def test_a_state_of_the_first_version_stays_readable() -> None:
    state = state_from_json(json.loads(GOLDEN.read_bytes()))
    assert state.generation == 7
    assert state.skipped["images/logo.png"]["reason"] == "not UTF-8 text"
    assert state.ids("file") == {"getting-started.txt", "guides/übersicht.md", "plain.md"}
    assert state.file("getting-started.txt") == FileRecord(
        "getting-started.txt",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "How to install and start.\nCovers accounts and first steps.",
        summary_pending=False,
        last_indexed_at=datetime.datetime(2026, 2, 28, 9, 30, 0, 250000, tzinfo=datetime.UTC),
        size_bytes=1234,
        mtime_ns=1705363200000000000,
    )
    assert state.url("https://example.com/docs?page=1#top") == UrlRecord(
        "https://example.com/docs?page=1#top",
        "fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13",
        "Reference of all options.",
        summary_pending=False,
        last_indexed_at=datetime.datetime(2026, 3, 1, 11, tzinfo=datetime.UTC),
        last_fetched_at=datetime.datetime(2026, 3, 1, 11, 30, tzinfo=datetime.UTC),
        etag='W/"abc"',
        last_modified="Sat, 28 Feb 2026 08:00:00 GMT",
        fetch_status="not_modified",
        next_check_at=datetime.datetime(2026, 3, 2, 11, 30, tzinfo=datetime.UTC),
    )
    failing = state.url("https://example.com/failing")
    assert failing is not None
    assert (failing.fetch_status, failing.summary_pending, failing.problem) == ("timeout", True, "")
    plain = state.file("plain.md")
    assert plain is not None
    assert plain.summary_pending is False
