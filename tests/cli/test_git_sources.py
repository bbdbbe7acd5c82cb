"""KBs from git repositories, served by the git daemon."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair import KbSource, Settings, errors, install
from support.command import Workplace, read_files, write_files
from support.errors import raises_code
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
    done = workplace.pair("install", "--source", f"{address}/handbook.git", "--json").succeeds()
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
        workplace.pair("install", f"target-{ref[:5]}", "--source", f"{address}/handbook.git#{ref}").succeeds()
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
    workplace.pair("install", "--source", f"{address}/{what}", "--json").fails(2, "E008")
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []
    assert not (workplace.folder / "x").exists()


def test_links_in_a_repository_do_not_lead_out_of_it(workplace: Workplace, repository: Path, address: str) -> None:
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    (repository / "out.md").symlink_to("/etc/hostname")
    commit(repository, {"page.md": "page"})
    workplace.pair("install", "--source", f"{address}/handbook.git").succeeds()
    assert read_files(workplace.target) == {"page.md": b"page"}


def test_a_link_with_the_name_of_what_pair_writes_is_not_written_through(
    workplace: Workplace, repository: Path, address: str, tmp_path: Path
) -> None:
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet")
    (tmp_path / "mine.txt").write_text("mine")
    (repository / ".pair-entry.json").symlink_to(tmp_path / "mine.txt")
    commit(repository, {"page.md": "page"})
    workplace.pair("install", "--source", f"{address}/handbook.git", "--json").fails(3, "E025")
    assert (tmp_path / "mine.txt").read_text() == "mine"


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
    refused = workplace.pair("install", "--locked", "--json").fails(4, "E022")
    assert refused.json["error"]["details"]["drifts"][0] == f"default: commit: locked {first}, found {second}"
    assert read_files(workplace.target) == {"page.md": b"first"}


def add_to_tree(repository: Path, name: str) -> None:
    """Commit a file under a name that `git add` refuses, as an attacker can."""
    blob = git(repository, "hash-object", "-w", "page.md")
    parts = name.split("/")
    made = f"100644 blob {blob}\t{parts[-1]}"
    for folder in reversed(parts[:-1]):
        made = f"040000 tree {make_tree(repository, made)}\t{folder}"
    tree = make_tree(repository, f"{git(repository, 'ls-tree', 'HEAD')}\n{made}")
    git(repository, "update-ref", "HEAD", git(repository, "commit-tree", tree, "-m", "hostile", "-p", "HEAD"))


def make_tree(repository: Path, listed: str) -> str:
    made = subprocess.run(
        ["git", "mktree"], cwd=repository, input=listed + "\n", check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


@pytest.mark.parametrize("name", [".g\u200cit/config", "a/GIT~1/config", ".hg/hgrc", "a/CVS/Root"])
def test_names_of_version_control_in_a_repository_do_not_arrive(
    workplace: Workplace, repository: Path, address: str, name: str
) -> None:
    commit(repository, {"page.md": "page"})
    add_to_tree(repository, name)
    done = workplace.pair("install", "--source", f"{address}/handbook.git", "--json")
    assert done.status == 0 or done.error_code == "E008", done.stdout
    assert read_files(workplace.target).keys() <= {"page.md"}


def test_a_bare_repository_inside_a_repository_does_not_arrive(
    workplace: Workplace, repository: Path, address: str
) -> None:
    hidden = {f"docs/{name}": "x" for name in ("HEAD", "config", "objects/x", "refs/x")}
    commit(repository, {"page.md": "page", **hidden})
    workplace.pair("install", "--source", f"{address}/handbook.git", "--json").succeeds()
    assert read_files(workplace.target).keys() == {"page.md"}


def test_a_repository_of_nested_folders_is_refused_and_nothing_is_left(
    workplace: Workplace, repository: Path, address: str
) -> None:
    commit(repository, {"page.md": "page"})
    add_to_tree(repository, "/".join(["a"] * 1500))
    workplace.pair("install", "--source", f"{address}/handbook.git", "--json").fails(2, "E009")
    assert workplace.cached_entries() == []
    assert not workplace.target.exists()


# ── what git is started with ───────────────────────────────────────────────────────────────────────


def test_variables_of_git_do_not_lead_to_the_users_own_repository(
    workplace: Workplace, repository: Path, address: str, tmp_path: Path
) -> None:
    commit(repository, SMALL_KB)
    own = tmp_path / "own"
    commit(own, {"work.md": "mine"})
    before = read_files(own)
    variables = {
        "GIT_DIR": str(own / ".git"),
        "GIT_WORK_TREE": str(own),
        "GIT_INDEX_FILE": str(own / ".git" / "index"),
        "GIT_OBJECT_DIRECTORY": str(own / ".git" / "objects"),
    }
    workplace.pair("install", "--source", f"{address}/handbook.git", **variables).succeeds()
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert workplace.pair("update", **variables).status == 0
    assert read_files(own) == before
    assert git(own, "symbolic-ref", "HEAD") == "refs/heads/main"


def test_neither_hooks_nor_configuration_around_it_are_run(
    workplace: Workplace, repository: Path, address: str, tmp_path: Path
) -> None:
    commit(repository, SMALL_KB)
    marker = tmp_path / "was-run"
    hook = tmp_path / "templates" / "hooks" / "post-checkout"
    write_files(hook.parent, {hook.name: f"#!/bin/sh\ntouch {marker}\n"})
    hook.chmod(0o755)
    git(workplace.folder, "init", "--quiet")
    git(workplace.folder, "config", "core.fsmonitor", str(hook))
    git(workplace.folder, "config", "core.gitProxy", str(hook))
    settings = (
        f"[core]\n\thooksPath = {hook.parent}\n\tfsmonitor = {hook}\n[init]\n\ttemplateDir = {hook.parent.parent}\n"
    )
    write_files(tmp_path / "home", {".gitconfig": settings})
    for command in (("install", "--source", f"{address}/handbook.git"), ("update",)):
        workplace.pair(*command).succeeds()
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["git", "url"])
@pytest.mark.parametrize(
    "location", ["file://{repository}", "{repository}#x.git", "ext::sh -c 'touch x'", "fd::3", "-x"]
)
def test_the_location_in_a_record_is_judged_as_one_that_is_typed(
    workplace: Workplace, repository: Path, address: str, kind: str, location: str
) -> None:
    commit(repository, SMALL_KB)
    workplace.pair("install", "--source", f"{address}/handbook.git")
    record = workplace.target / ".pair-install.jsonl"
    header, _, rest = record.read_text().partition("\n")
    value = json.loads(header)
    value["source"] |= {"type": kind, "location": location.format(repository=repository)}
    record.write_text(json.dumps(value) + "\n" + rest)
    commit(repository, {"README.md": "changed"})
    typed = workplace.pair("update", "--source", value["source"]["location"], "--json")
    recorded = workplace.pair("update", "--json").fails(typed.status, typed.error_code)
    assert recorded.error_code in {"E003", "E004"}
    assert not (workplace.folder / "x").exists()


@pytest.mark.parametrize("location", ["file://{repository}", "{repository}", "ext::sh -c 'touch x'", "fd::3"])
def test_git_is_not_asked_for_what_is_not_an_address_of_a_repository(
    workplace: Workplace, repository: Path, location: str
) -> None:
    commit(repository, SMALL_KB)
    settings = Settings.load(environment={"PAIR_KB_CACHE_DIR": str(workplace.cache)})
    source = KbSource("git", location.format(repository=repository), requires_download=True)
    with raises_code("E004", errors.UsageError):
        install(source, workplace.target, settings=settings)
