"""Access of callers to knowledge bases: the layer that HTTP and MCP share.

Invariants
    The principal comes from the credentials alone. It is checked before every use of a KB.
    A caller with a list of KBs gets answers only from these KBs, by librarians that do not delegate.
"""

import asyncio
import dataclasses
import datetime
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import pydantic

from pair import errors, telemetry
from pair.app.metrics import ServerMetrics
from pair.app.open_kbs import BackgroundJob, OpenKbs, make_jobs
from pair.auth import rules
from pair.auth.rules import ANYBODY, Principal
from pair.clock import Cancellation, SystemClock
from pair.engine.query.documents import StoredDocument
from pair.engine.write.writer import WriteReport
from pair.kb.feedback import Rating
from pair.kb.kb import KbCollection, KnowledgeBase
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB
from pair.librarians.contract import Budget, Context, Response, TraceContext, User
from pair.librarians.threads import in_thread
from pair.settings import Settings
from pair.values import Document, Hits, merge_hits

_Result = TypeVar("_Result")
_Shape = TypeVar("_Shape")
_MAX_LISTED = 1_000
Version = tuple[int, str]


class KbService:
    """Open KBs, metrics, background jobs and write locks, for all callers. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.kbs = OpenKbs(settings)
        self.metrics = ServerMetrics()
        self.jobs: list[BackgroundJob] = []
        self.is_stopping = False
        self.started_at: datetime.datetime = self.clock.now()
        self._turns: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()
        self._busy_threads = 0

    def start_jobs(self) -> None:
        self.jobs = make_jobs(self.kbs, self.metrics)
        for job in self.jobs:
            job.start()

    def stop(self) -> None:
        """Refuse new writes and tell background jobs to stop."""
        self.is_stopping = True
        for job in self.jobs:
            job.stop()

    def close(self, seconds: float) -> None:
        """Wait for background jobs, at most this long. Close the KBs if all work has ended."""
        deadline = self.clock.monotonic() + seconds
        for job in self.jobs:
            job.join(max(0.0, deadline - self.clock.monotonic()))
        if not self.is_busy:
            self.kbs.close()

    def uptime_seconds(self) -> float:
        return (self.clock.now() - self.started_at).total_seconds()

    @property
    def is_busy(self) -> bool:
        return bool(self.metrics.in_flight or self._busy_threads) or any(job.is_running for job in self.jobs)

    async def read(self, work: Callable[[], _Result]) -> _Result:
        """Run work in a thread, and cancel it after the request timeout. Raises E608, E609."""
        seconds = self.settings.server.request_timeout_seconds
        cancellation = Cancellation(seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self.run(lambda: cancellation.run(work))
        except TimeoutError as fault:
            raise errors.took_too_long(seconds) from fault
        finally:
            cancellation.cancel()

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run work in a thread, for as long as it takes."""

        def count_and_work() -> _Result:
            with self._lock:
                self._busy_threads += 1
            try:
                return work()
            finally:
                with self._lock:
                    self._busy_threads -= 1

        return await in_thread(count_and_work)

    async def write(self, kb_id: str, work: Callable[[], _Result]) -> _Result:
        """Run a write. Writes to one KB wait for each other, so they do not conflict. Raises E203, E611."""
        if self.is_stopping:
            raise errors.server_stopping()
        lock, seconds = self._turns.setdefault(kb_id, asyncio.Lock()), self.settings.server.write_wait_seconds
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError as fault:
            raise errors.write_waiting(kb_id, seconds) from fault
        try:
            return await self.run(work)
        finally:
            lock.release()


@dataclass
class KbAccess:
    """The access of one caller to KBs. Raises E603 for KBs that the caller may not use."""

    service: KbService
    principal: Principal = ANYBODY
    request_id: str = field(default_factory=lambda: secrets.token_hex(16))
    traceparent: str = ""
    kb_id: str = ""
    """The KB of the request; "" until it is known."""
    log_fields: dict[str, Any] = field(default_factory=dict)

    def use_kb(self, kb_id: str) -> str:
        """Return the KB of a request after checking access; "" is the default KB. Raises E603."""
        self.kb_id = kb_id or DEFAULT_KB
        rules.check_kb(self.principal, self.kb_id)
        return self.kb_id

    def use_kbs(self, kb_ids: Sequence[str]) -> list[str]:
        """Return the different KBs of a request after checking access to each of them. Raises E603."""
        checked = [self.use_kb(kb_id) for kb_id in dict.fromkeys(kb_ids)]
        self.kb_id = ",".join(checked)
        return checked

    def may_use(self, kb_id: str) -> bool:
        return self.principal.kbs is None or kb_id in self.principal.kbs

    async def search(
        self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], Hits]
    ) -> tuple[Hits, Version, float]:
        """Return the hits, the version, and the duration in milliseconds. Raises E201, E218.

        `at`: the version to search; None for the current one. `work`: the search.
        The returned version is that of the hits, or a newer one if the KB changed during the search.
        """

        def search(kb: KnowledgeBase) -> tuple[Hits, Version]:
            return work(kb), kb.version(last_seen=True)

        began, metrics = time.perf_counter(), self.service.metrics
        try:
            hits, version = await self.read(kb_id, at, search)
        except errors.PairError:
            metrics.note_failure(kb_id, "query_stats", (time.perf_counter() - began) * 1000)
            raise
        took_ms = (time.perf_counter() - began) * 1000
        metrics.note_query(kb_id, took_ms, hits)
        return hits, version, took_ms

    async def search_several(
        self, kb_ids: Sequence[str], limit: int, work: Callable[[KnowledgeBase], Hits]
    ) -> tuple[Hits, dict[str, int], float]:
        """Return the best hits of several KBs, the version of each, and the duration in milliseconds. Raises E201."""
        began = time.perf_counter()
        found = await asyncio.gather(*(self.search(kb_id, None, work) for kb_id in kb_ids))
        hits = {kb_id: hits for kb_id, (hits, _, _) in zip(kb_ids, found, strict=True)}
        versions = {kb_id: each.manifest_version for kb_id, each in hits.items()}
        return merge_hits(hits, limit), versions, (time.perf_counter() - began) * 1000

    async def read(self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return the result of `work` on the current version, or on the version `at`. Raises E201, E218."""
        return await self.service.read(lambda: self.service.kbs.read(kb_id, at, work))

    async def read_document(self, kb_id: str, document_id: str, at: int | str | None) -> StoredDocument:
        """Return a document of the current version, or of the version `at`. Raises E214, E218."""
        return await self.read(kb_id, at, lambda kb: kb.document(document_id))

    async def list_kbs(self) -> list[dict[str, Any]]:
        """Return the statistics of the KBs that the caller may use, sorted by name."""

        def list_stats() -> list[dict[str, Any]]:
            kbs = self.service.kbs
            stats = [kbs.stats_of(kb_id) for kb_id in kbs.list_stored() if self.may_use(kb_id)]
            return [kb_stats.to_json() for kb_stats in stats if kb_stats.manifest_version]

        return await self.service.read(list_stats)

    async def delete(self, kb_id: str, document_id: str) -> dict[str, Any]:
        """Delete a document and return the report. Raises E201, E214, E603."""

        def delete(kb: KnowledgeBase) -> WriteReport:
            kb.version()  # a KB without any write is another error than a missing document
            report = kb.delete([document_id])
            if not report.deleted:
                raise errors.no_such_document(kb_id, document_id)
            return report

        return await self.delete_many(kb_id, delete)

    async def delete_many(self, kb_id: str, work: Callable[[KnowledgeBase], WriteReport]) -> dict[str, Any]:
        """Delete documents and return the report. `work`: the deletion. Raises E603."""
        rules.check_scope(self.principal, "write")
        began, service = time.perf_counter(), self.service
        report = await service.write(kb_id, lambda: work(service.kbs.get(kb_id, for_writing=True)))
        service.metrics.note_write(kb_id, (time.perf_counter() - began) * 1000, report)
        return {"status": "ok", "kb_id": kb_id, "deleted": report.deleted, "manifest_version": report.manifest_version}

    async def give_feedback(self, kb_id: str, query: str, rating: Rating, documents: Sequence[str]) -> None:
        """Store a judgement about documents of a KB. Raises E201, E202, E238."""
        kbs = self.service.kbs

        def add(kb: KnowledgeBase) -> None:
            kb.feedback.add(query, rating, documents, version=kb.version(last_seen=False)[0])

        await self.service.run(lambda: kbs.read(kb_id, None, add))

    @property
    def user(self) -> User | None:
        caller = self.principal
        return User(caller.id, caller.email, caller.teams, caller.roles) if caller.user else None

    def may_ask(self, librarians: KbLibrarians, librarian: str) -> bool:
        """Return whether the caller may ask a librarian and use the KBs that it answers from."""
        return librarians.registry.allows(self.user, librarian) and self.is_within_kbs(librarians, librarian)

    def is_within_kbs(self, librarians: KbLibrarians, librarian: str) -> bool:
        if self.principal.kbs is None:
            return True
        delegates = librarians.registry[librarian].entry.delegates_to != ()
        return librarians.find_kb(librarian) in self.principal.kbs and not delegates

    def new_context(self) -> Context:
        """Return the default context of a question."""
        ids, limits = telemetry.parse_traceparent(self.traceparent), self.service.settings.librarians
        return Context(
            user=self.user,
            trace=TraceContext(*ids) if ids else None,
            request_id=self.request_id,
            budget=Budget(limits.max_calls, limits.max_tokens),
        )

    async def prepare_ask(self, query: str, librarian: str | None, at: int | str | None = None) -> "AskRun":
        """Find the librarian; None is the first one. Raises E201, E218, E603, E605, E615."""
        service = self.service
        librarians = await service.read(lambda: service.kbs.librarians(self.kb_id or DEFAULT_KB))
        first = librarian or librarians.first
        if first not in librarians.registry:
            raise errors.no_such_librarian(first)
        if not self.is_within_kbs(librarians, first):
            raise errors.not_allowed(f"the librarian {first!r}")
        run = AskRun(self, librarians, first, query)
        if at is None:
            return run
        kb_id = librarians.find_kb(first)
        if kb_id is None:
            raise errors.librarian_without_past(first)
        return dataclasses.replace(run, version=await service.read(lambda: service.kbs.collection_at(kb_id, at)))


@dataclass(frozen=True)
class AskRun:
    """One question to one librarian."""

    access: KbAccess
    librarians: KbLibrarians
    librarian: str
    query: str
    version: KbCollection | None = None

    async def answer(self, context: Context | None = None, seconds: float | None = None) -> Response:
        """Ask and return the response. Errors are part of the response."""
        service, began = self.access.service, time.perf_counter()
        most_seconds = service.settings.librarians.timeout_seconds
        response = await self.librarians.ask(
            self.query,
            first=self.librarian,
            context=context or self.access.new_context(),
            timeout=most_seconds if seconds is None else min(seconds, most_seconds),
            collection=self.version,
        )
        code = response.error.code if response.error else ""
        service.metrics.note_ask(self.librarian, (time.perf_counter() - began) * 1000, code)
        return response


@dataclass
class IngestRun:
    """The documents of one request, stored in batches."""

    access: KbAccess
    kb_id: str
    key: str = ""
    """Idempotency key. A repeated request with a key makes the same ids for documents without one."""
    graph: bool | None = None
    chunk_size: int | None = None
    ids: list[str] = field(default_factory=list)
    total: WriteReport = field(default_factory=WriteReport)
    _named: int = 0

    async def write(self, documents: Sequence[Document]) -> list[str]:
        """Store documents and return their ids. Raises E213 for a blank text, E603."""
        rules.check_scope(self.access.principal, "write")
        batch = [
            document if document.id else dataclasses.replace(document, id=self._new_id()) for document in documents
        ]
        for document in batch:
            if document.vector is None and not document.text.strip():
                raise errors.document_invalid(document.id, "its text is blank")
        service, began = self.access.service, time.perf_counter()
        try:
            report = await service.write(
                self.kb_id,
                lambda: service.kbs.get(self.kb_id, for_writing=True, graph=self.graph).upsert(
                    batch, chunk_size=self.chunk_size
                ),
            )
        except errors.PairError as fault:
            service.metrics.note_failure(self.kb_id, "ingest_stats", (time.perf_counter() - began) * 1000)
            if isinstance(fault, errors.ConflictError):
                service.metrics.note_lease_conflict(self.kb_id)
            raise
        service.metrics.note_write(self.kb_id, (time.perf_counter() - began) * 1000, report)
        ids = [document.id for document in batch]
        self.ids += ids
        self.total += report
        return ids

    @property
    def counts(self) -> dict[str, int]:
        return {
            "ingested_docs": self.total.added + self.total.replaced,
            "ingested_chunks": self.total.chunks,
            "replaced_docs": self.total.replaced,
            "unchanged_docs": self.total.unchanged,
            "manifest_version": self.total.manifest_version,
        }

    def to_json(self) -> dict[str, Any]:
        return {"status": "ok", "kb_id": self.kb_id, **self.counts, "doc_ids": self.ids}

    def _new_id(self) -> str:
        self._named += 1
        if not self.key:
            return f"doc-{secrets.token_hex(12)}"
        text = "\0".join([self.access.principal.client, self.kb_id, self.key, str(self._named)])
        return f"doc-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


# ── validation ────────────────────────────────────────────────────────────────────────────────────────


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def strict(shape: type[_Shape]) -> type[_Shape]:
    """Make a frozen dataclass. Validation refuses unknown fields and infinite numbers."""
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(shape)


def first_problem(fault: pydantic.ValidationError) -> str:
    """Describe the first problem without the value, which can be long or secret."""
    if fault.error_count() > _MAX_LISTED:  # pydantic would build all problems to return the first
        return f"{fault.error_count():,} values are invalid"
    return describe_problem(fault.errors(include_url=False, include_context=False, include_input=False)[0])


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Describe an error of pydantic without the value."""
    place = ".".join(map(str, problem["loc"]))[:200]
    message = problem["msg"][:1].lower() + problem["msg"][1:200]
    return f"{place}: {message}" if place else message
