"""The librarian suite, run on the examples."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from pair.librarians import Context, DelegateRequest, ErrorCode, Response
from pair.testing.librarian_suite import LibrarianCase, LibrarianSuite

EXAMPLES = Path(__file__).parents[2] / "examples" / "librarians"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.mark.rule("librarian-28")
class TestGreeter(LibrarianSuite):
    @pytest.fixture
    def case(self) -> LibrarianCase:
        return LibrarianCase(example("greeter"), "hello there", failing="what is a shard?")


@pytest.mark.rule("librarian-28")
class TestAlmanac(LibrarianSuite):
    @pytest.fixture
    def case(self) -> LibrarianCase:
        return LibrarianCase(example("almanac"), "Which weekday is 2026-01-31?", failing="and 2026-02-31?")


@pytest.mark.rule("librarian-28")
class TestFrontDesk(LibrarianSuite):
    @pytest.fixture
    def case(self) -> LibrarianCase:
        return LibrarianCase(
            example("front_desk"),
            "When are you open?",
            handed_over="How many days from 2026-01-01 to 2026-03-01?",
            colleagues=("almanac", "greeter"),
        )


class TestSlowOne(LibrarianSuite):
    @pytest.fixture
    def case(self) -> LibrarianCase:
        async def slow(query: str, context: Context | None = None) -> Response:
            if query == "slow":
                await asyncio.sleep(60)
            return Response(answer="Done.")

        return LibrarianCase(slow, "fast", slow="slow")


async def raises(query: str, context: Context | None = None) -> Response:
    raise ValueError(query)


async def lies(query: str, context: Context | None = None) -> Response:
    return Response(answer="Sure.", confidence=7)


async def sends_away(query: str, context: Context | None = None) -> Response:
    return Response(delegate=DelegateRequest("nobody"))


async def fails(query: str, context: Context | None = None) -> Response:
    return Response.failing(ErrorCode.INTERNAL_ERROR, "no")


async def needs_ai(query: str, context: Context | None = None) -> Response:
    if context is None or context.ai is None:
        return Response.failing(ErrorCode.AI_UNAVAILABLE, "no model")
    return Response(answer=context.ai.reply("", query))


@pytest.mark.parametrize(
    ("librarian", "test"),
    [
        (raises, "test_error_handling_what_goes_wrong_is_a_response"),
        (lies, "test_happy_path_a_question_is_answered"),
        (fails, "test_happy_path_a_question_is_answered"),
        (sends_away, "test_delegation_is_to_a_colleague_who_may_be_asked"),
        (needs_ai, "test_no_ai_is_needed"),
    ],
)
def test_the_suite_finds_out_who_breaks_the_contract(librarian: Any, test: str) -> None:
    case = LibrarianCase(librarian, "a question")
    with pytest.raises((AssertionError, ValueError)):
        getattr(LibrarianSuite(), test)(case)
