"""Named collections: which documents belong to which, and the effect of changed collections on a sync."""

import dataclasses
from typing import Any

import pytest

from pair.sync.collection import CollectionSettings
from pair.sync.discover import NamedCollection
from pair.sync.report import SyncReport
from pair.sync.state import LlmsFile
from support.command import write_files
from support.sync_parts import Page, Project

URL = "https://example.com/page"


def collect(project: Project, **collections: CollectionSettings) -> None:
    """Set the collections of the project. Paths are relative to its folder."""
    named = tuple(
        NamedCollection(name, given, project.folder / (given.path or given.links), f"config.yaml:{number}")
        for number, (name, given) in enumerate(collections.items(), 1)
    )
    project.places = dataclasses.replace(project.places, collections=named)


def counts(report: SyncReport) -> dict[str, int]:
    names = ("added", "changed", "removed", "unchanged", "failed")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def test_ids_begin_with_the_name_of_the_collection(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One.", "deep/b.md": "Two."})
    project.write("own.md", "Three.")
    collect(project, docs=CollectionSettings(path="docs"))
    assert counts(project.run()) == {"added": 3}
    assert sorted(project.records) == ["docs/a.md", "docs/deep/b.md", "own.md"]
    assert counts(project.run()) == {"unchanged": 3}
    assert [line for line in project.index.splitlines() if line.startswith(("#", "docs/", "own"))] == [
        "own.md", "# docs", "docs/a.md", "docs/deep/b.md"
    ]  # fmt: skip


def test_a_folder_inside_another_belongs_to_the_inner_collection_alone(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One.", "api/b.md": "Two.", "api/deep/c.md": "Three."})
    write_files(project.folder / "knowledge/notes", {"d.md": "Four."})
    collect(
        project,
        docs=CollectionSettings(path="docs"),
        api=CollectionSettings(path="docs/api"),
        notes=CollectionSettings(path="knowledge/notes"),
    )
    assert counts(project.run()) == {"added": 4}
    assert sorted(project.records) == ["api/b.md", "api/deep/c.md", "docs/a.md", "notes/d.md"]
    collect(project, docs=CollectionSettings(path="docs"))
    assert counts(project.run()) == {"added": 3, "removed": 3, "unchanged": 1}
    assert sorted(project.records) == ["docs/a.md", "docs/api/b.md", "docs/api/deep/c.md", "notes/d.md"]


def test_a_renamed_collection_moves_its_documents(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One.", "b.md": "Two."})
    write_files(project.folder / "wiki", {"c.md": "Three."})
    collect(project, docs=CollectionSettings(path="docs"), wiki=CollectionSettings(path="wiki"))
    project.run()
    collect(project, handbook=CollectionSettings(path="docs"), wiki=CollectionSettings(path="wiki"))
    assert counts(project.run()) == {"added": 2, "removed": 2, "unchanged": 1}
    assert sorted(project.records) == ["handbook/a.md", "handbook/b.md", "wiki/c.md"]


def test_a_removed_collection_takes_its_documents_with_it_and_no_others(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One.", "big.md": "x" * 20_000})
    write_files(project.folder / "wiki", {"c.md": "Three."})
    project.write("own.md", "Four.")
    collect(project, docs=CollectionSettings(path="docs"), wiki=CollectionSettings(path="wiki"))
    assert [path for path, _ in project.run().skipped] == ["docs/big.md"]
    collect(project, wiki=CollectionSettings(path="wiki"))
    report = project.run()
    assert (counts(report), report.skipped) == ({"removed": 1, "unchanged": 2}, ())
    collect(project)
    assert counts(project.run()) == {"removed": 1, "unchanged": 1}


def test_documents_of_a_collection_that_is_missing_or_not_trusted_stay(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One."})
    write_files(project.folder / "wiki", {"c.md": "Three."})
    collect(project, docs=CollectionSettings(path="docs"), wiki=CollectionSettings(path="wiki"))
    project.run()
    (project.folder / "docs").rename(project.folder / "away")
    report = project.run()
    assert (sorted(project.records), len(report.errors)) == (["docs/a.md", "wiki/c.md"], 1)
    assert "collection docs" in report.errors[0]
    (project.folder / "away").rename(project.folder / "docs")
    assert counts(project.run()) == {"unchanged": 2}
    docs, wiki = project.places.collections
    faulty = dataclasses.replace(docs, path=None, fault="Cannot sync collection docs: it is not trusted.")
    project.places = dataclasses.replace(project.places, collections=(faulty, wiki))
    assert project.run().errors == (faulty.fault,)
    assert sorted(project.records) == ["docs/a.md", "wiki/c.md"]


def test_a_document_of_two_collections_is_refused_before_anything_is_lost(project: Project) -> None:
    project.write("docs/a.md", "Ours.")
    write_files(project.folder / "docs", {"a.md": "One.", "b.md": "Two."})
    collect(project, docs=CollectionSettings(path="docs"))
    report = project.run()
    assert (sorted(project.records), len(report.errors)) == (["docs/a.md"], 1)
    assert "docs/a.md is also a file of" in report.errors[0]


def test_a_url_belongs_to_the_first_links_file_that_lists_it(project: Project) -> None:
    project.serve(URL, Page("A page."))
    write_files(project.folder, {"more.txt": f"{URL}\n"})
    collect(project, more=CollectionSettings(links="more.txt"))
    assert counts(project.run()) == {"added": 1}
    assert "collection" not in project.record(URL)["url"]
    project.link()
    assert counts(project.run()) == {"unchanged": 1}
    assert project.record(URL)["url"]["collection"] == "more"
    assert project.pages.requests == []


@pytest.mark.parametrize("change", [{"exclude": ("a.md",)}, {"include": ("b.md",)}])
def test_a_pattern_that_excludes_a_document_removes_it(project: Project, change: dict[str, Any]) -> None:
    write_files(project.folder / "docs", {"a.md": "One.", "b.md": "Two."})
    collect(project, docs=CollectionSettings(path="docs"))
    project.run()
    collect(project, docs=CollectionSettings(path="docs", **change))
    assert counts(project.run()) == {"removed": 1, "unchanged": 1}
    write_files(project.folder / "docs", {".pairignore": "b.md"})
    assert counts(project.run()) == {"removed": 1}


def test_llms_txt_leads_to_the_files_of_collections(project: Project) -> None:
    write_files(project.folder / "docs", {"a.md": "One."})
    collect(project, docs=CollectionSettings(path="docs"))
    folder = project.folder / "docs"
    llms = LlmsFile(project.folder / "llms.txt", project.places.sources_dir, {"docs": folder})
    project.places = dataclasses.replace(project.places, llms=llms)
    project.run()
    assert "## docs\n\n- [docs/a.md](docs/a.md): About docs/a.md." in llms.path.read_text()
