"""KBs from git repositories, served by git's own daemon."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Workplace, read_files
from support.git_server import commit, git, served
from support.kbs import SMALL_KB, SMALL_KB_BYTES


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "repositories") as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repositories" / "handbook.git"


@pytest.mark.rule("source-9")
def test_a_repository_is_installed_without_its_history(workplace: Workplace, repository: Path, address: str) -> None:
    commit(repository, SMALL_KB)
    done = workplace.pair("install", "--source", f"{address}/handbook.git", "--json")
    assert done.status == 0, done.stdout
    assert done.json["source"]["type"] == "git"
    assert done.json["name"] == "handbook"
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.rule("source-9")
def test_a_ref_chooses_branch_tag_or_commit(workplace: Workplace, repository: Path, address: str) -> None:
    first = commit(repository, {"page.md": "first"})
    git(repository, "tag", "v1")
    git(repository, "branch", "old")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit(repository, {"page.md": "second"})
    for ref in ("v1", "old", first):
        done = workplace.pair("install", f"target-{ref[:5]}", "--source", f"{address}/handbook.git#{ref}")
        assert done.status == 0, done.stderr
        assert read_files(workplace.folder / f"target-{ref[:5]}") == {"page.md": b"first"}


@pytest.mark.rule("source-9")
def test_update_follows_the_branch(workplace: Workplace, repository: Path, address: str) -> None:
    commit(repository, {"page.md": "first", "gone.md": "gone"})
    workplace.pair("install", "--source", f"{address}/handbook.git")
    assert workplace.pair("update", "--json").json["unchanged"] == 2
    git(repository, "rm", "--quiet", "gone.md")
    commit(repository, {"page.md": "second"})
    done = workplace.pair("update", "--json")
    assert (done.json["changed"], done.json["removed"]) == (["page.md"], ["gone.md"])


@pytest.mark.rule("source-9")
@pytest.mark.parametrize("what", ["nowhere.git", "handbook.git#no-such-ref", "handbook.git#--upload-pack=touch x"])
def test_what_git_cannot_fetch_is_e008(workplace: Workplace, repository: Path, address: str, what: str) -> None:
    commit(repository, SMALL_KB)
    done = workplace.pair("install", "--source", f"{address}/{what}", "--json")
    assert (done.status, done.error_code) == (2, "E008")
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []
    assert not (workplace.folder / "x").exists()


def test_links_in_a_repository_do_not_lead_out_of_it(workplace: Workplace, repository: Path, address: str) -> None:
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    (repository / "out.md").symlink_to("/etc/hostname")
    commit(repository, {"page.md": "page"})
    done = workplace.pair("install", "--source", f"{address}/handbook.git")
    assert done.status == 0, done.stderr
    assert read_files(workplace.target) == {"page.md": b"page"}


def test_a_repository_is_locked_by_its_commit(workplace: Workplace, repository: Path, address: str) -> None:
    first = commit(repository, {"page.md": "first"})
    workplace.pair("install", "--source", f"{address}/handbook.git")
    locked = workplace.pair("lock", "--json").json["kbs"][0]
    assert (locked["commit"], locked["archive_sha256"]) == (first, "")
    assert workplace.pair("lock", "--check").status == 0
    shutil.rmtree(workplace.target)
    shutil.rmtree(workplace.cache)
    assert workplace.pair("install", "--locked").status == 0
    assert workplace.pair("lock", "--check").status == 0
    second = commit(repository, {"page.md": "second"})
    shutil.rmtree(workplace.target)
    assert workplace.pair("install", "--locked").status == 0, "what is in the cache is what is locked"
    shutil.rmtree(workplace.cache)
    refused = workplace.pair("install", "--locked", "--json")
    assert (refused.status, refused.error_code) == (4, "E022")
    assert refused.json["error"]["details"]["drifts"][0] == f"default: commit: locked {first}, found {second}"
    assert read_files(workplace.target) == {"page.md": b"first"}
