"""What you may implement: who builds the shards of a large load."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pair.engine.format.manifest import ShardRef
from pair.engine.write.prepare import Batch


@dataclass(frozen=True, slots=True)
class BuildPart:
    """Documents that one worker stores. Travels between processes."""

    number: int
    key: str
    """Of its content and of how it is cut: the same part has the same one in the next run."""
    batch: Batch
    hashes: Mapping[str, str]
    """The content hash of each document, by id."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Documents of several shards that become one. Travels between processes."""

    number: int
    commit_id: str
    run: str
    members: Sequence[tuple[ShardRef, npt.NDArray[np.int64]]]
    """Shards, and the numbers of documents in each."""


Task = BuildPart | Merge


@dataclass(frozen=True, slots=True)
class Built:
    """What a worker made of a task: its shards are in the store, and no manifest names them yet."""

    number: int
    record: str
    """Key of what keeps garbage collection from taking them."""
    shards: tuple[ShardRef, ...]


class Runner(Protocol):
    @property
    def workers(self) -> int:
        """How many tasks are worked on at once."""
        ...

    def expect_work(self) -> None:
        """There will be tasks: whoever takes long to begin may begin now."""
        ...

    def built(self, tasks: Iterator[Task]) -> Iterator[Built]:
        """In the order in which they are done. Tasks are taken when there will soon be a worker for them.

        A task whose worker died is given to another one; raises E216 when that happened too often, and whatever
        PairError a worker met.
        """
        ...
