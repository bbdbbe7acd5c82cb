"""The tree of commands, and the boundary where errors become text or JSON and an exit status."""

import importlib
import inspect
import logging
import traceback
from collections.abc import Sequence
from typing import Any

import typer
import typer.core
from typer.exceptions import TyperException

from pair import errors
from pair.app import render
from pair.app.cli import context

_STATUS_1_IS_AN_ANSWER = frozenset({"diff", "reproduce"})
_COMMANDS: dict[str, str] = {
    "install": "install.install",
    "update": "install.update",
    "package": "install.package",
    "publish": "install.publish_release",
    "lock": "install.lock",
    "verify": "install.verify",
    "info": "install.info",
    "sync": "sync.sync",
    "status": "sync.status",
    "ingest": "documents.ingest",
    "search": "search.search",
    "ask": "search.ask",
    "cite": "search.cite",
    "eval": "maintenance.evaluate",
    "compact": "maintenance.compact",
    "reembed": "maintenance.reembed",
    "versions": "versions.versions",
    "rollback": "versions.rollback",
    "diff": "versions.diff",
    "reproduce": "versions.reproduce",
    "gc": "maintenance.collect",
    "export": "documents.export",
    "import": "documents.import_file",
    "fsck": "maintenance.fsck",
    "serve": "serve.serve",
    "mcp": "serve.mcp",
    "doctor": "maintenance.doctor",
    "trust": "serve.trust",
    "librarians list": "search.list_librarians",
    "librarians check": "search.check_librarians",
    "docs list": "documents.list_documents",
    "docs get": "documents.get_document",
    "docs delete": "documents.delete_documents",
    "cache sweep": "maintenance.sweep",
    "keys add": "serve.add_key",
    "keys list": "serve.list_keys",
    "keys revoke": "serve.revoke_key",
}
"""Module and function of each, in the order of `pair --help`."""
_OTHER_NAMES = {"init-kb": "sync", "init_kb": "sync"}
_GROUPS = {
    "librarians": "Who can be asked.",
    "docs": "List, show and delete stored documents.",
    "cache": "Care for fetched shards.",
    "keys": "Keys for the server.",
}


def build(arguments: Sequence[str] = ()) -> Any:
    """Return the command tree; shared options are accepted before and after the name of a command.

    `arguments`: of a command line, for a tree that has only the command that it names, if it begins with one.
    """
    app = typer.Typer(
        name="pair",
        help="A knowledge base that installs like a package.",
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(context.start)
    groups = {"": app} | {name: typer.Typer(help=text, rich_markup_mode=None) for name, text in _GROUPS.items()}
    named = [path for path in (*_COMMANDS, *_OTHER_NAMES) if arguments and path.split()[0] == arguments[0]]
    for path in named or (*_COMMANDS, *_OTHER_NAMES):
        group, _, name = path.rpartition(" ")
        usual = _OTHER_NAMES.get(path, path)
        module, _, function = _COMMANDS[usual].partition(".")
        command = getattr(importlib.import_module(f"pair.app.cli.{module}"), function)
        help_text, _, examples = (inspect.getdoc(command) or "").partition("\n\nExamples:\n")
        examples = examples.replace(f"pair {usual}", f"pair {path}")
        # `\b` keeps the lines of the examples apart.
        groups[group].command(name, help=help_text, epilog=f"Examples:\n\n\b\n{examples}", hidden=path != usual)(
            command
        )
    for name in {path.split()[0] for path in named} & groups.keys() if named else _GROUPS:
        app.add_typer(groups[name], name=name)
    root = typer.main.get_command(app)
    context.share_options(root)
    return root


def run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        status = build(arguments).main(list(arguments) or ["--help"], prog_name="pair", standalone_mode=False)
    except errors.PairError as error:
        return _fail(error, as_json=as_json)
    except TyperException as fault:
        where: Any = getattr(fault, "ctx", None)
        command = where.command_path if where is not None else "pair"
        usage = errors.command_line_invalid(fault.format_message(), hints=[f"{command} --help"])
        status = _fail(usage, as_json=as_json)
        return context.TROUBLE_EXIT_STATUS if getattr(where, "info_name", "") in _STATUS_1_IS_AN_ANSWER else status
    except Exception as bug:  # noqa: BLE001 - the outermost boundary of the command line
        message = f"{type(bug).__name__}: {bug}"
        if as_json:
            render.print_json({"error": {"code": "INTERNAL_ERROR", "message": message, "recoverable": False}})
        else:
            trace = "".join(traceback.format_exception(bug)).split("\n")
            render.print_note(f"Error: this is a bug in pair: {message}", "", *trace)
        return errors.BUG_EXIT_STATUS
    if status == errors.INTERRUPTED_EXIT_STATUS:
        render.print_note("interrupted: nothing is half done, and the same command goes on where this one stopped")
    return status if isinstance(status, int) else 0


def _fail(error: errors.PairError, *, as_json: bool) -> int:
    render.print_error(error, as_json=as_json)
    logging.getLogger("pair").debug("failed", exc_info=error)
    return error.exit_status
