"""pair bench serve"""

from pathlib import Path
from typing import Annotated, Any

import typer

from pair import errors
from pair.app.cli.session import Session
from pair.app.load_plan import Asking, Plan
from pair.wiring import DEFAULT_KB

SERVE_EXAMPLE = """Examples:

\b
  pair bench serve                                   the server of this project, for ten seconds
  pair bench serve http://127.0.0.1:8081 --rate 200  200 queries a second, whether answers come or not
  pair bench serve --queries questions.txt --unique --json"""

Url = Annotated[str | None, typer.Argument(metavar="[URL]", help="Address of the server, instead of server.host.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=600, metavar="N", help="How long.")]
Connections = Annotated[
    int, typer.Option("--connections", min=1, max=1000, metavar="N", help="Clients, each with one query at a time.")
]
Rate = Annotated[
    float,
    typer.Option("--rate", min=0, max=100_000, metavar="R", help="Queries a second; 0 for as many as can be."),
]
Kb = Annotated[str, typer.Option("--kb", metavar="ID", help="Knowledge base to ask.")]
Queries = Annotated[
    str | None,
    typer.Option("--queries", metavar="FILE", help="One a line, as text or JSON; else the titles of documents."),
]
Unique = Annotated[bool, typer.Option("--unique", help="Never ask the same twice: no answer comes from memory.")]
KeyFile = Annotated[str | None, typer.Option("--key-file", metavar="FILE", help="File with a key for the server.")]


def bench_serve(
    context: typer.Context,
    url: Url = None,
    seconds: Seconds = 10.0,
    connections: Connections = 8,
    rate: Rate = 0.0,
    kb: Kb = DEFAULT_KB,
    queries: Queries = None,
    unique: Unique = False,
    key_file: KeyFile = None,
) -> None:
    """Load a running server with queries, and tell how fast it answers.

    Prints how long answers took for the client and for the server itself, how many came in a second, and how they
    ended. With --rate, a query counts from when it was due. Ctrl-C tells what was seen so far.
    """
    session: Session = context.obj
    asking = Asking(kb, Plan(seconds, connections, rate), queries, unique)
    seen, is_interrupted = session.load_server(url, _read_key(key_file), asking)
    value = {**seen.to_json(), "interrupted": is_interrupted}
    session.show(value, _told(value), is_answer=True)


def _read_key(path: str | None) -> str:
    """Raises E010."""
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else "it is not a text"
        raise errors.storage_failed(path, reason, is_reading=True) from fault


def _told(value: dict[str, Any]) -> str:
    lines = [f"{value['answers']:,} answers in {value['seconds']:.1f} s: {value['per_second']:,.1f} a second", ""]
    lines.append("              p50        p90        p99        max")
    for name, figures in (("client", value), ("server", value["server"])):
        shown = (figures[key] for key in ("p50_ms", "p90_ms", "p99_ms", "max_ms"))
        lines.append(f"{name:<8}" + "".join("          -" if each is None else f"{each:>8.2f} ms" for each in shown))
    lines.append("")
    lines += [f"{count:,} x {outcome}" for outcome, count in value["outcomes"].items()]
    if value["not_sent"]:
        lines.append(f"{value['not_sent']:,} were due and not sent: all connections waited for answers")
    if value["interrupted"]:
        lines.append("interrupted")
    return "\n".join(lines)
