"""The classes of errors, and the templates of their texts.

PairError                         what the caller should do next
├── UsageError    (ValueError)    change the request             exit 1   400
├── NotFoundError (LookupError)   use another name, or create it exit 1   404
├── DownloadError                 check the network, then retry  exit 2   502
├── StorageError                  free space, fix access, wait   exit 3   503
├── ConflictError                 read again, then retry         exit 4   409
├── DataError                     repair; a retry cannot help    exit 5   500
├── ModelError                    wait, or work without a model  exit 6   503
└── AccessError                   use other credentials          exit 1   403
"""

import copyreg
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

_PRIVATE_DETAILS = {"path": "a local file", "folder": "a local folder", "address": "(address not shown)"}
"""Details that messages repeat, and the words that remote callers read instead."""
_LONGEST_NAME = 100
_HEADER = re.compile(r"(E\d{3})(?: ([^()]+?))?(?: \((.+)\))?")
_DOUBLE_STOP = re.compile(r"([.?!…])\.$")
BUG_EXIT_STATUS = 70
INTERRUPTED_EXIT_STATUS = 130


class PairError(Exception):
    """Root of all errors that pair raises on purpose.

    `message` is one line; `explanation` is one line or a sequence of lines about this case; `hints` are things to try,
    listed under `lead`. A line break inside a line is escaped when it is printed.
    """

    exit_status: ClassVar[int] = BUG_EXIT_STATUS
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        code: str,
        message: str,
        *,
        explanation: str | Sequence[str] = "",
        lead: str = "Suggestions:",
        hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.explanation_lines = (explanation,) if isinstance(explanation, str) else tuple(explanation)
        self.explanation = "\n".join(self.explanation_lines)
        self.lead = lead
        self.hints = tuple(hints)
        self.details = dict(details or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep all fields, so that an error arrives whole from another process."""
        return copyreg.__newobj__, (type(self), self.message), vars(self)  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"code": self.code, "message": self.message, "recoverable": self.retryable}
        if self.hints:
            value["suggestion"] = "\n".join(self.hints)
        if self.explanation:
            value["explanation"] = self.explanation
        if self.details:
            value["details"] = self.details
        return {"error": value}

    def to_public_json(self) -> dict[str, Any]:
        """Return the JSON without explanation, details, and the paths and addresses of this machine."""
        value = {**self.to_json()["error"], "message": self.public_message}
        return {"error": {name: part for name, part in value.items() if name not in {"explanation", "details"}}}

    @property
    def public_message(self) -> str:
        """The message for remote callers, without paths and addresses of this machine."""
        return self.message_without("path", "folder", "address")

    def message_without(self, *names: str) -> str:
        """Return the message with these details replaced by neutral words."""
        message = self.message
        for name in names:
            private = self.details.get(name)
            if isinstance(private, str) and private:
                message = message.replace(private, _PRIVATE_DETAILS[name])
        return message


class UsageError(PairError, ValueError):
    exit_status = 1
    http_status = 400


class NotFoundError(PairError, LookupError):
    exit_status = 1
    http_status = 404


class DownloadError(PairError):
    exit_status = 2
    http_status = 502
    retryable = True


class StorageError(PairError):
    exit_status = 3
    http_status = 503
    retryable = True


class ConflictError(PairError):
    exit_status = 4
    http_status = 409
    retryable = True


class DataError(PairError):
    exit_status = 5


class ModelError(PairError):
    exit_status = 6
    http_status = 503
    retryable = True


class AccessError(PairError):
    exit_status = 1
    http_status = 403


CODES: dict[str, tuple[type[PairError], str]] = {}
"""Class and meaning of each code, in order."""

_Kind = TypeVar("_Kind", bound=PairError)


class ErrorTemplate(Generic[_Kind]):
    """The template of one error text. Call it with the values of its fields, in their order.

    The lines of `entry` are: code, meaning and (fields); the message; the explanation; a line that ends in a colon and
    introduces the hints; the hints, each after a bullet. Fields become details of the error, except those that begin
    with an underscore. An entry without a meaning is another text of the same code.
    """

    def __init__(self, kind: type[_Kind], entry: str) -> None:
        header, self.message, *lines = (line.strip() for line in entry.splitlines())
        parts = _HEADER.fullmatch(header)
        assert parts is not None, header  # noqa: S101 - an entry is part of the source
        self.kind = kind
        self.code, self.meaning, self.fields = parts[1], parts[2] or "", (parts[3] or "").split()
        text = [line for line in lines if not line.startswith("• ")]
        self._lead = text.pop() if text and text[-1].endswith(":") else "Suggestions:"
        self.explanation = text
        self.hints = [hint for line in lines if line.startswith("• ") for hint in line[2:].split(" • ")]
        if self.meaning:
            CODES[self.code] = (kind, self.meaning)

    def __call__(self, *values: Any, explanation: str | Sequence[str] = "", hints: Sequence[str] = ()) -> _Kind:
        """Return the error. `explanation` and `hints` replace those of the entry."""
        fields = dict(zip(self.fields, values, strict=True))
        return self.kind(
            self.code,
            _fill(self.message, fields),
            explanation=explanation or [_fill(line, fields) for line in self.explanation] or "",
            lead=self._lead,
            hints=hints or [_fill(hint, fields) for hint in self.hints],
            details={
                name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
                for name, value in fields.items()
                if not name.startswith("_")
            },
        )


class _TextFormatter(string.Formatter):
    """A formatter with three more conversions.

    !c capitalises the first letter; !q quotes, and cuts a long value with an ellipsis; !h quotes and cuts.
    """

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "c":
            return value[:1].upper() + value[1:]
        if conversion == "q":
            return repr(value if len(value) <= _LONGEST_NAME else f"{value[:_LONGEST_NAME]}…")
        if conversion == "h":
            return repr(value[:_LONGEST_NAME])
        return super().convert_field(value, conversion)


_TEXT = _TextFormatter()


def _fill(line: str, fields: Mapping[str, Any]) -> str:
    """Format a line. If a value ends with a full stop, drop the one after it."""
    text = _TEXT.vformat(line, (), fields)
    return _DOUBLE_STOP.sub(r"\1", text) if line.endswith("}.") else text
