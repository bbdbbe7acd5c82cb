"""`pair serve` in a separate process, and a client for it."""

import collections
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx2

from pair.auth.keys import KeyFile
from pair.auth.rules import Scope
from pair.auth.trust import TrustedFile, TrustStore
from pair.clock import SystemClock
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.settings import Settings
from support.prepared import PREPARED
from support.trust import trust_folder

_START_SECONDS = 60
BURST = 100
"""Requests that a client may make at once. All requests without a key count as one client."""


def home_of(folder: Path) -> Path:
    """Return the home folder of the user of a project, which holds the trust store."""
    return folder.with_name(f"{folder.name}-home")


class Served:
    """A server: `with Served(folder, PAIR__SERVER__AUTH="keys") as server: server.get("/healthz")`"""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
        self.environment = kept | {
            "HOME": str(home_of(folder)),
            "PAIR__ENGINE__EMBEDDER": "ngram",
            "PAIR__SERVER__LOG_FORMAT": "json",
            "PAIR__SERVER__PORT": "0",
            "PYTHONWARNINGS": "error",
            **variables,
        }
        self.program = ["-m", "pair", "serve"]
        """The Python program to run."""
        self.logged: collections.deque[dict[str, Any]] = collections.deque(maxlen=10_000)
        self.raw_log = ""
        self._heard = threading.Condition()

    def __enter__(self) -> Self:
        trust_folder(self.folder, home=Path(self.environment["HOME"]))
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT,TERM", sys.executable, *self.program],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(started,), daemon=True)
        self._reader.start()
        assert started.wait(_START_SECONDS), self.raw_log
        assert self.process.poll() is None, self.raw_log
        self.client = httpx2.Client(base_url=self.url, timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.stop()
        self._reader.join(timeout=10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read_log(self, started: threading.Event) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.raw_log += line
            if line.startswith("{"):
                entry = json.loads(line)
                with self._heard:
                    self.logged.append(entry)
                    self._heard.notify_all()
                if entry["event"] == "serving":
                    self.url = entry["address"]
                    started.set()
        started.set()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def logged_request(self, request_id: str, seconds: float = 20) -> dict[str, Any]:
        """Return the log line of a request, which is written after the answer."""

        def found() -> dict[str, Any] | None:
            lines = (each for each in self.logged if each["event"] == "request")
            return next((each for each in lines if each["request_id"] == request_id), None)

        with self._heard:
            assert self._heard.wait_for(found, timeout=seconds), self.raw_log
        return found() or {}

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(timeout=30)
        self._reader.join(timeout=10)
        return status

    def request(self, method: str, path: str, *, key: str = "", **more: Any) -> httpx2.Response:
        headers: Mapping[str, str] = {"authorization": f"Bearer {key}"} if key else {}
        return self.client.request(method, path, headers={**headers, **more.pop("headers", {})}, **more)

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, value: Any = None, **more: Any) -> httpx2.Response:
        return self.request("POST", path, **({} if value is None else {"json": value}), **more)

    def ingest(self, documents: dict[str, str], *, kb_id: str = "default", key: str = "") -> httpx2.Response:
        value = {"kb_id": kb_id, "documents": [{"id": name, "text": text} for name, text in documents.items()]}
        return self.post("/rag/ingest", value, key=key)

    def raw(self, sent: bytes) -> bytes:
        """Return the bytes received on a new connection until the server closes it or stops sending."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(sent)
            received = b""
            while block := connection.recv(65536):
                received += block
            return received


def error_of(response: httpx2.Response) -> tuple[int, str]:
    """Return the status and the error code of a response; the code is empty where there is no error."""
    return response.status_code, response.json().get("error", {}).get("code", "")


def opened(folder: Path, kb_id: str = "default") -> KnowledgeBase:
    """Open the KB of a project directly, to see what is stored."""
    variables = {"EMBEDDER": "ngram", "CACHE_DIR": str(folder / ".pair" / "cache"), "GRAPH": "off"}
    settings = Settings.load(environment={f"PAIR__ENGINE__{name}": value for name, value in variables.items()})
    return open_kb(kb_id, store=str(folder / ".pair" / "store"), settings=settings)


def pair(folder: Path, *arguments: str, **variables: str) -> Any:
    """Run a command, and return the JSON that it prints."""
    environment = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
    environment |= {"HOME": str(home_of(folder)), "PAIR__ENGINE__EMBEDDER": "ngram", **variables}
    status, stdout, stderr = PREPARED.run([*arguments, "--json"], folder, environment)
    assert stdout, (status, stderr)
    return json.loads(stdout)


class Keyed:
    """A server with keys, and its keys by scope."""

    def __init__(self, server: Served, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._made = 0

    def key(self, scope: Scope, *kbs: str) -> str:
        """Add a key. Each key has its own rate limit."""
        self._made += 1
        return self.keys.add(f"{scope}-{self._made}", scope, kbs, None)[1]

    @property
    def keys(self) -> KeyFile:
        """Return the keys file of the server's folder, trusted as `pair keys` trusts it."""
        path = Path(os.path.realpath(self._folder)) / ".pair" / "keys.json"
        trust = TrustedFile(TrustStore(Path(self.server.environment["HOME"]) / ".pair" / "trusted.json"), path)
        return KeyFile(path, SystemClock(), secrets.token_hex, trust)
