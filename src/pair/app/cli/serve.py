"""pair serve"""

from typing import Annotated

import typer

from pair.app.cli.context import CliContext

EXAMPLE = """Examples:

\b
  pair serve                                      on http://127.0.0.1:8080, for this machine
  pair serve --port 9000 --log-level warning
  PAIR__SERVER__AUTH=keys pair serve --host 0.0.0.0    for those who have a key: pair keys add"""

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on, instead of server.host.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on, instead of server.port; 0 for any.")
]


def serve(context: typer.Context, host: Host = None, port: Port = None) -> None:
    """Serve knowledge bases over HTTP, and keep the default one in sync.

    Every route is described in /openapi.json. SIGTERM finishes what is under way.
    """
    session: CliContext = context.obj
    raise typer.Exit(session.serve(host, port))
