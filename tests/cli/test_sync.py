"""`pair sync` and `pair status` as a person runs them: real files, a real server, real processes."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.command import PAIR, Workplace, read_files, write_files
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


def whole_folder(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


@pytest.mark.rule("sync-5")
@pytest.mark.rule("sync-54")
@pytest.mark.parametrize("command", ["sync", "init-kb", "init_kb"])
def test_one_run_writes_an_index_without_any_model(project: Workplace, command: str) -> None:
    done = project.pair(command, "--json")
    assert done.status == 0, done.stderr
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
        before = whole_folder(project.folder / ".pair")
        # Whatever is opened below the sources folder shows up in the trace.
        trace = project.folder.parent / "trace"
        command: list[str | Path] = [
            "strace",
            "-f",
            "-e",
            "trace=openat,open",
            "-o",
            trace,
            *_pair_command("sync", "--json"),
        ]
        environment = project.environment | variables
        done = subprocess.run(command, cwd=project.folder, env=environment, check=True, capture_output=True, text=True)
        report = json.loads(done.stdout)
        assert (report["unchanged"], report["model_calls"], report["bytes_read"]) == (4, 0, 0)
        opened = trace.read_text(errors="replace")
        assert not any(name in opened for name in ("deploy.md", "rollback.md", "notes.txt"))
        assert (len(server.received), model.calls) == (asked, calls)
        assert whole_folder(project.folder / ".pair") == before


def _pair_command(*arguments: str) -> list[str]:
    return [*PAIR, *arguments]


def test_what_changed_is_counted_and_the_rest_left_alone(project: Workplace) -> None:
    project.pair("sync")
    write_files(project.target, {"deploy.md": "# Deploying\n\nNow on Fridays.\n", "new.md": "# New page\n"})
    (project.target / "notes.txt").unlink()
    (project.target / "guides/rollback.md").rename(project.target / "guides/undo.md")
    done = project.pair("sync", "--json")
    report = done.json
    assert (report["added"], report["changed"], report["removed"], report["unchanged"]) == (2, 1, 2, 0)
    assert list(state_of(project)) == ["deploy.md", "guides/undo.md", "new.md"]


@pytest.mark.rule("sync-20")
def test_a_touch_is_noticed_and_costs_no_summary(project: Workplace) -> None:
    with ModelServer() as model:
        project.pair("sync", **with_model(model))
        calls = model.calls
        os.utime(project.target / "deploy.md", ns=(1, 1))
        assert project.pair("sync", "--json", **with_model(model)).json["unchanged"] == 3
        assert model.calls == calls


@pytest.mark.rule("sync-11")
def test_files_that_are_no_text_are_skipped_once_with_the_reason(project: Workplace) -> None:
    write_files(
        project.target,
        {
            "bom.md": b"\xef\xbb\xbf# With a mark\n",
            "crlf.md": b"# Windows\r\n\r\nLines.\r\n",
            "latin1.txt": "caf\xe9".encode("latin-1"),
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
        "latin1.txt": "not UTF-8 text",
        "huge.txt": "larger than 2,000,000 bytes",
        "loop": "link to nothing",
        "out.md": "link out of the folder",
    }
    assert done.json["added"] == 5
    again = project.pair("sync", "--json")
    assert (again.json["unchanged"], again.json["bytes_read"]) == (5, 0)
    assert {entry["path"] for entry in again.json["skipped"]} == set(skipped)


def test_a_file_that_stops_being_text_leaves_the_index(project: Workplace) -> None:
    project.pair("sync")
    write_files(project.target, {"notes.txt": b"\xff\xfe\x00"})
    assert project.pair("sync", "--json").json["removed"] == 1
    assert "notes.txt" not in index_of(project)


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


def test_a_model_that_is_down_is_not_asked_for_every_source(project: Workplace) -> None:
    write_files(project.target, {f"page-{number}.md": f"# Page {number}\n" for number in range(50)})
    with ModelServer() as model:
        variables = with_model(model)
    done = project.pair("sync", "--json", **variables)
    assert done.status == 0
    assert done.json["pending"] == 53
    assert done.json["model_calls"] < 12
    assert index_of(project) == ""
    assert project.pair("sync", "--json").json["pending"] == 0


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


@pytest.mark.rule("sync-53")
def test_pages_of_the_own_network_are_refused_by_default(project: Workplace, server: Server) -> None:
    write_links(project, server.add("/page", b"secret"), "file:///etc/hostname", "ftp://127.0.0.1/x")
    done = project.pair("sync", "--json")
    assert done.json["failed"] == 3
    assert server.received == []


@pytest.mark.rule("sync-44")
def test_a_page_that_is_unlisted_goes_with_its_copy(project: Workplace, server: Server) -> None:
    url = server.add("/page", b"A page.", checksum=False, headers={"Content-Type": "text/plain"})
    write_links(project, url)
    project.pair("sync", **LOOPBACK)
    assert len(list((project.folder / ".pair/web-cache").iterdir())) == 1
    write_links(project)
    assert project.pair("sync", "--json", **LOOPBACK).json["removed"] == 1
    assert list((project.folder / ".pair/web-cache").iterdir()) == []
    assert url not in index_of(project)


@pytest.mark.rule("sync-50")
def test_a_vanished_folder_does_not_empty_the_index(project: Workplace) -> None:
    project.pair("sync")
    before = index_of(project)
    shutil.move(project.target, project.folder / "elsewhere")
    done = project.pair("sync", "--json")
    assert done.status == 1
    assert "sources folder is missing" in done.json["errors"][0]
    assert (index_of(project), done.json["removed"]) == (before, 0)


@pytest.mark.rule("sync-51")
@pytest.mark.parametrize("content", ['{"schema_version": 99, "sources": {}}', "{damaged"], ids=["newer", "damaged"])
def test_a_state_that_cannot_be_read_is_kept_aside_and_reported(project: Workplace, content: str) -> None:
    project.pair("sync")
    cache = project.folder / ".pair/index-cache.json"
    cache.write_text(content)
    done = project.pair("sync", "--json")
    assert (done.status, done.error_code) == (5, "E102")
    kept = list((project.folder / ".pair").glob("index-cache.json.damaged-*"))
    assert [path.read_text() for path in kept] == [content]
    assert project.pair("sync", "--json").json["added"] == 3


def test_a_dry_run_says_what_and_why_and_writes_nothing(project: Workplace, server: Server) -> None:
    project.pair("sync")
    write_files(project.target, {"deploy.md": "# Changed\n", "new.md": "# New\n"})
    (project.target / "notes.txt").unlink()
    write_links(project, server.url("/page"))
    before = whole_folder(project.folder)
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
    assert whole_folder(project.folder) == before
    assert server.received == []


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


@pytest.mark.rule("sync-7")
def test_watching_reacts_to_files_links_and_a_replaced_folder(project: Workplace) -> None:
    process = project.start("sync", "--watch", "--json")
    assert process.stdout is not None

    def next_report_with(key: str) -> dict[str, int]:
        assert process.stdout is not None
        while True:
            report: dict[str, int] = json.loads(process.stdout.readline())
            if report[key]:
                return report

    try:
        assert next_report_with("added")["added"] == 3
        write_files(project.target, {"new.md": "# New\n"})
        assert next_report_with("added")["added"] == 1
        write_files(project.folder / "kb", PAGES | {"installed.md": "# Installed\n"})
        assert project.pair("install", "--source", "./kb", "--force").status == 0
        assert next_report_with("added")["added"] == 1
        write_files(project.target, {"later.md": "# Later\n"})
        assert next_report_with("added")["added"] == 1
        write_links(project, "http://127.0.0.1:9/")
        assert next_report_with("failed")["failed"] == 1
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


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
        assert "finishing what is under way" in stderr
        calls = model.calls
        finished = len(state_of(project))
        assert finished == calls
        model.answers.clear()
        project.pair("sync", **with_model(model))
        assert model.calls == 33


def test_status_tells_what_is_installed_and_how_the_sources_stand(project: Workplace) -> None:
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
    write_files(project.folder / "kb", PAGES)
    project.pair("install", "--source", "./kb", "--force")
    project.pair("sync")
    told = project.pair("status").stdout
    assert "installed    kb, 3 files" in told
    assert "synced       3 files" in told


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
    assert RECORD_NAME not in index_of(workplace)


RECORD_NAME = ".pair-install.jsonl"
