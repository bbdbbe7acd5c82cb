"""Blobs in S3 and compatible stores, through the obstore library (extra `[s3]`).

`s3://bucket/prefix` is tested against real servers. `gs://` and `az://` use the same code, and are untested.

Invariants
    A conditional write is sent once. A retry after a lost answer would fail because of its own success.
    Writes to S3 carry their SHA-256, so the server refuses data that was damaged in transit.
    Errors do not repeat the server's response, which may contain a session token.
"""

import contextlib
import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore
import obstore.store
from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError

from pair import errors, files
from pair.blobs.contract import Blob, BlobInfo, BlobUnchanged, Version, VersionMismatchError, find_folder
from pair.values import check_key

_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_DAMAGED = {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"}
"""Error codes of servers for content with a wrong checksum."""
_FULL = {"507", "QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity"}
_SCHEMES = ("s3://", "gs://", "az://")


@dataclass(frozen=True, slots=True)
class ObjectStoreOptions:
    """Options of an object store. Empty ones come from the environment (`AWS_…`) or the role of the machine.

    Endpoint, region and credentials apply to S3. For `gs://` and `az://` they come from the environment.
    """

    endpoint_url: str = ""
    """Address of an S3-compatible server; empty for Amazon S3."""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    connect_seconds: float = 5.0
    request_seconds: float = 30.0
    """Maximum time of a conditional write; for other requests, maximum time without new bytes: big blobs are slow."""
    retries: int = 3
    """Retries of requests, except conditional writes."""


class ObjectStore:
    """A bucket or a prefix in it, as a blob store."""

    def __init__(self, address: str, options: ObjectStoreOptions | None = None) -> None:
        """Create a store at `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. Raises E401."""
        options = options or ObjectStoreOptions()
        self.address = address.rstrip("/")
        self._retries = options.retries
        # Google compares generations, the others compare ETags.
        self._version_field = "version" if address.startswith("gs:") else "e_tag"
        seconds = datetime.timedelta(seconds=options.request_seconds)
        day = datetime.timedelta(days=1)
        self._patient = _client(self.address, options, options.retries, {"read_timeout": seconds, "timeout": day})
        self._once = _client(self.address, options, 0, {"timeout": seconds})

    def get(self, key: str) -> Blob | None:
        with contextlib.suppress(FileNotFoundError), self._translate_errors():
            return self._read(key, {})
        return None

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        with contextlib.suppress(FileNotFoundError), self._translate_errors():
            if self._version_field == "version":
                known = obstore.head(self._patient, check_key(key))["version"]
                return BlobUnchanged() if known == version else self._read(key, {})
            try:
                return self._read(key, {"if_none_match": str(version)})
            except NotModifiedError:
                return BlobUnchanged()
        return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), self._translate_errors():
            try:
                if length > 0:
                    return bytes(obstore.get_range(self._patient, check_key(key), start=start, length=length))
            except FileNotFoundError:
                raise
            except BaseError:
                # Servers refuse a range after the end, each with its own message.
                if start < obstore.head(self._patient, key)["size"]:
                    raise
                return b""
            obstore.head(self._patient, check_key(key))
            return b""
        return None

    def download(self, key: str, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError), self._translate_errors():
            result = obstore.get(self._patient, check_key(key))
            with files.storage_errors():
                files.write_new_file(path, self._stream(result, result.meta["size"]))
            return True
        return False

    def put(self, key: str, data: bytes) -> Version:
        with self._translate_errors():
            return self._write(key, data)

    def upload(self, key: str, path: Path) -> Version:
        with files.storage_errors(), path.open("rb"):
            pass  # Raises E010 for the file before any error of the store.
        with self._translate_errors():
            return self._write(key, path)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        return self._write_once(key, data, {self._version_field: str(version)})

    def create(self, key: str, data: bytes) -> Version:
        return self._write_once(key, data, "create")

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        # The library lists only whole folders, and some servers do not list in the order of keys.
        folder = find_folder(prefix)
        if folder is None:
            return iter(())
        with self._translate_errors():
            batches = [*obstore.list(self._patient, prefix="/".join(folder) or None)]
        blobs = [
            BlobInfo(
                meta["path"], meta["size"], meta["last_modified"].astimezone(datetime.UTC), meta[self._version_field]
            )
            for batch in batches
            for meta in batch
            if meta["path"].startswith(prefix)
        ]
        return iter(sorted(blobs, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._translate_errors():
            obstore.delete(self._patient, check_key(key))

    def close(self) -> None:
        """Do nothing: the library closes idle connections."""

    def _read(self, key: str, options: "obstore.GetOptions") -> Blob:
        result = obstore.get(self._patient, check_key(key), options=options)
        return Blob(bytes(result.bytes()), self._version(result.meta))

    def _stream(self, result: "obstore.GetResult", size_bytes: int) -> Iterator[bytes]:
        try:
            for piece in result.stream(min_chunk_size=files.CHUNK_BYTES):
                size_bytes -= len(piece)
                yield bytes(piece)
        except FileNotFoundError:
            raise errors.store_unreachable(self.address, "The blob was deleted while it was read") from None
        if size_bytes:
            raise errors.store_unreachable(self.address, "The answer ended before the blob was complete")

    def _write(self, key: str, content: bytes | Path) -> Version:
        """Write a blob. Retry after damage in transit, which the library treats as a client error."""
        for retries_left in range(self._retries, -1, -1):
            try:
                result = obstore.put(
                    self._patient, check_key(key), content, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
                )
                break
            except BaseError as fault:
                if not retries_left or not any(f"<Code>{code}</Code>" in str(fault) for code in _DAMAGED):
                    raise
        return self._version(result)

    def _write_once(self, key: str, data: bytes, mode: Any) -> Version:
        with self._translate_errors():
            try:
                return self._version(obstore.put(self._once, check_key(key), data, mode=mode))
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as fault:
                if "NoSuchBucket" in str(fault):
                    raise
                raise VersionMismatchError(key) from None

    def _version(self, meta: Any) -> Version:
        if version := meta[self._version_field]:
            return Version(version)
        raise errors.store_without_compare_and_swap(self.address, "it does not return the versions of blobs")

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise E206 for errors of the store, E010 if it is full. A missing blob stays a FileNotFoundError."""
        try:
            yield
        except FileNotFoundError as fault:
            if "NoSuchBucket" in str(fault):
                raise errors.store_unreachable(self.address, "There is no such bucket") from None
            raise
        except BaseError as fault:
            reason = _reason(str(fault))
            if any(word in reason for word in _FULL):
                raise errors.storage_failed(self.address, "the store is full") from None
            raise errors.store_unreachable(self.address, reason) from None


def _client(address: str, options: ObjectStoreOptions, retries: int, limits: Mapping[str, datetime.timedelta]) -> Any:
    client_options: Any = {**limits, "connect_timeout": datetime.timedelta(seconds=options.connect_seconds)}
    if options.endpoint_url.startswith("http:"):
        client_options["allow_http"] = True
    try:
        if not address.startswith(_SCHEMES):
            raise ValueError(address)
        return obstore.store.from_url(
            address,
            config=_s3_config(options) if address.startswith("s3:") else None,
            client_options=client_options,
            retry_config={
                "max_retries": retries,
                "retry_timeout": 2 * datetime.timedelta(seconds=options.request_seconds),
            },
        )
    except (BaseError, ValueError):
        # The message of the library may contain a secret.
        raise errors.settings_invalid(
            address,
            "this is not the address of an object store, or a setting of its provider is missing",
            hints=["Write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"],
        ) from None


def _s3_config(options: ObjectStoreOptions) -> Any:
    """Return the settings that are not empty: the library does not ignore empty ones."""
    config = {
        "endpoint": options.endpoint_url,
        "region": options.region,
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
        "session_token": options.session_token,
        # Some S3-compatible servers cannot delete many blobs at once.
        "disable_bulk_delete": True,
        "checksum_algorithm": "SHA256",
    }
    return {name: value for name, value in config.items() if value}


def _reason(text: str) -> str:
    """Describe an error without repeating the request or the response."""
    if status := re.search(r"status code: (\d{3}[A-Za-z ]*)", text):
        code = re.search(r"<Code>(\w+)</Code>", text)
        if code and code[1] == "RequestTimeTooSkewed":
            return "The clock of this machine is too far from that of the server"
        return f"The server answered {status[1].strip()}" + (f" ({code[1]})" if code else "")
    for sign, reason in _SIGNS.items():
        if sign in text:
            return reason
    return "The request failed"


_SIGNS = {
    "Connection refused": "The connection was refused",
    "ConnectionRefused": "The connection was refused",
    "dns error": "The host name cannot be resolved",
    "certificate": "The certificate of the server is not trusted",
    "TimedOut": "The server did not answer in time",
    "timed out": "The server did not answer in time",
    "onnection reset": "The connection was closed",
    "onnection closed": "The connection was closed",
    "IncompleteMessage": "The connection was closed",
    "169.254.169.254": "No credentials were found",
}
