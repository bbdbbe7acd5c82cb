"""The trust store: it counts only if nobody except its owner can write it."""

import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pair import errors
from pair.auth.trust import TrustedFile, TrustStore, resolve_place

PLACE = "/srv/project/config.yaml"


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "home" / ".pair" / "trusted.json")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_bytes_are_trusted_at_their_place_only(store: TrustStore):
    assert not store.trusts(PLACE, b"a")
    store.record(PLACE, digest_of(b"a"))
    assert store.trusts(PLACE, b"a")
    assert not store.trusts(PLACE, b"b")
    assert not store.trusts("/srv/other/config.yaml", b"a")
    store.record(PLACE, digest_of(b"b"))
    assert not store.trusts(PLACE, b"a")
    store.forget(PLACE, "/never/there")
    assert store.entries() == {}


def test_only_the_owner_may_read_and_write_the_store(store: TrustStore):
    old = os.umask(0)
    try:
        store.record(PLACE, "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in store.path.parent.iterdir()) == [".trusted.json.lock", "trusted.json"]


def _link(store: TrustStore) -> None:
    store.path.rename(store.path.with_name("other.json"))
    store.path.symlink_to("other.json")


def _link_folder(store: TrustStore) -> None:
    store.path.parent.rename(store.path.parent.with_name("other"))
    store.path.parent.symlink_to("other")


def _folder(store: TrustStore) -> None:
    store.path.unlink()
    store.path.mkdir()


def _pipe(store: TrustStore) -> None:
    store.path.unlink()
    os.mkfifo(store.path, 0o600)


def _other_user(store: TrustStore) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(store.path, 12345, 12345)


@pytest.mark.parametrize(
    "spoil",
    [
        _link, _link_folder, _folder, _pipe, _other_user,
        lambda store: store.path.chmod(0o620),
        lambda store: store.path.chmod(0o602),
        *(lambda store, content=content: store.path.write_bytes(content) for content in (
            b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"trusted": []}', b'{"trusted": {"a": 7}}',
            b'{"trusted": {"a": [7]}}', b'{"trusted": {"a": {"b": 1}}, "x": \xff}', b" " * 10_000_001,
        )),
    ],
)  # fmt: skip
def test_a_store_that_cannot_be_believed_trusts_nothing_and_is_not_written_over(
    store: TrustStore, spoil: Callable[[TrustStore], None]
):
    store.record(PLACE, digest_of(b"a"))
    spoil(store)
    before = store.path.lstat()
    for act in (lambda: store.trusts(PLACE, b"a"), lambda: store.record(PLACE, "x"), lambda: store.forget(PLACE)):
        with pytest.raises(errors.PairError) as refused:
            act()
        assert refused.value.code in {"E401", "E010"}
    after = store.path.lstat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_many_writers_lose_nothing(store: TrustStore):
    def record(number: int) -> None:
        for step in range(5):
            TrustStore(store.path).record(f"/place/{number}/{step}", str(number))

    threads = [threading.Thread(target=record, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.entries()) == 40


def test_a_place_that_is_not_text_in_utf_8_is_kept(store: TrustStore):
    place = os.fsdecode(b"/srv/caf\xe9/config.yaml")
    store.record(place, digest_of(b"a"))
    assert store.trusts(place, b"a")


def test_a_place_is_known_by_its_folder_and_not_by_the_target_of_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "config.yaml").symlink_to("/etc/passwd")
    monkeypatch.chdir(tmp_path / "link")
    real = os.path.realpath(tmp_path / "real")
    assert resolve_place(Path("config.yaml")) == f"{real}/config.yaml"
    assert resolve_place("./.pair//config.yaml") == f"{real}/.pair/config.yaml"


def test_while_a_file_is_replaced_both_contents_count(store: TrustStore, tmp_path: Path):
    file = TrustedFile(store, tmp_path / "keys.json")
    with file.replacing(None, b"one"):
        assert file.trusts(b"one")
    with file.replacing(b"one", b"two"):
        assert file.trusts(b"one")
        assert file.trusts(b"two")
    assert not file.trusts(b"one")
    assert file.trusts(b"two")


@pytest.mark.parametrize("home", [".", "", "home", "~", "{folder}", "{folder}/home", "{link}", "{link}/home"])
def test_a_store_that_the_folder_could_have_brought_trusts_nothing(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "link").symlink_to("project")
    monkeypatch.chdir(folder)
    path = Path(home.format(folder=folder, link=tmp_path / "link")) / ".pair" / "trusted.json"
    path.parent.mkdir(parents=True)
    content = json.dumps({"version": 1, "trusted": {resolve_place("config.yaml"): [digest_of(b"a")]}})
    path.write_text(content)
    store = TrustStore(path)
    for act in (lambda: store.trusts(resolve_place("config.yaml"), b"a"), lambda: store.record(PLACE, "x")):
        with pytest.raises(errors.UsageError, match="not outside this folder"):
            act()
    assert path.read_text() == content
