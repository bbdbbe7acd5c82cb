"""Patterns of collections: the files that they select in real folders, with the meaning of git."""

import os
from pathlib import Path
from typing import Any

import pytest

from pair.sync.collection import CollectionSettings
from pair.sync.discover import FoundCollection, NamedCollection, SyncPaths, discover
from support.command import write_files

NAMES = """
a.md|b.txt|README.MD|build/out.md|docs/a.md|docs/deep/b.md|docs/deep/build/c.md|x y.md|foo/bar/one.md|foo/two.md
|#note.md
"""
FILES: dict[str, str | bytes] = dict.fromkeys(NAMES.replace("\n", "").split("|"), "text")


def find(folder: Path, **settings: Any) -> FoundCollection:
    named = NamedCollection("c", CollectionSettings(path=str(folder), **settings), folder, "config.yaml:3")
    return discover(
        SyncPaths(folder, folder, folder, folder, folder, collections=(named,), is_named_only=True)
    ).collections["c"]


def names(found: FoundCollection) -> set[str]:
    assert not found.fault
    return {path.removeprefix("c/") for path in found.files.files}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files", FILES)


@pytest.mark.parametrize(
    ("patterns", "excluded"),
    [
        pytest.param(["*.txt"], {"b.txt"}, id="a name at any depth"),
        pytest.param(["/a.md"], {"a.md"}, id="a name at the top"),
        pytest.param(["docs/a.md"], {"docs/a.md"}, id="a path"),
        pytest.param(["build/"], {"build/out.md", "docs/deep/build/c.md"}, id="folders of a name"),
        pytest.param(["/build/"], {"build/out.md"}, id="a folder at the top"),
        pytest.param(["a.md/"], set(), id="a folder is no file"),
        pytest.param(["docs/**"], {"docs/a.md", "docs/deep/b.md", "docs/deep/build/c.md"}, id="all below"),
        pytest.param(["docs/**/b.md"], {"docs/deep/b.md"}, id="folders between"),
        pytest.param(["**/deep/b.md"], {"docs/deep/b.md"}, id="folders above"),
        pytest.param(["foo/*"], {"foo/bar/one.md", "foo/two.md"}, id="one level"),
        pytest.param(["foo/*", "!foo/two.md"], {"foo/bar/one.md"}, id="negation"),
        pytest.param(["foo/", "!foo/two.md"], {"foo/bar/one.md", "foo/two.md"}, id="nothing below an excluded folder"),
        pytest.param(["*", "!*/", "!*.md"], {"b.txt", "README.MD"}, id="all but some"),
        pytest.param(["/**", "!/**"], set(), id="everything and nothing"),
        pytest.param(["[ab].*"], {"a.md", "b.txt", "docs/a.md", "docs/deep/b.md"}, id="a class"),
        pytest.param(["[!a-c].md"], set(), id="a negated class"),
        pytest.param(["?.md"], {"a.md", "docs/a.md", "docs/deep/b.md", "docs/deep/build/c.md"}, id="one character"),
        pytest.param(["\\#note.md", "# a comment", "", "   "], {"#note.md"}, id="comments"),
        pytest.param(["x y.md   "], {"x y.md"}, id="spaces"),
        pytest.param(["[a", "(", "*.txt"], {"b.txt"}, id="what is no pattern matches nothing"),
    ],
)
@pytest.mark.parametrize("written_in", ["exclude", ".gitignore", ".pairignore"])
def test_patterns_mean_what_they_mean_in_git(
    folder: Path, patterns: list[str], excluded: set[str], written_in: str
) -> None:
    if written_in == "exclude":
        found = find(folder, exclude=tuple(patterns))
    else:
        (folder / written_in).write_text("\n".join(patterns))
        found = find(folder)
    assert FILES.keys() - names(found) == excluded


def test_a_deeper_ignore_file_decides_and_the_configuration_before_all(folder: Path) -> None:
    write_files(folder, {".gitignore": "*.md\n", "docs/.gitignore": "!*.md\n", "docs/deep/.pairignore": "b.md\n"})
    assert names(find(folder)) == {"b.txt", "README.MD", "docs/a.md", "docs/deep/build/c.md"}
    assert "a.md" in names(find(folder, exclude=("!/a.md",)))
    assert names(find(folder, ignore_files=False)) == FILES.keys()


def test_ignore_files_above_count_within_the_repository(tmp_path: Path) -> None:
    inside = write_files(tmp_path / "repository/docs", FILES)
    write_files(tmp_path, {".gitignore": "*\n"})
    write_files(tmp_path / "repository", {".gitignore": "/docs/build/\n/build/\n*.txt\n", ".git/config": ""})
    assert FILES.keys() - names(find(inside)) == {"build/out.md", "b.txt"}


def test_included_are_files_that_match_or_are_in_a_folder_that_does(folder: Path) -> None:
    assert names(find(folder, include=("docs/",))) == {"docs/a.md", "docs/deep/b.md", "docs/deep/build/c.md"}
    assert names(find(folder, include=("*.txt", "docs/", "!deep/"))) == {"b.txt", "docs/a.md"}
    assert names(find(folder, include=("**/*.md",), exclude=("docs/",))) == {
        "a.md", "build/out.md", "x y.md", "foo/bar/one.md", "foo/two.md", "#note.md"
    }  # fmt: skip


@pytest.mark.parametrize("pattern", ["[z-a].md", "docs/[z-a]/b.md"])
def test_a_broken_pattern_of_include_matches_nothing(folder: Path, pattern: str) -> None:
    assert names(find(folder, include=(pattern,))) == set()
    assert names(find(folder, include=(pattern, "*.txt"))) == {"b.txt"}


def test_case_counts_unless_the_collection_says_otherwise(folder: Path) -> None:
    assert "README.MD" not in names(find(folder, include=("*.md",)))
    assert "README.MD" in names(find(folder, include=("*.md",), ignore_case=True))


def test_an_excluded_folder_is_never_listed(folder: Path) -> None:
    (folder / "build/loop").symlink_to(folder)
    (folder / "docs/loop").symlink_to("loop")
    assert find(folder).files.skipped == {"c/build/loop": "link to a folder", "c/docs/loop": "link to nothing"}
    found = find(folder, exclude=("build/",))
    assert found.files.skipped == {"c/docs/loop": "link to nothing"}
    assert found.files.excluded == {"config.yaml:3: build/": 2}


@pytest.mark.parametrize(
    ("patterns", "entered"),
    [
        (["foo/**/*.md"], {"foo", "foo/bar"}),
        (["foo/*.md"], {"foo"}),
        (["/a.md"], set()),
        (["FOO/bar/*.md"], set()),
        (["docs/deep/", "!docs/deep/build/"], {"docs", "docs/deep"}),
        (["d*s/deep/build/*"], {"docs", "docs/deep", "docs/deep/build"}),
        (["**/b.md"], {"build", "docs", "docs/deep", "docs/deep/build", "foo", "foo/bar"}),
        (["foo/**", "b.md"], {"build", "docs", "docs/deep", "docs/deep/build", "foo", "foo/bar"}),
    ],
)
def test_a_folder_in_which_nothing_can_be_included_is_never_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, patterns: list[str], entered: set[str]
) -> None:
    everything = names(find(folder, include=(*patterns, "no such name")))  # a name may be anywhere
    listed = count_listed_folders(folder, monkeypatch)
    assert names(find(folder, include=tuple(patterns))) == everything
    assert set(listed) == {".", *entered}


def count_listed_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    listed, scandir = [], os.scandir

    def scan(path: str) -> Any:
        listed.append(os.path.relpath(path, folder))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    return listed


def test_a_walk_lists_no_folder_of_the_nine_tenths_that_are_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        top = "docs" if number % 10 == 0 else f"node_modules/{number}"
        write_files(tmp_path / top / str(number), dict.fromkeys(("a.md", "deep/b.md", "deep/deeper/c.md"), "text"))
    listed = count_listed_folders(tmp_path, monkeypatch)
    for rules in ({"exclude": ("node_modules/",)}, {"include": ("docs/**/*.md",)}):
        listed.clear()
        assert len(names(find(tmp_path, **rules))) == 30
        assert len(listed) == 1 + 1 + 3 * 10
