"""Collections that are read through a source: its events, and their effect on documents."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pair import errors
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, SourceFault, Unchanged
from pair.sync.collection import CollectionSettings
from pair.sync.discover import NamedCollection
from pair.sync.report import SyncReport
from pair.sync.run import SyncDependencies
from support.sync_parts import Page, Project
from support.sync_runs import INTERVAL, TICK

A, B, C = (Item(name, f"Text {name}.".encode(), content_type="text/plain") for name in "abc")


class SourceProject(Project):
    """A project with one collection, whose source reports scripted events."""

    events: Sequence[Event | Exception] = ()

    def __init__(self, project: Project) -> None:
        super().__init__(project.folder / "with-source", project.policy)
        self.cursors: list[Any] = []
        self.name_collection("notes")

    def name_collection(self, name: str, command: str = "list-notes", interval: float | None = None) -> None:
        given = CollectionSettings(command=(command,), interval_seconds=interval)
        self.places = dataclasses.replace(self.places, collections=(NamedCollection(name, given),))

    def read(self, cursor: Any) -> Iterator[Event]:
        self.cursors.append(cursor)
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event

    def workshop(self) -> SyncDependencies:
        return dataclasses.replace(super().workshop(), open_source=lambda named: self)

    def reports(self, *events: Event | Exception, after: float = INTERVAL) -> SyncReport:
        """Sync while the source reports these events."""
        self.events = events
        return self.run(after=after)

    @property
    def texts(self) -> dict[str, str]:
        """Return the stored text of each item."""
        return {name: self.copy_of(name).read_text() for name in self.records}


@pytest.fixture
def source(project: Project) -> SourceProject:
    return SourceProject(project)


def counts(report: SyncReport) -> dict[str, int]:
    names = ("added", "changed", "removed", "unchanged", "failed", "pending")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def changed(item: Item) -> Item:
    return dataclasses.replace(item, content=item.content + b" More.")


def test_items_that_an_incomplete_source_does_not_mention_stay(source: SourceProject) -> None:
    assert counts(source.reports(A, B, Cursor(1))) == {"added": 2}
    assert counts(source.reports(changed(A), C, Cursor(2))) == {"added": 1, "changed": 1, "unchanged": 1}
    assert source.texts == {"notes/a": "Text a. More.", "notes/b": "Text b.", "notes/c": "Text c."}
    assert counts(source.reports()) == {"unchanged": 3}
    assert source.cursors == [None, 1, 2]


def test_items_that_a_complete_source_does_not_mention_are_removed(source: SourceProject) -> None:
    source.reports(A, B, C)
    report = source.reports(Unchanged("a"), Failed("b", "no permission"), Complete())
    assert (counts(report), dict(report.problems)) == (
        {"removed": 1, "unchanged": 1, "failed": 1}, {"notes/b": "no permission"}
    )  # fmt: skip
    assert sorted(source.records) == ["notes/a", "notes/b"]
    assert not source.copy_of("notes/c").exists()
    assert counts(source.reports(Deleted("a"), Deleted("a"), Deleted("never"))) == {"removed": 1, "unchanged": 1}


def test_items_reported_before_a_fault_count_and_the_source_is_tried_after_a_tick(source: SourceProject) -> None:
    report = source.reports(A, Cursor(1), B, SourceFault("the connection was lost"))
    assert (counts(report), dict(report.problems)) == ({"added": 2, "failed": 1}, {"notes": "the connection was lost"})
    assert counts(source.reports(after=TICK / 2)) == {"unchanged": 2}
    assert counts(source.reports(C, Complete(), after=TICK / 2)) == {"added": 1, "removed": 2}
    assert source.cursors == [None, 1]


def test_a_new_source_that_fails_is_tried_by_every_run(source: SourceProject) -> None:
    for _ in range(2):
        report = source.reports(SourceFault("its address is not allowed"), after=1)
        assert (counts(report), dict(report.problems)) == ({"failed": 1}, {"notes": "its address is not allowed"})
    assert counts(source.reports(A, after=1)) == {"added": 1}
    assert counts(source.reports(B, after=1)) == {"unchanged": 1}


def test_an_item_twice_counts_once_and_the_later_one_counts(source: SourceProject) -> None:
    assert counts(source.reports(A, changed(A))) == {"added": 1}
    assert source.texts == {"notes/a": "Text a. More."}


def test_a_source_is_read_at_its_interval(source: SourceProject) -> None:
    source.reports(A, Cursor(1))
    assert counts(source.reports(B, after=INTERVAL / 2)) == {"unchanged": 1}
    assert source.cursors == [None]
    source.name_collection("notes", interval=0)
    assert counts(source.reports(B, after=0)) == {"added": 1, "unchanged": 1}
    source.name_collection("notes", interval=INTERVAL * 10)
    assert counts(source.reports(C, after=INTERVAL)) == {"added": 1, "unchanged": 2}
    before = source.made
    assert counts(source.reports(after=INTERVAL * 9)) == {"unchanged": 3}
    assert (source.made, source.cursors) == (before, [None, 1, 1])


def test_another_command_starts_without_a_cursor(source: SourceProject) -> None:
    source.reports(A, Cursor(1))
    source.name_collection("notes", command="other")
    assert counts(source.reports(B, Complete(), after=0)) == {"added": 1, "removed": 1}
    assert source.cursors == [None, None]


def test_items_that_lost_their_text_are_reported_again(source: SourceProject) -> None:
    source.reports(A, B, Cursor(1))
    source.copy_of("notes/a").unlink()
    assert counts(source.reports(A, B, Cursor(1))) == {"changed": 1, "unchanged": 1}
    assert source.cursors == [None, None]


def test_a_removed_source_takes_its_items_and_its_cursor_with_it(source: SourceProject) -> None:
    source.reports(A, B, Cursor(1))
    source.places = dataclasses.replace(source.places, collections=())
    assert counts(source.reports()) == {"removed": 2}
    assert (source.records, "cursors" in source.state) == ({}, False)
    assert list(source.places.page_copies.iterdir()) == []


def test_titles_metadata_and_addresses_of_items_are_kept(source: SourceProject) -> None:
    described = dataclasses.replace(A, title="A title", metadata={"state": "open"}, url="https://example.com/a")
    source.reports(described)
    assert source.record("notes/a")["item"] | {"last_fetched_at": ""} == {
        "item_id": "notes/a",
        "last_fetched_at": "",
        "collection": "notes",
        "item_url": "https://example.com/a",
        "title": "A title",
        "metadata": {"state": "open"},
    }
    assert counts(source.reports(dataclasses.replace(described, metadata={"state": "closed"}))) == {"changed": 1}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (Item("a\nb", b"Text."), "control character in the id"),
        (Item("big", b"x" * 20_000), "larger than 10,000 bytes"),
    ],
)
def test_an_item_that_cannot_be_a_document_fails_and_others_do_not(
    source: SourceProject, item: Item, reason: str
) -> None:
    report = source.reports(A, item, B)
    assert source.records.keys() == {"notes/a", "notes/b"}
    assert [said for _, said in report.problems] == [reason]


def test_a_page_of_a_links_file_is_not_an_item(source: SourceProject) -> None:
    url = source.serve("https://example.com/a", Page("A page."))
    report = source.reports(Item(url, b"Other text."), Item("https://example.com/b", b"Text b."))
    assert sorted(source.records) == [url, "https://example.com/b"]
    assert dict(report.problems) == {url: "a links file lists it"}


def test_summaries_that_failed_are_written_later_without_the_source(source: SourceProject) -> None:
    source.summariser.always = errors.model_unreachable("stub", "it is down")
    assert counts(source.reports(A, Cursor(1))) == {"added": 1, "pending": 1}
    source.summariser.always = None
    assert counts(source.reports(after=0)) == {"changed": 1}
    assert (source.cursors, "notes/a" in source.index) == ([None], True)


def test_a_broken_source_loses_nothing_that_it_reported(source: SourceProject) -> None:
    with pytest.raises(RuntimeError):
        source.reports(A, Cursor(1), B, RuntimeError())
    report = source.reports(B, C, after=0)
    assert (report.added, report.changed + report.unchanged) == (1, 2)  # some have a summary, some are pending
    assert (sorted(source.records), source.cursors) == (["notes/a", "notes/b", "notes/c"], [None, 1])


def test_a_renamed_source_moves_its_items_without_being_read(source: SourceProject) -> None:
    page = dataclasses.replace(B, id="https://example.com/b")
    source.reports(A, page, Cursor(1))
    source.name_collection("memos")
    assert counts(source.reports(after=0)) == {"unchanged": 2}
    assert source.texts == {"memos/a": "Text a.", "https://example.com/b": "Text b."}
    assert {value["item"]["collection"] for value in source.records.values()} == {"memos"}
    assert counts(source.reports(C)) == {"added": 1, "unchanged": 2}
    assert source.cursors == [None, 1]


def test_a_source_is_read_from_the_start_once_an_extra_is_installed(
    source: SourceProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = Item("note.rtf", b"{\\rtf1 We deploy on Mondays.}", "note.rtf")
    monkeypatch.setitem(sys.modules, "striprtf", None)
    assert counts(source.reports(document, A, Cursor(1))) == {"added": 1, "failed": 1}
    monkeypatch.undo()
    assert counts(source.reports(document, A, Cursor(1), after=1)) == {"added": 1, "unchanged": 1}
    assert source.cursors == [None, None]
    source.reports(Cursor(1))
    assert source.cursors[2] == 1
