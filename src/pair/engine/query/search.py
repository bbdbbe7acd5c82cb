"""Search in one KB by vector, by keyword, by both and along the graph: retrieve, rank, make passages.

Invariants
    A query sees one manifest. If garbage collection removes a shard during the query, it starts again with the current
    manifest.
    The vector of a query is compared only with vectors of the same embedder.
    Hits are ordered by ranking score, then document, then chunk, whatever the layout of the shards.
    Passages keep all text of the best chunks: each chunk is part of a passage, or another passage has the same text.
    A passage names a bounded number of other places, and counts all of them.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.contract import Reranker
from pair.clock import Clock
from pair.engine.format.array_file import RangeError
from pair.engine.format.manifest import Manifest
from pair.engine.format.vectors import Vectors
from pair.engine.query.ranking import (
    LEAST,
    LEAST_WITHOUT_WORDS,
    MORE_ALIKE,
    RankedRow,
    Ranking,
    best_rows,
    count_whole_ties,
    rank,
)
from pair.engine.query.retrieve import SearchRequest, VectorSearch, retrieve
from pair.engine.query.shard_access import ShardAccess, ShardReader, ShardRouting, by_shard
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.text.tokenizer import highlight, parse_query
from pair.values import AlsoIn, Hit, Hits, SearchMode

_TRIES_AFTER_COLLECTION = 5
_MORE_ROWS = 4
"""Factor by which to raise the number of candidates when they make too few passages."""
_MOST_ROWS = 4000
"""Maximum number of rows to compare one by one for a query, or ten for each hit if that is more."""
MOST_ALSO_IN = 20
"""Maximum number of other places that a passage names."""
_DIVERSE_CHOICES = 4
"""Number of candidates for each hit if `diversity` is set."""
_LONGEST_PASSAGE = 6000
"""Maximum length of merged neighbours, in characters."""
_FIRST_WORDS = 4
"""Number of words to compare before whole texts are compared."""
_MOST_BLANK = 200
"""Maximum distance of neighbours, in characters. The text between chunks further apart is not read."""

ReadText = Callable[[Hit, int, int], str]
"""A function that returns the part of a document's text between two places. The hit names the document."""
_Answer = Callable[[ShardAccess], Hits]


@dataclass
class Search:
    """The search in one KB. Thread-safe."""

    manifests: ManifestStore
    reader: ShardReader
    settings: EngineSettings
    clock: Clock
    _routing: ShardRouting | None = None

    def nearest(self, request: SearchRequest) -> Hits:
        """Return the nearest chunks. Raises E201, E303, E304, E205, E206, E215; E207 if no shard can be read."""

        def answer(access: ShardAccess) -> Hits:
            vector = _check_vector(request, access.routing.published.manifest)
            search = VectorSearch(access, self.settings, request, vector, request.limit)
            shards, rows, distances = search.nearest()
            best = best_rows(access, shards, rows, -distances, request.limit)[: request.limit]
            hits = (row.search.hit(row.row, -row.score, row.header, 1.0 / (1.0 - row.score)) for row in best)
            return _make_hits(access, tuple(hits), search.shards_asked, "vector")

        return self._answer(answer, request)

    def find(self, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        """Return passages for a text. Raises as `nearest` does, and E204 in mode `graph` without a graph.

        `published`: the manifest, if the caller has just read it.
        """

        def answer(access: ShardAccess) -> Hits:
            if request.vector is None:
                return _find_passages(access, self.settings, request)
            has_vector = _check_vector(request, access.routing.published.manifest).any()
            return _find_passages(access, self.settings, request if has_vector else replace(request, vector=None))

        return self._answer(answer, request, published)

    def _answer(self, answer: _Answer, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = published or self.manifests.require()
            routing = self._route(published)
            try:
                try:
                    return answer(self._access(routing, request))
                except RangeError:  # The whole file may be intact; if not, reading it gives the error.
                    return answer(self._access(routing, request, in_pieces=False))
            except ShardMissingError:
                # Garbage collection removed it just now: then a newer manifest exists.
                before, published = published, self.manifests.require()
                if before.version == published.version:
                    break
        routing = self._route(self.manifests.require())
        return answer(self._access(routing, request, in_pieces=False, skips_missing=True))

    def _access(
        self, routing: ShardRouting, request: SearchRequest, *, in_pieces: bool = True, skips_missing: bool = False
    ) -> ShardAccess:
        now = self.clock.monotonic()
        return ShardAccess(routing, self.reader, request.condition, now, in_pieces, skips_missing)

    def _route(self, published: StoredManifest) -> ShardRouting:
        routing = self._routing
        if routing is None or routing.published.version != published.version:
            routing = self._routing = ShardRouting(published)
            if not self.manifests.is_past:  # A past version must not drop the shards of the current one.
                self.reader.cache.keep_only(published.manifest.folders)
        return routing


def _find_passages(access: ShardAccess, settings: EngineSettings, request: SearchRequest) -> Hits:
    limit, most_rows = max(request.limit, 0), max(_MOST_ROWS, 10 * request.limit)
    passages = PassageBuilder(access, request, most_rows)
    candidates = first = retrieve(access, settings, request, limit)
    while True:
        ranking = rank(access, request, candidates, first)
        hits, rows = passages.build(ranking), len(ranking.candidates)
        # If a text is stored a thousand times, the best rows make one passage, and more rows are needed.
        if len(hits) >= request.limit or rows < request.limit:
            break
        if passages.crowding:
            passages.set_copies_aside()
        elif candidates.is_complete or max(rows, limit) >= most_rows:
            break
        else:  # `max_distance` may leave fewer rows than were asked for.
            limit = _MORE_ROWS * max(rows, limit)
        candidates = retrieve(access, settings, request, limit)
    asked = candidates.shards_asked if request.mode == "vector" else len(access.shards)
    weights = dict(candidates.keywords.weights) if candidates.keywords is not None else {}
    hits = passages.count_copies(hits)
    made = _make_hits(access, hits, asked, ranking.mode, ranking.reason, weights)
    if hits and not _is_relevant(access, request, ranking):
        best = f"no passage is relevant enough (the best scores {hits[0].score:.3f})"
        return replace(made, passages=(), near_misses=len(hits), reason="; ".join(filter(None, (ranking.reason, best))))
    words, keywords = request.words, candidates.keywords
    if request.options.highlights and words is not None and keywords is not None:
        # Highlight at the end, because many more rows are read than returned.
        corrections = [word for near in keywords.corrected.values() for word in near.split(", ")]
        return replace(made, passages=highlight(hits, words, corrections))
    return made


def _is_relevant(access: ShardAccess, request: SearchRequest, ranking: Ranking) -> bool:
    """Return whether any candidate is probable enough to be a result, or the caller sets the limit."""
    options, best = request.options, float(ranking.probabilities.max(initial=0.0))
    is_narrowed = request.condition is not None or options.max_distance is not None
    if options.allow_weak or is_narrowed or ranking.names_known or best >= LEAST_WITHOUT_WORDS:
        return True
    words, keywords = request.words or parse_query(request.text), ranking.candidates.keywords
    if words.is_empty:
        return bool(words.excluded)
    if keywords is None:  # In mode `vector`, words do not rank, but show whether the KB covers the topic.
        # Vectors that were given with documents say little about a text: known words are enough.
        access.fetch((), keywords=True)
        return access.may_hold_any(words)
    return keywords.may_hold_any and best >= LEAST


def _make_hits(
    access: ShardAccess,
    hits: tuple[Hit, ...],
    asked: int,
    mode: SearchMode,
    reason: str = "",
    weights: Mapping[str, float] = MappingProxyType({}),
) -> Hits:
    """Return the hits with the state of the search. Raises E207 if faults leave no shard that can answer."""
    access.refuse_without(access.can_answer(needs_keywords=mode == "keyword"))
    manifest = access.routing.published.manifest
    return Hits(
        passages=hits,
        manifest_version=manifest.number,
        shards_asked=asked,
        partial=bool(access.faults),
        faults=tuple(f"{key}: {reason}" for key, reason in access.faults.items()),
        mode_used=mode,
        commit_id=manifest.commit_id,
        embedder=manifest.embedder,
        reason=reason,
        term_weights=weights,
    )


def _check_vector(request: SearchRequest, manifest: Manifest) -> Vectors:
    """Return the vector, checked against this manifest: it may be newer than the one the caller saw."""
    vector = np.empty(0, np.float32) if request.vector is None else request.vector
    if request.embedder != manifest.embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, request.embedder)
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector contains a value that is not a number")
    return vector


def rerank(hits: Hits, query: str, limit: int, reranker: Reranker) -> Hits:
    """Order hits by the scores that a reranker gives their texts, and keep as many as are wanted.

    The score of a hit becomes the probability that belongs to the reranker's score.
    """
    scores = reranker.scores(query, [hit.text for hit in hits])
    passages = []
    for number in sorted(range(len(hits)), key=lambda number: (-scores[number], number))[: max(limit, 0)]:
        hit, score = hits[number], float(scores[number])
        explanation = None if hit.explanation is None else {**hit.explanation, "reranker": score}
        # Rerankers are trained with the logistic function of their scores.
        passages.append(replace(hit, score=(1.0 + math.tanh(score / 2.0)) / 2.0, explanation=explanation))
    return replace(hits, passages=tuple(passages))


# ── passages ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class PassageBuilder:
    """A builder of the passages of one query, which also counts texts that are stored very often."""

    access: ShardAccess
    request: SearchRequest
    most_rows: int
    """Rows that are compared one by one."""
    crowding: dict[str, list[RankedRow]] = field(default_factory=dict)
    """Rows with a text that is stored too often, by text."""
    _copies: Counter[str] = field(default_factory=Counter)
    """Number of rows with this text that were set aside."""
    _kept: dict[str, int] = field(default_factory=dict)
    """Number of rows with this text that were not set aside."""

    def build(self, ranking: Ranking) -> tuple[Hit, ...]:
        """Return as many passages as wanted, if possible. If rows merge into one passage, the next rows fill up."""
        request, candidates = self.request, ranking.candidates
        wanted = limit = max(request.limit, 0)
        best: list[RankedRow] = []
        made: dict[int, Hit] = {}
        while True:
            taken = wanted if not request.options.diversity else wanted * _DIVERSE_CHOICES
            if not best or len(best) < min(taken, len(candidates)):  # Ties may have added enough before.
                more = max(taken, count_whole_ties(ranking.scores, taken + MORE_ALIKE))
                best = best_rows(self.access, candidates.shards, candidates.rows, ranking.scores, more)
            rows = best[:taken]
            if request.options.diversity and rows:
                vectors = np.concatenate([row.search.row_vectors(np.array([row.row])) for row in rows])
                order = diversify([row.score for row in rows], vectors, wanted, 1.0 - request.options.diversity)
                rows = [rows[number] for number in order]
            made.update((row.number, self._make_hit(row, ranking)) for row in rows if row.number not in made)
            by_document = {row.header.id: row for row in rows}

            def read_text(hit: Hit, start: int, end: int, by_document: Mapping[str, RankedRow] = by_document) -> str:
                row = by_document[hit.document_id]
                return row.search.text(int(row.search.doc_of_row[row.row]))[start:end]

            hits = merge_neighbours([made[row.number] for row in rows], read_text, most_characters=_LONGEST_PASSAGE)
            together = fold_duplicates(hits)[:limit]
            if len(together) < limit:
                self._note_crowding(rows, made)
            if len(together) == limit or self.crowding or wanted >= min(len(candidates), self.most_rows):
                return _name_copies(together, rows, best)
            wanted *= 2

    def _make_hit(self, row: RankedRow, ranking: Ranking) -> Hit:
        distance = float(ranking.candidates.distances[row.number])
        probability = float(ranking.probabilities[row.number])
        hit = row.search.hit(row.row, None if math.isnan(distance) else distance, row.header, probability)
        graph = ranking.parts.get("graph")
        if graph is None and not self.request.explain:
            return hit
        return replace(
            hit,
            graph_score=None if graph is None else float(graph[row.number]),
            explanation=self._explain(row.number, ranking) if self.request.explain else None,
        )

    def _explain(self, number: int, ranking: Ranking) -> dict[str, float | str]:
        explanation: dict[str, float | str] = {"mode": ranking.mode, "score": float(ranking.probabilities[number])}
        explanation.update({name: float(values[number]) for name, values in ranking.evidence.items()})
        explanation["raw"] = float(ranking.scores[number])
        explanation.update({name: float(values[number]) for name, values in ranking.parts.items()})
        if "keyword" in ranking.parts:
            explanation["bm25"] = float(ranking.candidates.keyword[number])
        keywords = ranking.candidates.keywords
        if keywords is not None and keywords.corrected:
            explanation["corrected"] = "; ".join(f"{word} → {near}" for word, near in keywords.corrected.items())
        if "graph" in ranking.parts:
            explanation["alpha"] = self.request.options.graph.alpha
        return explanation

    def _note_crowding(self, rows: Sequence[RankedRow], made: Mapping[int, Hit]) -> None:
        """Find texts that gained more rows than a passage names since copies were last set aside."""
        by_text: dict[str, list[RankedRow]] = {}
        for row in rows:
            by_text.setdefault(made[row.number].text, []).append(row)
        self.crowding = {
            text: own for text, own in by_text.items() if len(own) > self._kept.get(text, 0) + MOST_ALSO_IN
        }

    def set_copies_aside(self) -> None:
        """Exclude further rows with texts that are stored too often."""
        for text, rows in self.crowding.items():
            kept = by_shard(np.array([row.shard for row in rows]), np.array([row.row for row in rows]))
            self._copies[text] += self.access.set_aside(text, kept)
            self._kept[text] = len(rows)
        self.crowding = {}

    def count_copies(self, hits: Sequence[Hit]) -> tuple[Hit, ...]:
        """Return the hits, counting the copies set aside; of several texts in a passage, the most frequent counts."""
        if not self._copies:
            return tuple(hits)
        copies = [max((n for text, n in self._copies.items() if text in hit.text), default=0) for hit in hits]
        return tuple(replace(hit, also_in_count=hit.also_in_count + n) for hit, n in zip(hits, copies, strict=True))


def _name_copies(hits: Sequence[Hit], rows: Sequence[RankedRow], best: Sequence[RankedRow]) -> tuple[Hit, ...]:
    """Return the hits, each with the places of the next best rows that have the same text."""
    shown = {row.number for row in rows}
    others = [row for row in best if row.number not in shown][:MORE_ALIKE]
    beginnings = {_begin_text(hit.text) for hit in hits}
    others = [row for row in others if _begin_text(row.search.row_text(row.row)) in beginnings]
    if not others:
        return tuple(hits)
    alike = [row.search.hit(row.row, None, row.header, row.score) for row in others]
    return fold_duplicates([*hits, *alike])[: len(hits)]


def _begin_text(text: str) -> tuple[str, ...]:
    """Return the first words of a text without case: texts that differ in them are not alike."""
    return tuple(map(str.casefold, text.split(None, _FIRST_WORDS)[:_FIRST_WORDS]))


def merge_neighbours(
    hits: Sequence[Hit], text_of: ReadText, *, most_gap: int = 0, most_characters: int = sys.maxsize
) -> tuple[Hit, ...]:
    """Merge hits of one document that touch or overlap, with the rank and score of the best hit.

    Merged hits are at most `most_gap` characters apart, or separated by whitespace. The merged passage has at most
    `most_characters`.
    """

    def continues(last: Hit, start: int, end: int, hit: Hit) -> bool:
        """Return whether `hit` continues the passage from `start` to `end`, which ends with `last`."""
        if hit.start >= end and max(end, hit.end) - start > most_characters:
            return False
        if hit.start - end <= most_gap:
            return True
        return hit.start - end <= _MOST_BLANK and not text_of(last, end, hit.start).strip()

    if len({hit.document_id for hit in hits}) == len(hits):
        return tuple(hits)
    groups: list[list[int]] = []
    start = end = 0
    for number, hit in sorted(enumerate(hits), key=lambda entry: (entry[1].document_id, entry[1].start, entry[1].end)):
        last = hits[groups[-1][-1]] if groups else hit
        if groups and last.document_id == hit.document_id and continues(last, start, end, hit):
            groups[-1].append(number)
            end = max(end, hit.end)
        else:
            groups.append([number])
            start, end = hit.start, hit.end
    merged = {min(group): _merge([hits[number] for number in sorted(group)], text_of) for group in groups}
    return tuple(merged[number] for number in sorted(merged))


def _merge(group: Sequence[Hit], text_of: ReadText) -> Hit:
    """Merge hits of one document, the best first."""
    best = group[0]
    if len(group) == 1:
        return best
    start, end = min(hit.start for hit in group), max(hit.end for hit in group)
    also_in = {_place(other): other for hit in group for other in hit.also_in}
    return replace(
        best,
        text=text_of(best, start, end),
        start=start,
        end=end,
        also_in=tuple(also_in.values())[:MOST_ALSO_IN],
        also_in_count=max(len(also_in), *(hit.also_in_count for hit in group)),
    )


def fold_duplicates(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Fold hits with the same text, apart from case and whitespace, into the best of them, which names the others."""
    beginnings = [_begin_text(hit.text) for hit in hits]
    frequencies = Counter(beginnings)
    alike: dict[tuple[str, ...] | str, list[Hit]] = {}
    for hit, beginning in zip(hits, beginnings, strict=True):
        # Few texts have to be compared as a whole.
        key = beginning if frequencies[beginning] == 1 else " ".join(hit.text.split()).casefold()
        alike.setdefault(key, []).append(hit)
    return tuple(_fold(first, others) for first, *others in alike.values())


def _fold(first: Hit, others: Sequence[Hit]) -> Hit:
    if not others:
        return first
    places = {_place(place): place for place in first.also_in}
    for hit in others:
        own = AlsoIn(hit.document_id, hit.chunk_id, hit.title, hit.url, hit.start, hit.end)
        for place in (own, *hit.also_in):
            places.setdefault(_place(place), place)
    places.pop(_place(first), None)
    unnamed = sum(hit.also_in_count - len(hit.also_in) for hit in (first, *others))
    return replace(first, also_in=tuple(places.values())[:MOST_ALSO_IN], also_in_count=len(places) + unnamed)


def _place(hit: Hit | AlsoIn) -> tuple[str, int, int]:
    return hit.document_id, hit.start, hit.end


def diversify(scores: Sequence[float], vectors: npt.NDArray[np.float32], limit: int, weight: float) -> list[int]:
    """Order candidates by maximal marginal relevance: `weight` for the score, the rest for the difference from the
    others.

    A weight of 1 keeps the order of the scores. Scores lie between 0 and 1, as the cosine does. Ties keep their order.
    """
    count = min(limit, len(scores))
    if count <= 0:
        return []
    worth = np.asarray(scores, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.where(norms > 0, norms, 1)).astype(np.float64)
    likeness = np.full(len(worth), -np.inf)
    chosen = [int(np.argmax(worth))]
    is_free = np.ones(len(worth), dtype=bool)
    while len(chosen) < count:
        is_free[chosen[-1]] = False
        likeness = np.maximum(likeness, unit @ unit[chosen[-1]])
        marginal = np.where(is_free, weight * worth - (1 - weight) * likeness, -np.inf)
        chosen.append(int(np.argmax(marginal)))
    return chosen
