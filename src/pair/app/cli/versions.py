"""pair versions, pair rollback"""

from typing import TYPE_CHECKING, Annotated

import typer

from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

if TYPE_CHECKING:
    from pair.engine.maintenance.versions import ListedVersion

VERSIONS_EXAMPLE = """Examples:

\b
  pair versions                  what can be gone back to
  pair versions --kb handbook --json"""

ROLLBACK_EXAMPLE = """Examples:

\b
  pair rollback 12               as it was in version 12
  pair rollback 1.0.0            as it was when release 1.0.0 was installed
  pair sync                      follow the sources again"""

WANTED_HELP = "Its number, else the version of the package installed then."
AT_HELP = "As it was in this version: its number, else the version of the package installed then."

At = Annotated[str | None, typer.Option("--at", metavar="VERSION", help=AT_HELP)]
Wanted = Annotated[str, typer.Argument(metavar="VERSION", help=WANTED_HELP)]

_CAUSES = {
    "upsert": "documents stored",
    "delete": "documents deleted",
    "compact": "shards compacted",
    "collect": "garbage collected",
    "reembed": "embedded anew",
    "release": "sync goes on",
    "install": "package installed",
    "import": "imported",
    "repair": "repaired",
}


def versions(context: typer.Context, kb: KbName = DEFAULT_KB) -> None:
    """List the versions of a KB that can be searched, compared and gone back to, the newest first.

    Every change makes one. How many are kept is up to engine.keep_versions and engine.keep_days.
    """
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        found = opened.versions.list()
    session.show({"kb_id": kb, "versions": [each.to_json() for each in found]}, *map(_told, found), is_answer=True)


def rollback(context: typer.Context, version: Wanted, kb: KbName = DEFAULT_KB) -> None:
    """Make an earlier version the current one. This is instant, and a version itself.

    A KB that is kept in sync stays at that version until the next pair sync; installed files are left as they are.
    """
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        done = opened.versions.rollback(version)
    label = f" ({done.label})" if done.label else ""
    documents = render.counted(done.documents, "document")
    if done.is_changed:
        told = (
            f"{kb} is again as in version {done.restored}{label}: {documents}; this is version {done.manifest_version}"
        )
    else:
        told = f"{kb} is at version {done.restored}{label} already: {documents}"
    session.show(done.to_json(), told)


def _told(version: "ListedVersion") -> str:
    mark = "*" if version.is_current else " "
    cause = f"back to version {version.restored}" if version.made_by == "rollback" else _CAUSES.get(version.made_by, "")
    label = f", {version.label}" if version.label else ""
    documents = render.counted(version.documents, "document")
    return f"{mark} {version.number:>6}  {version.created_at[:19]}Z  {documents}, {cause}{label}"
