"""A package from a feed is the one that the feed names, and is not older than the installed one."""

import json
import shutil
from pathlib import Path

import pytest

from support.clocks import Subscription
from support.command import Workplace, read_files
from support.kbs import sha256
from support.minisign import Keys, make_keys
from support.releases import feed_in, publish, published, serve
from support.server import Server


@pytest.fixture
def keys(workplace: Workplace, tmp_path: Path) -> Keys:
    """Return keys whose signatures the workplace requires."""
    made = make_keys(tmp_path / "keys")
    workplace.environment |= {
        "PAIR__SOURCES__SIGNATURE_KEYS": made.line,
        "PAIR__SOURCES__REQUIRE_SIGNATURE": "true",
    }
    return made


def sign_in(dist: Path, keys: Keys) -> None:
    for archive in dist.glob("*.zip"):
        keys.sign(archive)


def put_in_place(dist: Path, of: str, other: str) -> None:
    """Act as an attacker who can write to the host but cannot sign: replace the archive of a release."""
    for suffix in ("", ".minisig"):
        if (dist / f"{other}.zip{suffix}").exists():
            shutil.copy(dist / f"{other}.zip{suffix}", dist / f"{of}.zip{suffix}")
    content = (dist / f"{of}.zip").read_bytes()
    (dist / f"{of}.zip.sha256").write_text(f"{sha256(content)}  {of}.zip\n")
    value = feed_in(dist)
    for entry in value["kbs"].values():
        for release in entry["releases"]:
            if release["file"] == f"{of}.zip":
                release |= {"sha256": sha256(content), "size_bytes": len(content)}
    (dist / "releases.json").write_text(json.dumps(value))


@pytest.mark.parametrize("kind", ["http", "folder"])
@pytest.mark.parametrize("other", ["handbook-1.0.0", "cookbook-1.1.0"], ids=["old version", "other KB"])
def test_a_signed_package_under_the_name_of_another_release_is_refused(
    workplace: Workplace, server: Server, keys: Keys, kind: str, other: str
) -> None:
    dist = workplace.folder / "dist"
    for version in ("1.0.0", "1.1.0"):
        publish(workplace, version)
    publish(workplace, "1.1.0", name="cookbook")
    sign_in(dist, keys)
    put_in_place(dist, "handbook-1.1.0", other)
    feed = serve(server, dist) if kind == "http" else "./dist/releases.json"
    done = workplace.pair("install", "--source", f"{feed}#handbook", "--json").fails(5, "E027")
    assert done.json["error"]["details"]["said"] == other.replace("-", " ")
    assert not workplace.target.exists()
    forced = workplace.pair("install", "--force", "--source", f"{feed}#handbook", "--json")
    assert forced.error_code == "E027", "no option takes a package for another one"


def test_an_archive_without_a_manifest_is_not_a_release(workplace: Workplace, server: Server) -> None:
    published(workplace, server, "1.0.0")
    dist = workplace.folder / "dist"
    shutil.make_archive(str(dist / "plain"), "zip", workplace.folder / "kbs" / "handbook-1.0.0")
    put_in_place(dist, "handbook-1.0.0", "plain")
    workplace.pair("install", "--source", serve(server, dist), "--json").fails(5, "E027")


def test_parts_of_another_release_are_refused_too(subscription: Subscription) -> None:
    subscription.install_and_publish()
    feed = subscription.server.pages["/kbs/releases.json"]
    value = json.loads(feed.body)
    value["kbs"]["clocks"]["releases"][-1]["version"] = "1.2.0"
    feed.body = json.dumps(value).encode()
    before = read_files(subscription.elsewhere.target)
    subscription.elsewhere.pair("update", "--json").fails(5, "E027")
    assert read_files(subscription.elsewhere.target) == before


def withdraw_the_latest(workplace: Workplace, server: Server) -> None:
    value = feed_in(workplace.folder / "dist")
    del value["kbs"]["handbook"]["releases"][-1]
    server.pages["/kbs/releases.json"].body = json.dumps(value).encode()


@pytest.mark.parametrize("command", ["install", "update"])
@pytest.mark.parametrize("wanted", ["#handbook", "#handbook@1.9.0"], ids=["latest", "pinned"])
def test_an_older_version_is_installed_only_when_forced(
    workplace: Workplace, server: Server, command: str, wanted: str
) -> None:
    feed = published(workplace, server, "1.9.0", "1.10.0")
    assert workplace.pair("install", "--source", f"{feed}#handbook").status == 0
    withdraw_the_latest(workplace, server)
    before = read_files(workplace.target)
    done = workplace.pair(command, "--source", feed + wanted, "--json").fails(4, "E028")
    assert (done.json["error"]["details"]["installed"], done.json["error"]["details"]["offered"]) == ("1.10.0", "1.9.0")
    assert read_files(workplace.target) == before
    assert "--force" in workplace.pair(command, "--source", feed + wanted).stderr
    assert workplace.pair(command, "--source", feed + wanted, "--force").status == 0
    assert read_files(workplace.target)["page.md"] == b"1.9.0"


def test_an_update_that_names_no_source_does_not_go_back_either(workplace: Workplace, server: Server) -> None:
    feed = published(workplace, server, "1.0.0", "1.1.0")
    assert workplace.pair("install", "--source", f"{feed}#handbook").status == 0
    withdraw_the_latest(workplace, server)
    assert workplace.pair("update", "--json").error_code == "E028"


def test_an_address_that_has_an_older_package_again_is_refused_by_an_update(
    workplace: Workplace, server: Server, keys: Keys
) -> None:
    dist = workplace.folder / "dist"
    for version in ("1.0.0", "1.1.0"):
        publish(workplace, version)
    sign_in(dist, keys)
    for version in ("1.1.0", "1.0.0"):
        archive = dist / f"handbook-{version}.zip"
        url = server.add("/kb.zip", archive.read_bytes(), etag=f'"{version}"')
        server.add("/kb.zip.minisig", archive.with_name(archive.name + ".minisig").read_bytes(), checksum=False)
        if version == "1.1.0":
            assert workplace.pair("install", "--source", url).status == 0
    workplace.pair("update", "--json").fails(4, "E028")
    assert read_files(workplace.target)["page.md"] == b"1.1.0"


def test_another_kb_in_the_same_folder_is_not_an_older_version(workplace: Workplace, server: Server) -> None:
    published(workplace, server, "2.0.0")
    feed = published(workplace, server, "1.0.0", name="cookbook")
    assert workplace.pair("install", "--source", f"{feed}#handbook").status == 0
    assert workplace.pair("install", "--source", f"{feed}#cookbook").status == 0
