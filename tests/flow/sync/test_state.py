"""The index and the state on disk."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pair import errors
from pair.sync import store
from pair.sync.discover import SyncPaths
from pair.sync.rules import SyncSettings
from pair.sync.state import format_index
from support.errors import raises_code
from support.sync_parts import UNUSABLE, Page, Project, copy_as_if_killed, hash_of, places_in
from support.sync_runs import INTERVAL, URL, did, entry, text_at


@pytest.mark.rule("sync-35")
@pytest.mark.rule("sync-36")
@pytest.mark.rule("sync-37")
def test_after_any_change_the_whole_index_is_written_from_what_is_known(project: Project) -> None:
    for name in ("a.md", "b.md", "c.md"):
        project.write(name, name)
    project.serve(URL, Page("page"))
    project.run()
    project.write("b.md", "changed")
    project.path("c.md").unlink()
    project.run()
    assert project.index == "\n".join([entry("a.md", "a.md"), entry("b.md", "changed"), entry(URL, "page")])
    assert did(project) == (["b.md"], []), "the others come from the state"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("edited")], ids=["gone", "edited"])
@pytest.mark.rule("sync-35")
@pytest.mark.rule("sync-37")
@pytest.mark.rule("sync-49")
def test_an_index_that_is_gone_or_edited_is_put_right_without_any_call(
    project: Project, spoil: Callable[[Path], object]
) -> None:
    project.write("a.md", "text")
    project.serve(URL, Page("page"))
    project.run()
    before = project.index
    spoil(project.places.index)
    project.run()
    assert project.places.index.exists()
    assert project.index == before
    assert did(project) == ([], [])


@pytest.mark.rule("sync-39")
def test_a_summary_is_kept_unchanged_and_shown_without_blank_lines(project: Project) -> None:
    project.write("a.md", "text")
    project.summariser.answers["a.md"] = "\n\nOne.  \n\n\n  Two.\n\n"
    project.run()
    assert project.record("a.md")["summary_text"] == "One.  \n\n\n  Two."
    assert project.index == "a.md\nOne.\n  Two.\n"


@pytest.mark.rule("sync-40")
def test_the_state_has_these_fields_at_the_top(project: Project) -> None:
    project.write("a.md", "text")
    project.run(after=0.25)
    state = project.state
    assert isinstance(state["schema_version"], int)
    assert state["generated_at"] == text_at(0.25)
    assert list(state["sources"]) == ["a.md"]


@pytest.mark.rule("sync-44")
def test_page_copies_are_utf8_files_named_by_the_hash_of_the_url(project: Project) -> None:
    strange = "https://example.com/ü?q=ä#ö"
    project.serve(strange, Page("Ünïcödé 🙂\r\n"))
    project.run()
    (copy,) = project.places.page_copies.iterdir()
    assert copy.name == hash_of(strange)
    assert copy.read_bytes() == "Ünïcödé 🙂\r\n".encode()


@pytest.mark.rule("sync-47")
def test_both_files_are_replaced_and_never_written_in_place(project: Project) -> None:
    project.write("a.md", "text")
    project.run()
    links = [project.folder / "old-state", project.folder / "old-index"]
    links[0].hardlink_to(project.places.cache)
    links[1].hardlink_to(project.places.index)
    before = [link.read_bytes() for link in links]
    project.write("b.md", "text")
    project.run()
    assert [link.read_bytes() for link in links] == before
    assert "b.md" in project.records
    assert sorted(path.name for path in project.places.cache.parent.iterdir()) == [
        ".index-cache.json.lock",
        "index-cache.json",
        "index.txt",
    ]


@pytest.mark.rule("sync-49")
def test_the_two_files_show_one_state_at_every_moment_of_a_run(project: Project) -> None:
    for number in range(30):
        project.write(f"{number}.md", f"text {number}")
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    copy = places_in(project.folder / "copy")
    compared: list[bool] = []
    lock = threading.Lock()

    def is_one_state() -> bool:
        copy_as_if_killed(project.places, copy.cache.parent)
        if not copy.cache.exists():
            return not copy.index.exists()
        sources = json.loads(copy.cache.read_bytes())["sources"]
        return copy.index.exists() and format_index(sources) == copy.index.read_bytes().decode()

    def compare(_: str) -> None:
        """Compare the files again after a difference: it may come from the moment between the two renames."""
        with lock:
            compared.append(any(is_one_state() for _ in range(20)))

    project.summariser.on_call = compare
    project.run()
    compare("at the end")
    assert compared
    assert all(compared)


@pytest.mark.rule("sync-49")
def test_a_source_is_reported_as_finished_when_its_final_state_is_on_disk(project: Project) -> None:
    for name in ("new.md", "failing.md"):
        project.write(name, name)
    project.write("image.png", b"\xff")
    project.serve(URL, Page("page"))
    for kind in ("changing", "failing", "same", "down"):
        project.serve(f"https://{kind}.example", Page("page", etag='"1"'))
    seen: dict[str, object] = {}

    def look(source_id: str) -> None:
        state = store.read(project.places.cache).state
        seen[source_id] = state.sources.get(source_id) or state.skipped.get(source_id)

    project.observer.on_finished = look
    project.summariser.faults = {"failing.md": UNUSABLE}
    project.run()
    project.clock.advance(INTERVAL)
    assert seen == project.records | project.state["skipped"]
    seen.clear()
    project.summariser.faults |= {"https://failing.example": UNUSABLE}
    for kind in ("changing", "failing"):
        project.serve(f"https://{kind}.example", Page("new page", etag='"2"'))
    project.serve("https://down.example", Page().failing())
    project.run()
    assert seen == {source_id: project.record(source_id) for source_id in seen}
    assert len(seen) == 6


@pytest.mark.parametrize("content", [b"{", b'{"schema_version": 2, "sources": {}}'], ids=["damaged", "newer"])
@pytest.mark.rule("sync-51")
def test_a_state_that_cannot_be_read_stops_the_run_is_kept_and_reported(project: Project, content: bytes) -> None:
    project.write("a.md", "text")
    project.run()
    index = project.index
    project.places.cache.write_bytes(content)
    with raises_code("E102", errors.DataError) as caught:
        project.run()
    assert Path(caught.value.details["kept_at"]).read_bytes() == content
    assert (project.index, did(project)) == (index, ([], []))
    assert project.run().added == 1, "the next run builds it again, as the error says"


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
@pytest.mark.rule("sync-51")
def test_a_state_that_was_cut_off_is_noticed_also_when_nothing_changed(project: Project, kept: float) -> None:
    for number in range(50):
        project.write(f"{number}.md", f"text {number}")
    project.run()
    content = project.places.cache.read_bytes()
    project.places.cache.write_bytes(content[: int(kept * len(content))])
    with raises_code("E102", errors.DataError):
        project.run()


@pytest.mark.rule("sync-52")
def test_a_run_that_was_cut_off_repeats_nothing_that_was_finished(project: Project) -> None:
    project.policy = SyncSettings(summarization_concurrency=1, url_download_concurrency=1)
    for number in range(10):
        project.write(f"{number}.md", f"text {number}")
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    copy = project.folder / "copy"
    finished: set[str] = set()
    requested: set[str] = set()

    def cut_off(source_id: str) -> None:
        if len(project.summariser.calls) == 12:
            finished.update(project.observer.done)
            known = store.read(project.places.cache).state.ids("url")
            requested.update(known)
            copy_as_if_killed(project.places, copy)

    project.summariser.on_call = cut_off
    project.run()
    again = Project(project.folder / "again")
    again.places = SyncPaths(
        project.places.sources_dir, project.places.links_file, copy / "index.txt", copy / "index-cache.json",
        copy / "web-cache",
    )  # fmt: skip
    again.pages.pages = project.pages.pages
    again.run()
    assert len(finished) >= 11
    assert finished.isdisjoint(again.summariser.calls)
    assert requested.isdisjoint(again.pages.urls)
    assert again.index == project.index
