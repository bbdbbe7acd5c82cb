"""Files: when a sync reads and summarises them."""

import os
import sys

import pytest

from pair import errors
from pair.reading.process import ReaderProcesses
from support.sync_parts import UNUSABLE, Project, hash_of, summary_of
from support.sync_runs import both_faults, did, entry, text_at


@pytest.mark.rule("sync-13")
@pytest.mark.rule("sync-41")
@pytest.mark.rule("sync-43")
def test_a_new_file_gets_a_record_with_its_summary(project: Project) -> None:
    path = project.write("dir/a.md", "one\r\ntwo  \n\n")
    report = project.run()
    assert (report.added, report.pending, report.problems) == (1, 0, ())
    assert project.record("dir/a.md") == {
        "source_type": "file",
        "content_hash": hash_of("one\ntwo"),
        "summary_text": summary_of("dir/a.md", "one\r\ntwo  \n\n"),
        "summary_pending": False,
        "last_indexed_at": text_at(0),
        "file": {"rel_path": "dir/a.md", "size_bytes": 12, "mtime_ns": path.stat().st_mtime_ns},
    }


@both_faults
@pytest.mark.rule("sync-13")
def test_a_new_file_whose_summary_fails_is_pending_and_not_in_the_index(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.write("b.md", "text")
    project.summariser.faults["a.md"] = fault
    report = project.run()
    record = project.record("a.md")
    assert (record["summary_text"], record["summary_pending"]) == ("", True)
    assert record["content_hash"] == hash_of("text")
    assert project.index == entry("b.md", "text")
    assert (report.pending, report.added) == (1, 2)
    assert [source for source, _ in report.problems] == ["a.md"]
    assert fault.explanation in report.problems[0][1]


@pytest.mark.parametrize("answer", ["", "  \n\t\n "], ids=["empty", "white space"])
@pytest.mark.rule("sync-13")
def test_an_empty_answer_of_the_model_is_a_failure(project: Project, answer: str) -> None:
    project.write("a.md", "text")
    project.summariser.answers["a.md"] = answer
    report = project.run()
    assert project.record("a.md")["summary_pending"] is True
    assert report.pending == 1
    project.summariser.answers.clear()
    assert project.run().pending == 0


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"], ids=["empty", "white space", "only a mark"])
@pytest.mark.rule("sync-13")
def test_a_blank_file_is_a_source_that_costs_no_call_and_has_no_entry(project: Project, content: bytes) -> None:
    project.write("a.md", content)
    for _ in range(2):
        report = project.run()
        assert did(project) == ([], [])
        assert (project.record("a.md")["summary_pending"], report.pending, project.index) == (False, 0, "")


@pytest.mark.rule("sync-1")
@pytest.mark.rule("sync-14")
def test_a_file_with_the_same_size_and_time_is_unchanged(project: Project) -> None:
    """As documented, other content with the same size and time is not noticed."""
    project.write("a.md", "text")
    project.run()
    before = project.record("a.md")
    project.write_unseen("a.md", "TEXT")
    project.write("b.md", "something to do")
    report = project.run()
    assert did(project) == (["b.md"], [])
    assert project.record("a.md") == before
    assert (report.unchanged, report.added) == (1, 1)


@both_faults
@pytest.mark.rule("sync-15")
def test_a_pending_file_that_did_not_change_is_summarised_from_its_current_content(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.summariser.always = fault
    project.run()
    project.summariser.always = None
    project.write_unseen("a.md", "TEXT")
    report = project.run(after=10)
    record = project.record("a.md")
    assert record["summary_text"] == summary_of("a.md", "TEXT")
    assert record["content_hash"] == hash_of("TEXT")
    assert (record["summary_pending"], record["last_indexed_at"]) == (False, text_at(10))
    assert (report.pending, did(project)) == (0, (["a.md"], []))


@both_faults
@pytest.mark.rule("sync-16")
def test_a_pending_file_that_fails_again_keeps_its_record_whole(project: Project, fault: errors.ModelError) -> None:
    project.write("a.md", "text")
    project.summariser.always = fault
    project.run()
    before = project.record("a.md")
    project.clock.advance(10)
    project.write_unseen("a.md", "TEXT")
    report = project.run()
    assert project.record("a.md") == before
    assert (report.pending, did(project)) == (1, (["a.md"], []))


@pytest.mark.rule("sync-17")
@pytest.mark.rule("sync-18")
def test_a_changed_file_is_read_and_summarised_again(project: Project) -> None:
    project.write("a.md", "text")
    project.write("b.md", "text")
    project.run()
    path = project.write("a.md", "longer text")
    report = project.run(after=10)
    record = project.record("a.md")
    assert record["file"] == {"rel_path": "a.md", "size_bytes": 11, "mtime_ns": path.stat().st_mtime_ns}
    assert record["content_hash"] == hash_of("longer text")
    assert record["summary_text"] == summary_of("a.md", "longer text")
    assert record["last_indexed_at"] == text_at(10)
    assert (report.changed, report.unchanged, did(project)) == (1, 1, (["a.md"], []))


@pytest.mark.rule("sync-18")
def test_a_pending_file_that_was_touched_is_summarised(project: Project) -> None:
    project.write("a.md", "text")
    project.summariser.always = UNUSABLE
    project.run()
    project.summariser.always = None
    path = project.touch("a.md")
    project.run()
    record = project.record("a.md")
    assert (record["summary_pending"], record["file"]["mtime_ns"]) == (False, path.stat().st_mtime_ns)
    assert did(project) == (["a.md"], [])


@both_faults
@pytest.mark.rule("sync-19")
def test_a_changed_file_whose_summary_fails_keeps_the_old_summary_under_the_new_hash(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.run()
    path = project.write("a.md", "other text")
    project.summariser.always = fault
    report = project.run(after=10)
    assert project.record("a.md") == {
        "source_type": "file",
        "content_hash": hash_of("other text"),
        "summary_text": summary_of("a.md", "text"),
        "summary_pending": True,
        "last_indexed_at": text_at(0),
        "file": {"rel_path": "a.md", "size_bytes": 10, "mtime_ns": path.stat().st_mtime_ns},
    }
    assert project.index == entry("a.md", "text")
    assert (report.pending, report.changed) == (1, 1)
    project.summariser.always = None
    assert project.run().pending == 0
    assert project.index == entry("a.md", "other text")


@pytest.mark.parametrize("text", ["one\ntwo", "one\r\ntwo\r\n", "\n\none  \ntwo\t\n\n", "\ufeffone\ntwo"])
@pytest.mark.rule("sync-20")
@pytest.mark.rule("sync-46")
def test_a_file_whose_normalised_text_is_the_same_gets_new_metadata_only(project: Project, text: str) -> None:
    project.write("a.md", "one\ntwo")
    project.run()
    before = project.record("a.md")
    path = project.write("a.md", text)
    report = project.run(after=10)
    seen = path.stat()
    expected = before | {"file": {"rel_path": "a.md", "size_bytes": seen.st_size, "mtime_ns": seen.st_mtime_ns}}
    assert project.record("a.md") == expected
    assert did(project) == ([], [])
    assert (report.changed, report.unchanged, report.model_calls) == (0, 1, 0)


@pytest.mark.rule("sync-43")
def test_a_renamed_file_is_a_deletion_and_an_addition(project: Project) -> None:
    project.write("a.md", "text")
    project.run()
    project.path("dir").mkdir()
    project.path("a.md").rename(project.path("dir/b.md"))
    report = project.run()
    assert (report.removed, report.added, did(project)) == (1, 1, (["dir/b.md"], []))
    assert list(project.records) == ["dir/b.md"]
    assert project.index == entry("dir/b.md", "text")


@pytest.mark.rule("sync-43")
def test_a_file_name_that_is_not_utf8_is_left_out_of_an_index_that_is(project: Project) -> None:
    project.write(os.fsdecode(b"caf\xe9.md"), "text")
    project.write("a.md", "text")
    assert len(project.run().skipped) == 1
    assert project.index == entry("a.md", "text")
    assert project.run().did_nothing


def test_a_document_whose_converter_is_ended_from_outside_is_tried_again_by_the_next_run(project: Project) -> None:
    project.write("guide.html", "<p>We deploy on Mondays")
    project.reader = ReaderProcesses()
    project.run()
    project.write("guide.html", "<p>We deploy on Tuesdays")
    killing = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    project.reader = ReaderProcesses(command=[sys.executable, "-c", killing])
    report = project.run()
    assert report.problems == (("guide.html", "its converter was ended by SIGKILL"),)
    assert project.record("guide.html")["content_hash"] == hash_of("We deploy on Mondays")
    project.reader = ReaderProcesses()
    assert project.run().changed == 1
    assert project.record("guide.html")["content_hash"] == hash_of("We deploy on Tuesdays")
