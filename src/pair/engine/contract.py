"""What you may implement: who builds the parts of a large load."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pair.engine.manifest import ShardRef
from pair.engine.preparation import Batch


@dataclass(frozen=True, slots=True)
class Part:
    """Documents that one worker stores. Travels between processes."""

    number: int
    key: str
    """Of its content and of how it is cut: the same part has the same one in the next run."""
    batch: Batch
    hashes: Mapping[str, str]
    """The content hash of each document, by id."""


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """What a worker made of a part: its shards are in the store, and no manifest names them yet."""

    number: int
    record: str
    """Key of what keeps garbage collection from taking them."""
    shards: tuple[ShardRef, ...]


class Runner(Protocol):
    @property
    def workers(self) -> int:
        """How many parts are worked on at once."""
        ...

    def expect_work(self) -> None:
        """There will be parts: whoever takes long to begin may begin now."""
        ...

    def built(self, parts: Iterator[Part]) -> Iterator[BuiltPart]:
        """In the order in which they are done. Parts are taken when there will soon be a worker for them.

        A part whose worker died is given to another one; raises E216 when that happened too often, and whatever
        PairError a worker met. Closing the iterator ends the work.
        """
        ...
