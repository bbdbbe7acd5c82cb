"""`kb.llms_txt_path`: the list always matches the index."""

import json
from pathlib import Path

import pytest

from support.command import Outcome, Workplace, write_files
from support.server import Server

PAGES: dict[str, str | bytes] = {
    "deploy.md": "# Deploying\n\nWe deploy on Tuesdays with `make ship`.\n",
    "guides/roll back.md": "# Rolling back\n\nRun `make undo` and tell the channel.\n",
}


class Project:
    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self.variables = {"PAIR__KB__LLMS_TXT_PATH": "llms.txt", "PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true"}
        self.path = workplace.folder / "llms.txt"
        write_files(workplace.target, PAGES)

    def sync(self, *options: str, **variables: str) -> Outcome:
        return self.workplace.pair("sync", "--json", *options, **(self.variables | variables)).succeeds()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def cache(self) -> Path:
        return self.workplace.folder / ".pair/index-cache.json"

    def seen(self) -> tuple[tuple[int, int], ...]:
        """Return values that change when a file is written again."""
        files = (self.path, self.cache, self.workplace.folder / ".pair/index.txt")
        return tuple((path.stat().st_ino, path.stat().st_mtime_ns) for path in files)


@pytest.fixture
def project(workplace: Workplace) -> Project:
    return Project(workplace)


def test_a_run_writes_the_list_beside_the_index(project: Project, server: Server) -> None:
    url = server.add("/page", b"<html><body><p>A page about clocks.</p></body></html>", checksum=False)
    server.pages["/page"].headers = {"Content-Type": "text/html"}
    write_files(project.workplace.folder / ".pair", {"links.txt": f"{url}\n"})
    project.sync()
    lines = project.text.splitlines()
    assert lines[:3] == ["# Knowledge base", "", "> 2 files and 1 page"]
    assert [line.partition(": ")[0] for line in lines if line.startswith("- ")] == [
        "- [deploy.md](.pair/knowledge/deploy.md)",
        "- [guides/roll back.md](.pair/knowledge/guides/roll%20back.md)",
        f"- [{url}]({url})",
    ]
    assert "Deploying" in project.text


def test_without_the_setting_nothing_is_written(project: Project) -> None:
    project.sync(PAIR__KB__LLMS_TXT_PATH="")
    assert not project.path.exists()
    assert "llms" not in project.cache.read_text()


def test_a_run_with_nothing_to_do_writes_nothing(project: Project) -> None:
    project.sync()
    before = project.seen()
    assert project.sync().json["unchanged"] == 2
    assert project.seen() == before


@pytest.mark.parametrize("spoil", ["deleted", "edited", "emptied"])
def test_an_edited_list_is_written_again(project: Project, spoil: str) -> None:
    project.sync()
    whole = project.text
    if spoil == "deleted":
        project.path.unlink()
    else:
        project.path.write_text("mine" if spoil == "edited" else "")
    assert project.sync().json["unchanged"] == 2
    assert project.text == whole


def test_turned_on_later_it_is_written_though_nothing_changed(project: Project) -> None:
    project.sync(PAIR__KB__LLMS_TXT_PATH="")
    done = project.sync()
    assert (done.json["added"], done.json["changed"], done.json["unchanged"]) == (0, 0, 2)
    whole = project.text
    before = project.seen()
    project.sync(PAIR__KB__LLMS_TXT_PATH="")
    project.sync()
    assert (project.text, project.seen()) == (whole, before)


def test_what_changed_while_it_was_turned_off_is_in_it_again(project: Project) -> None:
    project.sync()
    write_files(project.workplace.target, {"new.md": "# New\n\nA new page.\n"})
    project.sync(PAIR__KB__LLMS_TXT_PATH="")
    assert "new.md" not in project.text
    project.sync()
    assert "[new.md]" in project.text


def test_in_another_place_or_for_another_folder_its_links_lead_there(project: Project) -> None:
    project.sync()
    project.sync(PAIR__KB__LLMS_TXT_PATH="public/llms.txt")
    moved = project.workplace.folder / "public/llms.txt"
    assert "](../.pair/knowledge/deploy.md)" in moved.read_text()
    project.workplace.target.rename(project.workplace.folder / "handbook")
    project.sync(PAIR__KB__SOURCES_DIR="handbook")
    assert "](handbook/deploy.md)" in project.text


def test_removed_and_changed_sources_are_followed(project: Project) -> None:
    project.sync()
    (project.workplace.target / "deploy.md").unlink()
    write_files(project.workplace.target, {"guides/roll back.md": "# Rolling on\n\nNever back.\n"})
    project.sync()
    assert "deploy.md" not in project.text
    assert "Rolling on" in project.text
    assert "> 1 file and 0 pages" in project.text


def test_the_list_is_not_a_source_of_itself(project: Project) -> None:
    variables = {"PAIR__KB__LLMS_TXT_PATH": ".pair/knowledge/llms.txt"}
    assert project.sync(**variables).json["added"] == 2
    assert project.sync(**variables).json["unchanged"] == 2
    assert "](deploy.md)" in (project.workplace.target / "llms.txt").read_text()
    planned = project.workplace.pair("sync", "--dry-run", "--json", **(project.variables | variables)).json
    assert "llms.txt" not in json.dumps(planned)


def test_a_state_saved_without_its_list_is_healed(project: Project) -> None:
    """A kill between the two renames leaves a new state with an old list."""
    project.sync()
    old = project.path.read_bytes()
    write_files(project.workplace.target, {"new.md": "# New\n\nA new page.\n"})
    project.sync()
    whole = project.text
    project.path.write_bytes(old)
    project.path.with_name(".llms.txt.4242.tmp").write_bytes(b"half")
    project.sync()
    assert project.text == whole
    assert sorted(path.name for path in project.workplace.folder.glob(".llms*")) == []


@pytest.mark.parametrize("place", [".pair/index.txt", ".pair/links.txt", "./.pair/index-cache.json"])
def test_the_place_of_another_file_is_refused(project: Project, place: str) -> None:
    project.workplace.pair("sync", "--json", PAIR__KB__LLMS_TXT_PATH=place).fails(1, "E401").prints("kb.llms_txt_path")
