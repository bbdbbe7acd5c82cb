"""JSON read into typed values from several threads."""

import subprocess
import sys

import msgspec
import pytest

from pair.values import convert_json

RACE = """
import sys, threading
import msgspec
from pair.values import convert_json, parse_json

sys.setswitchinterval(1e-6)


def read_new_type_at_once():
    class Part(msgspec.Struct):
        size: int
        more: dict[str, int] = {}

    class Whole(msgspec.Struct):
        files: dict[str, Part]
        parts: tuple[Part, ...] = ()

    def read():
        together.wait()
        read_values.append(parse_json(b'{"files": {"a": {"size": 1}}}', Whole).files["a"].size)
        read_values.append(convert_json({"files": {"a": {"size": 1}}}, Whole).files["a"].size)

    read_values, together = [], threading.Barrier(4)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_values == [1] * 8


for _ in range(400):
    read_new_type_at_once()
"""


def test_threads_that_read_a_type_for_the_first_time_at_once_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", RACE], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_text_is_taken_for_a_number_only_when_asked() -> None:
    assert convert_json("7", int, strict=False) == 7
    with pytest.raises(msgspec.ValidationError):
        convert_json("7", int)
