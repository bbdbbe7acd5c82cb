"""The KBs of this machine, for the assistant that started this process."""

import asyncio
import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Sequence

from pair.app.http.context import RequestCall, Service
from pair.app.http.mcp import CallersLibrary
from pair.app.http.request_body import BodyShare, RequestBody
from pair.app.mcp.stdio import serve as exchange
from pair.auth.rules import ANYBODY, Principal
from pair.engine.rules import check_kb_id
from pair.settings import Settings

_LOOK_SECONDS = 0.02


def serve(settings: Settings, kbs: Sequence[str]) -> int:
    """Until the client goes or the process is told to end; the exit status. Raises E212.

    `kbs`: only these, if any are named.
    """
    for kb_id in kbs:
        check_kb_id(kb_id)
    # Nobody comes in from outside, whatever a server of the same project would ask for.
    policy = dataclasses.replace(settings.server, host="127.0.0.1", auth="none")
    service = Service(dataclasses.replace(settings, server=policy))
    local = Principal("local", "admin", frozenset(kbs), user=False) if kbs else ANYBODY
    asyncio.run(_serve(service, local))
    return 0


async def _serve(service: Service, local: Principal) -> None:
    nothing = RequestBody(None, {}, BodyShare(service.body_memory))

    def library() -> CallersLibrary:
        return CallersLibrary(service, RequestCall({}, nothing, secrets.token_hex(16), {}, local))

    is_cut_off = await exchange(library)
    service.stop()
    deadline = service.clock.monotonic() + service.policy.stop_seconds
    while service.is_at_work and service.clock.monotonic() < deadline:  # noqa: ASYNC110 - threads tell nobody
        await asyncio.sleep(_LOOK_SECONDS)
    is_cut_off |= service.is_at_work
    service.close(0)
    if is_cut_off:
        # Python would wait for a thread that waits for input.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
