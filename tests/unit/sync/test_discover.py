"""Folder and links file as a set of sources: real files."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from pair.sync.discover import find_addresses, find_files
from pair.sync.rules import FileSeen
from support.command import write_files


@pytest.mark.parametrize(
    ("names", "found"),
    [
        pytest.param([], [], id="empty folder"),
        pytest.param(["a.md", "b.txt", "Makefile", "x.py"], ["Makefile", "a.md", "b.txt", "x.py"], id="any name"),
        pytest.param(["one/two/three/deep.md"], ["one/two/three/deep.md"], id="nested"),
        pytest.param([".hidden.md", "a.md"], ["a.md"], id="hidden file"),
        pytest.param([".git/config", ".a/b/c.md", "a/.b/c.md", "a/c.md"], ["a/c.md"], id="hidden folder"),
        pytest.param(["a.b/.c", "a.b/c."], ["a.b/c."], id="dots elsewhere"),
        pytest.param(["ö/你好 🙂.md", "a b.md"], ["a b.md", "ö/你好 🙂.md"], id="any characters"),
    ],
)
@pytest.mark.rule("sync-11")
@pytest.mark.rule("sync-43")
def test_files_are_found_by_their_relative_path(tmp_path: Path, names: list[str], found: list[str]) -> None:
    write_files(tmp_path, dict.fromkeys(names, "text"))
    assert sorted(find_files(tmp_path).files) == found


@pytest.mark.rule("sync-14")
def test_what_is_seen_of_a_file_is_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"12345")
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    assert find_files(tmp_path).files == {"a.md": FileSeen(5, 1_700_000_000_123_456_789)}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param("../outside.md", "link out of the folder", id="out of it"),
        pytest.param("../knowledge-not/a.md", "link out of the folder", id="to a folder with a longer name"),
        pytest.param("nowhere.md", "link to nothing", id="to nothing"),
        pytest.param("link.md", "link to nothing", id="to itself"),
        pytest.param("folder", "link to a folder", id="to a folder inside"),
        pytest.param("..", "link to a folder", id="to the folder above"),
        pytest.param(".", "link to a folder", id="to the folder itself"),
    ],
)
@pytest.mark.rule("sync-11")
def test_a_link_is_skipped_with_its_reason(tmp_path: Path, target: str, reason: str) -> None:
    folder = tmp_path / "knowledge"
    write_files(tmp_path, {"knowledge/folder/a.md": "a", "outside.md": "secret", "knowledge-not/a.md": "secret"})
    (folder / "link.md").symlink_to(target)
    found = find_files(folder)
    assert sorted(found.files) == ["folder/a.md"]
    assert found.skipped == {"link.md": reason}


@pytest.mark.rule("sync-11")
def test_a_link_to_a_file_inside_is_a_source_with_what_it_leads_to(tmp_path: Path) -> None:
    write_files(tmp_path, {"folder/real.md": "12345"})
    (tmp_path / "link.md").symlink_to("folder/real.md")
    found = find_files(tmp_path)
    assert found.files["link.md"] == found.files["folder/real.md"]
    assert found.skipped == {}


@pytest.mark.rule("sync-11")
def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    write_files(tmp_path, {"one/a.md": "a", "two/b.md": "b"})
    (tmp_path / "one" / "two").symlink_to("../two")
    (tmp_path / "two" / "one").symlink_to("../one")
    assert sorted(find_files(tmp_path).files) == ["one/a.md", "two/b.md"]


@pytest.mark.rule("sync-11")
def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    write_files(tmp_path, {"real/a.md": "a"})
    (tmp_path / "real" / "b.md").symlink_to("a.md")
    (tmp_path / "link").symlink_to("real")
    assert sorted(find_files(tmp_path / "link").files) == ["a.md", "b.md"]


@pytest.mark.rule("sync-11")
def test_pipes_are_not_sources(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.md").write_text("a")
    assert sorted(find_files(tmp_path).files) == ["a.md"]


@pytest.mark.rule("sync-11")
def test_what_goes_during_the_walk_is_left_out(tmp_path: Path) -> None:
    """While files are added and removed, the walk succeeds and finds those that stay."""
    write_files(tmp_path, {f"stay/{number}.md": "text" for number in range(100)})
    is_over = threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            for folder in ("one", "two", "three"):
                write_files(tmp_path / folder, {f"{number}.md": "text" for number in range(5)})
                shutil.rmtree(tmp_path / folder)

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(100):
            found = find_files(tmp_path)
            assert sum(path.startswith("stay/") for path in found.files) == 100
            assert found.unreadable == {}
    finally:
        is_over.set()
        churning.join()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param(b"caf\xe9.md", "name is not valid Unicode", id="not UTF-8"),
        pytest.param(b"two\nlines.md", "control character in the name", id="line break"),
        pytest.param("two\u2028lines.md".encode(), "control character in the name", id="line separator"),
        pytest.param(b"bell\x07.md", "control character in the name", id="control"),
    ],
)
@pytest.mark.rule("sync-11")
def test_a_name_that_is_not_a_line_of_an_index_is_skipped_with_the_reason(
    tmp_path: Path, name: bytes, reason: str
) -> None:
    path = os.fsdecode(name)
    write_files(tmp_path, {path: "a", "caf\xe9\u00a0.md": "a"})
    found = find_files(tmp_path)
    assert list(found.files) == ["caf\xe9\u00a0.md"]
    assert found.skipped == {path: reason}


@pytest.mark.rule("sync-9")
def test_a_fingerprint_changes_with_every_change_that_is_seen(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return find_files(tmp_path).fingerprint()

    def at(path: Path, instant_ns: int) -> None:
        os.utime(path, ns=(instant_ns, instant_ns))

    path = tmp_path / "a.md"
    seen = [fingerprint()]
    path.write_text("a")
    at(path, 1000)
    seen.append(fingerprint())
    assert fingerprint() == seen[-1]
    at(path, 1001)
    seen.append(fingerprint())
    path.write_text("ab")
    at(path, 1001)
    seen.append(fingerprint())
    path.rename(tmp_path / "b.md")
    seen.append(fingerprint())
    (tmp_path / "link.md").symlink_to("nowhere")
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)


# ── links file ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-10")
def test_links_are_read_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_bytes("\ufeff# pages\r\n https://a \r\n\r\nhttps://b\r\nhttps://a\r\n".encode())
    assert list(find_addresses(path)) == ["https://a", "https://b"]


@pytest.mark.rule("sync-10")
def test_a_line_that_is_not_utf8_does_not_cost_the_others(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_bytes(b"https://a\n# caf\xe9\nhttps://b\n")
    assert list(find_addresses(path)) == ["https://a", "https://b"]


@pytest.mark.rule("sync-50")
def test_a_missing_links_file_is_distinguished_from_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_addresses(tmp_path / "links.txt")
