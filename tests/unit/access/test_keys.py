"""Keys: made once, kept as hashes, refused when their time is over."""

import datetime
import secrets
from pathlib import Path

import pytest

from pair import errors
from pair.access.keys import KeyFile
from pair.testing.clock import ManualClock


def key_file(folder: Path, clock: ManualClock) -> KeyFile:
    return KeyFile(folder / "deep" / "keys.json", clock, secrets.token_hex)


def test_a_key_is_known_until_it_expires_or_is_revoked(tmp_path: Path):
    clock = ManualClock()
    keys = key_file(tmp_path, clock)
    assert keys.all() == []
    made, text = keys.add("importer", "write", ["b", "a", "b"], datetime.timedelta(days=1))
    lasting, lasting_text = keys.add("dashboard", "read", [], None)
    found = key_file(tmp_path, clock).verified(text)
    assert (found.id, found.scope, found.kbs) == ("key:importer", "write", frozenset({"a", "b"}))
    assert keys.verified(lasting_text).kbs is None
    assert [key.id for key in keys.all()] == [made.id, lasting.id]
    clock.advance(86_400)
    with pytest.raises(errors.AccessError, match="expired"):
        keys.verified(text)
    keys.revoke(lasting.id)
    with pytest.raises(errors.AccessError, match="revoked"):
        keys.verified(lasting_text)


@pytest.mark.parametrize("text", ["", "pair_", "pair_0a1b2c3d4e5f_" + "0" * 64, "\ud800", "x" * 100_000])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str):
    keys = key_file(tmp_path, ManualClock())
    keys.add("someone", "read", [], None)
    with pytest.raises(errors.AccessError, match="not known"):
        keys.verified(text)


def test_a_file_that_is_no_file_of_keys_is_told(tmp_path: Path):
    keys = key_file(tmp_path, ManualClock())
    keys.add("someone", "read", [], None)
    (tmp_path / "deep" / "keys.json").write_text('{"keys": 7}')
    with pytest.raises(errors.UsageError, match="not a file of keys"):
        keys.all()
