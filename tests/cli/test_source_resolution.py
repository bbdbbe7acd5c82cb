"""The test matrix and the option table of the specification, through the real command."""

import json
import os
from pathlib import Path

import pytest

import pair
from support.command import Workplace, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, sha256, zip_of
from support.server import Page, Server

MONOREPO = "packages/knowledge-hub/dataset"


def add_release(server: Server, archive: bytes, *, version: str = "v1.2.3", **asset: str) -> dict[str, str]:
    """Add a release with one KB archive; return the environment variables that select it."""
    url = server.add("/assets/knowledge-base-1.2.3.zip", archive)
    assets = [
        {"name": "cli.tgz", "browser_download_url": server.url("/assets/cli.tgz")},
        {"name": "knowledge-base-1.2.3.zip", "browser_download_url": url} | asset,
    ]
    feed = json.dumps({"tag_name": version, "assets": assets}).encode()
    server.pages["/repos/foomakers/pair/releases/latest"] = Page(feed, etag=None)
    return {"PAIR__SOURCES__GITHUB_API_URL": server.url("")}


@pytest.mark.rule("source-1")
@pytest.mark.rule("source-4")
def test_without_a_source_the_monorepo_dataset_is_installed(workplace: Workplace) -> None:
    write_files(workplace.folder / MONOREPO, SMALL_KB)
    done = workplace.pair("install", "--json").succeeds()
    assert done.json["source"] == {
        "type": "monorepo",
        "location": str(workplace.folder / MONOREPO),
        "requiresDownload": False,
    }
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.rule("source-1")
@pytest.mark.rule("source-10")
def test_without_a_monorepo_the_latest_release_is_installed(workplace: Workplace, server: Server) -> None:
    done = workplace.pair("install", "--json", **add_release(server, zip_of(SMALL_KB))).succeeds()
    assert done.json["source"]["type"] == "github-release"
    assert done.json["source"]["version"] == "1.2.3"
    assert done.json["verified"] is True
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert workplace.cached_entries() == ["1.2.3"]


@pytest.mark.rule("source-10")
def test_the_digest_of_the_feed_is_preferred_to_a_checksum_file(workplace: Workplace, server: Server) -> None:
    archive = zip_of(SMALL_KB)
    variables = add_release(server, archive, digest=f"sha256:{sha256(archive)}")
    server.pages["/assets/knowledge-base-1.2.3.zip.sha256"] = Page(b"0" * 64)
    assert workplace.pair("install", "--json", **variables).json["verified"] is True
    assert server.requests("/assets/knowledge-base-1.2.3.zip.sha256") == []


@pytest.mark.rule("source-10")
def test_a_wrong_digest_in_the_feed_is_refused(workplace: Workplace, server: Server) -> None:
    variables = add_release(server, zip_of(SMALL_KB), digest=f"sha256:{'0' * 64}")
    workplace.pair("install", "--json", **variables).fails(2, "E006")
    assert not workplace.target.exists()


@pytest.mark.rule("source-10")
def test_the_default_url_replaces_the_release_feed(workplace: Workplace, server: Server) -> None:
    url = server.add("/mirror/kb.zip", zip_of(SMALL_KB))
    done = workplace.pair("install", "--json", PAIR_KB_DEFAULT_URL=url)
    assert done.json["source"]["type"] == "github-release"
    assert done.json["source"]["location"] == url
    assert workplace.cached_entries() == [sha256(url.encode())]


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"<html>",
        b'{"tag_name": "v1", "assets": [{"name": null}]}',
        b'{"tag_name": "v1", "assets": [{"name": 7}]}',
    ],
    ids=["no release", "not JSON", "an asset without a name", "a number as a name"],
)
def test_a_feed_without_a_release_is_a_download_error(workplace: Workplace, server: Server, body: bytes | None) -> None:
    if body is not None:
        server.pages["/repos/foomakers/pair/releases/latest"] = Page(body)
    workplace.pair("install", "--json", PAIR__SOURCES__GITHUB_API_URL=server.url("")).fails(2, "E005")


def test_an_address_of_a_release_that_is_not_valid_is_a_download_error(workplace: Workplace, server: Server) -> None:
    release = add_release(server, zip_of(SMALL_KB), browser_download_url="https://[")
    workplace.pair("install", "--json", **release).fails(2, "E005")
    feed = {"PAIR__SOURCES__GITHUB_API_URL": "https://[", "PAIR__SOURCES__RETRIES": "0"}
    workplace.pair("install", "--json", **feed).fails(2, "E005")


def test_when_the_feed_is_unavailable_the_cached_release_is_installed_and_reported(
    workplace: Workplace, server: Server
) -> None:
    variables = add_release(server, zip_of(SMALL_KB))
    workplace.pair("install", "first", **variables)
    del server.pages["/repos/foomakers/pair/releases/latest"]
    workplace.pair("install", "second", **variables).succeeds().says("using cached release 1.2.3")
    assert read_files(workplace.folder / "second") == SMALL_KB_BYTES


def test_releases_of_two_repositories_with_one_version_do_not_mix(workplace: Workplace, server: Server) -> None:
    variables = add_release(server, zip_of(SMALL_KB))
    workplace.pair("install", "first", **variables)
    url = server.add("/other/kb.zip", zip_of({"other.md": "other"}))
    feed = {"tag_name": "v1.2.3", "assets": [{"name": "kb.zip", "browser_download_url": url}]}
    server.pages["/repos/some/other/releases/latest"] = Page(json.dumps(feed).encode())
    workplace.pair("install", "second", PAIR__SOURCES__RELEASE_REPOSITORY="some/other", **variables)
    assert read_files(workplace.folder / "second") == {"other.md": b"other"}


@pytest.mark.rule("source-2")
def test_a_url_is_downloaded(workplace: Workplace, server: Server) -> None:
    write_files(workplace.folder / MONOREPO, {"not-this.md": "no"})
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    done = workplace.pair("install", "--source", url, "--json")
    assert done.json["source"] == {"type": "url", "location": url, "requiresDownload": True}
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.rule("source-3")
@pytest.mark.rule("source-16")
@pytest.mark.parametrize("offline", [(), ("--offline",), ("--no-kb",)], ids=["online", "offline", "no-kb"])
def test_a_local_path_is_used_unchanged(workplace: Workplace, offline: tuple[str, ...]) -> None:
    write_files(workplace.folder / MONOREPO, {"not-this.md": "no"})
    write_files(workplace.folder / "kb", SMALL_KB)
    done = workplace.pair("install", "--source", "./kb", *offline, "--json").succeeds()
    assert done.json["source"]["type"] == "local"
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.rule("source-5")
@pytest.mark.rule("source-19")
@pytest.mark.parametrize("command", ["install", "update"])
@pytest.mark.parametrize("flag", ["--offline", "--no-kb"])
def test_offline_without_a_source_is_e001_even_in_a_monorepo(workplace: Workplace, command: str, flag: str) -> None:
    write_files(workplace.folder / MONOREPO, SMALL_KB)
    done = workplace.pair(command, flag).exits(1)
    assert done.stderr.startswith("Error: --offline requires --source with local filesystem path\n")
    assert "Code: E001" in done.stderr
    assert done.stdout == ""


@pytest.mark.rule("source-6")
@pytest.mark.parametrize("command", ["install", "update"])
@pytest.mark.parametrize("source", ["http://127.0.0.1:9/kb.zip", "https://example.com/kb.zip", "git@host:o/r.git"])
def test_offline_with_a_remote_source_is_e002(workplace: Workplace, command: str, source: str) -> None:
    done = workplace.pair(command, "--offline", "--source", source).exits(1)
    assert done.stderr.startswith("Error: Cannot use --offline with remote URL\n\n--offline requires")


@pytest.mark.rule("source-8")
def test_a_bare_name_is_e004_and_suggests_the_path_when_it_exists(workplace: Workplace) -> None:
    assert "Did you mean" not in workplace.pair("install", "--source", "kb").stderr
    write_files(workplace.folder / "kb", SMALL_KB)
    done = workplace.pair("install", "--source", "kb").exits(1)
    assert done.stderr.startswith("Error: Invalid source format: kb\n")
    assert "./kb" in done.stderr


@pytest.mark.rule("source-7")
@pytest.mark.parametrize("flags", [(), ("--offline",)], ids=["online", "offline"])
def test_a_missing_path_is_e003_with_the_absolute_path(workplace: Workplace, flags: tuple[str, ...]) -> None:
    done = workplace.pair("install", "--source", "./missing", *flags)
    assert done.status == 1
    assert f"KB source path does not exist: {workplace.folder / 'missing'}" in done.stderr


@pytest.mark.rule("source-11")
def test_a_download_reached_while_offline_is_e007(workplace: Workplace) -> None:
    release = pair.KbSource("github-release", "https://127.0.0.1:9/kb.zip", requires_download=True)
    with pytest.raises(pair.PairError) as caught:
        pair.install(release, workplace.target, offline=True, settings=pair.Settings())
    assert (caught.value.code, caught.value.exit_status) == ("E007", 1)
    assert not workplace.target.parent.exists()


@pytest.mark.parametrize("command", ["install", "update"])
@pytest.mark.parametrize(
    ("source", "code"), [("./missing", "E003"), ("invalid", "E004"), ("", "E004")], ids=["path", "name", "empty"]
)
def test_errors_of_the_source_are_reported_first(workplace: Workplace, command: str, source: str, code: str) -> None:
    workplace.pair(command, "--source", source, "--json").fails(1, code)


@pytest.mark.rule("source-4")
def test_a_path_to_a_pipe_or_a_device_is_not_a_source(workplace: Workplace) -> None:
    os.mkfifo(workplace.folder / "pipe.zip")
    for source in ("./pipe.zip", "/dev/null"):
        done = workplace.pair("install", "--source", source, "--json")
        assert (done.error_code, done.json["error"]["explanation"]) == ("E004", "It is neither a folder nor a file.")


def test_a_home_is_meant_by_a_tilde_in_the_settings(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    places = {"PAIR__KB__SOURCES_DIR": "~/kb", "PAIR__KB__INDEX_PATH": "~/index.txt"}
    workplace.pair("install", "--source", "./kb", **places)
    workplace.pair("sync", **places)
    home = Path(workplace.environment["HOME"])
    assert read_files(home / "kb") == SMALL_KB_BYTES
    assert "README.md" in (home / "index.txt").read_text()


@pytest.mark.rule("source-21")
def test_diagnostics_hold_no_secret_of_the_default_url(workplace: Workplace, server: Server) -> None:
    server.add("/kb.zip", zip_of(SMALL_KB))
    url = f"http://user:hunter2@127.0.0.1:{server.port}/kb.zip?token=hunter3"
    done = workplace.pair("install", PAIR_KB_DEFAULT_URL=url, PAIR_DIAG="1").succeeds()
    assert "default KB from the settings" in done.stderr
    assert "hunter" not in done.stderr


def test_diagnostics_tell_what_was_looked_at_and_chosen_and_why(workplace: Workplace) -> None:
    write_files(workplace.folder / MONOREPO, SMALL_KB)
    done = workplace.pair("install", PAIR_DIAG="1")
    assert f"checked for the monorepo dataset path='{workplace.folder / MONOREPO}' exists=True" in done.stderr
    assert "chose the KB source type='monorepo'" in done.stderr
    assert "because='no --source, and the monorepo has a dataset'" in done.stderr
    assert "looked for" not in workplace.pair("install", PAIR_DIAG="0").stderr


@pytest.mark.rule("source-19")
@pytest.mark.parametrize(
    "arguments", [["--bogus"], ["install", "--bogus"], ["nosuch"], ["verify"], ["package"]], ids=" ".join
)
def test_a_usage_error_exits_1(workplace: Workplace, arguments: list[str]) -> None:
    done = workplace.pair(*arguments).exits(1)
    assert done.stderr.startswith("Error: ")
    assert "--help" in done.stderr
    workplace.pair(*arguments, "--json").fails(1, "E402")


def test_shared_options_are_accepted_before_and_after_the_command(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    before = workplace.pair("--json", "install", "one", "--source", "./kb")
    assert before.json["added"] == workplace.pair("install", "two", "--source", "./kb", "--json").json["added"]


def test_without_arguments_the_help_is_shown(workplace: Workplace) -> None:
    workplace.pair().succeeds().prints("Search and ask:")
