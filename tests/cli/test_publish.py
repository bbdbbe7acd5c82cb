"""`pair publish` to a folder: written files, refusals, and concurrent publishers."""

import hashlib
import json
import os
import random
import signal
import time
import zipfile
from pathlib import Path

import pytest

from support.command import Workplace, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, write_zip
from support.prepared import PREPARED
from support.releases import feed_in, publish, serve
from support.server import Server


def folder_of(workplace: Workplace, name: str = "handbook", text: str = "one") -> Path:
    return write_files(workplace.folder / name, {**SMALL_KB, "page.md": text})


def test_a_folder_is_packaged_and_published_with_its_feed_and_checksum(workplace: Workplace) -> None:
    folder_of(workplace)
    done = workplace.pair("publish", "dist", "handbook", "--version", "1.2.0", "--json").succeeds()
    dist = workplace.folder / "dist"
    archive = (dist / "handbook-1.2.0.zip").read_bytes()
    digest = hashlib.sha256(archive).hexdigest()
    assert sorted(path.name for path in dist.iterdir()) == [
        "handbook-1.2.0.zip",
        "handbook-1.2.0.zip.sha256",
        "releases.json",
    ]
    assert (dist / "handbook-1.2.0.zip.sha256").read_text() == f"{digest}  handbook-1.2.0.zip\n"
    manifest = workplace.pair("info", "dist/handbook-1.2.0.zip", "--json").json
    [release] = feed_in(dist)["kbs"]["handbook"]["releases"]
    assert release == {
        "version": "1.2.0",
        "file": "handbook-1.2.0.zip",
        "size_bytes": len(archive),
        "sha256": digest,
        "content_checksum": manifest["content_checksum"],
        "manifest_sha256": "",
        "embedder": "",
        "signature": False,
        "published_at": release["published_at"],
    }
    assert feed_in(dist)["schema_version"] == 1
    assert done.json["source"] == "./dist/releases.json#handbook"
    assert done.json["is_new"] is True


def test_what_the_command_says_to_use_works(workplace: Workplace, server: Server) -> None:
    folder_of(workplace)
    done = workplace.pair("publish", "dist", "handbook", "--version", "1.2.0")
    assert "Published handbook 1.2.0 to dist" in done.stderr
    assert "--source ./dist/releases.json#handbook" in done.stderr
    assert workplace.pair("install", "--source", "./dist/releases.json#handbook@1.2.0").status == 0
    assert read_files(workplace.target) == SMALL_KB_BYTES | {"page.md": b"one"}
    assert workplace.pair("install", "web", "--source", serve(server, workplace.folder / "dist")).status == 0


def test_a_package_is_published_unchanged_with_its_companion_files(workplace: Workplace) -> None:
    folder_of(workplace)
    workplace.pair("package", "handbook", "-o", "made/kb.zip", "--name", "handbook", "--version", "2.0.0")
    with zipfile.ZipFile(workplace.folder / "made" / "kb.zip") as made:
        manifest = made.read("manifest.json")
    sidecars = {".manifest.json": manifest, ".minisig": b"signed", ".manifest.json.minisig": b"signed too"}
    for suffix, content in sidecars.items():
        (workplace.folder / "made" / f"kb.zip{suffix}").write_bytes(content)
    workplace.pair("publish", "dist", "made/kb.zip").succeeds()
    dist = workplace.folder / "dist"
    assert (dist / "handbook-2.0.0.zip").read_bytes() == (workplace.folder / "made" / "kb.zip").read_bytes()
    for suffix, content in sidecars.items():
        assert (dist / f"handbook-2.0.0.zip{suffix}").read_bytes() == content
    [release] = feed_in(dist)["kbs"]["handbook"]["releases"]
    assert release["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert release["signature"] is True
    assert workplace.pair("publish", "dist", "made/kb.zip", "--version", "3", "--json").error_code == "E402"


def test_a_package_that_is_already_in_the_target_is_published_there(workplace: Workplace) -> None:
    folder_of(workplace)
    workplace.pair("package", "handbook", "-o", "dist/handbook-1.0.0.zip")
    before = (workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes()
    assert workplace.pair("publish", "dist", "dist/handbook-1.0.0.zip").status == 0
    assert (workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes() == before
    assert workplace.pair("install", "--source", "./dist/handbook@1.0.0").status == 0


def test_without_a_source_the_installed_kb_is_published(workplace: Workplace) -> None:
    write_files(workplace.target, SMALL_KB)
    assert workplace.pair("publish", "dist", "--name", "notes").status == 0
    assert list(feed_in(workplace.folder / "dist")["kbs"]) == ["notes"]


def test_the_same_bytes_again_are_nothing_to_do(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (workplace.folder / "dist").iterdir()}
    done = workplace.pair("publish", "dist", "kbs/handbook-1.0.0", "--name", "handbook", "--json").succeeds()
    assert done.json["is_new"] is False
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (workplace.folder / "dist").iterdir()}
    assert after == before
    workplace.pair("publish", "dist", "kbs/handbook-1.0.0", "--name", "handbook").says("Nothing to do")


def test_different_bytes_for_a_version_are_refused_and_change_nothing(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    before = read_files(workplace.folder / "dist")
    folder_of(workplace, text="other")
    refused = workplace.pair("publish", "dist", "handbook", "--version", "1.0.0", "--json").fails(4, "E021")
    details = refused.json["error"]["details"]
    assert details["published"] == feed_in(workplace.folder / "dist")["kbs"]["handbook"]["releases"][0]["sha256"]
    assert details["given"] != details["published"]
    assert read_files(workplace.folder / "dist") == before


def test_bytes_of_an_unfinished_publication_are_not_replaced_by_others(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    (workplace.folder / "dist" / "releases.json").unlink()
    folder_of(workplace, text="other")
    assert workplace.pair("publish", "dist", "handbook", "--version", "1.0.0", "--json").error_code == "E021"
    assert workplace.pair("publish", "dist", "kbs/handbook-1.0.0", "--name", "handbook").status == 0
    assert workplace.pair("install", "--source", "./dist/releases.json").status == 0


def test_a_signature_that_comes_later_is_published_too(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    archive = workplace.folder / "dist" / "handbook-1.0.0.zip"
    signed = workplace.folder / "signed.zip"
    signed.write_bytes(archive.read_bytes())
    signed.with_name("signed.zip.minisig").write_text("signature")
    assert workplace.pair("publish", "dist", "signed.zip", "--json").json["is_new"] is True
    [release] = feed_in(workplace.folder / "dist")["kbs"]["handbook"]["releases"]
    assert release["signature"] is True
    assert archive.with_name("handbook-1.0.0.zip.minisig").read_text() == "signature"
    assert (
        workplace.pair("publish", "dist", "kbs/handbook-1.0.0", "--name", "handbook", "--json").json["is_new"] is False
    )


@pytest.mark.parametrize(
    ("content", "code"), [(b"{", "E019"), (b'{"schema_version": 9, "kbs": {}}', "E019")], ids=["damaged", "newer"]
)
def test_a_feed_that_cannot_be_read_is_not_replaced(workplace: Workplace, content: bytes, code: str) -> None:
    folder_of(workplace)
    write_files(workplace.folder / "dist", {"releases.json": content})
    assert workplace.pair("publish", "dist", "handbook", "--json").error_code == code
    assert read_files(workplace.folder / "dist") == {"releases.json": content}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["dist", "nowhere"], "E003"),
        (["dist", "no-package.zip"], "E009"),
        (["dist", "foreign.zip"], "E012"),
        (["dist", "handbook", "--name", "a/b"], "E014"),
        (["no-package.zip", "handbook"], "E010"),
        (["handbook/dist", "handbook"], "E015"),
        (["dist", "."], "E015"),
        (["gs://bucket/kbs", "handbook"], "E402"),
    ],
)
def test_what_cannot_be_published_is_refused(workplace: Workplace, arguments: list[str], code: str) -> None:
    folder_of(workplace)
    write_files(workplace.folder, {"no-package.zip": b"nothing of the kind"})
    write_zip(workplace.folder / "foreign.zip", SMALL_KB)
    assert workplace.pair("publish", *arguments, "--json").error_code == code
    assert not (workplace.folder / "dist" / "releases.json").exists()


def test_all_who_publish_at_once_end_up_in_the_feed(workplace: Workplace) -> None:
    for number in range(6):
        folder_of(workplace, f"kb-{number}", f"text {number}")
    running = [
        workplace.start("publish", "dist", f"kb-{number}", "--name", f"kb-{number % 2}", "--version", f"1.{number}.0")
        for number in range(6)
    ]
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 6, ended
    found = feed_in(workplace.folder / "dist")["kbs"]
    versions = {name: [each["version"] for each in entry["releases"]] for name, entry in found.items()}
    assert versions == {"kb-0": ["1.0.0", "1.2.0", "1.4.0"], "kb-1": ["1.1.0", "1.3.0", "1.5.0"]}


def test_a_publication_killed_at_any_moment_leaves_the_old_feed_and_the_next_run_finishes(workplace: Workplace) -> None:
    text = random.Random(5).randbytes(600_000)
    write_files(workplace.folder / "kb", {"data.bin": text})
    dist = workplace.folder / "dist"
    began = time.monotonic()
    publish(workplace, "0.0.1", name="kb")
    duration = time.monotonic() - began
    dice, killed = random.Random(7), 0
    for moment in range(12):
        before = (dist / "releases.json").read_bytes()
        arguments = ["publish", "dist", "kb", "--version", f"1.{moment}.0"]
        with PREPARED.started(arguments, workplace.folder, workplace.environment) as copy:
            was_killed = copy.wait(dice.uniform(0, 1.5 * duration)) is None and copy.kill() == -signal.SIGKILL
        killed += was_killed
        if was_killed:
            after = (dist / "releases.json").read_bytes()
            assert after == before or json.loads(after)["kbs"]["kb"]["releases"][-1]["version"] == f"1.{moment}.0"
        workplace.pair(*arguments).succeeds()
        releases = feed_in(dist)["kbs"]["kb"]["releases"]
        assert len(releases) == moment + 2
        for release in releases:
            assert hashlib.sha256((dist / release["file"]).read_bytes()).hexdigest() == release["sha256"]
        assert [path.name for path in dist.glob(".*")] == []
    assert killed


FOREIGN = ["index.html", "site.json", "documents.html"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_site_replaces_no_file_of_another_program(workplace: Workplace, name: str) -> None:
    folder_of(workplace)
    site = write_files(workplace.folder / "dist" / "site" / "handbook", {name: "mine", "data/notes.txt": "mine too"})
    workplace.pair("publish", "dist", "handbook", "--version", "1.0.0", "--site", "--json").fails(3, "E026")
    assert read_files(site) == {name: b"mine", "data/notes.txt": b"mine too"}
    assert os.listdir(workplace.folder / "dist") == ["site"]  # and nothing is published


def test_a_site_behind_a_link_is_refused_before_anything_is_published(workplace: Workplace) -> None:
    folder_of(workplace)
    outside = write_files(workplace.folder / "outside", {"a.txt": "a"})
    write_files(workplace.folder / "dist", {})
    (workplace.folder / "dist").mkdir(exist_ok=True)
    (workplace.folder / "dist" / "site").symlink_to(outside)
    workplace.pair("publish", "dist", "handbook", "--version", "1.0.0", "--site", "--json").fails(3, "E025")
    assert os.listdir(workplace.folder / "dist") == ["site"]
    assert os.listdir(outside) == ["a.txt"]


def test_a_site_is_finished_after_an_interruption_and_replaces_its_own_files(workplace: Workplace) -> None:
    folder_of(workplace)
    arguments = ("publish", "dist", "handbook", "--site", "--version")
    site = workplace.folder / "dist" / "site" / "handbook"
    for version, unfinished in (("1.0.0", ["site.json"]), ("1.1.0", ["site.json", "documents.html"]), ("1.2.0", [])):
        workplace.pair(*arguments, version).succeeds()
        whole = read_files(site)
        for name in unfinished:
            (site / name).unlink()
        workplace.pair(*arguments, version).succeeds()
        assert read_files(site).keys() == whole.keys()
