"""Valid response? May it be handed on? What is tidied before others see it? Pure.

Not here
    How several responses become one: merging.py. Who is asked when, and for how long: dispatch.py.
"""

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pair.librarians.contract import (
    Budget,
    Citation,
    Context,
    DelegateRequest,
    ErrorCode,
    ErrorInfo,
    Provenance,
    Response,
    TraceContext,
    User,
)

PARTIAL_BELOW = 0.6
MAX_ANSWER_CHARACTERS = 4_000
FALLBACK_SHARE = 1 / 3
"""Of the time left, kept for the fallback: whoever waits for the first one to the end has nothing left to fall back."""

DEFAULT_ADVICE: Mapping[ErrorCode, tuple[str, bool]] = {
    ErrorCode.INVALID_QUERY: ("Ask one question in plain text", False),
    ErrorCode.UNAUTHORIZED: ("Log in, or ask the team that owns the librarian for access", False),
    ErrorCode.NOT_FOUND: ("List the librarians: pair librarians list", False),
    ErrorCode.RATE_LIMITED: ("Wait a moment, then ask again", True),
    ErrorCode.INTERNAL_ERROR: ("Check the librarian: pair librarians check", False),
    ErrorCode.TIMEOUT: ("Ask again with more time, or ask something narrower", True),
    ErrorCode.SERVICE_UNAVAILABLE: ("Wait a moment, then ask again", True),
    ErrorCode.DELEGATION_FAILED: ("Ask one of the librarians directly: pair ask --librarian ID", False),
    ErrorCode.LOOP_DETECTED: ("Ask one of the librarians directly: pair ask --librarian ID", False),
    ErrorCode.MAX_DEPTH_EXCEEDED: ("Ask one of the last librarians directly: pair ask --librarian ID", False),
    ErrorCode.AI_UNAVAILABLE: ("Check the model server, then ask again: pair doctor", True),
    ErrorCode.DATA_SOURCE_ERROR: ("Check the knowledge base: pair doctor", True),
}
"""For each code, what to suggest and whether asking again may help, where the error itself does not say."""

_CODES = frozenset(code.value for code in ErrorCode)
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]*_]*(?=\s)|[。！？]|\n(?=\s*\n)")  # noqa: RUF001
_MARKS = re.compile(r"(?<![\w\]])\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\](?!\()")


# ── validity ───────────────────────────────────────────────────────────────────────────────────────


def fault_of(given: object) -> str | None:
    """What is wrong with something a librarian gave back; None for a valid Response."""
    if not isinstance(given, Response):
        return f"it gave back {_kind(given)} and no Response"
    for fault in (
        _fault_of_answer(given),
        _fault_of_sources(given.sources),
        _fault_of_delegates(given.delegate),
        _fault_of_error(given.error),
    ):
        if fault:
            return fault
    if not isinstance(given.metadata, Mapping):
        return f"metadata is {_kind(given.metadata)} and no object"
    if not ((given.answer or "").strip() or given.delegates or given.error):
        return "it has neither answer, delegate nor error"
    return None


def is_share(value: object) -> bool:
    """A real number from 0 to 1. True is no number here, whatever Python says."""
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _fault_of_answer(given: Response) -> str | None:
    if given.answer is not None and not isinstance(given.answer, str):
        return f"answer is {_kind(given.answer)} and no text"
    if not isinstance(given.partial, bool):
        return f"partial is {_kind(given.partial)} and neither true nor false"
    if given.confidence is not None and not is_share(given.confidence):
        shown = repr(float(given.confidence)) if _is_plain_number(given.confidence) else _kind(given.confidence)
        return f"confidence is {shown} and no number from 0 to 1"
    return None


def _fault_of_sources(sources: object) -> str | None:
    if not isinstance(sources, tuple):
        return f"sources is {_kind(sources)} and no list"
    return next((fault for each in sources if (fault := _fault_of_source(each))), None)


def _fault_of_source(source: object) -> str | None:
    if not isinstance(source, Citation):
        return f"a source is {_kind(source)} and no Citation"
    if not isinstance(source.name, str) or not source.name.strip():
        return "a source has no name"
    texts = (source.url, source.type, source.timestamp, source.id, source.quote)
    if not all(isinstance(text, str) for text in texts):
        return f"the source {source.name!r} has something else where a text belongs"
    if source.relevance is not None and not is_number(source.relevance):
        return f"the relevance of the source {source.name!r} is {_kind(source.relevance)} and no number"
    if source.provenance is not None and not isinstance(source.provenance, Provenance):
        return f"the provenance of the source {source.name!r} is {_kind(source.provenance)}"
    return None if isinstance(source.metadata, Mapping) else f"the metadata of the source {source.name!r} is no object"


def _fault_of_delegates(delegate: object) -> str | None:
    requests = delegate if isinstance(delegate, tuple) else () if delegate is None else (delegate,)
    for each in requests:
        if not isinstance(each, DelegateRequest):
            return f"delegate is {_kind(each)} and no DelegateRequest"
        if not isinstance(each.to, str) or not each.to.strip():
            return "delegate does not say to whom"
        if not (isinstance(each.query, str) and isinstance(each.fallback, str)):
            return "delegate has something else where a text belongs"
        if not isinstance(each.context, Mapping):
            return f"the context of delegate is {_kind(each.context)} and no object"
    return None


def _fault_of_error(error: object) -> str | None:
    if error is None:
        return None
    if not isinstance(error, ErrorInfo):
        return f"error is {_kind(error)} and no ErrorInfo"
    if not isinstance(error.code, str) or error.code not in _CODES:
        return f"error has the unknown code {error.code!r}" if isinstance(error.code, str) else "error has no code"
    if not isinstance(error.message, str) or not error.message.strip():
        return "error has no message"
    if not all(isinstance(text, str) for text in (error.librarian, error.query, error.suggestion)):
        return "error has something else where a text belongs"
    if error.recoverable is not None and not isinstance(error.recoverable, bool):
        return f"recoverable is {_kind(error.recoverable)} and neither true nor false"
    return None if isinstance(error.details, Mapping) else f"details is {_kind(error.details)} and no object"


def _is_plain_number(value: object) -> bool:
    return type(value) in {int, float}


def _kind(value: object) -> str:
    """Without asking the value itself, which may be hostile."""
    return "None" if value is None else f"a {type(value).__name__}"


def fault_of_context(given: object) -> str | None:
    """What is wrong with what somebody who asks gave along; None when all is as it should be."""
    if not isinstance(given, Context):
        return f"it is {_kind(given)} and no Context"
    if not all(isinstance(each, str) for each in given.delegation_chain) or isinstance(given.delegation_chain, str):
        return "delegationChain is no list of ids"
    if given.timeout_ms is not None and not is_number(given.timeout_ms):
        return "timeout is no number of milliseconds"
    for name, value, kind in (
        ("user", given.user, User),
        ("trace", given.trace, TraceContext),
        ("budget", given.budget, Budget),
    ):
        if value is not None and not isinstance(value, kind):
            return f"{name} is {_kind(value)} and no {kind.__name__}"
    if not isinstance(given.metadata, Mapping):
        return "metadata is no object"
    return None if isinstance(given.request_id, str) else "requestId is no text"


def query_refusal(query: object, max_characters: int) -> Response | None:
    """Why this is no question; None when it is one."""
    if not isinstance(query, str):
        return Response.failing(ErrorCode.INVALID_QUERY, f"The question is {_kind(query)} and no text")
    if not query.strip():
        return Response.failing(ErrorCode.INVALID_QUERY, "The question is blank", suggestion="Ask in a few words")
    if len(query) > max_characters:
        return Response.failing(
            ErrorCode.INVALID_QUERY,
            f"The question has {len(query):,} characters, {max_characters:,} are allowed",
            suggestion="Ask in fewer words",
        )
    return None


# ── who may be asked ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Permissions:
    """Who may ask a librarian: everybody, or its team, other teams, and roles."""

    public: bool | None = None
    """None: public, unless teams or roles are named."""
    allowed_teams: tuple[str, ...] = ()
    allowed_roles: tuple[str, ...] = ()
    sensitive: bool = False
    """Whoever asks, or tries to, is written to the log `pair.audit`."""

    @property
    def is_public(self) -> bool:
        return self.public if self.public is not None else not (self.allowed_teams or self.allowed_roles)

    def allow(self, user: User | None, team: str) -> bool:
        """`team` owns the librarian, and may always ask it."""
        if self.is_public:
            return True
        if user is None:
            return False
        teams = {*self.allowed_teams, team} - {""}
        return not teams.isdisjoint(user.teams) or not set(self.allowed_roles).isdisjoint(user.roles)


@dataclass(frozen=True, slots=True)
class HandOver:
    """A question on its way to a librarian: all that decides whether it may get there."""

    to: str
    known: Callable[[str], bool]
    chain: tuple[str, ...]
    """Whom it has passed through."""
    visited: Sequence[str]
    """Those of them that `to` may not be."""
    delegates_to: tuple[str, ...] | None
    """Whom the last of them may ask; None for everybody."""
    allowed: Callable[[str], bool]
    """To the user."""
    max_depth: int


def refusal(step: HandOver) -> Response | None:
    """Why a question may not be handed there, decided before any work; None when it may."""
    if not step.known(step.to):
        return Response.failing(
            ErrorCode.NOT_FOUND,
            f"There is no librarian {step.to!r}",
            suggestion="`pair librarians list` shows who there is",
        )
    if step.to in step.visited:
        way = " → ".join((*step.chain, step.to))
        return Response.failing(ErrorCode.LOOP_DETECTED, f"The question came back to {step.to}: {way}")
    if len(step.chain) > step.max_depth:
        way = " → ".join((*step.chain, step.to))
        return Response.failing(
            ErrorCode.MAX_DEPTH_EXCEEDED,
            f"The question was handed on more than {step.max_depth} times: {way}",
            suggestion="Ask one of the last librarians directly",
        )
    if step.delegates_to is not None and step.to not in step.delegates_to:
        return Response.failing(ErrorCode.UNAUTHORIZED, f"{step.chain[-1]} may not hand over to {step.to}")
    if not step.allowed(step.to):
        return Response.failing(
            ErrorCode.UNAUTHORIZED,
            f"You may not ask {step.to}",
            suggestion="Log in, or ask the team that owns it for access",
        )
    return None


# ── tidying ────────────────────────────────────────────────────────────────────────────────────────


def tidied(response: Response) -> Response:
    """As the specification would have it; marks `[n]` in the answer follow their sources.

    Partial below 0.6, sources once each and the most relevant first, answers of bounded length.
    """
    if response.answer is None and not response.sources:
        return response
    sources, places = ordered(response.sources)
    answer, metadata, partial = response.answer, response.metadata, response.partial
    if answer is not None:
        answer = remarked(answer, places)
        if len(answer) > MAX_ANSWER_CHARACTERS:
            answer, metadata, partial = cut(answer), {**metadata, "truncated": True}, True
    confidence = None if response.confidence is None else float(response.confidence)
    if answer is not None and confidence is not None and confidence < PARTIAL_BELOW:
        partial = True
    if (answer, sources, confidence, partial) == (
        response.answer,
        response.sources,
        response.confidence,
        response.partial,
    ):
        return response
    return replace(response, answer=answer, sources=sources, confidence=confidence, partial=partial, metadata=metadata)


def ordered(sources: Sequence[Citation]) -> tuple[tuple[Citation, ...], tuple[int, ...]]:
    """Each source once, the most relevant first; and for each given one, its place in that list."""
    if len(sources) < 2:
        return tuple(sources), tuple(range(len(sources)))
    best: dict[tuple[str, str], int] = {}
    for number, source in enumerate(sources):
        key = _identity(source)
        if key not in best or _relevance(source) > _relevance(sources[best[key]]):
            best[key] = number
    first_seen = {key: number for number, key in reversed([*enumerate(map(_identity, sources))])}
    keys = sorted(best, key=lambda key: (-_relevance(sources[best[key]]), first_seen[key]))
    place = {key: number for number, key in enumerate(keys)}
    return tuple(sources[best[key]] for key in keys), tuple(place[_identity(source)] for source in sources)


def _identity(source: Citation) -> tuple[str, str]:
    if source.id:
        return "id", source.id
    return ("url", source.url) if source.url else ("name", source.name)


def _relevance(source: Citation) -> float:
    """One that does not say comes last."""
    return -math.inf if source.relevance is None else float(source.relevance)


def remarked(answer: str, places: Sequence[int]) -> str:
    """The marks `[1]`, `[2, 3]` of an answer, after source n went to `places[n - 1]`."""
    if all(place == number for number, place in enumerate(places)):
        return answer

    def moved(found: re.Match[str]) -> str:
        marks = [int(mark) for mark in found[1].split(",")]
        if not all(1 <= mark <= len(places) for mark in marks):
            return found[0]
        return f"[{', '.join(str(mark) for mark in dict.fromkeys(places[mark - 1] + 1 for mark in marks))}]"

    return _MARKS.sub(moved, answer)


def cut(answer: str, limit: int = MAX_ANSWER_CHARACTERS) -> str:
    """At the last end of a sentence that fits; in a text without any, between words."""
    kept = answer[:limit]
    ends = [found.end() for found in _SENTENCE_END.finditer(answer, 0, limit + 1) if found.end() <= limit]
    if ends and ends[-1] >= limit // 4:
        return kept[: ends[-1]].rstrip()
    space = max(kept.rfind(" "), kept.rfind("\n"))
    return kept[:space].rstrip() if space > limit // 4 else kept


def with_metadata(response: Response, added: Mapping[str, Any]) -> Response:
    return Response(
        response.answer,
        response.sources,
        response.confidence,
        response.partial,
        response.delegate,
        response.error,
        {**response.metadata, **added},
    )
