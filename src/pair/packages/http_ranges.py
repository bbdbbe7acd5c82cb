"""A file at an address, read in ranges, all of them of one version."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pair import errors
from pair.packages.contract import ChangedError, Observer, Validators
from pair.packages.rules import without_credentials
from pair.web.http_answer import RequestFault
from pair.web.http_client import HttpClient

_TAIL_BYTES = 32 * 1024
"""Of an archive: its directory is at its end."""
_PROGRESS_WORTH_ANOTHER_TRY_BYTES = 1024 * 1024


def open_ranges(web: HttpClient, url: str, observer: Observer) -> "RangedFile | None":
    """None when the server does not send ranges. Raises RequestFault."""

    def attempt() -> RangedFile | None:
        headers = {"Range": f"bytes=-{_TAIL_BYTES}", "Accept-Encoding": "identity"}
        with web.open("GET", url, headers) as response:
            place = _place(response.headers.get("Content-Range", ""))
            if response.status_code != 206 or place is None:
                return None
            start, end, size_bytes = place
            if end != size_bytes or not 0 <= end - start <= _TAIL_BYTES:
                return None
            tail = b"".join(_at_most(response.iter_raw(), end - start))
            if len(tail) != end - start:
                raise RequestFault(f"{len(tail)} of {end - start} bytes arrived", retryable=True)
            validators = Validators(response.headers.get("ETag"), response.headers.get("Last-Modified"))
        return RangedFile(web, url, observer, (size_bytes, tail), validators)

    return web.retrying(attempt, on_retry=observer.say)


def _at_most(chunks: Iterable[bytes], length: int) -> Iterator[bytes]:
    """A server may send more than it said, and without end."""
    for chunk in chunks:
        yield chunk[:length]
        length -= len(chunk)
        if length <= 0:
            return


def _place(content_range: str) -> tuple[int, int, int] | None:
    """Start, end and size of the whole."""
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", content_range)
    return (int(match[1]), int(match[2]) + 1, int(match[3])) if match else None


class RangedFile:
    def __init__(
        self, web: HttpClient, url: str, observer: Observer, known: tuple[int, bytes], validators: Validators
    ) -> None:
        """`known`: how long it is, and its last bytes."""
        self._web = web
        self._url = url
        self._observer = observer
        self.size_bytes, self._tail = known
        self.validators = validators

    def read(self, start: int, length: int) -> bytes:
        """Raises ChangedError, E005."""
        before_tail = self.size_bytes - len(self._tail) - start
        missing = min(length, max(0, before_tail))
        received = bytearray()
        if missing:
            self._transfer(start, missing, received.extend)
        in_tail = max(0, -before_tail)
        return bytes(received) + self._tail[in_tail : in_tail + length - missing]

    def copy(self, start: int, length: int, path: Path) -> None:
        """Raises ChangedError, E005."""
        name = self._url.partition("?")[0].rpartition("/")[2]
        with path.open("xb") as stream, self._observer.transfer(name, length, 0) as advance:

            def store(chunk: bytes) -> None:
                stream.write(chunk)
                advance(len(chunk))

            self._transfer(start, length, store)

    def _transfer(self, start: int, length: int, store: Callable[[bytes], object]) -> None:
        """Goes on behind what has arrived; retries are counted anew after each stretch that brought something."""
        arrived = 0

        def attempt() -> None:
            nonlocal arrived
            headers = {"Range": f"bytes={start + arrived}-{start + length - 1}", "Accept-Encoding": "identity"}
            if self.validators.for_range:
                headers["If-Range"] = self.validators.for_range
            with self._web.open("GET", self._url, headers) as response:
                etag = response.headers.get("ETag")
                place = _place(response.headers.get("Content-Range", ""))
                is_same = place == (start + arrived, start + length, self.size_bytes)
                if response.status_code != 206 or not is_same or etag != self.validators.etag:
                    raise ChangedError(self._url)
                for chunk in _at_most(response.iter_raw(), length - arrived):
                    store(chunk)
                    arrived += len(chunk)
            if arrived < length:
                raise RequestFault(f"{arrived} of {length} bytes arrived", retryable=True)

        while True:
            before = arrived
            try:
                return self._web.retrying(attempt, on_retry=self._observer.say)
            except RequestFault as fault:
                if not fault.retryable or arrived < before + _PROGRESS_WORTH_ANOTHER_TRY_BYTES:
                    raise errors.download_failed(without_credentials(self._url), fault.reason) from fault
