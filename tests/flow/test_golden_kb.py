"""KBs of earlier versions can be opened, searched, changed and maintained: see tests/golden/README.md."""

import shutil
from pathlib import Path

import pytest

from pair.engine.settings import EngineSettings
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.settings import Settings
from pair.values import MODES, Document
from support.engine_parts import CountingEmbedder, all_ids, ids_of, stats_of

GOLDEN = Path(__file__).parents[1] / "golden"
UNICODE_ID = "книга/№ 1 – ünïcödé 📚"  # noqa: RUF001 - as it is stored
IDS = sorted(
    [
        *(f"doc-{number:02}" for number in range(14) if number not in {5, 6}),
        UNICODE_ID,
        "naïve id\twith a tab",
        "placed",
        "synced.md",
    ]
)

pytestmark = pytest.mark.rule("engine-32")


@pytest.fixture(params=["kb-v1"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    shutil.unpack_archive(GOLDEN / request.param / "store.zip", tmp_path / "store")
    return Settings(
        engine=EngineSettings(
            store=str(tmp_path / "store"),
            cache_dir=str(tmp_path / "cache"),
            embedder="ngram",
            keep_versions=0,
            embedding_dimension=32,
            chunk_size_bytes=120,
            shard_trigger_vector_rows=12,
            max_vector_rows_per_shard=6,
            compaction_enabled=False,
        )
    )


@pytest.fixture
def kb(settings: Settings) -> KnowledgeBase:
    return open_kb("golden", settings=settings)


def assert_found_in_all_modes(kb: KnowledgeBase) -> None:
    for mode in MODES:
        hits = kb.search("windmills rewritten", mode=mode, limit=3)
        assert hits[0].document_id == "doc-03", mode
        assert not hits.partial
    assert ids_of(kb.search("Grüße Hafen", mode="keyword", limit=1)) == ["naïve id\twith a tab"]
    assert "doc-05" not in ids_of(kb.search("item5", mode="hybrid", limit=20, exact=True)), "it was deleted"
    linux = kb.search("package of your distribution", mode="keyword", limit=1)[0]
    assert linux.document_id == UNICODE_ID
    assert kb.document(UNICODE_ID).text[linux.start : linux.end] == linux.text


def test_a_kb_of_an_earlier_version_is_listed_and_found_in(kb: KnowledgeBase) -> None:
    with kb:
        stats = stats_of(kb)
        assert (stats.documents, stats.shards, stats.embedder) == (len(IDS), 8, "ngram-32-v1")
        assert all_ids(kb) == IDS
        assert_found_in_all_modes(kb)
        assert UNICODE_ID in ids_of(kb.search("Tinker Workshop", mode="graph", limit=5))
        assert ids_of(kb.search("page", filter={"place.shelf": 2, "odd": False}, limit=9, mode="keyword")) == [
            "doc-08",
            "doc-10",
        ]
        assert kb.search_vector([0.5] * 4 + [0.0] * 28, limit=1)[0].document_id == "placed"
        stored = kb.document("doc-04")
        assert (stored.title, stored.url) == ("Page 4", "https://kb.example/pages/4")
        assert stored.metadata == {"number": 4, "subject": "engines", "odd": False, "place": {"shelf": 1}}
        assert kb.document("naïve id\twith a tab").metadata == {"tags": ["é", 2, None]}
        assert [each.id for each in kb.documents(owner="sync")] == ["synced.md"]


def test_documents_of_an_earlier_version_cost_nothing_when_they_are_stored_again(settings: Settings) -> None:
    embedder = CountingEmbedder(32)
    same = Document("naïve id\twith a tab", "Grüße aus dem Hafen.", metadata={"tags": ["é", 2, None]})
    with open_kb("golden", settings=settings, embedder=embedder) as kb:
        assert kb.upsert([same]).unchanged == 1
    assert embedder.texts == []


def test_a_kb_of_an_earlier_version_is_written_to_and_compacted(kb: KnowledgeBase) -> None:
    with kb:
        report = kb.upsert([Document("doc-04", "Page 4 is new."), Document("new", "A page that was not there.")])
        assert (report.added, report.replaced) == (1, 1)
        assert kb.delete(["doc-07"]).deleted == 1
        after = sorted([*IDS, "new"])
        after.remove("doc-07")
        assert all_ids(kb) == after
        assert kb.maintenance.compact(everything=True).documents == len(after)
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards >= 8
        assert all_ids(kb) == after
        assert_found_in_all_modes(kb)
        assert kb.document("doc-04").text == "Page 4 is new."


def test_a_kb_of_an_earlier_version_is_re_embedded(settings: Settings) -> None:
    with open_kb("golden", settings=settings, embedder=CountingEmbedder(48)) as kb:
        assert kb.maintenance.reembed().documents == len(IDS)
        assert all_ids(kb) == IDS
        assert_found_in_all_modes(kb)


def test_it_is_sound_and_survives_export_and_import(kb: KnowledgeBase, settings: Settings, tmp_path: Path) -> None:
    assert kb.maintenance.fsck().is_sound
    kb.backup.export(tmp_path / "backup.jsonl")
    with open_kb("copy", settings=settings) as copy:
        copy.backup.import_from(tmp_path / "backup.jsonl")
        assert all_ids(copy) == IDS
        assert_found_in_all_modes(copy)
