"""The librarians of a KB: built-in ones, configured ones, and those passed from Python."""

import contextlib
import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from pair import errors
from pair.librarians.contract import Context, Librarian, LibrarianInfo, Response
from pair.librarians.dispatch import ask
from pair.librarians.kb_librarian import Collection, KbLibrarian
from pair.librarians.registry import Entry, Registry
from pair.librarians.routing import IndexEntry, IndexLibrarian, Router
from pair.librarians.rules import Permissions
from pair.settings import Settings
from pair.values import convert_json, redact_url

if TYPE_CHECKING:
    from pair.client.remote_kb import RemoteKnowledgeBase
    from pair.kb.kb import KnowledgeBase

CATALOGUE = "catalogue"
ROUTER = "router"
_KINDS = ("kb", "function", "endpoint", "kind")

Opener = Callable[[str], "KnowledgeBase"]


class ConfiguredLibrarian(msgspec.Struct, frozen=True):
    """An entry of `librarians` in config.yaml. It answers from one of `kb`, `function`, `endpoint`, `kind`."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: str = ""
    description: str = ""
    capabilities: tuple[str, ...] = ()
    kb: str = ""
    function: str = ""
    """`package.module:name`. The folder of config.yaml is searched too."""
    endpoint: str = ""
    token: str = ""
    """The token for the endpoint; `${VARIABLE}` reads it from the environment."""
    kind: str = ""
    """`catalogue` or `router`."""
    team: str = ""
    permissions: Permissions = Permissions()
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The time limit in seconds."""
    delegates_to: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An entry that cannot be used."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ListedLibrarian:
    """A librarian as shown by `pair librarians list`."""

    card: LibrarianInfo
    answers_from: str
    is_public: bool


class KbLibrarians:
    """All librarians that can be asked about a KB. Must be closed: it holds connections and other KBs."""

    def __init__(
        self, kb: "KnowledgeBase", settings: Settings, open_other: Opener, given: Mapping[str, Librarian] | None = None
    ) -> None:
        """Build the registry. `open_other` opens other KBs by name. `given`: librarians from Python, which replace
        configured ones.
        """
        self._stack = contextlib.ExitStack()
        self._kb = kb
        self._settings = settings
        self._open_other = open_other
        self._kbs: dict[str, KnowledgeBase] = {kb.kb_id: kb}
        self._answers_from: dict[str, str] = {}
        self._evidence: dict[str, Callable[[str], float]] = {}
        self.problems: list[Problem] = []
        self.model = None
        if settings.ai.base_url and settings.ai.model:
            from pair.ai.openai import OpenAiLanguageModel  # noqa: PLC0415 - loads the network

            self.model = OpenAiLanguageModel(settings.ai)
            self._stack.callback(self.model.close)
        configured: dict[str, Entry] = {}
        if settings.librarians.entries and not kb.is_past:  # Other librarians know only the current version.
            configured = self._read_configuration()
        given = given or {}
        self.first = self._choose_first((*configured,), given)
        entries = {**self._make_own((*configured,)), **configured}
        for librarian_id, librarian in given.items():
            entries[librarian_id] = Entry(librarian)
            self._answers_from[librarian_id] = "Python"
        self.registry = Registry(entries, policy=settings.librarians)

    def close(self) -> None:
        self._stack.close()

    def list_all(self) -> list[ListedLibrarian]:
        return [
            ListedLibrarian(
                card, self._answers_from.get(card.id, ""), self.registry[card.id].entry.permissions.is_public
            )
            for card in self.registry.cards()
        ]

    def find_kb(self, librarian_id: str) -> str | None:
        """Return the KB that a librarian answers from; None for other librarians."""
        kind, _, name = self._answers_from.get(librarian_id, "").partition(" ")
        return name if kind == "kb" else None

    async def ask(
        self,
        query: str,
        *,
        first: str | None = None,
        context: Context | None = None,
        timeout: float | None = None,
        collection: Collection | None = None,
    ) -> Response:
        """Ask a librarian. With `collection`, the first librarian answers from it alone and cannot delegate."""
        context, librarian_id, registry = context or Context(), first or self.first, self.registry
        if context.ai is None and self.model is not None:
            context = dataclasses.replace(context, ai=self.model)
        if collection is not None:
            entry = registry[librarian_id].entry
            alone = dataclasses.replace(entry, librarian=KbLibrarian(collection), delegates_to=())
            registry = Registry({librarian_id: alone}, policy=self._settings.librarians)
        return await ask(registry, librarian_id, query, context, timeout=timeout)

    # Building the registry

    def _read_configuration(self) -> dict[str, Entry]:
        """Return the configured librarians. A bad entry is reported by name and left out."""
        entries: dict[str, Entry] = {}
        for number, value in enumerate(self._settings.librarians.entries, 1):
            name = str(value.get("id") or f"number {number}") if isinstance(value, Mapping) else f"number {number}"
            try:
                configured = _validate(value)
                if configured.id in entries:
                    raise _UnusableError("an earlier entry has the same id")
                kinds = [kind for kind in _KINDS if getattr(configured, kind)]
                if len(kinds) != 1:
                    has = ", ".join(kinds) or "none"
                    raise _UnusableError(f"it needs exactly one of {', '.join(_KINDS)}, and has {has}")
                entry = self._make_entry(configured)
                Registry({configured.id: entry})  # Refuse an entry that cannot be used.
            except (_UnusableError, errors.PairError) as fault:
                self.problems.append(Problem(name, redact_url(str(fault))))
            else:
                entries[configured.id] = entry
                self._answers_from[configured.id] = f"{kinds[0]} {redact_url(getattr(configured, kinds[0]))}"
        return entries

    def _make_own(self, configured: tuple[str, ...]) -> dict[str, Entry]:
        """Return the librarian of the KB, the librarian of its index, and a router if several are configured."""
        kb_id, collection = self._kb.kb_id, self._kb.collection
        answers_from = {kb_id: f"kb {kb_id}"}
        card = LibrarianInfo(kb_id, kb_id, f"Answers from the knowledge base {kb_id}.")
        own = {kb_id: Entry(KbLibrarian(collection), card, delegates_to=())}
        if self._kb.sources is not None:
            answers_from[CATALOGUE] = "index.txt"
            card = LibrarianInfo(CATALOGUE, "Catalogue", "Names the sources of the index that are likely to answer.")
            own[CATALOGUE] = Entry(IndexLibrarian(self._read_index, collection.embedding), card, delegates_to=())
        if len(configured) > 1:
            answers_from[ROUTER] = "colleagues"
            card = LibrarianInfo(
                ROUTER, "Router", "Delegates a question to the librarians that are likely to answer it."
            )
            own[ROUTER] = Entry(Router(collection.embedding, self._evidence), card, delegates_to=configured)
        self._answers_from = {**answers_from, **self._answers_from}
        return own

    def _make_entry(self, configured: ConfiguredLibrarian) -> Entry:
        return Entry(
            self._make_librarian(configured),
            LibrarianInfo(
                configured.id,
                configured.name,
                configured.description,
                configured.capabilities,
                configured.team,
                redact_url(configured.endpoint),
            ),
            configured.permissions,
            configured.timeout,
            # If KB librarians delegated unanswered questions, each such question would reach all of them.
            () if configured.kb and configured.delegates_to is None else configured.delegates_to,
        )

    def _make_librarian(self, configured: ConfiguredLibrarian) -> Librarian:
        embedding = self._kb.collection.embedding
        if configured.kb:
            kb = self._kbs.get(configured.kb)
            if kb is None:
                kb = self._kbs[configured.kb] = self._open_other(configured.kb)
                self._stack.callback(kb.close)
            librarian = KbLibrarian(kb.collection)
            self._evidence[configured.id] = librarian.estimate
            return librarian
        if configured.function:
            return self._import_function(configured.function)
        if configured.endpoint:
            from pair.librarians.remote import RemoteLibrarian  # noqa: PLC0415 - loads the network

            return RemoteLibrarian(configured.endpoint, token=configured.token)
        if configured.kind == ROUTER:
            return Router(embedding, self._evidence)
        if configured.kind == CATALOGUE:
            self._answers_from.setdefault(CATALOGUE, "index.txt")
            return IndexLibrarian(self._read_index, embedding)
        raise _UnusableError(f"unknown kind: {configured.kind} (valid: {CATALOGUE}, {ROUTER})")

    def _import_function(self, address: str) -> Librarian:
        module_name, _, name = address.partition(":")
        if not module_name or not name:
            raise _UnusableError(f"function must be package.module:name, not {address}")
        beside = str((self._settings.config_path or Path("config.yaml")).absolute().parent)
        if beside not in sys.path:
            sys.path.insert(0, beside)
        try:
            librarian: Librarian = getattr(importlib.import_module(module_name), name)
        except Exception as fault:
            raise _UnusableError(f"cannot import {address}: {type(fault).__name__}: {fault}") from fault
        return librarian

    def _read_index(self) -> list[IndexEntry]:
        if self._kb.sources is None:
            return []
        return [IndexEntry(*described) for described in self._kb.sources.current_texts().describe_sources()]

    def _choose_first(self, configured: tuple[str, ...], given: Mapping[str, Librarian]) -> str:
        """Return the default librarian: a router, else the only configured one, else that of the KB."""
        for librarian_id in configured:
            if self._answers_from[librarian_id] == f"kind {ROUTER}" and librarian_id not in given:
                return librarian_id
        if len(configured) > 1 or ROUTER in configured or ROUTER in given:
            return ROUTER
        return configured[0] if len(configured) == 1 else self._kb.kb_id


def connect_to_librarian(settings: Settings, librarian_id: str, kb_id: str) -> "RemoteKnowledgeBase":
    """Return the KB that a configured remote librarian answers from, on its server. Raises E605, E621."""
    from pair.client import connect  # noqa: PLC0415 - loads the network

    for value in settings.librarians.entries:
        if isinstance(value, Mapping) and value.get("id") == librarian_id and value.get("endpoint"):
            configured = _validate(value)
            server, _, name = configured.endpoint.rpartition("/librarians/")
            if not server or not name.endswith("/ask"):
                raise errors.cannot_open_citation(librarian_id, configured.endpoint)
            return connect(server, kb_id=kb_id, key=configured.token)
    raise errors.no_such_remote_librarian(librarian_id)


class _UnusableError(Exception):
    """The reason why an entry cannot be used, as shown to the user."""


def _validate(value: object) -> ConfiguredLibrarian:
    if not isinstance(value, Mapping):
        raise _UnusableError("it is not a mapping of keys to values")
    valid = ConfiguredLibrarian.__struct_fields__
    for key in value:
        if key not in valid:
            nearest = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.5)
            raise _UnusableError(f"unknown key: {key}" + (f" (did you mean {nearest[0]}?)" if nearest else ""))
    if missing := re.findall(r"\$\{(\w+)\}", str(value.get("token", ""))):
        raise _UnusableError(f"not set in the environment: {', '.join(missing)}")
    try:
        return convert_json(dict(value), ConfiguredLibrarian, strict=False)
    except msgspec.ValidationError as fault:
        reason, _, place = str(fault).partition(" - at `$.")
        raise _UnusableError(f"{place.rstrip('`')}: {reason}" if place else reason) from fault
