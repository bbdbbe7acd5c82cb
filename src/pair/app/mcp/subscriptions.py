"""Notifications for assistants when a KB gets a new version (`subscriptions/listen`).

Invariants
    A stream names only resources that the caller may read. The versions of its KBs are checked every few seconds.
    The number of streams is limited. A server that stops ends them.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    SubscriptionFilter,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from pair import errors
from pair.app.kb_access import KbAccess
from pair.app.mcp.tools import Address
from pair.kb.kb import KnowledgeBase

_CHECK_SECONDS = 2.0
_CHECKS_PER_LIST = 15
"""The list of KBs is checked less often: it lists the whole store."""
_MOST_STREAMS = 256
_MOST_ADDRESSES = 100


class KbSubscriptions:
    """The open streams of a server."""

    def __init__(self) -> None:
        self._streams = 0

    async def listen(
        self, access: KbAccess, context: ServerRequestContext, asked: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve one stream until the client or the server ends it. Raises E601, E603."""
        uris = asked.notifications.resource_subscriptions or ()
        if len(uris) > _MOST_ADDRESSES:
            raise errors.request_invalid(f"at most {_MOST_ADDRESSES} resources")
        for uri in uris:
            access.use_kb(Address.parse(uri).kb)
        if self._streams >= _MOST_STREAMS:
            raise MCPError(INTERNAL_ERROR, "Too many open streams")
        bus = InMemorySubscriptionBus()
        handler = ListenHandler(bus)
        watch = _KbWatch(access, {uri: Address.parse(uri) for uri in uris})
        await access.service.read(watch.find_changes)  # report changes from now on
        self._streams += 1
        watching = asyncio.ensure_future(_tell_changes(watch, asked.notifications, bus, handler))
        try:
            return await handler(context, asked)
        finally:
            self._streams -= 1
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _tell_changes(
    watch: "_KbWatch", asked: SubscriptionFilter, bus: InMemorySubscriptionBus, handler: ListenHandler
) -> None:
    """Publish an event for each resource that changes and, if the client wants it, for new and deleted KBs."""
    access = watch.access
    names = await _list_names(access) if asked.resources_list_changed else []
    checks = 0
    while not access.service.is_stopping:
        await asyncio.sleep(_CHECK_SECONDS)
        checks += 1
        for uri in await access.service.read(watch.find_changes):
            await bus.publish(ResourceUpdated(uri))
        if asked.resources_list_changed and checks % _CHECKS_PER_LIST == 0:
            listed = await _list_names(access)
            if listed != names:
                await bus.publish(ResourcesListChanged())
            names = listed
    handler.close()


@dataclass
class _KbWatch:
    """The last seen versions of some KBs, and the documents in them that a client watches."""

    access: KbAccess
    addresses: Mapping[str, Address]
    _versions: dict[str, str] = field(default_factory=dict)
    _contents: dict[str, str] = field(default_factory=dict)

    def find_changes(self) -> list[str]:
        """Return the addresses whose resources changed since the last call. An unchanged KB is not read."""
        names = dict.fromkeys(address.kb for address in self.addresses.values())
        versions = {kb: self._read(kb, lambda opened: opened.version()[1]) for kb in names}
        changed = []
        for uri, address in self.addresses.items():
            if address.at or versions[address.kb] == self._versions.get(address.kb):
                continue
            content = versions[address.kb]
            if address.document_id:
                content = self._read(address.kb, functools.partial(_read_hash, address.document_id))
            if self._contents.get(uri) != content:
                changed.append(uri)
            self._contents[uri] = content
        self._versions = versions
        return changed

    def _read(self, kb: str, work: Callable[[KnowledgeBase], str]) -> str:
        """Return the result of the work; "" for a KB or a document that does not exist."""
        try:
            return self.access.service.kbs.read(kb, None, work)
        except errors.NotFoundError:
            return ""


def _read_hash(document_id: str, kb: KnowledgeBase) -> str:
    return kb.document(document_id).content_hash


async def _list_names(access: KbAccess) -> list[str]:
    stored = await access.service.read(access.service.kbs.list_stored)
    return [name for name in stored if access.may_use(name)]
