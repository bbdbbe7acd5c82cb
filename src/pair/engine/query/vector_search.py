"""The rows nearest to a vector: choose shards, ask them, ask more while they may hold something nearer."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pair.engine import rules
from pair.engine.format.vectors import Vectors
from pair.engine.query.shard_access import ShardAccess
from pair.engine.settings import EngineSettings

_NOTHING = np.empty(0, np.float32)
_MANY_ROWS = 100
"""Where so many are wanted, hardly a shard within the cap is too far away to hold one of them."""


def _in_groups(shards: Sequence[rules.Ranked], size: int) -> Iterator[Sequence[rules.Ranked]]:
    return (shards[begin : begin + size] for begin in range(0, len(shards), size))


@dataclass(frozen=True, slots=True)
class VectorQuery:
    vector: Vectors
    limit: int
    max_distance: float | None = None
    """Strictly nearer than this."""
    exact: bool = False


@dataclass(frozen=True, eq=False)
class NearRows:
    """At least as many as were wanted, where there are so many, in no order, with all that are as near as the last."""

    shards: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    distances: npt.NDArray[np.float32]
    asked: int
    """How many shards."""


class VectorSearch:
    def __init__(self, reading: ShardAccess, policy: EngineSettings, query: VectorQuery) -> None:
        self._reading = reading
        self._policy = policy
        self._query = query
        self._found: list[tuple[int, npt.NDArray[np.float32], npt.NDArray[np.int64]]] = []
        self._order = self._asking_order()

    @property
    def surely_asked(self) -> list[int]:
        """Shards that are worth fetching before anything is known of them."""
        ranked = self._order.fanned_out
        if self._query.limit >= _MANY_ROWS:
            ranked += self._order.further
        return [*self._order.first, *(each.position for each in ranked)]

    def nearest(self) -> NearRows:
        order = self._order
        self._reading.fetch(self.surely_asked)
        always = [*order.first, *(shard.position for shard in order.fanned_out)]  # engine-12
        for position in always:
            self._ask(position)
        asked = len(always)
        self._reading.fetch([each.position for each in order.further if self._is_worth_asking(each)])
        asked += sum(map(self._ask_if_worth, order.further))
        # In ascending order of what is compared: when one is not worth asking, no later one is.
        for together in _in_groups(order.rest, self._policy.query_shard_fanout):
            worth = [*itertools.takewhile(self._is_worth_beyond_cap, together)]
            self._reading.fetch([each.position for each in worth])
            answered = sum(1 for _ in itertools.takewhile(self._ask_beyond_cap, worth))
            asked += answered
            if answered < len(together):
                break
        return self._nearest_of_all(asked)

    def _asking_order(self) -> rules.AskingOrder:
        query, view = self._query, self._reading.view
        if query.limit <= 0 or (query.max_distance is not None and query.max_distance <= 0):
            return rules.AskingOrder(())
        ranked = {} if query.exact else view.ranked(query.vector)
        return rules.asking_order(view.shards, ranked, self._policy, ask_all=query.exact)

    def _ask(self, position: int) -> None:
        search = self._reading.search(position)
        if search is None:
            return
        query, allowed = self._query, self._reading.allowed(position)
        distances, rows = search.index.nearest(
            query.vector, query.limit, allowed=allowed, exact=query.exact, within=self._farthest()
        )
        self._found.append((position, distances, rows))

    def _is_worth_asking(self, shard: rules.Ranked) -> bool:
        """Nearness says less about those who meet a condition: then only what cannot be nearer is passed over."""
        is_worth = rules.could_be_nearer if self._reading.is_filtered else rules.is_likely_nearer
        return is_worth(shard, self._farthest())

    def _ask_if_worth(self, shard: rules.Ranked) -> bool:
        return self._asked_if(shard, is_worth=self._is_worth_asking(shard))

    def _is_worth_beyond_cap(self, shard: rules.Ranked) -> bool:
        found, wanted = len(self._distances()), self._query.limit
        return rules.may_exceed_cap(
            found=found, wanted=wanted, is_filtered=self._reading.is_filtered
        ) and rules.could_be_nearer(shard, self._farthest())

    def _ask_beyond_cap(self, shard: rules.Ranked) -> bool:
        return self._asked_if(shard, is_worth=self._is_worth_beyond_cap(shard))

    def _asked_if(self, shard: rules.Ranked, *, is_worth: bool) -> bool:
        if is_worth:
            self._ask(shard.position)
        return is_worth

    def _distances(self) -> npt.NDArray[np.float32]:
        """Of what was found so far and is near enough."""
        if not self._found:
            return _NOTHING
        found = np.concatenate([distances for _, distances, _ in self._found])
        return found if self._query.max_distance is None else found[found < self._query.max_distance]

    def _farthest(self) -> float | None:
        """The distance of the last row that would be returned now."""
        distances = self._distances()
        if len(distances) < self._query.limit:
            return self._query.max_distance
        return float(np.partition(distances, self._query.limit - 1)[self._query.limit - 1])

    def _nearest_of_all(self, asked: int) -> NearRows:
        if not self._found:
            return NearRows(np.empty(0, np.int64), np.empty(0, np.int64), _NOTHING, asked)
        shards = np.repeat([position for position, _, _ in self._found], [len(rows) for _, _, rows in self._found])
        distances = np.concatenate([distances for _, distances, _ in self._found])
        rows = np.concatenate([rows for _, _, rows in self._found])
        farthest = self._farthest()
        if farthest is not None:
            is_full = len(self._distances()) >= self._query.limit
            near = distances <= farthest if is_full else distances < farthest
            shards, rows, distances = shards[near], rows[near], distances[near]
        return NearRows(shards, rows, distances, asked)
