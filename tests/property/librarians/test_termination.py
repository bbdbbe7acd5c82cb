"""A question to any graph of librarians that answer, fail, hang and delegate ends in time and within budget."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.librarians import Context, DelegateRequest, Entry, ErrorCode, Registry, Response, ask
from pair.librarians.rules import fault_of
from pair.librarians.settings import LibrariansSettings

IDS = ("a", "b", "c", "d", "e")
TIMEOUT = 0.15
IN_TIME = 2.0
"""The allowed delay after the deadline, for a busy machine."""
MAX_CALLS = 12


@dataclass(frozen=True)
class Habit:
    """The behaviour of a librarian for every question."""

    kind: str
    to: tuple[tuple[str, str], ...] = ()
    """The librarians that it asks, each with a fallback or ""."""
    how: str = "merge-all"
    has_answer: bool = False
    delegates_to: tuple[str, ...] | None = None
    timeout_seconds: float | None = None


somebody = st.sampled_from([*IDS, "nobody"])
habits = st.builds(
    Habit,
    st.sampled_from(["answer", "fail", "raise", "nonsense", "hang", "delegate", "delegate", "delegate", "ask"]),
    st.lists(st.tuples(somebody, somebody | st.just("")), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["merge-all", "first-success", "best-confidence", "blend"]),
    st.booleans(),
    st.none() | st.lists(somebody, max_size=4).map(tuple),
    st.none() | st.just(0.02),
)
graphs = st.fixed_dictionaries(dict.fromkeys(IDS, habits))


class House:
    """Librarians with scripted behaviour, and a record of the chains that reached them."""

    def __init__(self, graph: Mapping[str, Habit]) -> None:
        self.ways: list[tuple[str, ...]] = []
        entries = {
            name: Entry(self.librarian(habit), timeout_seconds=habit.timeout_seconds, delegates_to=habit.delegates_to)
            for name, habit in graph.items()
        }
        self.registry = Registry(entries, policy=LibrariansSettings(max_calls=MAX_CALLS, max_depth=3))

    def librarian(self, habit: Habit) -> Any:
        async def act(query: str, context: Context) -> Any:
            self.ways.append(context.delegation_chain)
            if habit.kind == "ask":
                asked = [ask(self.registry, to, query) for to, _ in habit.to]
                responses = await asyncio.gather(*asked)
                return responses[0]
            if habit.kind == "hang":
                await asyncio.Event().wait()
            if habit.kind == "raise":
                raise ValueError(query)
            return self.said(habit)

        return act

    def said(self, habit: Habit) -> Any:
        if habit.kind == "nonsense":
            return {"answer": 7}
        if habit.kind == "fail":
            return Response.failing(ErrorCode.DATA_SOURCE_ERROR, "away")
        if habit.kind == "answer":
            return Response(answer="Yes.", confidence=0.9)
        requests = tuple(DelegateRequest(to, fallback=fallback) for to, fallback in habit.to)
        return Response(
            answer="So far." if habit.has_answer else None,
            delegate=requests,
            metadata={"aggregation": habit.how},
        )


@pytest.mark.rule("librarian-4")
@pytest.mark.rule("librarian-17")
@pytest.mark.rule("librarian-24")
@settings(max_examples=100, deadline=None)
@given(graphs)
def test_every_question_ends(graph: Mapping[str, Habit]) -> None:
    house = House(graph)
    began_at = time.monotonic()
    response = asyncio.run(ask(house.registry, "a", "x", timeout=TIMEOUT))
    assert time.monotonic() - began_at < TIMEOUT + IN_TIME
    assert fault_of(response) is None
    assert response.delegate is None
    assert len(house.ways) <= MAX_CALLS
    for way in house.ways:
        assert len(set(way)) == len(way) <= 4
    for name, habit in graph.items():
        if habit.delegates_to is not None:
            handed = {way[way.index(name) + 1] for way in house.ways if name in way[:-1]}
            assert handed <= set(habit.delegates_to)
