"""How fast are download, install, update and start, compared with plain tools that do the same?

    python benchmarks/sources.py [--rounds N]

Both sides are measured in turns in one run. The benchmark prints the ratio of their medians and its limit. Both sides
fetch from one server in a separate process.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pair.kb.installer import Installer
from pair.packages.install import InstallRequest
from pair.packages.rules import SourcesSettings
from pair.settings import Settings

MEGABYTE = 1_000_000
DOWNLOAD_BYTES = 500 * MEGABYTE
FILES, FILES_BYTES = 20_000, 200 * MEGABYTE

SERVER = """
import http.server, os, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def copyfile(self, source, out):
        out.flush()
        at, size = 0, os.fstat(source.fileno()).st_size
        while at < size:
            at += os.sendfile(self.connection.fileno(), source.fileno(), at, size - at)
    def log_message(self, *arguments): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def medians(rounds: int, *questions: Callable[[], float]) -> list[float]:
    """Return the median seconds of each measurement, taken in turns so that both sides have the same noise."""
    times: list[list[float]] = [[] for _ in questions]
    for _ in range(rounds):
        for asked, question in zip(times, questions, strict=True):
            asked.append(question())
    return [statistics.median(asked) for asked in times]


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def show(question: str, ratio: float, limit: str, detail: str) -> None:
    print(f"{question:<58} {ratio:6.2f} ×   ({limit})   {detail}", flush=True)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.terminate()
        server.wait()


# Fetches a URL as the cache does, in a separate process, to measure its memory.
FETCH = """
import resource, sys, time
from pathlib import Path
from pair.clock import SystemClock
from pair.packages.download import Downloader
from pair.packages.rules import SourcesSettings
from pair.network import RetryPolicy
from pair.web.http_client import HttpClient
from pair.kb.installer import SilentObserver
web = HttpClient(timeout_seconds=30, retry_policy=RetryPolicy(0, 1), clock=SystemClock())
began = time.perf_counter()
downloader = Downloader(web, SourcesSettings(), SilentObserver())
done = downloader.fetch(sys.argv[1], Path(sys.argv[2]), sha256=None, known=None)
assert done is not None and done.verified
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def bench_download(folder: Path, rounds: int) -> None:
    archive = folder / "served" / "kb.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened, opened.open("data.bin", "w") as entry:
        for _ in range(DOWNLOAD_BYTES // MEGABYTE):
            entry.write(os.urandom(MEGABYTE))
    with archive.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    archive.with_name("kb.zip.sha256").write_text(checksum)
    part, copy = folder / "kb.part", folder / "kb.curl"
    memory: list[int] = []

    def fetch_with_pair() -> float:
        for path in folder.glob("kb.part*"):
            path.unlink()
        command = [sys.executable, "-c", FETCH, url, str(part)]
        seconds, kilobytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        memory.append(int(kilobytes))
        return float(seconds)

    def fetch_with_curl() -> float:
        copy.unlink(missing_ok=True)
        command = ["curl", "--silent", "--fail", "--write-out", "%{time_total}", "--output", str(copy), url]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    with serving(archive.parent) as address:
        url = f"{address}/kb.zip"
        fetch_with_curl()
        ours, theirs = medians(rounds, fetch_with_pair, fetch_with_curl)
    detail = f"pair {DOWNLOAD_BYTES / MEGABYTE / ours:,.0f} MB/s, curl {DOWNLOAD_BYTES / MEGABYTE / theirs:,.0f} MB/s"
    show("download + hash + verify of 500 MB: throughput to curl's", theirs / ours, "at least 0.7", detail)
    print(f"{'resident memory of that download':<58} {max(memory) / 1000:6.0f} MB  (at most 120 MB)", flush=True)
    shutil.rmtree(archive.parent)


def make_folder(folder: Path) -> Path:
    dice = random.Random(2)
    kb = folder / "kb"
    for number in range(FILES):
        path = kb / f"section-{number % 200}" / f"page-{number}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(FILES_BYTES // FILES))
    return kb


def walk(folder: str) -> int:
    """Walk through a folder with the minimum of calls."""
    seen, waiting = 0, [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    seen += entry.stat(follow_symlinks=False).st_size
    return seen


def bench_install(folder: Path, rounds: int) -> None:
    kb = make_folder(folder)
    target, copy = folder / "target" / "kb", folder / "copy"
    desk = Installer(Settings(sources=SourcesSettings(cache_dir=str(folder / "cache"))))
    source = desk.resolve(str(kb), offline=True)

    def install() -> float:
        shutil.rmtree(target, ignore_errors=True)
        return timed(lambda: desk.apply(InstallRequest("install", target), source))

    def install_by_command() -> float:
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "pair", "install", str(target), "--source", str(kb), "--json"]
        return timed(lambda: subprocess.run(command, check=True, capture_output=True))

    def copy_with_cp() -> float:
        shutil.rmtree(copy, ignore_errors=True)
        return timed(lambda: subprocess.run(["cp", "-r", kb, copy], check=True))

    copy_with_cp()
    ours, command, theirs = medians(rounds, install, install_by_command, copy_with_cp)
    detail = f"pair {ours:.2f} s, cp -r {theirs:.2f} s, the whole command {command / theirs:.2f} ×"
    show("install of 20,000 files, 200 MB, from a folder: to cp -r", ours / theirs, "at most 2.5", detail)

    def update() -> float:
        return timed(lambda: desk.apply(InstallRequest("update", target), source))

    def update_by_command() -> float:
        command = [sys.executable, "-m", "pair", "update", str(target), "--json"]
        return timed(lambda: subprocess.run(command, check=True, capture_output=True))

    update()
    ours, command, theirs = medians(rounds * 3, update, update_by_command, lambda: timed(lambda: walk(str(kb))))
    detail = f"pair {ours * 1000:.0f} ms, walk {theirs * 1000:.0f} ms, the whole command {command / theirs:.1f} ×"
    show("update with nothing to do: to walking the source", ours / theirs, "at most 3", detail)


def bench_start(rounds: int) -> None:
    def run(*command: str) -> Callable[[], float]:
        return lambda: timed(lambda: subprocess.run(command, check=True, capture_output=True))

    pair = str(Path(sys.executable).with_name("pair"))
    ours, theirs = medians(rounds * 10, run(pair, "--version"), run(sys.executable, "-c", "pass"))
    detail = f"pair {ours * 1000:.0f} ms, python {theirs * 1000:.0f} ms"
    show("pair --version: to python -c pass", ours / theirs, "at most 3", detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each question is asked")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        bench_start(rounds)
        bench_install(Path(name), rounds)
        bench_download(Path(name), rounds)


if __name__ == "__main__":
    main()
