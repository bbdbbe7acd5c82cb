"""Requests to a server and their JSON: retried after temporary faults, and failed with the error of the server.

Invariants
    The key is sent to the given address only: no redirect is followed. No error or traceback contains it.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import numpy as np

from pair import __version__, errors, network, values
from pair.clock import SystemClock
from pair.engine.maintenance.versions import DocumentChanges
from pair.engine.query.documents import StoredDocument
from pair.engine.write.writer import WriteReport
from pair.librarians.contract import ErrorCode
from pair.network import RetryPolicy, describe_fault, has_host, parse_retry_after
from pair.values import Document, Hits, convert_json

_FIRST_PAUSE_SECONDS = 0.2
_TEMPORARY = frozenset({409, 429, 502, 503, 504})
_FINAL = frozenset({errors.SYNC_RUNNING, errors.PUBLISH_UNKNOWN})
"""Temporary errors that are not retried; the caller decides about them."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_LIBRARIAN_CODES = frozenset(code.value for code in ErrorCode)
_KINDS: dict[int, type[errors.PairError]] = {
    401: errors.AccessError,
    403: errors.AccessError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    429: errors.ConflictError,
    502: errors.DownloadError,
    503: errors.StorageError,
    504: errors.DownloadError,
}

Result = TypeVar("Result")
Json = dict[str, Any]


@dataclass(frozen=True)
class ClientRequest:
    method: str
    path: str
    body: bytes | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float | None = None
    """Longest wait for the response; None for the timeout of the connection."""
    is_repeatable: bool = True
    """Whether it may be sent again although it may have arrived."""
    accepts_librarian_errors: bool = False
    """Whether an error of a librarian is a valid response, with any status."""


class AttemptFailed(network.RequestFault):
    """A failed attempt; becomes the error that it carries."""

    def __init__(self, error: errors.PairError, *, again: bool = False, after_seconds: float | None = None) -> None:
        super().__init__(error.message, again, after_seconds)
        self.error = error


class ServerConnection:
    """A connection to one server. Thread-safe."""

    def __init__(self, url: str, key: str, *, timeout_seconds: float, retries: int) -> None:
        """Check address and key. Raises E401."""
        self.address = _check_address(url)
        if not key.isascii() or not key.isprintable():
            raise errors.settings_invalid("connect", "the key has characters that a request cannot contain")
        self._timeout_seconds = timeout_seconds
        self._retry_policy = RetryPolicy(retries, _FIRST_PAUSE_SECONDS)
        headers = {"user-agent": f"pair/{__version__}", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(timeout=timeout_seconds, follow_redirects=False, headers=headers)

    def close(self) -> None:
        self._client.close()

    def fetch(self, request: ClientRequest, decode: Callable[[Json], Result]) -> Result:
        """Send a request and decode the response. Raises the error of the server, and E621."""
        return self.send(request, lambda response: self.decode(response.read(), decode))

    def send(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
        """Send a request until `read` returns a result for the response; `read` may raise AttemptFailed."""
        try:
            return self._retry_policy.run(lambda: self._send_once(request, read))
        except AttemptFailed as caught:
            error = caught.error
        # Raised outside the block, so that no traceback contains the request with its key.
        raise error

    def _send_once(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
        try:
            with self._client.stream(
                request.method,
                f"{self.address}{request.path}",
                content=request.body,
                params=request.parameters or None,
                headers={"content-type": "application/json", **request.headers},
                timeout=httpx2.Timeout(self._timeout_seconds, read=request.read_seconds or self._timeout_seconds),
            ) as response:
                if response.status_code != 200:
                    error = _parse_error(response.read())
                    is_answer = request.accepts_librarian_errors and (error or {}).get("code") in _LIBRARIAN_CODES
                    if not is_answer:
                        raise self._refusal(response, error)
                return read(response)
        except httpx2.TransportError as caught:
            again = request.is_repeatable or isinstance(caught, _NOT_SENT)
            fault = AttemptFailed(self._unreachable(describe_fault(caught)), again=again)
        except (httpx2.HTTPError, httpx2.InvalidURL) as caught:
            fault = AttemptFailed(self._unreachable(describe_fault(caught)))
        raise fault

    def decode(self, body: bytes, decode: Callable[[Json], Result]) -> Result:
        """Decode a JSON object. Raises AttemptFailed for any other body."""
        try:
            return decode(_parse_object(body))
        except (LookupError, ValueError, TypeError, RecursionError) as fault:
            raise AttemptFailed(self._unreachable("the response is not one of pair")) from fault

    def _refusal(self, response: httpx2.Response, error_value: Json | None) -> AttemptFailed:
        status = response.status_code
        if 300 <= status < 400:
            hints = []
            with contextlib.suppress(ValueError):
                parts = urlsplit(response.headers.get("location", ""))
                if parts.scheme and parts.netloc:
                    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
                    hints = [f"Connect to {origin} if that is the server you mean"]
            return AttemptFailed(self._unreachable("it redirects to another address, which is not followed", hints))
        error = self.build_error(error_value, status, response.headers.get("x-request-id", ""))
        pause = parse_retry_after(
            response.headers.get("retry-after"), response.headers.get("date"), SystemClock().now()
        )
        again = status in _TEMPORARY and error.code not in _FINAL
        return AttemptFailed(error, again=again, after_seconds=pause)

    def build_error(self, value: Json | None, status: int, request_id: str = "") -> errors.PairError:
        """Return the error of a response."""
        if value is None or not isinstance(value.get("code"), str):
            return self._unreachable(f"it responds with status {status}")
        code = value["code"]
        default = errors.UsageError if 400 <= status < 500 else errors.DataError
        kind = errors.CODES[code][0] if code in errors.CODES else _KINDS.get(status, default)
        hints = str(value.get("suggestion") or "").splitlines()
        details = {"request_id": request_id} if request_id else None
        return kind(code, str(value.get("message", "")), hints=hints, details=details)

    def _unreachable(self, reason: str, hints: Sequence[str] = ()) -> errors.PairError:
        return errors.server_unreachable(self.address, reason, hints=hints)


def quote_part(value: str) -> str:
    """Quote one part of a path, with its dots: `..` would leave the path. Raises E601."""
    try:
        return quote(value, safe="").replace(".", "%2E")
    except UnicodeEncodeError as fault:
        raise errors.request_invalid("an id has characters that a request cannot contain") from fault


def encode_json(value: object) -> bytes:
    """Encode a value as JSON. Raises E601 if that is impossible."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as fault:
        raise errors.request_invalid(f"not possible as JSON: {fault}") from fault


def _parse_object(body: bytes) -> Json:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _parse_error(body: bytes) -> Json | None:
    try:
        error = _parse_object(body).get("error")
    except (ValueError, TypeError, RecursionError):
        return None
    return error if isinstance(error, dict) else None


def _check_address(url: str) -> str:
    """Return the address without a trailing slash. Raises E401."""
    if not has_host(url):
        raise errors.settings_invalid("connect", "the address must look like http://host:8080")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise errors.settings_invalid("connect", "credentials do not belong in the address: pass them as key=")
    if parts.query or parts.fragment:
        raise errors.settings_invalid("connect", "the address must not have a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


# ── bodies ─────────────────────────────────────────────────────────────────────────────────────────

Conditions = Mapping[str, Any] | Sequence[str]

_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 4_000_000
_IDS_AT_ONCE = 200
"""Maximum number of ids in one request. Even long ids then fit into its body."""


def encode_selection(owner: str | None, conditions: Conditions | None) -> dict[str, str]:
    """Return the query parameters that select documents. Raises E238."""
    values.check_text("owner", owner, optional=True)
    values.check_filter(conditions)
    parameters = {} if owner is None else {"owner": owner}
    if conditions:
        parameters["filter"] = encode_json(encode_filter(conditions)).decode()
    return parameters


def encode_filter(conditions: Conditions) -> Any:
    return dict(conditions) if isinstance(conditions, Mapping) else list(conditions)


def encode_vector(vector: Sequence[float] | np.ndarray) -> list[float]:
    """Return a vector as a list of floats for JSON. Raises E238."""
    try:
        return [float(number) for number in vector]
    except (TypeError, ValueError) as fault:
        raise errors.argument_invalid("vector", "a list of numbers", vector) from fault


def split_ids(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into batches, one for each request."""
    return (ids[begin : begin + _IDS_AT_ONCE] for begin in range(0, len(ids), _IDS_AT_ONCE))


def unless_empty(read: Callable[[], Result], nothing: Result) -> Result:
    """Return the result of `read`, or `nothing` if the KB was never written."""
    try:
        return read()
    except errors.PairError as fault:
        if fault.code != errors.KB_UNINITIALISED:
            raise
        return nothing


def read_events(response: httpx2.Response) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of server-sent events. Only a line feed ends a line: a text may contain other line ends."""
    rest, name = b"", ""
    for block in response.iter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode()
            elif line.startswith(b"data: "):
                yield name, line.removeprefix(b"data: ")


def split_batches(documents: Iterable[Document]) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for document in documents:
        line = _encode_document(document)
        if lines and (len(lines) == _BATCH_DOCUMENTS or size + len(line) > _BATCH_BYTES):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _encode_document(document: Document) -> bytes:
    """Encode a document as JSON. Raises E213."""
    if not document.id:
        raise errors.document_invalid(document.id, "its id is empty")
    if document.vector is None and not document.text.strip():
        raise errors.document_invalid(document.id, "its text is blank")
    optional: Json = {"title": document.title, "url": document.url, "metadata": dict(document.metadata)}
    optional["vector"] = None if document.vector is None else encode_vector(document.vector)
    value = {"id": document.id, "text": document.text} | {name: item for name, item in optional.items() if item}
    try:
        return encode_json(value)
    except errors.UsageError as fault:
        raise errors.document_invalid(document.id, "it cannot be encoded as JSON") from fault


def decode_as(kind: type[Result]) -> Callable[[Json], Result]:
    """Return a decoder that ignores unknown keys."""
    return lambda value: convert_json(value, kind)


def decode_hits(value: Json) -> Hits:
    """Decode hits. The server sends neither the searched shards nor the weights of words."""
    hits = [
        {
            "also_in_count": len(hit["also_in"]),
            **hit,
            "document_id": hit["id"],
            "text": hit["content"],
            "also_in": [{**place, "document_id": place["id"]} for place in hit["also_in"]],
        }
        for hit in value["results"]
    ]
    return convert_json({**value, "passages": hits, "shards_asked": 0}, Hits)


def decode_page(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Return the documents of a page, and the `after` of the next page."""
    return convert_json((value["documents"], value["next"]), tuple[list[StoredDocument], str | None])


def decode_ingestion(value: Json) -> WriteReport:
    return WriteReport(
        added=value["ingested_docs"] - value["replaced_docs"],
        replaced=value["replaced_docs"],
        unchanged=value["unchanged_docs"],
        chunks=value["ingested_chunks"],
        manifest_version=value["manifest_version"],
    )


def decode_changes(value: Json) -> tuple[DocumentChanges, str | None]:
    """Return the changes of a page, and the `after` of the next page."""
    added, removed, changed = (
        tuple(document["id"] for document in value["documents"] if document["change"] == change)
        for change in ("added", "removed", "changed")
    )
    return DocumentChanges(value["kb_id"], value["a"], value["b"], added, removed, changed), value["next"]
