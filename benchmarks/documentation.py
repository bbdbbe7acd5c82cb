"""Documentation of Debian packages as Markdown: the documents for `benchmarks/answers.py`.

Pages of Python, PostgreSQL, git and the Debian reference, and manual pages. The other material has pages of SQLite,
Apache, Postfix and Borg; the third has pages of Varnish, NTPsec, PAM, diffutils, HTTrack and lighttpd. Packages that
are missing are installed by apt. The pages are read as `pair ingest` reads them. The texts are kept in a file, because
reading takes a minute.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pair.kb.ingest import read_document
from pair.reading.contract import UnreadableDocument
from pair.reading.process import read_ahead
from pair.values import Document

PACKAGES = {
    "python3-doc": Path("/usr/share/doc/python3-dev/html"),
    "postgresql-doc-15": Path("/usr/share/doc/postgresql-doc-15/html"),
    "git-doc": Path("/usr/share/doc/git-doc"),
    "debian-reference-en": Path("/usr/share/debian-reference"),
}
MORE_PACKAGES = {
    "other": {
        "sqlite3-doc": Path("/usr/share/doc/sqlite3"),
        "apache2-doc": Path("/usr/share/doc/apache2-doc/manual/en"),
        "postfix-doc": Path("/usr/share/doc/postfix/html"),
        "borgbackup-doc": Path("/usr/share/doc/borgbackup/html"),
    },
    "third": {
        "varnish-doc": Path("/usr/share/doc/varnish/html"),
        "ntpsec-doc": Path("/usr/share/doc/ntpsec-doc/html"),
        "libpam-doc": Path("/usr/share/doc/libpam-doc/html"),
        "diffutils-doc": Path("/usr/share/doc/diffutils"),
        "httrack-doc": Path("/usr/share/httrack/html"),
        "lighttpd-doc": Path("/usr/share/doc/lighttpd"),
    },
}
MATERIALS = ("documentation", *MORE_PACKAGES)
_PYTHON = ("library", "tutorial", "faq", "howto", "reference", "using")
_NOT_POSTGRESQL = re.compile(r"(release|features|catalog|view|infoschema|ecpg|spi|bookindex|index$|legalnotice)")
_NOT_MORE = re.compile(
    r"sqlite/(releaselog|syntax|doc_|keyword_index|sitemap|requirements|capi3ref)|borgbackup/(book$|search$|_static)"
    r"|varnish/(search|genindex)$"
)
"""Pages to leave out: lists, and pages that repeat others."""
_MANUAL = """
apt apt-cache apt-get apt-mark awk base64 basename bash bc bzip2 cal cat chgrp chmod chown cmp comm cp crontab
csplit cut date dd df diff dirname dmesg dpkg dpkg-query du env expand expr fallocate find flock fmt fold free
getopt grep gzip head hostname id install ionice join kill ldd less ln locale logger login ls lsblk make md5sum
mkdir mkfifo mktemp more mount mv nice nl nohup nproc nsenter numfmt od paste patch pgrep pidof pmap printf ps
pwd readlink rename renice rev rm rmdir rsync script sed seq setsid sha256sum shred shuf sleep sort split stat
stdbuf strace stty su sum sync tac tail tar taskset tee test time timeout top touch tr truncate tsort tty ulimit
umount uname unexpand uniq unshare uptime vmstat w watch wc whereis which who whoami xargs xz yes
"""
MANUAL = _MANUAL.split()


def read_documentation(kept: Path, material: str = "documentation") -> list[Document]:
    """Return all documents of the material; `kept` is the file that keeps their texts."""
    if not kept.exists():
        packages = MORE_PACKAGES.get(material, PACKAGES)
        documents = _read_more(packages) if material in MORE_PACKAGES else _read_all()
        missing = [package for package, folder in packages.items() if not folder.exists()]
        if missing:
            subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *missing], check=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps([each.id, each.title, each.text], ensure_ascii=False) for each in documents]
        kept.write_text("\n".join(lines))
    return [Document(name, text, title) for name, title, text in map(json.loads, kept.read_text().split("\n"))]


def _read_all() -> Iterator[Document]:
    python, postgresql, git, debian = PACKAGES.values()
    pages = [(f"python/{folder}/{path.stem}", path) for folder in _PYTHON for path in (python / folder).glob("*.html")]
    pages.append(("python/glossary", python / "glossary.html"))
    pages += [
        (f"postgresql/{path.stem}", path) for path in postgresql.glob("*.html") if not _NOT_POSTGRESQL.match(path.stem)
    ]
    pages += [(f"git/{path.stem}", path) for path in git.glob("*.html")]
    pages += [(f"debian/{path.stem}", path) for path in debian.glob("ch*.en.html")]
    yield from _read_pages(pages)
    for name in MANUAL:
        page = subprocess.run(
            ["man", "-Tutf8", name], capture_output=True, check=False, env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin"}
        ).stdout
        text = re.sub(r".\x08|\x1b\[[\d;]*m", "", page.decode(errors="replace")).strip()
        if text:
            yield replace(read_document(text.encode(), f"{name}.txt"), id=f"man/{name}", title=f"{name}: manual page")


def _read_more(packages: dict[str, Path]) -> Iterator[Document]:
    pages = [
        (f"{re.sub(r'[0-9]?-doc', '', package)}/{path.relative_to(folder).with_suffix('')}", path)
        for package, folder in packages.items()
        for path in [*folder.rglob("*.html")] or folder.rglob("*.txt")
    ]
    yield from _read_pages([page for page in pages if not _NOT_MORE.match(page[0])])


def _read_pages(pages: list[tuple[str, Path]]) -> Iterator[Document]:
    """Read each page; its name becomes its id."""
    pages.sort()
    for (name, _), document in zip(pages, read_ahead(_read_page, [path for _, path in pages]), strict=True):
        if document is not None:
            yield replace(document, id=name)


def _read_page(path: Path) -> Document | None:
    try:
        return read_document(path.read_bytes(), path.name)
    except UnreadableDocument:
        return None
