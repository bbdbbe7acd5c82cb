"""Edits of collections in configuration files: the rest of the file stays unchanged."""

from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.kb.configure import add_collection, remove_collection
from pair.settings import Settings

ENTRY: dict[str, Any] = {"path": "./docs", "include": ["**/*.md"]}
ADDED = 'docs:\n  path: ./docs\n  include: ["**/*.md"]\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def indent(text: str, columns: int) -> str:
    return "".join(" " * columns + line for line in text.splitlines(keepends=True))


NEW = "kb:\n  collections:\n" + indent(ADDED, 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", NEW, id="empty"),
        pytest.param("# ours\n", "# ours\n" + NEW, id="only a comment"),
        pytest.param("ai:\n  model: x # why\n", "ai:\n  model: x # why\n" + NEW, id="another section"),
        pytest.param("ai:\n  model: x", "ai:\n  model: x\n" + NEW, id="without a line end"),
        pytest.param("kb:\nai:\n  retries: 1\n", NEW + "ai:\n  retries: 1\n", id="an empty section"),
        pytest.param(
            "kb:\n    max_source_bytes: 5 # small\n\n# below\nai:\n  retries: 1\n",
            "kb:\n    max_source_bytes: 5 # small\n    collections:\n"
            + indent(ADDED, 6)
            + "\n# below\nai:\n  retries: 1\n",
            id="other keys",
        ),
        pytest.param(
            "kb:\n  collections: # all\n    a:\n      path: a # one\n      exclude:\n        - x\n"
            "  max_source_bytes: 5\n",
            "kb:\n  collections: # all\n    a:\n      path: a # one\n      exclude:\n        - x\n"
            + indent(ADDED, 4)
            + "  max_source_bytes: 5\n",
            id="other collections",
        ),
        pytest.param("kb:\n  collections:\n", "kb:\n  collections:\n" + indent(ADDED, 4), id="no collections yet"),
    ],
)
def test_a_collection_is_added_and_every_other_byte_stays(before: str, after: str) -> None:
    Path("config.yaml").write_text(before)
    edited = add_collection(None, "docs", ENTRY)
    assert "\n".join(edited.lines) + "\n" == ADDED
    assert Path("config.yaml").read_text() == after
    assert Settings.load(None, {}).kb.collections["docs"].include == ("**/*.md",)
    remove_collection(None, "docs")
    assert Settings.load(None, {}).kb.collections.keys() == ({"a"} if "path: a" in before else set())
    if "collections" in before and "path: a" in before:
        assert Path("config.yaml").read_text() == before


@pytest.mark.parametrize("text", ["kb: {max_source_bytes: 5}\n", "kb:\n  collections: {a: {path: a}}\n", "{}\n"])
def test_a_form_that_cannot_be_edited_is_refused_with_the_lines_to_write(text: str) -> None:
    Path("config.yaml").write_text(text)
    with pytest.raises(errors.UsageError) as refused:
        add_collection(None, "docs", ENTRY)
    assert refused.value.code == "E401"
    assert refused.value.hints == ('Add to kb.collections: docs: {path: ./docs, include: ["**/*.md"]}',)
    assert Path("config.yaml").read_text() == text


def test_removing_the_last_collection_keeps_the_comments_around_it() -> None:
    Path("config.yaml").write_text("# one\nkb: # two\n  collections:\n    # three\n    a: {path: a}\n    # four\n")
    assert remove_collection(None, "a").lines == ("collections:", "  a: {path: a}")
    assert Path("config.yaml").read_text() == "# one\nkb: # two\n    # three\n    # four\n"


def test_a_collection_in_braces_is_removed() -> None:
    Path("config.yaml").write_text("kb:\n  collections: {\n    a: {path: a},\n    b: {path: b},\n  }\n")
    remove_collection(None, "a")
    assert Path("config.yaml").read_text() == "kb:\n  collections: {\n    b: {path: b},\n  }\n"
    remove_collection(None, "b")
    assert Path("config.yaml").read_text() == "kb:\n"


def test_collections_may_be_null() -> None:
    Path("config.yaml").write_text("kb:\n  collections: ~\n")
    assert Settings.load(None, {}).kb.collections == {}


def test_line_ends_of_the_file_are_kept() -> None:
    Path("config.yaml").write_bytes(b"ai:\r\n  retries: 1\r\n")
    add_collection(None, "docs", {"path": "docs"})
    assert Path("config.yaml").read_bytes() == (
        b"ai:\r\n  retries: 1\r\nkb:\r\n  collections:\r\n    docs:\r\n      path: docs\r\n"
    )


def test_a_name_twice_or_unknown_is_refused() -> None:
    add_collection(None, "docs", {"path": "docs"})
    before = Path("config.yaml").read_bytes()
    with pytest.raises(errors.UsageError, match="it has a collection docs"):
        add_collection(None, "docs", {"path": "other"})
    with pytest.raises(errors.UsageError, match="it has no collection wiki"):
        remove_collection(None, "wiki")
    assert Path("config.yaml").read_bytes() == before


def test_an_edit_keeps_trust_and_gives_none() -> None:
    add_collection(None, "issues", {"command": ["true"]})  # the user wrote all that needs trust
    assert Settings.load(None, {}).folder_config.is_trusted  # type: ignore[union-attr]
    add_collection(None, "docs", {"path": "docs"})
    assert Settings.load(None, {}).folder_config.is_trusted  # type: ignore[union-attr]
    Path("config.yaml").write_text(Path("config.yaml").read_text() + "server:\n  mcp_write: true\n")
    add_collection(None, "wiki", {"path": "wiki"})
    config = Settings.load(None, {}, on_ignored=lambda _: None).folder_config
    assert config is not None
    assert [request.key for request in config.ignored] == ["kb.collections.issues", "server.mcp_write"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("docs: {path: a, url: 'https://b/'}", "exactly one of"),
        ("docs: {}", "exactly one of"),
        ("docs: {pth: a}", "Did you mean path?"),
        ("docs: {path: [a]}", "valid string"),
        ("docs: {url: ftp://a/}", "http://"),
        ("docs: {url: 'https://'}", "names a host"),
        ("docs: {feed: 'https://[::1'}", "names a host"),
        ("docs: {url: 'https://a/', include: [x]}", "include is only for"),
        ("docs: {bucket: 'file:///a'}", "s3://bucket/prefix"),
        ("docs: {path: a, kb: '../x'}", "kb is not the name"),
        ("docs: {url: 'https://a/', max_pages: 0}", "greater than 0"),
        ("'a/b': {path: a}", "letters, digits"),
        ("docs: 7", "kb.collections.docs: input should be a mapping, got 7"),
        ("docs: {command: notes}", "docs.command: input should be a list, got 'notes'"),
        ("docs: {path: a, include: ['# no pattern']}", "blank or a comment"),
    ],
)
def test_a_collection_that_is_not_valid_is_refused_with_its_line(entry: str, reason: str) -> None:
    Path("config.yaml").write_text(f"kb:\n  collections:\n    good: {{path: good}}\n    {entry}\n")
    with pytest.raises(errors.UsageError) as refused:
        Settings.load(None, {})
    assert refused.value.code == "E401"
    assert "config.yaml:4" in refused.value.message
    assert reason in f"{refused.value.message} {refused.value.hints}"
