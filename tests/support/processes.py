"""Python programs that begin their work at the same moment."""

import subprocess
import sys
from collections.abc import Mapping


def start_ready(
    program: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start a program, and wait until it prints "ready"; it begins when it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def let_begin(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def run_at_once(*processes: "subprocess.Popen[str]") -> list[str]:
    """Let all of them begin, wait until they have ended well, and return what each has printed since."""
    let_begin(*processes)
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ended
    return [stdout for stdout, _ in ended]
