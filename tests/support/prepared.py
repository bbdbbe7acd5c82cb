"""Fast commands: a process that has loaded all modules is forked for each command.

Each command still is a process with its own folder, environment, output and exit status. This saves the loading, which
is most of a short command. `Workplace.start` starts a new process, as users do.
"""

import array
import atexit
import contextlib
import faulthandler
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO

_LOADED = (
    "faiss",
    "httpx2",
    "pair.ai.ngram",
    "pair.app.cli.commands",
    "pair.app.cli.entry",
    "pair.blobs.leases",
    "pair.blobs.local",
    "pair.kb.kb",
    "pair.sync.run",
    "pair.kb.librarians",
    "pydantic.dataclasses",
    "pydantic.type_adapter",
    "support.sync_parts",
    "yaml",
    "zoneinfo",
)
"""Modules to load. DuckDB is not among them: it starts a thread, which a fork would lack."""
_REQUEST_BYTES = 1 << 20


class Copy:
    """A running command."""

    def __init__(self, connection: socket.socket, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._connection = connection
        self._outputs = stdout, stderr
        self.pid = int.from_bytes(connection.recv(8))

    def wait(self, seconds: float = 120) -> int | None:
        """Return how the command ended, or None while it runs."""
        ready, _, _ = select.select([self._connection], [], [], seconds)
        return int(self._connection.recv(16)) if ready else None

    def kill(self) -> int | None:
        """Kill the command and return how it ended. It may have ended just before."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    @property
    def printed(self) -> tuple[str, str]:
        stdout, stderr = (os.pread(each.fileno(), os.fstat(each.fileno()).st_size, 0) for each in self._outputs)
        return stdout.decode(), stderr.decode()


class Prepared:
    """The process to fork, started on first use."""

    def __init__(self) -> None:
        self._address = ""
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
        """Run a command; return its exit status, stdout and stderr."""
        with self.started(arguments, folder, environment) as copy:
            status = copy.wait()
            assert status is not None, copy.printed
            return status, *copy.printed

    @contextlib.contextmanager
    def started(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Copy]:
        """Start a command. `arguments`: those of `pair`, or of Python: `-c` and a program."""
        self._start()
        with (
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            connection.connect(self._address)
            request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
            handles = array.array("i", [stdout.fileno(), stderr.fileno()])
            connection.sendmsg([len(request).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
            connection.sendall(request)
            yield Copy(connection, stdout, stderr)

    def _start(self) -> None:
        if self._process is None:
            self._address = str(Path(tempfile.mkdtemp(prefix="pair-test-")) / "prepared")
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "support.prepared", self._address],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,  # it closes when the tests end, and so ends the process
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == "ready\n"


PREPARED = Prepared()


def _serve(address: str) -> list[str]:
    """Fork for each request. Return only in the forked processes, with the command to run."""
    for module in _LOADED:
        import_module(module)
    gc.freeze()  # keeps memory shared between the processes
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
                connection.sendall(copy.to_bytes(8))
                handle = os.pidfd_open(copy)
                at_work[handle] = copy, connection
                events.register(handle, selectors.EVENT_READ)


def _tell_status(handle: int, copy: int, connection: socket.socket) -> None:
    _, status = os.waitpid(copy, 0)
    os.close(handle)
    with connection, contextlib.suppress(OSError):
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
    faulthandler.enable()
    return list(arguments)


def main() -> None:
    arguments = _serve(sys.argv[1])
    try:
        if arguments[:1] == ["-c"]:
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "-c", "exec"), {"__name__": "__main__"})
            raise SystemExit
        sys.argv = ["pair", *arguments]
        status = int(import_module("pair.app.cli.entry").main())
    except SystemExit as end:
        status = int(end.code or 0)
    sys.stdout.flush()
    # End the process without the cleanup of modules, which would copy shared memory.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    main()
