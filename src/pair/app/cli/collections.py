"""The commands `add`, `collections` and `remove`."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from typer import Argument, Option

from pair import errors, files
from pair.app import render
from pair.app.cli.context import CliContext
from pair.kb.configure import add_collection, remove_collection
from pair.kb.open import DEFAULT_KB, OBJECT_STORES
from pair.kb.sync import ProjectSync, list_collections, with_collection
from pair.sync.collection import KINDS, NAME, Kind
from pair.values import redact_url

Place = Annotated[str, Argument(metavar="PLACE", help="Folder, URL, bucket, links file or command to add.")]
CollectionName = Annotated[str | None, Option("--name", metavar="NAME", help="Name of the collection.")]
KindOption = Annotated[str | None, Option("--kind", metavar="KIND", help=f"Kind of PLACE: {', '.join(KINDS)}.")]
Include = Annotated[list[str] | None, Option("--include", metavar="PATTERN", help="Read only these files.")]
Exclude = Annotated[list[str] | None, Option("--exclude", metavar="PATTERN", help="Skip these files and folders.")]
TargetKb = Annotated[str, Option("--kb", metavar="NAME", help="Knowledge base to store the documents in.")]
Named = Annotated[str, Argument(metavar="NAME", help="Name of the collection.")]


def add(
    context: CliContext,
    place: Place,
    name: CollectionName = None,
    kind: KindOption = None,
    include: Include = None,
    exclude: Exclude = None,
    kb: TargetKb = DEFAULT_KB,
) -> None:
    """Add a folder, site or other collection to the configuration.

    The entry goes to `kb.collections` in config.yaml; comments there are kept. The next sync reads the collection.
    Patterns have the syntax of .gitignore.

    Examples:
      pair add ./docs                                   # a folder
      pair add ./wiki --name wiki --include '*.md' --exclude drafts/
      pair add https://example.com/guide/               # a site
      pair add https://example.com/feed.xml --kind feed
      pair add 'python3 issues.py' --kind command --name issues
    """
    chosen = _choose_kind(place, kind)
    _check_place(place, chosen)
    entry: dict[str, Any] = {chosen: shlex.split(place) if chosen == "command" else place}
    entry |= {key: list(value) for key, value in (("include", include), ("exclude", exclude)) if value}
    entry |= {"kb": kb} if kb != DEFAULT_KB else {}
    name = _derive_name(place, chosen) if name is None else name
    if not NAME.fullmatch(name):
        raise errors.command_line_invalid(
            f"Cannot use {name!r} as a name: use letters, digits, - and _.", hints=["Choose a name: --name NAME"]
        )
    with_collection(context.settings(), name, entry)  # Refuse conflicts before anything is written.
    edited = add_collection(context.config, name, entry)
    value = {"collection": name, "config": str(edited.path), **entry}
    after = "Trust and sync it: pair trust && pair sync" if edited.needs_trust else "Sync it: pair sync"
    context.show(value, f"Added to {edited.path}:", *(f"  {line}" for line in edited.lines), after)


def collections(context: CliContext) -> None:
    """List the collections of this project and their documents.

    Examples:
      pair collections
      pair collections --json
    """
    listed = list_collections(context.settings())
    rows = [f"{row.name:<16} {row.kind:<8} {row.kb:<12} {row.documents:>9,}  {row.address}" for row in listed]
    notes = [f"Error: {row.fault}" for row in listed if row.fault]
    head = f"{'name':<16} {'kind':<8} {'kb':<12} {'documents':>9}  place"
    lines = [head, *rows, *notes] if rows else ["No collections. Add one: pair add ./docs"]
    context.show({"collections": [row.to_json() for row in listed]}, *lines, is_answer=True)


def remove(context: CliContext, name: Named) -> None:
    """Remove a collection from the configuration.

    The next sync removes its documents from the knowledge base. Other collections stay.

    Examples:
      pair remove wiki
    """
    documents = ProjectSync(context.settings()).status().collections.get(name, 0)
    edited = remove_collection(context.config, name)
    shown = render.pluralize(documents, "document")
    after = f"Its {shown} will be removed by the next sync: pair sync" if documents else "It has no documents."
    value = {"collection": name, "config": str(edited.path), "documents": documents}
    context.show(value, f"Removed from {edited.path}:", *(f"  {line}" for line in edited.lines), after)


def _choose_kind(place: str, kind: str | None) -> Kind:
    """Return the kind of a place. Raises E402 for an unknown one."""
    if kind is not None and kind not in KINDS:
        raise errors.command_line_invalid(f"Cannot use kind {kind!r}.", hints=[f"Use one of: {', '.join(KINDS)}"])
    chosen: Kind = "path"
    if place.startswith(("http://", "https://")):
        chosen = "url"
    elif place.startswith(OBJECT_STORES):
        chosen = "bucket"
    return next((known for known in KINDS if known == kind), chosen)


def _check_place(place: str, kind: Kind) -> None:
    """Refuse a place that cannot be of this kind. Raises E402."""
    reason, hints = "", list[str]()
    if kind == "path":
        reason, hints = _find_folder_fault(place)
    elif kind == "links":
        is_file = bool(place) and files.expand_path(place).is_file()
        reason, hints = "" if is_file else "there is no such file", ["List URLs in a file, one per line"]
    elif kind == "command":
        reason, hints = _find_command_fault(place), ["Quote the command: pair add 'python3 notes.py' --kind command"]
    elif place:
        reason, hints = (
            _find_address_fault(place),
            ["pair add https://example.com/docs/", "pair add s3://bucket/prefix"],
        )
    if reason:
        shown = f"Cannot add {redact_url(place)!r}: {reason}. Nothing was written."
        raise errors.command_line_invalid(shown, hints=hints)


def _find_folder_fault(place: str) -> tuple[str, list[str]]:
    """Return why a place is not a folder, and hints; "" for a folder."""
    quoted, local = shlex.quote(place), files.expand_path(place)
    if place and local.is_dir():
        return "", []
    if place and local.is_file():
        folder, pattern = shlex.quote(str(Path(place).parent)), shlex.quote(f"/{local.name}")
        hints = [f"pair add {folder} --include {pattern}", f"Read URLs from it: pair add {quoted} --kind links"]
        return "it is a file, not a folder", [*hints, f"Store it once: pair ingest {quoted}"]
    if "://" in place:
        return "only http, https and bucket addresses can be read", ["pair add https://example.com/docs/"]
    return "there is no such folder", ["Run a command: pair add 'COMMAND' --kind command --name NAME"]


def _find_command_fault(place: str) -> str:
    try:
        return "" if shlex.split(place) else "the command is empty"
    except ValueError:
        return "a quotation mark is not closed"


def _find_address_fault(place: str) -> str:
    try:
        parts = urlsplit(place)
        if parts.hostname and parts.port != 0 and parts.username is None:
            return ""
    except ValueError:
        pass
    return "an address needs a valid host, and no user name or password"


def _derive_name(place: str, kind: Kind) -> str:
    """Return a name made from the last part of a path, or from the host of a URL."""
    if kind in {"path", "links"}:
        local = files.expand_path(place).resolve()
        text = local.name if kind == "path" else local.stem
    elif kind == "command":
        text = Path(shlex.split(place)[-1]).stem
    else:
        text = urlsplit(place).hostname or ""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:63] or "docs"
