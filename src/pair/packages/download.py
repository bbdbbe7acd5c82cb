"""Fetch an archive over HTTP, whole or in ranges: checksum, progress, resume, verification; E005, E006.

Invariants
    What has arrived stays in the part file, whatever ends the process, and is not fetched again while the server
    still has the same file.
    A result is returned only when its length is the announced one and its SHA-256 the published one, if there is one.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import httpx2
import msgspec

from pair import errors, files
from pair.network import RequestFault, Result
from pair.packages import rules
from pair.packages.cache import Facts, Validators
from pair.packages.content import Download, Observer, discard_part, note_path
from pair.packages.partial_download import ChangedError, RemotePackage
from pair.web.http_client import BodyError, HttpClient, unpack_body

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 256 * 1024
_PROGRESS_WORTH_ANOTHER_TRY_BYTES = 1024 * 1024
_CHECKSUM_LIMIT_BYTES = 64 * 1024
_TAIL_BYTES = 32 * 1024
"""Of an archive: its directory is at its end."""


@dataclass(frozen=True)
class _RemoteHead:
    """What a server says of a file before it sends it."""

    size_bytes: int | None = None
    validators: Validators = field(default_factory=Validators)

    def describes(self, known: Facts) -> bool:
        """Tell whether this is still the known file: a checksum beside it may be older than the file itself.

        Where the server says nothing that could be compared, a conditional request decides, or else the checksum.
        """
        pairs = [
            (self.validators.etag, known.validators.etag),
            (self.validators.last_modified, known.validators.last_modified),
            (self.size_bytes, known.size_bytes or None),
        ]
        matches = [here == there for here, there in pairs if here is not None and there is not None]
        return all(matches) if matches else not known.validators.conditions()


@dataclass(frozen=True)
class Downloader:
    web: HttpClient
    settings: rules.SourcesSettings
    observer: Observer

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: Facts | None) -> Download | None:
        """Download into `part`; None when what is known is still current. `sha256`: published by the release index."""
        try:
            head = self._look(url)
            expected = sha256 or self._fetch_checksum(url)
            if known is not None and expected == known.identity and (sha256 is not None or head.describes(known)):
                logger.debug("checksum unchanged", extra={"url": rules.hide_credentials(url)})
                return None
            if expected is None:
                shown = rules.hide_credentials(url)
                if self.settings.require_checksum:
                    reason = "Nobody published a SHA-256 for it, and sources.require_checksum is set"
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
        """Return None for an archive that can only be fetched as a whole. Raises E005, E006."""
        try:
            answer = self.web.read(
                rules.append_suffix(url, rules.MANIFEST_SUFFIX), {}, limit_bytes=rules.MANIFEST_LIMIT_BYTES
            )
            if answer.status != 200:
                return None
            expected = sha256 or self._fetch_checksum(url)
            if expected is None:
                return None
            file = open_ranges(self.web, url, self.observer)
            if file is not None and file.size_bytes > self.settings.max_download_bytes:
                raise _too_large(url, self.settings.max_download_bytes)
            # A publisher that replaces an archive replaces the files beside it: what was read before is no good.
            if file is None or (sha256 is None and self._fetch_checksum(url) != expected):
                return None
            return RemotePackage(answer.body, expected, file, file.validators)
        except RequestFault as fault:
            raise errors.download_failed(rules.hide_credentials(url), fault.reason) from fault

    def signature(self, url: str) -> bytes | None:
        """Return the `.minisig` beside an archive, if there is one. Raises E005 for what may pass, else E017."""
        address = rules.append_suffix(url, rules.SIGNATURE_SUFFIX)
        try:
            return self._read_if_any(address, rules.SIGNATURE_LIMIT_BYTES)
        except RequestFault as fault:
            if fault.retryable or not fault.was_reached:
                raise errors.download_failed(rules.hide_credentials(address), fault.reason) from fault
            reason = f"it cannot be read: {fault.reason}"
            raise errors.signature_refused(rules.hide_credentials(url), reason, "", []) from fault

    def _read_if_any(self, address: str, limit_bytes: int) -> bytes | None:
        """Return a small file; None when there is none. Raises RequestFault."""
        answer = self.web.read(address, {}, limit_bytes=limit_bytes)
        if answer.status in {404, 410}:
            return None
        if answer.status != 200:
            raise RequestFault(f"HTTP {answer.status}")
        return answer.body

    def _look(self, url: str) -> _RemoteHead:
        """Ask with HEAD; a server without HEAD, or one that lies about the length with 0, is no obstacle."""

        def attempt() -> _RemoteHead:
            with self.web.open("HEAD", url, {"Accept-Encoding": "identity"}) as response:
                if not response.is_success:
                    return _RemoteHead()
                return _RemoteHead(_content_length(response) or None, _validators(response))

        try:
            head = self.web.retrying(attempt, on_retry=self.observer.say)
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

    def _transfer_verified(self, transfer: "_Transfer", expected: str | None) -> Download | None:
        download = transfer.run()
        is_wrong = download is not None and expected not in {None, download.sha256}
        if is_wrong and transfer.was_resumed:
            self.observer.say("the resumed download does not match its checksum: starting over")
            transfer.discard()
            download = transfer.run()
        if download is None:
            return None
        if expected is None:
            transfer.check_announced_length()
            return download
        if download.sha256 != expected:
            transfer.discard()
            raise self._mismatch(transfer.url, expected, download.sha256)
        return replace(download, verified=True)

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
    reason = f"it has more than {limit_bytes} bytes, the most that sources.max_download_bytes allows"
    return errors.archive_refused(rules.hide_credentials(url), reason)


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]


def _retry_while_progressing(
    web: HttpClient, attempt: Callable[[], Result], arrived_bytes: Callable[[], int], on_retry: Callable[[str], None]
) -> Result:
    """Retry, with a new count of retries after each stretch that brought something."""
    while True:
        before = arrived_bytes()
        try:
            return web.retrying(attempt, on_retry=on_retry)
        except RequestFault as fault:
            if not fault.retryable or arrived_bytes() < before + _PROGRESS_WORTH_ANOTHER_TRY_BYTES:
                raise


# ── the whole file ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Transfer:
    """The GET of one file into its part file, over as many requests as it takes."""

    downloader: Downloader
    url: str
    part: Path
    conditions: dict[str, str]
    announced_bytes: int | None
    is_checked: bool
    """Whether a checksum will tell that the parts belong together."""
    was_resumed: bool = False
    was_encoded: bool = False

    def discard(self) -> None:
        discard_part(self.part)
        self.was_resumed = False

    def run(self) -> Download | None:
        files.make_folder(self.part.parent)
        web, say = self.downloader.web, self.downloader.observer.say
        return _retry_while_progressing(web, self._attempt, self._count_arrived, say)

    def check_announced_length(self) -> None:
        """Compare with HEAD, the only witness of the length without a checksum."""
        size_bytes = self.part.stat().st_size
        if self.announced_bytes is not None and size_bytes != self.announced_bytes and not self.was_encoded:
            self.discard()
            raise RequestFault(f"the server announced {self.announced_bytes} bytes and sent {size_bytes}")

    def _count_arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _attempt(self) -> Download | None:
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
        """Return how much of which version an earlier attempt left behind."""
        try:
            validators = msgspec.json.decode(note_path(self.part).read_bytes(), type=Validators)
            # Without either, the rest of this file could not be distinguished from that of another.
            is_resumable = validators.for_range or self.is_checked
            return (self._count_arrived(), validators) if is_resumable else (0, Validators())
        except (OSError, ValueError, RecursionError):
            return 0, Validators()

    def _check_continues(self, response: httpx2.Response, have_bytes: int, known: Validators) -> None:
        """Accept a 206 only when it is the rest of the same file; else start over."""
        span, etag = _parse_range(response), response.headers.get("ETag")
        if span and span[0] == have_bytes and (not etag or not known.etag or etag == known.etag):
            return
        self.discard()
        raise RequestFault("the server answered with another part of the file", retryable=True)

    def _accept_whole(self, response: httpx2.Response, have_bytes: int, known: Validators) -> Download:
        """Accept the part as the whole file when the server has nothing behind it; else it is another file now."""
        match = re.fullmatch(r"bytes \*/([0-9]{1,18})", response.headers.get("Content-Range", ""))
        total_bytes = int(match[1]) if match else self.announced_bytes
        if have_bytes != total_bytes:
            self.discard()
            raise RequestFault("the server cannot continue the download", retryable=True)
        self.was_resumed = True
        return Download(files.hash_file(self.part), verified=False, validators=known)

    def _receive(self, response: httpx2.Response, have_bytes: int) -> Download:
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
                for chunk in self._unpack(response, encoding, limit_bytes - have_bytes):
                    sink.write(chunk)
                    advance(len(chunk))
            sha256, received_bytes = sink.finish()
        if total_bytes is not None and received_bytes != total_bytes:
            raise RequestFault(f"{received_bytes} of {total_bytes} bytes arrived", retryable=True)
        return Download(sha256, verified=False, validators=validators)

    def _unpack(self, response: httpx2.Response, encoding: str, limit_bytes: int) -> Iterator[bytes]:
        try:
            yield from unpack_body(response.iter_raw(), encoding, limit_bytes)
        except BodyError as fault:
            if not fault.is_too_long:
                raise RequestFault(str(fault)) from fault
            self.discard()
            raise _too_large(self.url, self.downloader.settings.max_download_bytes) from fault

    def _begin_part(self, validators: Validators) -> None:
        """Empty the part, then write the note that makes it resumable."""
        files.unlink(note_path(self.part), missing_ok=True)
        os.close(files.open_file(self.part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        if not self.was_encoded:
            files.write_atomically(note_path(self.part), json.dumps(asdict(validators)).encode())


class _Sink:
    """Writes blocks as they fill up and hashes them in a second thread. What came before an error is on disk."""

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


# ── ranges of it ───────────────────────────────────────────────────────────────────────────────────


def open_ranges(web: HttpClient, url: str, observer: Observer) -> "RangedFile | None":
    """Return None when the server does not send ranges. Raises RequestFault."""

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

    return web.retrying(attempt, on_retry=observer.say)


def _cut_off(chunks: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Stop after this many bytes: a server may send more than it said, and without end."""
    for chunk in chunks:
        yield chunk[:length]
        length -= len(chunk)
        if length <= 0:
            return


def _parse_range(response: httpx2.Response) -> tuple[int, int, int | None] | None:
    """Return start, end and size of the whole, which the server may not know."""
    content_range = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", content_range)
    return (int(match[1]), int(match[2]) + 1, None if match[3] == "*" else int(match[3])) if match else None


@dataclass(frozen=True)
class RangedFile:
    """A file at an address, read in ranges, all of them of one version."""

    web: HttpClient
    url: str
    observer: Observer
    size_bytes: int
    tail: bytes
    """Its last bytes."""
    validators: Validators

    def read(self, start: int, length: int) -> bytes:
        """Raises ChangedError, E005."""
        before_tail = self.size_bytes - len(self.tail) - start
        missing = min(length, max(0, before_tail))
        received = bytearray()
        if missing:
            self._transfer(start, missing, received.extend)
        in_tail = max(0, -before_tail)
        return bytes(received) + self.tail[in_tail : in_tail + length - missing]

    def copy(self, start: int, length: int, path: Path) -> None:
        """Raises ChangedError, E005."""
        name = self.url.partition("?")[0].rpartition("/")[2]
        with path.open("xb") as stream, self.observer.transfer(name, length, 0) as advance:

            def store(chunk: bytes) -> None:
                stream.write(chunk)
                advance(len(chunk))

            self._transfer(start, length, store)

    def _transfer(self, start: int, length: int, store: Callable[[bytes], object]) -> None:
        """Receive a range; an attempt goes on behind what has arrived."""
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
