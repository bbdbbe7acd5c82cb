"""One query's way to the shards: each is opened once, held until the query ends, and its faults are kept.

Invariants
    What cannot be read is left out and reported, but a shard that garbage collection took is for the caller to decide.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pair import errors
from pair.engine.filters import Filter
from pair.engine.graph_search import GraphShard
from pair.engine.keyword_search import KeywordPart
from pair.engine.shard import SearchFile
from pair.engine.shard_cache import OpenShard, ShardCache, ShardMissingError
from pair.engine.vectors import Selection
from pair.engine.view import View

_Asked = TypeVar("_Asked")


class ShardReader:
    """Opens shards for queries, several at once where they have to be fetched."""

    def __init__(self, cache: ShardCache, parallelism: int) -> None:
        self.cache = cache
        self._parallelism = parallelism
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def fetch_together(self, fetches: Sequence[Callable[[], object]]) -> None:
        """What fails is met again, and reported, by the one who asks it."""
        if len(fetches) > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._parallelism, thread_name_prefix="pair-shard")
            for future in [self._pool.submit(fetch) for fetch in fetches]:
                future.exception()


class Reading:
    def __init__(
        self, view: View, reader: ShardReader, condition: Filter | None, now: float, *, skips_missing: bool
    ) -> None:
        self.view = view
        self._reader = reader
        self._condition = condition
        self._now = now
        self._skips_missing = skips_missing
        self._held: dict[int, OpenShard] = {}
        self._searches: dict[int, SearchFile | None] = {}
        self._allowed: dict[int, Selection | None] = {}
        self.faults: dict[str, str] = {}
        """Why each of these could not be read, by key."""

    @property
    def is_filtered(self) -> bool:
        return self._condition is not None

    @property
    def is_nothing_left(self) -> bool:
        """Whether something of every shard could not be read."""
        folders = {key.rpartition("/")[0] for key in self.faults}
        return all(shard.folder in folders for shard in self.view.shards)

    def fetch(self, positions: Sequence[int], *, keywords: bool = False) -> None:
        """Fetch together what is not here yet."""
        fetches: list[Callable[[], object]] = []
        for position in positions:
            shard, opened = self.view.shards[position], self._open(position)
            if keywords and not opened.has_keywords:
                fetches.append(opened.keywords)
            if not keywords and not self._reader.cache.is_open(shard):
                fetches.append(lambda opened=opened: opened.search(self._now))  # type: ignore[misc]
        self._reader.fetch_together(fetches)

    def search(self, position: int) -> SearchFile | None:
        """None when it cannot be read."""
        if position not in self._searches:
            opened = self._open(position)
            self._searches[position] = self._or_fault(lambda: opened.search(self._now))
        return self._searches[position]

    def allowed(self, position: int) -> Selection | None:
        """Rows that are live and meet the condition; None for all. `search` must have answered."""
        if position not in self._allowed:
            self._allowed[position] = self._selection(position)
        return self._allowed[position]

    def keyword_parts(self) -> list[KeywordPart]:
        """Of all shards, for a score depends on all of them."""
        positions = range(len(self.view.shards))
        self.fetch(positions, keywords=True)
        return [self._keyword_part(position) for position in positions]

    def graph_shards(self) -> dict[int, GraphShard]:
        """Those that have a graph, by position."""
        found: dict[int, GraphShard] = {}
        for position, shard in enumerate(self.view.shards):
            opened = self._open(position)
            file = self._or_fault(opened.graph)
            if file is not None and (shard.tombstones is None or self.search(position) is not None):
                found[position] = self.view.graph_shard(position, file, self._live(position))
        return found

    def _keyword_part(self, position: int) -> KeywordPart:
        opened = self._open(position)
        index = self._or_fault(opened.keywords)
        if index is not None and self.view.shards[position].tombstones is not None and self.search(position) is None:
            index = None
        return KeywordPart(index, self._live(position), lambda row: opened.search(self._now).fields_of(row))

    def _live(self, position: int) -> Selection | None:
        if self.view.shards[position].tombstones is None:
            return None
        search = self.search(position)
        return None if search is None else self.view.live_rows(position, search)

    def _selection(self, position: int) -> Selection | None:
        live, condition = self._live(position), self._condition
        if condition is None:
            return live
        search = self.search(position)
        if search is None:
            return None
        opened = self._open(position)
        documents = self._or_fault(lambda: opened.rows().selected(condition))
        if documents is None:
            return search.no_rows()
        chosen: Selection = documents[search.doc_of_row]
        return chosen if live is None else chosen & live

    def _open(self, position: int) -> OpenShard:
        opened = self._held.get(position)
        if opened is None:
            opened = self._held[position] = self._reader.cache.open(self.view.shards[position])
        return opened

    def _or_fault(self, ask: Callable[[], _Asked]) -> _Asked | None:
        try:
            return ask()
        except ShardMissingError as fault:
            if not self._skips_missing:
                raise
            self.faults[str(fault)] = "it is not in the store any more"
        except errors.DataError as fault:
            self.faults[fault.details["key"]] = fault.details["reason"]
        return None
