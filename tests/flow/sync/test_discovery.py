"""Discovery of sources, and removal of deleted ones."""

import functools
import sys

import pytest

from contract.test_documents import docx, pdf
from pair.reading import process, reader
from pair.sync.discover import SyncPaths
from pair.sync.rules import SyncSettings
from support.sync_parts import Page, Project
from support.sync_runs import INTERVAL, OTHER, URL, did, entry


@pytest.mark.rule("sync-9")
@pytest.mark.rule("sync-12")
@pytest.mark.rule("sync-44")
def test_removed_sources_leave_the_state_the_index_and_the_copies(project: Project) -> None:
    project.write("a.md", "a")
    project.write("b.md", "b")
    project.serve(URL, Page("page"))
    project.serve(OTHER, Page("other"))
    project.run()
    assert project.copy_of(URL).exists()
    project.path("a.md").unlink()
    project.link(OTHER)
    report = project.run()
    assert report.removed == 2
    assert list(project.records) == ["b.md", OTHER]
    assert project.index == entry("b.md", "b") + "\n" + entry(OTHER, "other")
    assert not project.copy_of(URL).exists()
    assert project.copy_of(OTHER).exists()
    assert did(project) == ([], [])


@pytest.mark.rule("sync-12")
def test_the_last_source_may_go_too(project: Project) -> None:
    project.write("a.md", "a")
    project.run()
    project.path("a.md").unlink()
    project.run()
    assert (project.records, project.index) == ({}, "")


@pytest.mark.rule("sync-10")
def test_lines_of_the_links_file_are_urls_but_for_comments_and_blank_ones(project: Project) -> None:
    project.pages.pages = {URL: Page("page"), OTHER: Page("other")}
    project.places.links_file.write_bytes(f"\ufeff# pages\r\n\r\n  {URL}\t\r\n#{OTHER}\r\n{URL}\r\n{OTHER}".encode())
    project.run()
    assert did(project) == ([URL, OTHER], [URL, OTHER])
    assert list(project.records) == [URL, OTHER]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"plain", "plain"), (b"\xef\xbb\xbfmarked", "marked"), (b"x" * 10_000, "x" * 10_000), (b"a\r\nb", "a\r\nb")],
    ids=["plain", "byte order mark", "of the largest size", "CRLF"],
)
@pytest.mark.rule("sync-11")
def test_a_file_that_is_utf8_and_small_enough_is_a_source(project: Project, content: bytes, text: str) -> None:
    project.write("a.md", content)
    project.run()
    assert project.summariser.texts == {"a.md": text}
    assert project.index == entry("a.md", text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\x89PNG\r\n\x1a\n\0", "not text in any known charset"), (b"x" * 10_001, "larger than 10,000 bytes")],
    ids=["not UTF-8", "too large"],
)
@pytest.mark.rule("sync-11")
def test_a_file_that_is_not_text_is_left_out_with_the_reason_and_not_read_again(
    project: Project, content: bytes, reason: str
) -> None:
    project.write("a.bin", content)
    project.write("b.md", "b")
    report = project.run()
    assert report.skipped == (("a.bin", reason),)
    assert list(project.records) == ["b.md"]
    project.write("c.md", "c")
    again = project.run()
    assert again.skipped == report.skipped
    assert again.bytes_read == 1


@pytest.mark.parametrize("content", [b"\x89PNG\xff", b"x" * 10_001], ids=["not text", "too large"])
@pytest.mark.rule("sync-11")
@pytest.mark.rule("sync-12")
def test_a_source_that_stops_being_text_is_removed_and_comes_back_when_it_is_text_again(
    project: Project, content: bytes
) -> None:
    project.write("a.md", "text")
    project.run()
    project.write("a.md", content)
    assert project.run().removed == 1
    assert (project.records, project.index) == ({}, "")
    project.write("a.md", "again")
    report = project.run()
    assert (report.added, report.skipped) == (1, ())
    assert project.index == entry("a.md", "again")
    assert project.state["skipped"] == {}


@pytest.mark.rule("sync-11")
def test_a_higher_limit_accepts_a_file_that_was_too_large(project: Project) -> None:
    project.write("a.md", "x" * 10_001)
    project.run()
    project.policy = SyncSettings(max_source_bytes=20_000)
    assert project.run().added == 1


@pytest.mark.rule("sync-11")
def test_a_lower_limit_does_not_drop_what_did_not_change(project: Project) -> None:
    project.write("a.md", "x" * 5000)
    project.run()
    project.policy = SyncSettings(max_source_bytes=1000)
    report = project.run()
    assert (report.removed, report.model_calls) == (0, 0)


@pytest.mark.rule("sync-11")
def test_hidden_files_and_links_out_are_not_sources(project: Project) -> None:
    outside = project.folder / "outside.md"
    outside.write_text("secret")
    for name in (".hidden.md", ".git/config", "a/.b/c.md", "seen.md"):
        project.write(name, name)
    project.path("link.md").symlink_to(outside)
    report = project.run()
    assert list(project.records) == ["seen.md"]
    assert report.skipped == (("link.md", "link out of the folder"),)
    assert "secret" not in project.summariser.texts.values()


@pytest.mark.rule("sync-11")
def test_a_file_that_cannot_be_opened_fails_alone_and_keeps_its_record(project: Project) -> None:
    """The file is removed after it was listed and before it is read, which fails for root as well."""
    project.write("a.md", "a")
    project.write("b.md", "b")
    project.run()
    before = project.record("a.md")
    project.touch("a.md")
    project.touch("b.md")
    project.observer.on_planned = lambda _: project.path("a.md").unlink()
    report = project.run()
    assert report.failed == 1
    assert [source for source, _ in report.problems] == ["a.md"]
    assert project.record("a.md") == before
    assert project.index == entry("a.md", "a") + "\n" + entry("b.md", "b")


@pytest.mark.rule("sync-11")
def test_documents_are_read_once_their_extra_is_installed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("a.pdf", pdf("We deploy on Mondays"))
    project.write("b.DOCX", docx("We deploy on Mondays"))
    project.write("broken.pdf", b"%PDF-text")
    project.write("c.html", "<p>page")
    for package in ("pypdfium2", "mammoth"):
        monkeypatch.setitem(sys.modules, package, None)
    without = project.run()
    assert [path for path, _ in without.skipped] == ["a.pdf", "b.DOCX", "broken.pdf"]
    assert all("pair-kb[documents]" in reason for _, reason in without.skipped)
    assert list(project.records) == ["c.html"]
    monkeypatch.undo()
    report = project.run()
    assert sorted(project.records) == ["a.pdf", "b.DOCX", "c.html"]
    assert project.summariser.texts["a.pdf"] == "We deploy on Mondays"
    assert report.skipped == (("broken.pdf", "is damaged, or cannot be read as .pdf"),)


@pytest.mark.parametrize(
    ("package", "cached", "concerned"),
    [("tree_sitter", reader.can_cut_code, "tool.py"), ("rapidocr", process.has_ocr, "scan.pdf")],
)
def test_an_extra_that_is_installed_later_reads_its_files_again_and_no_others(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    cached: "functools._lru_cache_wrapper[bool]",
    concerned: str,
) -> None:
    project.write("tool.py", 'def deploy():\n    """Deploy on Mondays."""\n')
    project.write("scan.pdf", pdf("We deploy on Mondays"))
    project.write("a.md", "text")
    monkeypatch.setitem(sys.modules, package, None)
    cached.cache_clear()
    project.run()
    before = project.records
    monkeypatch.undo()
    cached.cache_clear()
    report = project.run()
    assert report.bytes_read == project.path(concerned).stat().st_size
    assert report.changed == (concerned == "tool.py")
    assert {name for name in before if before[name] != project.records[name]} <= {"tool.py"}
    assert project.run().bytes_read == 0


@pytest.mark.rule("sync-50")
@pytest.mark.parametrize("half", ["sources folder", "links file"])
def test_a_named_place_that_is_missing_is_an_error_for_its_half_and_deletes_nothing(
    project: Project, half: str
) -> None:
    project.places = named(project.places)
    project.write("a.md", "a")
    project.serve(URL, Page("page"))
    project.run()
    before = project.records
    hidden = project.folder / "hidden"
    place = project.places.sources_dir if half == "sources folder" else project.places.links_file
    place.rename(hidden)
    report = project.run(after=INTERVAL)
    assert [half in error and str(place) in error for error in report.errors] == [True]
    assert report.removed == 0
    assert project.records.keys() == before.keys()
    assert entry("a.md", "a") in project.index
    assert entry(URL, "page") in project.index
    assert project.pages.urls == ([URL] if half == "sources folder" else []), "the other half goes on"
    hidden.rename(place)
    after = project.run()
    assert (after.errors, after.removed, after.added) == ((), 0, 0)


def named(places: SyncPaths) -> SyncPaths:
    return SyncPaths(places.sources_dir, places.links_file, places.index, places.cache, places.page_copies, True, True)


@pytest.mark.rule("sync-50")
@pytest.mark.parametrize("half", ["sources folder", "links file"])
def test_a_named_place_is_missed_also_when_nothing_ever_came_from_it(project: Project, half: str) -> None:
    project.link("# nothing yet")
    project.run()
    project.places = named(project.places)
    if half == "sources folder":
        project.places.sources_dir.rmdir()
    else:
        project.places.links_file.unlink()
    for _ in range(2):
        assert [half in error for error in project.run().errors] == [True]


@pytest.mark.rule("sync-50")
def test_naming_a_place_that_was_missing_all_along_makes_it_an_error(project: Project) -> None:
    project.places.sources_dir.rmdir()
    assert project.run().errors == ()
    project.places = named(project.places)
    assert len(project.run().errors) == 2


@pytest.mark.rule("sync-50")
def test_places_by_default_may_be_missing(project: Project) -> None:
    project.places.sources_dir.rmdir()
    report = project.run()
    assert (report.errors, report.did_nothing) == ((), True)


@pytest.mark.rule("sync-50")
def test_a_default_folder_that_vanishes_with_its_sources_deletes_nothing_either(project: Project) -> None:
    project.write("a.md", "a")
    project.run()
    project.places.sources_dir.rename(project.folder / "away")
    report = project.run()
    assert len(report.errors) == 1
    assert project.index == entry("a.md", "a")


@pytest.mark.rule("sync-12")
def test_without_the_default_links_file_there_are_no_urls(project: Project) -> None:
    project.serve(URL, Page("page"))
    project.run()
    project.places.links_file.unlink()
    report = project.run()
    assert (report.removed, report.errors, project.records) == (1, (), {})
