"""Packages with an index from an attacker, whose hashes and sizes match: read as data, or refused."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.clocks import Origin, contents_of, files_of, refit, shards_in
from support.command import Workplace
from support.hostile_shards import change_rows, change_section

INDEX = ".pair-index/manifest.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    origin = Origin(tmp_path_factory.mktemp("made") / "origin")
    origin.workplace.environment["PAIR__ENGINE__SHARD_TRIGGER_VECTOR_ROWS"] = "100"
    return origin.package("1.0.0")


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    assert len(shards_in(made)) == 1
    return shutil.copyfile(made, tmp_path / made.name)


def change_packaged(package: Path, role: str, change: Callable[[bytes], bytes]) -> None:
    """Change a file of the only shard, and all references to it."""
    contents = contents_of(package)
    index: dict[str, Any] = json.loads(contents[INDEX])
    [shard] = index["shards"]
    suffix = {"rows": ".duckdb"}.get(role, f".{role}")
    old = next(name for name in contents if name.startswith(".pair-index/shards/") and name.endswith(suffix))
    content = contents[old] = change(contents[old])
    shard["files"][role] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    roles = [each for each in ("rows", "search", "ids", "keywords", "graph") if each in shard["files"]]
    lines = "".join(f"{each} {shard['files'][each]['sha256']} {shard['files'][each]['size_bytes']}\n" for each in roles)
    before, after = shard["key"].rpartition("/")[2], hashlib.sha256(lines.encode()).hexdigest()
    shard["key"] = shard["key"].replace(before, after)
    index.pop("content_sha256")
    sealed = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    contents[INDEX] = sealed + f',"content_sha256":"{hashlib.sha256(sealed).hexdigest()}"}}\n'.encode()
    contents = {name.replace(before, after): content for name, content in contents.items()}
    value = json.loads(contents["manifest.json"])
    refit(package, contents, value | {"files": {name.replace(before, after): {} for name in value["files"]}})


def refused(elsewhere: Workplace, package: Path) -> str:
    before = files_of(elsewhere)
    done = elsewhere.pair("install", "--offline", "--source", package, "--json")
    assert done.error_code == "E221", done.stdout
    assert files_of(elsewhere) == before
    return str(done.json["error"]["details"]["reason"]) if "error" in done.json else done.stdout


def test_a_package_that_was_only_refitted_is_installed(package: Path, elsewhere: Workplace) -> None:
    change_packaged(package, "search", lambda content: content)
    elsewhere.pair("install", "--offline", "--source", package, "--json").succeeds()
    assert elsewhere.pair("search", "sundials", "--json").json["results"]


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE docs RENAME TO h; CREATE VIEW docs AS FROM h WHERE EXISTS (FROM read_text('/etc/passwd'))",
        "CREATE MACRO starts_with(a, b) AS (SELECT count(*) > 0 FROM read_blob('/etc/passwd'))",
    ],
    ids=["a view that reads a file", "a macro in the place of a function"],
)
def test_an_index_that_would_be_executed_is_refused(
    package: Path, elsewhere: Workplace, tmp_path: Path, statements: str
) -> None:
    change_packaged(package, "rows", lambda content: change_rows(content, tmp_path, statements))
    assert "it contains more than tables" in refused(elsewhere, package)


def test_an_index_with_a_corrupted_header_is_refused(package: Path, elsewhere: Workplace) -> None:
    change_packaged(package, "rows", lambda content: b"\x5a" * 64 + content[64:])
    refused(elsewhere, package)


def test_an_index_with_another_text_than_the_packaged_file_is_refused(package: Path, elsewhere: Workplace) -> None:
    def lie(texts: bytes) -> bytes:
        return texts.replace(b"tell of sundials", b"sell you sundial")

    change_packaged(package, "search", lambda content: change_section(content, "texts", lie))
    assert "sundials.md is not that of the packaged file" in refused(elsewhere, package)


def test_a_document_that_is_read_in_another_way_here_is_left_out_and_that_is_said(
    origin: Origin, elsewhere: Workplace
) -> None:
    """The text of an HTML file depends on the installed libraries, so a different text is not a sign of an attack."""
    page = "<html><body><p>Sailors tell of astrolabes.</p></body></html>"
    package = origin.package("1.0.0", **{"astrolabes.html": page})

    contents = contents_of(package)
    contents["astrolabes.html"] = page.replace("tell of", "write of").encode()
    refit(package, contents, json.loads(contents["manifest.json"]))
    elsewhere.pair("install", "--offline", "--source", package).succeeds().says("astrolabes.html")
    hits = elsewhere.pair("search", "astrolabes", "--json").json["results"]
    assert "astrolabes.html" not in {hit["id"] for hit in hits}
    assert elsewhere.pair("sync").status == 0
    [hit] = elsewhere.pair("search", "astrolabes", "--mode", "keyword", "--json").json["results"]
    assert "write of astrolabes" in hit["content"]
