"""How long does it take from a keystroke in the page to the results on the screen?

    python benchmarks/page.py [--chunks 20000] [--screenshot docs/images/page.png]

A real Chromium types a key every 120 ms into the page of a real server. Each key is timed from its event in the browser
until the results for it, or for a later key, are painted. `--screenshot` serves the handbook of the examples instead,
and saves a picture of a search for the README.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.page_viewer import Viewer, chromium, keystroke_latencies  # noqa: E402
from support.served import Served  # noqa: E402

SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "vas", "pol", "der", "nim", "shu", "gra", "bel")
QUERIES = ["renpol grabel", "the lomi of tuvas", "kader nimshu mi", "vaspol 1234", "how does belren work"]
RARER = [1 / rank for rank in range(1, 3000)]
"""Weights of words: few are common and most are rare, as in any language."""
DOCUMENTS_IN_A_REQUEST = 1000


def word(number: int) -> str:
    return "".join(SYLLABLES[number // len(SYLLABLES) ** place % len(SYLLABLES)] for place in range(1 + number % 3))


def document(number: int) -> dict[str, str]:
    chosen = random.Random(number).choices(range(1, 3000), RARER, k=60)
    words = [word(each) for each in chosen]
    return {"id": f"doc-{number}", "title": f"{words[0]} {words[1]}", "text": " ".join(words).capitalize() + "."}


def filled(server: Served, chunks: int) -> None:
    for first in range(0, chunks, DOCUMENTS_IN_A_REQUEST):
        lines = "\n".join(json.dumps(document(first + number)) for number in range(DOCUMENTS_IN_A_REQUEST))
        headers = {"content-type": "application/x-ndjson"}
        server.request("POST", "/rag/ingest?graph_enabled=false", content=lines, headers=headers).raise_for_status()
    server.post("/rag/compact", {}).raise_for_status()


def measured(chunks: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"PAIR__ENGINE__EMBEDDER": "static", "PAIR__SERVER__SYNC": "false"}
        with Served(Path(folder) / "project", **settings) as server, chromium() as browser:
            filled(server, chunks)
            with Viewer(browser, server.url).page() as page:
                keystroke_latencies(page, ["warm"])
                return keystroke_latencies(page, QUERIES)


def pictured(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        shutil.copytree(ROOT / "examples" / "handbook", project / ".pair" / "knowledge")
        settings = {"PAIR__ENGINE__EMBEDDER": "static"}
        with Served(project, **settings) as server, chromium() as browser:
            while not server.get("/metrics/app").json()["background"]["sync"]["runs"]:
                pass
            query = "how+do+clocks+stay+in+step"
            with Viewer(browser, server.url).page(
                f"#/search?q={query}", viewport={"width": 1280, "height": 800}
            ) as page:
                page.locator(".hit mark").first.wait_for()
                page.reload()  # the first search loads the embedder
                page.locator(".hit mark").first.wait_for()
                path.parent.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--screenshot", type=Path)
    given = parser.parse_args()
    if given.screenshot:
        pictured(given.screenshot)
        return
    samples = measured(given.chunks)
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    print(f"keystroke to painted result, {given.chunks:,} chunks, {len(samples)} keystrokes\n")
    print("| p50 | p95 | slowest |\n| ---: | ---: | ---: |")
    print(f"| {cuts[49]:.0f} ms | {cuts[94]:.0f} ms | {max(samples):.0f} ms |")


if __name__ == "__main__":
    main()
