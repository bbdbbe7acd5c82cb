"""A source of objects in a bucket. Each object is a document, and is read when its version changes.

The cursor holds the version of each object that was read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.blobs.contract import BlobInfo, BlobStore
from pair.reading.process import read_ahead
from pair.sources.contract import Complete, Cursor, Event, Failed, Item, SourceFault, Unchanged


@dataclass(frozen=True)
class BucketSource:
    """The objects of a store whose keys begin with a prefix. Keys are ids."""

    store: BlobStore
    prefix: str
    max_bytes: int

    def read(self, cursor: Any) -> Iterator[Event]:
        """Yield all objects, except objects deleted since they were listed. Raises SourceFault."""
        known = cursor if isinstance(cursor, dict) else {}
        versions: dict[str, str] = {}
        changed: list[BlobInfo] = []
        try:
            for info in self.store.list(self.prefix):
                if known.get(info.key) == _find_version(info):
                    versions[info.key] = _find_version(info)
                    yield Unchanged(info.key)
                elif info.size_bytes:  # Some programs mark folders with empty objects.
                    changed.append(info)
            for info, event in zip(changed, read_ahead(self._read_object, changed), strict=True):
                if isinstance(event, Item):
                    versions[info.key] = _find_version(info)
                if event is not None:
                    yield event
        except errors.PairError as fault:
            raise SourceFault(": ".join(filter(None, (fault.message, *fault.explanation_lines)))) from fault
        yield Cursor(versions)
        yield Complete()

    def _read_object(self, info: BlobInfo) -> Item | Failed | None:
        """Return the object, or the reason why it cannot be read; None if it was deleted since it was listed."""
        too_long = Failed(info.key, f"longer than {self.max_bytes:,} bytes")
        if info.size_bytes > self.max_bytes:
            return too_long
        try:
            blob = self.store.get(info.key)
        except ValueError as fault:  # Another program chose this key.
            return Failed(info.key, str(fault))
        if blob is None:
            return None
        return Item(info.key, blob.data, info.key.rpartition("/")[2]) if len(blob.data) <= self.max_bytes else too_long


def _find_version(info: BlobInfo) -> str:
    return info.version or f"{info.size_bytes} {info.modified_at.isoformat()}"
