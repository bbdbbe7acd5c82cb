"""The command `pair`. `pair --version` runs before anything else is loaded."""

import faulthandler
import gc
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    gc.set_threshold(50_000)  # Loading modules creates many objects, and none of them is garbage.
    if sys.stderr is not None:
        faulthandler.enable(2)  # When a native library ends the process, the traceback says where.
    # BLAS threads wait in busy loops, and no matrix product here is large enough for two threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # noqa: TID251 - not a setting
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        from pair import __version__  # noqa: PLC0415 - the fast path

        sys.stdout.write(f"pair {__version__}\n")
        return 0
    from pair.app.cli.commands import run  # noqa: PLC0415 - loads the command line proper

    return run(given)
