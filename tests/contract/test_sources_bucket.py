"""Buckets as sources: a real S3 server, and a folder as a store."""

from pathlib import Path
from typing import Any

import pytest

from pair.blobs.contract import BlobStore
from pair.blobs.local import LocalStore
from pair.blobs.s3 import ObjectStore, ObjectStoreOptions
from pair.sources.bucket import BucketSource
from pair.sources.contract import Complete, Cursor, Event, Failed, Item, SourceFault, Unchanged
from support.s3_server import S3Server


@pytest.fixture(params=["s3", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3")
    return server.store(f"sources-{tmp_path.name}")


def read(store: BlobStore, cursor: Any = None) -> list[Event]:
    return list(BucketSource(store, "docs/", 100).read(cursor))


def test_objects_are_read_when_their_version_changes(store: BlobStore) -> None:
    store.put("docs/a.md", b"a")
    store.put("docs/sub/b.html", b"<p>b")
    store.put("docs/c.md", b"c")
    store.put("docs/empty", b"")
    store.put("docs/large.md", bytes(101))
    store.put("other/d.md", b"d")
    first = read(store)
    cursor = first[-2]
    assert first == [
        Item("docs/a.md", b"a", "a.md"),
        Item("docs/c.md", b"c", "c.md"),
        Failed("docs/large.md", "longer than 100 bytes"),
        Item("docs/sub/b.html", b"<p>b", "b.html"),
        cursor,
        Complete(),
    ]
    assert isinstance(cursor, Cursor)
    store.put("docs/a.md", b"another a")
    store.delete("docs/c.md")
    assert read(store, cursor.value)[:-2] == [
        Unchanged("docs/sub/b.html"),
        Item("docs/a.md", b"another a", "a.md"),
        Failed("docs/large.md", "longer than 100 bytes"),
    ]


def test_an_object_that_did_not_change_is_not_read(store: BlobStore) -> None:
    store.put("docs/a.md", b"a")
    cursor = read(store)[-2]
    assert isinstance(cursor, Cursor)
    assert read(store, cursor.value) == [Unchanged("docs/a.md"), cursor, Complete()]


def test_a_store_that_cannot_be_reached_is_named_and_nothing_is_deleted() -> None:
    options = ObjectStoreOptions(
        endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key_id="a", secret_access_key="b", retries=0
    )
    events: list[Event] = []
    with pytest.raises(SourceFault) as raised:
        events.extend(read(ObjectStore("s3://blobs/docs", options)))
    assert events == []
    assert "s3://blobs/docs" in str(raised.value)
