"""Fetching before anybody asks: what queries are likely to want of a KB, one file at a time.

These are the keywords of all shards, which every query by words needs; shards of which queries read rows, the most
asked first; and shards that took the place of ones that were here, as they do after a compaction.
Invariants
    Nothing is evicted for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pair import errors
from pair.engine.format.manifest import FileRole, Manifest, ShardRef
from pair.engine.storage.manifest_store import ManifestStore
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    files: int = 0
    fetched_bytes: int = 0
    left_bytes: int = 0
    """That were worth fetching, and too much."""


class Prefetcher:
    """Of one KB. Used from one thread."""

    def __init__(self, publication: ManifestStore, cache: ShardCache) -> None:
        self._publication = publication
        self._cache = cache
        self._here: frozenset[str] = frozenset()
        """Shards whose search file was here, when it was last looked."""

    def fetch(self, most_bytes: int, go_on: Callable[[], bool]) -> PrefetchReport:
        """As long as `go_on`; nothing from a store that is near. Raises E206, E010."""
        published = self._publication.current() if self._cache.reads_pieces else None
        if published is None:
            return PrefetchReport()
        manifest, cache = published.manifest, self._cache
        files = fetched = left = 0
        room = min(most_bytes, cache.room_bytes())
        for shard, role in self._wanted(manifest):
            size = shard.files[role].size_bytes
            if fetched + size > room:
                left += size
            elif go_on() and self._fetched(shard, role):
                files, fetched = files + 1, fetched + size
        self._here = frozenset(shard.folder for shard in manifest.shards if cache.has(shard, "search"))
        return PrefetchReport(files, fetched, left)

    def _wanted(self, manifest: Manifest) -> list[tuple[ShardRef, FileRole]]:
        """What is not here, the most useful first."""
        cache, shards = self._cache, manifest.shards
        # What replaces a shard is asked as it was, and it has no rows that could have been asked yet.
        is_replaced = not self._here <= {shard.folder for shard in shards}
        asked = {shard.folder: cache.open(shard).rows_asked for shard in shards}
        hot = [shard for shard in shards if asked[shard.folder] or (is_replaced and shard.folder not in self._here)]
        hot.sort(key=lambda shard: -asked[shard.folder])
        wanted: list[tuple[ShardRef, FileRole]] = [(shard, "keywords") for shard in shards if "keywords" in shard.files]
        wanted += [(shard, "search") for shard in hot]
        return [(shard, role) for shard, role in wanted if not cache.has(shard, role)]

    def _fetched(self, shard: ShardRef, role: FileRole) -> bool:
        """What is damaged or gone is for a query to report."""
        opened = self._cache.open(shard)
        try:
            # Who asks it meanwhile goes on with the pieces that there are.
            opened.path(role)
            if role == "search":
                opened.search(0.0)
        except (ShardMissingError, errors.DataError):
            return False
        return True
