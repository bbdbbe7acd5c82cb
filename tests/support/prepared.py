"""Commands without their start: a process that has everything loaded, and is copied for each of them.

Each command still is a process with its own folder, environment, output and end; what is saved is the loading, which is
most of a short command. `Workplace.start` runs commands from nothing, as users do.
"""

import array
import atexit
import gc
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

_LOADED = (
    "faiss",
    "httpx2",
    "pair.ai.ngram",
    "pair.app.cli.commands",
    "pair.app.cli.entry",
    "pair.blobs.file_leases",
    "pair.blobs.local",
    "pair.kb",
    "pair.wiring.librarians",
    "pydantic.dataclasses",
    "pydantic.type_adapter",
    "yaml",
    "zoneinfo",
)
"""Not DuckDB: it starts a thread when it is loaded, which a copy would not have."""
_REQUEST_BYTES = 1 << 20


class Prepared:
    """The process, started when it is first needed."""

    def __init__(self) -> None:
        self._address = ""
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        self._start()
        with (
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.connect(self._address)
            connection.settimeout(120)
            request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
            handles = array.array("i", [stdout.fileno(), stderr.fileno()])
            connection.sendmsg([len(request).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
            connection.sendall(request)
            status = int(connection.recv(16))
            return status, _content(stdout.fileno()), _content(stderr.fileno())

    def _start(self) -> None:
        if self._process is None:
            self._address = str(Path(tempfile.mkdtemp(prefix="pair-test-")) / "prepared")
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "support.prepared", self._address],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,  # its end is how it learns that the tests are over
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == "ready\n"


PREPARED = Prepared()


def _content(handle: int) -> str:
    size = os.fstat(handle).st_size
    return os.pread(handle, size, 0).decode()


def _serve(address: str) -> list[str]:
    """Comes back in the copies, with what they are to run."""
    for module in _LOADED:
        import_module(module)
    gc.freeze()  # what is shared stays shared
    at_work: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, selectors.DefaultSelector() as events:
        listening.bind(address)
        listening.listen(64)
        events.register(listening, selectors.EVENT_READ)
        events.register(sys.stdin, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in events.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)
                if key.fileobj is not listening:
                    events.unregister(key.fileobj)
                    _tell_status(key.fd, *at_work.pop(key.fd))
                    continue
                connection, _ = listening.accept()
                copy = os.fork()
                if not copy:
                    return _received(connection)
                handle = os.pidfd_open(copy)
                at_work[handle] = copy, connection
                events.register(handle, selectors.EVENT_READ)


def _tell_status(handle: int, copy: int, connection: socket.socket) -> None:
    _, status = os.waitpid(copy, 0)
    os.close(handle)
    with connection:
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _received(connection: socket.socket) -> list[str]:
    with connection:
        size, handles, _, _ = socket.recv_fds(connection, 4, 2)
        request = b""
        while len(request) < int.from_bytes(size):
            request += connection.recv(_REQUEST_BYTES)
    arguments, folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, handle in enumerate([nothing, *handles]):
        os.dup2(handle, number)
        os.close(handle)
    return list(arguments)


def main() -> None:
    sys.argv = ["pair", *_serve(sys.argv[1])]
    try:
        status = int(import_module("pair.app.cli.entry").main())
    except SystemExit as end:
        status = int(end.code or 0)
    sys.stdout.flush()
    # What follows is the end of a process but for taking everything apart that the copies share.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    main()
