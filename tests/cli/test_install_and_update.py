"""Installs and updates of a folder with edited files."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import Workplace, file_states, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, many_files, write_zip, zip_of
from support.server import Server

RECORD = ".pair-install.jsonl"


def install(workplace: Workplace, files: dict[str, str | bytes] | None = None) -> Path:
    """Install from a folder named `kb`, and return the folder."""
    kb = write_files(workplace.folder / "kb", SMALL_KB if files is None else files)
    workplace.pair("install", "--source", "./kb").succeeds()
    return kb


@pytest.mark.rule("source-17")
def test_an_installation_is_recorded_inside_the_target(workplace: Workplace) -> None:
    install(workplace)
    described = workplace.pair("info", workplace.target, "--json").json
    assert described["kind"] == "installed"
    assert described["source"]["location"] == str(workplace.folder / "kb")
    assert described["file_count"] == 3


def test_installing_again_changes_nothing(workplace: Workplace) -> None:
    install(workplace)
    before = file_states(workplace.target)
    done = workplace.pair("install", "--source", "./kb", "--json")
    assert (done.json["added"], done.json["changed"], done.json["unchanged"]) == ([], [], 3)
    assert file_states(workplace.target) == before


def test_a_file_whose_name_is_not_unicode_is_skipped(workplace: Workplace) -> None:
    kb = write_files(workplace.folder / "kb", SMALL_KB)
    Path(os.fsdecode(os.fsencode(kb) + b"/caf\xe9.md")).write_text("text")
    done = workplace.pair("install", "--source", "./kb")
    assert done.status == 0, done.stderr
    assert "Skipped caf\\udce9.md: name is not valid Unicode" in done.stderr
    assert workplace.pair("verify", workplace.target).status == 0


@pytest.mark.rule("source-26")
def test_install_refuses_to_overwrite_a_file_it_did_not_install(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    write_files(workplace.target, {"README.md": "mine", "notes.md": "mine too"})
    before = file_states(workplace.target)
    done = workplace.pair("install", "--source", "./kb").exits(4).says("Code: E011", "README.md")
    assert "pair update" not in done.stderr
    assert file_states(workplace.target) == before


@pytest.mark.rule("source-26")
def test_install_leaves_unrelated_files_alone(workplace: Workplace) -> None:
    write_files(workplace.target, {"notes.md": "mine", "guides/own.md": "mine"})
    install(workplace)
    assert read_files(workplace.target) == SMALL_KB_BYTES | {"notes.md": b"mine", "guides/own.md": b"mine"}


@pytest.mark.rule("source-26")
def test_force_overwrites_what_is_in_the_way_and_nothing_else(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    write_files(workplace.target, {"README.md": "mine", "notes.md": "mine too"})
    assert workplace.pair("install", "--source", "./kb", "--force").status == 0
    assert read_files(workplace.target) == SMALL_KB_BYTES | {"notes.md": b"mine too"}


def test_install_puts_a_deleted_file_back(workplace: Workplace) -> None:
    install(workplace)
    (workplace.target / "README.md").unlink()
    assert workplace.pair("install", "--source", "./kb", "--json").json["added"] == ["README.md"]


@pytest.mark.rule("source-27")
def test_update_applies_added_changed_and_removed_files(workplace: Workplace) -> None:
    kb = install(workplace)
    write_files(kb, {"README.md": "# Second edition\n", "new/page.md": "new"})
    (kb / "logo.png").unlink()
    done = workplace.pair("update", "--json").succeeds()
    assert (done.json["added"], done.json["changed"], done.json["removed"], done.json["kept"]) == (
        ["new/page.md"],
        ["README.md"],
        ["logo.png"],
        [],
    )
    assert read_files(workplace.target) == read_files(kb)


@pytest.mark.rule("source-27")
def test_update_keeps_edits_additions_and_deletions_and_reports_them(workplace: Workplace) -> None:
    kb = install(workplace, SMALL_KB | {"old.md": "old", "gone.md": "gone", "same.md": "same"})
    write_files(workplace.target, {"README.md": "edited", "own.md": "own", "old.md": "edited too", "yours.md": "yours"})
    (workplace.target / "gone.md").unlink()
    write_files(kb, {"README.md": "# Second\n", "yours.md": "theirs", "guides/deploy.md": "On Fridays.\n"})
    (kb / "old.md").unlink()
    done = workplace.pair("update", "--json").succeeds()
    assert {entry["path"]: entry["reason"] for entry in done.json["kept"]} == {
        "README.md": "edited",
        "old.md": "edited",
        "gone.md": "deleted",
        "yours.md": "yours",
    }
    assert done.json["changed"] == ["guides/deploy.md"]
    kept = {"README.md": b"edited", "own.md": b"own", "old.md": b"edited too", "yours.md": b"yours"}
    assert {name: read_files(workplace.target)[name] for name in kept} == kept
    assert not (workplace.target / "gone.md").exists()
    told = workplace.pair("update").stderr
    assert "Kept 1 file (you edited): README.md" in told
    assert "--force" in told


@pytest.mark.rule("source-27")
def test_forced_update_takes_the_kbs_version_of_everything_it_offers(workplace: Workplace) -> None:
    kb = install(workplace)
    write_files(workplace.target, {"README.md": "edited", "own.md": "own"})
    (workplace.target / "logo.png").unlink()
    write_files(kb, {"README.md": "# Second\n"})
    assert workplace.pair("update", "--force").status == 0
    assert read_files(workplace.target) == read_files(kb) | {"own.md": b"own"}


@pytest.mark.rule("source-27")
def test_an_edit_that_is_taken_back_is_updated_again(workplace: Workplace) -> None:
    kb = install(workplace)
    original = (workplace.target / "README.md").read_bytes()
    write_files(workplace.target, {"README.md": "edited"})
    write_files(kb, {"README.md": "# Second\n"})
    assert workplace.pair("update", "--json").json["kept"] != []
    write_files(workplace.target, {"README.md": original})
    assert workplace.pair("update", "--json").json["changed"] == ["README.md"]


def test_a_file_becomes_a_folder_and_a_folder_a_file(workplace: Workplace) -> None:
    kb = install(workplace, {"topic": "a file", "other/page.md": "a folder"})
    (kb / "topic").unlink()
    shutil.rmtree(kb / "other")
    write_files(kb, {"topic/page.md": "now a folder", "other": "now a file"})
    assert workplace.pair("update").status == 0
    assert read_files(workplace.target) == {"topic/page.md": b"now a folder", "other": b"now a file"}


def test_a_folder_that_holds_own_files_does_not_become_a_file(workplace: Workplace) -> None:
    kb = install(workplace, {"other/page.md": "a folder", "more.md": "1"})
    write_files(workplace.target, {"other/own.md": "own"})
    shutil.rmtree(kb / "other")
    write_files(kb, {"other": "now a file", "more.md": "2"})
    assert workplace.pair("update", "--json").json["kept"] == [{"path": "other", "reason": "in the way"}]
    assert read_files(workplace.target) == {"other/own.md": b"own", "more.md": b"2"}


def test_empty_folders_of_the_user_stay_and_emptied_ones_of_the_kb_go(workplace: Workplace) -> None:
    kb = install(workplace, {"a/page.md": "1", "b/page.md": "1"})
    (workplace.target / "mine").mkdir()
    shutil.rmtree(kb / "b")
    workplace.pair("update")
    assert sorted(path.name for path in workplace.target.iterdir()) == [RECORD, "a", "mine"]


@pytest.mark.parametrize("command", ["update", "install"])
def test_folders_keep_their_modes(workplace: Workplace, command: str) -> None:
    kb = install(workplace)
    write_files(workplace.target, {"private/diary.md": "mine"})
    modes = {".": 0o700, "private": 0o750, "guides": 0o2755}
    for folder, mode in modes.items():
        (workplace.target / folder).chmod(mode)
    write_files(kb, {"new.md": "new", "more/page.md": "new"})
    workplace.pair(command, "--source", "./kb").succeeds()
    assert {folder: stat.S_IMODE((workplace.target / folder).stat().st_mode) for folder in modes} == modes
    assert (workplace.target / "more/page.md").exists()


def test_links_in_the_target_survive_an_update(workplace: Workplace) -> None:
    kb = install(workplace)
    (workplace.target / "link.md").symlink_to("/nonexistent")
    write_files(kb, {"new.md": "new"})
    assert workplace.pair("update").status == 0
    assert (workplace.target / "link.md").readlink() == Path("/nonexistent")


def test_a_touched_source_is_read_but_nothing_changes(workplace: Workplace) -> None:
    kb = install(workplace)
    os.utime(kb / "README.md", ns=(1, 1))
    done = workplace.pair("update", "--json")
    assert (done.json["changed"], done.json["unchanged"]) == ([], 3)


def test_force_repairs_a_file_whose_size_and_time_were_restored(workplace: Workplace) -> None:
    install(workplace)
    page = workplace.target / "README.md"
    seen = page.stat()
    page.write_text("# Handboox\n")
    os.utime(page, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert workplace.pair("verify", workplace.target).status == 5
    assert workplace.pair("update", "--force").status == 0
    assert workplace.pair("verify", workplace.target).status == 0


def test_update_of_nothing_is_an_error_that_names_install_and_asks_no_server(
    workplace: Workplace, server: Server
) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    api = {"PAIR__SOURCES__GITHUB_API_URL": server.url("")}
    for source in ([], ["--source", "./kb"], ["--source", server.url("/releases.json")]):
        workplace.pair("update", *source, **api).exits(1).says("Code: E012", "pair install")
    assert server.received == []
    assert not workplace.target.exists()


def test_a_source_that_lost_all_its_files_does_not_empty_the_target(workplace: Workplace) -> None:
    kb = install(workplace)
    before = file_states(workplace.target)
    shutil.rmtree(kb)
    kb.mkdir()
    workplace.pair("update", "--json").fails(1, "E012")
    assert file_states(workplace.target) == before


@pytest.mark.parametrize("command", ["install", "update"])
def test_a_dry_run_prints_the_plan_and_touches_nothing(workplace: Workplace, command: str) -> None:
    kb = install(workplace)
    write_files(kb, {"README.md": "# Second\n", "new.md": "new"})
    (kb / "logo.png").unlink()
    before = file_states(workplace.folder)
    done = workplace.pair(command, "--source", "./kb", "--dry-run", "--json")
    assert (done.json["added"], done.json["changed"], done.json["removed"]) == (
        ["new.md"],
        ["README.md"],
        ["logo.png"],
    )
    assert file_states(workplace.folder) == before


def test_a_dry_run_of_a_first_install_makes_no_folder(workplace: Workplace) -> None:
    write_zip(workplace.folder / "kb.zip", SMALL_KB)
    done = workplace.pair("install", "--source", "./kb.zip", "--dry-run", "--json")
    assert done.json["added"] == sorted(SMALL_KB)
    assert [path.name for path in workplace.folder.iterdir()] == ["kb.zip"]


def test_update_follows_the_source_that_was_named_at_install(workplace: Workplace, server: Server) -> None:
    write_files(workplace.folder / "packages/knowledge-hub/dataset", {"not-this.md": "no"})
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", url)
    server.add("/kb.zip", zip_of(SMALL_KB | {"new.md": "new"}), etag='"two"')
    assert workplace.pair("update", "--json").json["added"] == ["new.md"]


@pytest.mark.rule("source-14")
def test_install_uses_a_cached_kb_without_touching_the_network(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "one", "--source", url)
    asked = len(server.received)
    assert workplace.pair("install", "two", "--source", url).status == 0
    assert len(server.received) == asked
    assert read_files(workplace.folder / "two") == SMALL_KB_BYTES


@pytest.mark.rule("source-14")
@pytest.mark.parametrize("command", ["install", "update"])
@pytest.mark.parametrize("damage", ["emptied", "missing", "manifest"])
def test_a_damaged_cache_entry_is_fetched_again_and_never_installed(
    workplace: Workplace, server: Server, damage: str, command: str
) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("package", "./kb", "-o", "kb.zip")
    url = server.add("/kb.zip", (workplace.folder / "kb.zip").read_bytes())
    workplace.pair("install", "--source", url)
    (entry,) = (workplace.cache / name for name in workplace.cached_entries())
    page = entry / "guides/deploy.md"
    if damage == "missing":
        page.unlink()
    else:
        (page if damage == "emptied" else entry / "manifest.json").write_bytes(b"")
    if command == "update":
        (workplace.target / "guides/deploy.md").unlink()
        done = workplace.pair("update", "--force")
    else:
        done = workplace.pair("install", "elsewhere", "--source", url)
    assert done.status == 0, done.stderr
    assert "fetching it again" in done.stderr
    folder = workplace.target if command == "update" else workplace.folder / "elsewhere"
    assert read_files(folder) == SMALL_KB_BYTES
    assert len(server.requests("/kb.zip", "GET")) == 2


def test_a_damaged_cache_entry_that_cannot_be_fetched_again_is_an_error(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", url)
    (entry,) = (workplace.cache / name for name in workplace.cached_entries())
    (entry / "README.md").write_bytes(b"")
    server.pages.clear()
    workplace.pair("install", "elsewhere", "--source", url, "--json").fails(2, "E005")
    assert not (workplace.folder / "elsewhere").exists()
    assert workplace.cached_entries() == []


@pytest.mark.rule("source-14")
def test_update_revalidates_and_does_not_fetch_an_unchanged_archive(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), checksum=False)
    workplace.pair("install", "--source", url)
    sent = server.sent_bytes["/kb.zip"]
    assert workplace.pair("update").status == 0
    assert server.requests("/kb.zip", "GET")[-1].headers["If-None-Match"] == '"one"'
    assert server.sent_bytes["/kb.zip"] == sent


@pytest.mark.rule("source-14")
def test_an_unchanged_checksum_saves_the_download(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), etag=None)
    workplace.pair("install", "--source", url)
    workplace.pair("update")
    assert len(server.requests("/kb.zip", "GET")) == 1


def test_a_package_that_differs_from_its_manifest_is_refused(workplace: Workplace, server: Server) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("package", "./kb", "-o", "kb.zip")
    packaged = (workplace.folder / "kb.zip").read_bytes()
    renamed = packaged.replace(b"guides/deploy.md", b"guides/deplox.md")
    (workplace.folder / "renamed.zip").write_bytes(renamed)
    workplace.pair("install", "--source", "./renamed.zip", "--json").fails(2, "E006")
    url = server.add("/kb.zip", renamed)
    workplace.pair("install", "--source", url, "--json").fails(2, "E006")
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []


def test_the_manifest_of_a_package_is_not_installed_as_a_page(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("package", "./kb", "-o", "kb.zip", "--name", "handbook", "--version", "2.0.0")
    done = workplace.pair("install", "--source", "./kb.zip", "--json")
    assert (done.json["name"], done.json["version"]) == ("handbook", "2.0.0")
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.parametrize("target", [".", "nested/deep/kb", "with space/ünï", "x" * 200], ids=lambda name: name[:12])
def test_targets_of_all_kinds_are_filled_and_updated(workplace: Workplace, target: str) -> None:
    kb = write_files(workplace.folder.parent / "kb", SMALL_KB)
    assert workplace.pair("install", target, "--source", "../kb").status == 0
    write_files(kb, {"new.md": "new"})
    workplace.pair("update", target).succeeds()
    assert read_files(workplace.folder / target) == read_files(kb)


@pytest.mark.rule("source-16")
def test_unusual_names_and_bytes_are_installed_unchanged(workplace: Workplace) -> None:
    names = [
        "with space.md",
        "ünïcode/日本語.md",
        f"{'n' * 230}.md",
        "[glob]*?.md",
        "'quotes\".md",
        "-dash.md",
        ".hidden",
    ]
    kb = write_files(workplace.folder / "kb", {name: os.urandom(1000) for name in names} | {"empty.md": ""})
    for source in ("./kb", "./kb.zip"):
        if source.endswith(".zip"):
            assert workplace.pair("package", "./kb", "-o", "kb.zip").status == 0
        workplace.pair("install", source[2:] + "-target", "--source", source).succeeds()
        assert read_files(workplace.folder / (source[2:] + "-target")) == read_files(kb)


def test_links_out_of_a_source_are_skipped_and_links_inside_are_followed(workplace: Workplace) -> None:
    kb = write_files(workplace.folder / "kb", SMALL_KB)
    (workplace.folder / "secret").write_text("secret")
    (kb / "out.md").symlink_to("../secret")
    (kb / "loop.md").symlink_to("loop.md")
    (kb / "inside.md").symlink_to("README.md")
    done = workplace.pair("install", "--source", "./kb", "--json")
    assert [entry["path"] for entry in done.json["skipped"]] == ["loop.md", "out.md"]
    assert read_files(workplace.target) == SMALL_KB_BYTES | {"inside.md": SMALL_KB_BYTES["README.md"]}


def test_a_source_and_target_that_overlap_are_refused_or_kept_apart(workplace: Workplace) -> None:
    write_files(workplace.folder, {"page.md": "page"})
    assert workplace.pair("install", "--source", "./").status == 0
    assert read_files(workplace.target) == {"page.md": b"page"}
    assert workplace.pair("update").status == 0
    assert read_files(workplace.target) == {"page.md": b"page"}
    workplace.pair("install", ".", "--source", "./.pair/knowledge", "--json").fails(1, "E015")


def test_a_file_in_place_of_the_target_is_refused(workplace: Workplace) -> None:
    write_files(workplace.folder, {"kb/page.md": "page", "target": "a file"})
    workplace.pair("install", "target", "--source", "./kb", "--json").fails(4, "E011")
    assert (workplace.folder / "target").read_text() == "a file"


def test_a_target_in_a_folder_that_is_closed_is_filled_and_updated_one_process_at_a_time(workplace: Workplace) -> None:
    workplace.obey_permissions()
    closed = workplace.folder / "closed"
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("package", "./kb", "-o", "kb.zip")
    (closed / "target").mkdir(parents=True)
    closed.chmod(0o555)
    try:
        running = [workplace.start("install", "closed/target", "--source", "./kb.zip", "--json") for _ in range(3)]
        reports = [json.loads(process.communicate(timeout=120)[0]) for process in running]
        assert sorted(len(report["added"]) for report in reports) == [0, 0, 3]
        write_files(workplace.folder / "kb", {"new.md": "new"})
        assert workplace.pair("update", "closed/target", "--source", "./kb", "--json").json["added"] == ["new.md"]
        assert sorted(path.name for path in closed.iterdir()) == ["target"]
        assert read_files(closed / "target") == SMALL_KB_BYTES | {"new.md": b"new"}
    finally:
        closed.chmod(0o755)


def test_names_that_begin_with_a_dot_and_a_slash_are_those_without(workplace: Workplace) -> None:
    packed = {"./": "", "./README.md": "# Handbook\n", "././guides/deploy.md": "# Deploy\n"}
    write_zip(workplace.folder / "kb.zip", packed)
    assert workplace.pair("install", "--source", "./kb.zip").status == 0
    assert read_files(workplace.target) == {"README.md": b"# Handbook\n", "guides/deploy.md": b"# Deploy\n"}
    write_zip(workplace.folder / "twice.zip", {"a.md": "one", "./a.md": "two"})
    assert workplace.pair("install", "twice", "--source", "./twice.zip", "--json").error_code == "E009"


def test_a_damaged_record_is_an_error_until_forced(workplace: Workplace) -> None:
    install(workplace)
    (workplace.target / RECORD).write_text("{nonsense\n")
    workplace.pair("update", "--source", "./kb", "--json").fails(5, "E013")
    assert workplace.pair("install", "--source", "./kb", "--force").status == 0
    assert workplace.pair("verify", workplace.target).status == 0


def test_verify_distinguishes_edited_missing_and_own_files(workplace: Workplace) -> None:
    install(workplace)
    write_files(workplace.target, {"own.md": "own"})
    done = workplace.pair("verify", workplace.target, "--json")
    assert (done.status, done.json["ok"], done.json["extra"]) == (0, True, ["own.md"])
    write_files(workplace.target, {"README.md": "edited"})
    (workplace.target / "logo.png").unlink()
    done = workplace.pair("verify", workplace.target, "--json").fails(5, "E013")
    assert done.json["error"]["details"]["modified"] == ["README.md"]
    assert done.json["error"]["details"]["missing"] == ["logo.png"]


def test_verify_finds_one_flipped_bit_in_a_package(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("package", "./kb", "-o", "kb.zip")
    assert workplace.pair("verify", "kb.zip").status == 0
    content = bytearray((workplace.folder / "kb.zip").read_bytes())
    content[len(content) // 2] ^= 1
    (workplace.folder / "kb.zip").write_bytes(content)
    workplace.pair("verify", "kb.zip", "--json").fails(2, "E006")
    (workplace.folder / "kb.zip.sha256").unlink()
    assert workplace.pair("verify", "kb.zip").status == 2


@pytest.mark.parametrize("command", ["verify", "info"])
def test_nothing_there_is_an_error_for(workplace: Workplace, command: str) -> None:
    for path in ("nowhere", "."):
        workplace.pair(command, path, "--json").fails(1, "E012")


def test_files_below_too_many_folders_are_left_out_and_reported(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    deep = "/".join(["a"] * 1200)
    os.makedirs(workplace.folder / "kb" / "a")  # noqa: PTH103 - as below
    folder = os.open(workplace.folder / "kb" / "a", os.O_RDONLY)
    for _ in range(1198):  # by descriptors, because the functions of Python cannot go so deep
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)
    try:
        done = workplace.pair("install", "--source", "./kb", "--json")
        packaged = workplace.pair("package", "kb", "-o", "kb.zip", "--json")
    finally:
        subprocess.run(["rm", "-rf", workplace.folder / "kb"], check=True)
    assert (done.status, packaged.status) == (0, 0), done.stdout + packaged.stdout
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert done.json["skipped"] == packaged.json["skipped"] == [{"path": deep, "reason": "below too many folders"}]


# ── disks that are full, and files that cannot be written ──────────────────────────────────────────

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Path, str], Path]:
    """Mount a file system of the given size, and unmount it after the test."""

    def mount(folder: Path, options: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", folder], check=True))
        return folder

    return mount


@needs_root
@pytest.mark.rule("source-18")
@pytest.mark.parametrize("place", ["disk/kb", "disk"], ids=["folder on the disk", "the mount point itself"])
def test_a_full_disk_leaves_the_old_state_byte_for_byte(
    workplace: Workplace, small_disk: Callable[[Path, str], Path], place: str
) -> None:
    small_disk(workplace.folder / "disk", "size=2m")
    kb = write_files(workplace.folder / "kb", SMALL_KB | {"big.bin": os.urandom(900_000)})
    assert workplace.pair("install", place, "--source", "./kb").status == 0
    before = file_states(workplace.folder / place)
    write_files(kb, {"README.md": "# Second\n", "big.bin": os.urandom(1_900_000), "a-new.md": "new"})
    workplace.pair("update", place, "--json").fails(3, "E010")
    assert file_states(workplace.folder / place) == before
    (kb / "big.bin").write_bytes(b"small")
    assert workplace.pair("update", place).status == 0
    assert read_files(workplace.folder / place) == read_files(kb)


@pytest.mark.rule("source-18")
def test_a_read_only_file_stops_the_whole_update(workplace: Workplace) -> None:
    kb = install(workplace)
    (workplace.target / "README.md").chmod(0o444)
    before = file_states(workplace.target)
    write_files(kb, {"README.md": "# Second\n", "a-new.md": "new", "guides/deploy.md": "changed"})
    workplace.pair("update").exits(3).says("the file is read-only")
    assert file_states(workplace.target) == before


@needs_root
@pytest.mark.parametrize(("options", "words"), [("size=64k", "space"), ("ro", "read-only")], ids=["full", "read-only"])
def test_a_cache_that_cannot_be_written_is_e010(
    workplace: Workplace, server: Server, small_disk: Callable[[Path, str], Path], options: str, words: str
) -> None:
    small_disk(workplace.cache, options)
    url = server.add("/kb.zip", zip_of(SMALL_KB | {"big.bin": os.urandom(200_000)}))
    done = workplace.pair("install", "--source", url, "--json").fails(3, "E010")
    assert words in done.json["error"]["message"]
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []


@needs_root
def test_a_full_disk_is_noticed_when_the_server_names_no_length(
    workplace: Workplace, server: Server, small_disk: Callable[[Path, str], Path]
) -> None:
    small_disk(workplace.cache, "size=256k")
    body = zip_of(SMALL_KB | {"big.bin": os.urandom(900_000)})
    url = server.add("/kb.zip", body, has_head=False, has_length=False)
    workplace.pair("install", "--source", url, "--json").fails(3, "E010")


@needs_root
def test_a_read_only_cache_still_serves_what_it_has(
    workplace: Workplace, server: Server, small_disk: Callable[[Path, str], Path]
) -> None:
    small_disk(workplace.cache, "size=4m")
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    assert workplace.pair("install", "one", "--source", url).status == 0
    subprocess.run(["mount", "-o", "remount,ro", workplace.cache], check=True)
    workplace.pair("install", "two", "--source", url).succeeds()
    assert read_files(workplace.folder / "two") == SMALL_KB_BYTES


@needs_root
def test_package_on_a_full_disk_leaves_no_half_archive(
    workplace: Workplace, small_disk: Callable[[Path, str], Path]
) -> None:
    small_disk(workplace.folder / "disk", "size=64k")
    write_files(workplace.folder / "kb", {"big.bin": os.urandom(200_000)})
    workplace.pair("package", "./kb", "-o", "disk/kb.zip", "--json").fails(3, "E010")
    assert list((workplace.folder / "disk").iterdir()) == []


def test_an_untouched_target_is_recognised_by_two_walks(workplace: Workplace) -> None:
    """A file with its old size and time counts as unchanged: see docs/concepts/installing.md."""
    kb = install(workplace, many_files(20, version="one"))
    page = kb / "part-0/page-0.md"
    seen = page.stat()
    page.write_bytes(page.read_bytes().replace(b"one", b"two"))
    os.utime(page, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert workplace.pair("update", "--json").json["changed"] == []
