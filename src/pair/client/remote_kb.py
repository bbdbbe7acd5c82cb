"""RemoteKnowledgeBase: the methods of KnowledgeBase, for a KB on a server.

Invariants
    A document that was reported as stored is stored, even if a request was sent several times.
    `ask` returns errors as responses instead of raising them.
"""

import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import httpx2
import msgspec
import numpy as np

from pair import errors, values
from pair.client.connection import (
    AttemptFailed,
    ClientRequest,
    Conditions,
    Json,
    Result,
    ServerConnection,
    decode_as,
    decode_changes,
    decode_hits,
    decode_ingestion,
    decode_page,
    encode_filter,
    encode_json,
    encode_selection,
    encode_vector,
    quote_part,
    read_events,
    split_batches,
    split_ids,
    unless_empty,
)
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
from pair.values import DEFAULT_MODE, Document, GraphParameters, Hits, SearchOptions, check_kb_id, convert_json

Rating = Literal["up", "down"]

_DEFAULT_KB = "default"
_LONG_SECONDS = 3600.0
"""Timeout of work that grows with the KB."""
_SMALL_DOCUMENTS = 100
_SMALL_BYTES = 100_000
"""The largest batch that is one idempotent JSON body. A larger batch has a line for each document."""
_PAGE_DOCUMENTS = 1000
_ANSWER_SECONDS = 120.0
"""Time for librarians if the caller sets no limit; the server has its own limit."""
_MARGIN_SECONDS = 5.0
"""An answer may arrive this long after the time for librarians."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def connect(
    url: str,
    *,
    kb_id: str = "default",
    key: str = "",
    timeout: float = 30.0,
    retries: int = 5,
    at: int | str | None = None,
) -> "RemoteKnowledgeBase":
    """Return a KB on a server of `pair serve`, with the methods of `KnowledgeBase`. Raises E212, E401.

    `at`: read this version, by number, or by the version of the package installed then.
    `key`: a key of `pair keys add`, or a token. `timeout`: seconds without a byte from the server; long operations have
    more. `retries`: how often a request is sent again if the server is unreachable or busy.
    """
    check_kb_id(kb_id)
    connection = ServerConnection(url, key, timeout_seconds=timeout, retries=retries)
    return RemoteKnowledgeBase(connection, kb_id, at)


@dataclass(frozen=True)
class _KbRequests:
    """Requests about one KB of a server."""

    connection: ServerConnection
    kb_id: str
    at: int | str | None = None
    """The version that is read; None for the current one."""

    def get(self, path: str, decoder: Callable[[Json], Result], parameters: Mapping[str, str] | None = None) -> Result:
        request = ClientRequest("GET", path, parameters={"kb_id": self.kb_id, **(parameters or {})})
        return self.connection.fetch(request, decoder)

    def read(self, path: str, decoder: Callable[[Json], Result], parameters: Mapping[str, str] | None = None) -> Result:
        """Send a GET request for the version that is read."""
        version = {} if self.at is None else {"at": str(self.at)}
        return self.get(path, decoder, {**version, **(parameters or {})})

    def check_writable(self) -> None:
        """Raise E219 for an earlier version."""
        if self.at is not None:
            raise errors.past_is_read_only(self.kb_id, self.at)

    def post(
        self, path: str, value: Json, decoder: Callable[[Json], Result], read_seconds: float | None = _LONG_SECONDS
    ) -> Result:
        body = encode_json({"kb_id": self.kb_id, **value})
        return self.connection.fetch(ClientRequest("POST", path, body, read_seconds=read_seconds), decoder)


class RemoteKnowledgeBase:
    """A KB on a server. Thread-safe. Close it, or use it as a context manager."""

    def __init__(self, connection: ServerConnection, kb_id: str, at: int | str | None = None) -> None:
        self.kb_id = kb_id
        self._requests = _KbRequests(connection, kb_id, at)
        self.versions = RemoteVersions(self._requests)
        self.maintenance = RemoteMaintenance(self._requests)
        self.feedback = RemoteFeedback(self._requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteKnowledgeBase {self.kb_id!r} at {self._requests.connection.address}>"

    def close(self) -> None:
        self._requests.connection.close()

    @property
    def is_past(self) -> bool:
        """Whether it was opened at one version and never shows a later one."""
        return self._requests.at is not None

    # Writing

    def sync(self, *, wait: bool = True) -> SyncReport:
        """Sync the files and links of the server. Without `wait`, raises E101 during another sync."""

        self._requests.check_writable()

        def decode(value: Json) -> SyncReport:
            problems = [(problem["source"], problem["reason"]) for problem in value["problems"]]
            skipped = [(skipped["path"], skipped["reason"]) for skipped in value["skipped"]]
            return convert_json({**value, "problems": problems, "skipped": skipped}, SyncReport)

        return self._requests.post("/sync", {"wait": wait}, decode)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = values.INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: Callable[[WriteReport], None] = lambda report: None,
    ) -> WriteReport:
        """Add or replace documents from a stream of any length. `on_batch` is called for each stored batch.

        A batch that was sent twice may be reported as unchanged. Raises E620 for another owner.
        """
        self._requests.check_writable()
        if owner != values.INGEST_OWNER:
            raise errors.not_over_http(f"documents of the owner {owner!r}")
        values.check_count("chunk_size", chunk_size, optional=True)
        total = WriteReport()
        for batch in split_batches(values.check_documents(documents)):
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
        """Delete documents with these ids, and all whose metadata meets the filter. Raises E620 for an owner.

        Ids that no document has are ignored. Many ids are sent in several requests.
        """
        values.check_texts("ids", ids)
        self._requests.check_writable()
        values.check_filter(filter)
        if owner is not None:
            raise errors.not_over_http("deleting by owner", hints=["Delete by ids or by a filter"])

        def decode(value: Json) -> WriteReport:
            return WriteReport(deleted=value["deleted"], manifest_version=value["manifest_version"])

        bodies: list[Json] = [{"ids": list(batch)} for batch in split_ids(ids)]
        if filter:
            bodies.append({"filter": encode_filter(filter)})
        return sum((self._requests.post("/rag/delete", body, decode) for body in bodies), WriteReport())

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
        """Return the matching passages, best first. Raises E620 for `exact` and for graph parameters."""
        values.check_search(query, mode, limit, filter, options)
        more = options or SearchOptions()
        if exact or more.graph != GraphParameters():
            raise errors.not_over_http("a search with exact or graph parameters")
        value: Json = {"query": query, "k": limit, "search_mode": mode, "explain": explain}
        value |= {"highlights": more.highlights, "max_distance": more.max_distance, "at": self._requests.at}
        value |= {"diversity": more.diversity, "allow_weak": more.allow_weak}
        if more.vector is not None:
            value["vector"] = encode_vector(more.vector)
        if filter:
            value["filter"] = encode_filter(filter)
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
        """Return chunks near to a vector, nearest first. Raises E303, E620 for `exact`."""
        values.check_count("limit", limit)
        values.check_filter(filter)
        values.check_number("max_distance", max_distance)
        if exact:
            raise errors.not_over_http("a search with exact")
        value: Json = {"vector": encode_vector(vector), "k": limit, "max_distance": max_distance}
        value["at"] = self._requests.at
        if filter:
            value["filter"] = encode_filter(filter)
        return self._requests.post("/rag/query", value, decode_hits, read_seconds=None)

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
            value["kb_id"] = self.kb_id  # For the default KB, the server chooses the first librarian.
        if self._requests.at is not None:
            value["at"] = self._requests.at
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
        for name, data in read_events(response):
            if name == "text":
                on_text(self._requests.connection.decode(data, lambda value: str(value["text"])))
            elif name == "response":
                return self._requests.connection.decode(data, Response.from_json)
        raise AttemptFailed(self._requests.connection.build_error(None, response.status_code))

    def documents(  # noqa: PLR0913 - as in KnowledgeBase
        self,
        *,
        after: str = "",
        limit: int = 100,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - as in KnowledgeBase
        contains: str = "",
        ids: Sequence[str] | None = None,
        vectors: bool = False,
    ) -> DocumentPage:
        """Return a list of stored documents by id. Its `next` is the `after` of the next page; None at the end.

        `contains`: a text in the id or title. `ids`: only these documents; missing ids are ignored. `vectors`: with the
        vector of each document of one chunk. Raises E620 for `contains` with `ids` or `vectors`.
        """
        values.check_text("after", after)
        values.check_count("limit", limit)
        values.check_text("contains", contains)
        if ids is not None or vectors:
            if contains:
                raise errors.not_over_http("a list of documents with contains and ids or vectors")
            return self._fetch(encode_selection(owner, filter), after, limit, ids, vectors)
        chosen = {**encode_selection(owner, filter), "contains": contains, "text": "true"}
        documents: list[StoredDocument] = []
        following: str | None = after
        while following is not None and len(documents) < limit:
            count = min(_PAGE_DOCUMENTS, limit - len(documents))
            parameters = {**chosen, "after": following, "limit": str(count)}
            page, following = self._requests.read("/rag/docs", decode_page, parameters)
            documents += page
        return DocumentPage(documents, following)

    def _fetch(
        self, chosen: dict[str, str], after: str, limit: int, ids: Sequence[str] | None, vectors: bool
    ) -> DocumentPage:
        """Return documents by ids, or with vectors."""
        value: Json = {"owner": chosen.get("owner"), "vectors": vectors, "at": self._requests.at}
        if "filter" in chosen:
            value["filter"] = json.loads(chosen["filter"])
        if ids is not None:
            values.check_texts("ids", ids)
            found: list[StoredDocument] = []
            for batch in split_ids([name for name in ids if name > after]):
                body = {**value, "ids": list(batch), "limit": _PAGE_DOCUMENTS}
                found += self._requests.post("/rag/docs", body, decode_page)[0]
            found.sort(key=lambda document: document.id)
            return DocumentPage(found[:limit], found[limit - 1].id if 0 < limit < len(found) else None)
        documents: list[StoredDocument] = []
        following: str | None = after
        while following is not None and len(documents) < limit:
            body = {**value, "after": following, "limit": min(_PAGE_DOCUMENTS, limit - len(documents))}
            page, following = self._requests.post("/rag/docs", body, decode_page)
            documents += page
        return DocumentPage(documents, following)

    def existing_ids(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids that exist in the KB; none of them before the first write."""
        values.check_texts("ids", ids)

        def decode(value: Json) -> list[str]:
            return [document["id"] for document in value["documents"]]

        stored: set[str] = set()
        for batch in split_ids([*dict.fromkeys(ids)]):
            body: Json = {"ids": list(batch), "limit": _PAGE_DOCUMENTS, "text": False, "at": self._requests.at}
            stored.update(unless_empty(functools.partial(self._requests.post, "/rag/docs", body, decode), []))
        return frozenset(stored)

    def count(self, *, owner: str | None = None, filter: Conditions | None = None) -> int:  # noqa: A002
        """Return the number of documents of an owner whose metadata meets the filter; 0 before the first write.

        Raises E211.
        """
        parameters = {**encode_selection(owner, filter), "limit": "1"}
        return unless_empty(lambda: self._requests.read("/rag/docs", lambda value: int(value["count"]), parameters), 0)

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
        parameters = {**encode_selection(owner, filter), "key": key, "limit": str(limit)}

        def decode(value: Json) -> list[Facet]:
            return convert_json(value["values"], list[Facet])

        return unless_empty(lambda: self._requests.read("/rag/facets", decode, parameters), [])

    def document(self, document_id: str) -> StoredDocument:
        """Return a document. Raises E214."""
        return self._requests.read(f"/rag/docs/{quote_part(document_id)}", decode_as(StoredDocument))

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        """Merge and re-cluster shards where that is worthwhile, or all of them. The server sends no progress."""
        return self.maintenance.compact(everything=everything, on_progress=on_progress)

    def sweep(self) -> SweepReport:
        """Evict shards from the cache of the server that are beyond the limits of age and size."""
        return self.maintenance.sweep()

    def stats(self) -> EngineStats:
        """Return figures of the stored documents: zeros before the first write."""
        all_stats = self._requests.connection.fetch(
            ClientRequest("GET", "/rag/kbs"), lambda value: convert_json(value["kbs"], list[EngineStats])
        )
        return next((stats for stats in all_stats if stats.kb_id == self.kb_id), EngineStats.empty(self.kb_id))


class RemoteVersions:
    """The versions of a KB on a server."""

    def __init__(self, requests: _KbRequests) -> None:
        self._requests = requests

    def open(self, version: int | str) -> RemoteKnowledgeBase:
        """Return an earlier version for reading, on the same connection. Its first read raises E201 or E218."""
        return RemoteKnowledgeBase(self._requests.connection, self._requests.kb_id, version)

    def list(self) -> Sequence[ListedVersion]:
        """Return the current version and those that can be restored, newest first. Raises E201."""

        def decode(value: Json) -> Sequence[ListedVersion]:
            listed = [{**item, "number": item["version"], "is_current": item["current"]} for item in value["versions"]]
            return convert_json(listed, list[ListedVersion])

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
        """Make an earlier version the current one, by its number, or by the package version that it had installed."""
        body = encode_json({"kb_id": self._requests.kb_id, "version": version})
        key = {"idempotency-key": secrets.token_hex(16)}
        request = ClientRequest("POST", "/rag/rollback", body, headers=key, read_seconds=_LONG_SECONDS)
        return self._requests.connection.fetch(
            request, lambda value: convert_json({**value, "is_changed": value["changed"]}, Rollback)
        )


class RemoteMaintenance:
    """Maintenance of a KB on a server."""

    def __init__(self, requests: _KbRequests) -> None:
        self._requests = requests

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        """Merge and re-cluster shards where that is worthwhile, or all of them. The server sends no progress."""
        return self._requests.post("/rag/compact", {"everything": everything}, decode_as(CompactionReport))

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        """Delete shards that no manifest has named for the grace period."""
        return self._requests.post("/rag/gc", {"grace_seconds": grace_seconds}, decode_as(GarbageReport))

    def sweep(self) -> SweepReport:
        """Evict shards from the cache of the server that are beyond the limits of age and size."""
        request = ClientRequest("POST", "/cache/sweep", read_seconds=_LONG_SECONDS)
        return self._requests.connection.fetch(request, decode_as(SweepReport))


class RemoteFeedback:
    """The judgements of the users of a KB on a server."""

    def __init__(self, requests: _KbRequests) -> None:
        self._requests = requests

    def add(self, query: str, rating: Rating, documents: Sequence[str] = ()) -> None:
        """Store a judgement. `documents`: the hit, or the documents that an answer cites."""
        values.check_text("query", query)
        values.check_texts("documents", documents)
        value = {"query": query, "rating": rating, "document_ids": list(documents)}
        self._requests.post("/feedback", value, lambda _: None)
