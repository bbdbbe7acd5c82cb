"""What every command needs: shared options, settings, logging, and how to print."""

import copy
import dataclasses
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pair import errors
from pair.app import render
from pair.app.mcp.client_config import ClientEntry, own_command
from pair.app.terminal import escape_line, escape_text
from pair.kb.ingest import Ingestion, ingest
from pair.kb.installer import Installer
from pair.kb.open import DEFAULT_KB, open_kb, temporary_kb
from pair.kb.sync import SyncService
from pair.kb.trust import key_file
from pair.settings import Settings

if TYPE_CHECKING:
    from pair.auth.keys import KeyFile
    from pair.client.remote_kb import RemoteKnowledgeBase
    from pair.engine.write.writer import WriteReport
    from pair.kb.diff import ChangedDocument, DiffReport
    from pair.kb.doctor import DoctorCheck
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.kb.reproduce import ReproduceReport
    from pair.librarians.citations import CitedPlace
    from pair.librarians.contract import Response
    from pair.values import Document

_SHARED = frozenset({"config", "log_level", "as_json"})
TROUBLE_EXIT_STATUS = 2
_LEVELS = ("debug", "info", "warning", "error")
_CONFIG_HELP = "Configuration file; else PAIR_CONFIG, ./config.yaml, ./.pair/config.yaml."
_LEVEL_HELP = "Least important messages to show: debug, info, warning or error."
_JSON_HELP = "Print one JSON value on standard output."


_Result = TypeVar("_Result")
Progress = render.QuietObserver | render.SyncProgress


@dataclass(frozen=True)
class AskOptions:
    """Who is asked: without a librarian, whoever the settings say, or the shelf of the KB that is named."""

    kb_id: str | None = None
    librarian: str | None = None
    at: str | None = None
    """The version of the KB: only its shelf knows the past."""

    @property
    def first(self) -> str | None:
        return self.librarian or self.kb_id or (DEFAULT_KB if self.at is not None else None)


@dataclass
class CliContext:
    """Options shared by all commands, as given so far."""

    config: str | None = None
    log_level: str | None = None
    as_json: bool = False
    has_warned: bool = False
    """Whether it was said that the folder's configuration is not trusted."""

    def desk(self) -> Installer:
        settings = self.settings()
        return Installer(settings, observer=render.QuietObserver() if self.as_json else render.TerminalObserver())

    def sync_desk(self, progress: Progress) -> SyncService:
        settings = self.settings()
        return SyncService(settings, observer=progress)

    def sync_progress(self) -> Progress:
        return render.QuietObserver() if self.as_json else render.SyncProgress()

    def settings(self) -> Settings:
        settings = self.load_settings()
        self._start_logging(settings)
        return settings

    def load_settings(self) -> Settings:
        """Load the settings, and say once what does not count because the folder is not trusted."""
        return Settings.load(self.config, on_ignored=self._warn)

    def _warn(self, text: str) -> None:
        if not self.has_warned:
            render.print_note(f"Warning: {text}")
        self.has_warned = True

    def kb(self, kb_id: str, at: str | None = None) -> "KnowledgeBase":
        """`at`: as it was in this version."""
        return open_kb(kb_id, settings=self.settings(), at=at)

    def ingest(
        self, kb_id: str, documents: "Iterator[Document]", how: Ingestion, *, graph: bool | None
    ) -> "WriteReport":
        """`graph`: whether what is stored gets one; None for what the settings say."""
        settings = self.settings()
        return ingest(kb_id, documents, settings if graph is None else _with_graph(settings, graph), how)

    def asked_kb(self, kb_id: str, at: str | None = None) -> "KnowledgeBase":
        """With its sources: the KB that is synced knows when they were last fetched, and what they would bring back."""
        settings = self.settings()
        sources = SyncService(settings) if kb_id == DEFAULT_KB and at is None else None
        return open_kb(kb_id, settings=settings, sources=sources, at=at)

    def ask(
        self, question: str, who: "AskOptions", timeout: float | None, on_text: Callable[[str], None] | None
    ) -> "Response":
        from pair.librarians.contract import Context  # noqa: PLC0415 - only commands that ask wait for it

        with self.asked_kb(who.kb_id or DEFAULT_KB, who.at) as kb:
            asked = kb.ask(question, first=who.first, context=Context(on_text=on_text), timeout=timeout)
            return self.wait_for(asked)

    def cited_place(self, citation_id: str) -> "CitedPlace | None":
        from pair.librarians.citations import cited_place  # noqa: PLC0415 - as above

        return cited_place(citation_id)

    def cited_kb(self, place: "CitedPlace") -> "KnowledgeBase | RemoteKnowledgeBase":
        if not place.librarian:
            return self.kb(place.kb_id)
        from pair.kb.librarians import connect_to_librarian  # noqa: PLC0415 - loads the network

        return connect_to_librarian(self.settings(), place.librarian, place.kb_id)

    def wait_for(self, work: "Coroutine[Any, Any, _Result]") -> "_Result":
        import asyncio  # noqa: PLC0415 - only commands that ask wait for it

        return asyncio.run(work)

    @contextmanager
    def front_desk(self) -> "Iterator[KbLibrarians]":
        from pair.kb.librarians import KbLibrarians  # noqa: PLC0415 - loads asyncio

        with self.asked_kb(DEFAULT_KB) as kb:
            settings = self.load_settings()
            desk = KbLibrarians(kb, settings, lambda other: open_kb(other, settings=settings))
            try:
                yield desk
            finally:
                desk.close()

    def examine(self) -> "Iterator[DoctorCheck]":
        from pair.kb.doctor import examine  # noqa: PLC0415 - loads what it examines

        return examine(self.settings)

    def serve(self, host: str | None, port: int | None) -> int:
        """Until it is told to stop; the exit status."""
        from pair.app.http.serving import serve  # noqa: PLC0415 - loads the server

        settings = self.settings()
        usual = settings.server
        policy = dataclasses.replace(usual, host=host or usual.host, port=usual.port if port is None else port)
        level = self.log_level or ("debug" if settings.diagnostics else "info")
        return serve(dataclasses.replace(settings, server=policy), level)

    def mcp(self, kbs: Sequence[str], *, allow_write: bool) -> int:
        """Over standard input and output, until the client goes; the exit status."""
        from pair.app.local_assistant import serve  # noqa: PLC0415 - loads the SDK

        settings = self.settings()
        policy = dataclasses.replace(settings.server, mcp_write=allow_write or settings.server.mcp_write)
        return serve(dataclasses.replace(settings, server=policy), kbs)

    def assistant_entry(self, project: str, kbs: Sequence[str], *, allow_write: bool) -> ClientEntry:
        """What starts `pair mcp` there, as a configuration says it."""
        config = ["--config", os.path.abspath(self.config)] if self.config else []  # noqa: PTH100 - keeps links
        own = own_command(sys.argv[0])
        given = [part for kb in kbs for part in ("--kb", kb)] + (["--allow-write"] if allow_write else [])
        return ClientEntry(own[0], (*own[1:], "mcp", "--project", project, *config, *given))

    def compared(self, a: str, b: str | None, kb_id: str) -> "AbstractContextManager[DiffReport]":
        from pair.kb.diff import open_diff  # noqa: PLC0415 - loads the engine

        return open_diff(self.settings(), a, b, kb_id)

    def changed_documents(
        self, found: "DiffReport", *, texts: bool, most_lines: int | None
    ) -> "Iterator[ChangedDocument]":
        from pair.kb.diff import DiffRequest  # noqa: PLC0415 - as above

        return found.describe(found.ids(), DiffRequest(texts=texts, most_lines=most_lines))

    def reproduced(self, file: str, kb_id: str | None, at: str | None, package: str | None) -> "list[ReproduceReport]":
        from pair.kb.reproduce import Where, read_answer, reproduce  # noqa: PLC0415 - as above

        where = Where(kb_id, at, None if package is None else Path(package))
        return [reproduce(self.settings(), each, where) for each in read_answer(Path(file))]

    @contextmanager
    def trouble(self) -> Iterator[None]:
        """For commands whose exit status 1 is an answer: errors that would exit so exit with 2."""
        try:
            yield
        except errors.PairError as error:
            if error.exit_status != 1:
                raise
            render.print_error(error, as_json=self.as_json)
            raise typer.Exit(TROUBLE_EXIT_STATUS) from error

    def key_file(self) -> "KeyFile":
        settings = self.settings()
        return key_file(settings)

    def temporary_kb(self) -> "AbstractContextManager[KnowledgeBase]":
        settings = self.settings()
        return temporary_kb(settings)

    def show(self, value: Any, *lines: str, is_answer: bool = False) -> None:
        """The value for programs, or lines for people: an answer to standard output, a report to standard error."""
        if self.as_json:
            render.print_json(value)
        elif is_answer:
            render.print_result(*lines)
        else:
            render.print_note(*lines)

    def show_text(self, value: Any, text: str) -> None:
        """The value for programs, or a text of several lines for people."""
        if self.as_json:
            render.print_json(value)
        else:
            render.print_text(text)

    def _start_logging(self, settings: Settings) -> None:
        level = self.log_level or ("debug" if settings.diagnostics else "warning")
        if level.lower() not in _LEVELS:
            raise errors.command_line_invalid(f"unknown log level: {level}", hints=[f"One of: {', '.join(_LEVELS)}"])
        handler = logging.StreamHandler()
        handler.setFormatter(_FieldFormatter("%(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("pair")
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
        if logging.lastResort is not None:  # prints what libraries warn about
            logging.lastResort.setFormatter(handler.formatter)
        # Retries are told by the observer, in plain words.
        logging.getLogger("stamina").setLevel(logging.ERROR)


def _with_graph(settings: Settings, wanted: bool) -> Settings:
    """A graph that is wanted is made as it is configured, or from the text when none is."""
    kind = settings.engine.graph if settings.engine.graph != "off" else "text"
    engine = dataclasses.replace(settings.engine, graph=kind if wanted else "off")
    return dataclasses.replace(settings, engine=engine)


class _FieldFormatter(logging.Formatter):
    """Appends the fields of a log record as key=value, all on one line; a traceback is indented below it."""

    _STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging names it
        fields = {key: value for key, value in vars(record).items() if key not in self._STANDARD}
        told = [super().formatMessage(record), *(f"{key}={value!r}" for key, value in fields.items())]
        return escape_line(" ".join(told))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as above
        return textwrap.indent(escape_text(super().formatException(ei)), "  ")


def start(
    context: typer.Context,
    config: Annotated[str | None, typer.Option("--config", metavar="FILE", help=_CONFIG_HELP)] = None,
    log_level: Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help=_LEVEL_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help=_JSON_HELP)] = False,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from pair import __version__  # noqa: PLC0415 - as in entry.py

        render.print_result(f"pair {__version__}")
        raise typer.Exit
    context.obj = CliContext(config, log_level, as_json)


def share_options(root: Any) -> None:
    """Accept the options of `start` behind a command's name too."""

    def remember(context: Any, option: Any, value: Any) -> None:
        if value:
            setattr(context.find_object(CliContext), option.name, value)

    for command in _leaves(root):
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
