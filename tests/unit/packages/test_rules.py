"""The rules about sources, as tables."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pair.errors import NotFoundError, PairError, UsageError
from pair.packages.resolve import MONOREPO_DATASET, FeedAddress, refuse_conflicting_options, resolve_source
from pair.packages.rules import (
    KeptFile,
    UpdatePlan,
    append_suffix,
    find_bare_repositories,
    find_label_fault,
    find_name_fault,
    find_own_name_fault,
    hide_credentials,
    is_git,
    is_local_path,
    is_remote,
    is_url,
    list_parents,
    make_cache_key,
    make_name,
    parse_checksum,
    plan_changes,
    strip_user,
)
from pair.values import KbSource

RELEASE = KbSource("github-release", "https://h/kb.zip", requires_download=True, version="1.2.3")


def latest_release() -> KbSource:
    return RELEASE


def never_asked() -> KbSource:
    raise AssertionError("the latest release was asked for out of turn")


def no_feed(address: FeedAddress) -> KbSource:
    raise AssertionError(f"a feed was asked for: {address}")


def choose_source(
    source: str | None,
    folder: Path,
    *,
    offline: bool = False,
    latest_release: Callable[[], KbSource] = never_asked,
) -> KbSource:
    return resolve_source(source, offline=offline, folder=folder, latest_release=latest_release, from_feed=no_feed)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a KB and the dataset of the monorepo."""
    (tmp_path / "kb").mkdir()
    (tmp_path / MONOREPO_DATASET).mkdir(parents=True)
    return tmp_path


def row(*values: object, id: str) -> object:
    return pytest.param(*values, id=id)


# ── kinds of source ────────────────────────────────────────────────────────────────────────────────

KINDS = {
    "http://example.com/kb.zip": "url",
    "https://example.com/kb.zip": "url",
    "https://example.com/kb.zip?sig=x#part": "url",
    "https://user:secret@example.com/kb.zip": "url",
    "https://example.com/r.git/archive.zip": "url",
    "https://example.com/r.git?ref=main": "url",
    "http://": "url",
    "https://": "url",
    "git@github.com:o/r.git": "git",
    "git@github.com:o/r": "git",
    "git@github.com:o/r.git#v1": "git",
    "ssh://git@host/o/r": "git",
    "ssh://git@host:2222/o/r.git#main": "git",
    "git://host/r": "git",
    "https://h/r.git": "git",
    "http://h/r.git": "git",
    "https://h/r.git#v1": "git",
    "https://h/r.git#feature/a.b": "git",
    "/absolute/kb": "local",
    "/": "local",
    "//host/share": "local",
    "./kb": "local",
    "./": "local",
    "./repo.git": "local",
    "/srv/repo.git": "local",
    "../repo.git#v1": "local",
    "./https://h/kb.zip": "local",
    "../kb": "local",
    "../": "local",
    "C:\\kb": "local",
    "C:/kb": "local",
    "c:/kb": "local",
    "z:\\": "local",
    "HTTP://x": "unknown",
    "Https://x/kb.zip": "unknown",
    "http:/x": "unknown",
    "http:x": "unknown",
    "ftp://h/kb.zip": "unknown",
    "file:///x": "unknown",
    "~/kb": "unknown",
    "kb": "unknown",
    "kb.zip": "unknown",
    "repo.git": "unknown",
    ".": "unknown",
    "..": "unknown",
    ".kb": "unknown",
    ".../kb": "unknown",
    ".\\kb": "unknown",
    "..\\kb": "unknown",
    "\\kb": "unknown",
    "C:": "unknown",
    "C:kb": "unknown",
    "CC:/kb": "unknown",
    "1:/kb": "unknown",
    " https://h/kb.zip": "unknown",
    " /kb": "unknown",
    "github.com/o/r": "unknown",
    "GIT@host:o/r": "unknown",
    "invalid-source": "unknown",
    "": "unknown",
}


def kind_of(source: str) -> str:
    if is_git(source):
        return "git"
    if is_url(source):
        return "url"
    return "local" if is_local_path(source) else "unknown"


@pytest.mark.rule("source-2")
@pytest.mark.rule("source-3")
@pytest.mark.rule("source-9")
@pytest.mark.parametrize(("source", "kind"), KINDS.items(), ids=[name or "nothing" for name in KINDS])
def test_the_kind_of_a_source_is_derived_from_its_spelling(source: str, kind: str):
    assert kind_of(source) == kind
    assert is_remote(source) == (kind in {"git", "url"})


@pytest.mark.rule("source-2")
@pytest.mark.rule("source-3")
@pytest.mark.rule("source-9")
@pytest.mark.parametrize("source", [name for name, kind in KINDS.items() if kind != "unknown"])
def test_no_source_is_both_remote_and_local(source: str):
    assert is_remote(source) != is_local_path(source)


# ── options ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-5")
@pytest.mark.rule("source-6")
@pytest.mark.parametrize(
    ("source", "offline", "code"),
    [
        row(None, False, None, id="online-without-source"),
        row("https://h/kb.zip", False, None, id="online-with-url"),
        row("./kb", False, None, id="online-with-path"),
        row(None, True, "E001", id="offline-without-source"),
        row("https://h/kb.zip", True, "E002", id="offline-with-url"),
        row("./kb", True, None, id="offline-with-path"),
    ],
)
def test_option_table_of_the_specification(source: str | None, offline: bool, code: str | None):
    if code is None:
        refuse_conflicting_options(source, offline=offline)
        return
    with pytest.raises(UsageError) as refusal:
        refuse_conflicting_options(source, offline=offline)
    assert refusal.value.code == code


@pytest.mark.rule("source-5")
@pytest.mark.rule("source-6")
@pytest.mark.parametrize(
    ("source", "code"),
    [
        row("", "E001", id="empty-source"),
        row("http://", "E002", id="url-without-host"),
        row("git@github.com:o/r.git", "E002", id="git-by-ssh"),
        row("ssh://git@h/r", "E002", id="ssh"),
        row("https://h/r.git#v1", "E002", id="git-by-https"),
    ],
)
def test_offline_refuses_what_is_not_on_this_machine(source: str, code: str, tmp_path: Path):
    with pytest.raises(UsageError) as refusal:
        choose_source(source, tmp_path, offline=True)
    assert refusal.value.code == code


# ── precedence ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-1")
@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        row("./kb", KbSource("local", "{here}/kb", requires_download=False), id="path"),
        row("https://h/kb.zip", KbSource("url", "https://h/kb.zip", requires_download=True), id="url"),
        row("https://h/r.git#v1", KbSource("git", "https://h/r.git#v1", requires_download=True), id="git"),
        row(
            None,
            KbSource("monorepo", "{here}/packages/knowledge-hub/dataset", requires_download=False),
            id="monorepo-without-flag",
        ),
    ],
)
def test_the_option_overrides_the_monorepo_and_both_override_the_release(
    source: str | None, chosen: KbSource, here: Path
):
    assert choose_source(source, here) == replace(chosen, location=chosen.location.format(here=here))


@pytest.mark.rule("source-1")
def test_latest_release_is_asked_for_once_when_nothing_else_is_there(tmp_path: Path):
    asked = []

    def counted() -> KbSource:
        asked.append("release")
        return RELEASE

    assert choose_source(None, tmp_path, latest_release=counted) == RELEASE
    assert asked == ["release"]


@pytest.mark.rule("source-5")
def test_monorepo_does_not_make_offline_without_source_good(here: Path):
    with pytest.raises(UsageError) as refusal:
        choose_source(None, here, offline=True)
    assert refusal.value.code == "E001"


@pytest.mark.rule("source-3")
def test_offline_takes_a_path(here: Path):
    assert choose_source("./kb", here, offline=True) == KbSource("local", f"{here}/kb", requires_download=False)


@pytest.mark.rule("source-7")
def test_a_missing_path_is_reported_as_an_absolute_path(tmp_path: Path):
    with pytest.raises(NotFoundError) as refusal:
        choose_source("./kb", tmp_path)
    assert refusal.value.code == "E003"
    assert refusal.value.message == f"KB source path does not exist: {tmp_path}/kb"


@pytest.mark.rule("source-8")
@pytest.mark.parametrize("source", [name for name, kind in KINDS.items() if kind == "unknown"])
@pytest.mark.parametrize("exists", [row(True, id="exists"), row(False, id="missing")])
def test_unknown_format_is_refused_and_an_existing_name_suggested(
    source: str, exists: bool, here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os.path, "exists", lambda path: exists)
    with pytest.raises(UsageError) as refusal:
        choose_source(source, here)
    assert refusal.value.code == "E004"
    assert refusal.value.message == f"Invalid source format: {source}"
    assert refusal.value.explanation == (f"Did you mean ./{source} ?" if exists and source else "")


@pytest.mark.rule("source-8")
@pytest.mark.parametrize(
    "source",
    ["http://", "https://", "https:///kb.zip", "https://:8080/kb.zip", "http://h:0/x", "http://h:99999/x", "http://["],
)
def test_url_that_names_no_server_is_of_unknown_format(source: str, tmp_path: Path):
    with pytest.raises(UsageError) as refusal:
        choose_source(source, tmp_path)
    assert refusal.value.code == "E004"


# ── addresses ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        row("https://h/kb.zip", "https://h/kb.zip", id="nothing-to-hide"),
        row("https://u:p@h/kb.zip", "https://h/kb.zip", id="user-and-password"),
        row("https://token@h:8443/kb.zip", "https://h:8443/kb.zip", id="user-only"),
        row("https://u:p@ss@h/kb.zip", "https://h/kb.zip", id="password-with-at-sign"),
        row("https://h/a@b.zip", "https://h/a@b.zip", id="at-sign-in-the-path"),
        row("https://h/kb.zip?sig=s&v=2", "https://h/kb.zip?sig=…&v=…", id="query-values"),
        row("https://h/kb.zip?sig=a=b==", "https://h/kb.zip?sig=…", id="query-value-with-equals-signs"),
        row("https://h/r.git#v1", "https://h/r.git#v1", id="git-ref-stays"),
        row("https://u:p@h/r.git#v1", "https://h/r.git#v1", id="git-with-password"),
        row("./kb?x=1", "./kb?x=1", id="path-stays"),
        row("git@github.com:o/r.git", "git@github.com:o/r.git", id="ssh-login-stays"),
        row("", "", id="nothing"),
    ],
)
def test_shown_address_has_no_secrets(url: str, shown: str):
    assert hide_credentials(url) == shown


def test_password_of_an_ssh_address_is_not_shown():
    assert "secret" not in hide_credentials("ssh://git:secret@host/o/r.git")


@pytest.mark.rule("source-8")
@pytest.mark.parametrize("url", ["http://[", "https://[::1/kb.zip", "http://ho\u2100st/kb.zip"])
@pytest.mark.parametrize("show", [hide_credentials, strip_user])
def test_address_that_cannot_be_parsed_can_still_be_shown(url: str, show):
    assert show(url).startswith("http")


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        row("https://u:p@h/kb.zip?sig=s#f", "https://h/kb.zip?sig=s#f", id="user-goes-and-query-stays"),
        row("http://h:80/kb.zip", "http://h:80/kb.zip", id="nothing-to-hide"),
        row("/srv/u@h/kb", "/srv/u@h/kb", id="path-stays"),
        row("git@h:o/r.git", "git@h:o/r.git", id="ssh-login-stays"),
    ],
)
def test_stored_address_has_no_user(url: str, stored: str):
    assert strip_user(url) == stored


@pytest.mark.rule("source-12")
@pytest.mark.parametrize(
    ("url", "address"),
    [
        row("https://h/kb.zip", "https://h/kb.zip.sha256", id="plain"),
        row("https://h/kb.zip?sig=s", "https://h/kb.zip.sha256?sig=s", id="before-the-query"),
        row("https://h/kb.zip#part", "https://h/kb.zip.sha256", id="fragment-goes"),
        row("https://u:p@h:1/a/kb.zip", "https://u:p@h:1/a/kb.zip.sha256", id="user-and-port-stay"),
    ],
)
def test_checksum_lies_beside_its_archive(url: str, address: str):
    assert append_suffix(url, ".sha256") == address


# ── checksum files ─────────────────────────────────────────────────────────────────────────────────

ONE, TWO = "a1" * 32, "b2" * 32


@pytest.mark.rule("source-24")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        row(ONE, ONE, id="bare"),
        row(f"{ONE}\n", ONE, id="bare-line"),
        row(ONE.upper(), ONE, id="upper-case"),
        row(f"  {ONE}  \n\n", ONE, id="spaces-and-empty-lines"),
        row(f"{ONE}  kb.zip\n", ONE, id="sha256sum"),
        row(f"{ONE} *kb.zip\n", ONE, id="sha256sum-binary"),
        row(f"{ONE}\tkb.zip", ONE, id="tab"),
        row(f"{ONE}  another name.zip\n", ONE, id="one-line-of-another-name"),
        row(f"\ufeff{ONE}  kb.zip\n", ONE, id="byte-order-mark"),
        row(f"{ONE}  kb.zip\r\n", ONE, id="windows-line-end"),
        row(f"{TWO}  other.zip\r\n{ONE}  kb.zip\r\n", ONE, id="several-windows-lines"),
        row(f"{TWO}  other.zip\n{ONE}  kb.zip\n{TWO}  kb.zip.asc\n", ONE, id="several-by-name"),
        row(f"{TWO}  other.zip\n{TWO}  third.zip\n", None, id="several-without-this-name"),
        row("", None, id="empty"),
        row("\n \n", None, id="blank"),
        row("\ufeff", None, id="only-a-byte-order-mark"),
        row(ONE[:-1], None, id="too-short"),
        row(ONE + "a", None, id="too-long"),
        row("g" * 64, None, id="not-hexadecimal"),
        row("a1" * 20, None, id="sha-1"),
        row(f"{ONE}kb.zip", None, id="name-without-space"),
        row(f"kb.zip  {ONE}", None, id="name-first"),
        row("<!doctype html><title>404</title>", None, id="web-page"),
        row(f"{ONE}  kb.zip\nbroken line\n", None, id="one-line-broken"),
        row(f"SHA256 (kb.zip) = {ONE}", None, id="bsd"),
        row("٣" * 64, None, id="digits-of-another-script"),
    ],
)
def test_checksum_is_read_from_a_checksum_file(text: str, found: str | None):
    assert parse_checksum(text, "kb.zip") == found


# ── names ──────────────────────────────────────────────────────────────────────────────────────────

NAME_FAULTS = {
    "a.md": None,
    "docs/deep/page.md": None,
    ".hidden": None,
    "...md": None,
    "a..b": None,
    "größe/日本語 🎉.md": None,
    "console.md": None,
    "com.md": None,
    "com10.md": None,
    "nullable/auxiliary.md": None,
    "a" * 255: None,
    "ab:c": None,
    "/etc/x": "absolute path",
    "\\x": "absolute path",
    "C:\\x": "absolute path",
    "c:x": "absolute path",
    "a\\b": "backslash in the name",
    "a/C:\\x": "backslash in the name",
    "a\0b": "control character in the name",
    "a\nb": "control character in the name",
    "a\x1fb": "control character in the name",
    "a\x7fb": "control character in the name",
    "a\udc80b": "name is not valid Unicode",
    "/".join(["a" * 200] * 20): "path is too long",
    "..": "path leads out of the archive",
    "a/../b": "path leads out of the archive",
    "": "empty part in the path",
    ".": "empty part in the path",
    "a//b": "empty part in the path",
    "a/": "empty part in the path",
    "a/./b": "empty part in the path",
    "a.": "name ends in a dot or a space",
    "a ": "name ends in a dot or a space",
    "a /b": "name ends in a dot or a space",
    "...": "name ends in a dot or a space",
    " ": "name ends in a dot or a space",
    "CON": "name is reserved on Windows",
    "nul.txt": "name is reserved on Windows",
    "aux.tar.gz": "name is reserved on Windows",
    "docs/PRN/a.md": "name is reserved on Windows",
    "COM1.md": "name is reserved on Windows",
    "com0": "name is reserved on Windows",
    "lpt9": "name is reserved on Windows",
    "LPT³": "name is reserved on Windows",
    "CONIN$": "name is reserved on Windows",
    "con .md": "name is reserved on Windows",
    ".gitignore": None,
    ".gitattributes": None,
    ".gitmodules": None,
    ".github/workflows/check.yml": None,
    "git/a.md": None,
    "a.git": None,
    "git~one.md": None,
    ".git": "name belongs to version control",
    ".git/config": "name belongs to version control",
    "a/.git/hooks/post-checkout": "name belongs to version control",
    ".GIT/config": "name belongs to version control",
    ".g\u200cit/config": "name belongs to version control",
    ".\ufeffgit/config": "name belongs to version control",
    ".gi\u00adt/config": "name belongs to version control",
    "\u2024git/config": "name belongs to version control",
    ".\uff47\uff49\uff54/config": "name belongs to version control",
    ".git\U000e0041/config": "name belongs to version control",
    ".git. ./config": "name belongs to version control",
    ".git::$INDEX_ALLOCATION/config": "name belongs to version control",
    "GIT~1/config": "name belongs to version control",
    ".hg/hgrc": "name belongs to version control",
    "a/.svn/entries": "name belongs to version control",
    ".\u017fvn/entries": "name belongs to version control",
    ".bzr": "name belongs to version control",
    "_darcs/prefs": "name belongs to version control",
    ".jj/repo": "name belongs to version control",
    "CVS/Root": "name belongs to version control",
    "/".join(["a"] * 101): None,
    "/".join(["a"] * 102): "path has too many folders",
    "a" * 256: "name is too long",
    "é" * 128: "name is too long",
}


@pytest.mark.rule("source-15")
@pytest.mark.parametrize(("name", "fault"), NAME_FAULTS.items(), ids=[ascii(name)[1:30] for name in NAME_FAULTS])
def test_names_must_be_plain_on_every_system(name: str, fault: str | None):
    assert find_name_fault(name) == fault


@pytest.mark.rule("source-15")
@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        (".pair-install.jsonl", True),
        (".pair-entry.json", True),
        (".Pair-Install.JSONL", True),
        (".pair-e\u200bntry.json", True),
        ("docs/.pair-install.jsonl", False),
        ("pair-install.jsonl", False),
        ("manifest.json", False),
    ],
)
def test_names_of_pairs_own_files_are_reserved(name: str, is_own: bool):
    assert (find_own_name_fault(name) is not None) == is_own


@pytest.mark.parametrize(
    ("paths", "folders"),
    [
        (["HEAD", "objects/x", "refs/x", "config"], {""}),
        (["a/b/head", "a/b/Objects/x", "a/b/refs/x"], {"a/b"}),
        (["a/HEAD", "a/commondir"], {"a"}),
        (["HEAD", "objects/x", "a/refs/x"], set()),
        (["HEAD.md", "objects/x", "refs/x"], set()),
        (["docs/HEAD"], set()),
    ],
)
def test_a_folder_that_git_takes_for_a_repository_is_found(paths: list[str], folders: set[str]) -> None:
    assert find_bare_repositories(paths) == folders


# ── what an update changes ─────────────────────────────────────────────────────────────────────────

WAYS = {
    "update": {"force": False, "restore": False},
    "install": {"force": False, "restore": True},
    "forced-update": {"force": True, "restore": False},
    "forced-install": {"force": True, "restore": True},
}
ADD, CHANGE, REMOVE, SAME = (
    UpdatePlan(added=("a",)),
    UpdatePlan(changed=("a",)),
    UpdatePlan(removed=("a",)),
    UpdatePlan(unchanged=("a",)),
)


def kept(reason, path: str = "a") -> UpdatePlan:
    return UpdatePlan(kept=(KeptFile(path, reason),))


# Each case: installed, offered and present files, then the plans of an update, of an install, and with force.
PLANS: dict[str, tuple[Any, ...]] = {
    "nothing-anywhere": ({}, {}, {}, UpdatePlan(), UpdatePlan(), UpdatePlan()),
    "new-file": ({}, {"a": "new"}, {}, ADD, ADD, ADD),
    "new-file-not-hashed": ({}, {"a": None}, {}, ADD, ADD, ADD),
    "unchanged-file": ({"a": "old"}, {"a": "old"}, {"a": "old"}, SAME, SAME, SAME),
    "changed-file": ({"a": "old"}, {"a": "new"}, {"a": "old"}, CHANGE, CHANGE, CHANGE),
    "removed-file": ({"a": "old"}, {}, {"a": "old"}, REMOVE, REMOVE, REMOVE),
    "removed-file-deleted-before": ({"a": "old"}, {}, {}, UpdatePlan(), UpdatePlan(), UpdatePlan()),
    "edited-file-same-offer": ({"a": "old"}, {"a": "old"}, {"a": "mine"}, kept("edited"), kept("edited"), CHANGE),
    "edited-file-new-offer": ({"a": "old"}, {"a": "new"}, {"a": "mine"}, kept("edited"), kept("edited"), CHANGE),
    "edited-file-no-longer-offered": ({"a": "old"}, {}, {"a": "mine"}, kept("edited"), kept("edited"), REMOVE),
    "edited-to-what-is-offered": ({"a": "old"}, {"a": "new"}, {"a": "new"}, SAME, SAME, SAME),
    "edited-into-a-link": ({"a": "old"}, {"a": "new"}, {"a": None}, kept("edited"), kept("edited"), CHANGE),
    "deleted-file-same-offer": ({"a": "old"}, {"a": "old"}, {}, kept("deleted"), ADD, ADD),
    "deleted-file-new-offer": ({"a": "old"}, {"a": "new"}, {}, kept("deleted"), ADD, ADD),
    "foreign-file": ({}, {"a": "new"}, {"a": "mine"}, kept("yours"), kept("yours"), CHANGE),
    "foreign-link": ({}, {"a": "new"}, {"a": None}, kept("yours"), kept("yours"), CHANGE),
    "foreign-file-elsewhere": ({}, {}, {"mine": None}, UpdatePlan(), UpdatePlan(), UpdatePlan()),
    "adopted-equal-file": ({}, {"a": "new"}, {"a": "new"}, SAME, SAME, SAME),
    "file-becomes-folder": (
        {"a": "old"},
        {"a/b": "new"},
        {"a": "old"},
        *[UpdatePlan(added=("a/b",), removed=("a",))] * 3,
    ),
    "edited-file-becomes-folder": (
        {"a": "old"},
        {"a/b": "new"},
        {"a": "mine"},
        *[UpdatePlan(kept=(KeptFile("a", "edited"), KeptFile("a/b", "in the way")))] * 2,
        UpdatePlan(added=("a/b",), removed=("a",)),
    ),
    "folder-becomes-file": (
        {"a/b": "old", "a/c": "old"},
        {"a": "new"},
        {"a/b": "old", "a/c": "old"},
        *[UpdatePlan(added=("a",), removed=("a/b", "a/c"))] * 3,
    ),
    "folder-with-an-edited-file-becomes-file": (
        {"a/b": "old", "a/c": "old"},
        {"a": "new"},
        {"a/b": "old", "a/c": "mine"},
        *[UpdatePlan(removed=("a/b",), kept=(KeptFile("a", "in the way"), KeptFile("a/c", "edited")))] * 2,
        UpdatePlan(added=("a",), removed=("a/b", "a/c")),
    ),
    "foreign-file-above": (
        {},
        {"a/b/c": "new"},
        {"a": None},
        *[kept("in the way", "a/b/c")] * 2,
        UpdatePlan(added=("a/b/c",), removed=("a",)),
    ),
    "foreign-file-below": (
        {},
        {"a": "new"},
        {"a/mine": None, "a/b/mine": None, "ab": None},
        *[kept("in the way")] * 2,
        UpdatePlan(added=("a",), removed=("a/b/mine", "a/mine")),
    ),
    "foreign-file-beside": ({}, {"a/b": "new"}, {"a/mine": None}, *[UpdatePlan(added=("a/b",))] * 3),
    "deleted-file-and-a-folder-in-its-place": (
        {"a": "old"},
        {"a": "old"},
        {"a/mine": None},
        kept("deleted"),
        kept("in the way"),
        UpdatePlan(added=("a",), removed=("a/mine",)),
    ),
    "lists-are-sorted": (
        {"z": "old", "y": "old"},
        {"c": "new", "b": "new", "z": "new", "y": "new"},
        {"z": "old", "y": "old"},
        *[UpdatePlan(added=("b", "c"), changed=("y", "z"))] * 3,
    ),
}


@pytest.mark.rule("source-26")
@pytest.mark.rule("source-27")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", PLANS)
def test_plan_follows_from_installed_offered_and_present(case: str, way: str):
    installed, offered, present, update, install, forced = PLANS[case]
    expected = {"update": update, "install": install}.get(way, forced)
    assert plan_changes(installed, offered, present, **WAYS[way]) == expected


def test_a_plan_lists_the_files_and_says_whether_anything_changes():
    assert UpdatePlan(added=("a",), changed=("b",)).files_to_place == ("a", "b")
    assert not UpdatePlan(removed=("a",)).changes_nothing
    assert UpdatePlan(kept=(KeptFile("a", "edited"),), unchanged=("b",)).changes_nothing


def test_folders_above_a_path_come_nearest_first():
    assert list(list_parents("a/b/c.md")) == ["a/b", "a"]
    assert list(list_parents("c.md")) == []


# ── packages and cache ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("source-28")
@pytest.mark.parametrize(
    ("name", "version", "fault"),
    [
        row("handbook", "1.0.0", None, id="plain"),
        row("a", "0.0.0", None, id="shortest"),
        row("7-days.of_kb", "10.20.30", None, id="every-sign"),
        row("kb", "1.2.3-rc.1", None, id="pre-release"),
        row("kb", "1.2.3-rc.1+build.5", None, id="build"),
        row("kb", "1.2.3+20260101", None, id="build-only"),
        row("", "1.0.0", "name", id="no-name"),
        row("Handbook", "1.0.0", None, id="upper-case-name"),
        row("hand book", "1.0.0", None, id="space-in-name"),
        row("-kb", "1.0.0", None, id="name-begins-with-dash"),
        row(".kb", "1.0.0", None, id="name-begins-with-dot"),
        row("a/b", "1.0.0", None, id="slash-in-name"),
        row("größe", "1.0.0", None, id="name-not-ascii"),
        row("kb\n", "1.0.0", "name", id="newline-after-name"),
        row("  ", "1.0.0", "name", id="blank-name"),
        row("k\x1bb", "1.0.0", "name", id="control-character-in-name"),
        row("kb", "", "version", id="no-version"),
        row("kb", "1", None, id="one-number"),
        row("kb", "1.0", None, id="two-numbers"),
        row("kb", "1.0.0.0", None, id="four-numbers"),
        row("kb", "v1.0.0", None, id="v-before"),
        row("kb", "01.0.0", None, id="leading-zero"),
        row("kb", "1.0.0-", None, id="empty-pre-release"),
        row("kb", "1.0.0-a..b", None, id="empty-part"),
        row("kb", "1.0.0\n", "version", id="newline-after-version"),
        row("kb", "1.0.0/../x", None, id="path-in-version"),
        row("kb", "1٣.0.0", None, id="digits-of-another-script"),
    ],
)
def test_package_is_called_by_lines_of_text(name: str, version: str, fault: str | None):
    found = find_label_fault(name, version)
    assert (found or "").partition(" ")[0] == (fault or "")


@pytest.mark.rule("source-28")
@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("handbook", "handbook"),
        ("My Handbook", "my-handbook"),
        ("KB (2026) final!", "kb-2026-final"),
        ("kb_1.2-x", "kb_1.2-x"),
        (".hidden", "hidden"),
        ("größe", "gr-e"),
        ("日本語", "kb"),
        ("...", "kb"),
        ("", "kb"),
    ],
)
def test_package_is_named_after_its_folder(folder: str, name: str):
    assert make_name(folder) == name
    assert find_label_fault(name, "1.0.0") is None


@pytest.mark.rule("source-14")
@pytest.mark.parametrize(
    ("version", "key"),
    [
        row("1.2.3", "1.2.3", id="version"),
        row("v1.2.3-rc.1+b", "v1.2.3-rc.1+b", id="every-sign"),
        row("1" * 100, "1" * 100, id="longest"),
        row("1" * 101, "hash", id="too-long"),
        row(None, "hash", id="no-version"),
        row("", "hash", id="empty-version"),
        row("..", "hash", id="parent-folder"),
        row(".locks", "hash", id="hidden"),
        row("1/../../x", "hash", id="path"),
        row("release 1", "hash", id="space"),
        row("1\n", "hash", id="newline"),
    ],
)
def test_cache_key_is_the_version_or_else_the_hash_of_the_address(version: str | None, key: str):
    source = KbSource("github-release", "https://h/kb.zip", requires_download=True, version=version)
    assert make_cache_key(source, "hash") == key


@pytest.mark.rule("source-19")
@pytest.mark.parametrize("code", ["E001", "E004"])
def test_wrong_request_is_a_usage_error_with_exit_status_one(code: str, tmp_path: Path):
    source = {"E001": None, "E004": "kb"}[code]
    with pytest.raises(PairError) as refusal:
        choose_source(source, tmp_path, offline=code == "E001", latest_release=latest_release)
    assert (refusal.value.code, refusal.value.exit_status) == (code, 1)
