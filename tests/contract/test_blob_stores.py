"""One suite for every blob store, and further tests for each of them."""

import dataclasses
import hashlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pair import errors
from pair.blobs.contract import (
    Blob,
    BlobStore,
    BlobUnchanged,
    Version,
    VersionMismatchError,
    refuse_without_compare_and_swap,
)
from pair.blobs.local import LocalStore, MemoryStore, decode_key, encode_key
from pair.blobs.s3 import ObjectStore, ObjectStoreOptions
from pair.testing.blob_suite import KEYS, BlobStoreSuite
from pair.testing.clock import ManualClock
from pair.testing.faulty_store import Arrival, FaultyStore, drawn, planned
from support.bad_proxy import BadProxy, Plan, Trouble
from support.engine_parts import read_blob
from support.errors import raises_code
from support.page_server import PageServer, Reply
from support.ports import free_ports
from support.processes import let_begin, run_at_once, start_ready
from support.s3_server import SECRET_KEY, S3Server

NUMBERS = itertools.count()


class TestMemoryStore(BlobStoreSuite):
    @pytest.fixture
    def store(self) -> BlobStore:
        return MemoryStore(ManualClock())


class TestFaultyStoreWithoutFaults(BlobStoreSuite):
    @pytest.fixture
    def store(self) -> BlobStore:
        return FaultyStore(MemoryStore(ManualClock()), planned([]))


class TestLocalStore(BlobStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        return LocalStore(tmp_path / "a" / "store")


class TestS3Store(BlobStoreSuite):
    @pytest.fixture
    def store(self, s3: S3Server) -> BlobStore:
        return s3.store(f"blobs-{next(NUMBERS)}")


# ── local ──────────────────────────────────────────────────────────────────────────────────────────


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def staged_files(folder: Path) -> list[str]:
    return os.listdir(folder / ".pair-store" / "staged")


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    assert store.get("key") is None
    assert list(store.list("")) == []
    store.delete("key")
    assert not (tmp_path / "store").exists()


def test_ordinary_keys_are_files_of_that_name(tmp_path: Path) -> None:
    LocalStore(tmp_path).put("handbook/shards/0a1b.duckdb", b"")
    assert (tmp_path / "handbook" / "shards" / "0a1b.duckdb").is_file()


@pytest.mark.parametrize(
    "key", [*KEYS, "x" * 1000, "X" * 333, "知" * 333, ("y" * 238) + ".Z" + "z" * 300, "." * 600 + "x"]
)
def test_names_of_a_key_lead_back_to_it(tmp_path: Path, key: str) -> None:
    assert decode_key(encode_key(key)) == key
    assert all(len(name) <= 255 and name == name.lower() and name.isascii() for name in encode_key(key))
    store = LocalStore(tmp_path)
    store.put(key, b"1")
    assert [info.key for info in store.list(key[:3])] == [key]


def test_long_keys_with_equal_beginnings_are_distinguished(tmp_path: Path) -> None:
    keys = ["k" * size for size in (238, 239, 240, 241, 242, 480, 481)]
    keys += [f"{key}/below" for key in keys]
    store = LocalStore(tmp_path)
    for key in keys:
        store.put(key, key.encode())
    assert [info.key for info in store.list("k")] == sorted(keys)
    assert [info.key for info in store.list("k" * 242)] == sorted(key for key in keys if key.startswith("k" * 242))


def test_files_of_others_are_not_blobs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("folder/blob.json", b"")
    for name in (".DS_Store", "README", "folder/Notes.txt", "folder/%zz.txt", "folder/%ff.txt", "folder/x%~"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder" / "link.txt").symlink_to("nowhere")
    assert [info.key for info in store.list("")] == ["folder/blob.json"]


def test_deleting_the_last_blob_of_a_folder_removes_the_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b/c/one", b"")
    store.put("a/two", b"")
    store.delete("a/b/c/one")
    assert sorted(os.listdir(tmp_path / "a")) == ["two.%"]


def test_the_version_of_a_restored_blob_differs_from_the_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    versions = [store.put("key", data) for data in (b"a", b"b", b"a")]
    assert len(set(versions)) == 3
    store.delete("key")
    assert store.create("key", b"a") not in versions


def test_file_put_back_with_its_old_time_is_another_version(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    version = store.put("key.txt", b"1111")
    found = (tmp_path / "key.txt").stat()
    (tmp_path / "key.txt").write_bytes(b"2222")
    os.utime(tmp_path / "key.txt", ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(VersionMismatchError):
        store.put_if("key.txt", b"3333", version)


def test_unchanged_blob_is_not_opened(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    version = store.put("key.txt", b"data")
    (tmp_path / "key.txt").unlink()
    (tmp_path / "key.txt").write_bytes(b"atad")
    mtime_ns = int(version.partition("-")[0], 16)
    os.utime(tmp_path / "key.txt", ns=(mtime_ns, mtime_ns))
    assert store.get_if_changed("key.txt", version) == BlobUnchanged()


def test_open_blob_can_be_read_to_its_end_while_it_is_replaced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("key.txt", b"old")
    with (tmp_path / "key.txt").open("rb") as file:
        store.put("key.txt", b"new")
        assert file.read() == b"old"


def test_a_refusal_of_the_file_system_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("E010", errors.StorageError) as raised:
        LocalStore(tmp_path / "file").put("key", b"")
    assert str(tmp_path / "file") in raised.value.message


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files fails a write in the middle, as a full disk does.
    program = """
import resource, signal, sys
from pathlib import Path
from pair import errors
from pair.blobs.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
store.put("key", b"before")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put("key", bytes(200_000))
except errors.StorageError as fault:
    print(fault.code)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout == "E010\n"
    assert read_blob(LocalStore(tmp_path), "key") == b"before"
    assert staged_files(tmp_path) == []


COUNTER = """
import sys
import tempfile
from pathlib import Path
from pair.blobs.contract import VersionMismatchError
from pair.blobs.local import LocalStore
store, rounds = LocalStore(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    while True:
        blob = store.get("counter.txt")
        try:
            if blob is None:
                store.create("counter.txt", b"1")
            else:
                store.put_if("counter.txt", b"%d" % (int(blob.data) + 1), blob.version)
            break
        except VersionMismatchError:
            continue
"""


def test_eight_processes_count_together_and_lose_nothing(tmp_path: Path) -> None:
    run_at_once(*[start_ready(COUNTER, tmp_path, 40) for _ in range(8)])
    assert read_blob(LocalStore(tmp_path), "counter.txt") == b"320"
    assert staged_files(tmp_path) == []


WRITER = """
import sys
import tempfile
from pathlib import Path
from pair.blobs.local import LocalStore
store, numbers = LocalStore(Path(sys.argv[1])), iter(range(1000000))
print("ready", flush=True)
sys.stdin.readline()
for number in numbers:
    version = store.put("blob.txt", b"%d" % (number % 10) * 300_000)
    print(number, flush=True)
"""


@pytest.mark.parametrize("after_writes", [1, 2, 5, 9])
def test_killed_writer_leaves_a_whole_blob_and_no_lock(tmp_path: Path, after_writes: int) -> None:
    process = start_ready(WRITER, tmp_path)
    let_begin(process)
    assert process.stdout is not None
    for _ in range(after_writes):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = LocalStore(tmp_path)
    found = store.get("blob.txt")
    assert found is not None
    assert len(found.data) == 300_000
    assert len(set(found.data)) == 1
    assert [info.key for info in store.list("")] == ["blob.txt"]
    assert staged_files(tmp_path) == []
    store.put_if("blob.txt", b"next", found.version)


STALLED = """
import sys
import tempfile
from pathlib import Path
from pair.blobs.local import LocalStore
source = Path(sys.argv[2])
print("ready", flush=True)
LocalStore(Path(sys.argv[1])).upload("blob.txt", source)
"""


def test_staged_files_of_a_live_writer_stay_and_those_of_a_dead_one_are_removed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start_ready(STALLED, tmp_path / "store", pipe)
    with pipe.open("wb", buffering=0) as source:  # opens when the writer reads from the other end
        source.write(b"half of it")
        while not (tmp_path / "store" / ".pair-store" / "staged").is_dir() or not staged_files(tmp_path / "store"):
            threading.Event().wait(0.01)
        store = LocalStore(tmp_path / "store")
        store.put("other.txt", b"")
        assert [info.key for info in store.list("")] == ["other.txt"]
        assert len(staged_files(tmp_path / "store")) == 1
        process.kill()
        process.communicate()
    list(store.list(""))
    assert staged_files(tmp_path / "store") == []


def test_big_file_goes_through_a_local_store_in_little_memory(tmp_path: Path) -> None:
    assert peak_of_a_big_file(LocalStore(tmp_path / "store"), tmp_path) < 12_000_000


def peak_of_a_big_file(store: BlobStore, folder: Path) -> int:
    with (folder / "in").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    tracemalloc.start()
    try:
        store.upload("big", folder / "in")
        store.download("big", folder / "out")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert (folder / "out").stat().st_size == 64 * 1024 * 1024


# ── S3 ─────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_count_together_on_s3_and_lose_nothing(s3: S3Server) -> None:
    store = s3.store("counter")
    store.create("counter", b"0")

    def count(_: int) -> None:
        for _ in range(10):
            while True:
                blob = store.get("counter")
                assert blob is not None
                try:
                    store.put_if("counter", b"%d" % (int(blob.data) + 1), blob.version)
                except VersionMismatchError:
                    continue
                break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert read_blob(store, "counter") == b"40"


def test_stores_with_prefixes_do_not_see_each_other(s3: S3Server) -> None:
    s3.store("one").put("key", b"1")
    assert s3.store("on").get("key") is None
    assert list(s3.store("on").list("")) == []
    assert s3.store("one/").address == "s3://blobs/one"


def test_big_file_goes_through_s3_in_little_memory(s3: S3Server, tmp_path: Path) -> None:
    assert peak_of_a_big_file(s3.store("big"), tmp_path) < 80_000_000


def error_of(store: BlobStore) -> errors.StorageError:
    with pytest.raises(errors.StorageError) as raised:
        store.put("key", b"")
    for act in (
        lambda: store.get("key"),
        lambda: store.create("key", b""),
        lambda: store.put_if("key", b"", Version('"1"')),
        lambda: list(store.list("")),
        lambda: store.get_range("key", 0, 1),
        lambda: store.get_if_changed("key", Version('"1"')),
    ):
        with raises_code(raised.value.code, errors.StorageError):
            act()
    return raised.value


def test_wrong_secret_is_reported_but_not_shown(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = ObjectStoreOptions(
        endpoint_url=s3.options.endpoint_url,
        access_key_id=s3.options.access_key_id,
        secret_access_key=SECRET_KEY + "-wrong",
        region="us-east-1",
    )
    error = error_of(ObjectStore("s3://blobs/x", options))
    assert error.code == "E206"
    assert error.explanation.startswith("The server answered 403 Forbidden (SignatureDoesNotMatch).")
    assert SECRET_KEY not in f"{error.to_json()} {error.__cause__} {options} {caplog.text}"


def test_credentials_may_come_from_the_environment(s3: S3Server) -> None:
    program = """
import sys
import tempfile
from pair.blobs.s3 import ObjectStore, ObjectStoreOptions
ObjectStore("s3://blobs/environment", ObjectStoreOptions(endpoint_url=sys.argv[1])).put("key", b"data")
"""
    names = {"AWS_ACCESS_KEY_ID": s3.options.access_key_id, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    command = [sys.executable, "-c", program, s3.options.endpoint_url]
    subprocess.run(command, check=True, env={**os.environ, **names, "AWS_REGION": "us-east-1"})
    assert read_blob(s3.store("environment"), "key") == b"data"


def test_missing_bucket_is_an_error_and_not_an_empty_store(s3: S3Server) -> None:
    store = ObjectStore("s3://no-such-bucket/x", s3.options)
    with pytest.raises(errors.StorageError, match="no-such-bucket") as raised:
        store.get("key")
    assert raised.value.code == "E206"


def quick(endpoint_url: str, *, request_seconds: float = 5.0) -> ObjectStore:
    options = ObjectStoreOptions(
        endpoint_url=endpoint_url,
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
        retries=1,
        request_seconds=request_seconds,
    )
    return ObjectStore("s3://blobs/x", options)


def test_absent_server_is_reported() -> None:
    error = error_of(quick(f"http://127.0.0.1:{free_ports(1)[0]}"))
    assert (error.code, error.details["address"]) == ("E206", "s3://blobs/x")
    assert error.explanation.startswith("The connection was refused.")


def test_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = error_of(quick(f"http://127.0.0.1:{listener.getsockname()[1]}", request_seconds=0.2))
    assert error.code == "E206"
    assert error.explanation.startswith("The server did not answer in time.")


@pytest.mark.parametrize(
    ("status", "name", "code", "explanation"),
    [
        (503, b"SlowDown", "E206", "The server answered 503 Service Unavailable (SlowDown)."),
        (507, b"XMinioStorageFull", "E010", ""),
        (403, b"RequestTimeTooSkewed", "E206", "The clock of this machine is too far from that of the server"),
    ],
    ids=["it fails", "it is full", "it does not accept the clock"],
)
def test_an_unexpected_answer_of_the_server_is_reported(status: int, name: bytes, code: str, explanation: str) -> None:
    with PageServer() as server:
        server.pages["/blobs/x/key"] = Reply(status=status, body=b"<Error><Code>" + name + b"</Code></Error>")
        with raises_code(code, errors.StorageError) as raised:
            quick(server.url("")).get("key")
    assert raised.value.explanation.startswith(explanation)


def through(proxy: BadProxy, s3: S3Server, prefix: str) -> ObjectStore:
    return ObjectStore(f"s3://blobs/{prefix}", dataclasses.replace(s3.options, endpoint_url=proxy.url))


def once(trouble: Trouble) -> Plan:
    """Return a plan with this fault for the next request, and none for later ones."""
    troubles: list[Trouble] = [trouble]
    return lambda _method, _path: troubles.pop() if troubles else "none"


def test_lost_answer_to_a_conditional_write_is_unknown_and_never_a_conflict(s3: S3Server) -> None:
    direct = s3.store("lossy")
    with BadProxy(s3.options.endpoint_url) as proxy:
        store = through(proxy, s3, "lossy")
        proxy.plan = once("lose answer")
        with raises_code("E206", errors.StorageError):
            store.create("key", b"first")
        landed = direct.get("key")
        assert landed is not None
        assert landed.data == b"first"
        proxy.plan = once("lose answer")
        with raises_code("E206", errors.StorageError):
            store.put_if("key", b"second", landed.version)
        proxy.plan = once("lose answer")
        assert read_blob(store, "key") == b"second"


def test_an_upload_that_is_damaged_in_transit_is_sent_again(s3: S3Server, tmp_path: Path) -> None:
    direct, content = s3.store("sent-again"), b"as it was written " * 1000
    (tmp_path / "file").write_bytes(content)
    with BadProxy(s3.options.endpoint_url) as proxy:
        store = through(proxy, s3, "sent-again")
        proxy.plan = once("corrupt request")
        assert direct.get("put") is None
        assert Blob(content, store.put("put", content)) == direct.get("put")
        proxy.plan = once("corrupt request")
        assert Blob(content, store.upload("uploaded", tmp_path / "file")) == direct.get("uploaded")


def test_an_upload_that_is_damaged_each_time_is_not_stored(s3: S3Server) -> None:
    direct, content = s3.store("damaged"), b"as it was written " * 1000
    before = Blob(content, direct.put("key", content))
    with BadProxy(s3.options.endpoint_url) as proxy:
        store = through(proxy, s3, "damaged")
        proxy.plan = lambda _method, _path: "corrupt request"
        refused: list[Callable[[], object]] = [
            lambda: store.put("other", content),
            lambda: store.create("other", content),
            lambda: store.put_if("key", b"another", before.version),
        ]
        for write in refused:
            count = len(proxy.passed)
            with raises_code("E206", errors.StorageError):
                write()
            assert len(proxy.passed) - count <= 1 + s3.options.retries
    assert direct.get("other") is None
    assert direct.get("key") == before


@pytest.mark.parametrize("address", ["file:///tmp", "memory:///", "https://example.com/b", "bucket", "az://container"])
def test_address_that_is_not_an_object_store_is_refused(address: str) -> None:
    with raises_code("E401", errors.UsageError):
        ObjectStore(address)


# ── probe ──────────────────────────────────────────────────────────────────────────────────────────


class CarelessStore(MemoryStore):
    """A store that ignores some conditions of writes, as some S3-compatible servers do."""

    def __init__(self, *careless: str) -> None:
        super().__init__(ManualClock())
        self._careless = careless

    def create(self, key: str, data: bytes) -> Version:
        return self.put(key, data) if "create" in self._careless else super().create(key, data)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        is_ignored = "put_if" in self._careless or ("gone" in self._careless and self.get(key) is None)
        return self.put(key, data) if is_ignored else super().put_if(key, data, version)

    def get(self, key: str) -> Blob | None:
        found = super().get(key)
        return Blob(found.data, Version("always")) if found and "version" in self._careless else found


@pytest.mark.parametrize(
    ("careless", "reason"),
    [
        ("create", "created twice"),
        ("put_if", "had not seen its latest version"),
        ("gone", "created it again"),
        ("version", "not what is read"),
    ],
)
def test_store_that_ignores_a_condition_is_refused(careless: str, reason: str) -> None:
    store = CarelessStore(careless)
    with raises_code("E209", errors.StorageError) as raised:
        refuse_without_compare_and_swap(store, "kb/", "token")
    assert reason in raised.value.explanation
    assert list(store.list("")) == []


def test_probe_of_a_store_that_cannot_be_reached_is_that_error() -> None:
    store = FaultyStore(MemoryStore(ManualClock()), planned(["after"]))
    with raises_code("E206", errors.StorageError):
        refuse_without_compare_and_swap(store, "kb/", "token")
    assert list(store.list("")) == []


def test_probe_of_a_store_that_is_sent_everything_twice_finds_no_fault() -> None:
    store = FaultyStore(MemoryStore(ManualClock()), planned(["twice"] * 20))
    refuse_without_compare_and_swap(store, "kb/", "token")
    assert list(store.list("")) == []


# ── the faulty store ───────────────────────────────────────────────────────────────────────────────


def test_faults_come_as_planned() -> None:
    calls: list[str] = []
    memory = MemoryStore(ManualClock())
    store = FaultyStore(
        memory, planned(["before", "after", "twice", "delay"], only=["create"]), on_delay=lambda: calls.append("late")
    )
    for key, is_there in (("a", False), ("b", True)):
        with pytest.raises(errors.StorageError):
            store.create(key, b"")
        assert (memory.get(key) is not None) is is_there
    with pytest.raises(VersionMismatchError):
        store.create("c", b"")
    assert memory.get("c") is not None
    store.create("d", b"")
    assert calls == ["late"]
    store.create("e", b"")


def test_writes_arrive_after_their_answer_in_any_order(tmp_path: Path) -> None:
    in_flight: list[Arrival] = []
    memory = MemoryStore(ManualClock())
    store = FaultyStore(memory, planned(["late", "late", "again"]), on_late=in_flight.append)
    for content in (b"first", b"second"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(errors.StorageError):
            store.upload("key", tmp_path / "file")
        (tmp_path / "file").unlink()
    assert memory.get("key") is None
    store.create("other", b"")
    memory.delete("other")
    for arrive in reversed(in_flight):
        arrive()
    assert [blob.data for key in ("key", "other") if (blob := memory.get(key))] == [b"first", b""]


def test_write_that_is_refused_on_arrival_affects_no_other_writer() -> None:
    in_flight: list[Arrival] = []
    memory = MemoryStore(ManualClock())
    store = FaultyStore(memory, planned(["again", "late"]), on_late=in_flight.append)
    store.create("key", b"")
    with pytest.raises(errors.StorageError):
        store.get("key")
    (arrive,) = in_flight
    arrive()
    assert memory.get("key") == store.get("key")


class Sequence:
    """A random generator that returns these numbers."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


def test_faults_are_drawn_in_the_share_that_was_asked_for() -> None:
    plan = drawn(Sequence(0.0, 0.24, 0.26, 0.49, 0.5, 0.99), share=0.5, kinds=["before", "after"])
    assert [plan("get", "key") for _ in range(6)] == ["before", "before", "after", "after", "none", "none"]


# ── files that a folder makes its own ──────────────────────────────────────────────────────────────


def test_a_file_that_is_taken_is_stored_as_if_it_was_uploaded(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "in"
    content = b"of a shard" * 1000
    path.write_bytes(content)
    version = store.link("a/key", path, hashlib.sha256(content).hexdigest())
    path.unlink()
    found = store.get("a/key")
    assert found is not None
    assert (found.data, found.version) == (content, version)
    assert store.put_if("a/key", b"other", version)
    assert files_below(tmp_path / "store" / ".pair-store" / "staged") == []


def test_taking_a_file_replaces_what_is_there_and_times_ascend(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path / "store"), tmp_path / "in"
    before = store.put("key", b"one")
    path.write_bytes(b"two")
    os.utime(path, (1, 1))
    version = store.link("key", path, hashlib.sha256(b"two").hexdigest())
    changed = store.get_if_changed("key", before)
    assert isinstance(changed, Blob)
    assert (changed.data, changed.version) == (b"two", version)


def test_a_file_on_another_disk_is_copied(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        path = Path(elsewhere) / "in"
        path.write_bytes(b"far away")
        store = LocalStore(tmp_path / "store")
        store.link("key", path, hashlib.sha256(b"far away").hexdigest())
        assert read_blob(store, "key") == b"far away"


def test_a_missing_file_cannot_be_linked(tmp_path: Path) -> None:
    with raises_code("E010", errors.StorageError):
        LocalStore(tmp_path / "store").link("key", tmp_path / "nowhere", "0" * 64)


@pytest.mark.parametrize("address", ["gs://bucket/kbs", "az://container/kbs"])
def test_other_clouds_are_named_by_their_addresses(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening sends no request, so that this works without a network."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    store = ObjectStore(address, ObjectStoreOptions())
    assert store.address == address
    store.close()
