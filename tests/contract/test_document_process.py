"""Documents that exhaust their converter, and faulty converters: each is refused, and the next document is read."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.test_documents import docx, pdf, put, reason_of, text_of
from pair.reading.contract import UnreadableDocument
from pair.reading.process import DocumentLimits, ReaderProcesses
from support.office_files import pptx, xlsx
from support.threads import run_together

BUSY_MACHINE = 30.0
"""The limit of elapsed time, as a multiple of CPU time."""


def nested_docx(levels: int = 200_000) -> bytes:
    """Return a document of 12 kB whose deep nesting takes minutes to read."""
    return docx(f"</w:t></w:r>{'<w:smartTag>' * levels}{'</w:smartTag>' * levels}<w:r><w:t>")


def long_docx() -> bytes:
    """Return a document of 300 kB with 80,000 paragraphs."""
    return docx(*["words"] * 80_000)


def packed_pdf(stream: bytes) -> bytes:
    """Return a PDF of one page with this compressed content."""
    sound = pdf("words")
    at, end = sound.index(b"<< /Length"), sound.index(b"endstream")
    packed = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\n" % (len(stream), stream)
    return sound[:at] + packed + sound[end:]


def long_pdf() -> bytes:
    """Return a PDF of 200 kB that shows fifty million letters."""
    return packed_pdf(zlib.compress(b"BT /F1 1 Tf 20 100 Td " + b"(aaaaaaaaaa) Tj " * 5_000_000 + b"ET", 9))


def inflated_pdf() -> bytes:
    """Return a PDF of 1.2 MB whose content is 1.2 GB of blanks."""
    packer, block = zlib.compressobj(9), b" " * 10_000_000
    head = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return packed_pdf(head + again * 119)


@pytest.fixture
def reader() -> Iterator[ReaderProcesses]:
    process = ReaderProcesses(DocumentLimits(cpu_seconds=4, wall_to_cpu=BUSY_MACHINE))
    yield process
    process.close()


def assert_reads_the_next(reader: ReaderProcesses, folder: Path) -> None:
    assert "We deploy on Mondays" in text_of(reader, put(folder, "sound.docx", docx("We deploy on Mondays")))


def children_of(pid: int) -> list[int]:
    """Return the child processes of this process, including zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ── documents ──────────────────────────────────────────────────────────────────────────────────────


def test_a_document_that_takes_too_long_is_refused(reader: ReaderProcesses, tmp_path: Path) -> None:
    slow = put(tmp_path, "slow.docx", long_docx())
    assert reason_of(reader, slow) == "takes more than 4 s to convert"
    assert_reads_the_next(reader, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("nested.docx", nested_docx, "is damaged, or cannot be read as .docx"),
        ("inflated.docx", lambda: docx("a" * 100_000_000), "unpacks to more than 64,000,000 bytes"),
    ],
)
def test_a_document_made_to_exhaust_its_reader_is_refused(
    reader: ReaderProcesses, tmp_path: Path, name: str, content: Callable[[], bytes], reason: str
) -> None:
    assert reason_of(reader, put(tmp_path, name, content())) == reason
    assert_reads_the_next(reader, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("long.docx", long_docx, "takes more than 150,000,000 bytes of memory to convert"),
        ("inflated.pdf", inflated_pdf, "takes more than 150,000,000 bytes of memory to convert"),
    ],
    ids=["long.docx", "inflated.pdf"],
)
def test_a_document_that_takes_too_much_memory_is_refused(
    tmp_path: Path, name: str, content: Callable[[], bytes], reason: str
) -> None:
    reader = ReaderProcesses(
        DocumentLimits(memory_bytes=150_000_000, memory_bytes_per_byte=0, wall_to_cpu=BUSY_MACHINE)
    )
    assert reason_of(reader, put(tmp_path, name, content())).startswith(reason)
    assert_reads_the_next(reader, tmp_path)
    reader.close()


def test_a_document_with_too_much_text_is_refused(tmp_path: Path) -> None:
    reader = ReaderProcesses(DocumentLimits(text_bytes=1000))
    assert reason_of(reader, put(tmp_path, "a.docx", docx("a" * 1001))) == "has more than 1,000 bytes of text"
    assert_reads_the_next(reader, tmp_path)
    reader.close()


def test_a_larger_file_may_take_more() -> None:
    limits = DocumentLimits(
        cpu_seconds=60, cpu_seconds_per_megabyte=10, memory_bytes=1_000_000_000, memory_bytes_per_byte=20
    )
    assert limits.cpu_for(3_000_000) == 90
    assert limits.memory_for(3_000_000) == 1_060_000_000


def test_each_kind_of_document_is_read(reader: ReaderProcesses, tmp_path: Path) -> None:
    for name, content in (
        ("a.docx", docx("words")),
        ("a.PDF", pdf("words")),
        ("a.html", b"<p>words"),
        ("a.htm", b"words"),
        ("a.py", b"def words(): pass"),
        ("a.pptx", pptx()),
        ("a.xlsx", xlsx()),
    ):
        text = text_of(reader, put(tmp_path, name, content))
        assert "words" in text or text.startswith("## ")
    assert reason_of(reader, put(tmp_path, "cut.pdf", pdf("words")[:40])) == "is damaged, or cannot be read as .pdf"


def test_code_that_crashes_its_grammar_is_read_as_one_block(tmp_path: Path) -> None:
    reader = misbehaving("peer.recv(10); os.kill(os.getpid(), signal.SIGSEGV)")
    assert text_of(reader, put(tmp_path, "a.cpp", b"int f() {}")) == "```cpp\nint f() {}\n```"
    sound = ReaderProcesses()
    assert text_of(sound, put(tmp_path, "b.cpp", b"int f() {}")).startswith("# b.cpp\n\n## int f()")
    assert text_of(sound, put(tmp_path, "c.py", b"def f(): pass\n" * 80_000)).startswith("```py")
    sound.close()


def test_one_child_reads_many_documents(reader: ReaderProcesses, tmp_path: Path) -> None:
    others = set(children_of(os.getpid()))
    seen = set()
    for number in range(5):
        assert f"text {number}" in text_of(reader, put(tmp_path, f"{number}.docx", docx(f"text {number}")))
        seen |= set(children_of(os.getpid())) - others
    assert len(seen) == 1


def test_threads_take_turns(reader: ReaderProcesses, tmp_path: Path) -> None:
    texts: dict[int, str] = {}

    def read(number: int) -> None:
        texts[number] = text_of(reader, put(tmp_path, f"{number}.html", f"<p>text {number}".encode()))

    run_together(*[functools.partial(read, number) for number in range(8)])
    assert texts == {number: f"text {number}" for number in range(8)}


# ── converters ─────────────────────────────────────────────────────────────────────────────────────


def misbehaving(code: str, **limits: float) -> ReaderProcesses:
    """Return a reader whose child runs this code; `peer` is the socket to the parent."""
    start = "import os, signal, socket, sys, time; peer = socket.socket(fileno=0)\n"
    command = [sys.executable, "-c", start + textwrap.dedent(code)]
    return ReaderProcesses(DocumentLimits(**{"cpu_seconds": 20, "text_bytes": 1000, **limits}), command)  # type: ignore[arg-type]


# A child that answers does not exit: an exit with an unread request would reset the connection and lose the answer.
MISBEHAVING = [
    ("hangs", "time.sleep(1000)", "takes more than 1 s to convert"),
    ("ignores-signals", "signal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(1)", "takes more than 1 s"),
    ("stops-in-an-answer", "peer.sendall(bytes([0, 0, 0, 9]) + b'Tab')\ntime.sleep(1000)", "takes more than 1 s"),
    ("exits", "peer.recv(10); sys.exit(3)", "its converter crashed (status 3)"),
    ("aborts", "peer.recv(10); os.abort()", "its converter crashed (SIGABRT)"),
    ("runs-out-of-time", "os.kill(os.getpid(), signal.SIGXCPU)", "takes more than 1 s to convert"),
    (
        "answers-nonsense",
        "peer.sendall(bytes([0, 0, 0, 5]) + b'Xabcd')\ntime.sleep(1000)",
        "its converter gave no usable answer",
    ),
    ("answers-nothing", "peer.sendall(bytes([0, 0, 0, 0]))\ntime.sleep(1000)", "its converter gave no usable answer"),
    (
        "answers-no-text",
        "peer.sendall(bytes([0, 0, 0, 3]) + b'T\\xff\\xff')\ntime.sleep(1000)",
        "its converter gave no usable answer",
    ),
    (
        "answers-too-much",
        "peer.sendall(b'\\x7f\\xff\\xff\\xff' + b'T' * 99)\ntime.sleep(1000)",
        "its converter gave no",
    ),
]


@pytest.mark.parametrize(("code", "reason"), [case[1:] for case in MISBEHAVING], ids=[case[0] for case in MISBEHAVING])
def test_a_converter_that_misbehaves_costs_its_document_only(tmp_path: Path, code: str, reason: str) -> None:
    others = set(children_of(os.getpid()))
    is_slow = reason.startswith("takes more")
    reader = misbehaving(code, cpu_seconds=1 if is_slow else 20, wall_to_cpu=3)
    for name in ("a.html", "b.html"):
        assert reason_of(reader, put(tmp_path, name, b"words")).startswith(reason)
    assert set(children_of(os.getpid())) <= others, "a child or a zombie is left"


def test_a_converter_that_was_killed_from_outside_may_succeed_next_time(tmp_path: Path) -> None:
    reader = misbehaving("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(UnreadableDocument, match="its converter was ended by SIGKILL") as raised:
        text_of(reader, put(tmp_path, "a.html", b"words"))
    assert raised.value.is_passing


def test_a_converter_that_cannot_be_started_is_a_passing_fault(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDocument, match="its converter cannot be started: No such file") as raised:
        text_of(ReaderProcesses(command=[str(tmp_path / "absent")]), put(tmp_path, "a.html", b"words"))
    assert raised.value.is_passing


def test_an_idle_child_ends_and_the_next_document_starts_another(tmp_path: Path) -> None:
    others = set(children_of(os.getpid()))
    reader = ReaderProcesses(DocumentLimits(idle_seconds=0.5))
    for _ in range(2):
        assert_reads_the_next(reader, tmp_path)
        wait_until(lambda: not set(children_of(os.getpid())) - others)


def test_the_child_ends_with_a_parent_that_is_killed_in_the_middle_of_a_document(tmp_path: Path) -> None:
    put(tmp_path, "long.pdf", long_pdf())
    code = (
        "import pathlib, sys; from pair.reading.process import ReaderProcesses\n"
        "ReaderProcesses().read(pathlib.Path(sys.argv[1]).read_bytes(), 'long.pdf')"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "long.pdf")])
    wait_until(lambda: bool(children_of(parent.pid)))
    (child,) = children_of(parent.pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_an_interrupt_ends_the_child_at_once(tmp_path: Path) -> None:
    put(tmp_path, "long.pdf", long_pdf())
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pair", "ingest", "long.pdf"]
    parent = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    wait_until(lambda: any(b"pair.reading.process" in _command_line(pid) for pid in children_of(parent.pid)))
    children = children_of(parent.pid)
    parent.send_signal(signal.SIGINT)
    _, told = parent.communicate(timeout=60)
    assert parent.returncode == 130
    assert b"Traceback" not in told
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
