"""Ctrl-C at the moment when a thread hands over a lock."""

import threading

import pytest

from pair import errors
from pair.app.cli import commands


class _Interrupted:
    """A command that is interrupted while it takes back the lock of a condition."""

    def main(self, *_: object, **__: object) -> None:
        condition = threading.Condition()
        with condition:
            condition.release()
            raise KeyboardInterrupt


class _Broken:
    """A command with a bug: it handles one fault and raises another."""

    def main(self, *_: object, **__: object) -> None:
        try:
            raise ValueError("first")
        except ValueError:
            raise RuntimeError("second")  # noqa: B904 - the context is what is tested


def test_an_interrupt_that_ends_in_another_exception_is_an_interrupt(monkeypatch, capsys):
    monkeypatch.setattr(commands, "build", lambda arguments: _Interrupted())
    assert commands.run(["search", "x"]) == errors.INTERRUPTED_EXIT_STATUS
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_an_exception_without_an_interrupt_is_a_bug(monkeypatch, capsys, as_json):
    monkeypatch.setattr(commands, "build", lambda arguments: _Broken())
    assert commands.run(["search", "x", *["--json"] * as_json]) == errors.BUG_EXIT_STATUS
    out, err = capsys.readouterr()
    assert "RuntimeError: second" in (out if as_json else err)
