"""Sites as sources: the pages that a crawl finds, the pages that it skips, and its load on the server."""

import gzip
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pair.clock import SystemClock
from pair.sources.contract import Complete, Cursor, Deleted, Event, Failed, Item, SourceFault, Unchanged
from pair.sources.site import SiteLimits, SiteSource
from pair.web.pages import PageClient
from support.page_server import (
    Answering,
    Asked,
    Names,
    PageServer,
    RawReply,
    Reply,
    dripping,
    endless,
    html,
    only_first_loopback,
    redirect,
)

MAX_BYTES = 100_000
TEXT = [("Content-Type", "text/plain; charset=utf-8")]
XML = [("Content-Type", "application/xml")]


def links(*targets: str, words: str = "") -> Reply:
    return html(f"<p>{words}</p>" + "".join(f'<a href="{target}">more</a>' for target in targets))


def sitemap(*urls: str, kind: str = "url") -> bytes:
    entries = "".join(f"<{kind}><loc>{url}</loc></{kind}>" for url in urls)
    root = "urlset" if kind == "url" else "sitemapindex"
    namespace = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0"?><{root} xmlns="{namespace}">{entries}</{root}>'.encode()


_clients: dict[str, PageClient] = {}


@pytest.fixture(scope="module", autouse=True)
def close_clients() -> Iterator[None]:
    """Close the shared clients. Tests share them because creating one loads all certificates of the system."""
    yield
    for client in _clients.values():
        client.close()


def site_at(url: str, limits: SiteLimits | None = None, **more: Any) -> SiteSource:
    options = {"allow_private_addresses": True, "timeout_seconds": 20.0, **more}
    key = repr(sorted(options.items()))
    if key not in _clients:
        _clients[key] = PageClient(max_bytes=MAX_BYTES, clock=SystemClock(), **options)
    return SiteSource(url, _clients[key], limits or SiteLimits(), SystemClock())


def crawl(url: str, cursor: Any = None, **options: Any) -> list[Event]:
    return list(site_at(url, **options).read(cursor))


def crawl_until_fault(url: str, cursor: Any = None, **options: Any) -> tuple[list[Event], str]:
    events: list[Event] = []
    with pytest.raises(SourceFault) as raised:
        events.extend(site_at(url, **options).read(cursor))
    return events, str(raised.value)


def paths(events: list[Event], kind: type[Event] = Item) -> list[str]:
    """Return the paths of the pages in events of this kind."""
    return ["/" + event.id.split("/", 3)[3] for event in events if isinstance(event, kind)]  # type: ignore[union-attr]


def cursor_of(events: list[Event]) -> Any:
    (cursor,) = (event.value for event in events if isinstance(event, Cursor))
    return cursor


# ── what is found ──────────────────────────────────────────────────────────────────────────────────


def test_links_are_followed_below_the_address_alone(server: PageServer) -> None:
    server.pages["/docs/"] = links("a.html", "/docs/b/", "/blog/", "http://127.0.0.2/docs/", "mailto:x@y", "//[bad")
    server.pages["/docs/a.html"] = links("../docs/./c.html#part", words="a")
    server.pages["/docs/b/"] = html("b")
    server.pages["/docs/c.html"] = html("c")
    server.pages["/blog/"] = html("blog")
    events = crawl(server.url("/docs/"))
    assert paths(events) == ["/docs/", "/docs/a.html", "/docs/b/", "/docs/c.html"]
    assert isinstance(events[-1], Complete)
    item = next(event for event in events if isinstance(event, Item) and event.name == "a.html")
    assert (item.content_type, item.charset, item.url) == ("text/html", "utf-8", item.id)


def test_an_address_without_a_slash_names_a_folder_and_not_its_neighbours(server: PageServer) -> None:
    server.pages["/docs"] = redirect("/docs/")
    server.pages["/docs/"] = links("/docs/a", "/docs-old/a", "/")
    server.pages["/docs/a"] = html("a")
    assert paths(crawl(server.url("/docs"))) == ["/docs/", "/docs/a"]


def test_pages_are_found_by_sitemaps_of_sitemaps_and_packed_ones(server: PageServer) -> None:
    server.pages["/robots.txt"] = Reply(headers=TEXT, body=f"Sitemap: {server.url('/index.xml')}".encode())
    both = sitemap(server.url("/one.xml"), server.url("/two.xml.gz"), server.url("/missing.xml"), kind="sitemap")
    server.pages["/index.xml"] = Reply(headers=XML, body=both)
    server.pages["/one.xml"] = Reply(headers=XML, body=sitemap(server.url("/a"), "http://127.0.0.2/elsewhere"))
    server.pages["/two.xml.gz"] = Reply(body=gzip.compress(sitemap(server.url("/b"))))
    server.pages |= {"/": html("start"), "/a": html("a"), "/b": html("b")}
    assert paths(crawl(server.url())) == ["/", "/a", "/b"]


def test_a_sitemap_as_the_address_gives_the_pages_that_it_lists(server: PageServer) -> None:
    server.pages["/docs/sitemap.xml"] = Reply(headers=XML, body=sitemap(server.url("/docs/a"), server.url("/docs/b")))
    server.pages |= {"/docs/a": links("/docs/c"), "/docs/b": html("b"), "/docs/c": html("c")}
    assert paths(crawl(server.url("/docs/sitemap.xml"))) == ["/docs/a", "/docs/b"]


@pytest.mark.parametrize("body", [b"<urlset", b'<!DOCTYPE x [<!ENTITY a "aaaa">]><urlset>&a;</urlset>', b"\x1f\x8bcut"])
def test_a_sitemap_that_is_found_but_cannot_be_read_is_reported(server: PageServer, body: bytes) -> None:
    server.pages |= {"/": html("start"), "/sitemap.xml": Reply(headers=XML, body=body)}
    events = crawl(server.url("/"))
    assert (paths(events), paths(events, Failed)) == (["/"], ["/sitemap.xml"])
    server.pages["/sitemap.xml"] = html("There is no such page.")
    assert paths(crawl(server.url("/")), Failed) == []


def test_a_sitemap_may_be_larger_than_a_page(server: PageServer) -> None:
    urls = sitemap(*(server.url(f"/other/{number}") for number in range(3000)), server.url("/docs/a"))
    assert len(urls) > MAX_BYTES
    server.pages |= {"/docs/": html("start"), "/docs/a": html("a"), "/sitemap.xml": Reply(headers=XML, body=urls)}
    assert paths(crawl(server.url("/docs/"))) == ["/docs/", "/docs/a"]


@pytest.mark.parametrize("body", [b"<urlset", b'<!DOCTYPE x [<!ENTITY a "aaaa">]><urlset>&a;</urlset>', b"\x1f\x8bcut"])
def test_a_damaged_or_hostile_sitemap_is_refused(server: PageServer, body: bytes) -> None:
    server.pages["/sitemap.xml"] = Reply(headers=XML, body=body)
    events, reason = crawl_until_fault(server.url("/sitemap.xml"))
    assert paths(events) == []
    assert reason.startswith("the sitemap cannot be read: ")


def test_links_of_llms_txt_and_of_markdown_pages_are_followed(server: PageServer) -> None:
    server.pages["/"] = html("start")
    server.pages["/llms.txt"] = Reply(headers=TEXT, body=b"# Site\n- [Guide](/guide.md): words\n")
    markdown = [("Content-Type", "text/markdown")]
    server.pages["/guide.md"] = Reply(headers=markdown, body=b"See [b](b.md) and <http://127.0.0.2/>.")
    server.pages["/b.md"] = Reply(headers=markdown, body=b"b")
    assert paths(crawl(server.url())) == ["/", "/guide.md", "/b.md"]
    assert {asked.headers["accept"] for asked in server.asked} == {"text/markdown, text/html;q=0.9, */*;q=0.1"}


def test_spellings_of_one_address_are_one_page(server: PageServer) -> None:
    one = server.url("/%7Euser/a").replace("127.0.0.1", "127.0.0.1.")
    server.pages["/"] = links("/~user/a", "/~user/a/", "/%7euser/a#part", "/x/../~user/a", "/~user/a?utm_source=x", one)
    server.pages["/~user/a"] = html("a")
    assert paths(crawl(server.url())) == ["/", "/~user/a"]
    assert [asked.path for asked in server.asked].count("/~user/a") == 1


def test_names_and_characters_outside_ascii_have_one_spelling(server: PageServer) -> None:
    server.pages["/"] = links("/gr\u00fc\u00df|e", "/gr%c3%bc%c3%9f%7ce", words="start")
    server.pages["/gr%C3%BC%C3%9F%7Ce"] = html("page")
    names = Names({"xn--bcher-kva.test": [("127.0.0.1",)]})
    events = crawl(server.url(host="b\u00fccher.test"), resolve=names)
    assert [event.id for event in events if isinstance(event, Item)] == [
        server.url("/", host="xn--bcher-kva.test"),
        server.url("/gr%C3%BC%C3%9F%7Ce", host="xn--bcher-kva.test"),
    ]
    assert [asked.path for asked in server.asked].count("/gr%C3%BC%C3%9F%7Ce") == 1


def test_session_ids_in_addresses_do_not_multiply_pages(server: PageServer) -> None:
    def answer(asked: Asked) -> Reply:
        number = len(server.asked)
        return links(f"/a?PHPSESSID={number}", f"/a;jsessionid={number}", f"/a?x=1&sid={number:032x}", words=asked.path)

    server.pages |= {"/": answer, "/a": answer, "/a?x=1": answer}
    assert paths(crawl(server.url())) == ["/", "/a", "/a?x=1"]


def test_the_content_of_two_addresses_is_stored_under_the_canonical_one(server: PageServer) -> None:
    same = '<link rel="canonical" href="/a">words'
    server.pages |= {"/": links("/print/a", "/b"), "/print/a": html(same), "/a": html(same)}
    server.pages["/b"] = html('<link rel="canonical" href="/">a page that names the start page by mistake')
    events = crawl(server.url())
    assert paths(events) == ["/", "/b", "/a"]
    again = crawl(server.url(), cursor_of(events))
    assert (paths(again), paths(again, Unchanged)) == ([], ["/", "/b", "/a"])


def test_pages_that_name_each_other_as_canonical_are_not_lost(server: PageServer) -> None:
    server.pages["/"] = links("/a", "/b")
    server.pages["/a"] = html('<link rel="canonical" href="/b">a')
    server.pages["/b"] = html('<link rel="canonical" href="/a">b')
    assert paths(crawl(server.url())) == ["/", "/b"]


def test_equal_content_under_several_addresses_is_stored_once(server: PageServer) -> None:
    server.pages |= {"/": links("/index.html", "/copy", words="start"), "/copy": html("copy")}
    server.pages["/index.html"] = server.pages["/"]
    assert paths(crawl(server.url())) == ["/", "/copy"]


def test_pictures_and_archives_are_not_documents(server: PageServer) -> None:
    server.pages["/"] = links("/a.png", "/b.tar.gz", "/picture")
    server.pages["/picture"] = Reply(headers=[("Content-Type", "image/png")], body=b"png")
    assert paths(crawl(server.url())) == ["/"]
    assert not {"/a.png", "/b.tar.gz"} & {asked.path for asked in server.asked}


# ── crawling again ─────────────────────────────────────────────────────────────────────────────────


def test_a_second_crawl_reports_what_changed(server: PageServer) -> None:
    def with_etag(asked: Asked) -> Reply:
        if asked.headers.get("if-none-match") == '"1"':
            return Reply(304, headers=[("ETag", '"1"')])
        return Reply(headers=[("ETag", '"1"'), ("Content-Type", "text/html")], body=b"<p>same")

    server.pages |= {"/": links("/a", "/b", "/c", "/d", "/e"), "/a": with_etag, "/b": html("b"), "/c": html("c")}
    server.pages |= {"/d": html("d"), "/e": html("e")}
    first = crawl(server.url())
    server.pages |= {"/b": html("another b"), "/d": Reply(500)}
    del server.pages["/c"]
    second = crawl(server.url(), cursor_of(first))
    assert paths(second) == ["/b"]
    assert paths(second, Unchanged) == ["/", "/a", "/e"]
    assert paths(second, Deleted) == ["/c"]
    assert paths(second, Failed) == ["/d"]
    assert isinstance(second[-1], Complete)
    third = crawl(server.url(), cursor_of(second))
    assert paths(third, Unchanged) == ["/", "/a", "/b", "/e"]


def test_a_page_stays_while_the_site_has_it_even_if_no_page_links_to_it(server: PageServer) -> None:
    server.pages |= {"/": links("/a"), "/a": links("/b"), "/b": html("b")}
    first = crawl(server.url())
    server.pages["/"] = links(words="no links")
    assert paths(crawl(server.url(), cursor_of(first)), Unchanged) == ["/a", "/b"]


def unchanging(*targets: str) -> Answering:
    """Return a page with an ETag that never changes."""

    def answer(asked: Asked) -> Reply:
        page = links(*targets, words=asked.path)
        etag = f'"{asked.path}"'
        if asked.headers.get("if-none-match") == etag:
            return Reply(304, headers=[("ETag", etag)])
        return Reply(headers=[*page.headers, ("ETag", etag)], body=page.body)

    return answer


def test_pages_behind_unchanged_pages_are_visited_when_they_can_be(server: PageServer) -> None:
    server.pages |= {"/": unchanging("/a", "/b", "/private"), "/a": unchanging("/c"), "/b": Reply(500)}
    server.pages |= {"/c": html("c"), "/private": html("p")}
    server.pages["/robots.txt"] = Reply(body=b"User-agent: *\nDisallow: /private\n")
    first = crawl(server.url(), limits=SiteLimits(max_depth=1))
    assert (paths(first), paths(first, Failed)) == (["/", "/a"], ["/b"])
    server.pages |= {"/b": html("b"), "/robots.txt": Reply(404)}
    second = crawl(server.url(), cursor_of(first))
    assert sorted(paths(second)) == ["/b", "/c", "/private"]
    assert paths(second, Unchanged) == ["/", "/a"]


def test_a_crawl_that_ended_at_a_limit_continues_when_the_limit_is_raised(server: PageServer) -> None:
    server.pages["/"] = unchanging(*(f"/{number}" for number in range(9)))
    server.pages |= {f"/{number}": unchanging() for number in range(9)}
    first, _ = crawl_until_fault(server.url(), limits=SiteLimits(max_pages=4))
    second = crawl(server.url(), cursor_of(first))
    assert (len(paths(first)), len(paths(second, Unchanged)), len(paths(second))) == (4, 4, 6)


def test_a_copy_takes_the_place_of_a_page_that_is_gone(server: PageServer) -> None:
    server.pages |= {"/": unchanging("/a", "/b"), "/a": html("same"), "/b": html("same")}
    first = crawl(server.url())
    del server.pages["/a"]
    second = crawl(server.url(), cursor_of(first))
    assert (paths(first), paths(second), paths(second, Deleted)) == (["/", "/a"], ["/b"], ["/a"])


def test_a_page_that_a_sitemap_no_longer_lists_is_not_mentioned(server: PageServer) -> None:
    server.pages |= {"/sitemap.xml": Reply(body=sitemap(server.url("/a"), server.url("/b")))}
    server.pages |= {"/a": html("a"), "/b": html("b")}
    first = crawl(server.url("/sitemap.xml"))
    server.pages["/sitemap.xml"] = Reply(body=sitemap(server.url("/a")))
    assert paths(crawl(server.url("/sitemap.xml"), cursor_of(first)), Unchanged) == ["/a"]


def test_a_cursor_of_the_wrong_kind_is_ignored(server: PageServer) -> None:
    server.pages["/"] = html("start")
    assert paths(crawl(server.url(), {"since": 5})) == ["/"]


# ── limits and traps ───────────────────────────────────────────────────────────────────────────────


def test_the_page_limit_ends_a_crawl_and_deletes_nothing(server: PageServer) -> None:
    server.pages["/"] = links(*(f"/{number}" for number in range(20)))
    server.pages |= {f"/{number}": html(f"page {number}") for number in range(20)}
    first = crawl(server.url())
    events, reason = crawl_until_fault(server.url(), cursor_of(first), limits=SiteLimits(max_pages=5))
    assert len(paths(events, Unchanged)) == 5
    assert reason == "the site has more than 5 pages: raise max_pages, or use a narrower address"
    assert cursor_of(events).keys() == cursor_of(first).keys()


def test_an_endless_calendar_gets_a_share_of_the_pages(server: PageServer) -> None:
    def month(asked: Asked) -> Reply:
        number = int(asked.path.partition("=")[2])
        return links(f"/calendar?month={number + 1}", f"/calendar?month={number - 1}", words=asked.path)

    server.pages |= {f"/calendar?month={number}": month for number in range(-200, 200)}
    server.pages |= {"/": links("/calendar?month=0", "/a"), "/a": html("a")}
    events = crawl(server.url(), limits=SiteLimits(max_pages=50, max_depth=100))
    assert paths(events)[:3] == ["/", "/calendar?month=0", "/a"]
    assert len(paths(events)) == 2 + 5
    assert isinstance(events[-1], Complete)
    again = crawl(server.url(), cursor_of(events), limits=SiteLimits(max_pages=50, max_depth=100))
    assert (sorted(paths(again, Unchanged)), paths(again)) == (sorted(paths(events)), [])


def test_links_that_grow_without_end_are_cut_by_repetition_and_depth(server: PageServer) -> None:
    class Every(dict[str, Any]):
        def get(self, path: str, default: Any = None) -> Any:
            special = {"/robots.txt", "/sitemap.xml", "/llms.txt"}
            return default if path in special else links("x/", f"{len(path)}/", words=path)

    server.pages = Every()
    events = crawl(server.url("/"), limits=SiteLimits(max_depth=5))
    assert isinstance(events[-1], Complete)
    assert "/x/x/x/" in paths(events)
    assert "/x/x/x/x/" not in paths(events)
    assert max(path.count("/") for path in paths(events)) == 6


def test_redirects_to_another_site_are_not_followed(server: PageServer) -> None:
    with PageServer(host="127.0.0.2") as other:
        other.pages["/"] = html("other")
        server.pages |= {"/docs/": links("/docs/a", "/docs/b", "/docs/c"), "/docs/a": redirect(other.url("/"))}
        server.pages |= {"/docs/b": redirect("/private"), "/private": html("p"), "/docs/c": redirect("/docs/d")}
        server.pages["/docs/d"] = html("d")
        assert paths(crawl(server.url("/docs/"))) == ["/docs/", "/docs/d"]
        assert other.asked == []
        server.pages["/docs/"] = redirect(other.url("/"))
        _, reason = crawl_until_fault(server.url("/docs/"))
        assert reason == (f"{server.url('/docs/')} redirects to {other.url('')}: use the address that it redirects to")


def test_the_address_guard_holds_for_the_start_and_for_every_later_request(server: PageServer) -> None:
    _, reason = crawl_until_fault(server.url(), allow_private_addresses=False)
    assert "127.0.0.1 is a loopback address; kb.allow_private_addresses: true allows it" in reason
    assert server.asked == []
    # A name that leads elsewhere after the first requests, and a sitemap at a private address.
    server.pages["/robots.txt"] = Reply(body=b"Sitemap: http://127.0.0.2/sitemap.xml\n")
    server.pages["/"] = Reply(headers=[("Connection", "close"), *html("").headers], body=links("/a", "/b").body)
    names = Names({"site.test": [("127.0.0.1",), ("127.0.0.1",), ("127.0.0.2",)], "127.0.0.2": [("127.0.0.2",)]})
    url = server.url(host="site.test")
    events = crawl(url, allow_private_addresses=False, resolve=names, refuse=only_first_loopback)
    assert paths(events, Failed) == ["/sitemap.xml", "/a", "/b"]
    assert all("is a private address" in event.reason for event in events if isinstance(event, Failed))
    assert not {"/a", "/b"} & {asked.path for asked in server.asked}


def test_a_page_above_the_size_limit_and_a_slow_page_fail_alone(server: PageServer) -> None:
    server.pages |= {"/": links("/large", "/slow", "/a"), "/large": Reply(pieces=endless), "/a": html("a")}
    server.pages["/slow"] = Reply(pieces=dripping(b"x"))
    events = crawl(server.url(), timeout_seconds=0.5)
    assert paths(events) == ["/", "/a"]
    assert [event.reason for event in events if isinstance(event, Failed)] == [
        "the page is longer than 100,000 bytes",
        "no complete answer after 0.5s",
    ]
    assert isinstance(events[-1], Complete)


def test_a_site_that_stops_answering_is_given_up(server: PageServer) -> None:
    server.pages["/"] = links(*(f"/{number}" for number in range(100)))
    server.pages |= {f"/{number}": RawReply(lambda _: iter((b"",))) for number in range(100)}
    events, reason = crawl_until_fault(server.url())
    assert reason.startswith("the site does not answer: ")
    assert len(paths(events, Failed)) == 9
    assert len(server.asked) < 60


def test_a_start_page_that_fails_changes_nothing(server: PageServer) -> None:
    server.pages |= {"/": links("/a"), "/a": html("a")}
    first = crawl(server.url())
    del server.pages["/"]
    events, reason = crawl_until_fault(server.url(), cursor_of(first))
    assert events == [Cursor(cursor_of(first))]
    assert reason == f"{server.url()}: HTTP 404 Not Found"


def test_a_crawl_ends_at_its_time_limit(server: PageServer) -> None:
    server.pages |= {"/": links("/a"), "/a": html("a")}
    _, reason = crawl_until_fault(server.url(), limits=SiteLimits(limit_seconds=0.0))
    assert reason == "the crawl did not end within 0 s"


def test_slow_sitemaps_count_towards_the_time_limit(server: PageServer) -> None:
    server.pages["/"] = links()
    server.pages["/robots.txt"] = Reply(
        body=b"".join(b"Sitemap: %s\n" % server.url(f"/{number}.xml").encode() for number in range(100))
    )
    server.pages |= {f"/{number}.xml": Reply(body=sitemap(), headers=XML) for number in range(100)}
    _, reason = crawl_until_fault(server.url(), limits=SiteLimits(limit_seconds=0.0))
    assert reason == "the crawl did not end within 0 s"
    assert [asked.path for asked in server.asked] == ["/robots.txt", "/"]


def test_frames_and_refreshed_pages_are_followed(server: PageServer) -> None:
    server.pages["/"] = html("<meta http-equiv='Refresh' content='0; URL=&quot;latest/&quot;'>Moved.")
    frames = b"<html><frameset><frame src='menu'><frame src='a'></frameset></html>"
    server.pages["/latest/"] = Reply(body=frames, headers=[("Content-Type", "text/html")])
    server.pages |= {"/latest/menu": html("menu"), "/latest/a": html("a")}
    assert paths(crawl(server.url())) == ["/", "/latest/", "/latest/menu", "/latest/a"]


def test_an_address_that_cannot_be_parsed_is_named() -> None:
    _, reason = crawl_until_fault("http://[::1/")
    assert reason == "http://[::1/ is not the address of a site: Invalid IPv6 URL"


# ── manners ────────────────────────────────────────────────────────────────────────────────────────


def test_pages_that_robots_txt_forbids_are_not_fetched(server: PageServer) -> None:
    server.pages["/robots.txt"] = Reply(
        body=b"User-agent: *\nDisallow: /private\nDisallow: /*?\nAllow: /private/open\n"
    )
    server.pages["/"] = links("/private/a", "/a?x=1", "/private/open", "/a")
    server.pages |= {"/private/open": html("open"), "/a": redirect("/private/b"), "/private/b": html("b")}
    assert paths(crawl(server.url())) == ["/", "/private/open"]
    assert not {"/private/a", "/private/b", "/a?x=1"} & {asked.path for asked in server.asked}


def test_a_forbidden_start_page_is_named(server: PageServer) -> None:
    server.pages["/robots.txt"] = Reply(body=b"User-agent: pair\nDisallow: /\n")
    _, reason = crawl_until_fault(server.url())
    assert reason == f"robots.txt of the site does not allow {server.url()}"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_nothing_is_fetched_while_robots_txt_fails(server: PageServer, status: int) -> None:
    server.pages["/robots.txt"] = Reply(status, headers=[("Retry-After", "0")])
    events, reason = crawl_until_fault(server.url(), {"http://x/": [0]})
    assert reason.startswith(f"robots.txt of the site cannot be read: HTTP {status}")
    assert events == [Cursor({"http://x/": [0, "", None, None, ""]})]
    assert {asked.path for asked in server.asked} == {"/robots.txt"}


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_site_without_robots_txt_allows_everything(server: PageServer, status: int) -> None:
    server.pages |= {"/robots.txt": Reply(status), "/": html("start")}
    assert paths(crawl(server.url())) == ["/"]


def test_a_busy_server_is_asked_again_when_it_says(server: PageServer) -> None:
    def busy_once(asked: Asked) -> Reply:
        is_first = [each.path for each in server.asked].count("/a") == 1
        return Reply(429, headers=[("Retry-After", "0.05")]) if is_first else html("a")

    server.pages |= {"/": links("/a"), "/a": busy_once}
    assert paths(crawl(server.url())) == ["/", "/a"]


def test_a_server_that_asks_for_a_long_pause_is_left_alone(server: PageServer) -> None:
    server.pages["/"] = links(*(f"/{number}" for number in range(100)))
    server.pages |= {f"/{number}": Reply(429, headers=[("Retry-After", "3600")]) for number in range(100)}
    _, reason = crawl_until_fault(server.url())
    assert reason == "HTTP 429 Too Many Requests; the site asks to retry in 3600 s"
    assert len(server.asked) < 40


def test_requests_keep_the_delay_of_robots_txt_and_the_number_of_connections(server: PageServer) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def count(asked: Asked) -> Reply:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.02)
        with lock:
            running[0] -= 1
        return html(asked.path)

    server.pages["/"] = links(*(f"/{number}" for number in range(12)))
    server.pages |= {f"/{number}": count for number in range(12)}
    crawl(server.url(), limits=SiteLimits(connections=3))
    assert 2 <= most[0] <= 3
    most[0] = 0
    server.pages["/robots.txt"] = Reply(body=b"User-agent: *\nCrawl-delay: 0.05\n")
    server.pages["/"] = links("/0", "/1", "/2", "/3")
    crawl(server.url())
    assert most[0] == 1
