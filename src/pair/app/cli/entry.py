"""The command `pair`. `pair --version` answers before anything else is loaded."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        from pair import __version__  # noqa: PLC0415 - the fast path

        sys.stdout.write(f"pair {__version__}\n")
        return 0
    from pair.app.cli.commands import run  # noqa: PLC0415 - loads the command line proper

    return run(given)
