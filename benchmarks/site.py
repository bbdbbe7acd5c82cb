"""What does a published site transfer, how fast does it answer in Chromium, and are its answers those of pair?

    python benchmarks/site.py [--chunks 100000] [--pagefind] [--texts FILE.jsonl] [--judged FOLDER --set NAME ...]

Without `--judged`: a site of random documents, or of those in `--texts` (title, text), searched in Chromium from a host
on loopback. It prints the bytes and requests of the first and of later answers, and the time from a keystroke to the
painted result. With `--judged`: a site for each judged set; every query is compared with an exact search of the KB, and
nDCG@10 of both is printed. `--pagefind` builds an index of Pagefind over the same documents (npm installs it in a
temporary folder) and asks it the same queries.
"""

import argparse
import contextlib
import html
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from playwright.sync_api import Page  # noqa: E402

from pair import Document, KnowledgeBase  # noqa: E402
from pair.evaluation.measure import ndcg, read_judged_set  # noqa: E402
from pair.kb.open import temporary_kb  # noqa: E402
from pair.settings import Settings  # noqa: E402
from support.page_viewer import Viewer, chromium, keystroke_latencies  # noqa: E402
from support.sites import search_in, wait_until_ready  # noqa: E402
from support.static_host import TYPES, StaticHost  # noqa: E402

SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "vas", "pol", "der", "nim", "shu", "gra", "bel", "tor", "ise", "wan", "kel")
RARER = [1 / rank for rank in range(1, 20_000)]
PAGE = ROOT / "src" / "pair" / "kb" / "site_page"
PAGEFIND = "pagefind@1.6.0"
HITS = 10
TOLERANCE = 1e-4


def word(number: int) -> str:
    return "".join(SYLLABLES[number // len(SYLLABLES) ** place % len(SYLLABLES)] for place in range(2 + number % 3))


def make_documents(count: int) -> Iterator[Document]:
    for number in range(count):
        chosen = random.Random(number).choices(range(1, 20_000), RARER, k=90)
        text = "The " + " ".join(map(word, chosen)) + "."
        yield Document(f"{number:06}.md", text, title=f"{word(chosen[0])} {word(chosen[1])}")


def read_texts(path: Path, count: int) -> Iterator[Document]:
    with path.open() as lines:
        for number, line in zip(range(count), lines, strict=False):
            value = json.loads(line)
            yield Document(str(value.get("id", number)), value["text"], title=value.get("title", ""))


def write_site(kb: KnowledgeBase, folder: Path) -> dict[str, Any]:
    (folder / "data").mkdir(parents=True)

    def put(name: str, content: bytes) -> None:
        (folder / "data" / name).write_bytes(content)

    data = kb.backup.write_site(put)
    about = {"name": "benchmark", "version": "1", "description": "", "key": "", "previous": [], **data.description}
    (folder / "site.json").write_text(json.dumps(about))
    (folder / "documents.html").write_text("<!doctype html><title>Documents</title>")
    for path in PAGE.iterdir():
        shutil.copy(path, folder / path.name)
    return about


@dataclass
class Transfer:
    """The requests of a page to a host since the last call of `take`."""

    host: StaticHost

    def take(self) -> tuple[int, int]:
        """Return requests and bytes, and reset the counts."""
        asked = [size for path, _, size in self.host.requests if path not in IGNORED]
        self.host.requests.clear()
        return len(asked), sum(asked)


IGNORED = {"sw.js", "favicon.ico", "icon.svg", "app.webmanifest"}


def describe(values: Sequence[float]) -> str:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return f"p50 {cuts[49]:,.0f}, p95 {cuts[94]:,.0f}, most {max(values):,.0f}"


def measure_site(folder: Path, queries: Sequence[str]) -> None:
    firsts = []
    with StaticHost(folder) as host, chromium() as browser:
        transfer = Transfer(host)
        for query in queries[:10]:
            with Viewer(browser, host.url).page(service_workers="block", allowed=("Service Worker",)) as page:
                page.locator("#signed", has_text="signed").wait_for()
                loaded = [size for path, _, size in host.requests if not path.startswith("data/")]
                wait_until_ready(page)
                search_in(page, [query], limit=5)
                asked = [size for path, _, size in host.requests if path.startswith("data/")]
                firsts.append((len(asked), sum(asked)))
                transfer.take()
        print(f"the page itself: {len(loaded)} requests, {sum(loaded):,} bytes")
        print(f"first answer, requests: {describe([requests for requests, _ in firsts])}")
        print(f"first answer, bytes: {describe([size for _, size in firsts])}")
        with Viewer(browser, host.url).page(service_workers="block", allowed=("Service Worker",)) as page:
            search_in(page, [queries[-1]], limit=5)
            transfer.take()
            later, times = [], []
            for query in queries[:100]:
                began = time.perf_counter()
                search_in(page, [query], limit=5)
                times.append((time.perf_counter() - began) * 1000)
                later.append(transfer.take())
            print(f"later answers, requests: {describe([requests for requests, _ in later])}")
            print(f"later answers, bytes: {describe([size for _, size in later])}")
            print(f"later answers, ms until they are in Python: {describe(times)}")
            samples = keystroke_latencies(page, list(queries[:5]))
            samples = keystroke_latencies(page, list(queries[:5]))
            print(f"keystroke to painted result once warm, ms: {describe(samples)} ({len(samples)} keystrokes)")


# ── Pagefind ───────────────────────────────────────────────────────────────────────────────────────


def index_with_pagefind(documents: Sequence[Document], folder: Path) -> Path:
    """Write a page for each document, and the index of Pagefind over them."""
    pages = folder / "pages"
    pages.mkdir(parents=True)
    for number, document in enumerate(documents):
        title, text = html.escape(document.title), html.escape(document.text)
        body = f"<main data-pagefind-body><h1>{title}</h1><p>{text}</p></main>"
        (pages / f"{number}.html").write_text(f'<!doctype html><html lang="en"><title>{title}</title>{body}')
    (folder / "package.json").write_text("{}")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", PAGEFIND], cwd=folder, check=True)
    began = time.perf_counter()
    subprocess.run(["npx", "pagefind", "--site", "pages"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    size = sum(path.stat().st_size for path in (pages / "pagefind").rglob("*") if path.is_file())
    print(f"Pagefind: indexed in {time.perf_counter() - began:.1f} s, {size:,} bytes")
    (pages / "index.html").write_text("<!doctype html><title>Pagefind</title><main id=main><h1>Pagefind</h1></main>")
    return pages


ASK_PAGEFIND = """async ([query, limit]) => {
  window.pagefind ??= await import("./pagefind/pagefind.js");
  const found = await window.pagefind.search(query);
  const shown = await Promise.all(found.results.slice(0, limit).map((result) => result.data()));
  return shown.map((data) => Number(/(\\d+)\\.html/.exec(data.raw_url ?? data.url)[1]));
}"""


def measure_pagefind(pages: Path, queries: Sequence[str]) -> list[list[int]]:
    found, later, times = [], [], []
    TYPES[".wasm"] = "application/wasm"
    with StaticHost(pages) as host, chromium() as browser:
        transfer = Transfer(host)
        page = open_plain(browser, host)
        for number, query in enumerate(queries):
            transfer.take()
            began = time.perf_counter()
            found.append(page.evaluate(ASK_PAGEFIND, [query, HITS if len(queries) > 100 else 5]))
            times.append((time.perf_counter() - began) * 1000)
            later.append(transfer.take())
            if not number:
                print(f"Pagefind, first answer: {later[0][0]} requests, {later[0][1]:,} bytes")
    print(f"Pagefind, later answers, requests: {describe([requests for requests, _ in later[1:]])}")
    print(f"Pagefind, later answers, bytes: {describe([size for _, size in later[1:]])}")
    print(f"Pagefind, later answers, ms until they are in Python: {describe(times[1:])}")
    return found


def open_plain(browser: Any, host: StaticHost) -> Page:
    page: Page = browser.new_page()
    page.goto(f"{host.url}/index.html")
    return page


# ── judged sets ────────────────────────────────────────────────────────────────────────────────────


def measure_judged(folder: Path, with_pagefind: bool, most: int | None) -> None:
    judged = read_judged_set(folder)
    with temporary_kb(Settings()) as kb, tempfile.TemporaryDirectory() as place:
        documents = list(judged.stored_documents())
        kb.upsert(documents)
        about = write_site(kb, Path(place) / "site")
        ids = frozenset(document.id for document in judged.documents())
        queries = judged.select(ids, limit=most).queries
        expected = [kb.search(query.text, limit=HITS, exact=True) for query in queries]
        with StaticHost(Path(place) / "site") as host, chromium() as browser:
            options: dict[str, Any] = {"service_workers": "block", "allowed": ("Service Worker",)}
            with Viewer(browser, host.url).page(**options) as page:
                found = search_in(page, [query.text for query in queries], limit=HITS)
        differing, worst = 0, 0.0
        for hits, result in zip(expected, found, strict=True):
            places = [(hit.document_id, hit.start, hit.end) for hit in hits]
            errors = [abs(hit.score - own[3]) for hit, own in zip(hits, result["hits"], strict=False)]
            is_same = places == [tuple(own[:3]) for own in result["hits"]]
            worst = max([worst, *errors]) if is_same else worst
            differing += not is_same or max(errors, default=0.0) > TOLERANCE
        terms = sum(
            sorted(hits.term_weights) != sorted(result["terms"]) for hits, result in zip(expected, found, strict=True)
        )
        print(
            f"{judged.name}: {about['rows']:,} rows, {len(queries):,} queries; {differing} with other hits, order or "
            f"scores; {terms} with other terms; largest difference of a score {worst:.1e}"
        )
        ours = mean_ndcg(queries, [[hit.document_id for hit in hits] for hits in expected])
        site = mean_ndcg(queries, [[own[0] for own in result["hits"]] for result in found])
        print(f"{judged.name}: nDCG@10 of pair {ours:.3f}, of the site {site:.3f}", end="")
        if with_pagefind:
            print()
            pages = index_with_pagefind(documents, Path(place) / "pagefind")
            answers = measure_pagefind(pages, [query.text for query in queries])
            other = mean_ndcg(queries, [[documents[number].id for number in answer] for answer in answers])
            print(f"{judged.name}: nDCG@10 of Pagefind {other:.3f}", end="")
        print(flush=True)


def mean_ndcg(queries: Sequence[Any], answers: Sequence[Sequence[str]]) -> float:
    rankings = [list(dict.fromkeys(answer)) for answer in answers]
    return statistics.mean(ndcg(ranking, query.grades, HITS) for query, ranking in zip(queries, rankings, strict=True))


def measure_large(given: Any) -> None:
    documents = list(read_texts(given.texts, given.chunks) if given.texts else make_documents(given.chunks))
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kb = stack.enter_context(temporary_kb(Settings()))
        began = time.perf_counter()
        kb.upsert(documents)
        stored = time.perf_counter()
        about = write_site(kb, place / "site")
        size = sum(path.stat().st_size for path in (place / "site").rglob("*") if path.is_file())
        taken = f"stored in {stored - began:.0f} s, site written in {time.perf_counter() - stored:.0f} s"
        print(f"{len(documents):,} documents, {about['rows']:,} chunks, {taken}, {size:,} bytes")
        print(f"start: {about['start']['size']:,} bytes")
        chosen = random.Random(7).sample(documents, 110)
        queries = [" ".join(document.text.split()[3 : 3 + 2 + number % 4]) for number, document in enumerate(chosen)]
        measure_site(place / "site", queries)
        if given.pagefind:
            measure_pagefind(index_with_pagefind(documents, place / "pagefind"), queries[:100])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--pagefind", action="store_true")
    parser.add_argument("--judged", type=Path)
    parser.add_argument("--set", nargs="+", dest="sets")
    parser.add_argument("--limit-queries", type=int)
    given: Any = parser.parse_args()
    if not given.judged:
        measure_large(given)
        return
    for name in given.sets or sorted(path.name for path in given.judged.iterdir() if path.is_dir()):
        measure_judged(given.judged / name, given.pagefind, given.limit_queries)


if __name__ == "__main__":
    main()
