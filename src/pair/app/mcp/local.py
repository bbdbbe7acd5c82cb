"""The KBs of this machine, for the assistant that started this process: MCP over standard input and output.

Invariants
    Nothing but messages of the protocol is on standard output.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from pair.app.kb_access import KbAccess, KbService
from pair.app.mcp.server import serve_stdio
from pair.auth.rules import ANYBODY, Principal
from pair.settings import Settings
from pair.values import check_kb_id

_LOOK_SECONDS = 0.02


def serve(settings: Settings, kbs: Sequence[str]) -> int:
    """Serve until the client goes or a signal comes, and return the exit status. Raises E212.

    `kbs`: only these, if any are named.
    """
    for kb_id in kbs:
        check_kb_id(kb_id)
    principal = Principal("local", "admin", frozenset(kbs), user=False) if kbs else ANYBODY
    asyncio.run(_serve(KbService(settings), principal))
    return 0


async def _serve(service: KbService, principal: Principal) -> None:
    is_cut_off = await _exchange_until_signal(service, principal)
    service.stop()
    deadline = service.clock.monotonic() + service.settings.server.stop_seconds
    while service.is_busy and service.clock.monotonic() < deadline:  # noqa: ASYNC110 - threads set no event
        await asyncio.sleep(_LOOK_SECONDS)
    is_cut_off |= service.is_busy
    service.close(0)
    if is_cut_off:
        # Python would wait for a thread that waits for input.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


async def _exchange_until_signal(service: KbService, principal: Principal) -> bool:
    """Return whether a signal came, and not the end of input: then a thread still waits for input."""
    loop = asyncio.get_running_loop()
    is_signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_signalled.set)
    exchanging = asyncio.ensure_future(serve_stdio(lambda: KbAccess(service, principal)))
    ending = asyncio.ensure_future(is_signalled.wait())
    await asyncio.wait([exchanging, ending], return_when=asyncio.FIRST_COMPLETED)
    if not exchanging.done():
        exchanging.cancel()
        return True
    ending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    exchanging.result()
    return False
