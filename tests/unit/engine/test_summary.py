"""Facts about a KB that its manifest shows."""

from pathlib import Path

import pytest

from pair.engine.summary import list_kbs, peek, peek_at_history
from support.engine_parts import Ground, numbered

MANIFEST = "default.duckdb.manifest.json"


def test_the_head_of_a_manifest_names_its_number_and_shards(tmp_path: Path) -> None:
    ground = Ground(tmp_path, keep_versions=5)
    store = ground.blobs()
    assert (peek(store, "default"), list_kbs(store)) == (None, [])
    with ground.open() as kb:
        kb.upsert(numbered(3))
        kb.upsert(numbered(5))
        stats = kb.stats()
    head = peek(store, "default")
    assert head is not None
    assert (head.number, head.index_sha256, len(head.shards)) == (2, "", stats.shards)
    assert {each.number for each in peek_at_history(store, "default")} == {1, 2}
    assert list_kbs(store) == ["default"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"version": "2", "shards": 3}'])
def test_a_damaged_manifest_has_no_number_and_no_shards(tmp_path: Path, content: bytes) -> None:
    store = Ground(tmp_path).blobs()
    store.put(MANIFEST, content)
    head = peek(store, "default")
    assert head is not None
    assert (head.number, head.index_sha256, head.shards) == (None, "", frozenset())
