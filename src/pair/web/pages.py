"""One conditional GET of a web page, with checks of addresses, redirects, time and size.

Invariants
    Every connection, even after a redirect, goes to an address that the connector checked when it was opened.
    A request ends within its time limit: name lookup, handshake, headers and body share one deadline.
    The size limit applies to the raw and to the decompressed body, so that memory is bounded.
"""

import copy
import re
import select
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

from pair.clock import Clock
from pair.network import PageFault, describe_fault, parse_retry_after
from pair.web.http_client import BodyError, unpack_body
from pair.web.ssrf import GuardedConnector, Refuse, RefusedAddress, Resolve, find_refusal, resolve_host

_MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Short, so that a server rarely closes an idle connection just when it is reused.
_KEEP_ALIVE_SECONDS = 2.0
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|[0-9a-f:.]*:[0-9a-f:.]*")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s;"']+)""", re.IGNORECASE)

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class PageAnswer:
    """A response. `status` is 200 or 304, and `url` is the final URL after redirects."""

    status: int
    url: str
    etag: str | None
    last_modified: str | None
    content_type: str
    charset: str | None
    body: bytes


class PageClient:
    """A thread-safe client for pages. `refuse` checks addresses, unless private ones are allowed."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        max_bytes: int,
        allow_private_addresses: bool,
        clock: Clock,
        resolve: Resolve = resolve_host,
        refuse: Refuse = find_refusal,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._backend = _GuardedBackend(
            GuardedConnector(
                resolve=resolve, refuse=(lambda _: None) if allow_private_addresses else refuse, clock=clock
            )
        )
        self._trust = httpx2.create_ssl_context()
        self._direct = self._pool(None)
        # A proxy resolves names itself, so addresses cannot be checked. A proxy from the environment is therefore
        # used only when all addresses are allowed.
        self._proxies = urllib.request.getproxies() if allow_private_addresses else {}
        self._proxied: dict[str, httpcore2.ConnectionPool] = {}

    def close(self) -> None:
        for pool in (self._direct, *self._proxied.values()):
            pool.close()

    def get(
        self,
        url: str,
        *,
        etag: str | None,
        last_modified: str | None,
        validated_at: str | None = None,
        accept: str = "*/*",
        check_redirect: Callable[[str], None] = lambda url: None,
    ) -> PageAnswer:
        """Get a page. Raises PageFault for every status but 200, or 304 in reply to validators.

        `validated_at`: the URL whose origin issued the validators, if it differs from the origin of `url`.
        `check_redirect`: called with the target of each redirect before it is followed; may raise.
        """
        deadline = self._clock.monotonic() + self._timeout_seconds
        validators = {b"If-None-Match": etag, b"If-Modified-Since": last_modified}
        conditions = [(name, value.encode("latin-1", "replace")) for name, value in validators.items() if value]
        target = check_url(url)
        home = _origin(check_url(validated_at) if validated_at else target)
        for _ in range(_MAX_REDIRECTS + 1):
            # Validators belong to one origin: another origin could misread them, or learn about the earlier visit.
            sent = conditions if _origin(target) == home else []
            answer = self._ask(target, [(b"Accept", accept.encode("latin-1")), *sent], deadline)
            if isinstance(answer, PageAnswer):
                if answer.status == 304 and not sent:
                    raise PageFault("HTTP 304 to a request that had no condition", status=304)
                return answer
            check_redirect(str(answer))
            target = answer
        raise PageFault(f"more than {_MAX_REDIRECTS} redirects")

    def with_max_bytes(self, max_bytes: int) -> "PageClient":
        """Return a client with another limit that shares the connections of this one, which closes them."""
        client = copy.copy(self)
        client._max_bytes = max_bytes  # noqa: SLF001 - of the same class
        return client

    def _ask(self, url: httpx2.URL, more: Headers, deadline: float) -> PageAnswer | httpx2.URL:
        """Send one request; return the page, or the target of a redirect."""
        try:
            return self._answer_twice(url, more, deadline)
        except RefusedAddress as fault:
            raise PageFault(str(fault)) from fault
        except TimeoutError as fault:
            raise PageFault(f"no complete answer after {self._timeout_seconds:g}s", kind="timeout") from fault
        except (
            OSError,
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.ProxyError,
            httpcore2.UnsupportedProtocol,
            httpx2.InvalidURL,
        ) as fault:
            raise PageFault(describe_fault(fault)) from fault

    def _answer_twice(self, url: httpx2.URL, more: Headers, deadline: float) -> PageAnswer | httpx2.URL:
        """Send a request; repeat it on a new connection when the server closed the reused one."""
        progress = _Fetch()
        try:
            return self._answer(url, more, deadline, progress)
        except TimeoutError:
            raise
        except (OSError, httpcore2.NetworkError, httpcore2.RemoteProtocolError):
            if progress.is_connected_for_it or progress.is_answered:
                raise
        return self._answer(url, more, deadline, _Fetch())

    def _answer(self, url: httpx2.URL, more: Headers, deadline: float, progress: "_Fetch") -> PageAnswer | httpx2.URL:
        headers = [
            (b"Host", url.netloc),
            (b"User-Agent", b"pair"),
            (b"Accept-Encoding", b"gzip, deflate"),
            *more,
        ]
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        # httpcore passes these to the streams of this backend, which read them as a deadline, not as a duration.
        extensions = {"timeout": dict.fromkeys(("connect", "read", "write"), deadline), "trace": progress}
        with self._pool_for(url).stream("GET", target, headers=headers, extensions=extensions) as response:
            answered = httpx2.Headers(response.headers, encoding="latin-1")
            if response.status in _REDIRECTS:
                if "location" not in answered:
                    raise PageFault(f"HTTP {response.status} without a Location", status=response.status)
                # Many servers send UTF-8 here, contrary to the standard.
                location = answered.get_list("location")[0].encode("latin-1").decode("utf-8", "replace")
                return check_url(location, base=url)
            if response.status not in {200, 304}:
                phrase = response.extensions.get("reason_phrase", b"").decode("ascii", "replace")
                pause = parse_retry_after(answered.get("retry-after"), answered.get("date"), self._clock.now())
                reason = f"HTTP {response.status} {phrase}".strip()
                raise PageFault(reason, retry_after_seconds=pause, status=response.status)
            content_type = answered.get("content-type", "")
            charset = _CHARSET.search(content_type)
            return PageAnswer(
                status=response.status,
                url=str(url),
                etag=answered.get("etag"),
                last_modified=answered.get("last-modified"),
                content_type=content_type.partition(";")[0].strip().lower(),
                charset=charset[1].lower() if charset else None,
                body=b"" if response.status == 304 else _read_body(response, answered, self._max_bytes),
            )

    def _pool_for(self, url: httpx2.URL) -> httpcore2.ConnectionPool:
        address = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not address or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
            return self._direct
        if address not in self._proxied:
            proxy = httpx2.URL(address if "://" in address else f"http://{address}")
            if proxy.scheme != "http":
                raise PageFault(f"a proxy of the kind {proxy.scheme} cannot be used, only http")
            plain = httpcore2.URL(scheme=proxy.raw_scheme, host=proxy.raw_host, port=proxy.port, target=b"/")
            auth = (proxy.username, proxy.password) if proxy.username else None
            self._proxied.setdefault(address, self._pool(httpcore2.Proxy(plain, auth=auth)))
        return self._proxied[address]

    def _pool(self, proxy: httpcore2.Proxy | None) -> httpcore2.ConnectionPool:
        return httpcore2.ConnectionPool(
            ssl_context=self._trust,
            proxy=proxy,
            max_connections=None,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
            network_backend=self._backend,
        )


@dataclass
class _Fetch:
    """The progress of one request, from the trace events of httpcore."""

    is_connected_for_it: bool = False
    is_answered: bool = False

    def __call__(self, event: str, _details: dict[str, Any]) -> None:
        self.is_connected_for_it |= event == "connection.connect_tcp.started"
        self.is_answered |= event == "http11.receive_response_headers.complete"


class _GuardedBackend(httpcore2.NetworkBackend):
    """The network backend for httpcore. `timeout` is a deadline of the clock here (see PageClient)."""

    def __init__(self, connector: GuardedConnector) -> None:
        self._connector = connector

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        return _GuardedStream(self._connector.connect(host, port, timeout or 0.0), self._connector)


class _GuardedStream(httpcore2.NetworkStream):
    """A socket whose operations share one deadline, which a slow server cannot extend byte by byte."""

    def __init__(self, connection: socket.socket, connector: GuardedConnector) -> None:
        self._connection = connection
        self._connector = connector

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._limit(timeout)
        return self._connection.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._limit(timeout)
        try:
            self._connection.sendall(buffer)
        except TimeoutError:
            raise
        except OSError as fault:
            # httpcore then checks for a response that was sent before the connection was closed.
            raise httpcore2.WriteError(str(fault)) from fault

    def close(self) -> None:
        self._connection.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        try:
            self._limit(timeout)
            wrapped = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except (OSError, ValueError) as fault:  # ValueError: a name that is invalid in certificates
            self.close()
            raise fault if isinstance(fault, OSError) else OSError(str(fault)) from fault
        return _GuardedStream(wrapped, self._connector)

    def get_extra_info(self, info: str) -> Any:
        """Return whether the server closed an idle connection or sent unexpected data."""
        if info != "is_readable":
            return None
        if self._connection.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))

    def _limit(self, deadline: float | None) -> None:
        self._connection.settimeout(self._connector.time_left(deadline or 0.0))


def check_url(url: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """Parse a URL, relative to `base` for a redirect. Raises PageFault for a URL that may not be fetched."""
    try:
        parsed = httpx2.URL(url) if base is None else base.join(url)
    except (httpx2.InvalidURL, ValueError) as fault:
        raise PageFault(f"not a URL: {fault}") from fault
    if parsed.scheme not in {"http", "https"}:
        raise PageFault(f"only http and https pages can be fetched, not {parsed.scheme or 'a URL without scheme'}")
    if parsed.userinfo:
        raise PageFault("a URL must not hold a user name or password")
    if not _HOST.fullmatch(parsed.raw_host.decode("ascii")) or parsed.port == 0 or not 0 <= (parsed.port or 0) < 65536:
        raise PageFault("the URL names no valid host")
    return parsed


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _read_body(response: httpcore2.Response, headers: httpx2.Headers, limit_bytes: int) -> bytes:
    too_long = PageFault(f"the page is longer than {limit_bytes:,} bytes", status=200)
    if int(headers.get("content-length", 0)) > limit_bytes:  # httpcore accepts only digits
        raise too_long
    try:
        return b"".join(unpack_body(response.iter_stream(), headers.get("content-encoding", ""), limit_bytes))
    except BodyError as fault:
        raise (too_long if fault.is_too_long else PageFault(str(fault), status=200)) from fault
