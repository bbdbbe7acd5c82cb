"""Log lines of the server, as text for people."""

import logging

import pytest

from pair.app.http.server import start_logging


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """A logger whose handlers are restored after the test."""
    for name in ("pair", "uvicorn", "mcp"):
        logger = logging.getLogger(name)
        for attribute in ("handlers", "propagate", "level"):
            monkeypatch.setattr(logger, attribute, getattr(logger, attribute))
    return logging.getLogger("pair.http")


def test_a_request_is_one_plain_line(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("text", "info")
    request = {"method": "GET", "path": "/rag/docs/a b", "status": 200, "latency_ms": 3.25, "client": "127.0.0.1"}
    log.info("request", extra=request)
    line = capsys.readouterr().err
    assert line.endswith('Z INFO pair.http: GET "/rag/docs/a b" 200 in 3.25 ms client=127.0.0.1\n')


def test_values_with_spaces_are_quoted(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("text", "info")
    log.warning("request failed", extra={"reason": "no answer", "request_id": "a1"})
    assert capsys.readouterr().err.endswith('WARNING pair.http: request failed reason="no answer" request_id=a1\n')
