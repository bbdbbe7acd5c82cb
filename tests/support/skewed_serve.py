"""`pair serve` on a machine whose clock is wrong: `python skewed_serve.py SECONDS`.

All of pair asks one clock for the time of day, and this is the one that is set. How fast time passes stays right, as it
does on such a machine.
"""

import datetime
import sys

from pair.app.cli.entry import main
from pair.clock import SystemClock


def set_clock(seconds: float) -> None:
    right = SystemClock.now
    SystemClock.now = lambda self: right(self) + datetime.timedelta(seconds=seconds)  # type: ignore[method-assign]


if __name__ == "__main__":
    set_clock(float(sys.argv[1]))
    sys.argv = ["pair", "serve"]
    sys.exit(main())
