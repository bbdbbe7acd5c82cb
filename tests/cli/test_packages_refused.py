"""Packages whose index cannot be installed are refused, and nothing changes."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pair import Settings, errors
from pair.kb.package_index import open_package
from support.clocks import CHANGED, Origin, contents_of, files_of, installed_from, pages, put_up, refit, rewritten
from support.command import Workplace, write_files
from support.errors import raises_code
from support.server import Server


def refused(elsewhere: Workplace, package: Path, code: str, command: str = "install", **variables: str) -> None:
    before = files_of(elsewhere)
    done = elsewhere.pair(command, "--offline", "--source", package, "--json", **variables)
    assert done.error_code == code, done.stdout
    assert files_of(elsewhere) == before


def test_an_index_by_another_embedder_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    refused(elsewhere, origin.package("1.0.0"), "E220", PAIR__ENGINE__EMBEDDING_DIMENSION="64")
    told = elsewhere.pair(
        "install", "--offline", "--source", origin.package("1.0.0"), PAIR__ENGINE__EMBEDDING_DIMENSION="64"
    ).stderr
    assert "ngram-384-v1" in told
    assert "--no-index" in told


def test_an_index_is_refused_by_a_kb_with_another_embedder(origin: Origin, elsewhere: Workplace) -> None:
    write_files(elsewhere.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    assert elsewhere.pair("ingest", "mine.jsonl", PAIR__ENGINE__EMBEDDING_DIMENSION="64").status == 0
    refused(elsewhere, origin.package("1.0.0"), "E304")


def newer_schema(index: dict[str, Any]) -> None:
    index["schema_version"] = 2


def shard_under_another_name(index: dict[str, Any]) -> None:
    folder = index["shards"][0]["key"]
    index["shards"][0]["key"] = folder[:-64] + "0" * 64


def shard_of_other_bytes(index: dict[str, Any]) -> None:
    one, other = index["shards"][:2]
    one["files"], other["files"] = other["files"], one["files"]


def no_shards(index: dict[str, Any]) -> None:
    index["shards"] = "none"


@pytest.mark.parametrize("change", [newer_schema, shard_under_another_name, shard_of_other_bytes, no_shards])
def test_an_index_that_does_not_fit_is_refused_and_nothing_changes(
    origin: Origin, elsewhere: Workplace, change: Any
) -> None:
    package = origin.package("1.0.0")
    rewritten(package, change)
    refused(elsewhere, package, "E221")


def test_a_shard_that_was_tampered_with_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    contents = contents_of(package)
    name = next(each for each in contents if each.endswith(".search"))
    contents[name] = contents[name][:-1] + bytes([contents[name][-1] ^ 1])
    with zipfile.ZipFile(package, "w") as made:
        for each, content in contents.items():
            made.writestr(each, content)
    package.with_name(package.name + ".sha256").unlink()
    refused(elsewhere, package, "E006")
    refit(package, contents, json.loads(contents["manifest.json"]))
    refused(elsewhere, package, "E221")


def test_a_file_in_the_place_of_the_shards_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    contents = {name: content for name, content in contents_of(package).items() if "/shards/" not in name}
    value = json.loads(contents["manifest.json"])
    contents[".pair-index/shards"] = b"none"
    refit(package, contents, value | {"files": {name: {} for name in contents if name != "manifest.json"}})
    refused(elsewhere, package, "E221")


def cut_directory(content: bytes, start: int) -> bytes:
    return content[: start + 20] + content[-22:]


def sizes_without_their_field(content: bytes, start: int) -> bytes:
    """Return an archive whose sizes refer to a ZIP64 field that is missing."""
    return content[: start + 20] + b"\xff" * 8 + content[start + 28 :]


def field_that_is_cut(content: bytes, start: int) -> bytes:
    """Return an archive with a ZIP64 field that is shorter than it claims, over the first letters of the next entry."""
    return content[: start + 20] + b"\xff" * 8 + content[start + 28 : start + 30] + b"\6\0" + content[start + 32 :]


def large_end_that_lies(content: bytes, start: int) -> bytes:
    """Return an archive with a ZIP64 end record whose offsets are outside the archive."""
    far = 2**63
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, far, far, far, far)
    return content[:-22] + record + struct.pack("<4sLQL", b"PK\6\7", 0, start, 1) + content[-22:]


@pytest.mark.parametrize("spoil", [cut_directory, sizes_without_their_field, field_that_is_cut, large_end_that_lies])
def test_an_archive_whose_directory_lies_is_refused_from_a_file_and_over_ranges_and_nothing_changes(
    origin: Origin, elsewhere: Workplace, server: Server, spoil: Callable[[bytes, int], bytes]
) -> None:
    installed_from(elsewhere, server, origin.package("1.0.0"))
    package = origin.package("1.1.0", **CHANGED)
    with zipfile.ZipFile(package) as opened:
        start = opened.start_dir
    package.write_bytes(spoil(package.read_bytes(), start))
    put_up(server, package)
    before = files_of(elsewhere)
    done = elsewhere.pair("update", "--json")
    assert done.error_code == "E009", done.stdout
    assert files_of(elsewhere) == before
    assert any("Range" in each.headers for each in server.requests("/clocks.zip"))
    package.with_name(package.name + ".sha256").unlink()
    refused(elsewhere, package, "E009", "update")


def test_a_manifest_beside_a_package_that_is_not_its_own_is_neither_verified_nor_published(origin: Origin) -> None:
    package = origin.package("1.0.0")
    beside = package.with_name(package.name + ".manifest.json")
    beside.write_bytes(beside.read_bytes() + b"\n")
    assert origin.workplace.pair("verify", package, "--json").error_code == "E006"
    assert origin.workplace.pair("publish", "dist", package, "--json").error_code == "E006"
    assert not origin.dist.exists()


def test_a_package_that_no_install_would_unpack_is_not_opened_for_reading_either(
    origin: Origin, tmp_path: Path
) -> None:
    package = origin.package("1.0.0")
    with zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("zeros.bin", bytes(20_000_000))
    settings = Settings.load(environment={"PAIR__ENGINE__CACHE_DIR": str(tmp_path / "shards")})
    with raises_code("E009", errors.DownloadError):
        open_package(package, settings)


def test_a_package_of_a_newer_schema_is_refused_and_nothing_changes(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    contents = contents_of(package)
    value = json.loads(contents["manifest.json"])
    refit(package, contents, value | {"schema_version": 2})
    refused(elsewhere, package, "E018")


def test_a_folder_that_is_not_the_sources_of_the_project_is_not_an_index_of_default(origin: Origin) -> None:
    write_files(origin.folder, pages())
    origin.workplace.pair("package", origin.folder, "--with-index", "--kb", "default", "--json").fails(1, "E014")
    origin.workplace.pair("package", "nowhere", "--with-index", "--json").fails(1, "E003")


def test_a_package_with_more_than_the_files_of_the_folder_is_reported(origin: Origin) -> None:
    workplace = origin.workplace
    write_files(workplace.target, pages())
    write_files(workplace.folder, {"mine.jsonl": json.dumps({"id": "mine", "text": "Water clocks drip."})})
    packaged = ("package", ".pair/knowledge", "-o", "kb.zip", "--with-index")
    assert "also holds" not in workplace.pair(*packaged).stderr
    assert workplace.pair("ingest", "mine.jsonl").status == 0
    assert "the index also has documents that are not in .pair/knowledge: 1" in workplace.pair(*packaged).stderr
