"""Delegation of questions: to one librarian, to several, and with a fallback; and the context of delegates."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from pair import errors
from pair.librarians import (
    Budget,
    Citation,
    Context,
    DelegateRequest,
    Entry,
    ErrorCode,
    ErrorInfo,
    LibrarianInfo,
    Permissions,
    Registry,
    Response,
    TraceContext,
    User,
    ask,
)
from pair.librarians.settings import LibrariansSettings
from pair.testing.clock import ManualClock
from support.librarians import Recorder, answering, asked, code, hanging, raising, returning
from support.readers import SayingModel

NO = Response.failing(ErrorCode.NOT_FOUND, "nothing found")
AWAY = Response.failing(ErrorCode.DATA_SOURCE_ERROR, "away")


def handing(*to: str, fallback: str = "", **metadata: Any) -> Any:
    requests = tuple(DelegateRequest(each, fallback=fallback) for each in to)
    return returning(Response(delegate=requests if len(requests) > 1 else requests[0], metadata=metadata))


@pytest.mark.rule("librarian-15")
def test_a_delegate_answers_and_the_chain_is_reported() -> None:
    response = asked({"front": handing("router"), "router": handing("manual"), "manual": answering("At one.")}, "front")
    assert response.answer == "At one."
    assert response.metadata["delegationChain"] == ("front", "router", "manual")
    assert (response.metadata["librarian"], response.metadata["delegated"]) == ("manual", True)
    assert response.metadata["executionTimeMs"] > 0
    direct = asked({"manual": answering("At one.")}, "manual")
    assert (direct.metadata["delegationChain"], direct.metadata["delegated"]) == (("manual",), False)


def test_librarian_cannot_pretend_to_be_another() -> None:
    said = Response(answer="Yes.", metadata={"librarian": "oracle", "delegated": True, "own": 1})
    metadata = asked({"it": returning(said)}, "it").metadata
    assert (metadata["librarian"], metadata["delegated"], metadata["own"]) == ("it", False, 1)


@pytest.mark.rule("librarian-6")
def test_a_delegated_question_gets_a_new_context() -> None:
    manual = Recorder()
    request = DelegateRequest("manual", "refined?", context={"reason": "knows", "depth": {"a": [1]}})
    front = Recorder(Response(delegate=request))
    given = Context(
        user=User("ada"),
        trace=TraceContext("1" * 32, "2" * 16),
        metadata={"reason": "first", "kept": 1},
        request_id="r-1",
        timeout_ms=5000,
    )
    asked({"front": front, "manual": manual}, "front", "raw?", given)
    first, second = front.contexts[0], manual.contexts[0]
    assert (front.queries, manual.queries) == (["raw?"], ["refined?"])
    assert first.librarian is not None
    assert second.librarian is not None
    assert (first.librarian.id, second.librarian.name) == ("front", "manual")
    assert (first.delegation_chain, second.delegation_chain) == (("front",), ("front", "manual"))
    assert (first.user, second.user) == (given.user, given.user)
    assert (first.request_id, second.request_id) == ("r-1", "r-1")
    assert (first.trace, second.trace) == (given.trace, given.trace)
    assert first.metadata == {"reason": "first", "kept": 1}
    assert second.metadata == {"reason": "knows", "kept": 1, "depth": {"a": (1,)}}
    assert first.timeout_ms is not None
    assert second.timeout_ms is not None
    assert 0 < second.timeout_ms <= first.timeout_ms <= 5000
    assert first.budget == Budget(49, 200_000)
    assert second.budget == Budget(48, 200_000)
    assert given == Context(
        given.librarian, given.user, given.trace, metadata=given.metadata, request_id="r-1", timeout_ms=5000
    )


@pytest.mark.rule("librarian-6")
def test_a_librarian_does_not_see_what_its_sibling_does_to_its_context() -> None:
    meddled = asyncio.Event()
    seen: list[Any] = []

    async def meddler(query: str, context: Context) -> Response:
        for name, value in (("metadata", {"poison": 1}), ("delegation_chain", ()), ("user", User("root"))):
            with pytest.raises(AttributeError):
                setattr(context, name, value)
            object.__setattr__(context, name, value)
        with pytest.raises(TypeError):
            context.librarian.metadata["x"] = 1  # type: ignore[union-attr, index]
        meddled.set()
        return Response.delegating("last")

    async def sibling(query: str, context: Context) -> Response:
        await meddled.wait()
        seen.append(context)
        return Response(answer="Untouched.", confidence=0.9)

    last = Recorder()
    given = Context(user=User("ada"), metadata={"list": [1]})
    asked(
        {"front": handing("meddler", "sibling"), "meddler": meddler, "sibling": sibling, "last": last},
        "front",
        context=given,
    )
    assert seen[0].metadata == {"list": (1,)}
    assert seen[0].user == last.contexts[0].user == User("ada")
    assert last.contexts[0].delegation_chain == ("front", "meddler", "last")
    assert last.contexts[0].metadata == {"list": (1,)}


@pytest.mark.rule("librarian-16")
def test_a_missing_or_forbidden_target_is_an_error() -> None:
    manual = Recorder()
    librarians = {
        "lost": handing("nobody"),
        "narrow": Entry(handing("manual"), delegates_to=("other",)),
        "free": Entry(handing("manual"), delegates_to=("manual",)),
        "curious": handing("vault"),
        "vault": Entry(manual, permissions=Permissions(allowed_teams=("ops",))),
        "manual": manual,
    }
    assert code(asked(librarians, "lost")) == "NOT_FOUND"
    assert code(asked(librarians, "narrow")) == "UNAUTHORIZED"
    assert code(asked(librarians, "curious")) == "UNAUTHORIZED"
    assert code(asked(librarians, "vault")) == "UNAUTHORIZED"
    assert code(asked(librarians, "curious", context=Context(user=User("bob", teams=("sales",))))) == "UNAUTHORIZED"
    assert manual.queries == []
    assert asked(librarians, "free").answer == "Noted."
    assert asked(librarians, "curious", context=Context(user=User("ada", teams=("ops",)))).answer == "Noted."


@pytest.mark.rule("librarian-17")
def test_question_that_comes_back_is_a_loop() -> None:
    front = Recorder(Response.delegating("router"))
    response = asked({"front": front, "router": handing("front")}, "front")
    assert code(response) == "LOOP_DETECTED"
    assert len(front.queries) == 1
    assert code(asked({"narcissus": handing("narcissus")}, "narcissus")) == "LOOP_DETECTED"


@pytest.mark.rule("librarian-18")
def test_question_is_handed_on_five_times_at_most() -> None:
    way = {f"l{number}": handing(f"l{number + 1}") for number in range(10)} | {"l10": answering("At last.")}
    response = asked(way, "l0")
    assert code(response) == "MAX_DEPTH_EXCEEDED"
    assert response.metadata["delegationChain"] == tuple(f"l{number}" for number in range(7))
    assert asked(way, "l5").answer == "At last."
    assert asked(way, "l0", policy=LibrariansSettings(max_depth=10)).answer == "At last."
    assert code(asked(way, "l9", policy=LibrariansSettings(max_depth=0))) == "MAX_DEPTH_EXCEEDED"
    passed_on = Context(delegation_chain=("far-1", "far-2"))
    assert code(asked(way, "l6", context=passed_on)) == "MAX_DEPTH_EXCEEDED"
    assert code(asked(way, "l5", context=Context(delegation_chain=("l5",)))) == "LOOP_DETECTED"


@pytest.mark.rule("librarian-19")
@pytest.mark.parametrize("first", [returning(NO), raising(ValueError()), returning(None), hanging])
def test_fallback_answers_when_the_first_cannot(first: Any) -> None:
    librarians = {"front": handing("first", fallback="second"), "first": first, "second": answering("Second.")}
    response = asked(librarians, "front", timeout=0.9)
    assert response.answer == "Second."
    assert response.metadata["delegationChain"] == ("front", "second")
    lost = asked({"front": handing("nobody", fallback="second"), "second": answering("Second.")}, "front")
    assert lost.answer == "Second."


@pytest.mark.rule("librarian-19")
def test_error_is_the_first_one_s_when_the_fallback_fails_too() -> None:
    librarians = {"front": handing("first", fallback="second"), "first": returning(AWAY), "second": returning(NO)}
    assert code(asked(librarians, "front")) == "DATA_SOURCE_ERROR"
    assert (
        code(asked({"front": handing("first", fallback="front"), "first": returning(AWAY)}, "front"))
        == "DATA_SOURCE_ERROR"
    )


@pytest.mark.rule("librarian-15")
def test_several_are_asked_together() -> None:
    together = threading.Barrier(3, timeout=5)

    def meeting(number: int) -> Any:
        async def librarian(query: str, context: Context) -> Response:
            await asyncio.to_thread(together.wait)
            return Response(answer=f"Answer {number}.", confidence=number / 10, sources=(Citation(f"s{number}"),))

        return librarian

    librarians = {"front": handing("a", "b", "c"), "a": meeting(7), "b": meeting(9), "c": meeting(8)}
    response = asked(librarians, "front")
    assert response.answer == "Answer 9.\n\nAnswer 8.\n\nAnswer 7."
    assert response.confidence == pytest.approx(0.8)
    assert not response.partial
    assert {source.name for source in response.sources} == {"s7", "s8", "s9"}
    assert response.metadata["librarian"] == "front"


@pytest.mark.rule("librarian-14")
@pytest.mark.rule("librarian-4")
def test_finished_answers_are_merged_when_others_are_late() -> None:
    librarians = {"front": handing("good", "late", "nobody", "front"), "good": answering("Yes."), "late": hanging}
    response = asked(librarians, "front", timeout=0.5)
    assert (response.answer, response.partial, response.error) == ("Yes.", True, None)


def blocking(event: threading.Event) -> Any:
    async def librarian(query: str, context: Context) -> Response:
        event.wait(2.0)
        return Response(answer="Late.")

    return librarian


async def pausing(query: str, context: Context) -> Response:
    await asyncio.sleep(0.05)  # needs its event loop again
    return Response(answer="Yes.")


@pytest.mark.rule("librarian-14")
@pytest.mark.rule("librarian-23")
@pytest.mark.parametrize("order", [("good", "late"), ("late", "good"), ("late", "good", "later")])
@pytest.mark.parametrize("good", [answering("Yes."), pausing])
def test_a_blocking_sibling_affects_no_other(order: tuple[str, ...], good: Any) -> None:
    release = threading.Event()
    librarians = {"front": handing(*order), "good": good, "late": blocking(release), "later": blocking(release)}
    response = asked(librarians, "front", timeout=2.0)
    release.set()
    assert (response.answer, response.partial, response.error) == ("Yes.", True, None)


@pytest.mark.rule("librarian-19")
@pytest.mark.parametrize("beside", [(), ("good",)])
def test_the_fallback_of_one_that_blocks_is_asked(beside: tuple[str, ...]) -> None:
    release = threading.Event()
    requests = (DelegateRequest("late", fallback="second"), *(DelegateRequest(each) for each in beside))
    front = returning(Response(delegate=requests, metadata={"aggregation": "first-success"}))
    librarians = {"front": front, "late": blocking(release), "second": pausing, "good": hanging}
    response = asked(librarians, "front", timeout=1.5)
    release.set()
    assert (response.answer, response.error) == ("Yes.", None)


@pytest.mark.rule("librarian-23")
def test_a_librarian_below_that_blocks_leaves_its_own_siblings() -> None:
    """Deadlines get shorter at each level, so that each level has time to merge its answers."""
    release = threading.Event()
    librarians = {
        "front": handing("middle", "nobody"),
        "middle": handing("late", "good"),
        "late": blocking(release),
        "good": pausing,
    }
    response = asked(librarians, "front", timeout=1.5)
    release.set()
    assert (response.answer, response.partial, response.error) == ("Yes.", True, None)


@pytest.mark.rule("librarian-20")
@pytest.mark.parametrize(
    ("librarian", "expected"),
    [
        (raising(ValueError("no")), ("INTERNAL_ERROR", False)),
        (raising(TimeoutError()), ("TIMEOUT", True)),
        (returning(Response(error=ErrorInfo("NOT_FOUND", "no such page"))), ("NOT_FOUND", False)),
    ],
)
def test_an_error_has_its_librarian_its_question_a_retry_flag_and_a_suggestion(
    librarian: Any, expected: tuple[str, bool]
) -> None:
    error = asked({"one": librarian}, "one", "When is lunch?").to_json()["error"]
    assert (error["code"], error["recoverable"]) == expected
    assert (error["librarian"], error["query"]) == ("one", "When is lunch?")
    assert error["suggestion"]


@pytest.mark.rule("librarian-20")
def test_a_hand_over_to_one_that_breaks_is_a_failed_delegation() -> None:
    error = asked({"front": handing("bad"), "bad": raising(ValueError("no"))}, "front").error
    assert error is not None
    assert (error.code, error.librarian) == ("DELEGATION_FAILED", "bad")
    assert [each["code"] for each in error.details["errors"]] == ["INTERNAL_ERROR"]


@pytest.mark.rule("librarian-22")
def test_first_success_does_not_wait_for_the_others() -> None:
    librarians = {
        "front": handing("late", "bad", "good", aggregation="first-success"),
        "late": hanging,
        "bad": returning(NO),
        "good": answering("Yes."),
    }
    began_at = time.monotonic()
    assert asked(librarians, "front", timeout=5).answer == "Yes."
    assert time.monotonic() - began_at < 3


@pytest.mark.rule("librarian-22")
def test_best_confidence_chooses_one() -> None:
    librarians = {
        "front": handing("a", "b", aggregation="best-confidence"),
        "a": answering("Perhaps.", confidence=0.7),
        "b": answering("Surely.", confidence=0.95),
    }
    assert asked(librarians, "front").answer == "Surely."


@pytest.mark.rule("librarian-22")
@pytest.mark.parametrize(
    ("model", "answer"),
    [
        (SayingModel("Blended."), "Blended."),
        (SayingModel(errors.model_unreachable("http://x", "away")), "One.\n\nTwo."),
        (SayingModel(ValueError("odd")), "One.\n\nTwo."),
        (SayingModel("  "), "One.\n\nTwo."),
        (None, "One.\n\nTwo."),
    ],
)
def test_blend_needs_a_model_and_joins_answers_without_one(model: SayingModel | None, answer: str) -> None:
    librarians = {"front": handing("a", "b", aggregation="blend"), "a": answering("One."), "b": answering("Two.")}
    response = asked(librarians, "front", context=Context(ai=model))
    assert response.answer == answer
    assert response.confidence == pytest.approx(0.9)


@pytest.mark.rule("librarian-23")
def test_the_answer_of_the_delegating_librarian_is_returned_when_the_delegate_fails() -> None:
    front = Response(answer="Probably.", confidence=0.7, delegate=DelegateRequest("manual"))
    response = asked({"front": returning(front), "manual": returning(AWAY)}, "front")
    assert (response.answer, response.partial, code(response)) == ("Probably.", True, "DATA_SOURCE_ERROR")
    assert response.delegate is None
    late = asked({"front": returning(front), "manual": hanging}, "front", timeout=0.4)
    assert (late.answer, late.partial, code(late)) == ("Probably.", True, "TIMEOUT")


@pytest.mark.rule("librarian-31")
def test_the_context_lists_the_librarians_that_may_be_asked() -> None:
    manual = Recorder()
    front = Recorder(Response.delegating("manual"))
    librarians = {
        "front": Entry(front, delegates_to=("manual", "vault", "gone")),
        "manual": manual,
        "vault": Entry(manual, permissions=Permissions(public=False)),
        "other": Entry(manual, LibrarianInfo("", "Other", "Knows the rest", ("rest",))),
    }
    asked(librarians, "front")
    assert [each.id for each in front.contexts[0].available_delegates] == ["manual"]
    assert [each.id for each in manual.contexts[0].available_delegates] == ["other"]
    assert manual.contexts[0].available_delegates[0].capabilities == ("rest",)
    asked(librarians, "front", policy=LibrariansSettings(max_depth=1))
    assert manual.contexts[1].available_delegates == ()


# ── a librarian that asks by itself ────────────────────────────────────────────────────────────────


@pytest.mark.rule("librarian-29")
@pytest.mark.parametrize("with_context", [True, False])
def test_librarian_that_asks_itself_ends(with_context: bool) -> None:
    entered = []

    async def recursive(query: str, context: Context) -> Response:
        entered.append(query)
        return await ask(registry, "it", query + "!", context if with_context else None)

    registry = Registry({"it": recursive})
    assert code(asked(registry, "it")) == "LOOP_DETECTED"
    assert len(entered) == 1


@pytest.mark.rule("librarian-29")
def test_librarian_that_asks_others_works_on_the_same_question() -> None:
    manual = Recorder()

    async def front(query: str, context: Context) -> Response:
        impostor = Context(user=User("root", roles=("admin",)), budget=Budget(999, 999), timeout_ms=10**9)
        await ask(registry, "manual", "one?", impostor, timeout=10**6)
        await asyncio.create_task(ask(registry, "manual", "two?"))
        found = await asyncio.to_thread(lambda: asyncio.run(ask(registry, "manual", "three?")))
        refused = await ask(registry, "vault", "four?")
        return Response(answer=f"{found.answer} {code(refused)}")

    registry = Registry({"front": Entry(front, delegates_to=("manual",)), "manual": manual, "vault": manual})
    response = asked(
        registry, "front", context=Context(user=User("ada"), request_id="r-1", metadata={"a": 1}), timeout=5
    )
    assert response.answer == "Noted. UNAUTHORIZED"
    assert [context.user for context in manual.contexts] == [User("ada")] * 3
    assert {context.request_id for context in manual.contexts} == {"r-1"}
    assert {context.delegation_chain for context in manual.contexts} == {("front", "manual")}
    assert all((context.timeout_ms or 10**9) <= 5000 for context in manual.contexts)
    assert [context.budget and context.budget.calls for context in manual.contexts] == [48, 47, 46]
    assert manual.contexts[1].metadata == {"a": 1}


@pytest.mark.rule("librarian-29")
def test_same_name_in_another_registry_is_another_librarian() -> None:
    other = Registry({"manual": answering("From the other house.")})

    async def manual(query: str, context: Context) -> Response:
        return await ask(other, "manual", query)

    assert asked({"manual": manual}, "manual").answer == "From the other house."


@pytest.mark.rule("librarian-24")
def test_calls_are_counted_for_all_together() -> None:
    calls = []

    async def greedy(query: str, context: Context) -> Response:
        calls.append(query)
        responses = await asyncio.gather(*(ask(registry, "manual", "x") for _ in range(100)))
        return Response(answer=f"{sum(response.error is None for response in responses)} {code(responses[-1])}")

    async def manual(query: str, context: Context) -> Response:
        calls.append(query)
        return Response(answer="Yes.")

    registry = Registry({"it": greedy, "manual": manual})
    assert asked(registry, "it").answer == "49 RATE_LIMITED"
    assert len(calls) == 50
    assert asked(registry, "it", context=Context(budget=Budget(3, 100))).answer == "2 RATE_LIMITED"
    assert code(asked(registry, "it", context=Context(budget=Budget(0, 100)))) == "RATE_LIMITED"


@pytest.mark.rule("librarian-24")
def test_tokens_are_counted_for_all_together() -> None:
    model = SayingModel("word " * 20)

    async def manual(query: str, context: Context) -> Response:
        assert context.ai is not None
        assert context.ai.name == "any"
        return Response(answer=await asyncio.to_thread(context.ai.reply, "Answer.", "x" * 200), confidence=0.9)

    async def front(query: str, context: Context) -> Response:
        codes = [code(await ask(registry, "manual", "x", context)) for _ in range(3)]
        return Response(answer=str(codes))

    registry = Registry({"front": front, "manual": manual})
    response = asked(registry, "front", context=Context(ai=model, budget=Budget(50, 160)))
    assert response.answer == "[None, None, 'AI_UNAVAILABLE']"
    assert len(model.prompts) == 2


# ── breaker, permissions, listeners ────────────────────────────────────────────────────────────────


@pytest.mark.rule("librarian-25")
@pytest.mark.parametrize("bad", [returning(AWAY), raising(ValueError()), returning(None)])
def test_librarian_that_fails_too_often_is_not_asked_for_a_while(bad: Any) -> None:
    clock = ManualClock()
    registry = Registry({"bad": bad, "front": handing("bad", fallback="good"), "good": answering("Yes.")}, clock=clock)

    async def often() -> list[Response]:
        return [await ask(registry, "bad", "x") for _ in range(21)]

    last = asyncio.run(often())[-1]
    assert code(last) == "SERVICE_UNAVAILABLE"
    assert last.error is not None
    assert (last.error.recoverable, last.error.details["retryAfter"]) == (True, 60)
    assert registry.breakers()["bad"] == "open"
    assert asked(registry, "front").answer == "Yes."
    clock.advance(60)
    assert code(asked(registry, "bad")) != "SERVICE_UNAVAILABLE"


@pytest.mark.rule("librarian-25")
def test_a_librarian_that_blocks_its_event_loop_is_counted_too() -> None:
    release = threading.Event()
    policy = LibrariansSettings(breaker_min_calls=1)
    registry = Registry({"late": blocking(release)}, policy=policy)
    assert code(asked(registry, "late", timeout=0.4)) == "TIMEOUT"
    release.set()
    assert code(asked(registry, "late", timeout=0.05)) == "SERVICE_UNAVAILABLE"


@pytest.mark.rule("librarian-27")
def test_the_log_names_the_caller_of_a_sensitive_librarian_without_the_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vault = Entry(answering("Yes."), permissions=Permissions(allowed_teams=("ops",), sensitive=True))
    registry = Registry({"vault": vault, "front": handing("vault"), "open": answering("Yes.")})
    with caplog.at_level(logging.INFO, logger="pair.audit"):
        asked(registry, "front", "salaries?", Context(user=User("ada", teams=("ops",)), request_id="r-1"))
        asked(registry, "vault", "salaries?", Context(request_id="r-2"))
        asked(registry, "open", "salaries?", Context(request_id="r-3"))
    told = [
        (each.__dict__["user"], each.__dict__["librarian"], each.__dict__["request_id"], each.__dict__["allowed"])
        for each in caplog.records
        if each.name == "pair.audit"
    ]
    assert told == [("ada", "vault", "r-1", True), (None, "vault", "r-2", False)]
    assert "salaries" not in caplog.text
    assert "'ada'" in caplog.text


def test_listener_hears_one_voice_and_nothing_after_the_end() -> None:
    heard: list[str] = []
    late: list[Context] = []

    async def speaks(query: str, context: Context) -> Response:
        if context.on_text is not None:
            context.on_text("At one.")
            late.append(context)
        return Response(answer="At one.")

    context = Context(on_text=heard.append)
    registry = Registry({"it": speaks, "other": speaks, "front": handing("it"), "both": handing("it", "other")})
    asked(registry, "front", context=context)
    asked(registry, "both", context=context)
    assert heard == ["At one."]
    assert late[0].on_text is not None
    late[0].on_text("more")
    assert heard == ["At one."]


def test_error_with_a_request_to_ask_others_is_an_error() -> None:
    both = Response(error=AWAY.error, delegate=DelegateRequest("manual"))
    response = asked({"it": returning(both), "manual": answering("Yes.")}, "it")
    assert (code(response), response.delegate, response.answer) == ("DATA_SOURCE_ERROR", None, None)
