"""Measure the reading of documents: kept text, boilerplate, titles, words of PDFs, and the time of a first sync.

    .venv/bin/python benchmarks/reading.py [--without-sync] [--folder FOLDER]

The material is Debian's: python3-doc (which has its sources beside its pages), postgresql-doc, git-doc and
debian-reference. Packages that are missing are installed by apt. With --folder, only the files of that folder are
read, and the time is shown for each suffix.
"""

import argparse
import html
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pair.reading.contract import UnreadableDocument
from pair.reading.reader import read

PACKAGES = (
    "python3-doc",
    "postgresql-doc-15",
    "git-doc",
    "debian-reference-en",
    "debian-reference-common",
    "poppler-utils",
)
PYTHON = Path("/usr/share/doc/python3.11-doc/html")
FOLDERS = {
    "python": Path("/usr/share/doc/python3.11-doc"),
    "postgresql": Path("/usr/share/doc/postgresql-doc-15"),
    "git": Path("/usr/share/doc/git-doc"),
    "debian": Path("/usr/share/debian-reference"),
}
PDF_FILE = Path("/usr/share/debian-reference/debian-reference.en.pdf")
WORD = re.compile(r"[^\W_]+")
SHORTEST_SENTENCE_WORDS = 6
# Markup of reStructuredText whose words are not those of the page.
NOISE = (
    (re.compile(r"(?m)^\.\. (?!note|warning|seealso|version|deprecated|tip).*\n((?:[ \t]+.*\n|\n)*)"), "\n\n"),
    (re.compile(r":[\w:.+-]+:`[~!]?([^`<]*?)\s*<([^`]*)>`"), r"\1"),
    (re.compile(r":[\w:.+-]+:`~[\w.]*?\.?(\w+(?:\(\))?)`"), r"\1"),
    (re.compile(r":[\w:.+-]+:`!?([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`__?"), r"\1"),
    (re.compile(r"\\ |[*`]"), ""),
)  # fmt: skip
# The text that Sphinx generates for these is not in the source.
EXPANDED = re.compile(
    r":(?:issue|pep|rfc|ref|gh|source|doc|cve|cwe|numref|term|option|keyword):`[^`<]*`|\|\w+\||\w_(?:\W|$)|\]_"
)
BOILERPLATE = (
    "Navigation", "Previous topic", "Next topic", "This Page", "Report a Bug", "Show Source", "Table of Contents",
    "Quick search", "Python Software Foundation is a non-profit", "Please donate", "Last updated on", "Found a bug",
    "Created using Sphinx", "Permalink to", "¶", "Copyright 2001", "previous |", "modules |", "Prev Up", "Home Next",
    "Last updated 2024",
)  # fmt: skip


def install_packages() -> None:
    missing = [
        name for name in PACKAGES if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode
    ]
    if missing:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing], check=True, stdout=sys.stderr)


def list_words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


# ── pages against their sources ────────────────────────────────────────────────────────────────────


def list_sentences(source: str) -> Iterator[list[str]]:
    """Yield the words of the sentences in the paragraphs of a source: no code, tables, directives or lists."""
    for paragraph in re.split(r"\n\s*\n", NOISE[0][0].sub("\n\n", source)):
        lines = paragraph.splitlines()
        is_prose = lines and not lines[0].startswith((" ", "\t", "=", "-", "+", "|", ">>>", "..", "#"))
        if not is_prose or any(set(line.strip()) <= set("=-~^\"+*'#") for line in lines):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(lines)):
            words = list_words(drop_markup(sentence))
            if len(words) >= SHORTEST_SENTENCE_WORDS and "::" not in sentence and not EXPANDED.search(sentence):
                yield words


def drop_markup(source: str) -> str:
    for pattern, replacement in NOISE[1:]:
        source = pattern.sub(replacement, source)
    return source


def find_source_title(source: str) -> str:
    """Return the first line that is underlined."""
    lines = source.splitlines()
    for line, below in itertools.pairwise(lines):
        if (
            line.strip()
            and not line.startswith("..")
            and len(set(line.strip())) > 1
            and len(below) > 2
            and len(set(below.strip())) == 1
            and below.strip()[0] in "=*#-~"
        ):
            return drop_markup(line)
    return ""


def measure_pages() -> None:
    kept = sentences = titled = pages = said = unsaid = 0
    missed: list[str] = []
    for source in sorted((PYTHON / "_sources").rglob("*.rst.txt")):
        page = PYTHON / source.relative_to(PYTHON / "_sources").with_name(
            source.name.removesuffix(".rst.txt") + ".html"
        )
        if not page.exists():
            continue
        reading = read(page.read_bytes(), page.name)
        original = source.read_text(encoding="utf-8")
        words = list_words(reading.text)
        whole = f" {' '.join(words)} "
        for sentence in list_sentences(original):
            sentences += 1
            is_kept = f" {' '.join(sentence)} " in whole
            kept += is_kept
            if not is_kept:
                missed.append(f"{page.name}: {' '.join(sentence)}")
        pages += 1
        expected = find_source_title(original)
        # Sphinx numbers the chapters of some books.
        is_titled = re.sub(r"^[\d. ]+", "", " ".join(list_words(reading.title))) == " ".join(list_words(expected))
        titled += is_titled
        if not is_titled:
            missed.append(f"TITLE {page.name}: {reading.title!r} is not {expected!r}")
        lines = [line for line in reading.text.splitlines() if line.strip()]
        said += len(lines)
        unsaid += sum(any(mark in line for mark in BOILERPLATE) for line in lines)
    print(f"sentences of the sources kept in the text:  {kept / sentences:.1%} of {sentences:,}")
    print(f"lines that are boilerplate:                 {unsaid / said:.2%} of {said:,}")
    print(f"titles as in the sources:                   {titled / pages:.1%} of {pages}")
    if "PAIR_SHOW" in os.environ:
        print(*missed, sep="\n")


def measure_titles() -> None:
    """Measure the titles of DocBook and AsciiDoc pages, whose head has the right title."""
    for name in ("postgresql", "git", "debian"):
        pages = sorted(FOLDERS[name].rglob("*.html"))
        right = boilerplate = lines = 0
        for page in pages:
            content = page.read_bytes()
            reading = read(content, page.name)
            head = re.search(rb"<title>(.*?)</title>", content, re.DOTALL)
            expected = list_words(html.unescape(head[1].decode("utf-8", "replace")) if head else reading.title)
            right += expected == list_words(reading.title)[: len(expected)] and bool(reading.title)
            shown = [line for line in reading.text.splitlines() if line.strip()]
            lines += len(shown)
            boilerplate += sum(any(mark in line for mark in BOILERPLATE) for line in shown)
        print(
            f"titles of {name + ':':<34}{right / len(pages):.1%} of {len(pages)}, boilerplate {boilerplate / lines:.2%}"
        )


# ── PDF ────────────────────────────────────────────────────────────────────────────────────────────


def measure_pdf() -> None:
    content = PDF_FILE.read_bytes()
    read(content, "warm.pdf")
    began = time.process_time()
    ours = Counter(list_words(read(content, PDF_FILE.name).text))
    seconds = time.process_time() - began
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    shown = subprocess.run(["pdftotext", str(PDF_FILE), "-"], check=True, capture_output=True).stdout.decode()
    theirs_seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    theirs = Counter(list_words(shown))
    common = sum((ours & theirs).values())
    precision, recall = common / ours.total(), common / theirs.total()
    print(f"PDF words against pdftotext:                F1 {2 * precision * recall / (precision + recall):.4f}")
    print(f"PDF CPU time:                               {seconds:.2f} s, pdftotext {theirs_seconds:.2f} s")


# ── kinds of files ─────────────────────────────────────────────────────────────────────────────────


def measure_folder(folder: Path) -> None:
    """Read all files of a folder; print the time of each suffix and the number of refused files."""
    files, size, text, seconds = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    refused: Counter[tuple[str, str]] = Counter()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content, suffix = path.read_bytes(), path.suffix.lower() or path.name
        began = time.process_time()
        try:
            text[suffix] += len(read(content, path.name).text)
        except UnreadableDocument as fault:
            refused[suffix, str(fault)] += 1
        seconds[suffix] += time.process_time() - began  # type: ignore[assignment]
        files[suffix] += 1
        size[suffix] += len(content)
    print(f"{'suffix':<10}{'files':>8}{'MB':>9}{'MB of text':>12}{'CPU-s/MB':>10}")
    for suffix, count in files.most_common():
        rate = seconds[suffix] / max(size[suffix] / 1e6, 1e-9)
        print(f"{suffix:<10}{count:>8,}{size[suffix] / 1e6:>9.2f}{text[suffix] / 1e6:>12.2f}{rate:>10.3f}")
    for (suffix, reason), count in refused.most_common():
        print(f"refused: {count:,} × {suffix}: {reason}")


# ── first sync ─────────────────────────────────────────────────────────────────────────────────────


def measure_first_sync() -> None:
    with tempfile.TemporaryDirectory(prefix="pair-reading-") as temporary:
        folder = Path(temporary)
        for name, source in FOLDERS.items():
            (folder / "docs").mkdir(exist_ok=True)
            subprocess.run(["cp", "-rL", str(source), str(folder / "docs" / name)], check=True)
        size = sum(path.stat().st_size for path in (folder / "docs").rglob("*") if path.is_file())
        count = sum(path.is_file() for path in (folder / "docs").rglob("*"))
        command = [sys.executable, "-m", "pair", "sync"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        environment = os.environ | {"PAIR__KB__SOURCES_DIR": "docs"}
        subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        stored = sum(path.stat().st_size for path in (folder / ".pair" / "store").rglob("*") if path.is_file())
        print(f"first sync of {count:,} files, {size / 1e6:.0f} MB:           {cpu:.0f} CPU-seconds,", end=" ")
        print(f"{time.monotonic() - began:.0f} s, at most {after.ru_maxrss / 1e3:.0f} MB of memory")
        print(f"store:                                      {stored / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-sync", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.folder is not None:
        measure_folder(options.folder)
        return
    install_packages()
    measure_pages()
    measure_titles()
    measure_pdf()
    if not options.without_sync:
        measure_first_sync()


if __name__ == "__main__":
    main()
