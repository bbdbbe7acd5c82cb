"""Ask a librarian: checks, deadline, delegation, parallel delegation.

Invariants
    The caller gets a valid Response in time, whatever a librarian does; only cancellation passes through.
    One question has one deadline, one budget and one chain, which every librarian that works on it shares, also one
    that is asked by another: so every question ends.
Not here
    What is decided: rules.py and aggregate.py. Threads: threads.py.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pair import telemetry
from pair.ai.contract import LanguageModel
from pair.clock import SystemClock
from pair.error_tree import PairError
from pair.librarians.budget import BudgetLedger, MeteredModel
from pair.librarians.contract import (
    Budget,
    Context,
    Delegate,
    DelegateRequest,
    ErrorCode,
    Response,
    TraceContext,
    code_of,
)
from pair.librarians.registry import RegisteredLibrarian, Registry
from pair.librarians.rules import (
    BLEND_INSTRUCTIONS,
    DEFAULT_ADVICE,
    FALLBACK_SHARE,
    Aggregation,
    HandOver,
    build_blend_prompt,
    fault_of,
    fault_of_context,
    is_answered,
    is_number,
    merge_blend,
    merge_responses,
    query_refusal,
    read_aggregation,
    refusal,
    restore_answer,
    tidy_response,
    to_failed_delegation,
)
from pair.librarians.threads import abandon, in_thread, run_on_loop

GRACE_SECONDS = 0.05
"""Time after the deadline for a loop to return what was found until then."""

MERGE_SECONDS = 0.05
"""The most that the deadline of a parallel delegate lies before that of the librarian that delegates."""

_TIMED_OUT = Response.failing(
    ErrorCode.TIMEOUT,
    "There was no answer in time",
    recoverable=True,
    suggestion="Ask again with more time, or ask something narrower",
)
_AUDIT = logging.getLogger("pair.audit")
_LOGGER = logging.getLogger(__name__)
_NO_CONTEXT = Context()
_now = SystemClock().monotonic


class Question:
    """The state that all calls for one question share."""

    def __init__(self, registry: Registry, context: Context, seconds: float) -> None:
        settings = registry.settings
        given = context.budget or Budget(settings.max_calls, settings.max_tokens)
        self.began_at = _now()
        self.ends_at = self.began_at + seconds
        self.ledger = BudgetLedger(Budget(min(given.calls, settings.max_calls), min(given.tokens, settings.max_tokens)))
        self.user = context.user
        self.request_id = context.request_id or registry.request_ids()
        self.answers: list[Response] = []
        """Answers to the question itself, so far."""
        self.running: set[Call] = set()
        self.is_open = True

    def meter(self, model: LanguageModel | None) -> LanguageModel | None:
        if model is None or (isinstance(model, MeteredModel) and model.ledger is self.ledger):
            return model
        return MeteredModel(model, self.ledger)

    def forward_text(self, listener: Callable[[str], None] | None) -> Callable[[str], None] | None:
        """Return a listener that hears nothing after the question was answered."""
        if listener is None:
            return None

        def forward(text: str) -> None:
            if self.is_open:
                listener(text)

        return forward


@dataclass(slots=True, eq=False)
class Call:
    """A question on its way to a librarian, and its work there."""

    question: Question
    registry: Registry
    to: str
    query: str
    context: Context
    """Passed on by the caller: metadata, model, trace, listener."""
    ends_at: float
    chain: tuple[str, ...] = ()
    """The librarians before this one."""
    owners: tuple[Registry | None, ...] = ()
    """The registry of each librarian of the chain; None for one elsewhere."""
    delegates_to: tuple[str, ...] | None = None
    """Whom the last of the chain may ask; None for everybody."""
    is_final: bool = True
    """Whether the answer is one to the question itself."""
    given: Context = _NO_CONTEXT
    """The context that the librarian gets."""

    @property
    def way(self) -> tuple[str, ...]:
        return (*self.chain, self.to)

    @property
    def librarian(self) -> RegisteredLibrarian:
        return self.registry[self.to]

    def next(
        self, to: str, query: str, context: Context, *, ends_at: float, registry: Registry | None = None
    ) -> "Call":
        """Return the call by which this librarian delegates, or asks another one of `registry` itself."""
        return Call(
            question=self.question,
            registry=self.registry if registry is None else registry,
            to=to,
            query=query,
            context=context,
            ends_at=ends_at,
            chain=self.way,
            owners=(*self.owners, self.registry),
            delegates_to=self.librarian.entry.delegates_to if registry in {None, self.registry} else None,
            is_final=self.is_final and registry is None,
        )


@dataclass(slots=True, eq=False)
class CallResult:
    response: Response
    chain: tuple[str, ...]
    """Ends with the librarian that answered."""
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
    """Ask a librarian and all to whom it delegates. `timeout` is in seconds.

    Never raises but for cancellation. Asked by a librarian, it is part of the question that librarian works on: it has
    that question's user, chain and budget, and ends with it.
    """
    given = _NO_CONTEXT if context is None else context
    refused = _refuse_arguments(librarian_id, given, timeout)
    if refused is not None:
        return refused
    caller = _CURRENT.get()
    own_limit = None if given.timeout_ms is None else given.timeout_ms / 1000
    limits = [seconds for seconds in (timeout, own_limit) if seconds is not None]
    if caller is None:
        if not limits:
            entry_limit = registry[librarian_id].entry.timeout_seconds if librarian_id in registry else None
            limits = [entry_limit or registry.settings.timeout_seconds]
        return await _ask_from_outside(registry, librarian_id, query, given, min(limits))
    inherited = caller.given
    if context is None:
        given = Context(ai=inherited.ai, trace=inherited.trace, metadata=inherited.metadata)
    else:
        given = replace(given, ai=given.ai or inherited.ai)
    ends_at = min([caller.ends_at, *(_now() + seconds for seconds in limits)])
    call = caller.next(librarian_id, query, given, ends_at=ends_at, registry=registry)
    return _stamp(await _answer(call), call.question)


async def _ask_from_outside(
    registry: Registry, librarian_id: str, query: str, context: Context, seconds: float
) -> Response:
    question = Question(registry, context, seconds)
    chain = context.delegation_chain
    owners = (None,) * len(chain)
    call = Call(question, registry, librarian_id, query, context, question.ends_at, chain=chain, owners=owners)
    try:
        result = await run_on_loop(lambda: _answer(call), max(0.0, seconds) + GRACE_SECONDS)
    except TimeoutError:
        result = CallResult(_give_up(call), call.way)
    except Exception as fault:  # noqa: BLE001 - the system has no thread left, for instance
        result = CallResult(_fault_response(fault), call.way)
    finally:
        question.is_open = False
    return _stamp(result, question)


# ── one librarian ──────────────────────────────────────────────────────────────────────────────────


async def _answer(call: Call) -> CallResult:
    """Ask a librarian, and all to whom it delegates."""
    refused = _refuse(call)
    if refused is not None:
        return CallResult(_complete_error(refused, call), call.way)
    trace = call.context.trace
    parent = "" if trace is None else telemetry.format_traceparent(trace.trace_id, trace.span_id)
    about = {telemetry.AGENT_ID: call.to, telemetry.AGENT_NAME: call.librarian.card.name}
    with telemetry.span(telemetry.INVOKE_AGENT, call.to, attributes=about, parent=parent) as span:
        call = _prepare(call, telemetry.read_ids(span))
        response = _complete_error(await _run_call(call), call)
        result = CallResult(response, call.way)
        if response.error is not None:
            result = CallResult(replace(response, delegate=None), call.way)
        elif response.delegates:
            result = await _delegate(call, response)
        if result.response.error is not None:
            telemetry.fail(span, result.response.error.code)
        return result


def _refuse(call: Call) -> Response | None:
    """Return why the librarian is not called, decided before any work; None when it is."""
    registry, question = call.registry, call.question
    is_known = call.to in registry
    refused = query_refusal(call.query, registry.settings.max_query_characters) or refusal(
        HandOver(
            to=call.to,
            chain=call.chain,
            visited=_list_visited(call.chain, call.owners, registry),
            delegates_to=call.delegates_to,
            max_depth=registry.settings.max_depth,
            is_known=is_known,
            is_allowed=is_known and registry.allows(question.user, call.to),
        )
    )
    if is_known and call.librarian.entry.permissions.sensitive:
        _audit(call, is_allowed=refused is None)
    if refused is not None:
        return refused
    if call.ends_at <= _now():
        return _TIMED_OUT
    refused = call.librarian.breaker.refusal()
    if refused is None and not question.ledger.take_call():
        return Response.failing(
            ErrorCode.RATE_LIMITED,
            "The question has used up the calls of librarians that it may cost",
            suggestion="Ask one of the librarians directly, or raise librarians.max_calls",
        )
    return refused


def _audit(call: Call, *, is_allowed: bool) -> None:
    user, request_id = call.question.user, call.question.request_id
    user_id = None if user is None else user.id
    _AUDIT.info(
        "sensitive librarian %s: user=%r librarian=%s request=%r",
        "asked" if is_allowed else "refused",
        user_id,
        call.to,
        request_id,
        extra={"user": user_id, "librarian": call.to, "request_id": request_id, "allowed": is_allowed},
    )


def _prepare(call: Call, span_ids: tuple[str, str] | None) -> Call:
    """Return the call with the context for the librarian: a new one, made from nothing that it could change."""
    question, registry, entry, passed = call.question, call.registry, call.librarian.entry, call.context
    ends_at = call.ends_at
    if entry.timeout_seconds is not None:
        ends_at = min(ends_at, _now() + entry.timeout_seconds)
    delegates: tuple[Delegate, ...] = ()
    if len(call.way) <= registry.settings.max_depth:
        visited = _list_visited(call.way, (*call.owners, registry), registry)
        delegates = registry.delegates_for(question.user, visited, entry.delegates_to)
    trace = passed.trace
    if span_ids is not None:
        trace = TraceContext(*span_ids, trace.span_id if trace else "")
    given = Context(
        librarian=call.librarian.card,
        user=question.user,
        trace=trace,
        delegation_chain=call.way,
        ai=question.meter(passed.ai),
        available_delegates=delegates,
        metadata=passed.metadata,
        request_id=question.request_id,
        timeout_ms=max(1, int((ends_at - _now()) * 1000)),
        budget=question.ledger.left,
        on_text=question.forward_text(passed.on_text),
    )
    return replace(call, given=given, ends_at=ends_at)


async def _run_call(call: Call) -> Response:
    """Return the librarian's response, or TIMEOUT at the deadline of the call."""
    loop, running = asyncio.get_running_loop(), call.question.running
    variables = contextvars.copy_context()
    variables.run(_CURRENT.set, call)
    # asyncio.wait would do, and costs more than all the rest.
    outcome: asyncio.Future[Response] = loop.create_future()
    task = loop.create_task(_guard(call, outcome), context=variables)
    timer = loop.call_later(max(0.0, call.ends_at - _now()), _settle, outcome, _TIMED_OUT)
    running.add(call)
    try:
        response = await outcome
    except asyncio.CancelledError:
        running.discard(call)
        raise
    finally:
        timer.cancel()
        if outcome.cancelled() or not task.done():
            abandon(task)
    if call in running:  # otherwise it was given up, and its breaker knows
        running.discard(call)
        call.librarian.breaker.note(response)
    return response


def _settle(outcome: asyncio.Future[Response], response: Response) -> None:
    if not outcome.done():
        outcome.set_result(response)


async def _guard(call: Call, outcome: asyncio.Future[Response]) -> None:
    """Run a librarian and settle the outcome with a valid response, whatever happens."""
    try:
        response = await _run_librarian(call)
        if call.is_final and response.answer is not None:
            call.question.answers.append(response)
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    except BaseException as fault:  # noqa: BLE001 - whatever a librarian raises is an answer of a kind
        response = _fault_response(fault)
    _settle(outcome, response)


async def _run_librarian(call: Call) -> Response:
    way, function = call.librarian.gets_context, call.librarian.entry.librarian
    if way == "positional":
        work = function(call.query, call.given)
    else:
        work = function(call.query, context=call.given) if way else function(call.query)
    if inspect.isawaitable(work):
        response = await work
        fault = fault_of(response)
    else:
        fault = "it is not async"
    if fault is None:
        return tidy_response(response)
    return Response.failing(
        ErrorCode.INTERNAL_ERROR,
        f"The librarian broke its contract: {fault}",
        suggestion="`pair librarians check` says who keeps it",
    )


# ── delegation ─────────────────────────────────────────────────────────────────────────────────────


async def _delegate(call: Call, delegating: Response) -> CallResult:
    """Ask those whom a librarian wants to be asked."""
    requests = delegating.delegates
    if len(requests) == 1:
        result = replace(await _ask_delegate(call, requests[0], is_alone=True), is_delegated=True)
    else:
        how = read_aggregation(delegating)
        responses = await _ask_delegates(call, requests, how)
        result = CallResult(await _aggregate(call, responses, how), call.way, is_delegated=True)
    if result.response.error is not None:
        failed = to_failed_delegation(result.response)
        return replace(result, response=restore_answer(failed, delegating))
    return result


async def _ask_delegate(call: Call, request: DelegateRequest, *, is_alone: bool) -> CallResult:
    """Return the delegate's answer, or that of the fallback when there is none."""
    passed = call.context
    context = Context(
        ai=call.given.ai,
        trace=call.given.trace,
        metadata={**passed.metadata, **request.context} if request.context else passed.metadata,
        on_text=passed.on_text if is_alone else None,  # two texts at once cannot be told apart
    )
    query = request.query if request.query.strip() else call.query
    reserved = FALLBACK_SHARE * (call.ends_at - _now()) if request.fallback else 0.0
    first = call.next(request.to, query, context, ends_at=call.ends_at - reserved)
    result = await (_answer(first) if is_alone and not request.fallback else _answer_apart(first))
    if result.response.error is not None and request.fallback:
        second = replace(first, to=request.fallback, ends_at=call.ends_at)
        fallback = await (_answer(second) if is_alone else _answer_apart(second))
        if fallback.response.error is None:
            return fallback
        # The error is that of the delegate; the fallback may have left an answer.
        result = replace(result, response=restore_answer(result.response, fallback.response))
    return result


async def _answer_apart(call: Call) -> CallResult:
    """Ask on another event loop, so that a librarian that blocks holds up neither its siblings nor the fallback."""
    reserve = min(MERGE_SECONDS, max(0.0, call.ends_at - _now()) / 10)
    call = replace(call, ends_at=call.ends_at - reserve)
    try:
        return await run_on_loop(lambda: _answer(call), call.ends_at - _now() + reserve / 2)
    except TimeoutError:
        way = call.way
        _blame(running for running in tuple(call.question.running) if running.way[: len(way)] == way)
        return CallResult(_complete_error(_TIMED_OUT, call), way)


async def _ask_delegates(call: Call, requests: Sequence[DelegateRequest], how: Aggregation) -> list[Response]:
    """Return the responses in the order of the requests; for `first-success`, only the first that succeeds."""
    tasks = [asyncio.create_task(_ask_delegate(call, request, is_alone=False)) for request in requests]
    until = asyncio.FIRST_COMPLETED if how == "first-success" else asyncio.ALL_COMPLETED
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=until)
            for task in done if how == "first-success" else ():
                if is_answered(task.result().response):
                    return [task.result().response]
        return [task.result().response for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


async def _aggregate(call: Call, responses: Sequence[Response], how: Aggregation) -> Response:
    model = call.given.ai
    if how == "blend" and model is not None and sum(map(is_answered, responses)) > 1:
        reply = in_thread(functools.partial(model.reply, BLEND_INSTRUCTIONS, build_blend_prompt(call.query, responses)))
        with contextlib.suppress(Exception):  # merged without a model
            return merge_blend(await asyncio.wait_for(reply, max(0.0, call.ends_at - _now())), responses)
    return merge_responses(responses, how)


def _list_visited(chain: tuple[str, ...], owners: tuple[Registry | None, ...], registry: Registry) -> Sequence[str]:
    """Return those of a chain that this registry means: another one may use the same name for another librarian."""
    return [name for name, owner in zip(chain, owners, strict=True) if owner is None or owner is registry]


# ── responses ──────────────────────────────────────────────────────────────────────────────────────


def _refuse_arguments(librarian_id: object, context: object, timeout: object) -> Response | None:
    if not isinstance(librarian_id, str):
        return Response.failing(ErrorCode.NOT_FOUND, f"A {type(librarian_id).__name__} is no id of a librarian")
    if timeout is not None and not is_number(timeout):
        return Response.failing(ErrorCode.INVALID_QUERY, "The timeout is no number of seconds")
    fault = None if context is _NO_CONTEXT else fault_of_context(context)
    return Response.failing(ErrorCode.INVALID_QUERY, f"The context cannot be used: {fault}") if fault else None


def _stamp(result: CallResult, question: Question) -> Response:
    """Add who answered, by which way, and how long it took."""
    about = {
        "librarian": result.chain[-1],
        "delegationChain": result.chain,
        "delegated": result.is_delegated,
        "executionTimeMs": round((_now() - question.began_at) * 1000, 3),
        "requestId": question.request_id,
    }
    return replace(result.response, metadata={**result.response.metadata, **about})


def _complete_error(response: Response, call: Call) -> Response:
    """Add to an error the librarian, the query, whether asking again may help, and a suggestion."""
    error = response.error
    if error is None:
        return response
    suggestion, is_recoverable = DEFAULT_ADVICE[ErrorCode(error.code)]
    completed = replace(
        error,
        librarian=error.librarian or call.to,
        query=error.query or (call.query if isinstance(call.query, str) else ""),
        recoverable=is_recoverable if error.recoverable is None else error.recoverable,
        suggestion=error.suggestion or suggestion,
    )
    return replace(response, error=completed)


def _give_up(call: Call) -> Response:
    """Return TIMEOUT with the answers that there are, when the loop of the question is blocked."""
    response = _TIMED_OUT
    _blame(tuple(call.question.running))
    answers = [replace(answer, delegate=None, error=None) for answer in tuple(call.question.answers)]
    if answers:
        response = replace(merge_responses(answers), error=response.error, partial=True)
    return _complete_error(response, call)


def _blame(calls: Iterable[Call]) -> None:
    """Count the timeout against librarians that were at work and gave nothing back."""
    for call in calls:
        call.question.running.discard(call)
        call.librarian.breaker.note(_TIMED_OUT)


def _fault_response(fault: BaseException) -> Response:
    """Return the error for anything raised, even if its text cannot be had or it only looks like one of ours."""
    with contextlib.suppress(BaseException):
        if isinstance(fault, PairError):
            response = Response.of_fault(fault)
        else:
            _LOGGER.info("librarian failed", exc_info=fault)
            response = Response.failing(code_of(fault), f"{type(fault).__name__}: {fault}"[:500].strip(": "))
        if fault_of(response) is None:
            return response
    return Response.failing(ErrorCode.INTERNAL_ERROR, type(fault).__name__)
