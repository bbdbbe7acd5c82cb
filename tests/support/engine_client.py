"""A simulated process that works on the KB. Each of its calls is checked against the ledger.

Only injected faults may occur: the store is unavailable, or another client was faster or holds the lease.
Any error except E208 means that nothing was written, and that nothing will be written later.
"""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pair import errors
from pair.blobs.contract import Lease, Leases, refuse_without_compare_and_swap
from pair.blobs.leases import BlobLeases, MemoryLeases
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.commit import EngineContext
from pair.engine.write.writer import WriteReport
from pair.kb.kb import KnowledgeBase
from pair.testing.clock import ManualClock
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import Document
from support.engine_ledger import (
    CHUNK_SIZE_BYTES,
    Change,
    Contents,
    Fact,
    HashEmbedder,
    Ledger,
    WatchedStore,
    nearest_chunks,
    vector_of,
)
from support.engine_parts import make_core
from support.engine_turns import Actor, Turns, Weather

KB = "kb"
OWNERS = ("ann", "bob")
POLICY = EngineSettings(
    graph="off",
    # In simulated seconds. The thread that renews leases waits a third of this in real time, so it never wakes.
    lease_seconds=3_000.0,
    gc_grace_seconds=2_000.0,
    chunk_size_bytes=CHUNK_SIZE_BYTES,
    ingest_batch_documents=4,
    write_attempts=6,
    shard_trigger_vector_rows=10,
    max_vector_rows_per_shard=8,
    query_shard_fanout=2,
    query_shard_fanout_adaptive_max=3,
    # A query waits while another thread fetches for it, so only one of them acts at a time.
    query_shard_parallelism=1,
    compaction_min_shard_count=4,
    compaction_tombstone_ratio=0.3,
    keep_versions=0,
)
EXPECTED_CODES = {"E202", "E203", "E206", "E208", "E210"}
_WRITES: tuple[Fault, ...] = ("before", "after", "twice", "delay", "late", "again")
_READS: tuple[Fault, ...] = ("before", "after", "delay")
_Answer = TypeVar("_Answer")
_WRITING = {"put", "put_if", "create", "upload", "delete"}


class World:
    """The state that all clients share."""

    def __init__(
        self, dice: random.Random, *, share: float, lease_kind: str, keep_versions: int = 0, name: str = "id"
    ) -> None:
        self.dice = dice
        self.share = share
        """The share of requests that fail."""
        self.lease_kind = lease_kind
        self.keep_versions = keep_versions
        self.clock = ManualClock()
        self._name = name
        self.turns = Turns(dice, self.clock, Weather())
        self.ledger = Ledger(KB, on_note=lambda text: self.turns.note("store", text))
        self.store = WatchedStore(self.clock, self.ledger, self.turns.faults.append)
        self.leases = self.own_leases("everybody")
        self._ids = itertools.count(1)
        self._texts = itertools.count(1)

    def own_leases(self, holder: str) -> MemoryLeases:
        return MemoryLeases(holder=holder, new_token=self.new_id, clock=self.clock)

    def new_id(self) -> str:
        return f"{self._name}-{next(self._ids)}"

    def new_fact(self, name: str, owner: str) -> Fact:
        """Return a new fact: sometimes with several chunks, sometimes equal to the stored one."""
        present = self.ledger.contents.get(name)
        if present is not None and present.owner == owner and self.dice.random() < 0.3:
            return present
        words = [f"text {next(self._texts)}"] * self.dice.choice((1, 1, 1, 12))
        return Fact(" ".join(words), owner, self.dice.randrange(3))

    def fault(self, operation: str, *, is_swap: bool) -> Fault:
        share = min(0.5, 5 * self.share) if is_swap else self.share
        if self.dice.random() >= share:
            return "none"
        return self.dice.choice(_WRITES if operation in _WRITING else _READS)


class FailingLeases:
    """The leases of all clients, over an unreliable network."""

    def __init__(self, leases: Leases, fault: Callable[[str], Fault]) -> None:
        self._leases = leases
        self._fault = fault

    def acquire(self, name: str, *, seconds: float) -> Lease:
        return self._send("acquire", lambda: self._leases.acquire(name, seconds=seconds))

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        raise AssertionError("no lease is renewed in a simulation")

    def release(self, lease: Lease) -> None:
        self._send("release", lambda: self._leases.release(lease))

    def close(self) -> None:
        """Do nothing: the leases belong to all clients."""

    def _send(self, operation: str, act: Callable[[], _Answer]) -> _Answer:
        fault = self._fault(operation)
        if fault == "before":
            raise errors.store_unreachable("the leases", "The request was lost")
        answer = act()
        if fault == "after":
            raise errors.store_unreachable("the leases", "The answer was lost")
        return answer


class Client:
    def __init__(self, world: World, actor: Actor, folder: Path) -> None:
        self.world = world
        self.actor = actor
        self._folder = folder
        self._change: Change | None = None
        self.expects_no_fault = False
        self.kb = self._started()

    def restart(self) -> None:
        """Restart as a new process without state and open files."""
        self.kb.close()
        self.kb = self._started()

    def _started(self, at: int | None = None) -> KnowledgeBase:
        world, turns = self.world, self.world.turns
        policy = dataclasses.replace(POLICY, keep_versions=world.keep_versions)
        store = FaultyStore(
            world.store,
            self._fault_of_request,
            on_delay=self._sleep,
            on_late=turns.in_flight.append,
        )
        publication = ManifestStore(
            store,
            KB,
            before_first_write=lambda: refuse_without_compare_and_swap(store, f"{KB}.duckdb.", world.new_id()),
            on_step=self._step,
            keeps_versions=bool(policy.keep_versions),
            at=None if at is None else str(at),
        )
        cache = ShardCache(store, self._folder, world.clock)
        parts = EngineContext(
            KB, policy, publication, cache, self._leases(store), world.clock, self._new_id, self._pause, self._step
        )
        return KnowledgeBase(make_core(parts, store, HashEmbedder()))

    def _leases(self, store: FaultyStore) -> Leases:
        world, name = self.world, self.actor.name
        if world.lease_kind == "blob":
            return BlobLeases(store, holder=name, new_token=world.new_id, clock=world.clock)
        # `none`: the lease service loses all leases, and grants each one to every client.
        shared = world.leases if world.lease_kind == "memory" else world.own_leases(name)
        return FailingLeases(shared, lambda operation: self._fault_of_request(operation, "lease"))

    # Places where another client may act

    def _fault_of_request(self, operation: str, key: str) -> Fault:
        self.world.turns.point(self.actor)
        fault = self.world.fault(operation, is_swap="manifest" in key and operation in _WRITING)
        self.world.turns.note(self.actor.name, f"{operation} {key[-44:]} {'' if fault == 'none' else fault.upper()}")
        return fault

    def _step(self, name: str) -> None:
        self.world.turns.point(self.actor)

    def _sleep(self) -> None:
        self.world.turns.sleep(self.actor)
        self.world.turns.point(self.actor)

    def _pause(self, attempt: int) -> None:
        self.world.turns.sleep(self.actor, 8 * attempt)
        self.world.turns.point(self.actor)

    def _new_id(self) -> str:
        name = self.world.new_id()
        if self._change is not None:
            self.world.ledger.changes[name] = self._change
        return name

    # Writing

    def upsert(self, names: Sequence[str]) -> None:
        owner = self.world.dice.choice(OWNERS)
        facts = {name: self.world.new_fact(name, owner) for name in names}
        batches = iter(_puts(list(facts.items()), POLICY.ingest_batch_documents))
        self._change = next(batches)

        def acknowledge(report: WriteReport) -> None:
            assert self._change is not None
            self._judge_upsert(self._change, report)
            self._change = next(batches, _nothing("compaction after all batches", is_afterthought=True))

        with self._judged(f"upsert {' '.join(names)}"):
            documents = [Document(name, fact.text, metadata={"kind": fact.kind}) for name, fact in facts.items()]
            self.kb.upsert(documents, owner=owner, on_batch=acknowledge)

    def delete_ids(self, names: Sequence[str]) -> None:
        with self._deleting(f"delete {' '.join(names)}", lambda name, fact: name in names) as change:
            self._judge_delete(change, self.kb.delete(ids=names))

    def delete_owner(self, owner: str) -> None:
        with self._deleting(f"delete what is {owner}'s", lambda name, fact: fact.owner == owner) as change:
            self._judge_delete(change, self.kb.delete(owner=owner))

    def delete_kind(self, kind: int) -> None:
        with self._deleting(f"delete kind {kind}", lambda name, fact: fact.kind == kind) as change:
            self._judge_delete(change, self.kb.delete(filter={"kind": kind}))

    def compact(self, *, everything: bool) -> None:
        self._change = _nothing("compaction")
        with self._judged("compact"):
            self.kb.maintenance.compact(everything=everything)

    def collect(self, grace_seconds: float | None) -> None:
        self._change = _nothing("garbage collection")
        with self._judged("collect"):
            self.kb.maintenance.collect(grace_seconds=grace_seconds)

    def roll_back(self, number: int) -> None:
        ledger = self.world.ledger
        self._change = change = Change(f"roll back to {number}", lambda contents: ledger.history[number])
        with self._judged(change.title, "E218"):
            report = self.kb.versions.rollback(number)
            assert report.restored == number
            assert report.documents == len(ledger.history[number])
            assert report.is_changed == bool(change.published), f"{change.title}: {report}"

    @contextlib.contextmanager
    def _deleting(self, title: str, is_meant: Callable[[str, Fact], bool]) -> Iterator[Change]:
        def without(contents: Contents) -> Contents:
            return {name: fact for name, fact in contents.items() if not is_meant(name, fact)}

        self._change = Change(title, without)
        with self._judged(title):
            yield self._change

    def _judge_upsert(self, change: Change, report: WriteReport) -> None:
        history = self.world.ledger.history
        if not change.published:
            then = history[report.manifest_version]
            assert change.apply(then) == then, f"{change.title}: reported as unchanged, and is not there"
            return
        (number,) = change.published
        before, after = history[number - 1], history[number]
        added = after.keys() - before.keys()
        replaced = [name for name in before if before[name] != after[name]]
        assert (report.added, report.replaced) == (len(added), len(replaced)), f"{change.title}: {report}"
        assert report.manifest_version >= number

    def _judge_delete(self, change: Change, report: WriteReport) -> None:
        history = self.world.ledger.history
        if not change.published:
            then = history[report.manifest_version]
            assert change.apply(then) == then, f"{change.title}: reported as not there, and it is"
            return
        (number,) = change.published
        assert report.deleted == len(history[number - 1]) - len(history[number]), f"{change.title}: {report}"
        assert report.manifest_version >= number

    # Reading

    def search(self, limit: int, *, exact: bool, kind: int | None) -> None:
        query = vector_of(f"query {limit}")
        with self._reading("search") as versions:
            condition = None if kind is None else {"kind": kind}
            hits = self.kb.search_vector(query, limit=limit, filter=condition, exact=exact)
            assert not hits.partial, f"nothing is lost, and a search says {hits.faults}"
            assert hits.manifest_version in versions(), f"hits of manifest {hits.manifest_version}"
            then = self.world.ledger.history[hits.manifest_version]
            meant = {name: fact for name, fact in then.items() if kind is None or fact.kind == kind}
            found = [(hit.distance, hit.document_id, hit.chunk_id, hit.text) for hit in hits]
            expected = nearest_chunks(meant, query, limit if exact else 1_000_000)
            if exact:
                assert found == expected, f"manifest {hits.manifest_version}: found {found}, expected {expected}"
            else:
                assert set(found) <= set(expected), f"manifest {hits.manifest_version}: found {found} among {expected}"

    def list_all(self) -> None:
        with self._reading("list") as versions:
            listed = self.kb.documents(limit=1_000)
            found = [(each.id, Fact(each.text, each.owner, each.metadata["kind"])) for each in listed]
            expected = [sorted(self.world.ledger.history[number].items()) for number in versions()]
            assert found in expected, f"found {found}, expected one of {expected}"

    def read_past(self, number: int) -> None:
        """Check that a version is unchanged after any delay, or no longer kept."""
        kb = self._started(number)
        with self._judged(f"read version {number}", "E218"):
            for _ in range(2):
                listed = kb.documents(limit=1_000)
                found = {each.id: Fact(each.text, each.owner, each.metadata["kind"]) for each in listed}
                assert found == self.world.ledger.history[number], f"version {number}: found {found}"
        kb.close()

    def look_up(self, name: str) -> None:
        with self._reading(f"look up {name}") as versions:
            try:
                each = self.kb.document(name)
                found = Fact(each.text, each.owner, each.metadata["kind"])
            except errors.NotFoundError as fault:
                if fault.code != "E214":
                    raise
                found = None
            expected = [self.world.ledger.history[number].get(name) for number in versions()]
            assert found in expected, f"found {found}, expected one of {expected}"

    def list_owner(self, owner: str) -> None:
        with self._reading(f"hashes of {owner}") as versions:
            core = self.kb._core
            stored = core.engine.manifests.current()
            found = core.read_documents(lambda reader: reader.hashes(owner)).keys() if stored else set()
            expected = [
                {name for name, fact in self.world.ledger.history[number].items() if fact.owner == owner}
                for number in versions()
            ]
            assert found in expected, f"found {found}, expected one of {expected}"

    @contextlib.contextmanager
    def _reading(self, title: str) -> Iterator[Callable[[], range]]:
        """Yield a function that returns the numbers of the manifests that were current during the block."""
        ledger = self.world.ledger
        first = ledger.number
        with self._judged(title):
            yield lambda: range(first, ledger.number + 1)

    # Which errors a call may raise

    @contextlib.contextmanager
    def _judged(self, title: str, *expected: str) -> Iterator[None]:
        """Check the outcome of a call. `expected`: more error codes that are allowed."""
        turns = self.world.turns
        turns.note(self.actor.name, f"begins to {title}")
        was_empty = self.world.ledger.number == 0
        try:
            yield
        except errors.PairError as fault:
            turns.note(self.actor.name, f"is told {fault.code} ({title})")
            is_expected = fault.code in {*EXPECTED_CODES, *expected} or (fault.code == "E201" and was_empty)
            if self.expects_no_fault or not is_expected:
                raise AssertionError(f"{title}: {fault.code} {fault.message}: {fault.explanation}") from fault
            self._judge_failure(title, fault.code)
        else:
            turns.note(self.actor.name, f"is done ({title})")
        finally:
            self._change = None

    def _judge_failure(self, title: str, code: str) -> None:
        change = self._change
        if change is None:
            return
        assert not change.is_afterthought, f"all of {title} landed, but its caller got {code}"
        if change.writes_documents and code != errors.PUBLISH_UNKNOWN:
            assert not change.published, f"{title} landed, but its caller got {code}"
            change.must_not_land = code


def _puts(facts: list[tuple[str, Fact]], size: int) -> list[Change]:
    """Return one change for each batch."""
    return [_put(dict(facts[begin : begin + size])) for begin in range(0, len(facts), size)]


def _put(facts: dict[str, Fact]) -> Change:
    return Change(f"upsert {' '.join(facts)}", lambda contents: {**contents, **facts})


def _nothing(title: str, *, is_afterthought: bool = False) -> Change:
    return Change(title, lambda contents: contents, writes_documents=False, is_afterthought=is_afterthought)
