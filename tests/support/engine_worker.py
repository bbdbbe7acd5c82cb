"""Worker processes that write to a KB and die or stop at a given step.

They are forked from a process that has loaded all modules.

A worker logs every call after it returns, so the log lists the acknowledged calls.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pair import errors
from pair.ai.contract import Embedder
from pair.ai.ngram import NgramEmbedder
from pair.blobs.local import LocalStore
from pair.engine.settings import EngineSettings
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.settings import Settings
from pair.values import Document
from support.engine_parts import MirroredEmbedder

TESTS = Path(__file__).parents[1]
_DIE_WITH_PARENT = 1

Call = tuple[str, Any]
"""`("upsert", {id: vector})`, `("delete", [id])`, `("compact", None)`, `("collect", grace_seconds)`; and
`("reembed", None)`, `("watch", path)`, `("import", path)`, `("repair", None)`."""


def text_of(document_id: str, vector: Sequence[float]) -> str:
    return f"{document_id} at {list(vector)}"


def documents_of(vectors: Mapping[str, Sequence[float]]) -> list[Document]:
    return [Document(name, text_of(name, vector), vector=vector) for name, vector in vectors.items()]


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return settings. `options`: settings of the engine."""
    return Settings(
        engine=EngineSettings(**{"embedder": "ngram", "embedding_dimension": 8, "keep_versions": 0, **options})
    )


def call(kb: KnowledgeBase, name: str, argument: Any, embedder: Embedder) -> dict[str, Any]:
    report: Any
    match name:
        case "reembed":
            report = kb.maintenance.reembed()
        case "watch":
            return watch(kb, Path(argument), embedder)
        case "upsert":
            report = kb.upsert(documents_of(argument))
        case "delete":
            report = kb.delete(argument)
        case "compact":
            report = kb.maintenance.compact(everything=True)
        case "collect":
            report = kb.maintenance.collect(grace_seconds=argument)
        case "import":
            report = kb.backup.import_from(Path(argument), replace_all=True)
        case "repair":
            return kb.maintenance.fsck(repair=True).to_json()
        case _:
            raise ValueError(name)
    return asdict(report)


def watch(kb: KnowledgeBase, end: Path, embedder: Embedder) -> dict[str, Any]:
    """Search for every document by its text until the file `end` exists. Pause with SIGSTOP after the first round.

    Return the outcomes, each with its count, in the order in which they changed.
    """
    counts: Counter[str] = Counter()
    order: list[str] = []
    texts = {each.id: each.text for each in kb.documents(limit=1000)}
    is_over = False
    while not is_over:
        is_over = end.exists()
        for name, text in texts.items():
            outcome = _asked(kb, name, text, embedder)
            counts[outcome] += 1
            if order[-1:] != [outcome]:
                order.append(outcome)
        if counts.total() == len(texts):
            os.kill(os.getpid(), signal.SIGSTOP)
    return {"counts": dict(counts), "order": order}


def _asked(kb: KnowledgeBase, name: str, text: str, embedder: Embedder) -> str:
    if kb.search(text, mode="keyword", limit=1)[0].document_id != name:
        return "not found by its words"
    try:
        found = [*kb.search(text, mode="vector", limit=1), *kb.search_vector(embedder.embed([text])[0], limit=1)]
    except errors.PairError as fault:
        return fault.code
    is_itself = all(hit.document_id == name and (hit.distance or 0.0) < 1e-3 for hit in found)
    return "itself" if is_itself else f"{[(hit.document_id, hit.distance) for hit in found]} for {name}"


@dataclass(frozen=True)
class Job:
    """The calls that one process makes, in order.

    `at`: a step, its occurrence counted from 1, and the signal that the process sends itself there. `insists`: repeat a
    call after a conflict, as the error advises.
    """

    kb_id: str
    options: Mapping[str, Any]
    calls: Sequence[Call]
    log: str
    at: tuple[str, int, int] | None = None
    insists: bool = False
    mirrored: bool = False
    """Whether to use the other embedder."""


@dataclass(frozen=True)
class Noted:
    """A line of a worker's log: the report of a call, or the code of its error."""

    number: int
    """The number of the call."""
    report: dict[str, Any]
    error: str


def read_log(path: Path) -> list[Noted]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Noted(**json.loads(line)) for line in lines]


def acknowledged(path: Path) -> int:
    """Return the number of calls that returned."""
    return sum(not each.error for each in read_log(path))


# ── the worker ─────────────────────────────────────────────────────────────────────────────────────


def hook(at: tuple[str, int, int] | None) -> Callable[[str], None]:
    seen = 0

    def on_step(name: str) -> None:
        nonlocal seen
        if at is not None and name == at[0]:
            seen += 1
            if seen == at[1]:
                if at[2] == signal.SIGSTOP:
                    _stop_without_locks()
                else:
                    os.kill(os.getpid(), at[2])

    return on_step


def _stop_without_locks() -> None:
    """Stop this process while no other thread changes a blob.

    The thread that renews the lease may hold a lock of the local store, which would block all processes even after the
    lease ends.
    """
    changing = {LocalStore._replace.__code__, LocalStore.delete.__code__}
    own = threading.get_ident()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # so that no other thread runs between the check and the signal
    while any(
        frame.f_code in changing
        for thread, top in sys._current_frames().items()
        if thread != own
        for frame, _ in traceback.walk_stack(top)
    ):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.setswitchinterval(interval)


def work(job: Job) -> None:
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(number: int, report: dict[str, Any], error: str = "") -> None:
        os.write(log, json.dumps({"number": number, "report": report, "error": error}).encode() + b"\n")

    settings = settings_of(job.options)
    dimension = settings.engine.embedding_dimension
    embedder: Embedder = MirroredEmbedder(dimension) if job.mirrored else NgramEmbedder(dimension)
    with open_kb(job.kb_id, settings=settings, embedder=embedder, on_step=hook(job.at)) as kb:
        for number, (name, argument) in enumerate(job.calls):
            while True:
                try:
                    note(number, call(kb, name, argument, embedder))
                except errors.PairError as fault:
                    note(number, {}, fault.code)
                    if job.insists and isinstance(fault, errors.ConflictError):
                        continue
                break


def serve() -> None:
    """Serve orders, one per line: a job to start, or the id of a process to wait for."""
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], os.WUNTRACED)
            answer = signal.SIGSTOP if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        else:
            answer = _forked(Job(**order))
        sys.stdout.write(f"{int(answer)}\n")
        sys.stdout.flush()


def _forked(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        work(job)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - it would go on as a second server
        traceback.print_exc()
        os._exit(70)


# ── used by tests ──────────────────────────────────────────────────────────────────────────────────


class Workers:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._orders: IO[str] = process.stdin  # type: ignore[assignment]
        self._answers: IO[str] = process.stdout  # type: ignore[assignment]

    def start(self, job: Job) -> int:
        return self._ask(asdict(job))

    def wait(self, pid: int) -> int:
        """Return how the process ended; SIGSTOP when it is only stopped."""
        return self._ask({"wait": pid})

    def run(self, job: Job) -> int:
        return self.wait(self.start(job))

    def _ask(self, order: dict[str, Any]) -> int:
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return int(self._answers.readline())


@contextlib.contextmanager
def running_workers(environment: Mapping[str, str] | None = None) -> Iterator[Workers]:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "support.engine_worker"],
        env=os.environ | one_thread | {"PYTHONPATH": path} | dict(environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Workers(process)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    # Load the modules that jobs need once, before the first fork.
    import redis  # noqa: F401

    import pair.blobs.leases
    import pair.blobs.redis_leases
    import pair.blobs.s3  # noqa: F401

    serve()
