"""A source of the pages of a site below one URL, found by sitemaps, `llms.txt` and links.

The cursor holds all pages that were found, with the validators of the fetched ones. The next crawl visits them again.
The links of an unchanged page are not read, and a page stays as long as the site has it.

Invariants
    Every request goes through the page client, which checks addresses. Redirects to another site are not followed.
    No page is fetched that `robots.txt` forbids. If `robots.txt` cannot be read, nothing is fetched.
    Pages are handled in the order in which they were found, so that a crawl of the same pages gives the same events.
    `Complete` is reported only at the natural end of a crawl, not at a limit.
"""

import contextlib
import hashlib
import posixpath
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import msgspec

from pair.clock import Clock
from pair.network import PageFault
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, SourceFault, Unchanged
from pair.sources.pages import ACCEPT, HTML_TYPES, describe_page_fault, find_links, find_name, parse_xml
from pair.sources.robots import Robots, normalise_escapes, parse_robots
from pair.values import convert_json
from pair.web.pages import PageAnswer, PageClient

_PAGES_AHEAD = 4
"""Maximum number of requests that run or wait, as a multiple of the connections."""
_FOUND_AHEAD = 10
"""Maximum number of known pages, as a multiple of the page limit."""
_MOST_SITEMAPS = 100
_MOST_SITEMAP_BYTES = 50_000_000
_LONGEST_URL = 2_000
_LONGEST_DELAY_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 60.0
_RETRIES = 2
_BUSY = frozenset({429, 503})
_GONE = frozenset({404, 410})
_MOST_SILENT = 10
"""Number of failed requests in a row after which the site counts as unreachable."""
_QUERY_SHARE = 10
"""Divisor of the page limit, for pages of one path with different queries, such as a calendar."""
_MOST_REPEATED = 3
"""Maximum number of times that a part may occur in one path. More come from broken relative links."""
_SESSION = re.compile(
    r"(phpsessid|jsessionid|aspsessionid\w*|session_?id|utm_\w+|gclid|fbclid|msclkid)(=.*)?|sid=\w{16,}", re.IGNORECASE
)
_SESSION_IN_PATH = re.compile(r";(jsessionid|sid|phpsessid)=[^/]*", re.IGNORECASE)
_MEDIA_TYPES = ("image/", "audio/", "video/", "font/", "text/css", "text/javascript", "application/javascript")
_MEDIA_SUFFIXES = re.compile(
    r""".*\.(7z|apk|avi|avif|bin|bmp|bz2|css|deb|dmg|eot|exe|flac|gif|gz|ico|iso|jar|jpe?g|js|m4[av]|map|mkv|mov|mp[34]
    |mpeg|msi|og[gv]|otf|png|rar|rpm|svg|tar|tgz|tiff?|ttf|wasm|wav|web[mp]|whl|woff2?|xz|zip|zst)""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True)
class SiteLimits:
    """Limits of the size and the speed of a crawl."""

    max_pages: int = 5_000
    max_depth: int = 10
    """Maximum number of links from the start page, a sitemap or `llms.txt` to a page."""
    connections: int = 6
    limit_seconds: float = 3600.0


@dataclass(frozen=True)
class SiteSource:
    """The pages below `url`; for a sitemap (`.xml`, `.xml.gz`), only the pages that it lists."""

    url: str
    client: PageClient
    limits: SiteLimits
    clock: Clock

    def read(self, cursor: Any) -> Iterator[Event]:
        """Crawl the site, and yield its pages with their URLs as ids. Raises SourceFault, including at a limit."""
        crawl = _Crawl(self, cursor)
        try:
            yield from crawl.run()
        finally:
            crawl.stopped.set()


# ── addresses ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Scope:
    """The site: one host, and paths with a prefix."""

    scheme: str
    netloc: str
    prefix: str

    def normalise(self, url: str) -> str:
        """Return the normal form of a URL of this site; "" for any other URL."""
        try:
            parts = urlsplit(url)
            if len(url) > _LONGEST_URL or parts.scheme not in {"http", "https"} or _find_netloc(parts) != self.netloc:
                return ""
        except ValueError:
            return ""
        path = _SESSION_IN_PATH.sub("", parts.path) or "/"
        if "/." in path:
            path = posixpath.normpath(path) + ("/" if path.endswith(("/", "/.", "/..")) else "")
        path = normalise_escapes(path)
        is_endless = max(Counter(filter(None, path.split("/"))).values(), default=0) > _MOST_REPEATED
        if is_endless or not f"{path}/".startswith(self.prefix) or _MEDIA_SUFFIXES.fullmatch(path):
            return ""
        fields = [part for part in parts.query.split("&") if part and not _SESSION.fullmatch(part)]
        return urlunsplit((self.scheme, self.netloc, path, normalise_escapes("&".join(fields)), ""))


def _find_scope(url: str) -> _Scope:
    """Return the site at an address. Raises SourceFault."""
    try:
        parts = urlsplit(url)
        netloc = _find_netloc(parts)
    except ValueError as fault:
        raise SourceFault(f"{url} is not the address of a site: {fault}") from fault
    folder, _, name = normalise_escapes(parts.path or "/").rpartition("/")
    return _Scope(parts.scheme, netloc, f"{folder}/{name}/" if name and "." not in name else f"{folder}/")


def _find_netloc(parts: SplitResult) -> str:
    """Return the host, with its port unless it is the default. Raises ValueError."""
    host, port = (parts.hostname or "").rstrip("."), parts.port
    if not host or parts.username is not None:
        raise ValueError("it needs a host, and no user name")
    host = host if host.isascii() else host.encode("idna").decode()
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port not in {None, usual} else "")


def _key(url: str) -> str:
    """Return the key of a page: most sites serve one page with and without a slash at the end."""
    return url.rstrip("/")


# ── crawl ──────────────────────────────────────────────────────────────────────────────────────────


class _LeavesSite(Exception):  # noqa: N818 - an outcome of a request
    """A redirect out of the site or to a page that `robots.txt` forbids. The message is the origin of the target."""


class _Known(msgspec.Struct, array_like=True):
    """A page in the cursor."""

    depth: int
    digest: str = ""
    """The hash of its content; empty for a page that was found, but not fetched."""
    etag: str | None = None
    last_modified: str | None = None
    canonical: str = ""
    """The URL of the page with the same content; empty if there is no other."""


_Visit = tuple[PageAnswer, list[str], str]
"""An answer with its links and its canonical URL."""


class _Crawl:
    """One crawl. Only `_visit` runs in other threads."""

    def __init__(self, source: SiteSource, cursor: Any) -> None:
        self._url, self._client, self._limits, self._clock = source.url, source.client, source.limits, source.clock
        self._known: dict[str, _Known] = {}
        with contextlib.suppress(msgspec.ValidationError):
            self._known = convert_json(cursor or {}, dict[str, _Known])
        self._scope = _find_scope(source.url)
        self._robots = Robots()
        self._found: dict[str, tuple[str, int]] = {}
        self._frontier: deque[tuple[str, int]] = deque()
        self._handled: set[str] = set()
        self._pages: dict[str, _Known] = {}
        self._digests: set[str] = set()
        self._queries: Counter[str] = Counter()
        self._silent = 0
        self._unread_sitemaps: list[Failed] = []
        self._lock = threading.Lock()
        self._free_at = self._ends_at = 0.0
        self.stopped = threading.Event()

    def run(self) -> Iterator[Event]:
        self._ends_at = self._clock.monotonic() + self._limits.limit_seconds
        try:
            self._read_robots()
            yield from self._begin()
            yield from self._visit_all()
            if self._frontier:
                limit = f"{self._limits.max_pages:,} pages"
                raise SourceFault(f"the site has more than {limit}: raise max_pages, or use a narrower address")
        except SourceFault:
            left = {url: page for url, page in self._known.items() if _key(url) not in self._handled}
            yield Cursor(msgspec.to_builtins(self._list_left() | left | self._pages))
            raise
        # The next crawl visits the same pages first, so that limits choose the same pages.
        yield Cursor(msgspec.to_builtins(self._pages | self._list_left() | self._pages))
        yield Complete()

    def _list_left(self) -> dict[str, _Known]:
        """Return the pages that were found, but not visited."""
        return {url: _Known(depth) for key, (url, depth) in self._found.items() if key not in self._handled}

    def _read_robots(self) -> None:
        """Read `robots.txt`. Raises SourceFault if it cannot be read; a site without one allows everything."""
        try:
            answer = self._get(urljoin(self._url, "/robots.txt"))
        except PageFault as fault:
            if fault.status is None or fault.status >= 500 or fault.status in {200, 429}:
                raise SourceFault(f"robots.txt of the site cannot be read: {describe_page_fault(fault)}") from fault
            return
        self._robots = parse_robots(answer.body.decode("utf-8", "replace"))

    def _begin(self) -> Iterator[Event]:
        """Visit the start page, and find the pages to begin with."""
        if urlsplit(self._url).path.endswith((".xml", ".xml.gz")):
            for url in self._list_sitemaps([self._url], is_needed=True):
                self._add(url, 0)
            self._limits = replace(self._limits, max_depth=0)
            return
        yield from self._visit_start()
        for url, page in self._known.items():
            self._add(url, page.depth)
        origin = f"{self._scope.scheme}://{self._scope.netloc}"
        roots = dict.fromkeys((f"{origin}{self._scope.prefix}", f"{origin}/"))
        sitemaps = self._robots.sitemaps or [f"{root}sitemap.xml" for root in roots]
        for url in self._list_sitemaps(sitemaps, is_needed=False):
            self._add(url, 0)
        yield from self._unread_sitemaps
        for root in roots:
            with contextlib.suppress(PageFault):
                answer = self._get(f"{root}llms.txt")
                if answer.content_type not in HTML_TYPES:
                    for url in find_links(answer.body, "text/markdown", answer.charset, answer.url)[0]:
                        self._add(url, 0)

    def _visit_start(self) -> Iterator[Event]:
        start = self._scope.normalise(self._url)
        if not start or not self._is_allowed(start):
            raise SourceFault(f"robots.txt of the site does not allow {self._url}")
        try:
            visit = self._visit(start)
        except PageFault as fault:
            raise SourceFault(f"{self._url}: {describe_page_fault(fault)}") from fault
        except _LeavesSite as fault:
            raise SourceFault(f"{self._url} redirects to {fault}: use the address that it redirects to") from fault
        # Most sites redirect from http to https.
        self._scope = replace(self._scope, scheme=urlsplit(visit[0].url).scheme)
        yield from self._handle(start, 0, visit)

    def _list_sitemaps(self, urls: list[str], *, is_needed: bool) -> Iterator[str]:
        """Yield the pages that sitemaps list, directly or through sitemap indexes.

        A sitemap that exists but cannot be read is a fault if it is needed, else a problem of the report.
        """
        queue, client = deque(urls), self._client.with_max_bytes(_MOST_SITEMAP_BYTES)
        for _ in range(_MOST_SITEMAPS):
            if not queue:
                return
            self._check_time()  # A slow site may list many sitemaps.
            url, is_missing = queue.popleft(), False
            try:
                answer = self._get(url, client=client)
                is_missing = answer.content_type in HTML_TYPES  # Many sites answer with a page for every URL.
                root = parse_xml(answer.body, _MOST_SITEMAP_BYTES)
            except (PageFault, ValueError) as fault:
                reason = describe_page_fault(fault) if isinstance(fault, PageFault) else str(fault)
                reason = f"the sitemap cannot be read: {reason}"
                if is_needed:
                    raise SourceFault(reason) from fault
                if not is_missing and getattr(fault, "status", None) not in _GONE:
                    self._unread_sitemaps.append(Failed(url, reason))
                continue
            for entry in root:
                location = (entry.findtext("{*}loc") or "").strip()
                if entry.tag.endswith("}sitemap"):
                    queue.append(location)
                elif entry.tag.endswith("}url"):
                    yield location

    def _add(self, url: str, depth: int) -> None:
        """Add a page that was found, and plan its visit unless it is forbidden or too far."""
        url = self._scope.normalise(url)
        if not url or _key(url) in self._found or len(self._found) >= _FOUND_AHEAD * self._limits.max_pages:
            return
        self._found[_key(url)] = url, depth
        path, _, query = url.partition("?")
        self._queries[path] += bool(query and depth)
        is_trap = self._queries[path] > max(1, self._limits.max_pages // _QUERY_SHARE)
        if depth <= self._limits.max_depth and not is_trap and self._is_allowed(url):
            self._frontier.append((url, depth))

    def _is_allowed(self, url: str) -> bool:
        return self._robots.allows(url[url.index("/", url.index("//") + 2) :])

    # ── requests ───────────────────────────────────────────────────────────────────────────────────

    def _visit_all(self) -> Iterator[Event]:
        waiting: deque[tuple[str, int, Future[_Visit]]] = deque()
        pages_left = self._limits.max_pages - len(self._handled)
        with ThreadPoolExecutor(self._limits.connections, thread_name_prefix="pair-crawl") as threads:
            try:
                while True:
                    while self._frontier and pages_left and len(waiting) < _PAGES_AHEAD * self._limits.connections:
                        url, depth = self._frontier.popleft()
                        waiting.append((url, depth, threads.submit(self._visit, url)))
                        pages_left -= 1
                    if not waiting:
                        return
                    self._check_time()
                    url, depth, future = waiting.popleft()
                    try:
                        visit = future.result()
                    except PageFault as fault:
                        yield from self._handle_fault(url, depth, fault)
                    except _LeavesSite:
                        continue
                    else:
                        self._silent = 0
                        yield from self._handle(url, depth, visit)
            finally:
                self.stopped.set()
                threads.shutdown(wait=True, cancel_futures=True)

    def _check_time(self) -> None:
        if self._clock.monotonic() > self._ends_at:
            raise SourceFault(f"the crawl did not end within {self._limits.limit_seconds:g} s")

    def _visit(self, url: str) -> _Visit:
        def check_redirect(target: str) -> None:
            normal = self._scope.normalise(target)
            if not normal or not self._is_allowed(normal):
                raise _LeavesSite(f"{urlsplit(target).scheme}://{urlsplit(target).netloc}")

        answer = self._get(url, self._known.get(url), check_redirect)
        if answer.status == 304 and self._scope.normalise(answer.url) != url:
            answer = self._get(url, None, check_redirect)  # Another page has the same validator.
        return answer, *find_links(answer.body, answer.content_type, answer.charset, answer.url)

    def _get(
        self,
        url: str,
        known: _Known | None = None,
        check_redirect: Callable[[str], None] = lambda url: None,
        client: PageClient | None = None,
    ) -> PageAnswer:
        """Send a request when the rate limit allows; wait and repeat it if the site is busy. Raises PageFault."""
        etag, last_modified = (known.etag, known.last_modified) if known else (None, None)
        for attempt in range(_RETRIES + 1):
            # All threads share one queue.
            with self._lock:
                now = self._clock.monotonic()
                starts_at = max(now, self._free_at)
                self._free_at = starts_at + min(self._robots.delay_seconds, _LONGEST_DELAY_SECONDS)
            self.stopped.wait(starts_at - now)
            try:
                return (client or self._client).get(
                    url, etag=etag, last_modified=last_modified, accept=ACCEPT, check_redirect=check_redirect
                )
            except PageFault as fault:
                seconds = 2.0**attempt if fault.retry_after_seconds is None else fault.retry_after_seconds
                is_last = attempt == _RETRIES or seconds > _LONGEST_WAIT_SECONDS or self.stopped.is_set()
                if fault.status not in _BUSY or is_last:
                    raise
                with self._lock:
                    self._free_at = max(self._free_at, self._clock.monotonic() + seconds)
        raise AssertionError("the last attempt returns or raises")

    # ── results ────────────────────────────────────────────────────────────────────────────────────

    def _handle_fault(self, url: str, depth: int, fault: PageFault) -> Iterator[Event]:
        """Report a page that could not be fetched. Raises SourceFault if the crawl should stop."""
        reason, known = describe_page_fault(fault), self._known.get(url, _Known(depth))
        if fault.status in _BUSY and (fault.retry_after_seconds or 0) > _LONGEST_WAIT_SECONDS:
            raise SourceFault(f"{reason}; the site asks to retry in {fault.retry_after_seconds:.0f} s") from fault
        self._silent = 0 if fault.status else self._silent + 1
        if self._silent >= _MOST_SILENT:
            raise SourceFault(f"the site does not answer: {reason}") from fault
        self._handled.add(_key(url))
        if fault.status not in _GONE:
            self._pages[url] = known
            yield Failed(url, reason)
        elif known.digest:
            yield Deleted(url)

    def _handle(self, url: str, depth: int, visit: _Visit) -> Iterator[Event]:
        """Report a page that was fetched, unless its content is reported under another URL."""
        answer, links, canonical = visit
        final = self._scope.normalise(answer.url)
        if not final or self._handled & {_key(url), _key(final)}:
            return
        self._handled |= {_key(url), _key(final)}
        self._found.setdefault(_key(final), (final, depth))
        before = self._known.get(final, _Known(depth))
        page = before
        if answer.status != 304:
            digest = hashlib.sha256(answer.body).hexdigest()[:32]
            canonical = self._choose_canonical(final, canonical)
            page = _Known(depth, digest, answer.etag, answer.last_modified, canonical)
        for link in links:
            self._add(link, depth + 1)
        if page.canonical:
            self._add(page.canonical, depth)
            self._pages[final] = page
        elif page.digest in self._digests:
            self._pages[final] = _Known(depth)  # Fetch it again next time, because the other page may be gone.
        elif not answer.content_type.startswith(_MEDIA_TYPES):
            self._digests.add(page.digest)
            self._pages[final] = page
            if before.digest == page.digest and not before.canonical:
                yield Unchanged(final)
            else:
                yield Item(final, answer.body, find_name(final), answer.content_type, answer.charset, url=final)

    def _choose_canonical(self, url: str, canonical: str) -> str:
        """Return the canonical URL if it is another page; not the start page, which a mistaken site always names."""
        canonical = self._scope.normalise(canonical)
        path = urlsplit(canonical).path
        is_start = path in {self._scope.prefix, urlsplit(self._url).path} and path != urlsplit(url).path
        is_alias = canonical in self._pages and bool(self._pages[canonical].canonical)
        is_other = canonical not in {"", url} and not is_start and not is_alias
        return canonical if is_other and self._is_allowed(canonical) else ""
