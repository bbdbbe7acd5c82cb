"""pair trust"""

import json
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb import trust as trusting
from pair.kb.trust import FolderKeys, Review

EXAMPLE = """Examples:

\b
  pair trust                 show what the folder asks for, and ask whether to trust it
  pair trust --show          only show it
  pair trust --yes           trust it without asking, in a script
  pair trust --revoke        stop trusting this folder
  pair trust --list          all files that you trust"""

_MAX_VALUE_CHARACTERS = 200

Show = Annotated[bool, typer.Option("--show", help="Show what the folder asks for; change nothing.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Stop trusting this folder.")]
ListAll = Annotated[bool, typer.Option("--list", help="List all files that you trust.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Trust the folder without asking.")]


def trust(
    context: typer.Context, show: Show = False, revoke: Revoke = False, list_all: ListAll = False, yes: Yes = False
) -> None:
    """Let the configuration and the keys file of this folder count in full.

    Before that, functions, variables, addresses and paths that lead out of the folder are ignored. A file that changes
    has to be trusted again. Files named with --config or PAIR_CONFIG need no trust.
    """
    session: CliContext = context.obj
    if show + revoke + list_all + yes > 1:
        raise errors.command_line_invalid(
            "--show, --revoke, --list and --yes exclude each other", hints=["pair trust --help"]
        )
    if list_all:
        _list(session)
    elif revoke:
        _revoke(session)
    else:
        _trust(session, only_show=show, without_asking=yes)


def _trust(session: CliContext, *, only_show: bool, without_asking: bool) -> None:
    reviewed = trusting.review(session.config)
    if only_show or not reviewed.pending:
        state = "" if only_show else "Nothing is left to trust."
        session.show(reviewed.to_json(), *_format_review(reviewed, state), is_answer=True)
        return
    if not session.as_json:
        render.print_note(*_format_review(reviewed, ""))
    declined = set()
    for item in reviewed.pending:
        if without_asking or _confirm(session, str(item.path)):
            trusting.trust(item)
        else:
            declined.add(item.path)
    now = trusting.review(session.config)
    lines = [
        f"Not trusted: {item.path}" if item.path in declined else f"{item.path} has changed meanwhile: pair trust"
        for item in now.pending
    ]
    session.show(now.to_json(), *(lines or ["Trusted."]))
    if lines:
        raise typer.Exit(1)


def _confirm(session: CliContext, path: str) -> bool:
    answer = None if session.as_json else render.ask_confirmation(f"Trust {path}?")
    if answer is None:
        raise errors.command_line_invalid(
            "Cannot ask for confirmation: this is no terminal. Nothing was changed.",
            hints=["Look at what the folder asks for: pair trust --show", "Trust it without asking: pair trust --yes"],
        )
    return answer


def _revoke(session: CliContext) -> None:
    revoked = trusting.revoke(session.config)
    shown = [f"No longer trusted: {place}" for place in revoked] or ["Nothing in this folder was trusted."]
    session.show({"revoked": revoked}, *shown)


def _list(session: CliContext) -> None:
    entries = trusting.list_trusted()
    value = {"trusted": [{"path": place, "sha256": list(hashes)} for place, hashes in entries.items()]}
    session.show(value, *(entries or ["No files are trusted."]), is_answer=True)


def _format_review(reviewed: Review, last: str) -> list[str]:
    lines = [f"Folder: {reviewed.folder}"]
    if reviewed.config is not None:
        requests = reviewed.config.requests
        state = "trusted" if reviewed.config.is_trusted else "not trusted"
        lines.append(f"{reviewed.config.path} ({state}):" if requests else f"{reviewed.config.path} needs no trust.")
        for request in requests:
            value = json.dumps(trusting.show_value(request), ensure_ascii=False)
            value = value if len(value) <= _MAX_VALUE_CHARACTERS else f"{value[:_MAX_VALUE_CHARACTERS]}…"
            lines.append(f"  {request.where}: {request.key} {request.meaning}: {value}")
    lines += [f"{place} is not read: another configuration comes first." for place in reviewed.unread]
    if reviewed.keys is not None:
        lines += _format_keys(reviewed.keys)
    return [*lines, *([last] if last else [])]


def _format_keys(keys: FolderKeys) -> list[str]:
    state = "trusted" if keys.is_trusted else "not trusted"
    granted = [
        f"  {key.name}: {key.scope}, {', '.join(key.kbs) if key.kbs else 'all KBs'}"
        for key in keys.keys
        if not key.revoked_at
    ]
    return [f"{keys.path!s} ({state}) lets in:", *(granted or ["  no key"])]
