"""The classes of errors: what the caller should do next, exit status, HTTP status.

PairError                    what the caller should do next
├── UsageError    (ValueError)    change the request             exit 1   400
├── NotFoundError (LookupError)   name or create what is absent  exit 1   404
├── DownloadError                 check the network, try again   exit 2   502
├── StorageError                  free space, fix rights, wait   exit 3   503
├── ConflictError                 look again, then retry         exit 4   409
├── DataError                     repair; retrying cannot help   exit 5   500
├── ModelError                    wait, or go on without AI      exit 6   503
└── AccessError                   present other credentials      exit 1   403
"""

import copyreg
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_PRIVATE_DETAILS = {"path": "a local file", "folder": "a local folder", "address": "(address not shown)"}
"""Details that messages repeat, and what callers elsewhere read instead."""
BUG_EXIT_STATUS = 70
INTERRUPTED_EXIT_STATUS = 130


class PairError(Exception):
    """Root of all errors raised on purpose.

    `message` is one line; `explanation` is about this case, one line or a sequence of lines; `hints` are what to try,
    under `lead`. Text in one of these lines that breaks the line does not make it two.
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
        """As it is, so that it may come from another process."""
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
        """Without explanation and details, and without the paths and addresses of this machine in the message."""
        told = {**self.to_json()["error"], "message": self.public_message}
        return {"error": {key: value for key, value in told.items() if key not in {"explanation", "details"}}}

    @property
    def public_message(self) -> str:
        """The message for callers elsewhere: it names no path and no address of this machine."""
        return self.message_without("path", "folder", "address")

    def message_without(self, *names: str) -> str:
        """The message, with these details replaced by words that say nothing of this machine."""
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
