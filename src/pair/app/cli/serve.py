"""pair serve, pair mcp, pair keys add, list, revoke, pair trust"""

import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.mcp.client_config import Client, own_command, plan
from pair.auth.rules import Scope
from pair.auth.trust import TrustStore
from pair.kb import trust as folder_trust
from pair.kb.trust import Review, key_file

_MAX_VALUE_CHARACTERS = 200

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on, instead of server.host.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on, instead of server.port; 0 for any.")
]
Kbs = Annotated[list[str] | None, typer.Option("--kb", metavar="ID", help="Only this knowledge base; may be repeated.")]
AllowWrite = Annotated[bool, typer.Option("--allow-write", help="Also add and delete documents.")]
Project = Annotated[str | None, typer.Option("--project", metavar="DIR", help="Work in this folder.")]
Install = Annotated[
    Client | None, typer.Option("--install", help="Enter it into the project's configuration of this assistant.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --install: print the file, and write nothing.")]
Name = Annotated[str, typer.Argument(help="Who or what the key is for; it is in the log.")]
ScopeOption = Annotated[Scope, typer.Option("--scope", help="What it allows; each covers those before it.")]
Days = Annotated[int | None, typer.Option("--days", min=1, max=36500, help="Until it expires.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As pair keys list shows it.")]
Show = Annotated[bool, typer.Option("--show", help="Show what the folder asks for; change nothing.")]
Revoke = Annotated[bool, typer.Option("--revoke", help="Stop trusting this folder.")]
ListAll = Annotated[bool, typer.Option("--list", help="List all files that you trust.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Trust the folder without asking.")]


def serve(context: CliContext, host: Host = None, port: Port = None) -> None:
    """Serve knowledge bases over HTTP, and keep the default one in sync.

    Every route is described in /openapi.json. SIGTERM finishes what is under way.

    Examples:
      pair serve                                      on http://127.0.0.1:8080, for this machine
      pair serve --port 9000 --log-level warning
      PAIR__SERVER__AUTH=keys pair serve --host 0.0.0.0    for those who have a key: pair keys add
    """
    from pair.app.http.server import serve as serve_http  # noqa: PLC0415 - loads the server

    settings = context.settings()
    usual = settings.server
    server = dataclasses.replace(usual, host=host or usual.host, port=usual.port if port is None else port)
    level = context.log_level or ("debug" if settings.diagnostics else "info")
    raise typer.Exit(serve_http(dataclasses.replace(settings, server=server), level))


def mcp(
    context: CliContext,
    kbs: Kbs = None,
    allow_write: AllowWrite = False,
    project: Project = None,
    install: Install = None,
    dry_run: DryRun = False,
) -> None:
    """Let an assistant search and ask, by the Model Context Protocol on standard input and output.

    Examples:
      pair mcp --install claude              tell Claude Code of it: .mcp.json in this folder
      pair mcp --install cursor --dry-run    show what would be written
      pair mcp --kb handbook                 serve one knowledge base to whoever starts this
      pair mcp --allow-write                 with tools that add and delete documents
    """
    if dry_run and install is None:
        raise errors.command_line_invalid("--dry-run goes with --install", hints=["pair mcp --help"])
    if project is not None and not Path(project).is_dir():
        raise errors.command_line_invalid(f"no such folder: {project}", hints=["pair mcp --help"])
    if install is not None:
        folder = Path(os.path.abspath(project or "."))  # noqa: PTH100 - keeps links
        _install(context, install, folder, _client_entry(context, folder, kbs or [], allow_write), dry_run=dry_run)
        return
    if project is not None:
        context.meta["config"] = context.config and os.path.abspath(context.config)  # noqa: PTH100 - keeps links
        os.chdir(project)
    if sys.stdin.isatty():
        render.print_note("waiting for an assistant on standard input; to tell one of this: pair mcp --install claude")
    from pair.app.mcp.server import serve_stdio  # noqa: PLC0415 - loads the SDK

    settings = context.settings()
    server = dataclasses.replace(settings.server, mcp_write=allow_write or settings.server.mcp_write)
    raise typer.Exit(serve_stdio(dataclasses.replace(settings, server=server), kbs or []))


def _client_entry(context: CliContext, project: Path, kbs: list[str], allow_write: bool) -> dict[str, Any]:
    """Return the entry that starts `pair mcp` in the project."""
    command, *arguments = own_command(sys.argv[0])
    arguments += ["mcp", "--project", str(project)]
    if context.config:
        arguments += ["--config", os.path.abspath(context.config)]  # noqa: PTH100 - keeps links
    for kb in kbs:
        arguments += ["--kb", kb]
    if allow_write:
        arguments.append("--allow-write")
    return {"type": "stdio", "command": command, "args": arguments}


def _install(context: CliContext, client: Client, project: Path, entry: dict[str, Any], *, dry_run: bool) -> None:
    change = plan(client, project, entry)
    value = {"client": client, "path": str(change.path), "outcome": change.outcome, "server": entry}
    if dry_run:
        context.show_text({**value, "content": change.content}, change.content.rstrip("\n"))
        return
    change.carry_out()
    if not context.as_json:
        render.print_note(f"{change.outcome}: {change.path}")
    context.show(value, " ".join([entry["command"], *entry["args"]]), is_answer=True)


def add_key(context: CliContext, name: Name, scope: ScopeOption = "read", kbs: Kbs = None, days: Days = None) -> None:
    """Make a key for the server, and print it: it is not kept, only its hash is.

    Examples:
      pair keys add dashboard                            may read everything
      pair keys add importer --scope write --kb faq      may read and write one knowledge base
      pair keys add visitor --days 7                     for a week
    """
    if not name.strip() or not name.isprintable():
        raise errors.command_line_invalid("a name has printable characters", hints=["pair keys add --help"])
    lifetime = None if days is None else datetime.timedelta(days=days)
    stored, key = key_file(context.settings()).add(name, scope, kbs or (), lifetime)
    if not context.as_json:
        render.print_note(f"key {stored.id} for {name}, scope {scope}. It is shown this once:")
    context.show({**stored.to_json(), "key": key}, key, is_answer=True)


def list_keys(context: CliContext) -> None:
    """Keys of the server, without what only their owners have.

    Examples:
      pair keys list
      pair keys list --json
    """
    keys = key_file(context.settings()).all()
    lines = [
        f"{key.id}  {key.scope:<5}  {key.name}  {', '.join(key.kbs) if key.kbs else 'all KBs'}"
        + (f"  expires {key.expires_at}" if key.expires_at else "")
        + (f"  revoked {key.revoked_at}" if key.revoked_at else "")
        for key in keys
    ]
    context.show({"keys": [key.to_json() for key in keys]}, *(lines or ["no keys"]), is_answer=True)


def revoke_key(context: CliContext, key_id: KeyId) -> None:
    """Refuse a key from now on, also where the server runs already.

    Examples:
      pair keys revoke 0a1b2c3d4e5f                      from now on it is refused
    """
    key = key_file(context.settings()).revoke(key_id)
    context.show(key.to_json(), f"revoked {key.id} of {key.name}")


def trust(
    context: CliContext, show: Show = False, revoke: Revoke = False, list_all: ListAll = False, yes: Yes = False
) -> None:
    """Let the configuration and the keys file of this folder count in full.

    Before that, functions, variables, addresses and paths that lead out of the folder are ignored. A file that changes
    has to be trusted again. Files named with --config or PAIR_CONFIG need no trust.

    Examples:
      pair trust                 show what the folder asks for, and ask whether to trust it
      pair trust --show          only show it
      pair trust --yes           trust it without asking, in a script
      pair trust --revoke        stop trusting this folder
      pair trust --list          all files that you trust
    """
    if show + revoke + list_all + yes > 1:
        raise errors.command_line_invalid(
            "--show, --revoke, --list and --yes exclude each other", hints=["pair trust --help"]
        )
    if list_all:
        entries = TrustStore().entries()
        value = {"trusted": [{"path": place, "sha256": list(hashes)} for place, hashes in entries.items()]}
        context.show(value, *(entries or ["No files are trusted."]), is_answer=True)
    elif revoke:
        revoked = folder_trust.revoke(context.config)
        lines = [f"No longer trusted: {place}" for place in revoked]
        context.show({"revoked": revoked}, *(lines or ["Nothing in this folder was trusted."]))
    else:
        _trust(context, only_show=show, without_asking=yes)


def _trust(context: CliContext, *, only_show: bool, without_asking: bool) -> None:
    review = folder_trust.review(context.config)
    if only_show or not review.pending:
        state = [] if only_show else ["Nothing is left to trust."]
        context.show(review.to_json(), *_format_review(review), *state, is_answer=True)
        return
    if not context.as_json:
        render.print_note(*_format_review(review))
    declined = set()
    for item in review.pending:
        if without_asking or _confirm(context, str(item.path)):
            folder_trust.trust(item)
        else:
            declined.add(item.path)
    now = folder_trust.review(context.config)
    lines = [
        f"Not trusted: {item.path}" if item.path in declined else f"{item.path} has changed meanwhile: pair trust"
        for item in now.pending
    ]
    context.show(now.to_json(), *(lines or ["Trusted."]))
    if lines:
        raise typer.Exit(1)


def _confirm(context: CliContext, path: str) -> bool:
    answer = None if context.as_json else render.ask_confirmation(f"Trust {path}?")
    if answer is None:
        raise errors.command_line_invalid(
            "Cannot ask for confirmation: this is no terminal. Nothing was changed.",
            hints=["Look at what the folder asks for: pair trust --show", "Trust it without asking: pair trust --yes"],
        )
    return answer


def _format_review(review: Review) -> list[str]:
    lines = [f"Folder: {review.folder}"]
    if review.config is not None:
        requests = review.config.requests
        state = "trusted" if review.config.is_trusted else "not trusted"
        lines.append(f"{review.config.path} ({state}):" if requests else f"{review.config.path} needs no trust.")
        for request in requests:
            value = json.dumps(folder_trust.show_value(request), ensure_ascii=False)
            value = value if len(value) <= _MAX_VALUE_CHARACTERS else f"{value[:_MAX_VALUE_CHARACTERS]}…"
            lines.append(f"  {request.where}: {request.key} {request.meaning}: {value}")
    lines += [f"{place} is not read: another configuration comes first." for place in review.unread]
    if review.keys is not None:
        state = "trusted" if review.keys.is_trusted else "not trusted"
        granted = [
            f"  {key.name}: {key.scope}, {', '.join(key.kbs) if key.kbs else 'all KBs'}"
            for key in review.keys.keys
            if not key.revoked_at
        ]
        lines += [f"{review.keys.path!s} ({state}) lets in:", *(granted or ["  no key"])]
    return lines
