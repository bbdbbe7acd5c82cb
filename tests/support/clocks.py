"""A KB about clocks that is packaged with its index, and hosts that serve its versions."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.command import Outcome, Workplace, read_files, write_files
from support.releases import serve
from support.server import Page, Server

TOPICS = ("sundials", "hourglasses", "pendulums", "chronometers", "calendars", "almanacs")
QUERIES = ("how do pendulums keep time?", "almanacs of sailors", "what is said of hourglasses")
MANY_SHARDS = {
    "PAIR__ENGINE__SHARD_TRIGGER_VECTOR_ROWS": "4",
    "PAIR__ENGINE__MAX_VECTOR_ROWS_PER_SHARD": "1",
}

CHANGED = {"sundials.md": "# Sundials\n\nThey want the sun.\n"}
"""The files that differ in version 1.1.0."""


def pages(**changes: str) -> dict[str, str | bytes]:
    texts = {f"{topic}.md": f"# {topic.title()}\n\nSailors and monks tell of {topic}.\n" for topic in TOPICS}
    return {**texts, **changes}


class Origin:
    """A project that packages one folder repeatedly, and keeps its store between packages."""

    def __init__(self, folder: Path) -> None:
        self.workplace = Workplace(folder)
        self.workplace.environment |= MANY_SHARDS
        self.folder = self.workplace.folder / "clocks"
        self.dist = self.workplace.folder / "dist"

    def package(self, version: str, *more: str | Path, **changes: str) -> Path:
        write_files(self.folder, pages(**changes))
        path = self.workplace.folder / "out" / f"clocks-{version}.zip"
        self.workplace.pair(
            "package", self.folder, "-o", path, "--version", version, "--with-index", *more, "--json"
        ).succeeds()
        return path

    def publish(self, version: str, **changes: str) -> None:
        write_files(self.folder, pages(**changes))
        self.workplace.pair("publish", "dist", "clocks", "--version", version, "--with-index", "--json").succeeds()

    def search(self, query: str, kb: str = "clocks", *more: str) -> list[Any]:
        return hits_of(self.workplace, query, "--kb", kb, *more)


class Subscription:
    """A workplace on another machine that installs and updates packages from a static file host."""

    def __init__(self, origin: Origin, elsewhere: Workplace, server: Server) -> None:
        self.origin, self.elsewhere, self.server = origin, elsewhere, server

    def install(self) -> Path:
        """Install version 1.0.0 from the address of an archive, and return the package."""
        package = self.origin.package("1.0.0")
        installed_from(self.elsewhere, self.server, package)
        return package

    def offer(self, **manners: Any) -> Path:
        """Serve version 1.1.0 at the same address, and return the package."""
        package = self.origin.package("1.1.0", **CHANGED)
        put_up(self.server, package, **manners)
        return package

    def install_and_publish(self) -> None:
        """Install version 1.0.0 from a feed, which then has version 1.1.0 too."""
        self.origin.publish("1.0.0")
        self.elsewhere.pair("install", "--source", serve(self.server, self.origin.dist)).succeeds()
        self.origin.publish("1.1.0", **CHANGED)
        serve(self.server, self.origin.dist)
        self.server.sent_bytes.clear()

    def update(self, *more: str, **variables: str) -> Outcome:
        return self.elsewhere.pair("update", *more, **variables).succeeds()

    def assert_finds_the_same(self) -> None:
        for query in ("the sun", QUERIES[0]):
            assert hits_of(self.elsewhere, query, "--exact") == self.origin.search(query, "clocks", "--exact")


def hits_of(workplace: Workplace, query: str, *more: str) -> list[Any]:
    found = workplace.pair("search", query, *more, "--json").succeeds()
    return [(hit["chunk_id"], hit["score"], hit["content"]) for hit in found.json["results"]]


def shards_in(package: Path) -> set[str]:
    with zipfile.ZipFile(package) as opened:
        return {name.split("/")[2] for name in opened.namelist() if name.startswith(".pair-index/shards/")}


def sizes_in(package: Path, shards: set[str]) -> int:
    with zipfile.ZipFile(package) as opened:
        return sum(each.file_size for each in opened.infolist() if set(each.filename.split("/")) & shards)


def installed_from(elsewhere: Workplace, server: Server, package: Path) -> str:
    """Install a package from an address that is the same for all versions."""
    put_up(server, package)
    url = server.url("/clocks.zip")
    elsewhere.pair("install", "--source", url, "--json").succeeds()
    server.received.clear()
    server.sent_bytes.clear()
    return url


def put_up(server: Server, package: Path, **manners: Any) -> None:
    content = package.read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    server.pages["/clocks.zip"] = Page(content, etag=f'"{checksum}"', **manners)
    server.pages["/clocks.zip.sha256"] = Page(f"{checksum}  clocks.zip\n".encode())
    beside = package.with_name(package.name + ".manifest.json").read_bytes()
    server.pages["/clocks.zip.manifest.json"] = Page(beside)


def contents_of(package: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def rewritten(package: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Return the package with a changed index manifest and matching hashes, as an attacker would make it."""
    contents = contents_of(package)
    index = json.loads(contents[".pair-index/manifest.json"])
    change(index)
    index.pop("content_sha256")
    sealed = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    seal = hashlib.sha256(sealed).hexdigest()
    contents[".pair-index/manifest.json"] = sealed + f',"content_sha256":"{seal}"}}\n'.encode()
    refit(package, contents, json.loads(contents["manifest.json"]))


def refit(package: Path, contents: dict[str, bytes], value: dict[str, Any]) -> None:
    for path in value["files"]:
        content = contents[path]
        value["files"][path] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    lines = "".join(f"{value['files'][path]['sha256']}  {path}\n" for path in sorted(value["files"]))
    value["content_checksum"] = f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    contents["manifest.json"] = json.dumps(value).encode()
    with zipfile.ZipFile(package, "w") as made:
        for name, content in contents.items():
            made.writestr(name, content)
    checksum = hashlib.sha256(package.read_bytes()).hexdigest()
    package.with_name(package.name + ".sha256").write_text(f"{checksum}  {package.name}\n")


def files_of(workplace: Workplace) -> dict[str, bytes]:
    return {name: content for name, content in read_files(workplace.folder).items() if not name.endswith(".lock")}
