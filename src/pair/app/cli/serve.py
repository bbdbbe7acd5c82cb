"""The commands serve, mcp, keys add, keys list, keys revoke and trust."""

import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.mcp.client_config import Client, own_command, plan
from pair.auth.rules import Scope
from pair.auth.trust import TrustStore
from pair.kb import trust as folder_trust
from pair.kb.trust import Review, key_file

_MAX_VALUE_CHARACTERS = 200

Host = Annotated[str | None, Option("--host", metavar="ADDRESS", help="Address to listen on. [server.host]")]
Port = Annotated[int | None, Option("--port", min=0, max=65535, help="Port; 0 picks a free one. [server.port]")]
Kbs = Annotated[list[str] | None, Option("--kb", metavar="ID", help="Allow only this knowledge base. Can be repeated.")]
AllowWrite = Annotated[bool, Option("--allow-write", help="Offer tools that add and delete documents.")]
Project = Annotated[str | None, Option("--project", metavar="DIR", help="Run in this folder.")]
Install = Annotated[Client | None, Option("--install", help="Configure this assistant for the project.")]
DryRun = Annotated[bool, Option("--dry-run", help="With --install: print the file without writing it.")]
Name = Annotated[str, Argument(metavar="NAME", help="Name of the client; it appears in the log.")]
ScopeOption = Annotated[Scope, Option("--scope", help="What the key allows; each scope includes those before.")]
Days = Annotated[int | None, Option("--days", min=1, max=36500, help="Expire after N days.")]
KeyId = Annotated[str, Argument(metavar="ID", help="Id of the key; see: pair keys list")]
Show = Annotated[bool, Option("--show", help="Show what needs trust, and change nothing.")]
Revoke = Annotated[bool, Option("--revoke", help="Stop trusting this folder.")]
ListAll = Annotated[bool, Option("--list", help="List all trusted files.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Trust the folder without asking.")]


def serve(context: CliContext, host: Host = None, port: Port = None) -> None:
    """Serve knowledge bases over HTTP, with a web page, an API and MCP.

    The default KB is kept in sync. /openapi.json describes the API. On SIGTERM, the server finishes running requests.

    Examples:
      pair serve                                  # http://127.0.0.1:8080
      pair serve --port 9000 --log-level warning
      PAIR__SERVER__AUTH=keys pair serve --host 0.0.0.0   # with API keys
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
    """Serve knowledge bases to an assistant over MCP, on standard input and output.

    Examples:
      pair mcp --install claude              # add it to ./.mcp.json
      pair mcp --install cursor --dry-run    # print the change only
      pair mcp --kb handbook                 # serve one knowledge base
      pair mcp --allow-write                 # allow changes to documents
    """
    if dry_run and install is None:
        raise errors.command_line_invalid(
            "Cannot use --dry-run without --install.", hints=["pair mcp --install claude --dry-run"]
        )
    if project is not None and not Path(project).is_dir():
        raise errors.command_line_invalid(f"Cannot use --project {project}: no such folder.", hints=["pair mcp --help"])
    if install is not None:
        folder = Path(os.path.abspath(project or "."))  # noqa: PTH100 - keeps links
        _install(context, install, folder, _client_entry(context, folder, kbs or [], allow_write), dry_run=dry_run)
        return
    if project is not None:
        context.meta["config"] = context.config and os.path.abspath(context.config)  # noqa: PTH100 - keeps links
        os.chdir(project)
    if sys.stdin.isatty():
        render.print_note("Waiting for an assistant on standard input. Set one up with: pair mcp --install claude")
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
        render.print_note(f"{change.outcome.capitalize()}: {change.path}")
    context.show(value, " ".join([entry["command"], *entry["args"]]), is_answer=True)


def add_key(context: CliContext, name: Name, scope: ScopeOption = "read", kbs: Kbs = None, days: Days = None) -> None:
    """Create an API key and print it once. Only its hash is stored.

    Examples:
      pair keys add dashboard                         # read everything
      pair keys add importer --scope write --kb faq   # write to one KB
      pair keys add visitor --days 7                  # expire after a week
    """
    if not name.strip() or not name.isprintable():
        raise errors.command_line_invalid(
            "Cannot use this name: it is empty or not printable.", hints=["pair keys add NAME"]
        )
    lifetime = None if days is None else datetime.timedelta(days=days)
    stored, key = key_file(context.settings()).add(name, scope, kbs or (), lifetime)
    if not context.as_json:
        render.print_note(f"Created key {stored.id} for {name} (scope {scope}). It is not shown again:")
    context.show({**stored.to_json(), "key": key}, key, is_answer=True)


def list_keys(context: CliContext) -> None:
    """List the API keys, without their secrets.

    Examples:
      pair keys list
      pair keys list --json
    """
    keys = key_file(context.settings()).all()
    width = max((len(key.name) for key in keys), default=0)
    lines = [
        f"{key.id}  {key.scope:<5}  {key.name:<{width}}  {', '.join(key.kbs) if key.kbs else 'all KBs'}"
        + (f"  expires {key.expires_at}" if key.expires_at else "")
        + (f"  revoked {key.revoked_at}" if key.revoked_at else "")
        for key in keys
    ]
    lines = lines or ["No keys. Create one: pair keys add NAME"]
    context.show({"keys": [key.to_json() for key in keys]}, *lines, is_answer=True)


def revoke_key(context: CliContext, key_id: KeyId) -> None:
    """Revoke an API key. Running servers refuse it at once.

    Examples:
      pair keys revoke 0a1b2c3d4e5f
    """
    key = key_file(context.settings()).revoke(key_id)
    context.show(key.to_json(), f"Revoked key {key.id} of {key.name}.")


def trust(
    context: CliContext, show: Show = False, revoke: Revoke = False, list_all: ListAll = False, yes: Yes = False
) -> None:
    """Trust the configuration and the keys file of this folder.

    In an untrusted folder, pair ignores settings that run functions, read variables, contact other hosts or use paths
    outside the folder. A changed file must be trusted again. Files named with --config or PAIR_CONFIG need no trust.

    Examples:
      pair trust                 # show what needs trust, then ask
      pair trust --show          # show only
      pair trust --yes           # trust without asking
      pair trust --revoke        # stop trusting this folder
      pair trust --list          # list all trusted files
    """
    if show + revoke + list_all + yes > 1:
        raise errors.command_line_invalid(
            "Cannot use more than one of --show, --revoke, --list and --yes.", hints=["pair trust --help"]
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
    again = " has changed since. Review it again: pair trust"
    lines = [f"Not trusted: {item.path}{'' if item.path in declined else again}" for item in now.pending]
    context.show(now.to_json(), *(lines or ["Trusted."]))
    if lines:
        raise typer.Exit(1)


def _confirm(context: CliContext, path: str) -> bool:
    answer = None if context.as_json else render.ask_confirmation(f"Trust {path}?")
    if answer is None:
        raise errors.command_line_invalid(
            "Cannot ask for confirmation: standard input is not a terminal. Nothing was changed.",
            hints=["Review what needs trust: pair trust --show", "Trust it without asking: pair trust --yes"],
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
    lines += [f"{place} is not used: another configuration takes precedence." for place in review.unread]
    if review.keys is not None:
        state = "trusted" if review.keys.is_trusted else "not trusted"
        granted = [
            f"  {key.name}: {key.scope}, {', '.join(key.kbs) if key.kbs else 'all KBs'}"
            for key in review.keys.keys
            if not key.revoked_at
        ]
        lines += [f"{review.keys.path!s} ({state}) accepts:", *(granted or ["  no keys"])]
    return lines
