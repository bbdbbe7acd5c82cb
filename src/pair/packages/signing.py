"""Keys and signatures of minisign: Ed25519 over the BLAKE2b hash of a file, and a signed comment.

The module is loaded only to sign or to check a signature.
Invariants
    A signature counts only if both halves are valid: that of the file and that of the trusted comment.
    Unreadable input of any kind is refused with a reason.
"""

import base64
import binascii
import hashlib
import hmac
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pair import errors, files
from pair.packages.package import PackageReport
from pair.packages.rules import MANIFEST_SUFFIX, SIGNATURE_SUFFIX, format_key_id

_LEGACY = b"Ed"
_PREHASHED = b"ED"
_SCRYPT = b"Sc"
_UNENCRYPTED = b"\0\0"
_BLAKE2B = b"B2"
_UNTRUSTED = b"untrusted comment: "
_TRUSTED = b"trusted comment: "
_MOST_UNTRUSTED_BYTES = 1024
_MOST_TRUSTED_BYTES = 8192
_MOST_KEY_BYTES = 4096
_MOST_LEGACY_BYTES = 1024**3
"""Maximum size of a file that is read into memory; minisign has the same limit."""
_MOST_KDF_BYTES = 1024**3
_MOST_KDF_OPERATIONS = 2**26
"""Maximum cost of a password: twice the default of minisign; more would only be slow."""


@dataclass(frozen=True)
class PublicKey:
    number: bytes
    key: bytes

    @property
    def line(self) -> str:
        return base64.b64encode(_LEGACY + self.number + self.key).decode()

    @property
    def id(self) -> str:
        return format_key_id(self.number)


@dataclass(frozen=True)
class SecretKey:
    number: bytes
    seed: bytes = field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.number, Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw())


@dataclass(frozen=True)
class Signature:
    algorithm: bytes
    number: bytes
    of_file: bytes
    comment: bytes
    of_comment: bytes


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def parse_public_key(content: bytes) -> PublicKey:
    """Parse a key, alone or below a comment. Raises ValueError with a readable reason."""
    lines = _split_lines(content)
    if len(lines) == 2 and lines[0].startswith(_UNTRUSTED):
        del lines[0]
    if len(lines) != 1:
        raise ValueError("it is not a public key of minisign")
    value = _decode(lines[0], 42, "it is not a public key of minisign")
    if value[:2] != _LEGACY:
        raise ValueError("it is an unsupported kind of key")
    return PublicKey(value[2:10], value[10:])


def read_public_key(named: str) -> PublicKey:
    """Return a key, given itself or the path of its file. Raises ValueError with a readable reason."""
    try:
        return parse_public_key(named.encode("utf-8", errors="surrogateescape"))
    except ValueError:
        path = files.expand_path(named)
    try:
        with path.open("rb") as stream:
            return parse_public_key(stream.read(_MOST_KEY_BYTES))
    except (OSError, ValueError) as fault:
        reason = files.describe_os_error(fault) if isinstance(fault, OSError) else str(fault)
        raise ValueError(f"neither a public key nor a file that holds one: {reason}") from fault


def parse_secret_key(content: bytes, password: Callable[[], str]) -> SecretKey:
    """Parse a secret key. `password`: called only for an encrypted key. Raises ValueError with a readable reason."""
    lines = _split_lines(content[: _MOST_KEY_BYTES + 1])
    if len(lines) != 2 or not lines[0].startswith(_UNTRUSTED):
        raise ValueError("it is not a secret key of minisign")
    value = _decode(lines[1], 158, "it is not a secret key of minisign")
    kinds, salt, secret = value[:6], value[6:38], value[54:]
    if kinds not in {_LEGACY + _SCRYPT + _BLAKE2B, _LEGACY + _UNENCRYPTED + _BLAKE2B}:
        raise ValueError("it is an unsupported kind of key")
    if kinds[2:4] == _SCRYPT:
        operations, memory_bytes = (int.from_bytes(value[start : start + 8], "little") for start in (38, 46))
        costs = _scrypt_costs(operations, memory_bytes)
        if not (given := password()):
            raise ValueError("it is encrypted, and no password was given")
        secret = _decrypt(secret, given, salt, costs)
    number, seed, key, checksum = secret[:8], secret[8:40], secret[40:72], secret[72:]
    # An unencrypted key carries no checksum.
    expected = hashlib.blake2b(_LEGACY + secret[:72], digest_size=32).digest()
    if kinds[2:4] == _SCRYPT and not hmac.compare_digest(checksum, expected):
        raise ValueError("the password is wrong, or the key is damaged")
    secret_key = SecretKey(number, seed)
    if secret_key.public.key != key:
        raise ValueError("its secret and public parts do not match")
    return secret_key


def parse_signature(content: bytes) -> Signature:
    """Parse a `.minisig`. Raises ValueError with a readable reason."""
    lines = _split_lines(content)
    if len(lines) != 4 or not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
        raise ValueError("it is not a signature of minisign")
    comment = lines[2].removeprefix(_TRUSTED)
    if len(lines[0]) > len(_UNTRUSTED) + _MOST_UNTRUSTED_BYTES or len(comment) > _MOST_TRUSTED_BYTES:
        raise ValueError("its comment is too long")
    value = _decode(lines[1], 74, "it is damaged")
    if value[:2] not in {_LEGACY, _PREHASHED}:
        raise ValueError("it is an unsupported kind of signature")
    return Signature(value[:2], value[2:10], value[10:], comment, _decode(lines[3], 64, "it is damaged"))


def _split_lines(content: bytes) -> list[bytes]:
    """Split lines with any line end; drop empty lines at the end."""
    return [line.rstrip(b"\r") for line in content.rstrip(b"\r\n").split(b"\n")]


def _decode(line: bytes, size: int, otherwise: str) -> bytes:
    try:
        value = base64.b64decode(line, validate=True)
    except binascii.Error:
        value = b""
    if len(value) != size or base64.b64encode(value) != line:
        raise ValueError(otherwise)
    return value


# ── encrypted keys ─────────────────────────────────────────────────────────────────────────────────


def _scrypt_costs(operations: int, memory_bytes: int) -> tuple[int, int]:
    """Return N and p of scrypt for r = 8, computed as libsodium does."""
    if operations > _MOST_KDF_OPERATIONS or memory_bytes > _MOST_KDF_BYTES:
        raise ValueError("opening it would take too much time or memory")
    operations = max(operations, 32768)
    is_short_of_time = operations < memory_bytes // 32
    most = operations // 32 if is_short_of_time else memory_bytes // 1024
    exponent = next(power for power in range(1, 63) if 2**power > most // 2)
    repeats = 1 if is_short_of_time else operations // 4 // 2**exponent // 8
    if repeats < 1:
        raise ValueError("it is damaged")
    return 2**exponent, repeats


def _decrypt(secret: bytes, password: str, salt: bytes, costs: tuple[int, int]) -> bytes:
    cost, repeats = costs
    needed_bytes = 128 * 8 * (cost + repeats + 2) + 1024 * 1024
    try:
        stream = hashlib.scrypt(
            password.encode("utf-8", errors="surrogateescape"),
            salt=salt,
            n=cost,
            r=8,
            p=repeats,
            maxmem=needed_bytes,
            dklen=len(secret),
        )
    except (ValueError, MemoryError) as fault:
        raise ValueError(f"opening it needs {needed_bytes:,} bytes of memory") from fault
    return bytes(left ^ right for left, right in zip(secret, stream, strict=True))


# ── signing ────────────────────────────────────────────────────────────────────────────────────────


def read_secret_key(path: Path, ask_password: Callable[[], str]) -> SecretKey:
    """Read a secret key from its file. Raises E024."""
    try:
        with path.open("rb") as stream:
            return parse_secret_key(stream.read(_MOST_KEY_BYTES), ask_password)
    except OSError as fault:
        raise errors.key_unusable(str(path), files.describe_os_error(fault)) from fault
    except ValueError as fault:
        raise errors.key_unusable(str(path), str(fault)) from fault


def sign_package(report: PackageReport, key: SecretKey) -> None:
    """Write the signatures of a package and of the manifest beside it, if there is one."""
    with files.storage_errors():
        manifest, manifest_path = report.manifest, report.path.with_name(report.path.name + MANIFEST_SUFFIX)
        label = [f"name:{manifest.name[:500]}", f"version:{manifest.version[:500]}"]
        comment = "\t".join([*label, f"content:sha256:{manifest.content_checksum}"])
        signed = [(report.path, sign(report.path, key, comment, sha256=report.sha256))]
        if manifest_path.exists():
            signed.append((manifest_path, sign(manifest_path, key, comment)))
        beside = [(files.resolve_parent(path), text) for path, text in signed]
        files.write_together(*((path.with_name(path.name + SIGNATURE_SUFFIX), text) for path, text in beside))


def sign(path: Path, key: SecretKey, comment: str, *, sha256: str | None = None) -> bytes:
    """Return the `.minisig` of a file. Raises E014 if its SHA-256 differs from the given one."""
    blake2b, actual = hashlib.blake2b(), hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(files.CHUNK_BYTES):
            blake2b.update(chunk)
            actual.update(chunk)
    if sha256 is not None and actual.hexdigest() != sha256:
        raise errors.cannot_package(str(path), "another process replaced it before it was signed")
    return sign_digest(blake2b.digest(), key, comment)


def sign_digest(blake2b: bytes, key: SecretKey, comment: str) -> bytes:
    """Return the `.minisig` of content with this BLAKE2b hash."""
    private = Ed25519PrivateKey.from_private_bytes(key.seed)
    of_file, trusted = private.sign(blake2b), comment.encode()
    lines = [
        _UNTRUSTED + f"signature by key {key.public.id}".encode(),
        base64.b64encode(_PREHASHED + key.number + of_file),
        _TRUSTED + trusted,
        base64.b64encode(private.sign(of_file + trusted)),
    ]
    return b"\n".join(lines) + b"\n"


# ── checking ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Signer:
    """The owner of a valid signature."""

    key: str
    """The public key on one line, in the format of minisign."""
    key_id: str
    comment: str
    """The trusted comment, on one line."""


class TrustedKeys:
    """The keys whose signatures are accepted."""

    def __init__(self, keys: Sequence[PublicKey], *, is_required: bool) -> None:
        self.is_required = is_required
        self._keys = tuple(keys)

    def accepts(self, key: str | None) -> bool:
        """Return whether a signature by this key, or a missing one (None), is accepted."""
        return not self.is_required if key is None else any(key == trusted.line for trusted in self._keys)

    def signer_of(self, content: Path | bytes, signature: bytes | None, shown: str) -> Signer | None:
        """Return the signer of a file or of bytes; None if unsigned and no signature is required. Raises E017."""
        if signature is None:
            self.refuse_unsigned(shown, "it is missing")
            return None
        try:
            parsed = parse_signature(signature)
        except ValueError as fault:
            raise self._refusal(shown, str(fault)) from fault
        candidates = [key for key in self._keys if key.number == parsed.number]
        if not candidates:
            raise self._refusal(shown, "it was made with another key", parsed)
        message = _read_message(content, parsed)
        if message is None:
            raise self._refusal(shown, "pair cannot check this kind for a file of this size", parsed)
        for key in candidates:
            if _is_valid(key, parsed.of_file, message):
                if not _is_valid(key, parsed.of_comment, parsed.of_file + parsed.comment):
                    raise self._refusal(shown, "its trusted comment was changed", parsed)
                # A terminal would interpret control characters.
                text = parsed.comment.decode("utf-8", errors="replace")
                words = "".join(character if character.isprintable() else " " for character in text).split()
                return Signer(key.line, key.id, " ".join(words))
        raise self._refusal(shown, "the file is not the one that was signed", parsed)

    def refuse_unsigned(self, shown: str, reason: str) -> None:
        """Raise E017 if a signature is required."""
        if self.is_required:
            raise self._refusal(shown, reason)

    def _refusal(self, shown: str, reason: str, signature: Signature | None = None) -> errors.DataError:
        signed_by = format_key_id(signature.number) if signature is not None else ""
        return errors.signature_refused(shown, reason, signed_by, [key.id for key in self._keys])


def _read_message(content: Path | bytes, signature: Signature) -> bytes | None:
    """Return the signed message: the hash of the content, or all of it. None if it is too large for that."""
    with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as stream:
        if signature.algorithm == _PREHASHED:
            return hashlib.file_digest(stream, hashlib.blake2b).digest()
        message = stream.read(_MOST_LEGACY_BYTES + 1)
        return message if len(message) <= _MOST_LEGACY_BYTES else None


def _is_valid(key: PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key.key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
