"""Shared parts of embedders: the cache of query vectors, the cache of words, and the files of bundled models."""

import functools
import hashlib
import importlib.util
import mmap
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from pair import errors
from pair.ai.contract import Embedder, Vectors

DEFAULT_BATCH_SIZE = 256
DEFAULT_CACHE_SIZE = 1024

_Known = TypeVar("_Known")


@dataclass(eq=False)
class LruCache(Generic[_Known]):
    """A cache of values by word, in two generations: a full young one replaces the old one. Thread-safe."""

    most_words: int
    _young: dict[str, _Known] = field(default_factory=dict)
    _old: dict[str, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recall(self, words: Collection[str]) -> tuple[dict[str, _Known], list[str]]:
        """Return the known values, and the words without a value."""
        unknown: list[str] = []
        with self._lock:
            young, old = self._young, self._old
            known: dict[str, Any] = dict(zip(words, map(young.get, words), strict=True))
            for word in [word for word, value in known.items() if value is None]:
                if word in old:
                    young[word] = known[word] = old[word]
                else:
                    unknown.append(word)
                    del known[word]
        return known, unknown

    def remember(self, known: Mapping[str, _Known], words: Sequence[str]) -> None:
        half = self.most_words // 2
        with self._lock:
            self._young.update((word, known[word]) for word in words[:half])
            if len(self._young) > half:
                self._old, self._young = self._young, {}


def rate_tokens(text: str, tokens: int) -> float:
    """Return how well a tokenizer knows the language of a text, from 0 to 1, by the number of tokens in the text.

    In a language of its training data a token has two characters or more; other texts are spelled out by character.
    """
    characters = sum(map(str.isalnum, text))
    return min(max(characters / tokens - 1.0, 0.0), 1.0) if tokens else 0.0


@dataclass(eq=False)
class CachingEmbedder:
    """An embedder with batches, a cache of queries, and checks of every reply. Thread-safe. Raises ModelError, E302."""

    embedder: Embedder
    batch_size: int = DEFAULT_BATCH_SIZE
    cache_size: int = DEFAULT_CACHE_SIZE

    @functools.cached_property
    def _embed_query(self) -> "functools._lru_cache_wrapper[Vectors]":
        # No lock is held while a model computes, which may take seconds. So two callers may compute the same query.
        return functools.lru_cache(self.cache_size)(functools.partial(_embed_query, self.embedder))

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimension(self) -> int:
        return self.embedder.dimension

    def weight_of(self, query: str) -> float:
        """Return the weight of the vector of this query in hybrid search."""
        return self.embedder.hybrid_weight * self.embedder.fit(query)

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text, in their order."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), self.batch_size):
            batch = texts[start : start + self.batch_size]
            vectors[start : start + len(batch)] = _check(self.embedder, self.embedder.embed(batch), len(batch))
        return vectors

    def embed_query(self, text: str) -> Vectors:
        """Return one row, which is read-only because callers share it."""
        return self._embed_query(text)

    def compare(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the similarity of each text to a question; 1 for equal vectors."""
        if not texts:
            return []
        return [float(value) for value in self.embed_all(texts) @ self.embed_query(query)]


def _embed_query(embedder: Embedder, text: str) -> Vectors:
    vector: Vectors = _check(embedder, embedder.embed_queries([text]), 1)[0].copy()
    vector.setflags(write=False)
    return vector


def _check(embedder: Embedder, reply: Vectors, count: int) -> Vectors:
    try:
        with np.errstate(over="ignore"):
            vectors: Vectors = np.asarray(reply, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise errors.model_reply_unusable(embedder.name, "the vectors are not a table of numbers") from error
    expected = (count, embedder.dimension)
    if vectors.shape != expected:
        reason = f"the vectors have the shape {vectors.shape}, {expected} was expected"
        raise errors.model_reply_unusable(embedder.name, reason)
    if not np.isfinite(vectors).all():
        raise errors.model_reply_unusable(embedder.name, "a vector has a number that is not finite")
    return vectors


@dataclass(frozen=True)
class BundledFile:
    package: str
    """The import name of the package with the file. It is never imported."""
    path: str
    """The path below the folder of the package."""
    sha256: str
    requirement: str
    """The requirement of pip that installs the file."""


def open_mapped(file: BundledFile) -> mmap.mmap:
    """Return the read-only content. Raises E305 if the file is missing or has another SHA-256."""
    specification = importlib.util.find_spec(file.package)
    folders = specification.submodule_search_locations if specification else None
    if not folders:
        reason = "its package is not installed"
        raise errors.model_file_unusable(f"{file.package}/{file.path}", reason, file.requirement)
    path = Path(next(iter(folders)), file.path)
    try:
        with path.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as fault:
        raise errors.model_file_unusable(str(path), "it cannot be read", file.requirement) from fault
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise errors.model_file_unusable(str(path), "its SHA-256 is not the expected one", file.requirement)
    return content
