"""Commands as sources: whole lines count, and no process outlives its run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pair.clock import SystemClock
from pair.sources.command import MAX_LINE_BYTES, CommandSource
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, SourceFault
from pair.web.pages import PageClient
from support.page_server import PageServer, html

LONG = 30.0


def refuse_network() -> NoReturn:
    raise AssertionError("no document has a URL")


def run_script(folder: Path, script: str, *, seconds: float = LONG, max_bytes: int = 1_000_000) -> CommandSource:
    return CommandSource(["sh", "-c", script], folder, seconds, max_bytes, refuse_network, SystemClock())


def print_lines(*lines: Any) -> str:
    """Return a shell script that prints these values as JSON, and strings unchanged."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    return "cat <<'END'\n" + "".join(f"{text}\n" for text in texts) + "END\n"


def read_until_fault(source: CommandSource, cursor: Any = None) -> tuple[list[Event], str]:
    events: list[Event] = []
    with pytest.raises(SourceFault) as raised:
        events.extend(source.read(cursor))
    return events, str(raised.value)


def wait_until_gone(process_id: int) -> None:
    ends_at = time.monotonic() + LONG
    while time.monotonic() < ends_at and is_running(process_id):
        time.sleep(0.005)
    assert not is_running(process_id)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process_id}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_text(path: Path) -> str:
    ends_at = time.monotonic() + LONG
    while time.monotonic() < ends_at:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.005)
    raise AssertionError(path)


# ── lines ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_line_becomes_an_event(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "b.md").write_text("from a file")
    script = print_lines(
        {"id": "a", "text": "grüße", "title": "A", "metadata": {"n": 1}, "content_type": "Text/Markdown; charset=x"},
        "",
        {"id": "b", "path": "pages/b.md"},
        {"id": "c", "text": "not fetched", "url": "https://example.com/c"},
        {"deleted": "d"},
        {"cursor": {"since": 5}},
        {"complete": True},
    )
    assert list(run_script(tmp_path, script).read(None)) == [
        Item("a", "grüße".encode(), "", "text/markdown", "utf-8", "A", "", {"n": 1}),
        Item("b", b"from a file", "b.md"),
        Item("c", b"not fetched", charset="utf-8", url="https://example.com/c"),
        Deleted("d"),
        Cursor({"since": 5}),
        Complete(),
    ]


def test_a_command_gets_the_cursor_of_its_last_run_on_standard_input(tmp_path: Path) -> None:
    source = run_script(tmp_path, 'read -r cursor; printf \'{"cursor": [%s]}\\n\' "$cursor"')
    assert list(source.read(None)) == [Cursor([None])]
    assert list(source.read({"since": "2026-01-01"})) == [Cursor([{"since": "2026-01-01"}])]


def test_a_cursor_larger_than_a_pipe_needs_no_reader(tmp_path: Path) -> None:
    assert list(run_script(tmp_path, "true").read("x" * 2_000_000)) == []


def test_a_command_runs_without_a_shell_in_its_folder(tmp_path: Path) -> None:
    program = tmp_path / "connector"
    program.write_text('#!/bin/sh\nprintf \'{"id": "%s", "text": "%s"}\\n\' "$1" "${PWD##*/}"\n')
    program.chmod(0o755)
    source = CommandSource(["./connector", "$HOME `id` *"], tmp_path, LONG, 1000, refuse_network, SystemClock())
    assert list(source.read(None)) == [Item("$HOME `id` *", tmp_path.name.encode(), charset="utf-8")]


def test_a_command_that_prints_nothing_changes_nothing(tmp_path: Path) -> None:
    assert list(run_script(tmp_path, "true").read({"since": 1})) == []


def test_an_id_that_is_printed_twice_is_reported_twice_in_its_order(tmp_path: Path) -> None:
    events = run_script(tmp_path, print_lines({"id": "a", "text": "1"}, {"id": "a", "text": "2"})).read(None)
    assert [event.content for event in events if isinstance(event, Item)] == [b"1", b"2"]


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        '{"id": "b", "text": "cut',
        "[1]",
        "null",
        '{"text": "no id"}',
        '{"id": "b"}',
        '{"id": "b", "text": "x", "path": "x"}',
        '{"id": "b", "text": "x", "deleted": "b"}',
        '{"id": 7, "text": "x"}',
        '{"id": "", "text": "x"}',
        '{"id": "b", "text": "x", "titel": "a typing error"}',
        '{"deleted": "b", "title": "x"}',
        "{}",
        '{"id": "b", "text": "\\ud800"}',
        '{"cursor": ' + "[" * 20_000 + "]" * 20_000 + "}",
    ],
)
def test_rubbish_ends_the_run_and_names_its_line(tmp_path: Path, line: str) -> None:
    events, reason = read_until_fault(
        run_script(tmp_path, print_lines({"id": "a", "text": "1"}, line, {"complete": True}))
    )
    assert [type(event) for event in events] == [Item]
    assert reason.startswith("line 2 of the output is not valid")
    assert 'expected an object with "id" and "text", "path" or "url"' in reason


def test_bytes_that_are_not_utf_8_are_rubbish(tmp_path: Path) -> None:
    _, reason = read_until_fault(run_script(tmp_path, r"""printf '{"id": "a", "text": "\377"}\n'"""))
    assert reason.startswith("line 1 of the output is not valid")


def test_half_a_line_at_the_end_does_not_count(tmp_path: Path) -> None:
    script = print_lines({"id": "a", "text": "1"}) + """printf '{"id": "b", "text": "2"}'"""
    events, reason = read_until_fault(run_script(tmp_path, script))
    assert [type(event) for event in events] == [Item]
    assert reason == "line 2 of the output does not end with a line feed, and may be cut"


def test_a_line_without_end_is_stopped_at_the_limit(tmp_path: Path) -> None:
    events, reason = read_until_fault(run_script(tmp_path, print_lines({"id": "a", "text": "1"}) + "cat /dev/zero"))
    assert [type(event) for event in events] == [Item]
    assert reason.startswith(f"line 2 of the output is longer than {MAX_LINE_BYTES:,} bytes")


def test_hundreds_of_megabytes_are_read_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "line").write_text(json.dumps({"id": "a", "text": "x" * 1_000_000}) + "\n")
    program = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from pair.clock import SystemClock
        from pair.sources.command import CommandSource
        command = ["sh", "-c", 'while [ $((n += 1)) -le 300 ]; do cat line; done']
        source = CommandSource(command, Path(sys.argv[1]), 60.0, 2_000_000, None, SystemClock())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = sum(len(event.content) for event in source.read(None))
        print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    size_bytes, grown_megabytes = map(int, done.stdout.split())
    assert size_bytes == 300_000_000
    assert grown_megabytes < 40


# ── documents by path and by URL ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["missing.md", ".", "pipe", "/dev/zero", "a\0b"])
def test_a_path_that_is_not_a_readable_file_fails_alone(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = print_lines({"id": "a", "path": path}, {"id": "b", "text": "x"})
    failed, item = run_script(tmp_path, script).read(None)
    assert isinstance(failed, Failed)
    assert (failed.id, repr(path) in failed.reason) == ("a", True)
    assert isinstance(item, Item)


def test_a_document_above_the_size_limit_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "large.md").write_bytes(bytes(101))
    (tmp_path / "fits.md").write_bytes(bytes(100))
    script = print_lines(
        {"id": "a", "path": "large.md"}, {"id": "b", "text": "x" * 101}, {"id": "c", "path": "fits.md"}
    )
    events = list(run_script(tmp_path, script, max_bytes=100).read(None))
    assert events[:2] == [Failed("a", "longer than 100 bytes"), Failed("b", "longer than 100 bytes")]
    assert isinstance(events[2], Item)


def read_urls(folder: Path, *, allow_private_addresses: bool, lines: list[Any]) -> list[Event]:
    client = PageClient(
        timeout_seconds=LONG, max_bytes=1000, allow_private_addresses=allow_private_addresses, clock=SystemClock()
    )
    source = CommandSource(["sh", "-c", print_lines(*lines)], folder, LONG, 1000, lambda: client, SystemClock())
    try:
        return list(source.read(None))
    finally:
        client.close()


def test_a_document_by_its_url_is_fetched(tmp_path: Path, server: PageServer) -> None:
    server.pages["/docs/a.html"] = html("<p>words</p>")
    url, missing = server.url("/docs/a.html"), server.url("/missing")
    lines = [{"id": "a", "url": url, "title": "A"}, {"id": "b", "url": missing}]
    item, failed = read_urls(tmp_path, allow_private_addresses=True, lines=lines)
    assert isinstance(item, Item)
    assert (item.name, item.content_type, item.charset, item.title) == ("a.html", "text/html", "utf-8", "A")
    assert item.url == url
    assert failed == Failed("b", "HTTP 404 Not Found")


def test_a_url_of_a_private_address_is_refused(tmp_path: Path, server: PageServer) -> None:
    lines = [{"id": "a", "url": server.url("/")}]
    (failed,) = read_urls(tmp_path, allow_private_addresses=False, lines=lines)
    assert failed == Failed("a", "127.0.0.1 is a loopback address; kb.allow_private_addresses: true allows it")
    assert server.asked == []


# ── ends ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_failing_command_is_reported_with_the_end_of_its_standard_error(tmp_path: Path) -> None:
    script = print_lines({"id": "a", "text": "1"}, {"complete": True})
    script += "seq 100000 >&2; printf 'out of \\033[31mtea' >&2; exit 3"
    events, reason = read_until_fault(run_script(tmp_path, script))
    assert [type(event) for event in events] == [Item]  # incomplete, so nothing is deleted
    assert reason == "the command ended with status 3: 99997 99998 99999 100000 out of \ufffd[31mtea"


def test_a_command_that_is_killed_keeps_what_it_printed_whole(tmp_path: Path) -> None:
    script = print_lines({"id": "a", "text": "1"}) + """printf '{"id": "b", "te'; kill -9 $$"""
    events, reason = read_until_fault(run_script(tmp_path, script))
    assert [type(event) for event in events] == [Item]
    assert reason == "the command ended with signal 9 (Killed)"


@pytest.mark.parametrize("closes_output", [False, True])
def test_a_command_that_hangs_is_killed_with_its_children_at_the_limit(tmp_path: Path, closes_output: bool) -> None:
    script = print_lines({"id": "a", "text": "1"}) + "echo waiting >&2; sleep 1000 & echo $$ $! > ids; "
    script += "exec >&- 2>&-; wait" if closes_output else "wait"
    events, reason = read_until_fault(run_script(tmp_path, script, seconds=0.3))
    assert [type(event) for event in events] == [Item]
    assert reason == "the command did not end within 0.3 s and was stopped: waiting"
    for process_id in wait_for_text(tmp_path / "ids").split():
        wait_until_gone(int(process_id))


def test_the_time_of_the_caller_does_not_count_towards_the_limit(tmp_path: Path) -> None:
    events = run_script(tmp_path, print_lines({"id": "a", "text": "1"}, {"deleted": "b"}), seconds=0.2).read(None)
    next(events)
    time.sleep(0.3)
    assert list(events) == [Deleted("b")]


def test_a_command_ends_when_its_reader_stops(tmp_path: Path) -> None:
    events = run_script(tmp_path, print_lines({"deleted": "a"}) + "echo $$ > id; sleep 1000").read(None)
    next(events)
    process_id = int(wait_for_text(tmp_path / "id"))
    events.close()  # type: ignore[attr-defined]
    wait_until_gone(process_id)


def test_a_process_that_the_command_leaves_behind_does_not_delay_the_end(tmp_path: Path) -> None:
    events = run_script(tmp_path, "sleep 1000 & echo $! > id; " + print_lines({"deleted": "a"})).read(None)
    assert list(events) == [Deleted("a")]
    wait_until_gone(int(wait_for_text(tmp_path / "id")))


def test_a_command_and_its_children_die_with_the_process_that_reads_them(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from pair.clock import SystemClock
        from pair.sources.command import CommandSource
        command = ["sh", "-c", "trap '' TERM HUP INT; sleep 1000 & echo $$ $! > ids; wait"]
        list(CommandSource(command, Path(sys.argv[1]), 600.0, 1000, None, SystemClock()).read(None))
    """)
    reader = subprocess.Popen([sys.executable, "-c", program, tmp_path])
    process_ids = [int(each) for each in wait_for_text(tmp_path / "ids").split()]
    assert all(map(is_running, process_ids))
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    for process_id in process_ids:
        wait_until_gone(process_id)


def test_a_missing_program_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    missing = CommandSource(["no-such-program"], tmp_path, LONG, 1000, refuse_network, SystemClock())
    assert "no-such-program: not found" in read_until_fault(missing)[1]
    nowhere = CommandSource(["true"], tmp_path / "gone", LONG, 1000, refuse_network, SystemClock())
    reason = read_until_fault(nowhere)[1]
    assert reason.startswith(f"the command cannot be started in {tmp_path / 'gone'}: ")


def test_the_connector_of_the_guide_prints_what_is_new(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "write-a-connector.md").read_text()
    (tmp_path / "notes.py").write_text(guide.partition("<<'END'\n")[2].partition("END\n")[0])
    source = CommandSource([sys.executable, "notes.py"], tmp_path, LONG, 1000, refuse_network, SystemClock())
    one, two, cursor = source.read(None)
    assert [item.title for item in (one, two) if isinstance(item, Item)] == ["Note 1", "Note 2"]
    assert isinstance(cursor, Cursor)
    assert list(source.read(cursor.value)) == [cursor]
