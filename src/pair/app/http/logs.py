"""Log lines, as text or as JSON."""

import datetime
import json
import logging
import sys
import textwrap

from pair.app.terminal import escape_json, escape_line, escape_text

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00Z INFO pair.http: request method='GET' status=200`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value!r}" for key, value in _extra_fields(record).items())
        line = f"{_format_time(record)} {record.levelname} {record.name}: {record.getMessage()} {fields}".rstrip()
        if record.exc_info is None:
            return escape_line(line)
        return f"{escape_line(line)}\n{textwrap.indent(escape_text(self.formatException(record.exc_info)), '  ')}"


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        value = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info is not None:
            value["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(value, default=str))


def start(log_format: str, level: str) -> None:
    """Write to standard error, for pair and for the libraries of the server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    for name, least in (("pair", level.upper()), ("uvicorn", "WARNING"), ("mcp", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least)


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _format_time(record: logging.LogRecord) -> str:
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
