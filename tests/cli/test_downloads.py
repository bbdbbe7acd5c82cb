"""Downloads from a server that behaves badly, through the real command."""

import gzip
import re
import signal
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.command import Workplace, read_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, sha256, zip_of, zip_of_size
from support.server import Page, Server

MEGABYTE = 1_000_000


def part_files(workplace: Workplace) -> list[str]:
    return sorted(path.suffix for path in (workplace.cache / ".partial").glob("*"))


@pytest.mark.rule("source-12")
def test_a_download_asks_head_then_checksum_then_get(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    done = workplace.pair("install", "--source", url).succeeds()
    assert [(request.method, request.path) for request in server.received] == [
        ("HEAD", "/kb.zip"),
        ("GET", "/kb.zip.sha256"),
        ("GET", "/kb.zip"),
    ]
    assert "checksum verified" in done.stderr


@pytest.mark.rule("source-13")
def test_a_download_cut_at_99_percent_fetches_only_the_rest(workplace: Workplace, server: Server) -> None:
    archive = zip_of_size(100 * MEGABYTE)
    url = server.add("/kb.zip", archive, cut_after=[len(archive) * 99 // 100])
    workplace.pair("install", "--source", url).succeeds()
    assert server.sent_bytes["/kb.zip"] - len(archive) <= MEGABYTE
    assert server.requests("/kb.zip", "GET")[1].headers["If-Range"] == '"one"'
    assert read_files(workplace.target)["README.md"] == b"# Large\n"


@pytest.mark.rule("source-13")
def test_a_download_is_resumed_by_the_next_process(workplace: Workplace, server: Server) -> None:
    archive = zip_of_size(4 * MEGABYTE)
    url = server.add("/kb.zip", archive, cut_after=[3 * MEGABYTE])
    first = workplace.pair("install", "--source", url, "--json", PAIR__SOURCES__RETRIES="0")
    # What arrived was worth another try, so it takes a second fault to give up.
    assert first.status == 0, first.stdout
    assert server.sent_bytes["/kb.zip"] == len(archive)
    assert part_files(workplace) == []


@pytest.mark.rule("source-13")
def test_an_interrupted_download_is_kept_and_the_target_untouched(workplace: Workplace, server: Server) -> None:
    archive = zip_of_size(4 * MEGABYTE)
    reached, go_on = threading.Event(), threading.Event()
    url = server.add("/kb.zip", archive)
    page = server.pages["/kb.zip"]
    page.cut_after = [3 * MEGABYTE]

    def hold_second_request(request: object) -> None:
        if len(server.requests("/kb.zip", "GET")) == 2:
            reached.set()
            go_on.wait(60)

    page.before_body = hold_second_request
    running = workplace.start("install", "--source", url)
    assert reached.wait(60)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    go_on.set()
    assert running.returncode == 130
    assert "Interrupted" in stderr
    assert not workplace.target.exists()
    assert part_files(workplace) == [".json", ".part"]
    before = server.sent_bytes["/kb.zip"]
    assert workplace.pair("install", "--source", url).status == 0
    final = server.requests("/kb.zip", "GET")[-1]
    assert final.headers["Range"] == f"bytes={3 * MEGABYTE}-"
    assert server.sent_bytes["/kb.zip"] >= before
    assert workplace.target.exists()


@pytest.mark.rule("source-13")
@pytest.mark.parametrize(
    "manners",
    [
        pytest.param({"honours_range": False}, id="ignores Range"),
        pytest.param({"content_range": "bytes 0-9/10"}, id="answers another range"),
        pytest.param({"content_range": "nonsense"}, id="answers a malformed range"),
        pytest.param({"etag": None}, id="has no ETag"),
        pytest.param({"etag": 'W/"weak"'}, id="has a weak ETag"),
        pytest.param({"etag": None, "last_modified": "Mon, 02 Nov 2026 10:00:00 GMT"}, id="has only a date"),
    ],
)
def test_a_cut_download_ends_well_with_a_server_that(
    workplace: Workplace, server: Server, manners: dict[str, Any]
) -> None:
    url = server.add("/kb.zip", zip_of_size(2 * MEGABYTE), cut_after=[MEGABYTE], **manners)
    workplace.pair("install", "--source", url).succeeds()
    assert read_files(workplace.target)["README.md"] == b"# Large\n"


@pytest.mark.rule("source-13")
@pytest.mark.parametrize("honours_if_range", [True, False], ids=["answers 200", "answers 206 with the new ETag"])
def test_a_file_that_changes_between_two_parts_is_fetched_again(
    workplace: Workplace, server: Server, honours_if_range: bool
) -> None:
    url = server.add("/kb.zip", zip_of_size(2 * MEGABYTE), checksum=False, cut_after=[MEGABYTE])
    page = server.pages["/kb.zip"]
    page.honours_if_range = honours_if_range
    new = zip_of({"new.md": "new", "filler.bin": zip_of_size(2 * MEGABYTE)})

    def change_after_first_part(request: object) -> None:
        if len(server.requests("/kb.zip", "GET")) == 1:
            threading.Timer(0, swap).start()

    def swap() -> None:
        page.body, page.etag = new, '"two"'

    page.before_body = change_after_first_part
    page.has_head = False
    workplace.pair("install", "--source", url).succeeds()
    assert read_files(workplace.target)["new.md"] == b"new"


def test_a_part_that_nothing_identifies_is_not_continued_with_another_file(
    workplace: Workplace, server: Server
) -> None:
    url = server.add("/kb.zip", zip_of_size(MEGABYTE // 2), checksum=False, etag=None, cut_after=[MEGABYTE // 4])
    first = workplace.pair("install", "--source", url, "--json", PAIR__SOURCES__RETRIES="0")
    assert first.error_code == "E005"
    # As long as the first one, so that only its bytes tell them apart.
    server.pages["/kb.zip"].body = zip_of({"other.bin": bytes(MEGABYTE // 2)}, zipfile.ZIP_STORED)
    workplace.pair("install", "--source", url).succeeds()
    assert "Range" not in server.requests("/kb.zip", "GET")[-1].headers
    assert read_files(workplace.target).keys() == {"other.bin"}


def test_a_checksum_that_changed_alone_costs_no_download_and_is_an_error(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", url)
    sent = server.sent_bytes["/kb.zip"]
    server.pages["/kb.zip.sha256"].body = b"0" * 64
    assert workplace.pair("update", "--json").error_code == "E006"
    assert server.requests("/kb.zip", "GET")[-1].headers["If-None-Match"] == '"one"'
    assert server.sent_bytes["/kb.zip"] == sent
    assert read_files(workplace.target) == SMALL_KB_BYTES


@pytest.mark.parametrize("declared", [10, 900_000], ids=["shorter", "longer"])
@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
def test_a_wrong_length_brings_the_whole_file_or_an_error(
    workplace: Workplace, server: Server, declared: int, checksum: bool
) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), declared_length=declared, checksum=checksum)
    done = workplace.pair("install", "--source", url, "--json")
    if done.status == 0:
        assert done.json["verified"] is True
        assert read_files(workplace.target) == SMALL_KB_BYTES
    else:
        assert done.status == 2
        assert not workplace.target.exists()
        assert workplace.cached_entries() == []


def test_head_and_get_that_disagree_without_a_checksum_are_refused(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), checksum=False)
    page = server.pages["/kb.zip"]
    page.before_body = lambda _request: setattr(page, "declared_length", None)
    page.declared_length = 12
    server.pages["/kb.zip"] = page
    workplace.pair("install", "--source", url, "--json").exits(2)
    assert not workplace.target.exists()


@pytest.mark.rule("source-23")
def test_too_many_requests_are_answered_with_the_pause_asked_for(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), statuses=[(429, {"Retry-After": "0"})])
    workplace.pair("install", "--source", url).succeeds().says("HTTP 429 Too Many Requests: trying again")


@pytest.mark.rule("source-23")
def test_a_pause_longer_than_anyone_waits_is_an_error_that_says_so(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), statuses=[(429, {"Retry-After": "86400"})])
    workplace.pair("install", "--source", url).exits(2).says("retry in 86400s")


@pytest.mark.rule("source-23")
def test_a_server_that_fails_twice_is_asked_a_third_time(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), statuses=[(500, {}), (503, {})])
    assert workplace.pair("install", "--source", url).status == 0
    assert len(server.requests("/kb.zip", "GET")) == 3


@pytest.mark.rule("source-23")
def test_three_retries_are_made_and_no_more(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), statuses=[(500, {})] * 10)
    done = workplace.pair("install", "--source", url).exits(2).says("Network error: HTTP 500")
    assert done.stderr.count("trying again") == 3
    assert len(server.requests("/kb.zip", "GET")) == 4


def test_a_missing_archive_is_not_asked_for_twice(workplace: Workplace, server: Server) -> None:
    workplace.pair("install", "--source", server.url("/gone.zip"), "--json").fails(2, "E005")
    assert len(server.requests("/gone.zip", "GET")) == 1


@pytest.mark.rule("source-22")
def test_redirects_are_followed_for_all_three_requests_and_no_token_follows(
    workplace: Workplace, server: Server
) -> None:
    with Server() as storage:
        archive = zip_of(SMALL_KB)
        storage.add("/blob/kb.zip", archive)
        feed = f"""{{"tag_name": "v1", "assets": [
            {{"name": "kb.zip", "browser_download_url": "{server.url("/kb.zip")}"}}]}}"""
        server.pages["/repos/foomakers/pair/releases/latest"] = Page(feed.encode())
        server.pages["/kb.zip"] = Page(redirect=storage.url("/blob/kb.zip", host="localhost"))
        server.pages["/kb.zip.sha256"] = Page(redirect=storage.url("/blob/kb.zip.sha256", host="localhost"))
        done = workplace.pair(
            "install", "--json", PAIR__SOURCES__GITHUB_API_URL=server.url(""), GITHUB_TOKEN="s3cret-token"
        ).succeeds()
        assert done.json["verified"] is True
        assert {request.headers.get("Authorization") for request in server.received} == {"Bearer s3cret-token"}
        assert [request.headers.get("Authorization") for request in storage.received] == [None, None, None]
    assert "s3cret-token" not in done.stdout + done.stderr


@pytest.mark.rule("source-22")
def test_the_token_is_not_sent_to_a_source_that_the_user_named(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", url, GITHUB_TOKEN="s3cret-token")
    assert [request.headers.get("Authorization") for request in server.received] == [None, None, None]


def test_a_redirect_loop_is_a_download_error(workplace: Workplace, server: Server) -> None:
    server.pages["/kb.zip"] = Page(redirect="/kb.zip")
    workplace.pair("install", "--source", server.url("/kb.zip"), "--json").fails(2, "E005")


@pytest.mark.rule("source-12")
def test_a_server_without_head_is_accepted(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), has_head=False)
    assert workplace.pair("install", "--source", url).status == 0


@pytest.mark.rule("source-24")
def test_a_missing_checksum_is_allowed_and_said_aloud(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), checksum=False)
    workplace.pair("install", "--source", url).succeeds().says(f"unverified: no SHA-256 is published for {url}")


@pytest.mark.rule("source-24")
def test_a_missing_checksum_is_refused_when_one_is_required(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), checksum=False)
    workplace.pair("install", "--source", url, "--json", PAIR__SOURCES__REQUIRE_CHECKSUM="true").fails(2, "E006")
    assert server.requests("/kb.zip", "GET") == []


@pytest.mark.rule("source-24")
def test_a_required_checksum_is_required_of_a_cached_download_too(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB), checksum=False)
    assert workplace.pair("install", "one", "--source", url).status == 0
    strict = {"PAIR__SOURCES__REQUIRE_CHECKSUM": "true"}
    workplace.pair("install", "two", "--source", url, "--json", **strict).fails(2, "E006")
    server.add("/kb.zip", zip_of(SMALL_KB))
    assert workplace.pair("install", "two", "--source", url, **strict).status == 0


@pytest.mark.rule("source-24")
@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        pytest.param("{hash}", 0, None, id="bare"),
        pytest.param("{HASH}  kb.zip\n", 0, None, id="upper case with a name"),
        pytest.param("{zeros}  other.zip\n{hash} *kb.zip\r\n", 0, None, id="one of several files"),
        pytest.param("{zeros}  kb.zip\n", 2, "E006", id="wrong"),
        pytest.param("<html>not found</html>", 2, "E006", id="a page instead"),
        pytest.param("{hash}00", 2, "E006", id="too long"),
        pytest.param("", 2, "E006", id="empty"),
    ],
)
def test_a_checksum_file_that_is(
    workplace: Workplace, server: Server, content: str, status: int, code: str | None
) -> None:
    archive = zip_of(SMALL_KB)
    url = server.add("/kb.zip", archive)
    published = content.format(hash=sha256(archive), HASH=sha256(archive).upper(), zeros="0" * 64)
    server.pages["/kb.zip.sha256"] = Page(published.encode())
    done = workplace.pair("install", "--source", url, "--json")
    assert done.status == status, done.stdout
    if code is not None:
        assert done.error_code == code
        assert not workplace.target.exists()
        assert workplace.cached_entries() == []
        assert part_files(workplace) == []


@pytest.mark.rule("source-24")
def test_a_checksum_that_cannot_be_read_is_e006(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    server.pages["/kb.zip.sha256"].statuses = [(403, {})]
    workplace.pair("install", "--source", url, "--json").fails(2, "E006")


@pytest.mark.rule("source-20")
def test_a_checksum_error_names_file_wanted_and_actual_hash(workplace: Workplace, server: Server) -> None:
    archive = zip_of(SMALL_KB)
    url = server.add("/kb.zip", archive)
    server.pages["/kb.zip.sha256"] = Page(b"0" * 64)
    done = workplace.pair("install", "--source", url)
    for part in (url, "0" * 64, sha256(archive), "Downloaded file may be corrupted or tampered with."):
        assert part in done.stderr


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.rule("source-23")
@pytest.mark.rule("source-20")
def test_a_server_that_hangs_is_given_up_after_the_time_limit(workplace: Workplace) -> None:
    with silent_port() as port:
        done = workplace.pair(
            "install",
            "--source",
            f"http://127.0.0.1:{port}/kb.zip",
            PAIR__SOURCES__TIMEOUT_SECONDS="0.2",
            PAIR__SOURCES__RETRIES="1",
        )
    assert done.status == 2
    assert "Network error: Connection timeout after 0.2s" in done.stderr


def test_an_unknown_host_is_a_network_error(workplace: Workplace) -> None:
    with silent_port() as port:
        pass
    workplace.pair("install", "--source", f"http://127.0.0.1:{port}/kb.zip", "--json").fails(2, "E005")
    assert not workplace.target.exists()


def test_gzip_on_the_way_is_taken_off_before_the_checksum(workplace: Workplace, server: Server) -> None:
    archive = zip_of(SMALL_KB)
    url = server.add("/kb.zip", gzip.compress(archive), headers={"Content-Encoding": "gzip"})
    server.pages["/kb.zip.sha256"] = Page(sha256(archive).encode())
    workplace.pair("install", "--source", url).succeeds()
    assert read_files(workplace.target) == SMALL_KB_BYTES


def test_a_proxy_from_the_environment_is_used(workplace: Workplace, server: Server) -> None:
    archive = zip_of(SMALL_KB)
    url = "http://kb.invalid/kb.zip"
    server.pages[url] = Page(archive)
    server.pages[f"{url}.sha256"] = Page(sha256(archive).encode())
    workplace.pair("install", "--source", url, HTTP_PROXY=server.url("")).succeeds()
    assert read_files(workplace.target) == SMALL_KB_BYTES


def test_a_query_stays_with_the_archive_and_its_checksum_and_is_not_shown(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of(SMALL_KB)) + "?signature=s3cret"
    done = workplace.pair("install", "--source", url, PAIR_DIAG="1").succeeds().says("checksum verified")
    described = workplace.pair("info", workplace.target, "--json")
    assert described.json["source"]["location"] == server.url("/kb.zip") + "?signature=…"
    told = workplace.pair("info", workplace.target)
    assert "s3cret" not in done.stderr + described.stdout + told.stdout


def test_progress_is_printed_as_percent_lines_and_never_with_json(workplace: Workplace, server: Server) -> None:
    url = server.add("/kb.zip", zip_of_size(MEGABYTE))
    told = workplace.pair("install", "one", "--source", url).stderr
    assert re.findall(r"kb.zip: (\d+)% of 1.0 MB", told)[-1] == "100"
    quiet = workplace.pair("install", "two", "--source", url, "--json", PAIR_KB_CACHE_DIR=str(workplace.folder / "c"))
    assert quiet.stderr == ""
