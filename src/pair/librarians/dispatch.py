"""ask(): guard, deadline, delegation, parallel hand-over.

Invariants
    Whoever asks gets a valid Response in time, whatever a librarian does; only cancellation passes through.
    One question has one deadline, one budget and one chain, shared by all who work on it, also by those who ask
    somebody else themselves: so every question ends.
Not here
    What is decided: rules.py and merging.py. Threads: floors.py.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pair import telemetry
from pair.clock import SystemClock
from pair.error_tree import PairError
from pair.librarians.aggregate import (
    BLENDING,
    Aggregation,
    as_failed_delegation,
    asked_for,
    blended,
    blending,
    merged,
    succeeded,
    with_what_was_known,
)
from pair.librarians.budget import BudgetLedger, MeteredModel
from pair.librarians.contract import (
    Budget,
    Context,
    Delegate,
    DelegateRequest,
    ErrorCode,
    Response,
    TraceContext,
    User,
    code_of,
)
from pair.librarians.daemon_threads import in_thread
from pair.librarians.floors import Floors
from pair.librarians.loop_threads import LoopThreads
from pair.librarians.registry import RegisteredLibrarian, Registry
from pair.librarians.rules import (
    DEFAULT_ADVICE,
    FALLBACK_SHARE,
    HandOver,
    fault_of,
    fault_of_context,
    is_number,
    query_refusal,
    refusal,
    tidied,
    with_metadata,
)

GRACE_SECONDS = 0.05
"""Beyond the deadline, for a floor to say what was found until then."""

MERGE_SECONDS = 0.05
"""The most that a librarian's deadline lies before that of the librarian that asks it beside others."""

_AUDIT = logging.getLogger("pair.audit")
_LOGGER = logging.getLogger(__name__)
_FLOORS = Floors()
_LOOP_THREADS = LoopThreads()
_NOTHING = Context()
_now = SystemClock().monotonic


class Question:
    """What all who work on one question share."""

    def __init__(self, registry: Registry, context: Context, seconds: float) -> None:
        policy = registry.policy
        self.began_at = _now()
        self.ends_at = self.began_at + seconds
        given = context.budget or Budget(policy.max_calls, policy.max_tokens)
        self.ledger = BudgetLedger(Budget(min(given.calls, policy.max_calls), min(given.tokens, policy.max_tokens)))
        self.user: User | None = context.user
        self.request_id = context.request_id or registry.request_ids()
        self.answers: list[Response] = []
        """Found so far by those to whom the question itself was handed."""
        self.running: set[Call] = set()
        self.is_open = True


@dataclass(slots=True, eq=False)
class Call:
    """One librarian at work on a question."""

    tree: Question
    registry: Registry
    desk: RegisteredLibrarian
    chain: tuple[str, ...]
    """With this one."""
    owners: tuple[Registry | None, ...]
    """In which registry those of the chain are; None for somewhere else."""
    context: Context
    ends_at: float
    is_final: bool
    """Its answer is one to the question that the tree began with."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A question on its way to a librarian."""

    tree: Question
    registry: Registry
    to: str
    query: str
    context: Context
    """What it takes along: metadata, model, trace, listener."""
    ends_at: float
    chain: tuple[str, ...] = ()
    owners: tuple[Registry | None, ...] = ()
    delegates_to: tuple[str, ...] | None = None
    is_final: bool = True


@dataclass(slots=True, eq=False)
class CallResult:
    response: Response
    chain: tuple[str, ...]
    """To whoever answered."""
    is_delegated: bool = False


_CURRENT: contextvars.ContextVar[Call | None] = contextvars.ContextVar("pair_librarian", default=None)


async def ask(
    registry: Registry,
    librarian_id: str,
    query: str,
    context: Context | None = None,
    *,
    timeout: float | None = None,
) -> Response:
    """What a librarian, and all to whom it hands over, make of a question. `timeout` in seconds.

    Never raises but for cancellation. Asked by a librarian, it is part of the question that librarian works on: it has
    that question's user, chain and budget, and ends with it.
    """
    given = _NOTHING if context is None else context
    refused = _unusable(librarian_id, given, timeout)
    if refused is not None:
        return refused
    hop = _CURRENT.get()
    if hop is None:
        return await _from_outside(
            registry, librarian_id, query, given, _seconds(registry, librarian_id, given, timeout)
        )
    limits = [seconds for seconds in (timeout, _of_context(given)) if seconds is not None]
    step = PendingCall(
        hop.tree,
        registry,
        librarian_id,
        query,
        _own(hop) if context is None else replace(given, ai=given.ai or hop.context.ai),
        min([hop.ends_at, *(_now() + seconds for seconds in limits)]),
        hop.chain,
        hop.owners,
        hop.desk.entry.delegates_to if registry is hop.registry else None,
        is_final=False,
    )
    return _stamped(await _entered(step), step.tree)


async def _from_outside(
    registry: Registry, librarian_id: str, query: str, context: Context, seconds: float
) -> Response:
    tree = Question(registry, context, seconds)
    chain = context.delegation_chain
    step = PendingCall(tree, registry, librarian_id, query, context, tree.ends_at, chain, (None,) * len(chain))
    try:
        outcome = await _FLOORS.perform(lambda: _entered(step), max(0.0, seconds) + GRACE_SECONDS)
    except TimeoutError:
        outcome = CallResult(_given_up(tree, step), (*chain, librarian_id))
    except Exception as fault:  # noqa: BLE001 - no thread to be had, for instance
        outcome = CallResult(_of_fault(fault), (*chain, librarian_id))
    finally:
        tree.is_open = False
    return _stamped(outcome, tree)


# ── one librarian ──────────────────────────────────────────────────────────────────────────────────


async def _entered(step: PendingCall) -> CallResult:
    """What comes of a question at its next librarian, with all who are asked in turn."""
    refused = _refused(step)
    if refused is not None:
        return CallResult(_signed(refused, step), (*step.chain, step.to))
    desk = step.registry.desk(step.to)
    trace = step.context.trace
    parent = "" if trace is None else telemetry.format_traceparent(trace.trace_id, trace.span_id)
    about = {telemetry.AGENT_ID: step.to, telemetry.AGENT_NAME: desk.card.name}
    with telemetry.span(telemetry.INVOKE_AGENT, step.to, attributes=about, parent=parent) as span:
        hop = _hop(step, desk, span)
        response = _signed(await _called(hop, step.query), step)
        outcome = CallResult(response, hop.chain)
        if response.error is not None:
            outcome = replace(outcome, response=replace(response, delegate=None))
        elif response.delegates:
            outcome = await _followed(hop, step, response)
        if outcome.response.error is not None:
            span.fail(outcome.response.error.code)
        return outcome


def _refused(step: PendingCall) -> Response | None:
    """Before any work."""
    registry, user = step.registry, step.tree.user
    refused = query_refusal(step.query, registry.policy.max_query_characters) or refusal(
        HandOver(
            step.to,
            registry.__contains__,
            step.chain,
            _visited(step.chain, step.owners, registry),
            step.delegates_to,
            lambda to: registry.allows(user, to),
            registry.policy.max_depth,
        )
    )
    if step.to in registry and registry.desk(step.to).entry.permissions.sensitive:
        _audit(step, refused)
    if refused is not None:
        return refused
    if step.ends_at <= _now():
        return _timed_out()
    refused = registry.desk(step.to).breaker.refusal()
    if refused is None and not step.tree.ledger.take_call():
        return Response.failing(
            ErrorCode.RATE_LIMITED,
            "The question has used up the calls of librarians that it may cost",
            suggestion="Ask one of the librarians directly, or raise librarians.max_calls",
        )
    return refused


def _audit(step: PendingCall, refused: Response | None) -> None:
    user = None if step.tree.user is None else step.tree.user.id
    known = {
        "user": user,
        "librarian": step.to,
        "request_id": step.tree.request_id,
        "allowed": refused is None,
    }
    _AUDIT.info(
        "sensitive librarian %s: user=%r librarian=%s request=%r",
        "asked" if refused is None else "refused",
        user,
        step.to,
        step.tree.request_id,
        extra=known,
    )


def _hop(step: PendingCall, desk: RegisteredLibrarian, span: telemetry.Span) -> Call:
    """With the context that the librarian is given: a new one, made from nothing that it could change."""
    tree, registry, entry = step.tree, step.registry, desk.entry
    chain, owners = (*step.chain, step.to), (*step.owners, registry)
    ends_at = step.ends_at
    if entry.timeout_seconds is not None:
        ends_at = min(ends_at, _now() + entry.timeout_seconds)
    delegates: tuple[Delegate, ...] = ()
    if len(chain) <= registry.policy.max_depth:
        delegates = registry.delegates_for(tree.user, _visited(chain, owners, registry), entry.delegates_to)
    context = Context(
        librarian=desk.card,
        user=tree.user,
        trace=_trace_of(step.context.trace, span),
        delegation_chain=chain,
        ai=_metered(step.context, tree.ledger),
        available_delegates=delegates,
        metadata=step.context.metadata,
        request_id=tree.request_id,
        timeout_ms=max(1, int((ends_at - _now()) * 1000)),
        budget=tree.ledger.left,
        on_text=_while_open(tree, step.context.on_text),
    )
    return Call(tree, registry, desk, chain, owners, context, ends_at, step.is_final)


async def _called(hop: Call, query: str) -> Response:
    """What one librarian gives back, or what is to be said instead."""
    loop, running = asyncio.get_running_loop(), hop.tree.running
    variables = contextvars.copy_context()
    variables.run(_CURRENT.set, hop)
    # asyncio.wait would do, and costs more than all the rest.
    given: asyncio.Future[Response] = loop.create_future()
    task = loop.create_task(_guarded(hop, query, given), context=variables)
    timer = loop.call_later(max(0.0, hop.ends_at - _now()), _too_late, given)
    running.add(hop)
    try:
        response = await given
    except asyncio.CancelledError:
        running.discard(hop)
        raise
    finally:
        timer.cancel()
        if given.cancelled() or not task.done():
            task.cancel()
            _ORPHANS.add(task)
            task.add_done_callback(_ORPHANS.discard)
    if hop in running:  # otherwise it was given up, and that was noted
        running.discard(hop)
        hop.desk.breaker.note(response)
    return response


_ORPHANS: set[asyncio.Task[None]] = set()
"""Librarians that were told to stop and have not yet: a loop alone would forget them in the middle of their work."""


def _too_late(given: asyncio.Future[Response]) -> None:
    if not given.done():
        given.set_result(_timed_out())


async def _guarded(hop: Call, query: str, given: asyncio.Future[Response]) -> None:
    """A librarian's work: puts a valid response where it is waited for, whatever happens."""
    try:
        response = await _worked(hop, query)
    except asyncio.CancelledError:
        given.cancel()
        raise
    except BaseException as fault:  # noqa: BLE001 - whatever a librarian raises is an answer of a kind
        response = _of_fault(fault)
    if not given.done():
        given.set_result(response)


async def _worked(hop: Call, query: str) -> Response:
    way = hop.desk.gets_context
    librarian = hop.desk.entry.librarian
    if way == "positional":
        work = librarian(query, hop.context)
    else:
        work = librarian(query, context=hop.context) if way else librarian(query)
    if not inspect.isawaitable(work):
        return _invalid("it is not async")
    given = await work
    fault = fault_of(given)
    if fault:
        return _invalid(fault)
    response = tidied(given)
    if hop.is_final and response.answer is not None:
        hop.tree.answers.append(response)
    return response


# ── handing over ───────────────────────────────────────────────────────────────────────────────────


async def _followed(hop: Call, step: PendingCall, delegating: Response) -> CallResult:
    """What comes of the requests of a librarian to ask others."""
    requests = delegating.delegates
    if len(requests) == 1:
        outcome = replace(await _delegated(hop, step, requests[0], is_alone=True), is_delegated=True)
    else:
        how = asked_for(delegating)
        outcomes = await _together(hop, step, requests, how)
        outcome = CallResult(await _as_one(hop, step.query, outcomes, how), hop.chain, is_delegated=True)
    if outcome.response.error is not None:
        failed = as_failed_delegation(outcome.response)
        return replace(outcome, response=with_what_was_known(failed, delegating))
    return outcome


async def _delegated(hop: Call, step: PendingCall, request: DelegateRequest, *, is_alone: bool) -> CallResult:
    """The colleague's answer, or that of the fallback when there is none."""
    now = _now()
    kept = FALLBACK_SHARE * (hop.ends_at - now) if request.fallback else 0.0
    metadata = {**step.context.metadata, **request.context} if request.context else step.context.metadata
    onwards = PendingCall(
        step.tree,
        step.registry,
        request.to,
        request.query if request.query.strip() else step.query,
        Context(
            ai=hop.context.ai,
            trace=hop.context.trace,
            metadata=metadata,
            on_text=step.context.on_text if is_alone else None,  # two who speak at once are not understood
        ),
        hop.ends_at - kept,
        hop.chain,
        hop.owners,
        hop.desk.entry.delegates_to,
        step.is_final,
    )
    outcome = await (_entered(onwards) if is_alone and not request.fallback else _enter_apart(onwards))
    if outcome.response.error is not None and request.fallback:
        fallback = replace(onwards, to=request.fallback, ends_at=hop.ends_at)
        second = await (_entered(fallback) if is_alone else _enter_apart(fallback))
        outcome = second if second.response.error is None else _first_failure(outcome, second)
    return outcome


async def _enter_apart(step: PendingCall) -> CallResult:
    """Ask on another event loop, so that a librarian that blocks holds up neither its siblings nor the fallback."""
    reserve = min(MERGE_SECONDS, max(0.0, step.ends_at - _now()) / 10)
    step = replace(step, ends_at=step.ends_at - reserve)
    try:
        return await _LOOP_THREADS.run(lambda: _entered(step), step.ends_at - _now() + reserve / 2)
    except TimeoutError:
        chain = (*step.chain, step.to)
        response = _timed_out()
        _blame(response, [hop for hop in tuple(step.tree.running) if hop.chain[: len(chain)] == chain])
        return CallResult(_signed(response, step), chain)


def _first_failure(first: CallResult, second: CallResult) -> CallResult:
    """The error of the colleague; of the fallback, the answer that it may have left."""
    return replace(first, response=with_what_was_known(first.response, second.response))


async def _together(
    hop: Call, step: PendingCall, requests: Sequence[DelegateRequest], how: Aggregation
) -> list[Response]:
    """In the order of the requests, but for `first-success`: there the first to succeed is the only one."""
    tasks = [asyncio.create_task(_delegated(hop, step, each, is_alone=False)) for each in requests]
    try:
        waiting = set(tasks)
        while waiting:
            until = asyncio.FIRST_COMPLETED if how == "first-success" else asyncio.ALL_COMPLETED
            done, waiting = await asyncio.wait(waiting, return_when=until)
            if how == "first-success":
                for task in done:
                    if succeeded(task.result().response):
                        return [task.result().response]
        return [task.result().response for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


async def _as_one(hop: Call, query: str, responses: Sequence[Response], how: Aggregation) -> Response:
    model = hop.context.ai
    if how == "blend" and model is not None and sum(map(succeeded, responses)) > 1:
        asked = in_thread(functools.partial(model.reply, BLENDING, blending(query, responses)))
        with contextlib.suppress(Exception):  # without a model, as well as it can be done without
            text = await asyncio.wait_for(asked, max(0.0, hop.ends_at - _now()))
            return blended(text, responses)
    return merged(responses, how)


# ── small things ───────────────────────────────────────────────────────────────────────────────────


def _unusable(librarian_id: object, context: object, timeout: object) -> Response | None:
    if not isinstance(librarian_id, str):
        return Response.failing(ErrorCode.NOT_FOUND, f"A {type(librarian_id).__name__} is no id of a librarian")
    if timeout is not None and not is_number(timeout):
        return Response.failing(ErrorCode.INVALID_QUERY, "The timeout is no number of seconds")
    fault = None if context is _NOTHING else fault_of_context(context)
    return Response.failing(ErrorCode.INVALID_QUERY, f"The context cannot be used: {fault}") if fault else None


def _seconds(registry: Registry, librarian_id: str, context: Context, timeout: float | None) -> float:
    """The shortest limit that was given; without any, that of the librarian, or else of everybody."""
    given = [seconds for seconds in (timeout, _of_context(context)) if seconds is not None]
    if given:
        return min(given)
    own = registry.desk(librarian_id).entry.timeout_seconds if librarian_id in registry else None
    return own or registry.policy.timeout_seconds


def _of_context(context: Context) -> float | None:
    return None if context.timeout_ms is None else context.timeout_ms / 1000


def _own(hop: Call) -> Context:
    """What a librarian takes along that asks without saying so."""
    return Context(ai=hop.context.ai, trace=hop.context.trace, metadata=hop.context.metadata)


def _visited(chain: tuple[str, ...], owners: tuple[Registry | None, ...], registry: Registry) -> Sequence[str]:
    """Those of a chain who are the same here: two registries may use one name for two librarians."""
    return [each for each, owner in zip(chain, owners, strict=True) if owner is None or owner is registry]


def _metered(context: Context, ledger: BudgetLedger) -> MeteredModel | None:
    model = context.ai
    if model is None or (isinstance(model, MeteredModel) and model.ledger is ledger):
        return model
    return MeteredModel(model, ledger)


def _trace_of(given: TraceContext | None, span: telemetry.Span) -> TraceContext | None:
    ids = span.ids
    return given if ids is None else TraceContext(ids[0], ids[1], given.span_id if given else "")


def _while_open(tree: Question, listener: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Whoever got their response is told nothing more."""
    if listener is None:
        return None

    def tell(text: str) -> None:
        if tree.is_open:
            listener(text)

    return tell


def _stamped(outcome: CallResult, tree: Question) -> Response:
    about: Mapping[str, Any] = {
        "librarian": outcome.chain[-1],
        "delegationChain": outcome.chain,
        "delegated": outcome.is_delegated,
        "executionTimeMs": round((_now() - tree.began_at) * 1000, 3),
        "requestId": tree.request_id,
    }
    return with_metadata(outcome.response, about)


def _signed(response: Response, step: PendingCall) -> Response:
    """Complete an error: the librarian, the question, whether it may pass, and what to do."""
    error = response.error
    if error is None:
        return response
    suggestion, is_recoverable = DEFAULT_ADVICE[ErrorCode(error.code)]
    completed = replace(
        error,
        librarian=error.librarian or step.to,
        query=error.query or (step.query if isinstance(step.query, str) else ""),
        recoverable=is_recoverable if error.recoverable is None else error.recoverable,
        suggestion=error.suggestion or suggestion,
    )
    return replace(response, error=completed)


def _given_up(tree: Question, step: PendingCall) -> Response:
    """The floor is blocked: what was found before is what there is, and whoever was at work is to blame."""
    response = _timed_out()
    _blame(response, tuple(tree.running))
    answers = tuple(tree.answers)
    if answers:
        found = merged([replace(each, delegate=None, error=None) for each in answers])
        response = replace(found, error=response.error, partial=True)
    return _signed(response, step)


def _blame(response: Response, hops: Sequence[Call]) -> None:
    """Count the failure against librarians that were at work and gave nothing back."""
    for hop in hops:
        hop.tree.running.discard(hop)
        hop.desk.breaker.note(response)


def _timed_out() -> Response:
    return Response.failing(
        ErrorCode.TIMEOUT,
        "There was no answer in time",
        recoverable=True,
        suggestion="Ask again with more time, or ask something narrower",
    )


def _invalid(fault: str) -> Response:
    return Response.failing(
        ErrorCode.INTERNAL_ERROR,
        f"The librarian broke its contract: {fault}",
        suggestion="`pair librarians check` says who keeps it",
    )


def _of_fault(fault: BaseException) -> Response:
    """Whatever it is: even one whose text cannot be had, or that only looks like one of ours."""
    with contextlib.suppress(BaseException):
        if isinstance(fault, PairError):
            response = Response.of_fault(fault)
        else:
            _LOGGER.info("librarian failed", exc_info=fault)
            response = Response.failing(code_of(fault), f"{type(fault).__name__}: {fault}"[:500].strip(": "))
        if fault_of(response) is None:
            return response
    return Response.failing(ErrorCode.INTERNAL_ERROR, type(fault).__name__)
