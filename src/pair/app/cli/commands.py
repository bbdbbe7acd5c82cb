"""The tree of commands, and the boundary where errors become text or JSON and an exit status."""

import importlib
import inspect
import logging
import os
import shlex
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import typer
import typer.core
from typer.exceptions import TyperException

from pair import errors
from pair.app import render
from pair.app.cli import context

_STATUS_1_IS_AN_ANSWER = frozenset({"diff", "reproduce", "test", "check"})
_TROUBLE_EXIT_STATUS = 2
_COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Get a knowledge base": {
        "install": ("install.install", "Install a knowledge base from a folder, package or release."),
        "update": ("install.update", "Update an installed knowledge base."),
        "lock": ("install.lock", "Record exactly what is installed, or check it."),
        "verify": ("install.verify", "Check a package or an installed knowledge base."),
        "info": ("install.info", "Describe a package or an installed knowledge base."),
    },
    "Keep it current": {
        "add": ("collections.add", "Add a folder, site or other collection to sync."),
        "collections": ("collections.collections", "List the collections of this project."),
        "remove": ("collections.remove", "Remove a collection from the configuration."),
        "sync": ("sync.sync", "Index the files and links of this project."),
        "ingest": ("documents.ingest", "Store files, folders or JSON lines."),
        "status": ("sync.status", "Show what is installed, synced, pending and stored."),
        "docs": ("", "List, count, show and delete stored documents."),
        "docs list": ("documents.list_documents", "List stored documents by id."),
        "docs facets": ("documents.list_facets", "Count the values of a metadata key."),
        "docs get": ("documents.get_document", "Print the text of a document."),
        "docs delete": ("documents.delete_documents", "Delete documents by id, owner or metadata."),
    },
    "Search and ask": {
        "search": ("search.search", "Find passages that match a query."),
        "ask": ("search.ask", "Answer a question and name the sources."),
        "cite": ("search.cite", "Print the passage that a citation points to."),
        "librarians": ("", "List and check librarians."),
        "librarians list": ("search.list_librarians", "List the librarians and what they know."),
        "librarians check": ("search.check_librarians", "Ask every librarian a test question."),
    },
    "Serve": {
        "serve": ("serve.serve", "Serve knowledge bases over HTTP, with a web page."),
        "mcp": ("serve.mcp", "Serve knowledge bases to an assistant over MCP."),
        "skill": ("serve.write_skill", "Write a skill and a plugin for a knowledge base."),
        "keys": ("", "Add, list and revoke API keys of the server."),
        "keys add": ("serve.add_key", "Create an API key and print it once."),
        "keys list": ("serve.list_keys", "List the API keys, without their secrets."),
        "keys revoke": ("serve.revoke_key", "Revoke an API key at once."),
    },
    "Versions": {
        "versions": ("versions.versions", "List the versions of a knowledge base."),
        "rollback": ("versions.rollback", "Restore an earlier version."),
        "diff": ("versions.diff", "Compare two versions, folders or packages."),
        "reproduce": ("versions.reproduce", "Repeat the search behind a stored answer."),
        "check": ("versions.check", "Check the receipt of an answer."),
    },
    "Maintain": {
        "doctor": ("maintenance.doctor", "Check the configuration and every part it names."),
        "trust": ("serve.trust", "Trust the configuration of this folder."),
        "fsck": ("maintenance.fsck", "Verify every stored byte, and repair damage."),
        "export": ("documents.export", "Write a knowledge base to one file."),
        "import": ("documents.import_file", "Load an exported file."),
        "reembed": ("maintenance.reembed", "Recompute all vectors with another embedder."),
        "compact": ("maintenance.compact", "Merge and re-cluster shards."),
        "gc": ("maintenance.collect", "Delete shards that no version uses."),
        "cache": ("", "Manage the cache of downloaded shards."),
        "cache sweep": ("maintenance.sweep", "Evict shards from the cache."),
    },
    "Develop": {
        "package": ("install.package", "Package a folder as a knowledge base."),
        "publish": ("install.publish_release", "Publish a package and add it to a release index."),
        "test": ("versions.run_tests", "Ask the test questions of a knowledge base."),
        "eval": ("maintenance.evaluate", "Measure retrieval quality on a judged set of questions."),
    },
}
"""By heading of `pair --help`: the module, function and summary of each command; groups have no function."""
_LISTED = {path: row for rows in _COMMANDS.values() for path, row in rows.items()}
_OTHER_NAMES = {"init-kb": "sync", "init_kb": "sync"}
_INSTEAD = {
    "index": ("pair add {} && pair sync", "pair ingest {}"),
    "init": ("pair add {} && pair sync", "pair ingest {}", "pair install --source {}"),
    "query": ("pair search {}",),
    "find": ("pair search {}",),
    "list": ("pair docs list",),
    "ls": ("pair docs list",),
    "delete": ("pair docs delete {}",),
    "rm": ("pair docs delete {}",),
}
"""Commands to suggest for names that other programs use."""


class HelpfulCommand(typer.core.TyperCommand):
    """A command whose help shows the examples before the details."""

    def get_params(self, ctx: Any) -> list[Any]:
        return context.LazyCoercion.use(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        summary, _, details = (self.help or "").partition("\n\n")
        for text in (summary, self.epilog, details):
            if text:
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(text)
        self.format_options(ctx, formatter)


class CommandGroup(typer.core.TyperGroup):
    """A group whose help lists the commands under their headings, each with its whole summary."""

    def get_params(self, ctx: Any) -> list[Any]:
        return context.LazyCoercion.use(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        visible = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, visible))
        for heading, commands in _COMMANDS.items():
            rows = [(f"{name:<{width}}", visible[name].short_help) for name in commands if name in visible]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def build(words: Iterable[str] | None = None) -> Any:
    """Return the command tree; shared options are accepted before and after the name of a command.

    `words`: load only the commands that these words name. The help lists the others, but they cannot run.
    """
    named = None if words is None else {*words}
    root_group = _make_group("A knowledge base that installs like a package.", cls=CommandGroup)
    root_group.callback(invoke_without_command=True)(context.start)
    groups = {"": root_group}
    for path, (function, summary) in _LISTED.items():
        parent, _, name = path.rpartition(" ")
        if named is not None and path.split()[0] not in named:
            if not parent:
                root_group.command(name, short_help=summary)(_stand_in)
        elif function:
            _add_command(groups[parent], name, path)
        else:
            groups[name] = _make_group(summary)
            root_group.add_typer(groups[name], name=name, short_help=summary)
    for name, path in _OTHER_NAMES.items():
        if named is None or name in named:
            _add_command(root_group, name, path, hidden=True)
    root = typer.main.get_command(root_group)
    context.share_options(root)
    return root


def _make_group(help_text: str, cls: type[typer.core.TyperGroup] = typer.core.TyperGroup) -> typer.Typer:
    return typer.Typer(
        name="pair",
        cls=cls,
        help=help_text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add_command(group: typer.Typer, name: str, path: str, *, hidden: bool = False) -> None:
    place, summary = _LISTED[path]
    module, _, function = place.partition(".")
    command = getattr(importlib.import_module(f"pair.app.cli.{module}"), function)
    text, _, examples = (inspect.getdoc(command) or "").partition("\n\nExamples:\n")
    if hidden:
        examples = examples.replace(f"pair {path}", f"pair {name}")
    # `\b` keeps the lines of the examples apart.
    epilog = f"Examples:\n\n\b\n{examples}"
    group.command(name, cls=HelpfulCommand, help=text, short_help=summary, epilog=epilog, hidden=hidden)(command)


def _stand_in() -> None:
    """Return a placeholder for a command that is not loaded."""


def run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    completed = "COMP_WORDS", "_TYPER_COMPLETE_ARGS"  # where a shell puts the words that it wants completed
    words = " ".join(os.environ.get(name, "") for name in completed).split()  # noqa: TID251 - not a setting
    try:
        status = build([*arguments, *words]).main(
            list(arguments) or ["--help"], prog_name="pair", standalone_mode=False
        )
    except errors.PairError as error:
        return _fail(error, arguments)
    except TyperException as fault:
        return _fail(_explain(fault, arguments), arguments)
    except Exception as bug:  # noqa: BLE001 - the outermost boundary of the command line
        if not _follows_an_interrupt(bug):
            return _report_bug(bug, as_json)
        status = errors.INTERRUPTED_EXIT_STATUS
    if status == errors.INTERRUPTED_EXIT_STATUS:
        render.print_note("Interrupted. Nothing is half done; run the same command again to continue.")
    return status if isinstance(status, int) else 0


def _follows_an_interrupt(fault: BaseException) -> bool:
    """Return whether the fault was raised while a KeyboardInterrupt unwound the stack.

    Ctrl-C in the moment a thread hands over a lock makes Python release that lock twice, and a RuntimeError
    replaces the KeyboardInterrupt.
    """
    context = fault.__context__
    return isinstance(context, KeyboardInterrupt) or (context is not None and _follows_an_interrupt(context))


def _report_bug(bug: Exception, as_json: bool) -> int:
    message = f"{type(bug).__name__}: {bug}"
    if as_json:
        render.print_json({"error": {"code": "INTERNAL_ERROR", "message": message, "recoverable": False}})
    else:
        trace = "".join(traceback.format_exception(bug)).split("\n")
        render.print_note(f"Error: This is a bug in pair: {message}", "", *trace)
    return errors.BUG_EXIT_STATUS


def _explain(fault: TyperException, arguments: Sequence[str]) -> errors.PairError:
    """Return the error for a command line that the parser refused."""
    where: Any = getattr(fault, "ctx", None)
    path = where.command_path if where is not None else "pair"
    if path == "pair" and arguments[0] in _INSTEAD:
        hints = [hint.format(shlex.join(arguments[1:]) or "./docs") for hint in _INSTEAD[arguments[0]]]
        return errors.command_line_invalid(f"Cannot run {arguments[0]!r}: pair has no such command.", hints=hints)
    message = fault.format_message()
    return errors.command_line_invalid(
        f"Cannot run {path}: {message[:1].lower()}{message[1:]}", hints=[f"{path} --help"]
    )


def _fail(error: errors.PairError, arguments: Sequence[str]) -> int:
    render.print_error(error, as_json="--json" in arguments)
    logging.getLogger("pair").debug("failed", exc_info=error)
    command = next((word for word in arguments if word in _LISTED), "")
    is_ambiguous = error.exit_status == 1 and command in _STATUS_1_IS_AN_ANSWER
    return _TROUBLE_EXIT_STATUS if is_ambiguous else error.exit_status
