"""Downloads of archives over HTTP, whole or in ranges: checksum, progress, resume, verification; E005, E006.

Invariants
    Received bytes stay in the part file after any crash, and are not fetched again while the server has the same file.
    A result is returned only if its length is the announced one and its SHA-256 the published one, if there is one.
    All ranges of a file are of one version of it.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import httpx2
import msgspec

from pair import errors, files
from pair.network import RequestFault, Result
from pair.packages import rules
from pair.packages.cache import Facts, Validators
from pair.packages.content import Observer, discard_part, note_path
from pair.packages.partial_download import ChangedError, RemotePackage
from pair.values import parse_json
from pair.web.http_client import BodyError, HttpClient, unpack_body

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 256 * 1024
_PROGRESS_WORTH_ANOTHER_TRY_BYTES = 1024 * 1024
_CHECKSUM_LIMIT_BYTES = 64 * 1024
_TAIL_BYTES = 32 * 1024
"""Size of the end of an archive that is read first: it contains the directory."""


@dataclass(frozen=True)
class _RemoteHead:
    """The headers of a file before its download."""

    size_bytes: int | None = None
    validators: Validators = field(default_factory=Validators)

    def describes(self, known: Facts) -> bool:
        """Return whether this is still the known file. A published checksum may be older than the file.

        Without comparable headers a conditional request decides; without its validators, the checksum.
        """
        here, there = self.validators, known.validators
        pairs = [
            (here.etag, there.etag),
            (here.last_modified, there.last_modified),
            (self.size_bytes, known.size_bytes or None),
        ]
        matches = [one == other for one, other in pairs if one is not None and other is not None]
        return all(matches) if matches else not there.conditions()


@dataclass(frozen=True)
class Downloader:
    """The downloader of archives over HTTP."""

    web: HttpClient
    settings: rules.SourcesSettings
    observer: Observer

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: Facts | None) -> Facts | None:
        """Download into `part`; return None if the known file is current. `sha256`: published by the release index."""
        try:
            head = self._look(url)
            expected = sha256 or self._fetch_checksum(url)
            if known is not None and expected == known.identity and (sha256 is not None or head.describes(known)):
                logger.debug("checksum unchanged", extra={"url": rules.hide_credentials(url)})
                return None
            if expected is None:
                shown = rules.hide_credentials(url)
                if self.settings.require_checksum:
                    reason = "No SHA-256 is published for it, and sources.require_checksum is set"
                    raise self._checksum_error(f"File: {shown}", reason)
                self.observer.say(f"unverified: no SHA-256 is published for {shown}")
            conditions = known.validators.conditions() if known is not None else {}
            transfer = _Transfer(self, url, part, conditions, head.size_bytes, is_checked=expected is not None)
            download = self._transfer_verified(transfer, expected)
        except RequestFault as fault:
            raise errors.download_failed(rules.hide_credentials(url), fault.reason) from fault
        if download is None and known is not None and expected not in {None, known.identity}:
            raise self._mismatch(url, expected, known.identity)
        return download

    def parts(self, url: str, *, sha256: str | None) -> RemotePackage | None:
        """Return an archive that can be read in ranges; None for any other. Raises E005, E006."""
        manifest_url = rules.append_suffix(url, rules.MANIFEST_SUFFIX)
        try:
            answer = self.web.read(manifest_url, {}, limit_bytes=rules.MANIFEST_LIMIT_BYTES)
            if answer.status != 200:
                return None
            expected = sha256 or self._fetch_checksum(url)
            if expected is None:
                return None
            file = open_ranges(self.web, url, self.observer)
            if file is not None and file.size_bytes > self.settings.max_download_bytes:
                raise _too_large(url, self.settings.max_download_bytes)
            # A publisher also replaces the files beside an archive. If the checksum changed, the manifest is not valid.
            if file is None or (sha256 is None and self._fetch_checksum(url) != expected):
                return None
            return RemotePackage(answer.body, expected, file, file.validators)
        except RequestFault as fault:
            raise errors.download_failed(rules.hide_credentials(url), fault.reason) from fault

    def signature(self, url: str) -> bytes | None:
        """Return the `.minisig` beside an archive, if there is one. Raises E005 for a temporary fault, else E017."""
        address = rules.append_suffix(url, rules.SIGNATURE_SUFFIX)
        try:
            return self._read_if_any(address, rules.SIGNATURE_LIMIT_BYTES)
        except RequestFault as fault:
            if fault.retryable or not fault.was_reached:
                raise errors.download_failed(rules.hide_credentials(address), fault.reason) from fault
            reason = f"it cannot be read: {fault.reason}"
            raise errors.signature_refused(rules.hide_credentials(url), reason, "", []) from fault

    def _read_if_any(self, address: str, limit_bytes: int) -> bytes | None:
        """Return a small file; None if there is none. Raises RequestFault."""
        answer = self.web.read(address, {}, limit_bytes=limit_bytes)
        if answer.status in {404, 410}:
            return None
        if answer.status != 200:
            raise RequestFault(f"HTTP {answer.status}")
        return answer.body

    def _look(self, url: str) -> _RemoteHead:
        """Request the headers with HEAD. Accept a server without HEAD, and one that announces a length of 0."""

        def attempt() -> _RemoteHead:
            with self.web.open("HEAD", url, {"Accept-Encoding": "identity"}) as response:
                if not response.is_success:
                    return _RemoteHead()
                return _RemoteHead(_content_length(response) or None, _validators(response))

        try:
            head = self.web.retry_policy.run(attempt, self.observer.say)
        except RequestFault as fault:
            if fault.was_reached:
                logger.debug("no HEAD", extra={"reason": fault.reason})
                return _RemoteHead()
            raise
        if head.size_bytes is not None and head.size_bytes > self.settings.max_download_bytes:
            raise _too_large(url, self.settings.max_download_bytes)
        return head

    def _fetch_checksum(self, url: str) -> str | None:
        address = rules.append_suffix(url, ".sha256")
        subject = f"Checksum file: {rules.hide_credentials(address)}"
        try:
            content = self._read_if_any(address, _CHECKSUM_LIMIT_BYTES)
        except RequestFault as fault:
            raise self._checksum_error(subject, f"It cannot be read: {fault.reason}") from fault
        if content is None:
            return None
        checksum = rules.parse_checksum(content.decode("utf-8", errors="replace"), _file_name(url))
        if checksum is None:
            raise self._checksum_error(subject, "It holds no SHA-256 for this archive")
        return checksum

    def _transfer_verified(self, transfer: "_Transfer", expected: str | None) -> Facts | None:
        download = transfer.run()
        is_wrong = download is not None and expected not in {None, download.identity}
        if is_wrong and transfer.was_resumed:
            self.observer.say("the resumed download does not match its checksum: starting over")
            transfer.discard()
            download = transfer.run()
        if download is None:
            return None
        if expected is None:
            transfer.check_announced_length()
            return download
        if download.identity != expected:
            transfer.discard()
            raise self._mismatch(transfer.url, expected, download.identity)
        return msgspec.structs.replace(download, verified=True)

    def _mismatch(self, url: str, expected: str, actual: str) -> errors.DownloadError:
        hashes = [f"Expected SHA-256: {expected}", f"Actual SHA-256:   {actual}"]
        return self._checksum_error(f"File: {rules.hide_credentials(url)}", hashes)

    def _checksum_error(self, subject: str, reason: str | list[str]) -> errors.DownloadError:
        return errors.checksum_failed(subject, reason, cache=self.settings.cache_dir.rstrip("/") + "/")


def _validators(response: httpx2.Response) -> Validators:
    return Validators(response.headers.get("ETag"), response.headers.get("Last-Modified"))


def _content_length(response: httpx2.Response) -> int | None:
    value = response.headers.get("Content-Length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None


def _too_large(url: str, limit_bytes: int) -> errors.DownloadError:
    reason = f"it has more than {limit_bytes} bytes, the limit of sources.max_download_bytes"
    return errors.archive_refused(rules.hide_credentials(url), reason)


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _retry_while_progressing(
    web: HttpClient, attempt: Callable[[], Result], arrived_bytes: Callable[[], int], on_retry: Callable[[str], None]
) -> Result:
    """Retry, and count retries from 0 again after each attempt that made progress."""
    while True:
        before = arrived_bytes()
        try:
            return web.retry_policy.run(attempt, on_retry)
        except RequestFault as fault:
            if not fault.retryable or arrived_bytes() < before + _PROGRESS_WORTH_ANOTHER_TRY_BYTES:
                raise


# ── the whole file ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Transfer:
    """The download of one file into its part file, with one or more requests."""

    downloader: Downloader
    url: str
    part: Path
    conditions: dict[str, str]
    announced_bytes: int | None
    is_checked: bool
    """Whether a checksum will verify the assembled parts."""
    was_resumed: bool = False
    was_encoded: bool = False

    def discard(self) -> None:
        discard_part(self.part)
        self.was_resumed = False

    def run(self) -> Facts | None:
        files.make_folder(self.part.parent)
        web, say = self.downloader.web, self.downloader.observer.say
        return _retry_while_progressing(web, self._attempt, self._count_arrived, say)

    def check_announced_length(self) -> None:
        """Compare the length with the one from HEAD: without a checksum, there is no other check."""
        size_bytes = self.part.stat().st_size
        if self.announced_bytes is not None and size_bytes != self.announced_bytes and not self.was_encoded:
            self.discard()
            raise RequestFault(f"the server announced {self.announced_bytes} bytes and sent {size_bytes}")

    def _count_arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self) -> Facts | None:
        have_bytes, known = self._find_resumable()
        headers = {"Accept-Encoding": "identity"}
        if have_bytes:
            headers["Range"] = f"bytes={have_bytes}-"
            if known.for_range:
                headers["If-Range"] = known.for_range
        else:
            headers |= self.conditions
        with self.downloader.web.open("GET", self.url, headers) as response:
            status = response.status_code
            if status == 304 and self.conditions:
                return None
            if status == 206 and have_bytes:
                self._check_continues(response, have_bytes, known)
                self.was_resumed = True
            elif status == 416 and have_bytes:
                return self._accept_whole(response, have_bytes, known)
            elif status == 200:
                have_bytes = 0
            else:
                raise RequestFault(f"HTTP {status} {response.reason_phrase}".strip())
            return self._receive(response, have_bytes)

    def _find_resumable(self) -> tuple[int, Validators]:
        """Return the bytes that an earlier attempt received, and their version."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            validators = parse_json(note_path(self.part).read_bytes(), Validators)
            # Without validators and a checksum, a mix of two versions would not be noticed.
            if validators.for_range or self.is_checked:
                return self._count_arrived(), validators
        return 0, Validators()

    def _check_continues(self, response: httpx2.Response, have_bytes: int, known: Validators) -> None:
        """Accept a 206 only if it is the rest of the same file; else start over."""
        span, etag = _parse_range(response), response.headers.get("ETag")
        if span and span[0] == have_bytes and (not etag or not known.etag or etag == known.etag):
            return
        self.discard()
        raise RequestFault("the server sent a different part of the file", retryable=True)

    def _accept_whole(self, response: httpx2.Response, have_bytes: int, known: Validators) -> Facts:
        """Accept the part as the whole file if the server has no more bytes; else start over."""
        match = re.fullmatch(r"bytes \*/([0-9]{1,18})", response.headers.get("Content-Range", ""))
        total_bytes = int(match[1]) if match else self.announced_bytes
        if have_bytes != total_bytes:
            self.discard()
            raise RequestFault("the server cannot continue the download", retryable=True)
        self.was_resumed = True
        sha256 = files.hash_file(self.part)
        return Facts(sha256, verified=False, etag=known.etag, last_modified=known.last_modified, hashes={})

    def _receive(self, response: httpx2.Response, have_bytes: int) -> Facts:
        validators, limit_bytes = _validators(response), self.downloader.settings.max_download_bytes
        encoding = response.headers.get("Content-Encoding", "")
        rest_bytes = _content_length(response)
        self.was_encoded = encoding not in {"", "identity"}
        total_bytes = None if self.was_encoded or rest_bytes is None else have_bytes + rest_bytes
        if total_bytes is not None and total_bytes > limit_bytes:
            self.discard()
            raise _too_large(self.url, limit_bytes)
        if have_bytes == 0:
            self._begin_part(validators)
        if total_bytes is not None:
            needed_bytes, free_bytes = total_bytes - have_bytes, shutil.disk_usage(self.part.parent).free
            if free_bytes < needed_bytes:
                reason = f"no space left on the disk: {needed_bytes} bytes needed, {free_bytes} free"
                raise errors.storage_failed(str(self.part.parent), reason)
        with _Sink(self.part, have_bytes) as sink:
            with self.downloader.observer.transfer(_file_name(self.url), total_bytes, have_bytes) as advance:
                try:
                    for chunk in unpack_body(response.iter_raw(), encoding, limit_bytes - have_bytes):
                        sink.write(chunk)
                        advance(len(chunk))
                except BodyError as fault:
                    if not fault.is_too_long:
                        raise RequestFault(str(fault)) from fault
                    self.discard()
                    raise _too_large(self.url, limit_bytes) from fault
            sha256, received_bytes = sink.finish()
        if total_bytes is not None and received_bytes != total_bytes:
            raise RequestFault(f"{received_bytes} of {total_bytes} bytes arrived", retryable=True)
        return Facts(sha256, verified=False, etag=validators.etag, last_modified=validators.last_modified, hashes={})

    def _begin_part(self, validators: Validators) -> None:
        """Create an empty part, then write the note that makes it resumable."""
        files.unlink(note_path(self.part), missing_ok=True)
        os.close(files.open_file(self.part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        if not self.was_encoded:
            files.write_atomically(note_path(self.part), json.dumps(asdict(validators)).encode())


class _Sink:
    """A part file. It is written in blocks, which a second thread hashes. An error loses no received byte."""

    def __init__(self, part: Path, have_bytes: int) -> None:
        self._digest = hashlib.sha256()
        self._descriptor = files.open_file(part, os.O_RDWR)
        self._block = bytearray()
        self._size = have_bytes
        self._hashing: Future[None] | None = None
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pair-hash")
        os.ftruncate(self._descriptor, have_bytes)
        while chunk := os.read(self._descriptor, files.CHUNK_BYTES):
            self._digest.update(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._flush()
        self._hasher.shutdown()
        os.close(self._descriptor)

    def write(self, chunk: bytes) -> None:
        self._block += chunk
        if len(self._block) >= _BLOCK_BYTES:
            self._flush()

    def finish(self) -> tuple[str, int]:
        """Return the SHA-256 and the size of the file."""
        self._flush()
        if self._hashing is not None:
            self._hashing.result()
        return self._digest.hexdigest(), self._size

    def _flush(self) -> None:
        if not self._block:
            return
        block, self._block = self._block, bytearray()
        files.write_all(self._descriptor, block)
        self._size += len(block)
        if self._hashing is not None:
            self._hashing.result()
        self._hashing = self._hasher.submit(self._digest.update, block)


# ── ranges of a file ───────────────────────────────────────────────────────────────────────────────────


def open_ranges(web: HttpClient, url: str, observer: Observer) -> "RangedFile | None":
    """Return the file at an address; None if the server does not send ranges. Raises RequestFault."""

    def attempt() -> RangedFile | None:
        headers = {"Range": f"bytes=-{_TAIL_BYTES}", "Accept-Encoding": "identity"}
        with web.open("GET", url, headers) as response:
            span = _parse_range(response)
            if response.status_code != 206 or span is None:
                return None
            start, end, size_bytes = span
            if size_bytes is None or end != size_bytes or not 0 <= end - start <= _TAIL_BYTES:
                return None
            tail = b"".join(_cut_off(response.iter_raw(), end - start))
            if len(tail) != end - start:
                raise RequestFault(f"{len(tail)} of {end - start} bytes arrived", retryable=True)
            return RangedFile(web, url, observer, size_bytes, tail, _validators(response))

    return web.retry_policy.run(attempt, observer.say)


def _cut_off(chunks: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Stop after this many bytes: a server may send more than it announced."""
    for chunk in chunks:
        yield chunk[:length]
        length -= len(chunk)
        if length <= 0:
            return


def _parse_range(response: httpx2.Response) -> tuple[int, int, int | None] | None:
    """Return start, end and size of the whole file; None for a size that the server does not know."""
    content_range = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", content_range)
    return (int(match[1]), int(match[2]) + 1, None if match[3] == "*" else int(match[3])) if match else None


@dataclass(frozen=True)
class RangedFile:
    """A file at an address that is read in ranges of one version."""

    web: HttpClient
    url: str
    observer: Observer
    size_bytes: int
    tail: bytes
    validators: Validators

    def read(self, start: int, length: int) -> bytes:
        """Return a range. Raises ChangedError, E005."""
        before_tail = self.size_bytes - len(self.tail) - start
        missing = min(length, max(0, before_tail))
        received = bytearray()
        if missing:
            self._transfer(start, missing, received.extend)
        in_tail = max(0, -before_tail)
        return bytes(received) + self.tail[in_tail : in_tail + length - missing]

    def copy(self, start: int, length: int, path: Path) -> None:
        """Copy a range into a new file. Raises ChangedError, E005."""
        with path.open("xb") as stream, self.observer.transfer(_file_name(self.url), length, 0) as advance:

            def store(chunk: bytes) -> None:
                stream.write(chunk)
                advance(len(chunk))

            self._transfer(start, length, store)

    def _transfer(self, start: int, length: int, store: Callable[[bytes], object]) -> None:
        """Receive a range. Each attempt continues after the bytes that arrived."""
        arrived = 0

        def attempt() -> None:
            nonlocal arrived
            headers = {"Range": f"bytes={start + arrived}-{start + length - 1}", "Accept-Encoding": "identity"}
            if self.validators.for_range:
                headers["If-Range"] = self.validators.for_range
            with self.web.open("GET", self.url, headers) as response:
                is_same_range = _parse_range(response) == (start + arrived, start + length, self.size_bytes)
                is_same_file = response.headers.get("ETag") == self.validators.etag
                if response.status_code != 206 or not is_same_range or not is_same_file:
                    raise ChangedError(self.url)
                for chunk in _cut_off(response.iter_raw(), length - arrived):
                    store(chunk)
                    arrived += len(chunk)
            if arrived < length:
                raise RequestFault(f"{arrived} of {length} bytes arrived", retryable=True)

        try:
            _retry_while_progressing(self.web, attempt, lambda: arrived, self.observer.say)
        except RequestFault as fault:
            raise errors.download_failed(rules.hide_credentials(self.url), fault.reason) from fault
