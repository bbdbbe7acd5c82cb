"""The options that all commands share, and the functions that load settings, open a KB and show a result."""

import copy
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from pair import __version__, errors
from pair.app import render

if TYPE_CHECKING:
    from pair.kb.installer import Installer
    from pair.kb.kb import KnowledgeBase
    from pair.settings import Settings

_SHARED = frozenset({"config", "log_level", "as_json"})
_METAVARS = {"int": "N", "float": "X", "str": "TEXT"}
_LEVELS = ("debug", "info", "warning", "error")
_CONFIG_HELP = "Read this configuration file. [PAIR_CONFIG, ./config.yaml or ./.pair/config.yaml]"
_LEVEL_HELP = "Log messages from this level on: debug, info, warning or error."
_JSON_HELP = "Print the result as one JSON value."
_AT_HELP = "Use an earlier version: its number, or the version of the installed package."

KbName = Annotated[str, Option("--kb", metavar="ID", help="Id of the knowledge base.")]
At = Annotated[str | None, Option("--at", metavar="VERSION", help=_AT_HELP)]


class CliContext(typer.Context):
    """The context of a command: the shared options, the settings, and how results are shown."""

    @property
    def config(self) -> str | None:
        return self.meta.get("config")

    @property
    def log_level(self) -> str | None:
        return self.meta.get("log_level")

    @property
    def as_json(self) -> bool:
        return bool(self.meta.get("as_json"))

    def settings(self) -> "Settings":
        """Load the settings and start logging; warn once about keys that an untrusted folder may not set."""
        from pair.settings import Settings  # noqa: PLC0415 - `pair --help` does not wait for it

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

        `with_sources`: give the synced KB the dates and the catalogue of its sources.
        """
        from pair.kb.open import DEFAULT_KB, open_kb  # noqa: PLC0415 - as above

        settings, sources = self.settings(), None
        if with_sources and at is None and (kb_id == DEFAULT_KB or settings.kb.collections):
            from pair.kb.sync import sync_service, synced_kbs  # noqa: PLC0415 - as above

            sources = sync_service(settings, kb_id) if kb_id in synced_kbs(settings) else None
        return open_kb(kb_id, settings=settings, sources=sources, at=at)

    def show(self, value: Any, *lines: render.Line, is_answer: bool = False) -> None:
        """Print the value as JSON, or the lines as text: an answer to stdout, a report to stderr."""
        if self.as_json:
            render.print_json(value)
        elif is_answer:
            render.print_result(*lines)
        else:
            render.print_note(*lines)

    def show_text(self, value: Any, text: str) -> None:
        """Print the value as JSON, or the text."""
        if self.as_json:
            render.print_json(value)
        else:
            render.print_text(text)

    def progress(self, noun: str) -> render.Progress:
        return render.Progress(noun, is_quiet=self.as_json)

    def _start_logging(self, settings: "Settings") -> None:
        level = self.log_level or ("debug" if settings.diagnostics else "warning")
        if level.lower() not in _LEVELS:
            raise errors.command_line_invalid(
                f"Cannot use log level {level!r}.", hints=[f"Use one of: {', '.join(_LEVELS)}"]
            )
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
    config: Annotated[str | None, Option("--config", metavar="FILE", help=_CONFIG_HELP)] = None,
    log_level: Annotated[str | None, Option("--log-level", metavar="LEVEL", help=_LEVEL_HELP)] = None,
    as_json: Annotated[bool, Option("--json", help=_JSON_HELP)] = False,
    version: Annotated[bool, Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    if version:
        render.print_json({"version": __version__}) if as_json else render.print_result(f"pair {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise errors.command_line_invalid("Cannot run pair: missing command.", hints=["pair --help"])
    context.meta.update(config=config, log_level=log_level, as_json=as_json)


class LazyCoercion:
    """A conversion that passes values through: typer would convert with pydantic, which takes 80 ms to load."""

    def __init__(self, parameter: Any) -> None:
        self._convert = parameter.get_runtime_param

    @staticmethod
    def use(parameters: list[Any]) -> list[Any]:
        for parameter in parameters:
            if "get_runtime_param" not in vars(parameter):
                coercion = LazyCoercion(parameter)
                parameter.get_runtime_param = lambda coercion=coercion: coercion
        return parameters

    def coerce(self, value: Any, param: Any, ctx: typer.Context) -> Any:
        kind, items = param.type_descriptor, value if isinstance(value, (list, tuple)) else (value,)
        if all(isinstance(item, str) and item.isprintable() for item in items):  # an invalid character is refused
            if kind.annotation == list[str]:
                return list(items)
            if kind.annotation is str or value in (kind.choices or ()):
                return value
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return value if value == param.default else self._convert().coerce(value, param, ctx)


def share_options(root: Any) -> None:
    """Accept the shared options after a command's name too, and pass a CliContext to every command."""

    def remember(context: CliContext, option: Any, value: Any) -> None:
        if value:
            context.meta[option.name] = value

    root.context_class = CliContext
    for command in _leaves(root):
        command.context_class = CliContext
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: ""  # the help shows the name alone
            elif parameter.metavar is None:
                parameter.metavar = _METAVARS.get(parameter.bare_type())
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
