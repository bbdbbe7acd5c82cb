"""One HTTP request: time limits, redirects, retries, and a token that stays with its host."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore2
import httpx2
import stamina

from pair.clock import Clock
from pair.network_faults import describe_fault, describe_request_fault
from pair.web.http_answer import BodyError, HttpAnswer, RequestFault, parse_retry_after, unpack_body

_MAX_REDIRECTS = 10
_LONGEST_PAUSE_SECONDS = 120.0
_READ_BYTES = 512 * 1024
_SILENT_SECONDS = 1.5
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})

Result = TypeVar("Result")


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
        self.say: Callable[[str], None] = lambda text: None
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextlib.contextmanager
    def open(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Send one request. Raises RequestFault for 429, 5xx and every fault of the connection."""
        sent = dict(headers)
        if self._token and _origin(url) == self._token_origin:
            # httpx drops this header when a redirect leads to another origin.
            sent["Authorization"] = f"Bearer {self._token}"
        host = _show_host(url)
        waiting = threading.Timer(_SILENT_SECONDS, self.say, [f"waiting for {host}"])
        waiting.daemon = True
        waiting.start()
        try:
            with self._get_client().stream(method, url, headers=sent) as response:
                waiting.cancel()
                if response.status_code in _PASSING_STATUSES:
                    raise self._to_fault(response)
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
        """Return a small answer as a whole, with retries."""

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
        """Run until it succeeds, fails for good, or the retries are used up; honour `Retry-After`.

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

    def _get_client(self) -> httpx2.Client:
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

    def _to_fault(self, response: httpx2.Response) -> RequestFault:
        reason = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        pause = parse_retry_after(response.headers.get("Retry-After"), self._clock.now())
        if pause is not None and pause > _LONGEST_PAUSE_SECONDS:
            return RequestFault(f"{reason}; the server asks to come back in {pause:.0f}s")
        return RequestFault(reason, retryable=True, retry_after_seconds=pause)


def _show_host(url: str) -> str:
    """Return the host without credentials."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return "the host"


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port
