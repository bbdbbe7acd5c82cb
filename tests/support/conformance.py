"""Run the official MCP conformance suite against `pair serve`: `make conformance`.

npx downloads the suite, and the version of Node.js that it needs. `conformance.yaml` lists the scenarios that cannot
apply to pair.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from support.served import Served

_SUITE = "@modelcontextprotocol/conformance@0.1.16"
_NODE = "node@22"
_NOT_APPLICABLE = Path(__file__).with_suffix(".yaml")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder) / "project") as server:
        server.ingest({"lunch.md": "Lunch is at one."})
        options = ["--url", f"{server.url}/mcp", "--suite", "all", "--expected-failures", str(_NOT_APPLICABLE)]
        packages = ["--package", _NODE, "--package", _SUITE]
        return subprocess.run(
            ["npx", "--yes", *packages, "conformance", "server", *options], cwd=folder, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
