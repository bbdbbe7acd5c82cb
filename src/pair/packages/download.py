"""Fetch an archive: HEAD, checksum, GET with progress and resume, verify; E005, E006.

Invariants
    What has arrived stays in the part file, whatever ends the process, and is not fetched again while the server
    still has the same file.
    A result is returned only when its length is the announced one and its SHA-256 the published one, if there is one.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote, urlsplit

from pair import errors, files, folders
from pair.packages.contract import CachedCopy, Download, Observer, Parts, Validators, note_of
from pair.packages.http_ranges import open_ranges
from pair.packages.rules import (
    MANIFEST_SUFFIX,
    SIGNATURE_SUFFIX,
    SourcesSettings,
    beside,
    parse_checksum,
    without_credentials,
)
from pair.web.http_answer import BodyError, RequestFault, unpack_body
from pair.web.http_client import HttpClient

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 256 * 1024
_PROGRESS_WORTH_ANOTHER_TRY_BYTES = 1024 * 1024
_CHECKSUM_LIMIT_BYTES = 64 * 1024
_MANIFEST_LIMIT_BYTES = 64 * 1024 * 1024
_SIGNATURE_LIMIT_BYTES = 64 * 1024


class _DownloadResponse(Protocol):
    status_code: int
    headers: Any

    def iter_raw(self) -> Iterator[bytes]: ...


class Downloader:
    def __init__(self, web: HttpClient, policy: SourcesSettings, observer: Observer) -> None:
        self._web = web
        self._policy = policy
        self._observer = observer

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: CachedCopy | None) -> Download | None:
        """Download into `part`; None when what is known is still current. `sha256`: published by the release feed."""
        try:
            head = self._look(url)
            expected = sha256 or self._published_checksum(url)
            if known is not None and expected == known.sha256 and (sha256 is not None or head.tells_of(known)):
                logger.debug("checksum unchanged", extra={"url": without_credentials(url)})
                return None
            if expected is None:
                self._accept_unverified(url)
            conditions = known.validators.conditions() if known is not None else {}
            transfer = _Transfer(self._web, url, part, self._observer, conditions, head.size_bytes)
            transfer.limit_bytes = self._policy.max_download_bytes
            transfer.is_checked = expected is not None
            download = self._verified_transfer(transfer, expected)
        except RequestFault as fault:
            raise errors.download_failed(without_credentials(url), fault.reason) from fault
        if download is None and known is not None and expected not in {None, known.sha256}:
            raise self._mismatch(url, expected, known.sha256)
        return download

    def parts(self, url: str, *, sha256: str | None) -> Parts | None:
        """Raises E005, E006."""
        try:
            answer = self._web.read(beside(url, MANIFEST_SUFFIX), {}, limit_bytes=_MANIFEST_LIMIT_BYTES)
            if answer.status != 200:
                return None
            expected = sha256 or self._published_checksum(url)
            if expected is None:
                return None
            file = open_ranges(self._web, url, self._observer)
            if file is not None and file.size_bytes > self._policy.max_download_bytes:
                raise _too_large(url, self._policy.max_download_bytes)
            # Whoever replaces an archive replaces all that lies beside it: what was read before the change is no good.
            if file is None or (sha256 is None and self._published_checksum(url) != expected):
                return None
            return Parts(answer.body, expected, file, file.validators)
        except RequestFault as fault:
            raise errors.download_failed(without_credentials(url), fault.reason) from fault

    def signature(self, url: str) -> bytes | None:
        """The `.minisig` beside an archive, if there is one. Raises E005 for what may pass, E017 for what may not."""
        address = beside(url, SIGNATURE_SUFFIX)
        shown = without_credentials(address)
        try:
            answer = self._web.read(address, {}, limit_bytes=_SIGNATURE_LIMIT_BYTES)
        except RequestFault as fault:
            if fault.retryable or not fault.was_reached:
                raise errors.download_failed(shown, fault.reason) from fault
            raise self._signature_error(url, fault.reason) from fault
        if answer.status in {404, 410}:
            return None
        if answer.status != 200:
            raise self._signature_error(url, f"HTTP {answer.status}")
        return answer.body

    def _signature_error(self, url: str, reason: str) -> errors.DataError:
        return errors.signature_refused(without_credentials(url), f"it cannot be read: {reason}", "", [])

    def _look(self, url: str) -> "_RemoteHead":
        """Ask with HEAD; a server without HEAD, or one that lies about the length with 0, is no obstacle."""

        def attempt() -> _RemoteHead:
            with self._web.open("HEAD", url, {"Accept-Encoding": "identity"}) as response:
                if not response.is_success:
                    return _RemoteHead()
                return _RemoteHead(_content_length(response) or None, _validators_of(response))

        try:
            head = self._web.retrying(attempt, on_retry=self._say_retry)
        except RequestFault as fault:
            if fault.was_reached:
                logger.debug("no HEAD", extra={"reason": fault.reason})
                return _RemoteHead()
            raise
        if head.size_bytes is not None and head.size_bytes > self._policy.max_download_bytes:
            raise _too_large(url, self._policy.max_download_bytes)
        return head

    def _published_checksum(self, url: str) -> str | None:
        name = _file_name(url)
        address = beside(url, ".sha256")
        shown = without_credentials(address)
        try:
            answer = self._web.read(address, {}, limit_bytes=_CHECKSUM_LIMIT_BYTES)
        except RequestFault as fault:
            raise self._checksum_error(f"Checksum file: {shown}", f"It cannot be read: {fault.reason}") from fault
        if answer.status in {404, 410}:
            return None
        if answer.status != 200:
            raise self._checksum_error(f"Checksum file: {shown}", f"It cannot be read: HTTP {answer.status}")
        checksum = parse_checksum(answer.body.decode("utf-8", errors="replace"), name)
        if checksum is None:
            raise self._checksum_error(f"Checksum file: {shown}", "It holds no SHA-256 for this archive")
        return checksum

    def _accept_unverified(self, url: str) -> None:
        shown = without_credentials(url)
        if self._policy.require_checksum:
            raise self._checksum_error(
                f"File: {shown}", "Nobody published a SHA-256 for it, and sources.require_checksum is set"
            )
        self._observer.say(f"unverified: no SHA-256 is published for {shown}")

    def _verified_transfer(self, transfer: "_Transfer", expected: str | None) -> Download | None:
        download = transfer.run(self._say_retry)
        if download is None:
            return None
        if expected is not None and download.sha256 != expected and transfer.was_resumed:
            self._observer.say("the resumed download does not match its checksum: starting over")
            transfer.discard()
            download = transfer.run(self._say_retry)
        if download is not None and expected is None:
            self._check_announced_length(download, transfer)
        if download is None or expected is None:
            return download
        if download.sha256 != expected:
            transfer.discard()
            raise self._mismatch(transfer.url, expected, download.sha256)
        return Download(download.path, download.sha256, verified=True, validators=download.validators)

    def _mismatch(self, url: str, expected: str, actual: str) -> errors.DownloadError:
        hashes = [f"Expected SHA-256: {expected}", f"Actual SHA-256:   {actual}"]
        return self._checksum_error(f"File: {without_credentials(url)}", hashes)

    def _check_announced_length(self, download: Download, transfer: "_Transfer") -> None:
        """Without a checksum, HEAD is the only witness of the length; a checksum makes it needless."""
        size_bytes = download.path.stat().st_size
        if transfer.announced_bytes is not None and size_bytes != transfer.announced_bytes and not transfer.was_encoded:
            transfer.discard()
            raise RequestFault(f"the server announced {transfer.announced_bytes} bytes and sent {size_bytes}")

    def _say_retry(self, text: str) -> None:
        self._observer.say(text)

    def _checksum_error(self, subject: str, reason: str | list[str]) -> errors.DownloadError:
        return errors.checksum_failed(subject, reason, cache=self._policy.cache_dir.rstrip("/") + "/")


@dataclass(frozen=True)
class _RemoteHead:
    """What a server says of a file without sending it."""

    size_bytes: int | None = None
    validators: Validators = field(default_factory=Validators)

    def tells_of(self, known: CachedCopy) -> bool:
        """Whether this is still the known file: a checksum beside it may be older than the file itself.

        Where the server says nothing that could be compared, a conditional request decides, or else the checksum.
        """
        pairs = [
            (self.validators.etag, known.validators.etag),
            (self.validators.last_modified, known.validators.last_modified),
            (self.size_bytes, known.size_bytes or None),
        ]
        told = [here == there for here, there in pairs if here is not None and there is not None]
        return all(told) if told else not known.validators.conditions()


def _validators_of(response: _DownloadResponse) -> Validators:
    return Validators(response.headers.get("ETag"), response.headers.get("Last-Modified"))


def _too_large(url: str, limit_bytes: int) -> errors.DownloadError:
    reason = f"it has more than {limit_bytes} bytes, the most that sources.max_download_bytes allows"
    return errors.archive_refused(without_credentials(url), reason)


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


class _Transfer:
    """The GET of one file into its part file, over as many requests as it takes."""

    def __init__(
        self,
        web: HttpClient,
        url: str,
        part: Path,
        observer: Observer,
        conditions: dict[str, str],
        announced_bytes: int | None,
    ) -> None:
        self.url = url
        self.was_resumed = False
        self.was_encoded = False
        self.limit_bytes = SourcesSettings().max_download_bytes
        self.is_checked = False
        """A checksum will tell whether the parts belong together."""
        self._web = web
        self._part = part
        self._note = note_of(part)
        self._observer = observer
        self._conditions = conditions
        self.announced_bytes = announced_bytes

    def discard(self) -> None:
        folders.unlink(self._part, missing_ok=True)
        folders.unlink(self._note, missing_ok=True)
        self.was_resumed = False

    def run(self, on_retry: Callable[[str], None]) -> Download | None:
        """Retries are counted anew after each stretch that brought something."""
        folders.make_folder(self._part.parent)
        while True:
            before = self._have_bytes()
            try:
                return self._web.retrying(self._attempt, on_retry=on_retry)
            except RequestFault as fault:
                if not fault.retryable or self._have_bytes() < before + _PROGRESS_WORTH_ANOTHER_TRY_BYTES:
                    raise

    def _have_bytes(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _attempt(self) -> Download | None:
        have_bytes, known = self._resumable()
        with self._web.open("GET", self.url, self._headers(have_bytes, known)) as response:
            status = response.status_code
            if status == 304 and self._conditions:
                return None
            if status == 206 and have_bytes:
                self._check_continues(response, have_bytes, known)
                self.was_resumed = True
            elif status == 416 and have_bytes:
                return self._already_whole(response, have_bytes, known)
            elif status == 200:
                have_bytes = 0
            else:
                raise RequestFault(f"HTTP {status} {response.reason_phrase}".strip())
            return self._receive(response, have_bytes)

    def _resumable(self) -> tuple[int, Validators]:
        """How much of which version an earlier attempt left behind."""
        try:
            validators = Validators(**json.loads(self._note.read_bytes()))
            # Nobody could tell the rest of this file from that of another.
            return (self._have_bytes(), validators) if validators.for_range or self.is_checked else (0, Validators())
        except (OSError, ValueError, TypeError, RecursionError):
            return 0, Validators()

    def _headers(self, have_bytes: int, known: Validators) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        if have_bytes:
            headers["Range"] = f"bytes={have_bytes}-"
            if known.for_range:
                headers["If-Range"] = known.for_range
            return headers
        return headers | self._conditions

    def _check_continues(self, response: _DownloadResponse, have_bytes: int, known: Validators) -> None:
        """A 206 counts only when it is the rest of the same file; else start over."""
        match = re.fullmatch(
            r"bytes ([0-9]{1,18})-[0-9]{1,18}/(?:[0-9]{1,18}|\*)", response.headers.get("Content-Range", "")
        )
        etag = response.headers.get("ETag")
        if match and int(match[1]) == have_bytes and (not etag or not known.etag or etag == known.etag):
            return
        self.discard()
        raise RequestFault("the server answered with another part of the file", retryable=True)

    def _already_whole(self, response: _DownloadResponse, have_bytes: int, known: Validators) -> Download:
        """The server has nothing behind what we have: that was all, or it is another file now."""
        match = re.fullmatch(r"bytes \*/([0-9]{1,18})", response.headers.get("Content-Range", ""))
        total_bytes = int(match[1]) if match else self.announced_bytes
        if have_bytes != total_bytes:
            self.discard()
            raise RequestFault("the server cannot continue the download", retryable=True)
        self.was_resumed = True
        return Download(self._part, files.sha256_of(self._part), verified=False, validators=known)

    def _receive(self, response: _DownloadResponse, have_bytes: int) -> Download:
        validators = _validators_of(response)
        encoding = response.headers.get("Content-Encoding", "")
        is_encoded = encoding not in {"", "identity"}
        rest_bytes = _content_length(response)
        self.was_encoded = is_encoded
        total_bytes = None if is_encoded or rest_bytes is None else have_bytes + rest_bytes
        if total_bytes is not None and total_bytes > self.limit_bytes:
            self.discard()
            raise _too_large(self.url, self.limit_bytes)
        if have_bytes == 0:
            self._begin_part(validators, resumable=not is_encoded)
        if total_bytes is not None:
            self._check_free_space(total_bytes - have_bytes)
        with _Sink(self._part, have_bytes) as sink:
            with self._observer.transfer(_file_name(self.url), total_bytes, have_bytes) as advance:
                for chunk in self._chunks(response, encoding, self.limit_bytes - have_bytes):
                    sink.write(chunk)
                    advance(len(chunk))
            sha256, received_bytes = sink.finish()
        self._check_length(received_bytes, total_bytes)
        return Download(self._part, sha256, verified=False, validators=validators)

    def _chunks(self, response: _DownloadResponse, encoding: str, limit_bytes: int) -> Iterator[bytes]:
        try:
            yield from unpack_body(response.iter_raw(), encoding, limit_bytes)
        except BodyError as fault:
            if not fault.is_too_long:
                raise RequestFault(str(fault)) from fault
            self.discard()
            raise _too_large(self.url, self.limit_bytes) from fault

    def _begin_part(self, validators: Validators, *, resumable: bool) -> None:
        """The note is written after the part was emptied."""
        folders.unlink(self._note, missing_ok=True)
        os.close(folders.open_file(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        if resumable:
            files.write_atomically(self._note, json.dumps(asdict(validators)).encode())

    def _check_free_space(self, needed_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._part.parent).free
        if free_bytes < needed_bytes:
            raise errors.storage_failed(
                str(self._part.parent),
                f"no space left on the disk: {needed_bytes} bytes needed, {free_bytes} free",
            )

    def _check_length(self, received_bytes: int, total_bytes: int | None) -> None:
        if total_bytes is not None and received_bytes != total_bytes:
            raise RequestFault(f"{received_bytes} of {total_bytes} bytes arrived", retryable=True)


def _content_length(response: _DownloadResponse) -> int | None:
    value = response.headers.get("Content-Length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None


class _Sink:
    """Writes blocks as they fill up and hashes them in a second thread. What came before an error is on disk."""

    def __init__(self, part: Path, have_bytes: int) -> None:
        self._digest = hashlib.sha256()
        self._descriptor = folders.open_file(part, os.O_RDWR)
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
        if self._block or len(chunk) < _BLOCK_BYTES:
            self._block += chunk
            if len(self._block) >= _BLOCK_BYTES:
                self._flush()
        else:
            self._store(chunk)

    def finish(self) -> tuple[str, int]:
        self._flush()
        self._wait()
        return self._digest.hexdigest(), self._size

    def _flush(self) -> None:
        if self._block:
            block, self._block = self._block, bytearray()
            self._store(block)

    def _store(self, block: bytes | bytearray) -> None:
        files.write_all(self._descriptor, block)
        self._size += len(block)
        self._wait()
        self._hashing = self._hasher.submit(self._digest.update, block)

    def _wait(self) -> None:
        if self._hashing is not None:
            self._hashing.result()
