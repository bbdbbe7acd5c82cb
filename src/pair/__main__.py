"""Run the command line: `python -m pair`."""

import sys

from pair.app.cli.entry import main

sys.exit(main())
