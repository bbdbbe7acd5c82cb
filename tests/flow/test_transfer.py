"""Export and import: a KB is restored unchanged from a file in another place, without embedding."""

import base64
import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.engine.backup.export import count_export_bytes
from pair.kb.kb import KnowledgeBase
from pair.testing.faulty_store import FaultyStore
from pair.values import Document
from support.engine_parts import (
    MANY_SHARDS,
    CountingEmbedder,
    Ground,
    MirroredEmbedder,
    all_ids,
    numbered,
    placed,
    stats_of,
)
from support.errors import raises_code
from support.s3_server import S3Server

QUESTIONS = ("rivers and bridges", "item7", "Rule of the house")
PAGES = [
    Document(
        f"page-{number}",
        f"# Handbook\n\n## Rule {number}\n\n### Of the house\n\n" + f"Ada Lovelace met item{number} in Turin. " * 60,
        title=f"Page {number}",
        url=f"https://example.com/{number}",
        metadata={"number": number, "tags": ["a", "ü"]},
    )
    for number in range(4)
]


@dataclass(frozen=True)
class Origin:
    """A KB in files, and its answers."""

    lines: Path
    listed: list[Any]
    answers: list[Any]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """Return the KB, made once."""
    folder = tmp_path_factory.mktemp("origin")
    lines = folder / "backup.jsonl"
    with Ground(folder, **MANY_SHARDS, graph="text", chunker="structure").open() as kb:
        fill(kb)
        assert kb.backup.export(lines).documents == 35
        assert stats_of(kb).shards > 2
        return Origin(lines, [each.to_json() for each in kb.documents(limit=100)], answers(kb))


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "here", **MANY_SHARDS, graph="text", chunker="structure")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "there", **MANY_SHARDS, graph="text", chunker="structure")


def fill(kb: KnowledgeBase) -> None:
    """Store documents of two owners and all kinds; replace and delete some of them."""
    kb.upsert(numbered(30))
    kb.upsert(PAGES, owner="sync", chunk_size=600)
    kb.upsert([placed("own", [0.5] * 16), Document("dot", "."), Document("odd \ud800", "a lone \udfff one")])
    kb.upsert([Document("doc-0003", "Another text about rivers.")])
    kb.delete(["doc-0005", "doc-0017"])


def answers(kb: KnowledgeBase) -> list[Any]:
    """Return all results of an exact search."""
    return [
        hit.to_json()
        for question in QUESTIONS
        for mode in ("hybrid", "graph")
        for hit in kb.search(question, mode=mode, exact=True, limit=8)
    ]


def exported_from(ground: Ground, documents: list[Document], **how: Any) -> Path:
    """Return the export of a KB with these documents."""
    with ground.open() as kb:
        kb.upsert(documents)
        return exported(kb, ground.folder / "backup.jsonl", **how)


def exported(kb: KnowledgeBase, path: Path, **how: Any) -> Path:
    kb.backup.export(path, **how)
    return path


def test_documents_are_the_same_elsewhere_and_nothing_is_embedded(origin: Origin, elsewhere: Ground) -> None:
    assert len(origin.lines.read_bytes().splitlines()) == 37
    embedder = CountingEmbedder()
    with elsewhere.open("copy", embedder=embedder) as copy:
        done = copy.backup.import_from(origin.lines)
        assert (done.added, done.unchanged) == (35, 0)
        assert embedder.texts == []
        assert [each.to_json() for each in copy.documents(limit=100)] == origin.listed
        assert answers(copy) == origin.answers
        # Writing the same documents again changes nothing.
        embedder.texts.clear()
        version = copy.version()
        assert copy.upsert(PAGES, owner="sync", chunk_size=600).unchanged == 4
        again = copy.backup.import_from(origin.lines)
        assert (again.added, again.replaced, again.unchanged) == (0, 0, 35)
        assert (copy.version(), embedder.texts) == (version, [])


def test_the_file_is_the_same_however_documents_lie_in_shards(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([*PAGES, *numbered(9)])
        first = exported(kb, ground.folder / "first.jsonl").read_bytes().splitlines()
        kb.maintenance.compact(everything=True)
        second = exported(kb, ground.folder / "second.jsonl").read_bytes().splitlines()
        packed = exported(kb, ground.folder / "third.jsonl.gz")
        assert first[1:-1] == second[1:-1]
        assert gzip.decompress(packed.read_bytes()).splitlines() == second
        stream = io.BytesIO()
        kb.backup.export(stream)
        assert stream.getvalue().splitlines() == second


def test_an_export_is_readable_json_lines(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([placed("one", [0.25] * 16, year=1999)], owner="sync")
        file = exported(kb, ground.folder / "backup.jsonl")
    header, line, trailer = map(json.loads, file.read_text().splitlines())
    assert (header["format"], header["format_version"], header["documents"]) == ("pair-documents", 1, 1)
    assert {name: line[name] for name in ("id", "owner", "text", "metadata")} == {
        "id": "one",
        "owner": "sync",
        "text": "text of one",
        "metadata": {"year": 1999},
    }
    assert base64.b64decode(line["chunks"][0]["vector"]) == b"\x00\x00\x80\x3e" * 16
    content = b"".join(file.read_bytes().splitlines(keepends=True)[:-1])
    assert trailer == {"end": {"documents": 1, "sha256": hashlib.sha256(content).hexdigest()}}


def test_without_vectors_texts_are_embedded_where_they_were_cut(ground: Ground, elsewhere: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(PAGES, chunk_size=600)
        file = exported(kb, ground.folder / "texts.jsonl", vectors=False)
        before, chunks = answers(kb), stats_of(kb).chunks
    embedder = CountingEmbedder()
    with elsewhere.open(embedder=embedder) as copy:
        copy.backup.import_from(file)
        assert len(embedder.texts) == chunks
        assert answers(copy) == before


def test_an_import_adds_and_replaces_by_id(ground: Ground, elsewhere: Ground) -> None:
    file = exported_from(ground, numbered(10))
    with elsewhere.open() as copy:
        copy.upsert([Document("mine", "My own text."), Document("doc-0001", "Older."), *numbered(3, begin=4)])
        done = copy.backup.import_from(file)
        assert (done.added, done.replaced, done.unchanged, done.deleted) == (6, 1, 3, 0)
        assert len(all_ids(copy)) == 11
        assert "number 1" in copy.document("doc-0001").text


def test_replacing_makes_the_kb_exactly_the_file_in_one_swap(ground: Ground, elsewhere: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(20))
        file = exported(kb, ground.folder / "backup.jsonl")
        before = answers(kb)
    other = elsewhere.with_policy(compaction_enabled=False)
    steps: list[str] = []
    with other.open(on_step=steps.append) as copy:
        copy.upsert([*numbered(3, begin=4), *(Document(f"mine-{number}", "Mine.") for number in range(9))])
        steps.clear()
        done = copy.backup.import_from(file, replace_all=True)
        assert (done.added, done.unchanged, done.deleted) == (17, 3, 9)
        assert steps.count("swap") == 1
        assert all_ids(copy) == [f"doc-{number:04}" for number in range(20)]
        assert answers(copy) == before
        version = copy.version()
        assert copy.backup.import_from(file, replace_all=True).unchanged == 20
        assert copy.version() == version


def test_another_embedder_is_refused_unless_texts_are_embedded_again(origin: Origin, elsewhere: Ground) -> None:
    embedder = MirroredEmbedder()
    with elsewhere.open(embedder=embedder) as copy:
        with pytest.raises(errors.UsageError, match="uses the embedder ngram-16-v1") as caught:
            copy.backup.import_from(origin.lines)
        assert caught.value.code == "E226"
        assert copy.stats().manifest_version == 0
        copy.backup.import_from(origin.lines, embed=True)
        assert stats_of(copy).embedder == embedder.name
        assert {each.id: each.owner for each in copy.documents(limit=100)}["page-1"] == "sync"
        assert copy.backup.import_from(origin.lines, embed=True).unchanged == 35
    with elsewhere.open() as back:  # also over one of another embedder
        assert back.backup.import_from(origin.lines, replace_all=True).replaced == 35
        assert answers(back) == origin.answers


def test_vectors_without_a_text_cannot_be_rebuilt(ground: Ground, elsewhere: Ground) -> None:
    file = exported_from(ground, [Document("bare", "", vector=[1.0] * 16)])
    with elsewhere.open(embedder=MirroredEmbedder()) as copy:
        with pytest.raises(errors.UsageError) as caught:
            copy.backup.import_from(file, embed=True)
        assert (caught.value.code, copy.stats().manifest_version) == ("E307", 0)


def test_without_vectors_what_says_nothing_is_refused_too(ground: Ground, elsewhere: Ground) -> None:
    file = exported_from(ground, [Document("bare", "", vector=[1.0] * 16), *numbered(2)], vectors=False)
    with elsewhere.open() as copy, raises_code("E307", errors.UsageError):
        copy.backup.import_from(file)


def sealed(lines: list[bytes]) -> bytes:
    """Return the lines with a valid trailer."""
    content = b"".join(line + b"\n" for line in lines)
    end = {"documents": len(lines) - 1, "sha256": hashlib.sha256(content).hexdigest()}
    return content + json.dumps({"end": end}).encode() + b"\n"


def changed(line: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(line), **fields}).encode()


DAMAGE: dict[str, tuple[str, Callable[[list[bytes]], bytes]]] = {
    "cut in a line": ("E224", lambda lines: b"\n".join(lines)[:-200]),
    "cut between lines": ("E224", lambda lines: b"\n".join(lines[:-1]) + b"\n"),
    "a line missing": ("E224", lambda lines: b"\n".join([*lines[:2], *lines[3:]]) + b"\n"),
    "a bit flipped": ("E224", lambda lines: b"\n".join(lines).replace(b"rivers", b"riveRs", 1) + b"\n"),
    "empty": ("E225", lambda lines: b""),
    "something else": ("E225", lambda lines: b"# Notes\n"),
    "documents for ingest": ("E225", lambda lines: b'{"id": "a", "text": "b"}\n'),
    "newer": ("E225", lambda lines: sealed([changed(lines[0], format_version=2), *lines[1:-1]])),
    "packed and cut": ("E224", lambda lines: gzip.compress(b"\n".join(lines) + b"\n")[:-20]),
    "not in order": ("E225", lambda lines: sealed([lines[0], lines[2], lines[1], *lines[3:-1]])),
    "a chunk outside": (
        "E225",
        lambda lines: sealed([*lines[:-2], changed(lines[-2], chunks=[{"start": 0, "end": 9999}])]),
    ),
    "no hash": ("E225", lambda lines: sealed([*lines[:-2], changed(lines[-2], content_hash="none")])),
    "fewer than said": ("E224", lambda lines: sealed(lines[:-2])),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("replace_all", [False, True])
def test_a_damaged_file_is_refused_and_nothing_changes(tmp_path: Path, damage: str, replace_all: bool) -> None:
    ground = Ground(tmp_path)
    code, spoil = DAMAGE[damage]
    with ground.open() as kb:
        kb.upsert(numbered(6))
        file = exported(kb, tmp_path / "backup.jsonl")
        file.write_bytes(spoil(file.read_bytes().splitlines()))
        kb.upsert([Document("mine", "My own text.")])
        version = kb.version()
        with pytest.raises(errors.PairError) as caught:
            kb.backup.import_from(file, replace_all=replace_all)
        assert (caught.value.code, kb.version()) == (code, version)
        assert len(all_ids(kb)) == 7


def test_a_failed_export_leaves_no_file_and_the_old_one(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.fill(numbered(3))
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "backup.jsonl").write_bytes(b"the last one")
    [search] = ground.stored_files(".search")
    search.chmod(0o600)
    search.write_bytes(b"damaged")
    with ground.open() as kb, raises_code("E207", errors.DataError):
        kb.backup.export(folder / "backup.jsonl")
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("backup.jsonl", b"the last one")]


def test_an_interrupted_export_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "backups"
    folder.mkdir()
    with Ground(tmp_path).open() as kb:
        kb.upsert(numbered(3))
        for name in ("backup.jsonl", "backup.jsonl.gz"):
            (folder / name).write_bytes(b"the last one")
            (folder / f".{name}.123.tmp").write_bytes(b"of a process that was killed")
            with pytest.raises(KeyboardInterrupt):
                kb.backup.export(folder / name, on_progress=interrupt)
            assert (folder / name).read_bytes() == b"the last one"
    assert len(list(folder.iterdir())) == 2


def test_an_interrupted_import_continues_with_the_shards_that_it_built(tmp_path: Path) -> None:
    ground = Ground(tmp_path, build_part_bytes=900, graph="text")
    with ground.open() as kb:
        kb.upsert(numbered(12))
        file = exported(kb, tmp_path / "texts.jsonl", vectors=False)
        before = answers(kb)
    uploads = 0

    def stop(step: str) -> None:
        nonlocal uploads
        uploads += step == "uploaded"
        if uploads == 3:
            raise KeyboardInterrupt

    first, second = CountingEmbedder(), CountingEmbedder()
    with ground.open("copy", embedder=first, on_step=stop) as copy, pytest.raises(KeyboardInterrupt):
        copy.backup.import_from(file)
    with ground.open("copy", embedder=second) as copy:
        assert copy.stats().manifest_version == 0
        copy.backup.import_from(file)
        assert 0 < len(second.texts) < 12
        assert not set(first.texts) & set(second.texts)
        assert answers(copy) == before


def test_changes_that_others_make_meanwhile_do_not_outlive_a_replacement(ground: Ground) -> None:
    with ground.open() as other:
        other.upsert(numbered(9))
        file = exported(other, ground.folder / "backup.jsonl")
        other.delete(["doc-0001"])
        turns = iter([["doc-0002"], ["doc-0003"]])

        def disturb(step: str) -> None:
            if step == "lease" and (gone := next(turns, None)):
                other.delete(gone)

        with ground.open(on_step=disturb) as kb:
            done = kb.backup.import_from(file, replace_all=True)
        assert len(all_ids(other)) == 9
        assert done.added == 3


@pytest.mark.parametrize("replace_all", [False, True])
def test_two_who_import_the_same_at_once_do_not_undo_each_other(ground: Ground, replace_all: bool) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(9))
        file = exported(kb, ground.folder / "backup.jsonl")
        kb.delete(owner="ingest")
        kb.upsert([Document("mine", "My own text.")])
    turns = iter([True])

    with ground.open() as other:

        def disturb(step: str) -> None:
            if step == "lease" and next(turns, False):
                other.backup.import_from(file, replace_all=replace_all)

        with ground.open(on_step=disturb) as kb:
            kb.backup.import_from(file, replace_all=replace_all)
        assert len(all_ids(other)) == (9 if replace_all else 10)
        assert other.maintenance.fsck().is_sound


def test_a_kb_moves_from_a_folder_to_a_bucket_and_back(
    origin: Origin, elsewhere: Ground, s3: S3Server, tmp_path: Path
) -> None:
    """Damage in the bucket is repaired in the bucket."""
    lines = tmp_path / "back.jsonl.gz"
    store = s3.store("transfer")
    with elsewhere.open("in-bucket", store=store) as copy:
        copy.backup.import_from(origin.lines)
        assert answers(copy) == origin.answers
    shutil.rmtree(elsewhere.cache)
    keys = {each.key.rpartition(".")[2]: each.key for each in store.list("in-bucket.duckdb.shards/")}
    store.delete(keys["duckdb"])
    store.put(keys["ids"], b"not this")
    with elsewhere.open("in-bucket", store=s3.store("transfer")) as copy:
        assert len(copy.maintenance.fsck().faults) == 2
        assert copy.maintenance.fsck(repair=True).is_sound
        assert copy.maintenance.fsck().faults == ()
        assert answers(copy) == origin.answers
        copy.backup.export(lines)
    with elsewhere.with_policy(cache_dir=str(tmp_path / "another")).open("home") as home:
        home.backup.import_from(lines)
        assert answers(home) == origin.answers


def test_readers_never_see_half_of_a_replacement(ground: Ground) -> None:
    """A reader between any two requests to the store sees all of the old KB or all of the new one."""
    with ground.open() as kb:
        kb.upsert(numbered(20))
        file = exported(kb, ground.folder / "backup.jsonl")
        kb.delete(owner="ingest")
        kb.upsert([Document(f"mine-{number}", "Mine.") for number in range(5)])
    seen: set[int] = set()
    with ground.open() as reader:

        def look(_operation: str, _key: str) -> Any:
            seen.add(len(reader.documents(limit=100)))
            return "none"

        with ground.open(store=FaultyStore(ground.blobs(), look)) as kb:
            kb.backup.import_from(file, replace_all=True)
    assert seen == {5, 20}


# ── a small cache ──────────────────────────────────────────────────────────────────────────────────


def test_a_kb_that_its_cache_does_not_hold_is_exported_as_any_other(ground: Ground, tmp_path: Path) -> None:
    odd = [Document(each, f"The document {each!a}.") for each in ("\uffff", "\U0001f511", "\ud800", "é", "z", "Z")]
    told: list[tuple[int, int]] = []
    with ground.open() as kb:
        fill(kb)
        kb.upsert(odd)
        kb.backup.export(tmp_path / "whole.jsonl")
        kb.backup.export(tmp_path / "bare.jsonl", vectors=False)
        shards = kb._core.context.manifests.require().manifest.shards
    shutil.rmtree(ground.cache)
    sizes = list(map(count_export_bytes, shards))
    limit = max(sizes) + 1_000  # what is beside the files of a shard takes room too
    assert 3 * limit < sum(sizes)
    with ground.with_policy(cache_max_bytes=limit).open() as kb:
        report = kb.backup.export(tmp_path / "spooled.jsonl", on_progress=lambda *each: told.append(each))
        kb.backup.export(tmp_path / "bare-spooled.jsonl", vectors=False)
        assert sum(path.stat().st_size for path in ground.cache.rglob("*") if path.is_file()) <= limit
    for whole, spooled in (("whole.jsonl", "spooled.jsonl"), ("bare.jsonl", "bare-spooled.jsonl")):
        assert (tmp_path / spooled).read_bytes() == (tmp_path / whole).read_bytes()
    assert told[-1] == (report.documents, report.documents) == (41, 41)
    assert not list(ground.cache.with_name("cache-scratch").iterdir()), "nothing is left beside the cache"


def test_an_empty_kb_is_exported_also_with_a_small_cache(ground: Ground, tmp_path: Path) -> None:
    with ground.with_policy(cache_max_bytes=1_000_000).open() as kb:
        fill(kb)
        kb.delete(all_ids(kb))
        assert kb.backup.export(tmp_path / "empty.jsonl").documents == 0


def test_an_export_uses_the_newest_state_when_shards_are_collected_during_it(ground: Ground, tmp_path: Path) -> None:
    changed: list[bool] = []
    with ground.open() as other:
        fill(other)
        limit = 2 * max(map(count_export_bytes, other._core.context.manifests.require().manifest.shards))

        def interfere(*_: int) -> None:
            if not changed:
                changed.append(True)
                other.upsert([Document("late", "It came late.")])
                other.maintenance.compact(everything=True)
                other.maintenance.collect(grace_seconds=0)
                shutil.rmtree(ground.cache)

        with ground.with_policy(cache_max_bytes=limit).open() as kb:
            report = kb.backup.export(tmp_path / "export.jsonl", on_progress=interfere)
            assert (report.documents, report.manifest_version) == (36, kb.version()[0])
    with Ground(tmp_path / "again").open() as kb:
        assert kb.backup.import_from(tmp_path / "export.jsonl").added == 36
