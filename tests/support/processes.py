"""Python programs that start their work at the same moment."""

import subprocess
import sys
from collections.abc import Mapping


def start_ready(
    program: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start a program, and wait until it prints "ready". It starts its work when it receives a line."""
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
    """Start the work of all programs, wait until they succeed, and return the output of each."""
    let_begin(*processes)
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), ended
    return [stdout for stdout, _ in ended]
