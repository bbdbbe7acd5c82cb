"""`pair ingest --runner local` on a terminal. The test sends its input, so the command runs until the test ends it."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from pair.values import Document
from support.command import PAIR, Workplace


def lines_of(documents: Iterable[Document]) -> str:
    return "".join(json.dumps({"id": each.id, "text": each.text}) + "\n" for each in documents)


class FedIngest:
    def __init__(self, workplace: Workplace, kb_id: str, documents: Iterable[Document]) -> None:
        self._terminal, slave = os.openpty()
        self._told = ""
        command = [*PAIR, "ingest", "-", "--kb", kb_id, "--runner", "local", "--workers", "2"]
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            cwd=workplace.folder,
            env=workplace.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=slave,
        )
        os.close(slave)
        assert self.process.stdin is not None
        self.process.stdin.write(lines_of(documents).encode())
        self.process.stdin.flush()

    def workers_when_built(self, count: int) -> list[int]:
        """Return the worker processes, once this number of documents is built."""
        while not any(int(built.replace(",", "")) >= count for built in re.findall(r"([\d,]+) of", self._told)):
            self._told += os.read(self._terminal, 4096).decode()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return list(map(int, children.split()))

    def end(self, number: int) -> int:
        """End the process with a signal; return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        os.close(self._terminal)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        return status

    def finish(self) -> tuple[int, str]:
        """End the input; return the exit status and the output."""
        self.process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(OSError):  # a terminal without a writer ends like this
            while some := os.read(self._terminal, 4096):
                self._told += some.decode(errors="replace")
        os.close(self._terminal)
        return self.process.wait(timeout=60), self._told
