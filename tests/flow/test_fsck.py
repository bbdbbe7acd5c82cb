"""fsck finds every kind of damage to a single file, and a repair restores the same exact answers."""

import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.engine.backup.fsck import FsckReport
from pair.kb.kb import KnowledgeBase
from pair.testing.faulty_store import FaultyStore
from pair.values import Document
from support.command import Workplace, write_files
from support.engine_parts import (
    Ground,
    MirroredEmbedder,
    all_ids,
    flip_a_bit,
    numbered,
    placed,
    replace_content,
    truncate,
)
from support.threads import threads_running

ROLES = {"rows": ".duckdb", "search": ".search", "ids": ".ids", "keywords": ".keywords", "graph": ".graph"}
DAMAGES: dict[str, Callable[[Path], None]] = {
    "deleted": lambda path: path.unlink(),
    "truncated": truncate,
    "flipped": flip_a_bit,
    "emptied": lambda path: replace_content(path, b""),
}
PAGES = [
    Document(
        f"page-{number}",
        f"# Handbook\n\n## Rule {number}\n\nAda Lovelace met item{number} in Turin, by the river Po.\n\n### House\n\n"
        + f"Grace Hopper wrote clause {number} of it in Boston. " * 45,
        title=f"Page {number}",
        metadata={"number": number},
    )
    for number in range(3)
]


def write_package(kb: KnowledgeBase, path: Path) -> None:
    """Write a package with the index of the KB."""
    with zipfile.ZipFile(path, "w") as package:
        for file in kb.backup.pack_index().files:
            package.writestr(f".pair-index/{file.name}", b"".join(kb.backup.read_packed(file)))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Return a KB of two shards, one with deleted documents; made once."""
    ground = Ground(tmp_path_factory.mktemp("stored"), graph="text", chunker="structure")
    with ground.open() as kb:
        kb.upsert(PAGES)
        kb.upsert(numbered(9, begin=100))
        kb.delete(["doc-0101", "doc-0105"])
        kb.maintenance.compact(everything=True)
        kb.upsert(numbered(4))
        kb.delete(["doc-0002"])
        kb.maintenance.collect(grace_seconds=0)
        write_package(kb, ground.folder / "package.zip")
    return ground


@pytest.fixture
def ground(stored: Ground, tmp_path: Path) -> Ground:
    """Return a project with a store and an empty cache."""
    shutil.copytree(stored.store, tmp_path / "store")
    return Ground(tmp_path, graph="text", chunker="structure")


def answers(kb: KnowledgeBase) -> list[Any]:
    """Return all results of an exact search; with a filter, the metadata is read too."""
    found = [
        hit.to_json()
        for question in ("rivers", "Ada Lovelace in Turin", "clause house")
        for mode in ("hybrid", "graph")
        for hit in kb.search(question, mode=mode, exact=True, limit=6)
    ]
    return found + [hit.to_json() for hit in kb.search("item1", filter={"number": {"lt": 102}}, exact=True)]


@pytest.fixture(scope="module")
def expected(stored: Ground) -> list[Any]:
    with stored.open() as kb:
        return answers(kb)


def largest(ground: Ground) -> Path:
    return max(ground.stored_files(".ids"), key=lambda each: each.stat().st_size).parent


def damaged(ground: Ground, role: str, damage: str) -> Path:
    """Damage the file of this role in the largest shard."""
    [path] = largest(ground).glob(f"*{ROLES[role]}")
    path.chmod(0o600)
    DAMAGES[damage](path)
    return path


def fetch_rows(kb: KnowledgeBase) -> None:
    """Fetch the tables of every shard into the cache. No query reads them."""
    for shard in kb._core.context.manifests.require().manifest.shards:
        kb._core.context.cache.open(shard).rows()


def fsck(ground: Ground, **how: Any) -> FsckReport:
    with ground.open() as kb:
        return kb.maintenance.fsck(**how)


def assert_mended(ground: Ground, expected: list[Any]) -> None:
    """Check that a reader with an empty cache sees the expected documents."""
    shutil.rmtree(ground.cache, ignore_errors=True)
    assert fsck(ground).is_sound
    with ground.open() as kb:
        assert answers(kb) == expected
        assert len(all_ids(kb)) == 13
        kb.upsert([Document("more", "It can be written.")])


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("role", ROLES)
def test_a_file_is_repaired_from_those_beside_it(ground: Ground, expected: list[Any], role: str, damage: str) -> None:
    path = damaged(ground, role, damage)
    found = fsck(ground)
    [fault] = found.faults
    assert (found.is_sound, fault.is_repaired, fault.documents) == (False, False, 10)
    assert path.name in fault.key
    assert fault.remedy.startswith("the other files of the shard")
    assert not fsck(ground).is_sound  # nothing was changed
    done = fsck(ground, repair=True)
    assert [each.is_repaired for each in done.faults] == [True]
    assert_mended(ground, expected)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("origin", ["cache", "package"])
def test_a_file_is_put_back_from_a_copy(
    ground: Ground, stored: Ground, expected: list[Any], role: str, origin: str
) -> None:
    with ground.open() as kb:
        version = kb.version()
        if origin == "cache":
            kb.backup.export(ground.folder / "fetched.jsonl")
            fetch_rows(kb)
    path = damaged(ground, role, "flipped")
    packages = [stored.folder / "package.zip"] if origin == "package" else []
    done = fsck(ground, repair=True, packages=packages)
    assert [each.remedy for each in done.faults] == ["the local cache" if origin == "cache" else str(packages[0])]
    assert path.exists()
    with ground.open() as kb:
        assert kb.version() == version  # the bytes are equal, so the manifest stays the same
    assert_mended(ground, expected)


def test_a_copy_that_is_damaged_itself_is_not_used(ground: Ground, expected: list[Any]) -> None:
    with ground.open() as kb:
        kb.backup.export(ground.folder / "fetched.jsonl")
    path = damaged(ground, "search", "flipped")
    [kept] = [each for each in ground.cached_files(".search") if each.parent.name == path.parent.name]
    flip_a_bit(kept)
    done = fsck(ground, repair=True)
    assert done.faults[0].remedy.startswith("the other files of the shard")
    assert_mended(ground, expected)


def test_a_file_is_put_back_from_another_shard_that_has_the_same(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.fill(numbered(5))
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()  # everything but the vectors is unchanged, and the former shard still exists
        shutil.rmtree(ground.cache)
        live = kb.stats()
        assert live is not None
        [folder] = {path.parent for path in ground.stored_files(".search")} - {
            path.parent for path in ground.stored_files(".search") if not _is_live(kb, path)
        }
        next(folder.glob("*.duckdb")).unlink()
        done = kb.maintenance.fsck(repair=True)
        assert [each.remedy for each in done.faults] == ["another shard of this knowledge base"]
        assert kb.maintenance.fsck().is_sound


def _is_live(kb: KnowledgeBase, path: Path) -> bool:
    return any(hit.shard == path.parent.name for hit in kb.search("rivers", exact=True))


def test_vectors_are_rebuilt_only_by_the_same_embedder(ground: Ground) -> None:
    damaged(ground, "search", "deleted")
    with ground.open(embedder=MirroredEmbedder()) as kb:
        [fault] = kb.maintenance.fsck(repair=True).faults
    assert (fault.is_repaired, fault.remedy) == (False, "")
    assert len(fault.ids) == 10
    assert fsck(ground, repair=True).is_sound


def test_lost_files_are_named_and_kept_until_they_are_given_up(ground: Ground) -> None:
    for role in ("search", "rows"):
        damaged(ground, role, "emptied")
    with ground.open() as kb:
        version = kb.version()
        report = kb.maintenance.fsck(repair=True)
        assert not report.is_sound
        assert set(report.faults[0].ids) == {*(f"page-{n}" for n in range(3)), *_live_numbers()}
        assert kb.version() == version
        given_up = kb.maintenance.fsck(repair=True, drop_lost=True)
        assert (given_up.is_sound, given_up.dropped) == (True, 10)
        assert all_ids(kb) == ["doc-0000", "doc-0001", "doc-0003"]
        assert kb.maintenance.fsck().is_sound


def _live_numbers() -> set[str]:
    return {f"doc-{number:04}" for number in range(100, 109)} - {"doc-0101", "doc-0105"}


def test_after_a_re_embedding_the_former_vectors_are_not_taken_for_the_new(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.fill(numbered(40))
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
        kb.maintenance.collect(grace_seconds=0)
        before = [hit.to_json() for hit in kb.search("rivers item3", exact=True)]
    [search] = ground.stored_files(".search")
    flip_a_bit(search)
    shutil.rmtree(ground.cache)
    with ground.open(embedder=MirroredEmbedder()) as kb:
        assert kb.maintenance.fsck(repair=True).is_sound
        assert [hit.to_json() for hit in kb.search("rivers item3", exact=True)] == before


def test_a_vector_that_came_with_its_document_is_put_back_from_a_copy(tmp_path: Path) -> None:
    """Without a vector, the document gets that of its text, and this is reported."""
    ground = Ground(tmp_path)
    with ground.open() as kb:
        kb.upsert([placed("own", [0.5] * 16)])
        write_package(kb, tmp_path / "package.zip")
    damaged(ground, "search", "deleted")
    shutil.rmtree(ground.cache, ignore_errors=True)
    assert fsck(ground).faults[0].remedy == "the other files of the shard, with 1 of 1 vectors rebuilt"
    assert fsck(ground, repair=True, packages=[tmp_path / "package.zip"]).is_sound
    with ground.open() as kb:
        assert kb.search_vector([0.5] * 16, exact=True)[0].distance == 0.0


# Manifests and versions


@pytest.fixture
def with_versions(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path, graph="text", chunker="structure", keep_versions=5)
    with ground.open() as kb:
        kb.upsert(PAGES)
        kb.upsert(numbered(12))
        kb.delete(["doc-0003", "doc-0004"])
    shutil.rmtree(ground.cache)
    return ground


def manifest_of(ground: Ground) -> Path:
    [path] = [each for each in ground.store.rglob("*manifest*") if each.is_file()]
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_manifest_is_put_back_from_its_copy(with_versions: Ground, damage: str) -> None:
    with with_versions.open() as kb:
        before, (version, _) = answers(kb), kb.version()
    DAMAGES[damage](manifest_of(with_versions))
    [fault] = fsck(with_versions).faults
    assert (fault.remedy, fault.is_repaired) == (f"the copy of version {version}", False)
    assert fsck(with_versions, repair=True).is_sound
    assert fsck(with_versions).is_sound
    with with_versions.open() as kb:
        assert (answers(kb), len(all_ids(kb)), kb.version()[0]) == (before, 13, version + 1)


def test_a_copy_of_a_write_that_was_never_published_is_not_taken_for_the_manifest(with_versions: Ground) -> None:
    """The damaged bytes still identify the manifest."""

    def stop(step: str) -> None:
        if step == "swap":
            raise KeyboardInterrupt

    with with_versions.open(on_step=stop) as kb, pytest.raises(KeyboardInterrupt):
        kb.delete(["page-1"])
    truncate(manifest_of(with_versions))
    assert fsck(with_versions, repair=True).is_sound
    with with_versions.open() as kb:
        assert len(all_ids(kb)) == 13


def test_a_manifest_without_any_copy_is_reported_as_lost(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.fill(numbered(3))
    manifest_of(ground).unlink()
    [fault] = fsck(ground, repair=True).faults
    assert (fault.reason, fault.remedy, fault.is_repaired) == ("it is missing", "", False)


@pytest.mark.parametrize("role", ["rows", "search"])
def test_versions_are_repaired_with_the_shards_that_they_need(with_versions: Ground, role: str) -> None:
    """This includes shards that only these versions name."""
    with with_versions.open() as kb:
        kb.maintenance.compact(everything=True)
        kb.upsert([Document("late", "Written last.")])
        kb.maintenance.collect(grace_seconds=0)
        wanted = {each.number: each.documents for each in kb.versions.list()}
    shutil.rmtree(with_versions.cache, ignore_errors=True)
    paths = with_versions.stored_files(ROLES[role])
    assert len(paths) > 2
    for path in paths:
        path.unlink()
    assert len(fsck(with_versions).faults) == len(paths)
    assert fsck(with_versions, repair=True).is_sound
    shutil.rmtree(with_versions.cache, ignore_errors=True)
    assert fsck(with_versions).is_sound
    for number, documents in wanted.items():
        with with_versions.open(at=str(number)) as past:
            assert len(all_ids(past)) == documents
            assert past.search("item1", filter={"number": 1}, exact=True)
    with with_versions.open() as kb:
        oldest = min(wanted)
        assert kb.versions.rollback(oldest).documents == wanted[oldest]


def test_a_lost_version_is_reported_and_given_up_on_demand(with_versions: Ground) -> None:
    with with_versions.open() as kb:
        kb.maintenance.compact(everything=True)
        kb.upsert([Document("late", "Written last.")])
        current = {hit.shard for hit in kb.search("item1 Turin last", exact=True, limit=50)}
    shutil.rmtree(with_versions.cache, ignore_errors=True)
    for path in [*with_versions.stored_files(".search"), *with_versions.stored_files(".duckdb")]:
        if path.parent.name not in current:
            path.unlink()
    copies = sorted(path for path in with_versions.store.rglob("*") if "history" in path.parent.name)
    flip_a_bit(copies[-1])  # of the current manifest
    found = fsck(with_versions, repair=True)
    assert not found.is_sound
    assert [each.remedy for each in found.faults if each.is_repaired] == ["the manifest"]
    assert any("needs a shard that is lost" in each.reason for each in found.faults)
    assert fsck(with_versions, repair=True, drop_lost=True).is_sound
    assert fsck(with_versions).is_sound
    with with_versions.open() as kb:
        assert len(all_ids(kb)) == 14
        assert len(kb.versions.list()) >= 1


def test_a_missing_kb_is_not_damage(tmp_path: Path) -> None:
    with Ground(tmp_path).open() as kb, pytest.raises(errors.NotFoundError):
        kb.maintenance.fsck()


def test_concurrent_writes_and_collections_are_not_reported_as_damage(ground: Ground) -> None:
    """Between any two requests of fsck, another process compacts and deletes dropped shards."""
    turns = 0
    with ground.open() as other:

        def disturb(operation: str, key: str) -> Any:
            nonlocal turns
            if operation == "download" and turns < 4:
                turns += 1
                other.upsert([Document(f"late-{turns}", f"Written meanwhile, {turns}.")])
                other.maintenance.compact(everything=True)
                other.maintenance.collect(grace_seconds=0)
            return "none"

        with ground.open(store=FaultyStore(ground.blobs(), disturb)) as kb:
            report = kb.maintenance.fsck(repair=True)
    assert (report.is_sound, report.faults) == (True, ())
    assert turns == 4


def test_readers_continue_during_a_repair(ground: Ground, expected: list[Any]) -> None:
    with ground.open() as reader:
        assert answers(reader) == expected
        damaged(ground, "rows", "deleted")
        is_over = threading.Event()
        seen: list[list[Any]] = []

        def read() -> None:
            while not is_over.is_set():
                seen.append(answers(reader))

        with threads_running(read):
            other = Ground(ground.folder / "elsewhere", graph="text", chunker="structure", store=str(ground.store))
            try:
                assert fsck(other, repair=True).is_sound
            finally:
                is_over.set()
        assert seen
        assert all(each == expected for each in seen)


# The command


NOTES: dict[str, str | bytes] = {
    f"sources/{number}.md": f"# Note {number}\n\nThis one is about item{number}.\n" for number in range(5)
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project after a sync, made once."""
    workplace = Workplace(tmp_path_factory.mktemp("project"))
    write_files(workplace.folder, NOTES)
    assert workplace.pair("sync", PAIR__KB__SOURCES_DIR="sources").status == 0
    return workplace.folder


@pytest.fixture
def synced(workplace: Workplace, project: Path) -> Workplace:
    shutil.copytree(project, workplace.folder, dirs_exist_ok=True)
    workplace.environment["PAIR__KB__SOURCES_DIR"] = "sources"
    return workplace


def shard_files(workplace: Workplace, pattern: str) -> list[Path]:
    return sorted((workplace.folder / ".pair" / "store").rglob(pattern))


def test_the_command_reports_repairs_and_exits_with_their_status(synced: Workplace) -> None:
    sound = synced.pair("fsck")
    assert (sound.status, sound.stdout.partition(":")[0]) == (0, "default is intact")
    before = synced.pair("search", "item3", "--exact", "--json").json
    shutil.rmtree(synced.folder / ".pair" / "cache")
    [keywords] = shard_files(synced, "*.keywords")
    flip_a_bit(keywords)
    found = synced.pair("fsck")
    assert found.status == 5
    assert "its SHA-256 is not the one in the manifest (5 documents)" in found.stdout
    assert "can be repaired from the other files of the shard: pair fsck --repair" in found.stdout
    assert "1 file damaged, 0 repaired" in found.stdout
    value = synced.pair("fsck", "--json")
    assert (value.status, value.json["sound"], len(value.json["faults"])) == (5, False, 1)
    done = synced.pair("fsck", "--repair", "--json")
    assert (done.status, done.json["faults"][0]["repaired"]) == (0, True)
    assert synced.pair("search", "item3", "--exact", "--json").json["results"] == before["results"]
    assert synced.pair("fsck", "--drop-lost").status == 1


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*.duckdb", "deleted"),
        ("*.search", "truncated"),
        ("*.ids", "flipped"),
        ("*.keywords", "emptied"),
        ("*.graph", "deleted"),
        ("*manifest*", "truncated"),
        ("*manifest*", "deleted"),
    ],
)
def test_the_command_repairs_every_kind_of_file(synced: Workplace, pattern: str, damage: str) -> None:
    before = synced.pair("search", "item3", "--exact", "--json").json["results"]
    shutil.rmtree(synced.folder / ".pair" / "cache")
    [path] = [each for each in shard_files(synced, pattern) if each.is_file()]
    DAMAGES[damage](path)
    assert synced.pair("fsck").status == 5
    assert synced.pair("fsck", "--repair").status == 0
    assert synced.pair("fsck").status == 0
    assert synced.pair("search", "item3", "--exact", "--json").json["results"] == before


def test_the_command_puts_a_whole_shard_back_from_a_package_with_its_index(synced: Workplace) -> None:
    before = synced.pair("search", "item3", "--exact", "--json").json["results"]
    synced.pair("package", "sources", "--with-index", "-o", "notes.zip").succeeds()
    shutil.rmtree(synced.folder / ".pair" / "cache")
    for path in shard_files(synced, "shard-*"):
        path.unlink()
    done = synced.pair("fsck", "--repair", "--package", "notes.zip")
    assert (done.status, done.stdout.count("repaired from notes.zip")) == (0, 5)
    assert synced.pair("fsck").status == 0
    assert synced.pair("search", "item3", "--exact", "--json").json["results"] == before
    assert synced.pair("fsck", "--package", "sources/1.md", "--json").error_code == "E225"


@pytest.mark.parametrize("pattern", ["*.search *.duckdb", "shard-*"])
def test_documents_that_sources_still_have_are_stored_again(synced: Workplace, pattern: str) -> None:
    """The report lists their names if these are known, else their number."""
    before = synced.pair("search", "item3", "--exact", "--json").json["results"]
    shutil.rmtree(synced.folder / ".pair" / "cache")
    for each in pattern.split():
        for path in shard_files(synced, each):
            path.unlink()
    synced.pair("fsck").exits(5).prints("can be repaired from the synced sources")
    done = synced.pair("fsck", "--repair").prints("repaired from the synced sources")
    assert synced.pair("search", "item3", "--exact", "--json").json["results"] == before
    assert done.status == 5  # because no version can be restored
    assert "version 1 needs a shard that is lost" in done.stdout
    assert synced.pair("fsck", "--repair", "--drop-lost").status == 0
    assert synced.pair("fsck").status == 0
    assert synced.pair("sync", "--json").json["stored"] == 0


def test_documents_of_others_are_not_dropped_for_those_that_sources_have(synced: Workplace) -> None:
    (synced.folder / "mine.md").write_text("# Mine\n\nOf nobody else.\n")
    assert synced.pair("ingest", "mine.md").status == 0
    assert synced.pair("compact", "--all").status == 0
    assert synced.pair("gc", "--grace", "0").status == 0
    shutil.rmtree(synced.folder / ".pair" / "cache")
    for path in [*shard_files(synced, "*.search"), *shard_files(synced, "*.duckdb")]:
        path.unlink()
    synced.pair("fsck", "--repair").exits(5).prints("for 5 of 6 documents", "lost: mine.md")
    assert synced.pair("search", "item3", "--json").json["results"][0]["id"] == "3.md"
    assert ["mine.md"] in [fault["ids"] for fault in synced.pair("fsck", "--json").json["faults"]]  # not dropped
    assert synced.pair("fsck", "--repair", "--drop-lost").status == 0
    assert synced.pair("fsck").status == 0
