"""Keys and signatures, with the real minisign and with hostile files."""

import base64
import dataclasses
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from pair import errors, files
from pair.packages import package, signing
from pair.packages.package import Label
from pair.packages.rules import read_key_id
from pair.packages.signing import PublicKey, SecretKey, TrustedKeys
from support.minisign import PASSWORD, Keys

TEXT = b"What was signed.\n" * 100


def no_password() -> str:
    raise AssertionError("no password should be requested")


def secret_of(keys: Keys, password: str = "") -> SecretKey:
    return signing.parse_secret_key(keys.secret.read_bytes(), (lambda: password) if password else no_password)


def public_of(keys: Keys) -> PublicKey:
    return signing.parse_public_key(keys.public.read_bytes())


def trusting(*keys: Keys, is_required: bool = True) -> TrustedKeys:
    return TrustedKeys([public_of(each) for each in keys], is_required=is_required)


def refusal_of(trusted: TrustedKeys, path: Path, signature: bytes | None) -> errors.PairError:
    with pytest.raises(errors.DataError) as refused:
        trusted.signer_of(path, signature, path.name)
    assert refused.value.code == "E017"
    return refused.value


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines()


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    path = tmp_path / "kb.zip"
    path.write_bytes(TEXT)
    return path


# ── with minisign ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [(), ("-l",)], ids=["prehashed", "legacy"])
def test_we_accept_what_minisign_signed(keys: Keys, signed: Path, options: tuple[str, ...]) -> None:
    signature = keys.sign(signed, *options, comment="for all the world").read_bytes()
    signer = trusting(keys).signer_of(signed, signature, "kb.zip")
    assert signer is not None
    assert (signer.key, signer.key_id, signer.comment) == (keys.line, keys.id, "for all the world")


def test_a_file_larger_than_a_chunk_and_an_empty_one_are_signed_and_accepted(keys: Keys, tmp_path: Path) -> None:
    for name, content in (("large", random.Random(3).randbytes(3 * files.CHUNK_BYTES + 1)), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        ours = signing.sign(path, secret_of(keys), "ours")
        path.with_name(f"{name}.minisig").write_bytes(ours)
        assert keys.accepts(path)
        assert trusting(keys).signer_of(path, keys.sign(path).read_bytes(), name) is not None


def test_keys_are_called_as_minisign_calls_them(keys: Keys, encrypted: Keys) -> None:
    assert public_of(keys).id == secret_of(keys).public.id == read_key_id(keys.line) == keys.id
    assert secret_of(encrypted, PASSWORD).public == public_of(encrypted)
    assert public_of(keys).line == keys.line


def test_the_name_of_a_key_has_no_zeros_before_it(keys: Keys) -> None:
    assert PublicKey(bytes([8, 7, 6, 5, 4, 3, 2, 1]), public_of(keys).key).id == "102030405060708"


def test_a_package_that_was_replaced_is_not_signed(keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "a.md").write_text("A.")
    made = package.make_package(tmp_path / "kb", tmp_path / "kb.zip", label=Label(), dated=None)
    made.path.write_bytes(b"not what was packaged")
    with pytest.raises(errors.UsageError, match="before it was signed"):
        signing.sign_package(made, secret_of(keys))
    assert not made.path.with_name("kb.zip.minisig").exists()


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_public_key_is_a_line_a_file_or_a_path(keys: Keys) -> None:
    expected = public_of(keys)
    assert signing.parse_public_key(keys.line.encode()) == expected
    assert signing.parse_public_key(keys.public.read_bytes().replace(b"\n", b"\r\n")) == expected
    assert signing.read_public_key(keys.line) == expected
    assert signing.read_public_key(str(keys.public)) == expected


@pytest.mark.parametrize("named", ["", ".", "no-such-file.pub", "RWQ", "a" * 56, "x" * 5000, "\udcff"])
def test_an_invalid_public_key_is_refused(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="neither a public key nor a file"):
        signing.read_public_key(named)


def test_a_secret_key_is_not_a_public_one_nor_the_other_way_round(keys: Keys) -> None:
    with pytest.raises(ValueError, match="not a public key"):
        signing.parse_public_key(keys.secret.read_bytes())
    with pytest.raises(ValueError, match="not a secret key"):
        signing.parse_secret_key(keys.public.read_bytes(), no_password)


@pytest.mark.parametrize(("password", "reason"), [("wrong", "password is wrong"), ("", "no password was given")])
def test_a_wrong_and_a_missing_password_are_distinguished(encrypted: Keys, password: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        signing.parse_secret_key(encrypted.secret.read_bytes(), lambda: password)


def with_secret(keys: Keys, start: int, value: bytes) -> bytes:
    """Return the file of a secret key with some changed bytes."""
    comment, line = lines_of(keys.secret.read_bytes())
    raw = bytearray(base64.b64decode(line))
    raw[start : start + len(value)] = value
    return comment + b"\n" + base64.b64encode(raw) + b"\n"


@pytest.mark.parametrize(
    ("start", "value", "reason"),
    [
        pytest.param(0, b"Xx", "unsupported kind", id="algorithm"),
        pytest.param(2, b"Ar", "unsupported kind", id="kdf"),
        pytest.param(4, b"SH", "unsupported kind", id="checksum"),
        pytest.param(38, b"\xff" * 8, "too much time or memory", id="endless"),
        pytest.param(46, b"\xff" * 8, "too much time or memory", id="huge"),
        pytest.param(38, bytes(16), "password is wrong", id="cheap"),
        pytest.param(60, b"\0\0\0\0", "password is wrong", id="secret"),
    ],
)
def test_a_hostile_secret_key_is_refused_in_a_moment(encrypted: Keys, start: int, value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        signing.parse_secret_key(with_secret(encrypted, start, value), lambda: PASSWORD)


def test_memory_that_the_time_does_not_suffice_for_is_not_used(encrypted: Keys) -> None:
    content = with_secret(encrypted, 46, (2**30).to_bytes(8, "little"))
    assert signing.parse_secret_key(content, lambda: PASSWORD) == secret_of(encrypted, PASSWORD)


def test_halves_of_two_secret_keys_are_not_a_key(keys: Keys) -> None:
    with pytest.raises(ValueError, match="do not match"):
        signing.parse_secret_key(with_secret(keys, 62, b"other seed"), no_password)


def test_the_secret_is_not_shown(keys: Keys) -> None:
    secret = secret_of(keys)
    assert repr(secret.seed) not in repr(secret)


# ── signatures that do not count ───────────────────────────────────────────────────────────────────


def test_a_key_that_took_the_name_of_another_counts_for_nothing(keys: Keys, others: Keys, signed: Path) -> None:
    forged = dataclasses.replace(secret_of(others), number=public_of(keys).number)
    refused = refusal_of(trusting(keys), signed, signing.sign(signed, forged, "trust me"))
    assert "not the one that was signed" in refused.message
    both = TrustedKeys([forged.public, public_of(keys)], is_required=True)
    signer = both.signer_of(signed, keys.sign(signed).read_bytes(), "kb.zip")
    assert signer is not None
    assert signer.key == keys.line


@pytest.mark.parametrize("options", [(), ("-l",)], ids=["prehashed", "legacy"])
def test_a_changed_file_is_refused(keys: Keys, signed: Path, options: tuple[str, ...]) -> None:
    signature = keys.sign(signed, *options).read_bytes()
    for changed in (TEXT[:-1], TEXT + b"\n", b"", b"x" + TEXT[1:]):
        signed.write_bytes(changed)
        assert "not the one that was signed" in refusal_of(trusting(keys), signed, signature).message


def test_the_hash_of_a_file_signed_the_old_way_is_not_a_signature_of_the_file(keys: Keys, signed: Path) -> None:
    """The two kinds of signatures must not be interchangeable: a signed file could pass as the hash of another one."""
    hash_file = signed.with_name("hash")
    hash_file.write_bytes(hashlib.blake2b(TEXT).digest())
    lines = lines_of(keys.sign(hash_file, "-l").read_bytes())
    raw = base64.b64decode(lines[1])
    assert trusting(keys).signer_of(hash_file, b"\n".join(lines), "hash") is not None
    refusal_of(trusting(keys), signed, b"\n".join(lines))
    lines[1] = base64.b64encode(b"XX" + raw[2:])
    refusal_of(trusting(keys), signed, b"\n".join(lines))


def test_every_byte_below_the_untrusted_comment_counts(keys: Keys, signed: Path) -> None:
    content = signing.sign(signed, secret_of(keys), "name:kb")
    trusted = trusting(keys)
    for at in range(content.index(b"\n"), len(content) - 1):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        refusal_of(trusted, signed, changed)


def test_a_changed_trusted_comment_is_refused_and_an_untrusted_one_is_not(keys: Keys, signed: Path) -> None:
    content = signing.sign(signed, secret_of(keys), "version:1.0.0")
    refused = refusal_of(trusting(keys), signed, content.replace(b"version:1.0.0", b"version:9.0.0"))
    assert "trusted comment was changed" in refused.message
    _, *others = lines_of(content)
    said = b"\n".join([b"untrusted comment: anything \x1b[2J", *others])
    assert trusting(keys).signer_of(signed, said, "kb.zip") is not None


def test_a_trusted_comment_is_shown_without_what_a_terminal_would_obey(keys: Keys, signed: Path) -> None:
    content = signing.sign(signed, secret_of(keys), "first\x1b[2J\tlast\u202e")
    signer = trusting(keys).signer_of(signed, content, "kb.zip")
    assert signer is not None
    assert signer.comment == "first [2J last"


GARBAGE: list[Any] = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\n\n\n\n", id="lines"),
    pytest.param(b"<html><body>Not found</body></html>", id="page"),
    pytest.param(bytes(range(256)) * 300, id="bytes"),
    pytest.param(b"untrusted comment: \n\ntrusted comment: \n\n", id="hollow"),
    pytest.param(b"untrusted comment: a\n====\ntrusted comment: b\n====\n", id="padding"),
    pytest.param("untrusted comment: ü\nÄÖÜ\ntrusted comment: ß\n\n".encode("utf-16"), id="utf-16"),
]


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_is_refused(keys: Keys, signed: Path, content: bytes) -> None:
    assert "there is none" not in refusal_of(trusting(keys), signed, content).message


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda lines: lines[:3], id="cut"),
        pytest.param(lambda lines: [*lines, b"more"], id="longer"),
        pytest.param(lambda lines: [lines[1], lines[0], *lines[2:]], id="turned"),
        pytest.param(lambda lines: [lines[0] + b"x" * 1100, *lines[1:]], id="long untrusted comment"),
        pytest.param(lambda lines: [*lines[:2], lines[2] + b"x" * 9000, lines[3]], id="long trusted comment"),
        pytest.param(lambda lines: [lines[0], lines[1] + b"AAAA", *lines[2:]], id="long signature"),
        pytest.param(lambda lines: [*lines[:3], lines[3][:-4]], id="short signature"),
    ],
)
def test_a_signature_of_another_shape_is_refused(keys: Keys, signed: Path, spoil: Any) -> None:
    lines = lines_of(keys.sign(signed).read_bytes())
    refusal_of(trusting(keys), signed, b"\n".join(spoil(lines)) + b"\n")
