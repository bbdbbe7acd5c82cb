"""A simulation of one KB with concurrent clients, determined by one seed.

Writers, a client that rolls back, a compactor, a collector, readers and an evictor run the engine's code, each as a
separate process would (`engine_client.py`), on one store that loses requests or answers, stalls, repeats requests, and
delivers them late. `engine_turns.py` lets one of them act at a time; `engine_ledger.py` has the expected content.
"""

import contextlib
import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import errors
from pair.engine.storage.shard_cache import ShardCache
from pair.testing.clock import NOON, ManualClock
from support.engine_client import OWNERS, Client, World
from support.engine_ledger import Ledger, WatchedStore
from support.engine_turns import Actor

NAMES = tuple(f"d{number}" for number in range(16))
SHARES = (0.0, 0.01, 0.03, 0.08)
LEASE_KINDS = ("memory", "blob", "none")
KEPT_VERSIONS = (0, 1, 3, 1_000)
FAR_AHEAD = NOON.replace(year=2200)
"""A time so late that nothing in the cache counts as recently used."""
_MEMORY_FOLDER = Path("/dev/shm")  # the files are temporary, so they need no fsync


@dataclass(frozen=True)
class Outcome:
    faults: tuple[BaseException, ...]
    trace: tuple[str, ...]
    manifests: int

    def report(self) -> str:
        return "\n".join([*self.trace, *(f"{type(fault).__name__}: {fault}" for fault in self.faults)])


def simulate(seed: int) -> Outcome:
    dice = random.Random(seed)
    share, lease_kind, keep_versions = dice.choice(SHARES), dice.choice(LEASE_KINDS), dice.choice(KEPT_VERSIONS)
    world = World(dice, share=share, lease_kind=lease_kind, keep_versions=keep_versions)
    dice.choices(beginnings(), (1, 3, 3, 3, 1))[0].restore(world)
    with _scratch_folder() as folder:
        clients: list[Client] = []

        def client(name: str) -> Client:
            clients.append(Client(world, Actor(name), folder / f"machine-{dice.randrange(3)}" / "shards"))
            return clients[-1]

        works = _cast(world, client, folder)
        world.turns.run(works)
        if not world.turns.faults:
            _end_well(world, clients, folder)
        for each in clients:
            each.kb.close()
    return Outcome(tuple(world.turns.faults), tuple(world.turns.trace), world.ledger.number)


# ── initial states ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Beginning:
    """An initial state of the KB."""

    store: WatchedStore
    ledger: Ledger

    @staticmethod
    def of(world: World) -> "Beginning":
        copy = World(random.Random(0), share=0.0, lease_kind="memory")
        _copy(world, copy.store, copy.ledger)
        return Beginning(copy.store, copy.ledger)

    def restore(self, world: World) -> None:
        _copy(self, world.store, world.ledger)


def _copy(source: World | Beginning, store: WatchedStore, ledger: Ledger) -> None:
    store._blobs, store._writes = dict(source.store._blobs), source.store._writes
    ledger.history = list(source.ledger.history)
    ledger.changes = dict(source.ledger.changes)
    ledger.commits = set(source.ledger.commits)
    ledger.manifest = source.ledger.manifest


@functools.cache
def beginnings() -> tuple[Beginning, ...]:
    """Return the initial states: no KB, small shards to merge, several runs with tombstones, an empty KB, garbage."""
    world = World(random.Random(0), share=0.0, lease_kind="memory", keep_versions=1_000, name="early")
    found = [Beginning.of(world)]
    with _scratch_folder() as folder:
        client = Client(world, Actor("beginning"), folder / "shards")
        for begin in range(0, 14, 2):
            client.upsert(NAMES[begin : begin + 2])
        found.append(Beginning.of(world))
        client.upsert(NAMES[7:10])
        client.upsert(NAMES[2:4])
        found.append(Beginning.of(world))
        client.delete_ids(NAMES[5:7])
        client.upsert(NAMES[:3])
        client.upsert(NAMES[5:9])
        found.append(Beginning.of(world))
        client.delete_ids(NAMES)
        found.append(Beginning.of(world))
        client.kb.close()
    return tuple(found)


# ── clients ────────────────────────────────────────────────────────────────────────────────────────


def _cast(world: World, client: Callable[[str], Client], folder: Path) -> dict[Actor, Callable[[], None]]:
    dice = world.dice
    works: dict[Actor, Callable[[], None]] = {}

    def play(name: str, act: Callable[[Client, random.Random], None], times: int) -> None:
        own, player = random.Random(dice.random()), client(name)

        def work() -> None:
            for _ in range(times):
                world.turns.rest(player.actor)
                if own.random() < 0.7:
                    player.restart()
                act(player, own)

        works[player.actor] = work

    for number in range(dice.choice((2, 3))):
        play(f"writer-{number}", _write, dice.choice((1, 2)))
    play("compactor", _compact, dice.choice((1, 2)))
    play("collector", _collect, 3)
    if world.keep_versions:
        play("restorer", _go_back, dice.choice((1, 2, 3)))
    for number in range(2):
        play(f"reader-{number}", _read, 4)
    evictor = Actor("evictor")
    works[evictor] = functools.partial(_evict, world, evictor, folder)
    return works


def _write(client: Client, dice: random.Random) -> None:
    kind = dice.random()
    if kind < 0.5:
        client.upsert(dice.sample(NAMES, dice.choice((1, 1, 2, 3, 4, 6))))
    elif kind < 0.9:
        client.delete_ids(dice.sample(NAMES, dice.choice((1, 1, 2, 8))))
    elif kind < 0.97:
        client.delete_owner(dice.choice(OWNERS))
    else:
        client.delete_kind(dice.randrange(3))


def _compact(client: Client, dice: random.Random) -> None:
    client.compact(everything=dice.random() < 0.4)


def _collect(client: Client, dice: random.Random) -> None:
    client.collect(dice.choice((None, 0.0, 0.0)))


def _go_back(client: Client, dice: random.Random) -> None:
    number = max(1, client.world.ledger.number - dice.choice((0, 1, 1, 2, 3, 5)))
    (client.roll_back if dice.random() < 0.7 else client.read_past)(number)


def _read(client: Client, dice: random.Random) -> None:
    kind = dice.random()
    if kind < 0.6:
        client.search(
            dice.choice((1, 3, 100)),
            exact=dice.random() < 0.7,
            kind=dice.randrange(3) if dice.random() < 0.04 else None,
        )
    elif kind < 0.75:
        client.list_all()
    elif kind < 0.9:
        client.look_up(dice.choice(NAMES))
    else:
        client.list_owner(dice.choice(OWNERS))


def _evict(world: World, actor: Actor, folder: Path) -> None:
    for number in range(9):
        world.turns.rest(actor)
        machine = folder / f"machine-{number % 3}" / "shards"
        by_age = ShardCache(world.store, machine, ManualClock(FAR_AHEAD), ttl_seconds=1.0)
        by_size = ShardCache(world.store, machine, world.clock, max_bytes=10_000)
        with contextlib.suppress(errors.StorageError):  # E205: everything left in the cache is in use
            report = (by_size if number % 2 else by_age).sweep()
            world.turns.note(actor.name, f"{report}")


# ── final check ────────────────────────────────────────────────────────────────────────────────────


def _end_well(world: World, clients: list[Client], folder: Path) -> None:
    """Check after the last fault that the KB can be written, read, compacted and collected."""
    world.turns.deliver_all()
    world.share = 0.0
    world.keep_versions = 0
    world.clock.advance(1_000_000.0)
    last = Client(world, Actor("last"), folder / "machine-0" / "shards")
    for client in (*clients, last):
        client.expects_no_fault = True
    try:
        last.upsert(NAMES[:2])
        last.compact(everything=True)
        world.clock.advance(1_000_000.0)
        last.collect(None)
        world.store.audit()
        assert world.store.shard_keys() == world.ledger.live_keys(), "something is left that no manifest names"
        assert world.ledger.manifest is not None
        assert world.ledger.manifest.dropped == (), "something is still waited for that is gone"
        for client in (*clients, last):
            client.search(1_000, exact=True, kind=None)
        last.list_all()
        last.list_owner("ann")
    except BaseException as fault:  # noqa: BLE001 - shown with the history
        world.turns.faults.append(fault)
    last.kb.close()


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else None) as name:
        yield Path(name)
