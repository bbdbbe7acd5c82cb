"""An untrusted project: links, hard links and notes below `.pair` never make pair touch files of others."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.canary import CANARY, snapshot
from support.command import Workplace, write_files
from support.damage import IS_NIGHTLY
from support.kbs import SMALL_KB
from support.server import Server

HEX = "0123456789abcdef"


def fill(workplace: Workplace) -> None:
    """Run every command that writes below `.pair`."""
    write_files(workplace.folder / "kb", SMALL_KB)
    write_files(workplace.folder, {"note.md": "# Note\n\nRivers are long.\n"})
    for command in (
        ["install", "--source", "./kb"],
        ["sync"],
        ["ingest", "note.md"],
        ["compact", "--all"],
        ["gc"],
        ["search", "rivers"],
        ["keys", "add", "me"],
    ):
        workplace.pair(*command).succeeds()


# ── every place ────────────────────────────────────────────────────────────────────────────────────

KINDS = ("folder", "file", "nothing", "itself")
COMMANDS = (
    ("sync", "--json"),
    ("ingest", "other.md", "--json"),
    ("install", "--source", "./kb", "--force", "--json"),
    ("search", "rivers", "--json"),
    ("compact", "--all", "--json"),
    ("gc", "--json"),
    ("cache", "sweep", "--json"),
    ("doctor", "--json"),
    ("keys", "add", "you", "--json"),
    ("fsck", "--json"),
)


def places_in(project: Path) -> list[str]:
    """Return one path of each kind below `.pair`. Names that differ only in hashes and numbers are one kind."""
    kinds: dict[str, str] = {}
    for path in sorted((project / ".pair").rglob("*")):
        name = path.relative_to(project).as_posix()
        if not name.startswith(".pair/knowledge/"):  # content of the user, which has its own rules
            kinds.setdefault(re.sub(r"[0-9a-f]{32,}|\d+", "#", name), name)
    return [".pair", *kinds.values()]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    fill(Workplace(folder))
    return folder / "project"


@pytest.mark.parametrize("leads_to", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_a_link_at_any_place_below_pair_is_harmless(part: int, leads_to: str, template: Path, tmp_path: Path) -> None:
    places = places_in(template)
    assert len(places) > 25
    for number, place in list(enumerate(places, start=KINDS.index(leads_to)))[part::4]:
        folder = tmp_path / str(number)
        workplace = Workplace(folder)
        shutil.copytree(template, workplace.folder, dirs_exist_ok=True)
        write_files(workplace.folder, {"other.md": f"# Other\n\n{place}\n"})
        write_files(workplace.target, {"mine.md": "# Mine\n"})
        canary = write_files(folder / "canary", CANARY)
        before = snapshot(canary)
        link = workplace.folder / place
        link.rename(folder / "taken away")
        link.symlink_to(
            {"folder": canary, "file": canary / "a.md", "nothing": folder / "nothing", "itself": link}[leads_to]
        )
        # All of them at length; else those that change most where a link can do most, and another one each time.
        chosen = COMMANDS if IS_NIGHTLY else (*COMMANDS[: 3 if leads_to == "folder" else 0], COMMANDS[number % 10])
        for command in chosen:
            done = workplace.pair(*command)
            assert done.status in range(7), (place, command, done.stdout, done.stderr)
            assert "Traceback" not in done.stderr
            assert done.status == 0 or re.search(r"E\d{3}|\"ok\": false", done.stdout + done.stderr), (place, command)
            assert snapshot(canary) == before, (place, command)
            assert not (folder / "nothing").exists(), (place, command)
        shutil.rmtree(folder)


# ── what used to be destroyed ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["sync", "ingest"])
@pytest.mark.parametrize(
    "place",
    [".pair", ".pair/cache-scratch", ".pair/store", ".pair/store/.pair-store", ".pair/store/.pair-store/staged"],
)
def test_folders_behind_a_link_are_not_emptied(
    place: str, command: str, workplace: Workplace, canary: Path, tmp_path: Path
) -> None:
    write_files(workplace.folder, {"docs/note.md": "# Note\n"})
    (workplace.folder / place).parent.mkdir(parents=True, exist_ok=True)
    (workplace.folder / place).symlink_to(canary)
    arguments = ["ingest", "docs/note.md"] if command == "ingest" else ["sync"]
    done = workplace.pair(*arguments, "--json", PAIR__KB__SOURCES_DIR="docs").fails(3, "E025")
    assert done.json["error"]["details"]["path"].endswith(place)


def staging_with(workplace: Workplace, note: bytes) -> Path:
    staging = workplace.folder / ".pair" / ".knowledge.staging-0123456789ab"
    write_files(staging, {"moving": note})
    (staging / "new").mkdir()
    write_files(workplace.folder / "kb", SMALL_KB)
    return staging


def test_what_a_link_in_a_staging_folder_leads_to_is_not_moved(workplace: Workplace, canary: Path) -> None:
    (staging_with(workplace, b"") / "old").symlink_to(canary)
    workplace.target.mkdir()
    workplace.pair("install", "--source", "./kb", "--json").fails(3, "E025")


def test_a_link_with_the_name_of_a_staging_folder_is_refused(workplace: Workplace, canary: Path) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.target.mkdir(parents=True)
    (workplace.folder / ".pair" / ".knowledge.staging-0123456789ab").symlink_to(canary)
    workplace.pair("install", "--source", "./kb", "--json").fails(3, "E025")


def test_names_in_a_note_lead_nowhere_else(workplace: Workplace, canary: Path) -> None:
    inode = canary.stat().st_ino
    names = ["../../../canary", str(canary), "..", ".", "/", "", "../../kb"]
    note = "\0".join([*names, *(f"{inode}/{name}" for name in names)])
    (staging_with(workplace, note.encode()) / "old").mkdir()
    workplace.target.mkdir()
    assert workplace.pair("install", "--source", "./kb").status == 0
    assert (workplace.folder / "kb" / "README.md").exists()


def test_a_note_that_pair_did_not_write_moves_no_file_of_the_user(workplace: Workplace) -> None:
    (staging_with(workplace, b"mine.md\x001/mine.md\x000/mine.md") / "old").mkdir()
    write_files(workplace.target, {"mine.md": "mine"})
    assert workplace.pair("install", "--source", "./kb").status == 0
    assert (workplace.target / "mine.md").read_text() == "mine"


@pytest.mark.parametrize("name", [".knowledge.staging-mine", ".knowledge.staging-0123456789abc", ".knowledge.staging-"])
def test_a_folder_that_only_looks_like_a_staging_folder_stays(name: str, workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    write_files(workplace.folder / ".pair" / name, {"mine.md": "mine"})
    assert workplace.pair("install", "--source", "./kb").status == 0
    assert (workplace.folder / ".pair" / name / "mine.md").read_text() == "mine"


@pytest.mark.parametrize("place", [".pair", ".pair/knowledge", "docs", "docs/kb"])
def test_nothing_is_installed_through_a_link(place: str, workplace: Workplace, canary: Path) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    (workplace.folder / place).parent.mkdir(parents=True, exist_ok=True)
    (workplace.folder / place).symlink_to(canary)
    target = ["docs/kb"] if place.startswith("docs") else []
    for extra in ([], ["--force"], ["--dry-run"]):
        workplace.pair("install", *target, "--source", "./kb", *extra, "--json").fails(3, "E025")


def test_the_default_folder_of_sources_is_not_read_through_a_link(workplace: Workplace, canary: Path) -> None:
    workplace.target.parent.mkdir()
    workplace.target.symlink_to(canary)
    workplace.pair("sync", "--json").fails(3, "E025")


def test_an_absolute_place_may_be_a_link_and_what_pair_makes_in_it_may_not(
    workplace: Workplace, canary: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    write_files(workplace.folder, {"note.md": "# Note\n"})
    place = {"PAIR__ENGINE__STORE": str(tmp_path / "store")}
    assert workplace.pair("ingest", "note.md", **place).status == 0
    assert workplace.pair("search", "note", **place).status == 0
    shutil.rmtree(tmp_path / "disk" / ".pair-store" / "staged")
    (tmp_path / "disk" / ".pair-store" / "staged").symlink_to(canary)
    write_files(workplace.folder, {"note.md": "# Note\n\nChanged.\n"})
    workplace.pair("ingest", "note.md", "--json", **place).fails(3, "E025")


@pytest.mark.parametrize(
    "place", [".pair/.index-cache.json.lock", ".pair/store/.pair-store/leases/default.duckdb.lease"]
)
def test_a_hard_link_to_a_file_of_the_user_is_not_written_through(
    place: str, workplace: Workplace, canary: Path
) -> None:
    write_files(workplace.target, {"page.md": "# Page\n"})
    (workplace.folder / place).parent.mkdir(parents=True, exist_ok=True)
    os.link(canary / "a.md", workplace.folder / place)
    workplace.pair("sync", "--json").fails(3, "E026")


@pytest.mark.parametrize("place", [".pair/cache-unfinished", ".pair/cache-unfinished/default"])
def test_vectors_of_a_reembedding_are_not_kept_behind_a_link(place: str, workplace: Workplace, canary: Path) -> None:
    write_files(workplace.folder, {"note.md": "# Note\n\nRivers.\n"})
    assert workplace.pair("ingest", "note.md").status == 0
    (workplace.folder / place).parent.mkdir(exist_ok=True)
    (workplace.folder / place).symlink_to(canary)
    workplace.pair("reembed", "--dimension", "24", "--json").fails(3, "E025")


def test_pages_are_not_kept_behind_a_link(workplace: Workplace, server: Server, canary: Path) -> None:
    url = server.add("/page", b"A page.", checksum=False, headers={"Content-Type": "text/plain"})
    name = hashlib.sha256(url.encode()).hexdigest()
    write_files(workplace.folder / ".pair", {"links.txt": f"{url}\n"})
    (workplace.folder / ".pair" / "web-cache").symlink_to(canary)
    workplace.pair("sync", "--json", PAIR__KB__ALLOW_PRIVATE_ADDRESSES="true").fails(3, "E025")
    assert not (canary / name).exists()


def test_a_store_and_a_cache_on_another_file_system_work(workplace: Workplace, canary: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == canary.stat().st_dev:
        pytest.skip("there is no second file system")
    place = shared / f"pair-test-{os.getpid()}"
    write_files(workplace.folder, {"note.md": "# Note\n\nRivers.\n"})
    try:
        for key in ("STORE", "CACHE_DIR"):
            variables = {f"PAIR__ENGINE__{key}": str(place / key)}
            for command in (["ingest", "note.md"], ["search", "rivers"], ["compact", "--all"], ["cache", "sweep"]):
                workplace.pair(*command, **variables).succeeds()
    finally:
        shutil.rmtree(place)


# ── what is in the cache of shards ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "limit", [{"PAIR__ENGINE__CACHE_TTL_SECONDS": "0.000001"}, {"PAIR__ENGINE__CACHE_MAX_BYTES": "1"}]
)
def test_a_sweep_of_the_cache_leaves_what_pair_did_not_put_there(limit: dict[str, str], workplace: Workplace) -> None:
    mine: dict[str, str | bytes] = {
        "holidays/photo.jpg": "mine",
        "file.txt": "mine",
        f"{HEX * 4}/shard-00000.search": "an older layout",
        "pair-shards-old/a.md": "mine",
    }
    write_files(workplace.folder / "things", mine)
    place = {"PAIR__ENGINE__CACHE_DIR": "things"}
    write_files(workplace.folder, {"note.md": "# Note\n\nRivers.\n"})
    workplace.pair("ingest", "note.md", **place)
    workplace.pair("search", "rivers", **place)
    write_files(workplace.folder / "things" / "pair-shards" / "mine", {"b.md": "mine"})
    for path in (workplace.folder / "things").rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    done = workplace.pair("cache", "sweep", "--json", **place, **limit)
    assert done.json["evicted_ttl"] + done.json["evicted_size"] > 0
    kept = {path: (workplace.folder / "things" / path).read_text() for path in mine}
    assert kept == mine
    assert (workplace.folder / "things" / "pair-shards" / "mine" / "b.md").read_text() == "mine"


def test_a_folder_of_the_user_with_the_name_of_the_cache_is_not_swept(workplace: Workplace) -> None:
    """The folder lacks the marker of pair, and holds other files."""
    folder = write_files(
        workplace.folder / ".pair" / "cache" / "pair-shards", {"mine.md": "mine", f"{HEX * 4}/a.md": "mine"}
    )
    os.utime(folder / (HEX * 4) / "a.md", (1_000_000, 1_000_000))
    write_files(workplace.folder, {"note.md": "# Note\n\nRivers.\n"})
    limit = {"PAIR__ENGINE__CACHE_TTL_SECONDS": "0.000001"}
    for command in (["ingest", "note.md"], ["search", "rivers"], ["cache", "sweep"]):
        assert workplace.pair(*command, **limit).status == 0
    assert (folder / (HEX * 4) / "a.md").read_text() == "mine"


# ── locks and keys ─────────────────────────────────────────────────────────────────────────────────


def test_an_install_leaves_no_lock_beside_its_target_and_no_file_of_that_name_is_touched(workplace: Workplace) -> None:
    write_files(workplace.folder, {f"kb/{name}": content for name, content in SMALL_KB.items()})
    write_files(workplace.folder / "docs", {".mine.lock": "mine"})
    assert workplace.pair("install", "docs/mine", "--source", "./kb").status == 0
    assert workplace.pair("update", "docs/mine", "--source", "./kb").status == 0
    assert workplace.pair("install", "docs/other", "--source", "./kb").status == 0
    assert sorted(os.listdir(workplace.folder / "docs")) == [".mine.lock", "mine", "other"]
    assert (workplace.folder / "docs" / ".mine.lock").read_text() == "mine"


def test_other_users_cannot_read_the_keys_during_a_write(tmp_path: Path) -> None:
    """The audit hook records the mode of the file that replaces the keys, at the moment of the rename."""
    script = """
import os, sys
from pathlib import Path
from pair.auth.keys import KeyFile
from pair.clock import SystemClock

def tell(event, arguments):
    if event == "os.rename" and os.fspath(arguments[1]).endswith("keys.json"):
        folder = arguments[2] if arguments[2] >= 0 else None
        print(oct(os.stat(arguments[0], dir_fd=folder).st_mode & 0o777))

os.umask(0)
sys.addaudithook(tell)
KeyFile(Path(sys.argv[1]), SystemClock(), lambda size: "0" * 2 * size).add("me", "read", (), None)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "keys.json"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "0o600\n"
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600


# ── folders that cannot be written ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", ["own", "another"])
def test_a_folder_that_may_not_be_written_is_a_fault_of_storage(owner: str, workplace: Workplace) -> None:
    workplace.obey_permissions()
    write_files(workplace.folder / "docs", {"page.md": "# Page\n"})
    folder = workplace.folder / ".pair"
    folder.mkdir()
    if owner == "another":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o555)
    for command in (["sync"], ["ingest", "docs/page.md"], ["install", "--source", "./docs"]):
        done = workplace.pair(*command, "--json", PAIR__KB__SOURCES_DIR="docs")
        assert (done.status, done.error_code) == (3, "E010") or command[0] == "install", done.stdout
    assert list(folder.iterdir()) == []
