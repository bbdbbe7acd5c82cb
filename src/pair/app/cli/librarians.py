"""pair librarians list, pair librarians check"""

from typing import TYPE_CHECKING, Any

import typer

from pair.app import render
from pair.app.cli.context import CliContext

if TYPE_CHECKING:
    from pair.kb.librarians import KbLibrarians

LIST_EXAMPLE = """Examples:

\b
  pair librarians list
  pair librarians list --json"""

CHECK_EXAMPLE = """Examples:

\b
  pair librarians check      exit status 1 when one of them cannot be used"""

_TRIAL = "Is anybody there?"
_TRIAL_SECONDS = 10.0
_AWAY = frozenset({"INTERNAL_ERROR", "TIMEOUT", "SERVICE_UNAVAILABLE", "DATA_SOURCE_ERROR", "NOT_FOUND"})


def list_librarians(context: typer.Context) -> None:
    """Who can be asked, and what about."""
    session: CliContext = context.obj
    with session.front_desk() as desk:
        value = {
            "first": desk.first,
            "librarians": [
                {**each.card.to_json(), "answers_from": each.answers_from, "public": each.is_public}
                for each in desk.list_all()
            ],
            "problems": _problems(desk),
        }
        lines = [
            f"{each.card.id:<20}  {each.answers_from:<28}  {each.card.description}"
            + ("" if each.is_public else "  (not for everybody)")
            for each in desk.list_all()
        ]
        _tell_problems(desk)
        session.show(value, *lines, f"asked first: {desk.first}", is_answer=True)


def check_librarians(context: typer.Context) -> None:
    """Ask each of them something, and say who cannot answer and why."""
    session: CliContext = context.obj
    with session.front_desk() as desk:
        found = session.wait_for(_tried(desk))
        _tell_problems(desk)
        lines = [f"{name:<20}  {fault or 'ok'}" for name, fault in found.items()]
        value = {"librarians": {name: fault or "ok" for name, fault in found.items()}, "problems": _problems(desk)}
        session.show(value, *lines, is_answer=True)
        is_sound = not desk.problems and not any(found.values())
    if not is_sound:
        raise typer.Exit(1)


async def _tried(desk: "KbLibrarians") -> dict[str, str]:
    """What is wrong with each; "" for nothing. A question that is not allowed here was at least understood."""
    found = {}
    for each in desk.list_all():
        response = await desk.ask(_TRIAL, first=each.card.id, timeout=_TRIAL_SECONDS)
        error = response.error
        found[each.card.id] = f"{error.code}: {error.message}" if error and error.code in _AWAY else ""
    return found


def _problems(desk: "KbLibrarians") -> list[dict[str, Any]]:
    return [{"name": each.name, "reason": each.reason} for each in desk.problems]


def _tell_problems(desk: "KbLibrarians") -> None:
    for each in desk.problems:
        render.print_note(f"left out: {each.name}: {each.reason}")
