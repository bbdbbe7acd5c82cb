"""pair keys add, list, revoke"""

import datetime
from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.auth.rules import Scope

ADD_EXAMPLE = """Examples:

\b
  pair keys add dashboard                            may read everything
  pair keys add importer --scope write --kb faq      may read and write one knowledge base
  pair keys add visitor --days 7                     for a week"""

LIST_EXAMPLE = """Examples:

\b
  pair keys list
  pair keys list --json"""

REVOKE_EXAMPLE = """Examples:

\b
  pair keys revoke 0a1b2c3d4e5f                      from now on it is refused"""

Name = Annotated[str, typer.Argument(help="Who or what the key is for; it is in the log.")]
ScopeOption = Annotated[Scope, typer.Option("--scope", help="What it allows; each covers those before it.")]
Kbs = Annotated[list[str] | None, typer.Option("--kb", metavar="ID", help="Only this knowledge base; may be repeated.")]
Days = Annotated[int | None, typer.Option("--days", min=1, max=36500, help="Until it expires.")]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As pair keys list shows it.")]


def add_key(
    context: typer.Context, name: Name, scope: ScopeOption = "read", kbs: Kbs = None, days: Days = None
) -> None:
    """Make a key for the server, and print it: it is not kept, only its hash is."""
    session: CliContext = context.obj
    if not name.strip() or not name.isprintable():
        raise errors.command_line_invalid("a name has printable characters", hints=["pair keys add --help"])
    lifetime = None if days is None else datetime.timedelta(days=days)
    made, key = session.key_file().add(name, scope, kbs or (), lifetime)
    if not session.as_json:
        render.print_note(f"key {made.id} for {name}, scope {scope}. It is shown this once:")
    session.show({**made.to_json(), "key": key}, key, is_answer=True)


def list_keys(context: typer.Context) -> None:
    """Keys of the server, without what only their owners have."""
    session: CliContext = context.obj
    keys = session.key_file().all()
    lines = [
        f"{key.id}  {key.scope:<5}  {key.name}  {', '.join(key.kbs) if key.kbs else 'all KBs'}"
        + (f"  expires {key.expires_at}" if key.expires_at else "")
        + (f"  revoked {key.revoked_at}" if key.revoked_at else "")
        for key in keys
    ]
    session.show({"keys": [key.to_json() for key in keys]}, *(lines or ["no keys"]), is_answer=True)


def revoke_key(context: typer.Context, key_id: KeyId) -> None:
    """Refuse a key from now on, also where the server runs already."""
    session: CliContext = context.obj
    revoked = session.key_file().revoke(key_id)
    session.show(revoked.to_json(), f"revoked {revoked.id} of {revoked.name}")
