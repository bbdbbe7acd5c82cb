"""pair docs list, get, delete"""

from typing import Annotated

import typer

from pair import errors
from pair.app import render
from pair.app.cli.context import CliContext
from pair.app.cli.ingest import KbName
from pair.kb.open import DEFAULT_KB

LIST_EXAMPLE = """Examples:

\b
  pair docs list
  pair docs list --owner ingest --limit 20 --after notes/b.md"""

GET_EXAMPLE = """Examples:

\b
  pair docs get notes/b.md
  pair docs get notes/b.md --json"""

DELETE_EXAMPLE = """Examples:

\b
  pair docs delete notes/a.md notes/b.md
  pair docs delete --owner ingest
  pair docs delete --filter 'year<2020'"""

Owner = Annotated[str | None, typer.Option("--owner", help="Only documents that came by: sync, or ingest.")]
After = Annotated[str, typer.Option("--after", metavar="ID", help="Begin behind this document.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10000, help="Most documents to list.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of documents.")]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="All documents whose metadata says so; may be repeated."),
]


def list_documents(
    context: typer.Context, kb: KbName = DEFAULT_KB, owner: Owner = None, after: After = "", limit: Limit = 100
) -> None:
    """List stored documents by id."""
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        found = opened.documents(after=after, limit=limit, owner=owner)
    entries = [{key: value for key, value in each.to_json().items() if key != "text"} for each in found]
    is_whole = len(found) < limit
    value = {"kb_id": kb, "documents": entries, "next": None if is_whole else found[-1].id}
    lines = [f"{each.id}  {each.title}".rstrip() for each in found]
    if not is_whole:
        lines.append(f"more: pair docs list --after {found[-1].id!r}")
    session.show(value, *(lines or ["no documents"]), is_answer=True)


def get_document(context: typer.Context, document_id: Id, kb: KbName = DEFAULT_KB) -> None:
    """Print the text of a document."""
    session: CliContext = context.obj
    with session.kb(kb) as opened:
        found = opened.document(document_id)
    session.show_text(found.to_json(), found.text)


def delete_documents(
    context: typer.Context,
    ids: Ids = None,
    kb: KbName = DEFAULT_KB,
    owner: Owner = None,
    filters: Filters = None,
) -> None:
    """Delete documents by id, by who brought them, or by their metadata.

    What is synced is not deleted here: remove its file or its link, and sync.
    """
    session: CliContext = context.obj
    if not ids and owner is None and not filters:
        raise errors.command_line_invalid(
            "nothing to delete was named", hints=["Name ids, --owner or --filter", "pair docs delete --help"]
        )
    with session.asked_kb(kb) as opened:
        report = opened.delete(ids or (), owner=owner, filter=filters or None)
    value = {"kb_id": kb, "deleted": report.deleted, "manifest_version": report.manifest_version}
    session.show(value, f"deleted {render.counted(report.deleted, 'document')} from {kb}")
