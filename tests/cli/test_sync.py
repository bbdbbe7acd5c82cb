"""The commands `pair sync` and `pair status`, with real files, servers and processes."""

import contextlib
import datetime
import json
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.command import PAIR, Workplace, file_states, read_files, write_files
from support.model_server import EMPTY, NONSENSE, Answer, ModelServer
from support.server import Page, Server

PAGES: dict[str, str | bytes] = {
    "deploy.md": "# Deploying\n\nWe deploy on Tuesdays with `make ship`.\n",
    "guides/rollback.md": "# Rolling back\n\nRun `make undo` and tell the channel.\n",
    "notes.txt": "Lunch is at one.\n",
}
LOOPBACK = {"PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true"}


@pytest.fixture
def project(workplace: Workplace) -> Workplace:
    write_files(workplace.target, PAGES)
    return workplace


def index_of(workplace: Workplace) -> str:
    return (workplace.folder / ".pair/index.txt").read_text(encoding="utf-8")


def state_of(workplace: Workplace) -> dict[str, dict[str, object]]:
    value = json.loads((workplace.folder / ".pair/index-cache.json").read_text(encoding="utf-8"))
    sources: dict[str, dict[str, object]] = value["sources"]
    return sources


def write_links(workplace: Workplace, *urls: str) -> None:
    write_files(workplace.folder / ".pair", {"links.txt": "".join(f"{url}\n" for url in urls)})


def with_model(server: ModelServer) -> dict[str, str]:
    return {
        "PAIR__AI__BASE_URL": server.url,
        "PAIR__AI__MODEL": "stub",
        "PAIR__AI__RETRIES": "0",
        "PAIR__AI__TIMEOUT_SECONDS": "5",
    }


@pytest.mark.rule("sync-5")
@pytest.mark.rule("sync-54")
@pytest.mark.parametrize("command", ["sync", "init-kb", "init_kb"])
def test_one_run_writes_an_index_without_any_model(project: Workplace, command: str) -> None:
    done = project.pair(command, "--json").succeeds()
    assert (done.json["added"], done.json["model_calls"], done.json["pending"]) == (3, 0, 0)
    entries = index_of(project).split("\n\n")
    assert [entry.partition("\n")[0] for entry in entries] == sorted(PAGES)
    assert "Deploying" in entries[0]


@pytest.mark.rule("sync-1")
def test_a_second_run_over_nothing_new_reads_calls_requests_and_writes_nothing(
    project: Workplace, server: Server
) -> None:
    write_links(project, server.add("/page", b"<html><body><p>A page about clocks.</p></body></html>", checksum=False))
    server.pages["/page"].headers = {"Content-Type": "text/html"}
    with ModelServer() as model:
        variables = with_model(model) | LOOPBACK
        first = project.pair("sync", "--json", **variables)
        assert (first.json["added"], first.json["model_calls"]) == (4, 4)
        asked, calls = len(server.received), model.calls
        before = file_states(project.folder / ".pair", without=".lock")
        # Whatever is opened below the sources folder shows up in the trace.
        trace = project.folder.parent / "trace"
        command: list[str | Path] = [
            "strace",
            "-f",
            "-e",
            "trace=openat,open",
            "-o",
            trace,
            *PAIR,
            "sync",
            "--json",
        ]
        environment = project.environment | variables
        done = subprocess.run(command, cwd=project.folder, env=environment, check=True, capture_output=True, text=True)
        report = json.loads(done.stdout)
        assert (report["unchanged"], report["model_calls"], report["bytes_read"]) == (4, 0, 0)
        opened = trace.read_text(errors="replace")
        assert not any(name in opened for name in ("deploy.md", "rollback.md", "notes.txt"))
        assert (len(server.received), model.calls) == (asked, calls)
        assert file_states(project.folder / ".pair", without=".lock") == before


@pytest.mark.rule("sync-20")
def test_a_touch_is_noticed_and_costs_no_summary(project: Workplace) -> None:
    with ModelServer() as model:
        project.pair("sync", **with_model(model))
        calls = model.calls
        os.utime(project.target / "deploy.md", ns=(1, 1))
        assert project.pair("sync", "--json", **with_model(model)).json["unchanged"] == 3
        assert model.calls == calls


@pytest.mark.rule("sync-11")
def test_files_that_are_not_text_are_skipped_once_with_the_reason(project: Workplace) -> None:
    write_files(
        project.target,
        {
            "bom.md": b"\xef\xbb\xbf# With a mark\n",
            "crlf.md": b"# Windows\r\n\r\nLines.\r\n",
            "latin1.txt": "caf\xe9".encode("latin-1"),
            "logo.png": b"\x89PNG\r\n\x1a\n\0",
            "huge.txt": b"x" * 5_000_000,
            ".hidden.md": "hidden",
            ".folder/page.md": "hidden",
        },
    )
    (project.target / "loop").symlink_to("loop")
    (project.target / "out.md").symlink_to("/etc/hostname")
    done = project.pair("sync", "--json")
    skipped = {entry["path"]: entry["reason"] for entry in done.json["skipped"]}
    assert skipped == {
        "logo.png": "not text in any known charset",
        "huge.txt": "larger than 2,000,000 bytes",
        "loop": "link to nothing",
        "out.md": "link out of the folder",
    }
    assert done.json["added"] == 6
    again = project.pair("sync", "--json")
    assert (again.json["unchanged"], again.json["bytes_read"]) == (6, 0)
    assert {entry["path"] for entry in again.json["skipped"]} == set(skipped)


@pytest.mark.rule("sync-19")
@pytest.mark.parametrize(
    "answer",
    [Answer(status=500), Answer(status=429), EMPTY, NONSENSE],
    ids=["500", "429", "empty", "nonsense"],
)
def test_a_model_that_fails_leaves_the_old_summary_and_is_asked_again(project: Workplace, answer: Answer) -> None:
    with ModelServer() as model:
        project.pair("sync", **with_model(model))
        old = index_of(project)
        write_files(project.target, {"deploy.md": "# Deploying\n\nNow on Fridays.\n"})
        model.answers.append(answer)
        failed = project.pair("sync", "--json", **with_model(model))
        assert (failed.status, failed.json["pending"]) == (0, 1)
        assert failed.json["problems"][0]["source"] == "deploy.md"
        assert index_of(project) == old
        assert "deploy.md" in project.pair("status").stdout
        done = project.pair("sync", "--json", **with_model(model))
        assert (done.json["pending"], done.json["model_calls"]) == (0, 1)


@pytest.mark.rule("sync-26")
@pytest.mark.rule("sync-25")
def test_the_first_refresh_of_a_page_is_conditional(project: Workplace, server: Server) -> None:
    url = server.add("/page", b"A page in plain text.", checksum=False, headers={"Content-Type": "text/plain"})
    write_links(project, url)
    variables = LOOPBACK | {"PAIR__KB__URL_REFRESH_MIN_INTERVAL_SECONDS": "0"}
    assert project.pair("sync", "--json", **variables).json["fetched"] == 1
    again = project.pair("sync", "--json", **variables)
    assert (again.json["not_modified"], again.json["fetched"]) == (1, 0)
    assert server.requests("/page")[-1].headers["If-None-Match"] == '"one"'
    assert state_of(project)[url]["url"]["fetch_status"] == "not_modified"  # type: ignore[index]


@pytest.mark.rule("sync-25")
def test_a_page_behind_a_redirect_to_another_host_is_refreshed_on_its_own_conditions(
    project: Workplace, server: Server
) -> None:
    with Server() as other:
        server.pages["/old"] = Page(redirect=other.add("/new", b"A page.", headers={"Content-Type": "text/plain"}))
        write_links(project, server.url("/old"))
        variables = LOOPBACK | {"PAIR__KB__URL_REFRESH_MIN_INTERVAL_SECONDS": "0"}
        assert project.pair("sync", "--json", **variables).json["fetched"] == 1
        assert project.pair("sync", "--json", **variables).json["not_modified"] == 1
        assert other.requests("/new")[-1].headers["If-None-Match"] == '"one"'
        assert all("If-None-Match" not in request.headers for request in server.requests("/old"))


@pytest.mark.rule("sync-32")
@pytest.mark.parametrize("status", [404, 410, 500, 503])
def test_a_page_that_fails_keeps_its_summary_and_is_tried_again(
    project: Workplace, server: Server, status: int
) -> None:
    url = server.add("/page", b"A page about clocks.", checksum=False, headers={"Content-Type": "text/plain"})
    write_links(project, url)
    variables = LOOPBACK | {"PAIR__KB__URL_REFRESH_MIN_INTERVAL_SECONDS": "0"}
    project.pair("sync", **variables)
    before = index_of(project)
    server.pages["/page"].statuses = [(status, {})]
    done = project.pair("sync", "--json", **variables)
    assert (done.status, done.json["failed"]) == (0, 1)
    assert index_of(project) == before
    assert f"{status}" in project.pair("status").stdout


@pytest.mark.rule("sync-23")
def test_a_new_page_that_fails_gets_no_record(project: Workplace, server: Server) -> None:
    write_links(project, server.url("/gone"))
    assert project.pair("sync", "--json", **LOOPBACK).json["failed"] == 1
    assert server.url("/gone") not in state_of(project)
    assert project.pair("sync", "--json", **LOOPBACK).json["failed"] == 1


def test_status_lists_failures_and_the_reasons_of_pending_sources(project: Workplace, server: Server) -> None:
    write_links(project, server.url("/gone"))
    with ModelServer() as model:
        model.answers += [Answer(400, body='{"error": {"message": "content policy"}}')]
        variables = with_model(model) | LOOPBACK | {"PAIR__KB__SUMMARIZATION_CONCURRENCY": "1"}
        project.pair("sync", **variables)
        stood = project.pair("status", "--json").json["sync"]
        assert [(entry["source"], entry["reason"]) for entry in stood["failing"]] == [
            (server.url("/gone"), "HTTP 404 Not Found")
        ]
        (pending,) = stood["pending"]
        assert pending["source"] == "deploy.md"
        assert "content policy" in pending["reason"]
        server.add("/gone", b"A page.", checksum=False, headers={"Content-Type": "text/plain"})
        project.pair("sync", **variables)
        stood = project.pair("status", "--json").json["sync"]
        assert (stood["failing"], stood["pending"]) == ([], [])


@pytest.mark.rule("sync-53")
def test_pages_of_the_own_network_are_refused_by_default(project: Workplace, server: Server) -> None:
    write_links(project, server.add("/page", b"secret"), "file:///etc/hostname", "ftp://127.0.0.1/x")
    assert project.pair("sync", "--json").json["failed"] == 3
    assert server.received == []


@pytest.mark.rule("sync-44")
def test_an_unlisted_page_is_removed_with_its_copy(project: Workplace, server: Server) -> None:
    url = server.add("/page", b"A page.", checksum=False, headers={"Content-Type": "text/plain"})
    write_links(project, url)
    project.pair("sync", **LOOPBACK)
    assert len(list((project.folder / ".pair/web-cache").iterdir())) == 1
    write_links(project)
    assert project.pair("sync", "--json", **LOOPBACK).json["removed"] == 1
    assert list((project.folder / ".pair/web-cache").iterdir()) == []
    assert url not in index_of(project)


@pytest.mark.rule("sync-50")
@pytest.mark.rule("sync-49")
def test_a_link_that_cannot_be_stored_is_reported_and_keeps_no_other_source_from_being_stored(
    project: Workplace, server: Server
) -> None:
    long_url = server.add(f"/{'x' * 4200}", b"A page about clocks.", checksum=False)
    other_url = server.add("/other", b"A page about watches.", checksum=False)
    for path in server.pages:
        server.pages[path].headers = {"Content-Type": "text/plain"}
    write_links(project, long_url, other_url)
    done = project.pair("sync", "--json", **LOOPBACK)
    assert (done.status, done.json["stored"], done.json["failed"]) == (0, 4, 1)
    assert done.json["problems"] == [
        {"source": long_url, "reason": "cannot be stored: its id is longer than 4,096 characters"}
    ]
    stored = project.pair("docs", "list", "--json").json["documents"]
    assert sorted(each["id"] for each in stored) == sorted([*PAGES, other_url])
    write_files(project.target, {"notes.txt": "Lunch is at two.\n"})
    assert project.pair("sync", "--json", **LOOPBACK).json["stored"] == 1, "and so it goes on"


@pytest.mark.rule("sync-23")
@pytest.mark.rule("sync-26")
@pytest.mark.rule("sync-31")
def test_the_next_check_is_one_interval_away_whatever_the_server_says_about_age(
    project: Workplace, server: Server
) -> None:
    url = server.add("/page", b"A page.", checksum=False)
    server.pages["/page"].headers = {"Content-Type": "text/plain", "ETag": '"1"', "Cache-Control": "max-age=86400"}
    write_links(project, url)
    variables = LOOPBACK | {"PAIR__KB__URL_REFRESH_MIN_INTERVAL_SECONDS": "60"}
    for arguments in ((), ("--refresh",)):
        project.pair("sync", *arguments, **variables)
        record = state_of(project)[url]["url"]
        assert isinstance(record, dict)
        fetched_at, next_at = (
            datetime.datetime.fromisoformat(record[key]) for key in ("last_fetched_at", "next_check_at")
        )
        assert (next_at - fetched_at).total_seconds() == 60


def test_a_page_is_searchable_again_after_its_copy_and_the_store_were_deleted(
    project: Workplace, server: Server
) -> None:
    url = server.add("/page", b"A page about sundials.", checksum=False)
    server.pages["/page"].headers = {"Content-Type": "text/plain", "ETag": '"1"'}
    write_links(project, url)
    project.pair("sync", **LOOPBACK)
    shutil.rmtree(project.folder / ".pair/web-cache")
    shutil.rmtree(project.folder / ".pair/store")
    project.pair("sync", "--refresh", **LOOPBACK)
    assert project.pair("docs", "get", url).stdout == "A page about sundials.\n"


def test_a_refresh_checks_all_pages_or_those_that_match_also_as_a_dry_run(project: Workplace, server: Server) -> None:
    urls = [server.add(path, b"A page.", checksum=False) for path in ("/one", "/two")]
    for path in ("/one", "/two"):
        server.pages[path].headers = {"Content-Type": "text/plain"}
    write_links(project, *urls)
    project.pair("sync", **LOOPBACK)
    asked = len(server.received)
    planned = project.pair("sync", "--refresh", "*/two", "--dry-run", "--json", **LOOPBACK).json["sources"]
    assert [each["source"] for each in planned if each["reason"] == "due"] == [urls[1]]
    assert len(server.received) == asked
    assert project.pair("sync", "--refresh", "/two", "--json", **LOOPBACK).json["not_modified"] == 1
    assert project.pair("sync", "--refresh", "--json", **LOOPBACK).json["not_modified"] == 2
    assert len(server.received) == asked + 3
    nothing = project.pair("sync", "--refresh", "three", "--json", **LOOPBACK)
    assert (nothing.status, nothing.json["error"]["code"]) == (1, "E104")
    assert project.pair("sync", "docs").status == 1
    assert project.pair("sync", "--refresh", "--watch").status == 1


@pytest.mark.rule("sync-50")
def test_a_folder_that_cannot_be_read_is_reported_and_loses_nothing(project: Workplace) -> None:
    project.obey_permissions()
    project.pair("sync")
    before = index_of(project)
    (project.target / "guides").chmod(0)
    write_files(project.target, {"new.md": "# New page\n"})
    try:
        plan = project.pair("sync", "--dry-run", "--json")
        assert (plan.status, plan.json["removed"]) == (0, [])
        assert plan.json["skipped"] == [{"path": "guides", "reason": "cannot be read: permission denied"}]
        done = project.pair("sync", "--json")
        assert (done.status, done.json["added"], done.json["removed"], done.json["failed"]) == (0, 1, 0, 1)
        assert done.json["problems"] == [{"source": "guides", "reason": "cannot be read: permission denied"}]
    finally:
        (project.target / "guides").chmod(0o755)
    assert set(before.split("\n\n")) < set(index_of(project).split("\n\n"))
    assert project.pair("sync", "--json").json["unchanged"] == 4


@pytest.mark.rule("sync-50")
@pytest.mark.parametrize("fault", ["a folder in its place", "no permission"])
def test_a_links_file_that_cannot_be_read_is_an_error_for_its_half(
    project: Workplace, server: Server, fault: str
) -> None:
    project.obey_permissions()
    write_links(project, server.add("/page", b"A page.", checksum=False, headers={"Content-Type": "text/plain"}))
    project.pair("sync", **LOOPBACK)
    links = project.folder / ".pair/links.txt"
    if fault == "no permission":
        links.chmod(0)
    else:
        links.unlink()
        links.mkdir()
    write_files(project.target, {"new.md": "# New page\n"})
    done = project.pair("sync", "--json", **LOOPBACK)
    assert (done.status, done.json["added"], done.json["removed"]) == (1, 1, 0)
    assert done.json["errors"][0].startswith("Cannot read .pair/links.txt: ")
    assert server.url("/page") in index_of(project)
    assert project.pair("sync", "--json", **LOOPBACK).status == 1, "and again when nothing else changed"
    assert project.pair("sync", "--dry-run", "--json", **LOOPBACK).json["removed"] == []


def test_a_state_that_may_not_be_read_is_an_error_and_no_bug(project: Workplace) -> None:
    project.obey_permissions()
    project.pair("sync")
    (project.folder / ".pair/index-cache.json").chmod(0)
    for command in (["sync"], ["sync", "--dry-run"], ["status"]):
        done = project.pair(*command, "--json").fails(3, "E010")
        assert done.json["error"]["message"].startswith("Cannot read ")


@pytest.mark.rule("sync-51")
@pytest.mark.parametrize("content", ['{"schema_version": 99, "sources": {}}', "{damaged"], ids=["newer", "damaged"])
def test_a_state_that_cannot_be_read_is_kept_aside_and_reported(project: Workplace, content: str) -> None:
    project.pair("sync")
    cache = project.folder / ".pair/index-cache.json"
    cache.write_text(content)
    project.pair("sync", "--json").fails(5, "E102")
    kept = list((project.folder / ".pair").glob("index-cache.json.damaged-*"))
    assert [path.read_text() for path in kept] == [content]
    assert project.pair("sync", "--json").json["added"] == 3


def test_a_dry_run_says_what_and_why_and_writes_nothing(project: Workplace, server: Server) -> None:
    project.pair("sync")
    write_files(project.target, {"deploy.md": "# Changed\n", "new.md": "# New\n"})
    (project.target / "notes.txt").unlink()
    write_links(project, server.url("/page"))
    before = file_states(project.folder, without=".lock")
    with ModelServer() as model:
        plan = project.pair("sync", "--dry-run", "--json", **with_model(model)).json
        assert model.calls == 0
    assert {entry["source"]: entry["reason"] for entry in plan["sources"]} == {
        "deploy.md": "changed",
        "guides/rollback.md": "unchanged",
        "new.md": "new",
        server.url("/page"): "new",
    }
    assert plan["removed"] == ["notes.txt"]
    assert plan["model_calls"] == 3
    assert plan["tokens"] > 0
    assert file_states(project.folder, without=".lock") == before
    assert server.received == []


@pytest.mark.rule("sync-11")
def test_a_dry_run_plans_what_the_run_will_do(project: Workplace) -> None:
    project.pair("sync")
    write_files(
        project.target,
        {"huge.txt": b"x" * 2_000_001, "noise.txt": b"\xff\0\xfe", "notes.txt": b"\xff\0"},
    )
    plan = project.pair("sync", "--dry-run", "--json").json
    done = project.pair("sync", "--json").json
    assert plan["skipped"] == done["skipped"]
    assert {entry["path"] for entry in plan["skipped"]} == {"huge.txt", "noise.txt", "notes.txt"}
    assert (plan["removed"], done["removed"]) == (["notes.txt"], 1)
    assert all(entry["reason"] == "unchanged" for entry in plan["sources"])


@pytest.mark.rule("sync-50")
def test_a_dry_run_fails_where_the_run_will(project: Workplace) -> None:
    plan = project.pair("sync", "--dry-run", "--json", PAIR__KB__SOURCES_DIR="nowhere")
    assert plan.status == project.pair("sync", PAIR__KB__SOURCES_DIR="nowhere").status == 1
    assert "nowhere" in plan.json["errors"][0]


def test_every_call_of_the_model_is_counted_and_long_texts_are_planned_for(workplace: Workplace) -> None:
    write_files(workplace.target, {"long.md": "\n\n".join(f"Paragraph {n} " + "word " * 60 for n in range(400))})
    with ModelServer() as model:
        variables = with_model(model) | {"PAIR__AI__RETRIES": "1", "PAIR__AI__RETRY_WAIT_SECONDS": "0"}
        plan = workplace.pair("sync", "--dry-run", "--json", **variables).json
        model.answers.append(Answer(500))
        done = workplace.pair("sync", "--json", **variables).json
        assert (done["pending"], done["model_calls"]) == (0, model.calls)
        assert plan["model_calls"] == model.calls - 1 > 2, "all but the one that was tried again"


@pytest.mark.rule("sync-8")
def test_three_processes_at_once_never_overlap_and_lose_nothing(project: Workplace) -> None:
    write_files(project.target, {f"page-{number}.md": f"# Page {number}\n" for number in range(200)})
    running = [project.start("sync", "--json") for _ in range(3)]
    reports = []
    for process in running:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        reports.append(json.loads(stdout))
    assert sorted(report["added"] for report in reports) == [0, 0, 203]
    assert len(state_of(project)) == 203


@pytest.mark.rule("sync-8")
def test_two_syncs_beside_one_that_ticks_never_overlap_and_lose_nothing(project: Workplace) -> None:
    """Two concurrent runs would summarise one source twice."""
    with ModelServer() as model:
        variables = with_model(model) | {"PAIR__KB__RUNTIME_REFRESH_TICK_SECONDS": "0.2"}
        with watching(project, variables) as process:
            assert next_report(process, "added")["added"] == 3
            for batch in range(3):
                for number in range(20):
                    hidden = project.target / f".{batch}-{number}"
                    hidden.write_text(f"# Page {number} of batch {batch}\n")
                    hidden.replace(project.target / f"page-{batch}-{number}.md")
                running = [project.start("sync", "--json", **variables) for _ in range(2)]
                for other in running:
                    _, stderr = other.communicate(timeout=120)
                    assert other.returncode == 0, stderr
        assert project.pair("sync", "--json", **variables).json["unchanged"] == 63
        assert model.calls == 63
    assert len(state_of(project)) == 63
    assert project.pair("status", "--json").json["stored"]["documents"] == 63


@pytest.mark.rule("sync-7")
def test_watching_reacts_to_files_links_and_a_replaced_folder(project: Workplace) -> None:
    with watching(project) as process:
        assert next_report(process, "added")["added"] == 3
        write_files(project.target, {"new.md": "# New\n"})
        assert next_report(process, "added")["added"] == 1
        write_files(project.folder / "kb", PAGES | {"installed.md": "# Installed\n"})
        assert project.pair("install", "--source", "./kb", "--force").status == 0
        assert next_report(process, "added")["added"] == 1
        write_files(project.target, {"later.md": "# Later\n"})
        assert next_report(process, "added")["added"] == 1
        write_links(project, "http://127.0.0.1:9/")
        assert next_report(process, "failed")["failed"] == 1


@contextlib.contextmanager
def watching(
    project: Workplace, variables: Mapping[str, str] | None = None, end: signal.Signals = signal.SIGINT
) -> Iterator["subprocess.Popen[str]"]:
    """Run `pair sync --watch --json` during the block, and stop it at the end."""
    process = project.start("sync", "--watch", "--json", **(variables or {}))
    try:
        yield process
    finally:
        process.send_signal(end)
        process.communicate(timeout=60)
    assert process.returncode == 0


def next_report(process: "subprocess.Popen[str]", key: str) -> dict[str, int]:
    """Return the next line of `--watch --json` with a count above 0 for this key."""
    assert process.stdout is not None
    while True:
        report: dict[str, int] = json.loads(process.stdout.readline())
        if report[key]:
            return report


@pytest.mark.rule("sync-7")
@pytest.mark.parametrize("number", [1, 2], ids=["first run", "second run"])
def test_a_change_during_a_run_is_noticed_after_it(project: Workplace, number: int) -> None:
    with ModelServer() as model, watching(project, with_model(model), signal.SIGTERM) as process:
        if number == 2:
            assert next_report(process, "added")["added"] == 3
        calls = model.calls
        model.answers.extend([Answer(text="A page.", delay_seconds=1)] * 3)
        write_files(project.target, {name: f"# Other\n\n{name}\n" for name in PAGES})
        while model.calls == calls:
            assert process.poll() is None
        write_files(project.target, {"meanwhile.md": "# Meanwhile\n"})
        if number == 1:
            assert next_report(process, "added")["added"] == 3
        # A tick takes five minutes, so that only a notice can bring it.
        assert next_report(process, "added")["added"] == 1


@pytest.mark.rule("sync-7")
def test_watching_reacts_to_a_folder_behind_a_link(project: Workplace) -> None:
    (project.folder / "linked").symlink_to(project.target)
    with watching(project, {"PAIR__KB__SOURCES_DIR": "linked"}) as process:
        assert next_report(process, "added")["added"] == 3
        write_files(project.target, {"new.md": "# New\n"})
        assert next_report(process, "added")["added"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_during_a_watched_run_saves_finished_work_and_ends(project: Workplace, number: signal.Signals) -> None:
    write_files(project.target, {f"page-{number}.md": f"# Page {number}\n" for number in range(30)})
    with ModelServer() as model:
        model.answers.extend([Answer(text="A page.", delay_seconds=0.2)] * 33)
        variables = with_model(model) | {"PAIR__KB__SUMMARIZATION_CONCURRENCY": "2"}
        process = project.start("sync", "--watch", **variables)
        while model.calls < 4:
            assert process.poll() is None
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, "finishing work in progress" in stderr) == (0, True)
        assert len(state_of(project)) == model.calls < 33


def test_the_second_signal_does_not_wait(project: Workplace) -> None:
    with ModelServer() as model:
        model.answers.extend([Answer(delay_seconds=600)] * 3)
        process = project.start("sync", "--watch", **with_model(model) | {"PAIR__AI__TIMEOUT_SECONDS": "600"})
        while model.calls < 3:
            assert process.poll() is None
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        while "finishing" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 130


def test_an_interrupted_run_gives_the_terminal_its_cursor_back(project: Workplace) -> None:
    with ModelServer() as model:
        model.answers.extend([Answer(text="A page.", delay_seconds=0.5)] * 3)
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*PAIR, "sync"],
            cwd=project.folder,
            env=project.environment | with_model(model) | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        while model.calls < 3:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        shown = b""
        with contextlib.suppress(OSError):  # what a terminal says when its last user has gone
            while piece := os.read(ours, 65536):
                shown += piece
        os.close(ours)
        assert process.wait(timeout=60) == 130
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1


def test_an_interrupted_run_keeps_what_is_finished(project: Workplace) -> None:
    write_files(project.target, {f"page-{number}.md": f"# Page {number}\n" for number in range(30)})
    with ModelServer() as model:
        model.answers.extend([Answer(text="A page.", delay_seconds=0.2)] * 33)
        process = project.start("sync", **with_model(model) | {"PAIR__KB__SUMMARIZATION_CONCURRENCY": "2"})
        while model.calls < 8:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "finishing work in progress" in stderr
        calls = model.calls
        finished = len(state_of(project))
        assert finished == calls
        model.answers.clear()
        project.pair("sync", **with_model(model))
        assert model.calls == 33


@pytest.mark.parametrize("command", ["init-kb", "init_kb"])
def test_every_name_of_sync_has_help_with_an_example(workplace: Workplace, command: str) -> None:
    assert f"pair {command} --dry-run" in workplace.pair(command, "--help").stdout


def test_status_of_a_project_in_which_nothing_was_done_yet(project: Workplace) -> None:
    assert project.pair("status", "--json").json == {
        "installed": None,
        "sync": {
            "failing": [],
            "fetch_statuses": {},
            "files": 0,
            "next_check_at": None,
            "pending": [],
            "skipped": [],
            "urls": 0,
        },
        "stored": None,
    }


def test_a_page_with_a_login_form_a_wrong_charset_or_no_type_is_still_text(project: Workplace, server: Server) -> None:
    bodies: dict[str, tuple[bytes, str]] = {
        "/login": (b"<html><body><form>Sign in <input name=user></form></body></html>", "text/html"),
        "/latin": ("caf\xe9 au lait".encode("latin-1"), "text/plain; charset=utf-8"),
        "/bare": (b"plain words", ""),
    }
    for path, (body, content_type) in bodies.items():
        server.pages[path] = Page(body, headers={"Content-Type": content_type} if content_type else {})
    write_links(project, *(server.url(path) for path in bodies))
    done = project.pair("sync", "--json", **LOOPBACK)
    assert done.json["failed"] == 0, done.json["problems"]
    assert done.json["fetched"] == 3


def test_the_whole_way_from_package_to_index(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", PAGES)
    workplace.pair("package", "./kb", "-o", "kb.zip")
    workplace.pair("install", "--source", "./kb.zip")
    assert workplace.pair("sync", "--json").json["added"] == 3
    assert read_files(workplace.target).keys() == PAGES.keys()
    assert ".pair-install.jsonl" not in index_of(workplace)


@pytest.mark.parametrize(
    ("name", "place", "other"),
    [
        ("index_path", ".pair/knowledge/index.txt", "kb.sources_dir"),
        ("index_path", "linked/notes.txt", "kb.sources_dir"),
        ("index_cache_path", ".pair/knowledge/guides/cache.json", "kb.sources_dir"),
        ("web_fetch_cache_dir", ".pair/knowledge/pages", "kb.sources_dir"),
        ("web_fetch_cache_dir", ".pair/knowledge", "kb.sources_dir"),
        ("index_path", ".pair/links.txt", "kb.links_file_path"),
        ("index_cache_path", "./.pair/../.pair/links.txt", "kb.links_file_path"),
        ("index_cache_path", ".pair/index.txt", "kb.index_path"),
        ("web_fetch_cache_dir", ".pair/index.txt", "kb.index_path"),
    ],
)
def test_places_that_are_in_each_others_way_are_refused_and_nothing_is_overwritten(
    project: Workplace, name: str, place: str, other: str
) -> None:
    (project.folder / "linked").symlink_to(project.target)
    write_links(project, "https://example.com/")
    before = read_files(project.folder / ".pair")
    for arguments in (("sync", "--json"), ("sync", "--dry-run", "--json")):
        project.pair(*arguments, **{f"PAIR__KB__{name.upper()}": place}).fails(1, "E401").prints(f"kb.{name}", other)
    assert read_files(project.folder / ".pair") == before


def test_hidden_places_below_the_sources_folder_are_not_sources_and_allowed(project: Workplace) -> None:
    write_files(project.folder, {"README.md": "# Read me\n"})
    for count in ("added", "unchanged"):
        assert project.pair("sync", "--json", PAIR__KB__SOURCES_DIR=".").json[count] == 1


def test_a_synced_document_is_not_deleted_and_the_command_says_what_to_do(project: Workplace) -> None:
    project.pair("sync")
    project.pair("docs", "delete", "notes.txt").exits(1).says("notes.txt", "then: pair sync")
    assert project.pair("docs", "get", "notes.txt").status == 0
    (project.target / "notes.txt").unlink()
    project.pair("sync")
    assert project.pair("docs", "get", "notes.txt").status == 1
