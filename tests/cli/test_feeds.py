"""Feeds of releases as sources, through the real command: over HTTP, and as files."""

import json
from pathlib import Path

import pytest

from pair import Settings, install, resolve_source
from pair.packages.release_index import LIMIT_BYTES
from support.command import Workplace, read_files
from support.kbs import sha256
from support.releases import feed_in, move_version, publish, published, serve
from support.server import Page, Server


def installed_version(workplace: Workplace) -> str:
    return read_files(workplace.target)["page.md"].decode()


# ── choosing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wanted", "version"),
    [
        ("releases.json", "1.10.0"),
        ("releases.json#handbook", "1.10.0"),
        ("releases.json#handbook@1.9.0", "1.9.0"),
        ("handbook@1.9.0", "1.9.0"),
        ("handbook@2.0.0-rc1", "2.0.0-rc1"),
    ],
)
@pytest.mark.parametrize("kind", ["http", "folder"])
def test_a_feed_is_a_source(workplace: Workplace, server: Server, kind: str, wanted: str, version: str) -> None:
    feed = published(workplace, server, "1.9.0", "1.10.0", "2.0.0-rc1")
    place = feed.removesuffix("releases.json") if kind == "http" else "./dist/"
    report = workplace.pair("install", "--source", place + wanted, "--json").succeeds().json
    assert installed_version(workplace) == report["version"] == version
    assert report["verified"] is True
    assert report["source"]["feed"] == (place + wanted if kind == "http" else f"{workplace.folder}/dist/{wanted}")
    assert report["source"]["sha256"] == sha256((workplace.folder / f"dist/handbook-{version}.zip").read_bytes())


def test_only_what_is_wanted_is_fetched_and_no_checksum_besides(workplace: Workplace, server: Server) -> None:
    feed = published(workplace, server, "1.0.0", "1.1.0")
    workplace.pair("install", "--source", feed).succeeds()
    assert [(each.method, each.path) for each in server.received] == [
        ("GET", "/kbs/releases.json"),
        ("HEAD", "/kbs/handbook-1.1.0.zip"),
        ("GET", "/kbs/handbook-1.1.0.zip"),
    ]


def test_a_feed_with_several_kbs_says_how_to_name_one(workplace: Workplace, server: Server) -> None:
    published(workplace, server, "1.0.0")
    feed = published(workplace, server, "2.1.0", name="cookbook")
    workplace.pair("install", "--source", feed).exits(1).says("cookbook 2.1.0, handbook 1.0.0", f"{feed}#NAME@VERSION")
    assert not workplace.target.exists()
    for name, version in (("cookbook", "2.1.0"), ("handbook", "1.0.0")):
        workplace.pair("install", f"docs/{name}", "--source", f"{feed}#{name}").succeeds()
        assert (workplace.folder / "docs" / name / "page.md").read_text() == version
    assert workplace.pair("install", "--source", f"{feed}#cookbook@1.0.0", "--json").error_code == "E020"


def test_a_path_that_exists_is_what_it_is_and_no_release(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    other = workplace.folder / "dist" / "handbook@1.0.0"
    other.mkdir()
    (other / "page.md").write_text("a folder")
    workplace.pair("install", "--source", "./dist/handbook@1.0.0").succeeds()
    assert installed_version(workplace) == "a folder"


def test_a_path_without_a_feed_beside_it_is_missing(workplace: Workplace) -> None:
    (workplace.folder / "dist").mkdir()
    assert workplace.pair("install", "--source", "./dist/handbook@1.0.0", "--json").error_code == "E003"
    assert workplace.pair("install", "--source", "./dist/releases.json", "--json").error_code == "E003"
    assert workplace.pair("install", "--source", "dist/releases.json", "--json").error_code == "E004"


def test_an_archive_may_have_its_own_address(workplace: Workplace, server: Server) -> None:
    published(workplace, server, "1.0.0")
    value = feed_in(workplace.folder / "dist")
    value["kbs"]["handbook"]["releases"][0]["file"] = server.url("/kbs/handbook-1.0.0.zip")
    (workplace.folder / "elsewhere").mkdir()
    (workplace.folder / "elsewhere" / "releases.json").write_text(json.dumps(value))
    assert (
        workplace.pair("install", "--offline", "--source", "./elsewhere/releases.json", "--json").error_code == "E007"
    )
    workplace.pair("install", "--source", "./elsewhere/releases.json").succeeds()
    assert installed_version(workplace) == "1.0.0"


def test_a_feed_is_a_source_in_python(workplace: Workplace, server: Server) -> None:
    feed = published(workplace, server, "1.0.0", "1.1.0")
    settings = Settings.load(environment={"PAIR_KB_CACHE_DIR": str(workplace.cache)})
    source = resolve_source(f"{feed}#handbook", settings=settings)
    assert (source.version, source.feed) == ("1.1.0", f"{feed}#handbook")
    install(source, workplace.target, settings=settings)
    assert installed_version(workplace) == "1.1.0"


# ── refusing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "source", ["http://127.0.0.1:9/releases.json", "http://127.0.0.1:9/kb@1.0.0", "s3://bucket/releases.json"]
)
def test_a_remote_feed_is_not_a_source_while_offline(workplace: Workplace, source: str) -> None:
    assert workplace.pair("install", "--offline", "--source", source, "--json").error_code == "E002"
    assert workplace.pair("update", "--offline", "--source", source, "--json").error_code == "E002"


def test_a_feed_in_a_folder_is_a_source_while_offline(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    workplace.pair("install", "--offline", "--source", "./dist/releases.json").succeeds()
    publish(workplace, "1.1.0")
    workplace.pair("update", "--offline", "--source", "./dist/releases.json").succeeds()
    assert installed_version(workplace) == "1.1.0"


@pytest.mark.parametrize("source", ["s3://bucket/kb.zip", "s3://bucket", "gs://bucket/releases.json"])
def test_in_a_bucket_only_a_feed_is_a_source(workplace: Workplace, source: str) -> None:
    assert workplace.pair("install", "--source", source, "--json").error_code == "E004"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<html>a page</html>", "E019"),
        (b"[" * 50_000, "E019"),
        (b'{"schema_version": 2, "kbs": {}}', "E019"),
        (b" " * (LIMIT_BYTES + 1), "E019"),
        (b'{"schema_version": 1, "kbs": {}}', "E020"),
    ],
)
def test_an_invalid_feed_is_refused(workplace: Workplace, server: Server, body: bytes, code: str) -> None:
    server.pages["/releases.json"] = Page(body)
    assert workplace.pair("install", "--source", server.url("/releases.json"), "--json").error_code == code
    (workplace.folder / "releases.json").write_bytes(body)
    assert workplace.pair("install", "--source", "./releases.json", "--json").error_code == code
    assert not workplace.target.exists()


def test_a_host_without_a_feed_is_a_failed_download(workplace: Workplace, server: Server) -> None:
    refused = workplace.pair("install", "--source", server.url("/handbook@1.0.0"), "--json")
    assert refused.error_code == "E005"
    assert server.url("/releases.json") in refused.json["error"]["message"]


def test_an_archive_that_is_not_what_the_feed_says_is_refused(workplace: Workplace, server: Server) -> None:
    feed = published(workplace, server, "1.0.0", "1.1.0")
    server.pages["/kbs/handbook-1.1.0.zip"] = server.pages["/kbs/handbook-1.0.0.zip"]
    (workplace.folder / "dist" / "handbook-1.1.0.zip").write_bytes(
        (workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes()
    )
    (workplace.folder / "dist" / "handbook-1.1.0.zip.sha256").unlink()
    for source in (feed, "./dist/releases.json"):
        assert workplace.pair("install", "--source", source, "--json").error_code == "E006"
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []


# ── updating ───────────────────────────────────────────────────────────────────────────────────────


def test_an_update_asks_the_feed_again_and_a_pinned_version_stays(workplace: Workplace, server: Server) -> None:
    feed = published(workplace, server, "1.0.0")
    workplace.pair("install", "--source", f"{feed}#handbook").succeeds()
    workplace.pair("install", "pinned", "--source", f"{feed}#handbook@1.0.0").succeeds()
    published(workplace, server, "1.1.0")
    workplace.pair("update").succeeds()
    assert installed_version(workplace) == "1.1.0"
    workplace.pair("update", "pinned").succeeds().says("up to date")
    assert server.received[-1].path == "/kbs/releases.json"
    assert (workplace.folder / "pinned" / "page.md").read_text() == "1.0.0"
    workplace.pair("update", "pinned", "--source", f"{feed}#handbook@1.1.0").succeeds()
    assert (workplace.folder / "pinned" / "page.md").read_text() == "1.1.0"


def test_a_relative_feed_is_recorded_so_that_it_is_found_again(workplace: Workplace, tmp_path: Path) -> None:
    publish(workplace, "1.0.0")
    workplace.pair("install", tmp_path / "target", "--source", "./dist/releases.json").succeeds()
    publish(workplace, "1.1.0")
    moved = workplace.folder / "deep"
    moved.mkdir()
    workplace.folder = moved
    workplace.pair("update", tmp_path / "target").succeeds()
    assert (tmp_path / "target" / "page.md").read_text() == "1.1.0"


@pytest.mark.parametrize(
    ("command", "wanted"), [("install", ""), ("install", "#handbook@1.0.0"), ("update", "#handbook")]
)
def test_a_feed_that_moved_a_version_is_refused_unless_forced(
    workplace: Workplace, server: Server, command: str, wanted: str
) -> None:
    feed = published(workplace, server, "1.0.0")
    workplace.pair("install", "--source", f"{feed}#handbook").succeeds()
    before = read_files(workplace.target)
    old = sha256((workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes())
    move_version(workplace, server, "1.0.0")
    new = sha256((workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes())
    refused = workplace.pair(command, "--source", feed + wanted, "--json").exits(4)
    assert refused.error_code == "E021"
    assert (refused.json["error"]["details"]["installed"], refused.json["error"]["details"]["offered"]) == (old, new)
    assert read_files(workplace.target) == before
    workplace.pair(command, "--source", feed + wanted, "--force").succeeds()
    assert installed_version(workplace) == "moved"
    workplace.pair("update").succeeds()


def test_credentials_of_a_feed_reach_its_archives_and_are_neither_shown_nor_stored(
    workplace: Workplace, server: Server
) -> None:
    published(workplace, server, "1.0.0")
    feed = server.url("/kbs/releases.json?key=hidden#handbook", host="ada:secret@127.0.0.1")
    done = workplace.pair("install", "--source", feed, "--json").succeeds()
    assert all("Authorization" in each.headers for each in server.received)
    assert "secret" not in done.stdout + done.stderr
    assert "hidden" not in done.stdout + done.stderr
    for path in (*workplace.target.rglob("*"), *workplace.cache.rglob("*")):
        assert not path.is_file() or b"secret" not in path.read_bytes()


def test_a_release_of_another_host_with_the_same_bytes_is_not_fetched_again(
    workplace: Workplace, server: Server
) -> None:
    feed = published(workplace, server, "1.0.0")
    mirror = serve(server, workplace.folder / "dist", "/mirror")
    workplace.pair("install", "--source", feed).succeeds()
    workplace.pair("install", "other", "--source", mirror).succeeds()
    assert server.requests("/mirror/handbook-1.0.0.zip") == []
    assert len(workplace.cached_entries()) == 1


def test_the_record_of_a_feed_is_described(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    workplace.pair("install", "--source", "./dist/releases.json", "--kb", "time").succeeds()
    found = workplace.pair("info", ".pair/knowledge", "--json").json
    archive = (workplace.folder / "dist" / "handbook-1.0.0.zip").read_bytes()
    release = feed_in(workplace.folder / "dist")["kbs"]["handbook"]["releases"][0]
    assert found["source"]["feed"] == f"{workplace.folder}/dist/releases.json"
    assert (found["kb_id"], found["archive_sha256"]) == ("time", sha256(archive))
    assert f"sha256:{found['content_sha256']}" == release["content_checksum"]
    assert (found["embedder"], found["manifest_version"], found["commit"]) == ("", 0, "")


def test_an_id_that_no_kb_can_have_is_refused(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")
    refused = workplace.pair("install", "--source", "./dist/releases.json", "--kb", "team/kb", "--json")
    assert refused.error_code == "E212"
    assert not workplace.target.exists()


def test_an_id_is_kept_until_another_one_is_named(workplace: Workplace) -> None:
    publish(workplace, "1.0.0")

    def kb_id() -> str:
        return str(workplace.pair("info", ".pair/knowledge", "--json").json["kb_id"])

    workplace.pair("install", "--source", "./dist/releases.json").succeeds()
    assert kb_id() == "default"
    workplace.pair("update", "--kb", "time").succeeds()
    assert kb_id() == "time"
    publish(workplace, "1.1.0")
    workplace.pair("update").succeeds()
    assert kb_id() == "time"
