"""The options that every command has, and what commands do with them: load settings, open a KB, show a result."""

import copy
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pair import __version__, errors
from pair.app import render
from pair.kb.open import DEFAULT_KB, open_kb
from pair.settings import Settings

if TYPE_CHECKING:
    from pair.kb.installer import Installer
    from pair.kb.kb import KnowledgeBase

_SHARED = frozenset({"config", "log_level", "as_json"})
_LEVELS = ("debug", "info", "warning", "error")
_CONFIG_HELP = "Configuration file; else PAIR_CONFIG, ./config.yaml, ./.pair/config.yaml."
_LEVEL_HELP = "Least important messages to show: debug, info, warning or error."
_JSON_HELP = "Print one JSON value on standard output."
_AT_HELP = "As it was in this version: its number, else the version of the package installed then."

TROUBLE_EXIT_STATUS = 2
"""Of commands whose status 1 is an answer."""

KbName = Annotated[str, typer.Option("--kb", metavar="ID", help="Name of the knowledge base.")]
At = Annotated[str | None, typer.Option("--at", metavar="VERSION", help=_AT_HELP)]


class CliContext(typer.Context):
    """What a command is given: the options that all commands share, and what commands do with them."""

    @property
    def config(self) -> str | None:
        return self.meta.get("config")

    @property
    def log_level(self) -> str | None:
        return self.meta.get("log_level")

    @property
    def as_json(self) -> bool:
        return bool(self.meta.get("as_json"))

    def settings(self) -> Settings:
        """Load the settings and start logging; print once what does not count in an untrusted folder."""

        def warn(text: str) -> None:
            if not self.meta.get("has_warned"):
                render.print_note(f"Warning: {text}")
            self.meta["has_warned"] = True

        settings = Settings.load(self.config, on_ignored=warn)
        self._start_logging(settings)
        return settings

    def installer(self) -> "Installer":
        from pair.kb.installer import Installer  # noqa: PLC0415 - a search does not wait for it

        return Installer(self.settings(), observer=render.ProgressObserver(is_quiet=self.as_json))

    def kb(self, kb_id: str, at: str | None = None, *, with_sources: bool = False) -> "KnowledgeBase":
        """Open a KB, or an earlier version of it.

        `with_sources`: the one that is synced also knows when its sources were fetched, and what they hold.
        """
        settings, sources = self.settings(), None
        if with_sources and kb_id == DEFAULT_KB and at is None:
            from pair.kb.sync import SyncService  # noqa: PLC0415 - as in installer

            sources = SyncService(settings)
        return open_kb(kb_id, settings=settings, sources=sources, at=at)

    def show(self, value: Any, *lines: str, is_answer: bool = False) -> None:
        """Print the value for programs, or lines for people: an answer to stdout, a report to stderr."""
        if self.as_json:
            render.print_json(value)
        elif is_answer:
            render.print_result(*lines)
        else:
            render.print_note(*lines)

    def show_text(self, value: Any, text: str) -> None:
        """Print the value for programs, or a text of several lines for people."""
        if self.as_json:
            render.print_json(value)
        else:
            render.print_text(text)

    def show_progress(self, text: str) -> None:
        if not self.as_json:
            render.print_progress(text)

    def _start_logging(self, settings: Settings) -> None:
        level = self.log_level or ("debug" if settings.diagnostics else "warning")
        if level.lower() not in _LEVELS:
            raise errors.command_line_invalid(f"unknown log level: {level}", hints=[f"One of: {', '.join(_LEVELS)}"])
        handler = logging.StreamHandler()
        handler.setFormatter(render.LogFormatter())
        logger = logging.getLogger("pair")
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
        if logging.lastResort is not None:  # prints the warnings of libraries
            logging.lastResort.setFormatter(handler.formatter)


def start(
    context: CliContext,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help=_CONFIG_HELP)] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help=_LEVEL_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON_HELP)] = False,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    if version:
        render.print_result(f"pair {__version__}")
        raise typer.Exit
    context.meta.update(config=config, log_level=log_level, as_json=as_json)


def share_options(root: Any) -> None:
    """Accept the options of `start` behind a command's name too, and give every command a CliContext."""

    def remember(context: CliContext, option: Any, value: Any) -> None:
        if value:
            context.meta[option.name] = value

    root.context_class = CliContext
    for command in _leaves(root):
        command.context_class = CliContext
        for option in root.params:
            if option.name in _SHARED:
                shared = copy.copy(option)
                shared.expose_value = False
                shared.callback = remember
                command.params.append(shared)


def _leaves(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _leaves(command)
        else:
            yield command
