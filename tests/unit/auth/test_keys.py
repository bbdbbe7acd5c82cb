"""API keys: shown once, stored as hashes, refused after they expire."""

import datetime
import json
import secrets
from pathlib import Path

import pytest

from pair import errors
from pair.auth.keys import KeyFile
from pair.testing.clock import ManualClock


def key_file(folder: Path, clock: ManualClock) -> KeyFile:
    return KeyFile(folder / "deep" / "keys.json", clock, secrets.token_hex)


def test_a_key_is_known_until_it_expires_or_is_revoked(tmp_path: Path):
    clock = ManualClock()
    keys = key_file(tmp_path, clock)
    assert keys.all() == []
    made, text = keys.add("importer", "write", ["b", "a", "b"], datetime.timedelta(days=1))
    lasting, lasting_text = keys.add("dashboard", "read", [], None)
    found = key_file(tmp_path, clock).authenticate(text)
    assert (found.id, found.scope, found.kbs) == ("key:importer", "write", frozenset({"a", "b"}))
    assert keys.authenticate(lasting_text).kbs is None
    assert [key.id for key in keys.all()] == [made.id, lasting.id]
    clock.advance(86_400)
    with pytest.raises(errors.AccessError, match="expired"):
        keys.authenticate(text)
    keys.revoke(lasting.id)
    with pytest.raises(errors.AccessError, match="revoked"):
        keys.authenticate(lasting_text)


@pytest.mark.parametrize("text", ["", "pair_", "pair_0a1b2c3d4e5f_" + "0" * 64, "\ud800", "x" * 100_000])
def test_an_invalid_key_is_refused(tmp_path: Path, text: str):
    keys = key_file(tmp_path, ManualClock())
    keys.add("someone", "read", [], None)
    with pytest.raises(errors.AccessError, match="not known"):
        keys.authenticate(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"scope": "root"}, {"scope": None}, {"scope": ["admin"]}, {"kbs": "default"}, {"kbs": [7]}, {"kbs": True},
        {"sha256": 7}, {"revoked_at": None}, {"revoked_at": False}, {"expires_at": 7}, {"expires_at": "never"},
        {"colour": "red"}, {"id": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_with_a_malformed_key_gives_no_access(tmp_path: Path, changes: dict[str, object]):
    keys = key_file(tmp_path, ManualClock())
    _, text = keys.add("importer", "write", [], datetime.timedelta(days=1))
    path = tmp_path / "deep" / "keys.json"
    value = json.loads(path.read_bytes())
    path.write_text(json.dumps(value | {"keys": [value["keys"][0] | changes]}))
    for act in (lambda: keys.authenticate(text), keys.all, lambda: keys.add("other", "read", [], None)):
        with pytest.raises(errors.UsageError) as raised:
            act()
        assert raised.value.code == "E401"
    assert json.loads(path.read_bytes())["keys"] == [value["keys"][0] | changes], "nothing was written over it"


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"null", b'{"keys": 7}', b'{"keys": [7]}', b"\xff"])
def test_an_invalid_file_of_keys_is_reported(tmp_path: Path, content: bytes):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "keys.json").write_bytes(content)
    with pytest.raises(errors.UsageError, match=r"not a file of keys"):
        key_file(tmp_path, ManualClock()).all()


def test_a_hash_that_is_not_a_hash_is_that_of_no_key(tmp_path: Path):
    keys = key_file(tmp_path, ManualClock())
    _, text = keys.add("importer", "write", [], None)
    path = tmp_path / "deep" / "keys.json"
    value = json.loads(path.read_bytes())
    value["keys"][0]["sha256"] = "é\ud800"
    path.write_text(json.dumps(value))
    with pytest.raises(errors.AccessError, match="not known"):
        keys.authenticate(text)
