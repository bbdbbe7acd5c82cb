"""Who is there, and under which terms."""

from typing import Any

import pytest

from pair import errors
from pair.librarians import Context, Entry, LibrarianInfo, Permissions, Registry, Response, User


async def plain(query: str, context: Context | None = None) -> Response:
    """Knows the plain.

    And more.
    """
    return Response(answer=query)


class Shelf:
    """Knows a shelf."""

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        return Response(answer=query)


def test_card_is_given_or_made_of_what_the_librarian_says() -> None:
    card = LibrarianInfo("other", "The handbook", "How we work", ("work",), team="docs")
    registry = Registry({"plain": plain, "shelf": Shelf(), "given": Entry(plain, card)})
    assert registry.cards() == (
        LibrarianInfo("plain", "plain", "Knows the plain."),
        LibrarianInfo("shelf", "shelf", "Knows a shelf."),
        LibrarianInfo("given", "The handbook", "How we work", ("work",), team="docs"),
    )
    assert len(registry) == 3
    assert "plain" in registry
    assert "other" not in registry
    assert registry.breakers() == {"plain": "closed", "shelf": "closed", "given": "closed"}


@pytest.mark.parametrize("bad", ["", " ", "-a", "a b", "a/b", "é", "a\n", "x" * 129, 7, None])
def test_bad_id_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(errors.UsageError, match="librarians"):
        Registry({bad: plain})


@pytest.mark.parametrize("entry", ["plain", None, Entry("plain"), Entry(plain, timeout_seconds=0)])  # type: ignore[arg-type]
def test_bad_entry_is_refused_by_name(entry: Any) -> None:
    with pytest.raises(errors.UsageError, match=r"librarians\.desk"):
        Registry({"desk": entry})


@pytest.mark.rule("librarian-31")
def test_delegates_are_those_who_may_be_asked() -> None:
    registry = Registry(
        {
            "desk": plain,
            "open": plain,
            "ops": Entry(plain, permissions=Permissions(allowed_teams=("ops",))),
        }
    )
    ids = [
        [each.id for each in registry.delegates_for(user, visited, allowed)]
        for user, visited, allowed in [
            (None, (), None),
            (None, ("desk",), None),
            (User("ada", teams=("ops",)), ("desk",), None),
            (User("bob", teams=("sales",)), ("desk",), None),
            (User("ada", teams=("ops",)), (), ("ops", "nobody")),
        ]
    ]
    assert ids == [["desk", "open"], ["open"], ["open", "ops"], ["open"], ["ops"]]


async def question_only(query: str) -> Response:
    return Response(answer=query)


async def by_name(query: str, *, context: Context | None = None) -> Response:
    return Response(answer=query)


async def anything(*given: Any) -> Response:
    return Response(answer=given[0])


@pytest.mark.rule("librarian-1")
@pytest.mark.parametrize(
    ("librarian", "way"),
    [
        (plain, "positional"),
        (Shelf(), "positional"),
        (question_only, ""),
        (by_name, "keyword"),
        (anything, "positional"),
    ],
)
def test_librarian_may_leave_out_the_context(librarian: Any, way: str) -> None:
    assert Registry({"it": librarian})["it"].gets_context == way
