"""Failed requests of any library: readable reasons, and the retry policy."""

import datetime
import email.utils
import random
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from pair.clock import check_cancelled, pause

Result = TypeVar("Result")

_LONGEST_AGE_SECONDS = 2.0**31
LONGEST_PAUSE_SECONDS = 120.0
"""The longest pause that a server may ask for. If it asks for a longer one, the request is not repeated."""
_LONGEST_BACKOFF_SECONDS = 30.0

_NOISE = re.compile(r"\[Errno -?\d+\]\s*|\[SSL[^\]]*\]\s*|\s*\(_ssl\.c:\d+\)")
_IN_PLAIN_WORDS = {
    "illegal ": "the server did not answer in HTTP",
    "malformed ": "the server did not answer in HTTP",
    "Receive buffer too long": "the server did not answer in HTTP",
    "Server disconnected": "the server closed the connection without an answer",
    "peer closed connection": "the server closed the connection before the answer was complete",
}
"""Readable reasons by the beginning of messages of HTTP libraries."""


@dataclass(eq=False)
class RequestFault(Exception):  # noqa: N818 - becomes an error of the stage that asked
    """A request without a usable answer."""

    reason: str
    retryable: bool = False
    """The same request may succeed later."""
    retry_after_seconds: float | None = None
    was_reached: bool = True
    """The server received the request."""

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False)
class PageFault(Exception):  # noqa: N818 - an outcome of a fetch, which the stage that asked writes down
    """A page that could not be fetched. `status`: the HTTP status of the answer, if there was one."""

    reason: str
    kind: Literal["timeout", "error"] = field(default="error", kw_only=True)
    retry_after_seconds: float | None = field(default=None, kw_only=True)
    status: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class RetryPolicy:
    """The number of retries, and the pause before the first one, which doubles with each retry."""

    retries: int
    wait_seconds: float

    def run(self, attempt: Callable[[], Result], on_retry: Callable[[str], None] = lambda text: None) -> Result:
        """Return the result of the first successful attempt. Raises the RequestFault of the last, and E609.

        `on_retry`: called with a message about the fault and the pause.
        """
        for number in range(self.retries):
            try:
                return attempt()
            except RequestFault as fault:
                if not fault.retryable or (fault.retry_after_seconds or 0) > LONGEST_PAUSE_SECONDS:
                    raise
                reason, seconds = fault.reason, fault.retry_after_seconds
            if seconds is None:
                # Clients that failed at the same time must not retry at the same time.
                jitter = random.uniform(1.0, 1.5)  # noqa: S311
                seconds = min(self.wait_seconds * 2.0 ** min(number, 30) * jitter, _LONGEST_BACKOFF_SECONDS)
            on_retry(f"{reason}: trying again in {max(1, round(seconds))} s")
            pause(seconds)
            check_cancelled()
        return attempt()


def parse_retry_after(value: str | None, sent_at: str | None, now: datetime.datetime) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds seconds or an HTTP date; None for any other value.

    A date is compared with the `Date` of the answer, if there is one: the clocks may differ.
    """
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", value, re.ASCII):
        return min(float(value), _LONGEST_AGE_SECONDS)
    moment = _parse_date(value)
    return None if moment is None else max(0.0, (moment - (_parse_date(sent_at or "") or now)).total_seconds())


def _parse_date(text: str) -> datetime.datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def has_host(url: str) -> bool:
    """Return whether this is an address of the web that names a host and a possible port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def read_host(url: str, default: str) -> str:
    """Return the host and port of a URL, without credentials; `default` for any other text."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return default


def describe_fault(fault: BaseException) -> str:
    """Return the reason without error numbers, source lines and bytes of the answer."""
    link: BaseException | None = fault
    while link is not None:
        if isinstance(link, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {link.verify_message}"
        if isinstance(link, ssl.SSLError) and link.reason:
            return f"no secure connection: {link.reason.replace('_', ' ').lower()}"
        if isinstance(link, socket.gaierror):
            return "the host name cannot be resolved"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    words = _NOISE.sub("", str(fault)).strip()
    plain = (plain for beginning, plain in _IN_PLAIN_WORDS.items() if words.startswith(beginning))
    return next(plain, words or type(fault).__name__)


def describe_request_fault(fault: BaseException, host: str) -> str:
    """Return the reason why a request failed; name the host if it could not be reached."""
    reason = describe_fault(fault)
    if type(fault).__name__ != "ConnectError":  # the name in several libraries
        return reason
    return f"cannot reach {host}: {reason[:1].lower()}{reason[1:]}"
