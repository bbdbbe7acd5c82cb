"""pair doctor"""

import typer

from pair.app import render
from pair.app.cli.context import CliContext

EXAMPLE = """Examples:

\b
  pair doctor                    every part that is configured, tried once
  pair doctor --json"""

_SIGNS = {"ok": "ok    ", "note": "note  ", "failed": "FAILED"}


def doctor(context: typer.Context) -> None:
    """Check configuration, store, lease, cache, embedder, model and server, and say what to do.

    Exits with the status of the first check that failed.
    """
    session: CliContext = context.obj
    checks = []
    for check in session.examine():
        checks.append(check)
        if not session.as_json:
            code = f" ({check.code})" if check.code else ""
            render.print_result(f"{_SIGNS[check.state]} {check.name:<15} {check.message}{code}")
            for hint in check.hints:
                render.print_result(f"{'':<23}→ {hint}")
    failed = [check for check in checks if check.state == "failed"]
    if session.as_json:
        session.show({"ok": not failed, "checks": [check.to_json() for check in checks]}, "", is_answer=True)
    if failed:
        raise typer.Exit(failed[0].exit_status)
