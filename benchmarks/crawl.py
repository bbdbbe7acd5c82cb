"""How close is the time of a crawl to the minimum that the latency of the site allows?

    python benchmarks/crawl.py [--pages N]

The server is a separate process that answers each request after 50 ms. The first crawl fetches all pages; the second
one gets "not modified" for each of them.
"""

import argparse
import contextlib
import subprocess
import sys
import time

from pair.clock import SystemClock
from pair.sources.contract import Cursor, Item, Unchanged
from pair.sources.site import SiteLimits, SiteSource
from pair.web.pages import PageClient

LATENCY_SECONDS = 0.05
LIMIT = 1.3
FANOUT = 20

SERVER = """
import http.server, sys, time
count, fanout, latency = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
words = "<p>" + "The quick brown fox jumps over the lazy dog. " * 20 + "</p>"
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        time.sleep(latency)
        name = self.path.strip("/") or "0"
        is_page = name.isdigit() and int(name) < count
        is_known = is_page and self.headers.get("If-None-Match") == f'"{name}"'
        first = int(name) * fanout + 1 if is_page else 0
        links = "".join(f'<a href="/{each}">{each}</a>' for each in range(first, first + fanout) if each < count)
        body = f"<h1>{name}</h1>{links}{words * 10}".encode() if is_page and not is_known else b""
        status = 304 if is_known else 200 if is_page else 404
        head = f"HTTP/1.1 {status} -\\r\\nContent-Type: text/html\\r\\nETag: \\"{name}\\"\\r\\n"
        self.wfile.write(f"{head}Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=2_000, help="number of pages of the site")
    pages = parser.parse_args().pages
    command = [sys.executable, "-c", SERVER, str(pages), str(FANOUT), str(LATENCY_SECONDS)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    client = PageClient(timeout_seconds=30, max_bytes=10**6, allow_private_addresses=True, clock=SystemClock())
    try:
        assert server.stdout is not None
        limits = SiteLimits(max_pages=pages + 1)
        site = SiteSource(f"http://127.0.0.1:{int(server.stdout.readline())}/", client, limits, SystemClock())
        cursor = None
        for name, kind in (("first crawl", Item), ("second crawl, nothing changed", Unchanged)):
            began, used = time.perf_counter(), time.process_time()
            events = list(site.read(cursor))
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
            assert sum(isinstance(event, kind) for event in events) == pages
            (cursor,) = (event.value for event in events if isinstance(event, Cursor))
            bound = pages * LATENCY_SECONDS / limits.connections
            detail = (
                f"{seconds:.1f} s for {pages:,} pages, {limits.connections} connections, {cpu_seconds:.1f} s of CPU"
            )
            print(f"{name:<40} {seconds / bound:6.2f} ×   (≤ {LIMIT})   {detail}", flush=True)
    finally:
        with contextlib.closing(client):
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
