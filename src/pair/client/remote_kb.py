"""RemoteKnowledgeBase: the methods of KnowledgeBase, for a KB on a server.

Invariants
    A document that was reported as stored is stored, even if a request was sent several times.
    `ask` returns errors as responses instead of raising them.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import httpx2
import msgspec
import numpy as np

from pair import errors, values
from pair.client.connection import AttemptFailed, ClientRequest, Json, Result, ServerConnection, encode_json, quote_part
from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.versions import CURRENT, DocumentChanges, ListedVersion, Rollback
from pair.engine.query.documents import DocumentPage, Facet, StoredDocument
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.engine.write.writer import WriteReport
from pair.librarians.contract import Context, Response
from pair.librarians.threads import in_thread
from pair.sync.report import SyncReport
from pair.values import DEFAULT_MODE, MODES, Document, GraphParameters, Hits, SearchOptions, check_kb_id

Conditions = Mapping[str, Any] | Sequence[str]

_DEFAULT_KB = "default"
INGEST_OWNER = "ingest"
_LONG_SECONDS = 3600.0
"""Timeout of work that grows with the KB."""
_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 4_000_000
_SMALL_DOCUMENTS = 100
_SMALL_BYTES = 100_000
"""A batch up to this size is one JSON body, which is idempotent; a larger one has a line for each document."""
_PAGE_DOCUMENTS = 1000
_ANSWER_SECONDS = 120.0
"""Time for librarians if the caller sets no limit; the server has its own limit."""
_MARGIN_SECONDS = 5.0
"""An answer may arrive this long after the time for librarians."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def connect(
    url: str, *, kb_id: str = "default", key: str = "", timeout: float = 30.0, retries: int = 5
) -> "RemoteKnowledgeBase":
    """Return a KB on a server of `pair serve`, with the methods of `KnowledgeBase`. Raises E212, E401.

    `key`: a key of `pair keys add`, or a token. `timeout`: seconds without a byte from the server; long operations have
    more. `retries`: how often a request is sent again if the server is unreachable or busy.
    """
    check_kb_id(kb_id)
    connection = ServerConnection(url, key, timeout_seconds=timeout, retries=retries)
    return RemoteKnowledgeBase(connection, kb_id)


@dataclass(frozen=True)
class _KbRequests:
    """Requests about one KB of a server."""

    connection: ServerConnection
    kb_id: str

    def get(self, path: str, decoder: Callable[[Json], Result], parameters: Mapping[str, str] | None = None) -> Result:
        request = ClientRequest("GET", path, parameters={"kb_id": self.kb_id, **(parameters or {})})
        return self.connection.fetch(request, decoder)

    def post(
        self, path: str, value: Json, decoder: Callable[[Json], Result], read_seconds: float | None = _LONG_SECONDS
    ) -> Result:
        body = encode_json({"kb_id": self.kb_id, **value})
        return self.connection.fetch(ClientRequest("POST", path, body, read_seconds=read_seconds), decoder)


class RemoteKnowledgeBase:
    """A KB on a server. Thread-safe. Close it, or use it as a context manager."""

    def __init__(self, connection: ServerConnection, kb_id: str) -> None:
        self.kb_id = kb_id
        self._requests = _KbRequests(connection, kb_id)
        self.versions = RemoteVersions(self._requests)
        self.maintenance = RemoteMaintenance(self._requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteKnowledgeBase {self.kb_id!r} at {self._requests.connection.address}>"

    def close(self) -> None:
        self._requests.connection.close()

    # Writing

    def sync(self, *, wait: bool = True) -> SyncReport:
        """Sync the files and links of the server. Without `wait`, raises E101 during another sync."""

        def decode(value: Json) -> SyncReport:
            problems = [(problem["source"], problem["reason"]) for problem in value["problems"]]
            skipped = [(skipped["path"], skipped["reason"]) for skipped in value["skipped"]]
            return msgspec.convert({**value, "problems": problems, "skipped": skipped}, SyncReport)

        return self._requests.post("/sync", {"wait": wait}, decode)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: Callable[[WriteReport], None] = lambda report: None,
    ) -> WriteReport:
        """Add or replace documents from a stream of any length. `on_batch` is called for each stored batch.

        A batch that was sent twice may be reported as unchanged. Raises E620 for another owner.
        """
        if owner != INGEST_OWNER:
            raise errors.not_over_http(f"documents of the owner {owner!r}")
        values.check_count("chunk_size", chunk_size, optional=True)
        total = WriteReport()
        for batch in _split_batches(values.check_documents(documents)):
            report = self._store(batch, chunk_size)
            total += report
            on_batch(report)
        return total

    def _store(self, lines: Sequence[bytes], chunk_size: int | None) -> WriteReport:
        key = {"idempotency-key": secrets.token_hex(16)}
        if len(lines) <= _SMALL_DOCUMENTS and sum(map(len, lines)) <= _SMALL_BYTES:
            size = b"" if chunk_size is None else b',"chunk_size":%d' % chunk_size
            body = b'{"kb_id":%s,"documents":[%s]%s}' % (encode_json(self.kb_id), b",".join(lines), size)
            request = ClientRequest("POST", "/rag/ingest", body, headers=key, read_seconds=_LONG_SECONDS)
            return self._requests.connection.fetch(request, decode_ingestion)
        parameters = {"kb_id": self.kb_id} | ({} if chunk_size is None else {"chunk_size": str(chunk_size)})
        headers = {**key, "content-type": "application/x-ndjson"}
        body = b"\n".join(lines)
        request = ClientRequest("POST", "/rag/ingest", body, parameters, headers, read_seconds=_LONG_SECONDS)
        return self._requests.connection.send(request, self._read_last_line)

    def _read_last_line(self, response: httpx2.Response) -> WriteReport:
        def decode_line(value: Json) -> WriteReport:
            if value["type"] == "result":
                return decode_ingestion(value)
            error = self._requests.connection.build_error(value["error"], 200)
            raise AttemptFailed(error, again=error.retryable and error.code != errors.PUBLISH_UNKNOWN)

        return self._requests.connection.decode(response.read().rstrip().rpartition(b"\n")[2], decode_line)

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
    ) -> WriteReport:
        """Delete documents by id, with one request each. Raises E620 for an owner or a filter."""
        values.check_texts("ids", ids)
        if owner is not None or filter:
            raise errors.not_over_http("deleting by owner or filter", hints=["Delete by ids"])

        def decode(value: Json) -> WriteReport:
            return WriteReport(deleted=value["deleted"], manifest_version=value["manifest_version"])

        paths = [f"/rag/docs/{quote_part(document_id)}" for document_id in ids if document_id]
        total = WriteReport()
        for path in paths:
            request = ClientRequest("DELETE", path, parameters={"kb_id": self.kb_id}, read_seconds=_LONG_SECONDS)
            try:
                total += self._requests.connection.fetch(request, decode)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_DOCUMENT:
                    raise
        return total

    # Reading

    def search(  # noqa: PLR0913 - as in KnowledgeBase
        self,
        query: str,
        *,
        limit: int = 5,
        mode: str = DEFAULT_MODE,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
        exact: bool = False,
        explain: bool = False,
        options: SearchOptions | None = None,
    ) -> Hits:
        """Return the matching passages, best first. Raises E620 for `exact` and for options that HTTP lacks."""
        values.check_search(query, limit, filter, options)
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
        if not query.strip():
            raise errors.query_invalid("the query is empty")
        more = options or SearchOptions()
        if exact or more.diversity or more.graph != GraphParameters():
            raise errors.not_over_http("a search with exact, diversity or graph parameters")
        value: Json = {"query": query, "k": limit, "search_mode": mode, "explain": explain}
        value |= {"highlights": more.highlights, "max_distance": more.max_distance}
        if filter:
            value["filter"] = dict(filter) if isinstance(filter, Mapping) else list(filter)
        return self._requests.post("/rag/query", value, decode_hits, read_seconds=None)

    def search_vector(
        self,
        vector: Sequence[float] | np.ndarray,
        *,
        limit: int = 5,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
        max_distance: float | None = None,
        exact: bool = False,
    ) -> Hits:
        """Raise E620: HTTP has no search with a vector."""
        raise errors.not_over_http("a search with a vector", hints=["Search with a text: search(query)"])

    async def ask(
        self, query: str, *, first: str | None = None, context: Context | None = None, timeout: float | None = None
    ) -> Response:
        """Return an answer with its sources, or the error as a response.

        The user is the owner of the key, not that of the context.
        """
        values.check_text("query", query)
        given = context or Context()
        try:
            return await in_thread(lambda: self._ask(query, first, given, timeout))
        except errors.PairError as fault:
            return Response.of_fault(fault)

    def _ask(self, query: str, first: str | None, context: Context, timeout: float | None) -> Response:
        limits = [timeout, None if context.timeout_ms is None else context.timeout_ms / 1000]
        seconds = min((limit for limit in limits if limit is not None), default=None)
        # The server has its own user and librarians.
        sent = replace(context, user=None, librarian=None, available_delegates=(), timeout_ms=None).to_json()
        if seconds is not None:
            sent["timeout"] = seconds * 1000
        value: Json = {"query": query, "context": sent}
        if self.kb_id != _DEFAULT_KB:
            value["kb_id"] = self.kb_id  # for the default KB, the server chooses the first librarian
        headers = {"x-request-id": context.request_id} if _REQUEST_ID.fullmatch(context.request_id) else {}
        on_text = context.on_text
        if on_text is not None:
            headers["accept"] = "text/event-stream"
        request = ClientRequest(
            "POST",
            "/ask" if first is None else f"/librarians/{quote_part(first)}/ask",
            encode_json(value),
            headers=headers,
            read_seconds=(_ANSWER_SECONDS if seconds is None else seconds) + _MARGIN_SECONDS,
            is_repeatable=False,
            accepts_librarian_errors=True,
        )
        return self._requests.connection.send(request, lambda response: self._read_answer(response, on_text))

    def _read_answer(self, response: httpx2.Response, on_text: Callable[[str], None] | None) -> Response:
        if on_text is None or response.status_code != 200:
            return self._requests.connection.decode(response.read(), Response.from_json)
        for name, data in _read_events(response):
            if name == "text":
                on_text(self._requests.connection.decode(data, lambda value: str(value["text"])))
            elif name == "response":
                return self._requests.connection.decode(data, Response.from_json)
        raise AttemptFailed(self._requests.connection.build_error(None, response.status_code))

    def documents(
        self,
        *,
        after: str = "",
        limit: int = 100,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
        contains: str = "",
    ) -> DocumentPage:
        """Return a list of stored documents by id. Its `next` is the `after` of the next page; None at the end.

        `contains`: a text in the id or title.
        """
        values.check_text("after", after)
        values.check_count("limit", limit)
        values.check_text("contains", contains)
        chosen = {**_encode_selection(owner, filter), "contains": contains, "text": "true"}
        documents: list[StoredDocument] = []
        following: str | None = after
        while following is not None and len(documents) < limit:
            count = min(_PAGE_DOCUMENTS, limit - len(documents))
            parameters = {**chosen, "after": following, "limit": str(count)}
            page, following = self._requests.get("/rag/docs", decode_page, parameters)
            documents += page
        return DocumentPage(documents, following)

    def count(self, *, owner: str | None = None, filter: Conditions | None = None) -> int:  # noqa: A002
        """Return the number of documents of an owner whose metadata meets the filter. Raises E211."""
        parameters = {**_encode_selection(owner, filter), "limit": "1"}
        return self._requests.get("/rag/docs", lambda value: int(value["count"]), parameters)

    def facets(
        self,
        key: str,
        *,
        limit: int = 100,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002
    ) -> list[Facet]:
        """Return the most frequent values of a metadata key, each with the number of documents that have it."""
        values.check_text("key", key)
        values.check_count("limit", limit)
        parameters = {**_encode_selection(owner, filter), "key": key, "limit": str(limit)}
        return self._requests.get(
            "/rag/facets", lambda value: msgspec.convert(value["values"], list[Facet]), parameters
        )

    def document(self, document_id: str) -> StoredDocument:
        """Return a document. Raises E214."""
        return self._requests.get(f"/rag/docs/{quote_part(document_id)}", decode_as(StoredDocument))

    def stats(self) -> EngineStats | None:
        """Return figures of the stored documents; None before the first write."""
        all_stats = self._requests.connection.fetch(
            ClientRequest("GET", "/rag/kbs"), lambda value: msgspec.convert(value["kbs"], list[EngineStats])
        )
        return next((stats for stats in all_stats if stats.kb_id == self.kb_id), None)


def _encode_selection(owner: str | None, conditions: Conditions | None) -> dict[str, str]:
    """Return the query parameters that select documents. Raises E238."""
    values.check_text("owner", owner, optional=True)
    values.check_filter(conditions)
    parameters = {} if owner is None else {"owner": owner}
    if conditions:
        value = dict(conditions) if isinstance(conditions, Mapping) else list(conditions)
        parameters["filter"] = encode_json(value).decode()
    return parameters


def _read_events(response: httpx2.Response) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of server-sent events. Only a line feed ends a line: a text may contain other line ends."""
    rest, name = b"", ""
    for block in response.iter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode()
            elif line.startswith(b"data: "):
                yield name, line.removeprefix(b"data: ")


def _split_batches(documents: Iterable[Document]) -> Iterator[list[bytes]]:
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
    if not document.text.strip():
        raise errors.document_invalid(document.id, "its text is blank")
    if document.vector is not None:
        raise errors.document_invalid(document.id, "its vector cannot be sent over HTTP")
    optional = {"title": document.title, "url": document.url, "metadata": dict(document.metadata)}
    value = {"id": document.id, "text": document.text} | {name: item for name, item in optional.items() if item}
    try:
        return encode_json(value)
    except errors.UsageError as fault:
        raise errors.document_invalid(document.id, "it cannot be encoded as JSON") from fault


class RemoteVersions:
    """The versions of a KB on a server."""

    def __init__(self, requests: _KbRequests) -> None:
        self._requests = requests

    def list(self) -> Sequence[ListedVersion]:
        """Return the current version and those that can be restored, newest first. Raises E201."""

        def decode(value: Json) -> Sequence[ListedVersion]:
            listed = [{**item, "number": item["version"], "is_current": item["current"]} for item in value["versions"]]
            return msgspec.convert(listed, list[ListedVersion])

        return self._requests.get("/rag/versions", decode)

    def diff(self, a: int | str, b: int | str = CURRENT) -> DocumentChanges:
        """Return the ids of documents that differ between two versions. Raises E201, E218."""
        parameters = {"a": str(a), "b": str(b), "entries": "false", "limit": str(_PAGE_DOCUMENTS)}
        changes, following = self._requests.get("/rag/diff", decode_changes, parameters)
        parameters |= {"a": str(changes.before), "b": str(changes.after)}
        while following is not None:
            page, following = self._requests.get("/rag/diff", decode_changes, parameters | {"after": following})
            changes = msgspec.structs.replace(
                changes,
                added=changes.added + page.added,
                removed=changes.removed + page.removed,
                changed=changes.changed + page.changed,
            )
        return changes

    def rollback(self, version: int | str) -> Rollback:
        """Make an earlier version the current one, by its number, else by the version of the package installed then."""
        body = encode_json({"kb_id": self._requests.kb_id, "version": version})
        key = {"idempotency-key": secrets.token_hex(16)}
        request = ClientRequest("POST", "/rag/rollback", body, headers=key, read_seconds=_LONG_SECONDS)
        return self._requests.connection.fetch(
            request, lambda value: msgspec.convert({**value, "is_changed": value["changed"]}, Rollback)
        )


class RemoteMaintenance:
    """Maintenance of a KB on a server."""

    def __init__(self, requests: _KbRequests) -> None:
        self._requests = requests

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        """Merge and re-cluster shards where that pays off, or all of them. The server sends no progress."""
        return self._requests.post("/rag/compact", {"everything": everything}, decode_as(CompactionReport))

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        """Delete shards that no manifest has named for the grace period."""
        return self._requests.post("/rag/gc", {"grace_seconds": grace_seconds}, decode_as(GarbageReport))

    def sweep(self) -> SweepReport:
        """Evict shards from the cache of the server that are beyond the limits of age and size."""
        request = ClientRequest("POST", "/cache/sweep", read_seconds=_LONG_SECONDS)
        return self._requests.connection.fetch(request, decode_as(SweepReport))


def decode_as(kind: type[Result]) -> Callable[[Json], Result]:
    """Return a decoder that ignores unknown keys."""
    return lambda value: msgspec.convert(value, kind)


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
    return msgspec.convert({**value, "passages": hits, "shards_asked": 0}, Hits)


def decode_page(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Return the documents of a page, and the `after` of the next page."""
    return msgspec.convert((value["documents"], value["next"]), tuple[list[StoredDocument], str | None])


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
