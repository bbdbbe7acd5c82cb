"""`pair serve` with a wrong clock: `python skewed_serve.py SECONDS`.

pair reads the time of day from one clock, which this program sets wrong. The monotonic clock stays right, as on a
machine with a wrong clock.
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
