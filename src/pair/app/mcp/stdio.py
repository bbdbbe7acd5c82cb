"""The protocol over standard input and output, until the client goes or the process is told to end.

Invariants
    Nothing but messages of the protocol is on standard output.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from mcp.server.stdio import stdio_server

from pair.app.mcp.contract import Library
from pair.app.mcp.server import server_for


async def serve(library: Callable[[], Library]) -> bool:
    """Whether it was told to end, rather than left: then a thread still waits for input.

    `library` is called for each request.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    serving = asyncio.ensure_future(_exchange(library))
    ending = asyncio.ensure_future(told.wait())
    await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        serving.cancel()
        return True
    ending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ending
    serving.result()
    return False


async def _exchange(library: Callable[[], Library]) -> None:
    server = server_for(library)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
