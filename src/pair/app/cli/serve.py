"""The commands `serve`, `mcp`, `skill`, `keys add`, `keys list`, `keys revoke` and `trust`."""

import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pair import errors, files
from pair.app import render
from pair.app.cli.context import CliContext, KbName
from pair.app.mcp.client_config import (
    NAME,
    Client,
    SkillSubject,
    apply,
    build_files,
    entry_for,
    make_name,
    name_for,
    own_command,
    plan,
)
from pair.auth.rules import Scope
from pair.auth.trust import TrustStore
from pair.kb import trust as folder_trust
from pair.kb.open import DEFAULT_KB
from pair.kb.trust import Review, key_file

_MAX_VALUE_CHARACTERS = 200
_DESCRIBED_DOCUMENTS = 50
"""Documents whose titles a skill can name."""

Host = Annotated[str | None, Option("--host", metavar="ADDRESS", help="Address to listen on. [server.host]")]
Port = Annotated[int | None, Option("--port", min=0, max=65535, help="Port; 0 picks a free one. [server.port]")]
Kbs = Annotated[list[str] | None, Option("--kb", metavar="ID", help="Allow only this knowledge base. Can be repeated.")]
AllowWrite = Annotated[bool, Option("--allow-write", help="Offer tools that add and delete documents.")]
Project = Annotated[str | None, Option("--project", metavar="DIR", help="Run in this folder.")]
Install = Annotated[Client | None, Option("--install", help="Configure this assistant for the project.")]
Remove = Annotated[Client | None, Option("--remove", help="Remove the entry from the file of this assistant.")]
Print = Annotated[bool, Option("--print", help="Print the entry for any other assistant.")]
EntryName = Annotated[str, Option("--name", metavar="NAME", help="Name of the entry.")]
DryRun = Annotated[bool, Option("--dry-run", help="With --install or --remove: print the file without writing it.")]
Name = Annotated[str, Argument(metavar="NAME", help="Name of the client; it appears in the log.")]
ScopeOption = Annotated[Scope, Option("--scope", help="What the key allows; each scope includes those before.")]
Days = Annotated[int | None, Option("--days", min=1, max=36500, help="Expire after N days.")]
SkillFolder = Annotated[Path, Argument(metavar="DIR", help="Folder of the plugin.")]
SkillName = Annotated[str, Option("--name", metavar="NAME", help="Name of the skill; default: the KB or the project.")]
Force = Annotated[bool, Option("--force", help="Overwrite files with different content.")]
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
    remove: Remove = None,
    print_entry: Print = False,
    name: EntryName = "",
    dry_run: DryRun = False,
) -> None:
    """Serve knowledge bases to an assistant over MCP, on standard input and output.

    Examples:
      pair mcp --install claude              # add it to ./.mcp.json
      pair mcp --install cursor --dry-run    # print the change only
      pair mcp --remove cursor               # remove it again
      pair mcp --print                       # print the entry for another assistant
      pair mcp --kb handbook                 # serve one knowledge base
      pair mcp --allow-write                 # allow changes to documents
    """
    client = install or remove
    _check_mcp_options(install, remove, print_entry, name=name, dry_run=dry_run)
    if project is not None and not Path(project).is_dir():
        raise errors.command_line_invalid(f"Cannot use --project {project}: no such folder.", hints=["pair mcp --help"])
    folder = Path(os.path.abspath(project or "."))  # noqa: PTH100 - keeps links
    if client is not None:
        entry = entry_for(client, _client_command(context, folder, kbs or [], allow_write)) if install else None
        _configure(context, client, folder, entry, name, dry_run=dry_run)
        return
    if print_entry:
        entry = entry_for("claude", _client_command(context, folder, kbs or [], allow_write))
        value = {"mcpServers": {name or NAME: entry}}
        context.show_text(value, json.dumps(value, indent=2, ensure_ascii=False))
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


def _check_mcp_options(
    install: Client | None, remove: Client | None, print_entry: bool, *, name: str, dry_run: bool
) -> None:
    """Raise E402 for options that exclude each other or have no effect."""
    chosen = [option for option in (install, remove, print_entry or None) if option is not None]
    if len(chosen) > 1:
        raise errors.command_line_invalid(
            "Cannot use more than one of --install, --remove and --print.", hints=["pair mcp --help"]
        )
    if dry_run and install is None and remove is None:
        raise errors.command_line_invalid(
            "Cannot use --dry-run without --install.", hints=["pair mcp --install claude --dry-run"]
        )
    if not name.isprintable():
        raise errors.command_line_invalid("Cannot use this --name: it has characters that cannot be printed.")
    if name and not chosen:
        raise errors.command_line_invalid(
            "Cannot use --name without --install, --remove or --print.", hints=["pair mcp --install claude --name docs"]
        )


def _client_command(context: CliContext, project: Path, kbs: list[str], allow_write: bool) -> list[str]:
    """Return the command that starts `pair mcp` in the project."""
    command = [*own_command(sys.argv[0]), "mcp", "--project", str(project)]
    if context.config:
        command += ["--config", os.path.abspath(context.config)]  # noqa: PTH100 - keeps links
    for kb in kbs:
        command += ["--kb", kb]
    return [*command, "--allow-write"] if allow_write else command


def _configure(
    context: CliContext, client: Client, project: Path, entry: dict[str, Any] | None, name: str, *, dry_run: bool
) -> None:
    change = (plan if dry_run else apply)(client, project, entry, name)
    value = {
        "client": client,
        "name": name or name_for(client, project),
        "path": str(change.path),
        "outcome": change.outcome,
        "server": entry,
    }
    if dry_run:
        content = change.content.decode("utf-8-sig").replace("\r\n", "\n")
        context.show_text({**value, "content": content}, content.rstrip("\n"))
        return
    if not context.as_json:
        render.print_note(f"{change.outcome.capitalize()}: {change.path}")
    context.show(value, *([] if entry is None else [" ".join([entry["command"], *entry["args"]])]), is_answer=True)


def write_skill(
    context: CliContext,
    folder: SkillFolder,
    kb: KbName = DEFAULT_KB,
    name: SkillName = "",
    project: Project = None,
    force: Force = False,
) -> None:
    """Write a skill and a plugin folder that teach an assistant to use a knowledge base.

    The folder has a skill (skills/NAME/SKILL.md), a plugin manifest (.claude-plugin/plugin.json) and the MCP server
    (.mcp.json). Run the command again after larger changes: the skill names subjects of the knowledge base.

    Examples:
      pair skill handbook-plugin
      pair skill handbook-plugin --kb handbook --name handbook
      claude --plugin-dir handbook-plugin         # use it in Claude Code
    """
    place = Path(os.path.abspath(project or "."))  # noqa: PTH100 - keeps links
    with context.kb(kb) as opened:
        page, count = opened.documents(limit=_DESCRIBED_DOCUMENTS), opened.count()
    chosen = make_name(name or (kb if kb != DEFAULT_KB else place.name)) or NAME
    subject = SkillSubject(kb, chosen, count, [document.title or document.id for document in page])
    entry = entry_for("claude", _client_command(context, place, [kb], allow_write=False))
    written = {folder / path: text.encode() for path, text in build_files(subject, entry).items()}
    with files.storage_errors():
        known = {path: path.read_bytes() for path in written if path.exists()}
    changed = [path for path, content in written.items() if known.get(path) != content]
    kept = [path for path in changed if path in known]
    if kept and not force:
        raise errors.command_line_invalid(
            f"Cannot write {kept[0]}: it exists with different content. Nothing was written.",
            hints=["Overwrite it: --force", "Choose another folder: pair skill DIR"],
        )
    with files.storage_errors():
        for path in changed:
            files.make_folder(path.parent)
            files.write_atomically(path, written[path])
    value = {"name": chosen, "kb_id": kb, "files": [str(path) for path in written], "changed": len(changed)}
    lines = [f"Wrote {path}" for path in changed] or ["Nothing changed."]
    context.show(value, *lines, is_answer=True)


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
