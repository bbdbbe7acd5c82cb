"""Tests that every blob store must pass.

Name a class `Test…`, make it inherit from `BlobStoreSuite`, and give it a fixture `store` with an empty store. Call
`pytest.register_assert_rewrite("pair.testing")` in `conftest.py`, so that a failure shows the values.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pair.blobs.contract import (
    Blob,
    BlobStore,
    BlobUnchanged,
    Version,
    VersionMismatchError,
    refuse_without_compare_and_swap,
)

KEYS = [
    "a",
    "a/b/c.json",
    "Capital/Letters.JSON",
    "spaces and/percent%20/plus+.txt",
    "punctuation/!\"#$&'()*,:;<=>?@[]^`{|}~",
    "dots/.hidden/..two/three...",
    "other scripts/知識/λ/Ωmega/👩‍🔬.txt",
    "long/" + "/".join(["x" * 100] * 9),
]
NO_KEYS = [
    *("", "/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/."),
    *("nul\0", "line\n", "back\\slash", "x" * 1001, "\ud800"),
]
NOWHERE = Version("no-such-version")


class BlobStoreSuite:
    """The tests of a blob store. Each test needs an empty store."""

    def test_a_stored_blob_is_there(self, store: BlobStore) -> None:
        version = store.put("a/b", b"data")
        assert store.get("a/b") == Blob(b"data", version)

    def test_a_blob_that_was_never_stored_is_missing(self, store: BlobStore, tmp_path: Path) -> None:
        assert store.get("a/b") is None
        assert store.get_range("a/b", 0, 1) is None
        assert store.get_if_changed("a/b", NOWHERE) is None
        assert store.download("a/b", tmp_path / "file") is False
        assert not (tmp_path / "file").exists()
        assert list(store.list("")) == []

    def test_put_replaces(self, store: BlobStore) -> None:
        first = store.put("key", b"first")
        second = store.put("key", b"second")
        assert first != second
        assert store.get("key") == Blob(b"second", second)

    def test_blob_may_be_empty(self, store: BlobStore) -> None:
        version = store.put("key", b"")
        assert store.get("key") == Blob(b"", version)
        assert store.get_range("key", 0, 10) == b""

    @pytest.mark.parametrize("key", KEYS)
    def test_a_key_is_stored_unchanged(self, store: BlobStore, key: str) -> None:
        store.put(key, key.encode())
        blob = store.get(key)
        assert blob is not None
        assert blob.data == key.encode()
        assert [(info.key, info.size_bytes) for info in store.list("")] == [(key, len(key.encode()))]
        store.delete(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("key", NO_KEYS)
    def test_a_key_that_some_stores_cannot_hold_is_refused(self, store: BlobStore, key: str) -> None:
        with pytest.raises(ValueError, match="a key "):
            store.put(key, b"")
        with pytest.raises(ValueError, match="a key "):
            store.get(key)

    def test_similar_keys_are_different_blobs(self, store: BlobStore) -> None:
        keys = ["a", "A", "a/b", "a/b/c", "a.b", "a%2fb", "\u00e9", "e\u0301", "b", "b.", "b.%", "b/a"]
        for key in keys:
            store.put(key, f"of {key}".encode())
        assert {key: blob.data for key in keys if (blob := store.get(key))} == {
            key: f"of {key}".encode() for key in keys
        }
        assert [info.key for info in store.list("")] == sorted(keys)

    def test_unchanged_blob_is_not_sent_again(self, store: BlobStore) -> None:
        first = store.put("key", b"first")
        assert store.get_if_changed("key", first) == BlobUnchanged()
        second = store.put("key", b"other")
        assert store.get_if_changed("key", first) == Blob(b"other", second)
        store.delete("key")
        assert store.get_if_changed("key", second) is None

    def test_quick_changes_of_equal_size_are_all_noticed(self, store: BlobStore) -> None:
        version = store.put("key", b"0000")
        for number in range(1, 30):
            if number % 3 == 0:
                store.delete("key")
            store.put("key", b"%04d" % number)
            changed = store.get_if_changed("key", version)
            assert isinstance(changed, Blob)
            assert changed.data == b"%04d" % number
            version = changed.version

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 3, b"012"),
            (4, 2, b"45"),
            (8, 5, b"89"),
            (10, 5, b""),
            (50, 5, b""),
            (3, 0, b""),
            (0, 100, b"0123456789"),
        ],
    )
    def test_range_ends_where_the_blob_ends(self, store: BlobStore, start: int, length: int, expected: bytes) -> None:
        store.put("key", b"0123456789")
        assert store.get_range("key", start, length) == expected

    def test_a_file_is_stored_and_read_back(self, store: BlobStore, tmp_path: Path) -> None:
        content = bytes(range(256)) * 80_000
        (tmp_path / "in").write_bytes(content)
        version = store.upload("a/file", tmp_path / "in")
        assert store.download("a/file", tmp_path / "out") is True
        assert (tmp_path / "out").read_bytes() == content
        assert store.get_range("a/file", 256 * 70_000, 5) == b"\0\1\2\3\4"
        assert store.get_if_changed("a/file", version) == BlobUnchanged()

    def test_upload_replaces(self, store: BlobStore, tmp_path: Path) -> None:
        before = store.put("key", b"before")
        (tmp_path / "in").write_bytes(b"after")
        version = store.upload("key", tmp_path / "in")
        assert version != before
        assert store.get("key") == Blob(b"after", version)

    def test_download_overwrites_no_file(self, store: BlobStore, tmp_path: Path) -> None:
        store.put("key", b"new")
        (tmp_path / "mine").write_bytes(b"mine")
        with pytest.raises(Exception, match="mine"):
            store.download("key", tmp_path / "mine")
        assert (tmp_path / "mine").read_bytes() == b"mine"

    def test_put_if_replaces_only_the_named_version(self, store: BlobStore) -> None:
        first = store.put("key", b"first")
        second = store.put_if("key", b"second", first)
        with pytest.raises(VersionMismatchError):
            store.put_if("key", b"stale", first)
        assert store.get("key") == Blob(b"second", second)

    def test_put_if_does_not_restore_a_deleted_blob(self, store: BlobStore) -> None:
        version = store.put("key", b"data")
        store.delete("key")
        for known in (version, NOWHERE):
            with pytest.raises(VersionMismatchError):
                store.put_if("key", b"again", known)
        assert store.get("key") is None

    def test_create_writes_only_a_new_blob(self, store: BlobStore) -> None:
        version = store.create("key", b"first")
        with pytest.raises(VersionMismatchError):
            store.create("key", b"second")
        assert store.get("key") == Blob(b"first", version)
        store.delete("key")
        store.create("key", b"third")

    def test_get_and_put_return_the_same_version(self, store: BlobStore) -> None:
        store.create("key", b"first")
        read = store.get("key")
        assert read is not None
        written = store.put_if("key", b"second", read.version)
        assert store.put_if("key", b"third", written) != written

    def test_list_returns_keys_with_a_prefix_in_order(self, store: BlobStore) -> None:
        for key in ["kb/b", "kb/a", "kb-2/a", "kb/shards/1", "kb/shards/10", "kb/shards/2", "Kb/a", "kb"]:
            store.put(key, b"12")
        below = ["kb/a", "kb/b", "kb/shards/1", "kb/shards/10", "kb/shards/2"]
        assert [info.key for info in store.list("kb")] == sorted(["kb", "kb-2/a", *below])
        assert [info.key for info in store.list("kb/")] == below
        assert [info.key for info in store.list("kb/shards/1")] == ["kb/shards/1", "kb/shards/10"]
        for nowhere in ("none/", "/", "kb//", "../", "kb/../"):
            assert list(store.list(nowhere)) == []
        assert {info.size_bytes for info in store.list("")} == {2}

    def test_times_come_from_one_clock(self, store: BlobStore) -> None:
        store.put("first", b"")
        store.put("second", b"")
        times = {info.key: info.modified_at for info in store.list("")}
        assert times["first"] <= times["second"]
        assert all(str(time.tzinfo) == "UTC" for time in times.values())

    def test_deleting_nothing_is_no_error(self, store: BlobStore) -> None:
        store.delete("never/was")
        store.put("a/b", b"")
        store.delete("a/b")
        store.delete("a/b")
        assert store.get("a/b") is None

    def test_one_of_many_writers_creates_a_blob(self, store: BlobStore) -> None:
        wins = _race(8, lambda number: store.create("key", b"%d" % number))
        assert len(wins) == 1
        blob = store.get("key")
        assert blob is not None
        assert blob.data == b"%d" % wins[0]

    def test_one_of_many_writers_replaces_a_version(self, store: BlobStore) -> None:
        version = store.put("key", b"start")
        for round_number in range(3):
            version = _won_once(store, version, b"%d of round " + b"%d" % round_number)

    def test_reader_sees_whole_blobs_while_they_are_replaced(self, store: BlobStore) -> None:
        letters = b"abcdefgh"
        store.put("key", letters[:1] * 100_000)
        is_over = threading.Event()

        def read() -> set[tuple[int, int]]:
            seen = set()
            while not is_over.is_set():
                blob = store.get("key")
                seen.add((len(blob.data), len(set(blob.data))) if blob else (0, 0))
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for number in range(20):
                    store.put("key", letters[number % 8 : number % 8 + 1] * 100_000)
            finally:
                is_over.set()
            assert {shape for reader in readers for shape in reader.result()} <= {(100_000, 1)}

    def test_folders_that_are_made_and_removed_lose_no_blob(self, store: BlobStore) -> None:
        def come_and_go(number: int) -> bool:
            key = f"deep/down/{number}"
            for _ in range(15):
                store.put(key, b"x")
                if store.get(key) is None:
                    return False
                store.delete(key)
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(come_and_go, range(4)))

    def test_probe_finds_compare_and_swap_and_leaves_nothing(self, store: BlobStore) -> None:
        refuse_without_compare_and_swap(store, "kb/", "token-1")
        assert list(store.list("")) == []


def _won_once(store: BlobStore, version: Version, text: bytes) -> Version:
    wins = _race(4, lambda number: store.put_if("key", text % number, version))
    assert len(wins) == 1
    blob = store.get("key")
    assert blob is not None
    assert blob.data == text % wins[0]
    return blob.version


def _race(count: int, write: Callable[[int], Version]) -> list[int]:
    """Start all writers at once. Return the numbers of those that succeeded."""
    barrier = threading.Barrier(count)

    def one(number: int) -> int | None:
        barrier.wait()
        try:
            write(number)
        except VersionMismatchError:
            return None
        return number

    with ThreadPoolExecutor(count) as pool:
        return [number for number in pool.map(one, range(count)) if number is not None]
