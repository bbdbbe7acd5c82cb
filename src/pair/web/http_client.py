"""One HTTP request: time limits, redirects, retries, and a token that stays with its host."""

import contextlib
import datetime
import email.utils
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore2
import httpx2
import stamina

from pair.clock import Clock
from pair.network_faults import describe_fault, describe_request_fault
from pair.web.bounded_decompress import BodyError, unpack_body

_MAX_REDIRECTS = 10
_LONGEST_PAUSE_SECONDS = 120.0
_READ_BYTES = 512 * 1024
_SILENT_SECONDS = 1.5
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

Result = TypeVar("Result")


class RequestFault(Exception):  # noqa: N818 - becomes an error of the stage that asked
    """A request that brought no usable answer. `reason` is fit for people; `was_reached`: the server took it."""

    def __init__(
        self,
        reason: str,
        *,
        was_reached: bool = True,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_reached = was_reached
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """`token` is sent to requests at the origin of `token_url`, and to no other host, redirects included."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        retries: int,
        retry_wait_seconds: float,
        clock: Clock,
        token: str = "",
        token_url: str = "",
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._retry_wait_seconds = retry_wait_seconds
        self._clock = clock
        self._token = token
        self._token_origin = _origin(token_url)
        self.say: Callable[[str], None] = _say_nothing
        """Tells a person what is being waited for."""
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextlib.contextmanager
    def open(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """One request. 429 and 5xx, and every fault of the connection, are a RequestFault."""
        sent = dict(headers)
        if self._token and _origin(url) == self._token_origin:
            # httpx drops this header when a redirect leads to another origin.
            sent["Authorization"] = f"Bearer {self._token}"
        host = _host_of(url)
        waiting = threading.Timer(_SILENT_SECONDS, self.say, [f"waiting for {host}"])
        waiting.daemon = True
        waiting.start()
        try:
            with self._connected().stream(method, url, headers=sent) as response:
                waiting.cancel()
                if response.status_code in _PASSING_STATUSES:
                    raise self._fault_of(response)
                yield response
        except httpx2.TimeoutException as fault:
            reason = f"Connection timeout after {self._timeout_seconds:g}s"
            raise RequestFault(reason, was_reached=False, retryable=True) from fault
        except httpx2.TransportError as fault:
            was_reached = isinstance(fault, httpx2.ProtocolError)
            retryable = not isinstance(fault, httpx2.UnsupportedProtocol)
            reason = describe_request_fault(fault, host)
            raise RequestFault(reason, was_reached=was_reached, retryable=retryable) from fault
        except httpx2.TooManyRedirects as fault:
            raise RequestFault(f"more than {_MAX_REDIRECTS} redirects") from fault
        except (httpx2.InvalidURL, httpx2.HTTPError) as fault:
            raise RequestFault(describe_fault(fault)) from fault
        finally:
            waiting.cancel()

    def read(self, url: str, headers: Mapping[str, str], *, limit_bytes: int) -> HttpAnswer:
        """A small answer as a whole, with retries."""

        def attempt() -> HttpAnswer:
            with self.open("GET", url, {"Accept-Encoding": "identity", **headers}) as response:
                encoding = response.headers.get("Content-Encoding", "")
                try:
                    body = b"".join(unpack_body(response.iter_raw(), encoding, limit_bytes))
                except BodyError as fault:
                    raise RequestFault(str(fault)) from fault
                return HttpAnswer(response.status_code, response.headers, body)

        return self.retrying(attempt, on_retry=self.say)

    def retrying(self, attempt: Callable[[], Result], *, on_retry: Callable[[str], None]) -> Result:
        """Run until it succeeds, fails for good, or the retries are used up; honours Retry-After.

        `on_retry` is given a sentence for people: what went wrong, and when it is tried again.
        """

        retries_left = self._retries

        def pause_after(fault: Exception) -> bool | float:
            nonlocal retries_left
            if not isinstance(fault, RequestFault) or not fault.retryable or retries_left == 0:
                return False
            retries_left -= 1
            pause = fault.retry_after_seconds
            seconds = max(1, round(trial.next_wait if pause is None else pause))
            on_retry(f"{fault.reason}: trying again in {seconds} s")
            return True if pause is None else pause

        for trial in stamina.retry_context(
            on=pause_after,
            attempts=None,
            timeout=None,
            wait_initial=self._retry_wait_seconds,
            wait_max=30.0,
            wait_jitter=self._retry_wait_seconds / 2,
        ):
            with trial:
                result = attempt()
        return result

    def _connected(self) -> httpx2.Client:
        if self._client is None:
            # Its default of 64 kB makes a fast transfer wait for Python (docs/performance.md).
            httpcore2.HTTP11Connection.READ_NUM_BYTES = _READ_BYTES
            self._client = httpx2.Client(
                timeout=self._timeout_seconds,
                follow_redirects=True,
                max_redirects=_MAX_REDIRECTS,
                headers={"User-Agent": "pair"},
            )
        return self._client

    def _fault_of(self, response: httpx2.Response) -> RequestFault:
        reason = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        pause = self._retry_after(response.headers.get("Retry-After"))
        if pause is not None and pause > _LONGEST_PAUSE_SECONDS:
            return RequestFault(f"{reason}; the server asks to come back in {pause:.0f}s")
        return RequestFault(reason, retryable=True, retry_after_seconds=pause)

    def _retry_after(self, value: str | None) -> float | None:
        if value is None:
            return None
        if re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            return float(value)
        try:
            moment = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        return max(0.0, (moment - self._clock.now()).total_seconds())


def _host_of(url: str) -> str:
    """Without credentials, to be shown."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return "the host"


def _say_nothing(_text: str) -> None:
    pass


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
