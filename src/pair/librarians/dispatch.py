"""Ask a librarian: checks, deadline, delegation, parallel delegation.

Invariants
    The caller gets a valid Response in time, even from a broken librarian; only cancellation passes through.
    All librarians that work on a question, delegates included, share one deadline, one budget and one chain, so that
    every question ends.
Not here
    Validation and permissions: rules.py. Threads: threads.py.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pair import errors, telemetry
from pair.ai.contract import LanguageModel, StreamingModel
from pair.clock import SystemClock
from pair.error_tree import PairError
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
"""Time after the deadline for a loop to return the answers found so far."""

MERGE_SECONDS = 0.05
"""Maximum time between the deadline of a parallel delegate and that of the delegating librarian."""

CHARACTERS_PER_TOKEN = 4
"""Characters per token: an estimate for prose in European languages."""

_AUDIT = logging.getLogger("pair.audit")
_LOGGER = logging.getLogger(__name__)
_now = SystemClock().monotonic


@functools.cache
def _time_out() -> Response:
    return Response.failing(ErrorCode.TIMEOUT, "The librarian did not answer in time")


class Question:
    """The state that all calls for one question share, with its remaining calls and tokens."""

    def __init__(self, registry: Registry, context: Context, seconds: float) -> None:
        settings = registry.settings
        given = context.budget or Budget(settings.max_calls, settings.max_tokens)
        self.began_at = _now()
        self.ends_at = self.began_at + seconds
        self.calls_left = min(given.calls, settings.max_calls)
        self.tokens_left = min(given.tokens, settings.max_tokens)
        """The remaining tokens; negative when a reply used more than were left."""
        self._lock = threading.Lock()
        self.user = context.user
        self.request_id = context.request_id or registry.request_ids()
        self.answers: list[Response] = []
        """The answers to the question itself so far."""
        self.running: set[Call] = set()
        self.is_open = True

    def take_call(self) -> bool:
        with self._lock:
            self.calls_left -= 1
            return self.calls_left >= 0

    def take_tokens(self, count: int) -> bool:
        """Reserve all of the tokens, or none of them."""
        with self._lock:
            is_enough = self.tokens_left >= count
            if is_enough:
                self.tokens_left -= count
            return is_enough

    def note_tokens(self, count: int) -> None:
        """Count tokens that were used already."""
        with self._lock:
            self.tokens_left -= count


class MeteredModel:
    """A model whose tokens count against the question. Raises E306 when too few are left."""

    def __init__(self, model: LanguageModel, question: Question) -> None:
        self.model = model
        self.question = question

    @property
    def name(self) -> str:
        return self.model.name

    def reply(self, instructions: str, text: str) -> str:
        self._pay(instructions, text)
        with self._span():
            reply = self.model.reply(instructions, text)
        self.question.note_tokens(tokens_of(reply) - 1)
        return reply

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Yield the whole reply at once for a model that cannot stream."""
        if not isinstance(self.model, StreamingModel):
            yield self.reply(instructions, text)
            return
        self._pay(instructions, text)
        characters = 0
        try:
            with self._span():
                for piece in self.model.stream(instructions, text):
                    characters += len(piece)
                    yield piece
        finally:
            self.question.note_tokens(-(-characters // CHARACTERS_PER_TOKEN) - 1)

    def _span(self) -> contextlib.AbstractContextManager[object]:
        return telemetry.span(telemetry.CHAT, self.model.name, attributes={telemetry.REQUEST_MODEL: self.model.name})

    def _pay(self, instructions: str, text: str) -> None:
        """Reserve the tokens of the prompt and one for the reply."""
        needed = tokens_of(instructions) + tokens_of(text)
        if not self.question.take_tokens(needed + 1):
            raise errors.model_budget_spent(self.model.name, needed, max(0, self.question.tokens_left))


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


@dataclass(slots=True, eq=False)
class Call:
    """A call of a librarian with a question."""

    question: Question
    registry: Registry
    to: str
    query: str
    context: Context
    """The context from the caller: metadata, model, trace, listener."""
    ends_at: float
    path: tuple[tuple[str, Registry | None], ...] = ()
    """The librarians before this one, each with its registry; None for one on another server."""
    delegates_to: tuple[str, ...] | None = None
    """The librarians that the last librarian of `path` may ask; None for all."""
    is_final: bool = True
    """Whether its response answers the question itself; false for a call from inside a librarian."""
    given: Context = field(default_factory=Context)
    """The context for the librarian. A librarian may change it, so only its model and trace are passed on."""

    @property
    def way(self) -> tuple[str, ...]:
        """The ids of the librarians before this one, and of this one."""
        return (*(librarian_id for librarian_id, _ in self.path), self.to)

    @property
    def librarian(self) -> RegisteredLibrarian:
        return self.registry[self.to]

    def next(
        self, to: str, query: str, context: Context, *, ends_at: float, registry: Registry | None = None
    ) -> "Call":
        """Return the call with which this librarian delegates or asks a librarian of `registry` directly."""
        return Call(
            question=self.question,
            registry=self.registry if registry is None else registry,
            to=to,
            query=query,
            context=context,
            ends_at=ends_at,
            path=(*self.path, (self.to, self.registry)),
            delegates_to=self.librarian.entry.delegates_to if registry in {None, self.registry} else None,
            is_final=self.is_final and registry is None,
        )


@dataclass(slots=True, eq=False)
class CallResult:
    response: Response
    chain: tuple[str, ...]
    """The chain of librarians; the one that answered comes last."""
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
    """Ask a librarian and its delegates. `timeout` is in seconds.

    Raises nothing but cancellation. A call from inside a librarian belongs to the question of that librarian: it shares
    the user, chain, budget and deadline of that question.
    """
    given = Context() if context is None else context
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
    path = tuple((passed, None) for passed in context.delegation_chain)
    call = Call(question, registry, librarian_id, query, context, question.ends_at, path)
    try:
        result = await run_on_loop(lambda: _answer(call), max(0.0, seconds) + GRACE_SECONDS)
    except TimeoutError:
        result = CallResult(_give_up(call), call.way)
    except Exception as fault:  # noqa: BLE001 - for instance, the system has no thread left
        result = CallResult(_fault_response(fault), call.way)
    finally:
        question.is_open = False
    return _stamp(result, question)


# ── one librarian ──────────────────────────────────────────────────────────────────────────────────


async def _answer(call: Call) -> CallResult:
    """Ask a librarian and its delegates."""
    refused = _refuse(call)
    if refused is not None:
        return CallResult(_complete_error(refused, call), call.way)
    trace = call.context.trace
    parent = "" if trace is None else telemetry.format_traceparent(trace.trace_id, trace.span_id)
    about = {telemetry.AGENT_ID: call.to, telemetry.AGENT_NAME: call.librarian.card.name}
    with telemetry.span(telemetry.INVOKE_AGENT, call.to, attributes=about, parent=parent) as span:
        call = _prepare(call, telemetry.read_ids(span))
        response = _complete_error(await _run_call(call), call)
        if response.delegates and response.error is None:
            result = await _delegate(call, response)
        else:
            result = CallResult(replace(response, delegate=None), call.way)
        if result.response.error is not None:
            telemetry.fail(span, result.response.error.code)
        return result


def _refuse(call: Call) -> Response | None:
    """Return the reason why the librarian may not be called, before any work is done; None if it may be called."""
    registry, question = call.registry, call.question
    is_known = call.to in registry
    refused = query_refusal(call.query, registry.settings.max_query_characters) or refusal(
        call.way,
        visited=_list_visited(call.path, registry),
        delegates_to=call.delegates_to,
        max_depth=registry.settings.max_depth,
        is_allowed=registry.allows(question.user, call.to) if is_known else None,
    )
    if is_known and call.librarian.entry.permissions.sensitive:
        _audit(call, is_allowed=refused is None)
    if refused is not None:
        return refused
    if call.ends_at <= _now():
        return _time_out()
    refused = call.librarian.breaker.refusal()
    if refused is None and not question.take_call():
        return Response.failing(
            ErrorCode.RATE_LIMITED,
            "The question reached its limit of librarian calls",
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
    """Return the call with a new context for the librarian that shares no mutable value with the old one."""
    question, registry, entry, passed = call.question, call.registry, call.librarian.entry, call.context
    model, listener = passed.ai, passed.on_text
    if model is not None and not (isinstance(model, MeteredModel) and model.question is question):
        model = MeteredModel(model, question)
    ends_at = call.ends_at
    if entry.timeout_seconds is not None:
        ends_at = min(ends_at, _now() + entry.timeout_seconds)
    delegates: tuple[Delegate, ...] = ()
    if len(call.way) <= registry.settings.max_depth:
        visited = [*_list_visited(call.path, registry), call.to]
        delegates = registry.delegates_for(question.user, visited, entry.delegates_to)
    trace = passed.trace
    if span_ids is not None:
        trace = TraceContext(*span_ids, trace.span_id if trace else "")
    given = Context(
        librarian=call.librarian.card,
        user=question.user,
        trace=trace,
        delegation_chain=call.way,
        ai=model,
        available_delegates=delegates,
        metadata=passed.metadata,
        request_id=question.request_id,
        timeout_ms=max(1, int((ends_at - _now()) * 1000)),
        budget=Budget(max(0, question.calls_left), max(0, question.tokens_left)),
        on_text=None if listener is None else functools.partial(_forward_text, question, listener),
    )
    return replace(call, given=given, ends_at=ends_at)


def _forward_text(question: Question, listener: Callable[[str], None], text: str) -> None:
    if question.is_open:
        listener(text)


async def _run_call(call: Call) -> Response:
    """Return the librarian's response, or TIMEOUT at the deadline of the call."""
    loop, running = asyncio.get_running_loop(), call.question.running
    variables = contextvars.copy_context()
    variables.run(_CURRENT.set, call)
    # asyncio.wait would work too, but costs more than the whole rest of a call.
    outcome: asyncio.Future[Response] = loop.create_future()
    task = loop.create_task(_guard(call, outcome), context=variables)
    timer = loop.call_later(max(0.0, call.ends_at - _now()), _settle, outcome, _time_out())
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
    if call in running:  # A call that timed out is counted already.
        running.discard(call)
        call.librarian.breaker.note(response)
    return response


def _settle(outcome: asyncio.Future[Response], response: Response) -> None:
    if not outcome.done():
        outcome.set_result(response)


async def _guard(call: Call, outcome: asyncio.Future[Response]) -> None:
    """Run a librarian and settle the outcome with a valid response in every case."""
    try:
        response = await _run_librarian(call)
        if call.is_final and response.answer is not None:
            call.question.answers.append(response)
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    except BaseException as fault:  # noqa: BLE001 - every exception of a librarian becomes an error response
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
        suggestion="Check the librarian: pair librarians check",
    )


# ── delegation ─────────────────────────────────────────────────────────────────────────────────────


async def _delegate(call: Call, delegating: Response) -> CallResult:
    """Ask the delegates that a librarian requested."""
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
    """Return the answer of the delegate, or that of the fallback when the delegate has none."""
    passed = call.context
    context = Context(
        ai=call.given.ai,
        trace=call.given.trace,
        metadata={**passed.metadata, **request.context} if request.context else passed.metadata,
        on_text=passed.on_text if is_alone else None,  # A listener cannot separate two streams of text.
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
        # Report the error of the delegate; keep an answer of the fallback.
        result = replace(result, response=restore_answer(result.response, fallback.response))
    return result


async def _answer_apart(call: Call) -> CallResult:
    """Ask on another event loop, so that a blocking librarian delays neither its siblings nor the fallback."""
    reserve = min(MERGE_SECONDS, max(0.0, call.ends_at - _now()) / 10)
    call = replace(call, ends_at=call.ends_at - reserve)
    try:
        return await run_on_loop(lambda: _answer(call), call.ends_at - _now() + reserve / 2)
    except TimeoutError:
        way = call.way
        _blame(running for running in tuple(call.question.running) if running.way[: len(way)] == way)
        return CallResult(_complete_error(_time_out(), call), way)


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
        with contextlib.suppress(Exception):  # Fall back to a merge without a model.
            return merge_blend(await asyncio.wait_for(reply, max(0.0, call.ends_at - _now())), responses)
    return merge_responses(responses, how)


def _list_visited(path: Iterable[tuple[str, Registry | None]], registry: Registry) -> list[str]:
    """Return the librarians of a path that belong to this registry; another registry may reuse their names."""
    return [librarian_id for librarian_id, owner in path if owner is None or owner is registry]


# ── responses ──────────────────────────────────────────────────────────────────────────────────────


def _refuse_arguments(librarian_id: object, context: object, timeout: object) -> Response | None:
    if not isinstance(librarian_id, str):
        return Response.failing(ErrorCode.NOT_FOUND, f"A {type(librarian_id).__name__} is not the id of a librarian")
    if timeout is not None and not is_number(timeout):
        return Response.failing(ErrorCode.INVALID_QUERY, "The timeout is not a number of seconds")
    fault = fault_of_context(context)
    return Response.failing(ErrorCode.INVALID_QUERY, f"The context cannot be used: {fault}") if fault else None


def _stamp(result: CallResult, question: Question) -> Response:
    """Add the librarian that answered, the delegation chain and the time it took."""
    about = {
        "librarian": result.chain[-1],
        "delegationChain": result.chain,
        "delegated": result.is_delegated,
        "executionTimeMs": round((_now() - question.began_at) * 1000, 3),
        "requestId": question.request_id,
    }
    return replace(result.response, metadata={**result.response.metadata, **about})


def _complete_error(response: Response, call: Call) -> Response:
    """Complete an error with the librarian, the query, a suggestion and whether a retry may help."""
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
    """Return TIMEOUT with the answers found so far, for a question whose event loop is blocked."""
    response = _time_out()
    _blame(tuple(call.question.running))
    answers = [replace(answer, delegate=None, error=None) for answer in tuple(call.question.answers)]
    if answers:
        response = replace(merge_responses(answers), error=response.error, partial=True)
    return _complete_error(response, call)


def _blame(calls: Iterable[Call]) -> None:
    """Count the timeout as a failure of the librarians that were still running."""
    for call in calls:
        call.question.running.discard(call)
        call.librarian.breaker.note(_time_out())


def _fault_response(fault: BaseException) -> Response:
    """Return the error response for an exception, even if its text cannot be read or its fields are invalid."""
    with contextlib.suppress(BaseException):
        if isinstance(fault, PairError):
            response = Response.of_fault(fault)
        else:
            _LOGGER.info("librarian failed", exc_info=fault)
            response = Response.failing(code_of(fault), f"{type(fault).__name__}: {fault}"[:500].strip(": "))
        if fault_of(response) is None:
            return response
    return Response.failing(ErrorCode.INTERNAL_ERROR, type(fault).__name__)
