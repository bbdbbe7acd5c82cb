"""RemoteKnowledgeBase: the verbs of KnowledgeBase, for a KB on a server.

Invariants
    What was reported as stored is stored, however often a request had to be sent.
Not here
    Requests, retries and errors: connection.py. Questions: questions.py.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pair import errors
from pair.client import decode
from pair.client.connection import ClientRequest, Failed, Json, ServerConnection, encoded, in_path
from pair.client.questions import Questions
from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.diff import CURRENT, DocumentChanges
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import StoredDocument
from pair.engine.query.request import Hits
from pair.engine.rules import check_kb_id
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.engine.write.writer import WriteReport
from pair.librarians.contract import Context, Response
from pair.sync.report import SyncReport
from pair.values import (
    DEFAULT_MODE,
    MODES,
    Document,
    GraphParameters,
    SearchOptions,
    check_count,
    check_documents,
    check_search,
    check_text,
    check_texts,
)

if TYPE_CHECKING:
    import httpx2
    import numpy as np

_Result = TypeVar("_Result")
Conditions = Mapping[str, Any] | Sequence[str]

INGEST_OWNER = "ingest"
_LONG_SECONDS = 3600.0
"""For work that grows with the KB."""
_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 4_000_000
"""What is sent in one request, and kept until it is answered."""
_SMALL_DOCUMENTS = 100
_SMALL_BYTES = 100_000
"""Up to this a batch is one JSON body, which a server does once for each key; more is a line for each document."""
_PAGE_DOCUMENTS = 1000
_LINES = "application/x-ndjson"


def _nothing_done(_report: WriteReport) -> None:
    """For callers that want the report only."""


def connect(
    url: str, *, kb_id: str = "default", key: str = "", timeout: float = 30.0, retries: int = 5
) -> "RemoteKnowledgeBase":
    """A KB on a server that `pair serve` runs, with the verbs of `KnowledgeBase`. Raises E212, E401.

    `key`: of `pair keys add`, or a token. `timeout`: seconds that the server may be silent, where the work is not
    long by its nature. `retries`: how often a request is sent again when the server cannot be reached or is busy.
    """
    check_kb_id(kb_id)
    connection = ServerConnection(url, key, timeout_seconds=timeout, retries=retries)
    return RemoteKnowledgeBase(connection, kb_id, lambda: secrets.token_hex(16))


class RemoteKnowledgeBase:
    """Used from several threads at once. `close` it, or use it as a context manager."""

    def __init__(self, connection: ServerConnection, kb_id: str, new_id: Callable[[], str]) -> None:
        self._connection = connection
        self._kb_id = kb_id
        self._new_id = new_id
        self._questions = Questions(connection, kb_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteKnowledgeBase {self._kb_id!r} at {self._connection.address}>"

    def close(self) -> None:
        self._connection.close()

    @property
    def kb_id(self) -> str:
        return self._kb_id

    # Writing

    def sync(self, *, wait: bool = True) -> SyncReport:
        """Of the files and links of the server. Raises E101 unless it may wait for another sync."""
        return self._post("/sync", {"wait": wait}, decode.sync_report_of, read_seconds=_LONG_SECONDS)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: Callable[[WriteReport], None] = _nothing_done,
    ) -> WriteReport:
        """Add or replace. Documents may be a stream of any length: what `on_batch` was told of is stored.

        A batch that had to be sent twice may be reported as unchanged. Raises E620 for another owner.
        """
        if owner != INGEST_OWNER:
            raise errors.not_over_http(f"documents of the owner {owner!r}")
        check_count("chunk_size", chunk_size, optional=True)
        total = WriteReport()
        for batch in _batches(check_documents(documents)):
            report = self._stored(batch, chunk_size)
            total = decode.summed(total, report)
            on_batch(report)
        return total

    def _stored(self, lines: Sequence[bytes], chunk_size: int | None) -> WriteReport:
        key = {"idempotency-key": self._new_id()}
        if len(lines) <= _SMALL_DOCUMENTS and sum(map(len, lines)) <= _SMALL_BYTES:
            size = b"" if chunk_size is None else b',"chunk_size":%d' % chunk_size
            body = b'{"kb_id":%s,"documents":[%s]%s}' % (encoded(self._kb_id), b",".join(lines), size)
            request = ClientRequest("POST", "/rag/ingest", body, headers=key, read_seconds=_LONG_SECONDS)
            return self._connection.value(request, decode.write_report_of)
        parameters = {"kb_id": self._kb_id} | ({} if chunk_size is None else {"chunk_size": str(chunk_size)})
        headers = {**key, "content-type": _LINES}
        body = b"\n".join(lines)
        request = ClientRequest("POST", "/rag/ingest", body, parameters, headers, read_seconds=_LONG_SECONDS)
        return self._connection.read(request, self._last_line)

    def _last_line(self, response: "httpx2.Response") -> WriteReport:
        return self._connection.made(response.read().rstrip().rpartition(b"\n")[2], self._result)

    def _result(self, value: Json) -> WriteReport:
        if value["type"] == "result":
            return decode.write_report_of(value)
        error = self._connection.told(value["error"], 200)
        raise Failed(error, again=error.retryable and error.code != errors.PUBLISH_UNKNOWN)

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
    ) -> WriteReport:
        """Documents with these ids, each with a request of its own. Raises E620 for an owner or a filter."""
        check_texts("ids", ids)
        if owner is not None or filter:
            raise errors.not_over_http("deleting by owner or filter", hints=["Delete by ids"])
        paths = [f"/rag/docs/{in_path(each)}" for each in ids if each]
        total = WriteReport()
        for path in paths:
            request = ClientRequest("DELETE", path, parameters={"kb_id": self._kb_id}, read_seconds=_LONG_SECONDS)
            try:
                report = self._connection.value(request, decode.deletion_report_of)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_DOCUMENT:
                    raise
                continue
            total = decode.summed(total, report)
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
        """Passages that answer the query, best first. Raises E620 for `exact`, and for options that HTTP has not."""
        check_search(query, limit, filter, options)
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
        if not query.strip():
            raise errors.query_invalid("the query is empty")
        more = options or SearchOptions()
        if exact or more.diversity or more.graph != GraphParameters():
            raise errors.not_over_http("a search with exact, diversity or graph parameters")
        asked: Json = {"query": query, "k": limit, "search_mode": mode, "explain": explain}
        asked |= {"highlights": more.highlights, "max_distance": more.max_distance}
        if filter:
            asked["filter"] = dict(filter) if isinstance(filter, Mapping) else list(filter)
        return self._post("/rag/query", asked, decode.hits_of)

    def search_vector(
        self,
        vector: "Sequence[float] | np.ndarray",
        *,
        limit: int = 5,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
        max_distance: float | None = None,
        exact: bool = False,
    ) -> Hits:
        """Raises E620: HTTP has no search with a vector."""
        raise errors.not_over_http("a search with a vector", hints=["Search with a text: search(query)"])

    async def ask(
        self, query: str, *, first: str | None = None, context: Context | None = None, timeout: float | None = None
    ) -> Response:
        """An answer with its sources, or an error; nothing is raised for what goes wrong on the way.

        Who asks is whom the key belongs to, whatever the context says.
        """
        check_text("query", query)
        return await self._questions.ask(query, first=first, context=context, timeout=timeout)

    def documents(self, *, after: str = "", limit: int = 100, owner: str | None = None) -> list[StoredDocument]:
        """Stored documents by id, from the first that comes after `after`."""
        check_text("after", after)
        check_count("limit", limit)
        found: list[StoredDocument] = []
        while len(found) < limit:
            wanted = min(_PAGE_DOCUMENTS, limit - len(found))
            parameters = {"kb_id": self._kb_id, "after": after, "limit": str(wanted), "text": "true"}
            parameters |= {} if owner is None else {"owner": owner}
            request = ClientRequest("GET", "/rag/docs", parameters=parameters)
            documents, following = self._connection.value(request, decode.page_of)
            found += documents
            if following is None:
                break
            after = following
        return found

    def document(self, document_id: str) -> StoredDocument:
        """Raises E214."""
        request = ClientRequest("GET", f"/rag/docs/{in_path(document_id)}", parameters={"kb_id": self._kb_id})
        return self._connection.value(request, decode.document_of)

    # Care

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        """Merge and re-cluster shards that are worth it, or all of them. How far it is, is not told over HTTP."""
        asked = {"everything": everything}
        return self._post("/rag/compact", asked, decode.compaction_report_of, read_seconds=_LONG_SECONDS)

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        """Delete shards that no manifest has named for the grace period."""
        asked = {"grace_seconds": grace_seconds}
        return self._post("/rag/gc", asked, decode.garbage_report_of, read_seconds=_LONG_SECONDS)

    def versions(self) -> list[ListedVersion]:
        """The current one and those that can be gone back to, the newest first. Raises E201."""
        request = ClientRequest("GET", "/rag/versions", parameters={"kb_id": self._kb_id})
        return self._connection.value(request, decode.versions_of)

    def diff(self, a: int | str, b: int | str = CURRENT) -> DocumentChanges:
        """Which documents differ between two versions, by id. Raises E201, E218."""
        parameters = {"kb_id": self._kb_id, "entries": "false", "limit": str(_PAGE_DOCUMENTS)}
        found, following = self._differing(parameters | {"a": str(a), "b": str(b)})
        while following is not None:
            named = {"a": str(found.before), "b": str(found.after), "after": following}
            more, following = self._differing(parameters | named)
            found = replace(
                found,
                added=found.added + more.added,
                removed=found.removed + more.removed,
                changed=found.changed + more.changed,
            )
        return found

    def _differing(self, parameters: dict[str, str]) -> tuple[DocumentChanges, str | None]:
        return self._connection.value(ClientRequest("GET", "/rag/diff", parameters=parameters), decode.changes_of)

    def rollback(self, version: int | str) -> Rollback:
        """Make an earlier version the current one, by its number, else by the version of the package installed then."""
        body = encoded({"kb_id": self._kb_id, "version": version})
        key = {"idempotency-key": self._new_id()}
        request = ClientRequest("POST", "/rag/rollback", body, headers=key, read_seconds=_LONG_SECONDS)
        return self._connection.value(request, decode.rollback_of)

    def sweep(self) -> SweepReport:
        """Evict fetched shards that are too old or too many, from the cache of the server."""
        request = ClientRequest("POST", "/cache/sweep", read_seconds=_LONG_SECONDS)
        return self._connection.value(request, decode.sweep_report_of)

    def stats(self) -> EngineStats | None:
        """None when nothing was ever stored."""
        listed = self._connection.value(ClientRequest("GET", "/rag/kbs"), decode.stats_of)
        return next((each for each in listed if each.kb_id == self._kb_id), None)

    def _post(
        self, path: str, value: Json, of: Callable[[Json], _Result], *, read_seconds: float | None = None
    ) -> _Result:
        body = encoded({"kb_id": self._kb_id, **value})
        return self._connection.value(ClientRequest("POST", path, body, read_seconds=read_seconds), of)


def _batches(documents: Iterable[Document]) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for document in documents:
        line = _line(document)
        if lines and (len(lines) == _BATCH_DOCUMENTS or size + len(line) > _BATCH_BYTES):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _line(document: Document) -> bytes:
    """Raises E213."""
    if not document.id:
        raise errors.document_invalid(document.id, "its id is empty")
    if not document.text.strip():
        raise errors.document_invalid(document.id, "its text is blank")
    if document.vector is not None:
        raise errors.document_invalid(document.id, "its vector cannot be sent over HTTP")
    value: Json = {"id": document.id, "text": document.text}
    value |= {"title": document.title} if document.title else {}
    value |= {"url": document.url} if document.url else {}
    value |= {"metadata": dict(document.metadata)} if document.metadata else {}
    try:
        return encoded(value)
    except errors.UsageError as fault:
        raise errors.document_invalid(document.id, "it cannot be written as JSON") from fault
