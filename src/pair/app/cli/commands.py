"""All commands in one tree, run with errors turned into text or JSON and an exit status."""

import logging
import traceback
from collections.abc import Sequence
from typing import Any

import typer
import typer.core
from typer.exceptions import TyperException

from pair import errors
from pair.app import render
from pair.app.cli import (
    ask,
    context,
    diff,
    docs,
    doctor,
    evaluate,
    export,
    fsck,
    ingest,
    inspect,
    install,
    keys,
    librarians,
    lock,
    maintain,
    mcp,
    package,
    publish,
    reembed,
    reproduce,
    search,
    serve,
    sync,
    trust,
    versions,
)

_ANSWERING = frozenset({"diff", "reproduce"})


def build() -> Any:
    """The command tree; options that all commands share are accepted before and after the command's name."""
    app = typer.Typer(
        name="pair",
        help="A knowledge base that installs like a package.",
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(context.start)
    app.command("install", epilog=install.INSTALL_EXAMPLE)(install.install)
    app.command("update", epilog=install.UPDATE_EXAMPLE)(install.update)
    app.command("package", epilog=package.EXAMPLE)(package.package)
    app.command("publish", epilog=publish.EXAMPLE)(publish.publish_release)
    app.command("lock", epilog=lock.EXAMPLE)(lock.lock)
    app.command("verify", epilog=inspect.VERIFY_EXAMPLE)(inspect.verify)
    app.command("info", epilog=inspect.INFO_EXAMPLE)(inspect.info)
    app.command("sync", epilog=sync.SYNC_EXAMPLE)(sync.sync)
    app.command("status", epilog=sync.STATUS_EXAMPLE)(sync.status)
    app.command("ingest", epilog=ingest.EXAMPLE)(ingest.ingest)
    app.command("search", epilog=search.EXAMPLE)(search.search)
    app.command("ask", epilog=ask.ASK_EXAMPLE)(ask.ask)
    app.command("cite", epilog=ask.CITE_EXAMPLE)(ask.cite)
    app.command("eval", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
    app.command("compact", epilog=maintain.COMPACT_EXAMPLE)(maintain.compact)
    app.command("reembed", epilog=reembed.EXAMPLE)(reembed.reembed)
    app.command("versions", epilog=versions.VERSIONS_EXAMPLE)(versions.versions)
    app.command("rollback", epilog=versions.ROLLBACK_EXAMPLE)(versions.rollback)
    app.command("diff", epilog=diff.EXAMPLE)(diff.diff)
    app.command("reproduce", epilog=reproduce.EXAMPLE)(reproduce.reproduce)
    app.command("gc", epilog=maintain.GC_EXAMPLE)(maintain.collect)
    app.command("export", epilog=export.EXPORT_EXAMPLE)(export.export)
    app.command("import", epilog=export.IMPORT_EXAMPLE)(export.import_file)
    app.command("fsck", epilog=fsck.EXAMPLE)(fsck.fsck)
    app.command("serve", epilog=serve.EXAMPLE)(serve.serve)
    app.command("mcp", epilog=mcp.EXAMPLE)(mcp.mcp)
    app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)
    app.command("trust", epilog=trust.EXAMPLE)(trust.trust)
    app.add_typer(_librarians(), name="librarians")
    app.add_typer(_documents(), name="docs")
    app.add_typer(_cache(), name="cache")
    app.add_typer(_keys(), name="keys")
    for other_name in ("init-kb", "init_kb"):
        app.command(other_name, hidden=True, epilog=sync.SYNC_EXAMPLE.replace("pair sync", f"pair {other_name}"))(
            sync.sync
        )
    root = typer.main.get_command(app)
    context.share_options(root)
    return root


def _nothing() -> None:
    pass


def _librarians() -> typer.Typer:
    group = typer.Typer(help="Who can be asked.", rich_markup_mode=None)
    group.command("list", epilog=librarians.LIST_EXAMPLE)(librarians.list_librarians)
    group.command("check", epilog=librarians.CHECK_EXAMPLE)(librarians.check_librarians)
    return group


def _documents() -> typer.Typer:
    group = typer.Typer(help="List, show and delete stored documents.", rich_markup_mode=None)
    group.command("list", epilog=docs.LIST_EXAMPLE)(docs.list_documents)
    group.command("get", epilog=docs.GET_EXAMPLE)(docs.get_document)
    group.command("delete", epilog=docs.DELETE_EXAMPLE)(docs.delete_documents)
    return group


def _cache() -> typer.Typer:
    group = typer.Typer(help="Care for fetched shards.", rich_markup_mode=None)
    group.command("sweep", epilog=maintain.SWEEP_EXAMPLE)(maintain.sweep)
    return group


def _keys() -> typer.Typer:
    group = typer.Typer(help="Keys for the server.", rich_markup_mode=None)
    group.command("add", epilog=keys.ADD_EXAMPLE)(keys.add_key)
    group.command("list", epilog=keys.LIST_EXAMPLE)(keys.list_keys)
    group.command("revoke", epilog=keys.REVOKE_EXAMPLE)(keys.revoke_key)
    return group


def run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        status = build().main(list(arguments) or ["--help"], prog_name="pair", standalone_mode=False)
    except errors.PairError as error:
        return _fail(error, as_json=as_json)
    except TyperException as fault:
        return max(_fail(_usage_error(fault), as_json=as_json), _least_status(fault))
    except Exception as bug:  # noqa: BLE001 - the outermost boundary of the command line
        return _report_bug(bug, as_json=as_json)
    if status == errors.INTERRUPTED_EXIT_STATUS:
        render.print_note("interrupted: nothing is half done, and the same command goes on where this one stopped")
    return status if isinstance(status, int) else 0


def _fail(error: errors.PairError, *, as_json: bool) -> int:
    render.print_error(error, as_json=as_json)
    logging.getLogger("pair").debug("failed", exc_info=error)
    return error.exit_status


def _least_status(fault: TyperException) -> int:
    """Of commands whose exit status 1 is an answer."""
    command = getattr(getattr(fault, "ctx", None), "info_name", "")
    return context.TROUBLE_EXIT_STATUS if command in _ANSWERING else 0


def _usage_error(fault: TyperException) -> errors.UsageError:
    context: Any = getattr(fault, "ctx", None)
    command = context.command_path if context is not None else "pair"
    return errors.command_line_invalid(fault.format_message(), hints=[f"{command} --help"])


def _report_bug(bug: Exception, *, as_json: bool) -> int:
    message = f"{type(bug).__name__}: {bug}"
    if as_json:
        render.print_json({"error": {"code": "INTERNAL_ERROR", "message": message, "recoverable": False}})
    else:
        trace = "".join(traceback.format_exception(bug)).split("\n")
        render.print_note(f"Error: this is a bug in pair: {message}", "", *trace)
    return errors.BUG_EXIT_STATUS
