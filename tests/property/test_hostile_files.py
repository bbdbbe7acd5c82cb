"""Damaged files of pair, as disks, editors and attackers leave them: read, or refused with a code.

No other exception is raised, the work ends, and nothing is half done. `HYPOTHESIS_PROFILE=nightly` tries hundreds of
times as many.
"""

import datetime
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair import errors
from pair.auth.keys import KeyFile
from pair.blobs.leases import BlobLeases, FileLeases
from pair.blobs.local import MemoryStore
from pair.engine.format import manifest as engine_manifest
from pair.engine.rules import choose_merge, find_garbage, plan_compaction
from pair.engine.settings import EngineSettings
from pair.kb.installer import Installer
from pair.packages import package
from pair.packages.install import InstallRequest
from pair.packages.rules import RECORD_NAME
from pair.settings import Settings
from pair.testing.clock import NOON, ManualClock
from pair.values import check_key
from support.damage import bounded, damaged_json, refusal, tried
from support.engine_parts import Ground, numbered
from support.sync_parts import Page, Project

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

ENGINE_MANIFEST = json.loads((Path(__file__).parents[1] / "golden" / "manifest-v1.json").read_bytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


# ── the manifest of an engine ──────────────────────────────────────────────────────────────────────


def use(manifest: engine_manifest.Manifest) -> None:
    """Use a manifest in every way in which the engine uses it."""
    policy = EngineSettings(compaction_min_shard_count=1)
    later = manifest.make_next("next", NOON, [shard.without([0]) for shard in manifest.shards if shard.documents])
    for each in (manifest, later, manifest.make_collected("swept", NOON, frozenset())):
        again = engine_manifest.from_bytes(engine_manifest.to_bytes(each), "key")
        assert again.number == each.number
        plan_compaction(each, policy)
        choose_merge(each.shards, 10)
        find_garbage(each, {shard.folder: NOON for shard in each.shards}, NOON, 60)
        assert len({check_key(shard.key("rows")) for shard in each.shards}) <= len(each.shards)


@tried(150, 10_000)
@given(damaged_json(ENGINE_MANIFEST))
def test_a_manifest_is_read_whole_or_refused(content: bytes) -> None:
    with bounded():
        refused = refusal(lambda: engine_manifest.from_bytes(content, "key"))
        if refused is None:
            use(engine_manifest.from_bytes(content, "key"))
    assert refused is None or refused.code == "E207"


@pytest.fixture(scope="module")
def ground(folder: Path) -> Ground:
    made = Ground(folder / "engine")
    with made.open() as kb:
        kb.upsert(numbered(6))
    return made


@tried(12, 400)
@given(data=st.data())
def test_a_kb_with_a_damaged_manifest_answers_or_refuses_and_overwrites_nothing(
    ground: Ground, data: st.DataObject
) -> None:
    [path] = ground.stored_files("manifest.json")
    whole = path.read_bytes()
    content = data.draw(damaged_json(json.loads(whole)))
    shards = {each: each.read_bytes() for each in ground.stored_files("") if each.is_file() and ".shards" in str(each)}
    path.write_bytes(content)
    try:
        with bounded(), ground.open() as kb:
            for act in (kb.stats, lambda: kb.search("rivers"), lambda: kb.upsert(numbered(1, begin=50))):
                refusal(act)
        assert shards
        assert all(each.read_bytes() == kept for each, kept in shards.items())
    finally:
        path.write_bytes(whole)


# ── the state of a sync ────────────────────────────────────────────────────────────────────────────

PAGE = "https://example.com/page"


@pytest.fixture(scope="module")
def synced(folder: Path) -> tuple[Project, dict[Path, bytes]]:
    """Return a project after a sync."""
    made = Project(folder / "sync")
    made.write("a.md", "# One\n\nThe first file.")
    made.write("deep/b.md", "The second file.")
    made.write("picture.md", b"\xff\xfe\x00")
    made.serve(PAGE, Page("A page.", etag='"1"'))
    made.run()
    whole = {path: path.read_bytes() for path in made.places.cache.parent.rglob("*") if path.is_file()}
    made.write("a.md", "# One\n\nThe first file, changed: so no run can end at the first line of the state.")
    return made, whole


@tried(25, 2_000)
@given(data=st.data())
def test_a_sync_continues_from_a_damaged_state_or_keeps_it_aside(
    synced: tuple[Project, dict[Path, bytes]], data: st.DataObject
) -> None:
    project, whole = synced
    home = project.places.cache.parent
    state = json.loads(whole[project.places.cache])
    damaged = data.draw(damaged_json(state))
    journal = data.draw(st.none() | damaged_json({"kind": "source", "key": "a.md", "value": state["sources"]["a.md"]}))
    generation = state["generation"] + data.draw(st.integers(-1, 1))
    try:
        project.places.cache.write_bytes(damaged)
        if journal is not None:
            project.places.cache.with_name(f"{project.places.cache.name}.journal-{generation}").write_bytes(journal)
        with bounded():
            refused = refusal(project.run)
            if refused is not None:
                assert refused.code == "E102"
                assert Path(refused.details["kept_at"]).read_bytes() == damaged
                assert project.places.index.read_bytes() == whole[project.places.index]
                project.run()
        assert project.records.keys() == {"a.md", "deep/b.md", PAGE}
        again = project.run()
        assert (again.added, again.changed, again.removed) == (0, 0, 0)
    finally:
        shutil.rmtree(home)
        for path, content in whole.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


# ── packages ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    source = folder / "kb"
    (source / "deep").mkdir(parents=True)
    (source / "a.md").write_text("One.")
    (source / "deep" / "b.md").write_text("Two.")
    package.make_package(source, folder / "kb.zip", label=package.Label(name="kb", version="1.0.0"), dated=NOON)
    return folder / "kb.zip"


def repacked(packed: Path, manifest: bytes, into: Path) -> Path:
    with zipfile.ZipFile(packed) as before, zipfile.ZipFile(into, "w") as after:
        for entry in before.infolist():
            after.writestr(entry, manifest if entry.filename == "manifest.json" else before.read(entry))
    return into


@tried(20, 1_000)
@given(data=st.data())
def test_a_package_with_a_damaged_manifest_is_refused_or_installed_whole(
    packed: Path, folder: Path, data: st.DataObject
) -> None:
    manifest = json.loads(zipfile.ZipFile(packed).read("manifest.json"))
    if data.draw(st.booleans()):
        manifest["content_checksum"] = "sha256:" + package.PackageManifest("", "").content_checksum
        manifest["files"] = {}
    content = data.draw(damaged_json(manifest))
    with bounded(), tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        archive = repacked(packed, content, work / "kb.zip")
        installer = Installer(Settings.load(environment={"PAIR_KB_CACHE_DIR": str(work / "cache")}), folder=work)
        refusal(lambda: json.dumps(installer.describe(archive).to_json()))
        refusal(lambda: json.dumps(installer.verify(archive).to_json()))
        target = work / "target"
        source = installer.resolve(str(archive), offline=True)
        if refusal(lambda: json.dumps(installer.apply(InstallRequest("install", target), source).to_json())):
            assert not target.exists()
        else:
            assert (target / "a.md").read_text() == "One."
            assert (target / "deep" / "b.md").read_text() == "Two."


@pytest.fixture(scope="module")
def installed(folder: Path, packed: Path) -> Path:
    installer = Installer(Settings.load(environment={"PAIR_KB_CACHE_DIR": str(folder / "cache")}), folder=folder)
    installer.apply(
        InstallRequest("install", folder / "installed"), installer.resolve(str(folder / "kb"), offline=True)
    )
    return folder / "installed"


@tried(25, 2_000)
@given(data=st.data())
def test_an_update_over_a_damaged_record_is_refused_or_touches_only_what_was_installed(
    installed: Path, folder: Path, data: st.DataObject
) -> None:
    first, second = (installed / RECORD_NAME).read_bytes().splitlines()
    if data.draw(st.booleans()):
        content = data.draw(damaged_json(json.loads(first))) + b"\n" + second + b"\n"
    else:
        content = first + b"\n" + data.draw(damaged_json(json.loads(second))) + b"\n"
    with bounded(), tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        target = work / "deep" / "target"
        shutil.copytree(installed, target)
        (target / RECORD_NAME).write_bytes(content)
        for place in (work / "x", work / "deep" / "x", target / "mine.md"):
            place.write_text("kept")
        installer = Installer(Settings.load(environment={"PAIR_KB_CACHE_DIR": str(work / "cache")}), folder=work)
        refusal(lambda: json.dumps(installer.describe(target).to_json()))
        refusal(lambda: installer.verify(target))
        source = installer.resolve(str(folder / "kb"), offline=True)
        refused = refusal(lambda: json.dumps(installer.apply(InstallRequest("update", target), source).to_json()))
        if refused is not None:
            assert refused.code in {"E011", "E013"}
            assert (target / RECORD_NAME).read_bytes() == content
        installer.apply(InstallRequest("update", target, force=True), source)
        assert installer.verify(target)
        for place in (work / "x", work / "deep" / "x", target / "mine.md"):
            assert place.read_text() == "kept"


# ── keys and leases ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def keys(folder: Path) -> Path:
    file = KeyFile(folder / "keys.json", ManualClock(), lambda count: "ab" * count)
    file.add("reader", "read", ["default"], datetime.timedelta(days=1))
    return folder / "keys.json"


@tried(100, 4_000)
@given(data=st.data())
def test_a_damaged_file_of_keys_gives_no_further_access(keys: Path, folder: Path, data: st.DataObject) -> None:
    secret = f"pair_{'ab' * 6}_{'ab' * 32}"
    damaged = folder / "damaged-keys.json"
    damaged.write_bytes(data.draw(damaged_json(json.loads(keys.read_bytes()))))
    file = KeyFile(damaged, ManualClock(), lambda count: "cd" * count)
    with bounded():
        refusal(lambda: json.dumps([key.to_json() for key in file.all()]))
        for text in ("", f"pair_{'cd' * 6}_{'cd' * 32}", "pair__"):
            assert refusal(lambda text=text: file.authenticate(text)) is not None  # type: ignore[misc]
        if refusal(lambda: file.authenticate(secret)) is None:
            assert file.authenticate(secret).scope in {"read", "write", "admin"}
        if refusal(lambda: file.revoke("ab" * 6)) is None:
            assert refusal(lambda: file.authenticate(secret)) is not None


LEASE = {"holder": "host-a, process 1", "token": "t", "fence": 7, "seconds": 30.0, "renewals": 2}


@tried(100, 8_000)
@given(damaged_json(LEASE))
def test_a_damaged_lease_is_held_or_free(content: bytes) -> None:
    store, clock = MemoryStore(ManualClock()), ManualClock()
    store.put("kb.lease.json", content)
    leases = BlobLeases(store, holder="me", new_token=lambda: "mine", clock=clock)
    with bounded():
        refused = refusal(lambda: leases.acquire("kb", seconds=30))
        assert refused is None or refused.code == "E203"
        if refused is not None:
            clock.advance(366 * 86_400)
            leases.acquire("kb", seconds=30)
        held = refusal(lambda: leases.acquire("kb", seconds=30))
        assert held is not None
        assert held.details["holder"] == "me"


@tried(60, 4_000)
@given(st.binary(max_size=60) | damaged_json(LEASE) | st.integers().map(lambda number: f"{number} me\n".encode()))
def test_a_damaged_lock_file_is_taken_over(content: bytes) -> None:
    with bounded(), tempfile.TemporaryDirectory() as name:
        (Path(name) / "kb.lease").write_bytes(content)
        leases = FileLeases(Path(name), holder="me", new_token=lambda: "mine")
        lease = leases.acquire("kb", seconds=30)
        assert lease.fence > 0
        with pytest.raises(errors.ConflictError):
            leases.acquire("kb", seconds=30)
        leases.release(lease)
        assert leases.acquire("kb", seconds=30).fence == lease.fence + 1
        leases.close()
