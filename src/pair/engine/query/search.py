"""Search one KB by vector, by keyword, by both and along the graph: retrieve, rank, make passages.

Invariants
    A query sees one manifest. If garbage collection removes a shard meanwhile, it starts again with the current one.
    The vector of a query is compared only with vectors of the embedder that made it.
    Hits are ordered by score, then document, then chunk, whatever the layout of the shards.
    No text is lost in passages: what a hit showed is in the passage it became part of, or is said word for word by
    another one. A passage names a bounded number of other places, and counts all of them.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.contract import Reranker
from pair.clock import Clock
from pair.engine.format.array_file import RangeError
from pair.engine.format.manifest import Manifest
from pair.engine.format.vectors import Vectors
from pair.engine.query.ranking import MORE_ALIKE, RankedRow, Ranking, best_rows, count_whole_ties, rank
from pair.engine.query.retrieve import SearchRequest, VectorSearch, retrieve
from pair.engine.query.shard_access import ShardAccess, ShardReader, ShardRouting, by_shard
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.text.tokenizer import find_highlights
from pair.values import AlsoIn, Hit, Hits, SearchMode

_TRIES_AFTER_COLLECTION = 5
_MORE_ROWS = 4
"""Times as many candidates, when those that there are make too few passages."""
_MOST_ROWS = 4000
"""Rows that are looked at one by one for a query, or ten for each hit: texts that differ by case or whitespace only."""
MOST_ALSO_IN = 20
"""Other places that a passage names."""
_DIVERSE_CHOICES = 4
"""Candidates for each hit, when hits are to be unlike each other."""
_LONGEST_PASSAGE = 6000
"""In characters: neighbours are merged up to here."""
_MOST_BLANK = 200
"""Whitespace between two chunks is a few characters; text further apart is not even looked at."""

ReadText = Callable[[Hit, int, int], str]
"""Reads the characters from one place to another of the text of the hit's document."""
_Answer = Callable[[ShardAccess], Hits]


@dataclass
class Search:
    """Searches the manifests of one KB. Used from several threads at once."""

    manifests: ManifestStore
    reader: ShardReader
    settings: EngineSettings
    clock: Clock
    _routing: ShardRouting | None = None

    def nearest(self, request: SearchRequest) -> Hits:
        """Find chunks by distance alone. Raises E201, E303, E304, E205, E206, E215; E207 if no shard can be asked."""

        def answer(access: ShardAccess) -> Hits:
            vector = _check_vector(request, access.routing.published.manifest)
            search = VectorSearch(access, self.settings, request, vector, request.limit)
            shards, rows, distances = search.nearest()
            best = best_rows(access, shards, rows, -distances, request.limit)[: request.limit]
            hits = (row.search.hit(row.row, -row.score, row.header, 1.0 / (1.0 - row.score)) for row in best)
            return _make_hits(access, tuple(hits), search.shards_asked, "vector")

        return self._answer(answer, request)

    def find(self, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        """Find passages that answer a text. Raises as `nearest` does, and E204 in mode `graph` without a graph.

        `published`: the manifest, if it was just read.
        """

        def answer(access: ShardAccess) -> Hits:
            if request.vector is None:
                return _find_passages(access, self.settings, request)
            has_vector = _check_vector(request, access.routing.published.manifest).any()
            return _find_passages(access, self.settings, request if has_vector else replace(request, vector=None))

        hits = self._answer(answer, request, published)
        if request.words is None or not request.options.highlights:
            return hits
        marked = list(hits.passages)  # at the end: many more rows are looked at than are shown
        for number, hit in enumerate(marked):
            marked[number] = replace(hit, highlights=find_highlights(hit.text, request.words))
        return replace(hits, passages=tuple(marked))

    def _answer(self, answer: _Answer, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = published or self.manifests.require()
            routing = self._route(published)
            try:
                try:
                    return answer(self._access(routing, request))
                except RangeError:  # the whole file may be right; if not, it tells what is wrong
                    return answer(self._access(routing, request, in_pieces=False))
            except ShardMissingError:
                # Collected just before it was read: then another manifest is there by now.
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
            if not self.manifests.is_past:  # a past version has no former one, and does not own the current one
                self.reader.cache.keep_only(published.manifest.folders)
        return routing


def _find_passages(access: ShardAccess, settings: EngineSettings, request: SearchRequest) -> Hits:
    limit, most_rows = max(request.limit, 0), max(_MOST_ROWS, 10 * request.limit)
    passages = PassageBuilder(access, request, most_rows)
    candidates = first = retrieve(access, settings, request, limit)
    while True:
        ranking = rank(access, request, candidates, first)
        hits, rows = passages.build(ranking), len(ranking.candidates)
        # Where a text is stored a thousand times, the best rows are all one passage, and others have to be found.
        if len(hits) >= request.limit or rows < request.limit:
            break
        if passages.crowding:
            passages.set_copies_aside()
        elif candidates.is_complete or rows >= most_rows:
            break
        else:
            limit = _MORE_ROWS * rows
        candidates = retrieve(access, settings, request, limit)
    asked = candidates.shards_asked if request.mode == "vector" else len(access.shards)
    weights = dict(candidates.keywords.weights) if candidates.keywords is not None else {}
    made = _make_hits(access, passages.count_copies(hits), asked, ranking.mode)
    return replace(made, reason=ranking.reason, term_weights=weights)


def _make_hits(access: ShardAccess, hits: tuple[Hit, ...], asked: int, mode: SearchMode) -> Hits:
    """Raises E207 when faults have left nothing that could answer."""
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
    )


def _check_vector(request: SearchRequest, manifest: Manifest) -> Vectors:
    """Return the vector. Check it by the manifest that is asked: another may have come since it was made."""
    vector = np.empty(0, np.float32) if request.vector is None else request.vector
    if request.embedder != manifest.embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, request.embedder)
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector holds something that is not a number")
    return vector


def rerank(hits: Hits, query: str, limit: int, reranker: Reranker) -> Hits:
    """Order hits by the scores that a reranker gives their texts, and keep as many as are wanted."""
    scores = reranker.scores(query, [hit.text for hit in hits])
    passages = []
    for number in sorted(range(len(hits)), key=lambda number: (-scores[number], number))[: max(limit, 0)]:
        hit, score = hits[number], float(scores[number])
        explanation = None if hit.explanation is None else {**hit.explanation, "reranker": score}
        passages.append(replace(hit, score=score, explanation=explanation))
    return replace(hits, passages=tuple(passages))


# ── passages ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class PassageBuilder:
    """Makes the passages of one query, and keeps account of texts that are stored very often."""

    access: ShardAccess
    request: SearchRequest
    most_rows: int
    """Rows that are looked at one by one."""
    crowding: dict[str, list[RankedRow]] = field(default_factory=dict)
    """Rows that crowd out others because they say the same, by text."""
    _copies: Counter[str] = field(default_factory=Counter)
    """How many rows with this text were set aside."""
    _kept: dict[str, int] = field(default_factory=dict)
    """How many rows with this text were not."""

    def build(self, ranking: Ranking) -> tuple[Hit, ...]:
        """Return as many passages as are wanted, if there are: where rows become one passage, the next rows fill up."""
        request, candidates = self.request, ranking.candidates
        wanted = limit = max(request.limit, 0)
        best: list[RankedRow] = []
        made: dict[int, Hit] = {}
        while True:
            taken = wanted if not request.options.diversity else wanted * _DIVERSE_CHOICES
            if not best or len(best) < min(taken, len(candidates)):  # ties may have brought as many before
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
        hit = row.search.hit(row.row, None if math.isnan(distance) else distance, row.header, row.score)
        graph = ranking.parts.get("graph")
        if graph is None and not self.request.explain:
            return hit
        return replace(
            hit,
            graph_score=None if graph is None else float(graph[row.number]),
            explanation=self._explain(row.number, ranking) if self.request.explain else None,
        )

    def _explain(self, number: int, ranking: Ranking) -> dict[str, float | str]:
        explanation: dict[str, float | str] = {"mode": ranking.mode, "score": float(ranking.scores[number])}
        explanation.update({name: float(values[number]) for name, values in ranking.parts.items()})
        if "keyword" in ranking.parts:
            explanation["bm25"] = float(ranking.candidates.keyword[number])
        if "graph" in ranking.parts:
            explanation["alpha"] = self.request.options.graph.alpha
        return explanation

    def _note_crowding(self, rows: Sequence[RankedRow], made: Mapping[int, Hit]) -> None:
        """Find texts that more rows have than a passage names, since copies were last set aside."""
        by_text: dict[str, list[RankedRow]] = {}
        for row in rows:
            by_text.setdefault(made[row.number].text, []).append(row)
        self.crowding = {
            text: own for text, own in by_text.items() if len(own) > self._kept.get(text, 0) + MOST_ALSO_IN
        }

    def set_copies_aside(self) -> None:
        """Exclude all further rows with a text that crowds out others."""
        for text, rows in self.crowding.items():
            kept = by_shard(np.array([row.shard for row in rows]), np.array([row.row for row in rows]))
            self._copies[text] += self.access.set_aside(text, kept)
            self._kept[text] = len(rows)
        self.crowding = {}

    def count_copies(self, hits: Sequence[Hit]) -> tuple[Hit, ...]:
        """Add the copies that were set aside. In a passage of several rows, the most frequent one counts."""
        copies = [max((n for text, n in self._copies.items() if text in hit.text), default=0) for hit in hits]
        return tuple(replace(hit, also_in_count=hit.also_in_count + n) for hit, n in zip(hits, copies, strict=True))


def _name_copies(hits: Sequence[Hit], rows: Sequence[RankedRow], best: Sequence[RankedRow]) -> tuple[Hit, ...]:
    """Return the hits, which also name those of the next best rows that say the same."""
    shown = {row.number for row in rows}
    others = [row for row in best if row.number not in shown][:MORE_ALIKE]
    alike = [row.search.hit(row.row, None, row.header, row.score) for row in others]
    return fold_duplicates([*hits, *alike])[: len(hits)]


def merge_neighbours(
    hits: Sequence[Hit], text_of: ReadText, *, most_gap: int = 0, most_characters: int = sys.maxsize
) -> tuple[Hit, ...]:
    """Merge hits of one document that touch or overlap, in the place and with the score of the best of them.

    Between two merged hits lie at most `most_gap` characters, or whitespace. A passage longer than `most_characters`
    is not made of several hits.
    """

    def continues(last: Hit, start: int, end: int, hit: Hit) -> bool:
        """Tell whether `hit` continues the passage from `start` to `end`; `last` is in it."""
        if hit.start >= end and max(end, hit.end) - start > most_characters:
            return False
        if hit.start - end <= most_gap:
            return True
        return hit.start - end <= _MOST_BLANK and not text_of(last, end, hit.start).strip()

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
    """Make one hit of several of a document, of which the first is the best."""
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
    """Fold hits that say the same, but for case and whitespace, into the best of them, which names the others."""
    alike: dict[str, list[Hit]] = {}
    for hit in hits:
        alike.setdefault(" ".join(hit.text.split()).casefold(), []).append(hit)
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
    """Order candidates by maximal marginal relevance: `weight` for the score, the rest for being unlike others.

    A weight of 1 gives the order of the scores, 0 what is least alike after the best one. Scores should lie between
    0 and 1, as likeness (the cosine) does; of equals the first comes first.
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
