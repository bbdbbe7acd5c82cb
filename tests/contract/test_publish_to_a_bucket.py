"""Publishing to a bucket and installing from it, with a real S3 server."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.command import Workplace, read_files, write_files
from support.engine_parts import read_blob
from support.kbs import SMALL_KB, SMALL_KB_BYTES
from support.s3_server import SECRET_KEY, S3Server


def folder_of(workplace: Workplace, name: str, text: str) -> Path:
    return write_files(workplace.folder / name, {**SMALL_KB, "page.md": text})


def feed_in(s3: S3Server, prefix: str) -> dict[str, Any]:
    return dict(json.loads(read_blob(s3.store(prefix), "releases.json")))


def test_a_bucket_is_a_registry(at_bucket: Workplace, s3: S3Server) -> None:
    folder_of(at_bucket, "kb", "one")
    done = at_bucket.pair(
        "publish", "s3://blobs/kbs/first", "kb", "--name", "handbook", "--version", "1.0.0", "--json"
    ).succeeds()
    assert done.json["source"] == "s3://blobs/kbs/first/releases.json#handbook"
    store = s3.store("kbs/first")
    names = ["handbook-1.0.0.zip", "handbook-1.0.0.zip.sha256", "releases.json"]
    assert [entry.key for entry in store.list("")] == names
    archive = read_blob(store, "handbook-1.0.0.zip")
    [release] = feed_in(s3, "kbs/first")["kbs"]["handbook"]["releases"]
    assert release["sha256"] == hashlib.sha256(archive).hexdigest()
    at_bucket.pair("install", "--source", done.json["source"]).succeeds()
    assert read_files(at_bucket.target) == SMALL_KB_BYTES | {"page.md": b"one"}
    # The same again, other bytes, and a new version.
    again = at_bucket.pair(
        "publish", "s3://blobs/kbs/first", "kb", "--name", "handbook", "--version", "1.0.0", "--json"
    )
    assert again.json["is_new"] is False
    folder_of(at_bucket, "kb", "two")
    refused = at_bucket.pair(
        "publish", "s3://blobs/kbs/first", "kb", "--name", "handbook", "--version", "1.0.0", "--json"
    )
    assert refused.error_code == "E021"
    at_bucket.pair("publish", "s3://blobs/kbs/first/", "kb", "--name", "handbook", "--version", "1.1.0").succeeds()
    at_bucket.pair("update").succeeds()
    assert (at_bucket.target / "page.md").read_text() == "two"
    at_bucket.pair("install", "pinned", "--kb", "pinned", "--source", "s3://blobs/kbs/first/handbook@1.0.0").succeeds()
    # And as any other source it can be locked.
    at_bucket.pair("lock", ".pair/knowledge", "pinned").succeeds()
    for folder in (at_bucket.target, at_bucket.folder / "pinned", at_bucket.cache):
        subprocess.run(["rm", "-rf", folder], check=True)
    at_bucket.pair("install", "--locked").succeeds()
    at_bucket.pair("lock", "--check").succeeds()
    assert (at_bucket.folder / "pinned" / "page.md").read_text() == "one"


def test_all_who_publish_to_a_bucket_at_once_end_up_in_the_feed(at_bucket: Workplace, s3: S3Server) -> None:
    running = []
    for number in range(4):
        folder_of(at_bucket, f"kb-{number}", f"text {number}")
        arguments = ("publish", "s3://blobs/together", f"kb-{number}", "--name", "kb", "--version", f"1.{number}.0")
        running.append(at_bucket.start(*arguments))
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 4, ended
    releases = feed_in(s3, "together")["kbs"]["kb"]["releases"]
    assert [each["version"] for each in releases] == ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]


def test_one_of_two_publishers_of_a_version_with_different_bytes_is_refused(at_bucket: Workplace, s3: S3Server) -> None:
    running = []
    for number in range(3):
        folder_of(at_bucket, f"kb-{number}", f"text {number}")
        running.append(at_bucket.start("publish", "s3://blobs/contended", f"kb-{number}", "--name", "kb", "--json"))
    ended = [process.communicate(timeout=120) for process in running]
    assert sorted(process.returncode for process in running) == [0, 4, 4], ended
    [release] = feed_in(s3, "contended")["kbs"]["kb"]["releases"]
    assert hashlib.sha256(read_blob(s3.store("contended"), "kb-1.0.0.zip")).hexdigest() == release["sha256"]


def test_an_unfinished_publication_is_finished_by_the_same_bytes_only(at_bucket: Workplace, s3: S3Server) -> None:
    folder_of(at_bucket, "kb", "one")
    at_bucket.pair("publish", "s3://blobs/begun", "kb").succeeds()
    store = s3.store("begun")
    for key in ("releases.json", "kb-1.0.0.zip"):
        store.delete(key)
    folder_of(at_bucket, "other/kb", "two")
    assert at_bucket.pair("publish", "s3://blobs/begun", "other/kb", "--json").error_code == "E021"
    assert store.get("releases.json") is None
    at_bucket.pair("publish", "s3://blobs/begun", "kb").succeeds()
    at_bucket.pair("install", "--source", "s3://blobs/begun/releases.json").succeeds()


@pytest.mark.parametrize(
    ("content", "code"), [(None, "E005"), (b"{", "E019"), (b'{"schema_version": 1, "kbs": {}}', "E020")]
)
def test_an_invalid_feed_in_a_bucket_is_refused(
    at_bucket: Workplace, s3: S3Server, content: bytes | None, code: str
) -> None:
    prefix = f"none-{code}"
    if content is not None:
        s3.store(prefix).put("releases.json", content)
    refused = at_bucket.pair("install", "--source", f"s3://blobs/{prefix}/releases.json", "--json")
    assert refused.error_code == code
    assert SECRET_KEY not in refused.stdout + refused.stderr


def test_an_archive_in_a_bucket_that_is_not_what_the_feed_says_is_refused(at_bucket: Workplace, s3: S3Server) -> None:
    folder_of(at_bucket, "kb", "one")
    at_bucket.pair("publish", "s3://blobs/spoilt", "kb").succeeds()
    store = s3.store("spoilt")
    store.put("kb-1.0.0.zip", b"something else")
    source = "s3://blobs/spoilt/releases.json"
    assert at_bucket.pair("install", "--source", source, "--json").error_code == "E006"
    store.delete("kb-1.0.0.zip")
    assert at_bucket.pair("install", "--source", source, "--json").error_code == "E005"
    assert not at_bucket.target.exists()
