"""Feeds as sources: RSS, Atom and RDF, and hostile feeds."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pair.clock import SystemClock
from pair.sources.contract import Cursor, Event, Failed, Item, SourceFault, Unchanged
from pair.sources.feed import FeedSource
from pair.web.pages import PageClient
from support.page_server import Asked, PageServer, Reply, html

MAX_BYTES = 100_000
RSS = """<?xml version="1.0"?>
<rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/" xmlns:media="http://search.yahoo.com/mrss/"
  xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>News</title><atom:link rel="self" href="/feed"/>
<item><media:title>no</media:title><title>  One &amp;
  only</title><link>/one</link><guid>tag:1</guid><pubDate>Tue, 03 Feb 2026 10:00:00 GMT</pubDate>
  <description>short</description><content:encoded><![CDATA[<p>long</p>]]></content:encoded></item>
<item><title>Two</title><link>/two</link><description>&lt;p&gt;two&lt;/p&gt;</description></item>
<item><title>Three</title><link>/three</link><description/><media:content url="x.png"/></item>
<item><title>Neither link nor content</title><guid>tag:4</guid></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title>
<entry><id>urn:1</id><title>One</title><link rel="edit" href="/edit"/><link href="one"/>
  <updated>2026-02-03T10:00:00Z</updated><content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>x</p></div>
  </content></entry>
<entry><id>urn:2</id><summary>plain &lt;text&gt;</summary></entry></feed>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
  xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>News</title></channel>
<item rdf:about="x"><title>One</title><link>http://x/1</link><description>one</description><dc:date>2026-02-03</dc:date>
</item></rdf:RDF>"""


@pytest.fixture(scope="module")
def client() -> Iterator[PageClient]:
    made = PageClient(timeout_seconds=20.0, max_bytes=MAX_BYTES, allow_private_addresses=True, clock=SystemClock())
    with contextlib.closing(made):
        yield made


def read(client: PageClient, server: PageServer, cursor: Any = None) -> list[Event]:
    return list(FeedSource(server.url("/feed"), client, MAX_BYTES).read(cursor))


def serve(server: PageServer, content: str, path: str = "/feed") -> None:
    server.pages[path] = Reply(headers=[("Content-Type", "application/xml")], body=content.encode())


def test_entries_of_rss_have_their_content_or_that_of_their_page(client: PageClient, server: PageServer) -> None:
    serve(server, RSS)
    server.pages["/three"] = html("three")
    one, two, three, cursor = read(client, server)
    day = {"date": "2026-02-03"}
    assert one == Item("tag:1", b"<p>long</p>", "", "text/html", "utf-8", "One & only", server.url("/one"), day)
    assert two == Item(server.url("/two"), b"<p>two</p>", "", "text/html", "utf-8", "Two", server.url("/two"))
    assert isinstance(three, Item)
    assert (three.name, three.title, three.content) == ("three", "Three", html("three").body)
    assert isinstance(cursor, Cursor)


def test_entries_of_atom_and_rdf_are_read(client: PageClient, server: PageServer) -> None:
    serve(server, ATOM)
    one, two, _ = read(client, server)
    assert one == Item(
        "urn:1", b"<div><p>x</p></div>\n  ", "", "text/html", "utf-8", "One", server.url("/one"), {"date": "2026-02-03"}
    )
    assert two == Item("urn:2", b"plain <text>", "", "text/plain", "utf-8")
    serve(server, RDF)
    assert read(client, server)[0] == Item(
        "http://x/1", b"one", "", "text/html", "utf-8", "One", "http://x/1", {"date": "2026-02-03"}
    )


def test_a_feed_is_read_again_only_when_it_changed(client: PageClient, server: PageServer) -> None:
    def with_etag(asked: Asked) -> Reply:
        is_known = asked.headers.get("if-none-match") == '"1"'
        return Reply(304) if is_known else Reply(headers=[("ETag", '"1"')], body=RSS.encode())

    server.pages |= {"/feed": with_etag, "/three": html("three")}
    *_, cursor = read(client, server)
    assert isinstance(cursor, Cursor)
    assert read(client, server, cursor.value) == []
    serve(server, RSS.replace("<p>long</p>", "<p>longer</p>"))
    events = read(client, server, cursor.value)
    assert [type(event) for event in events] == [Item, Unchanged, Unchanged, Cursor]
    assert [asked.path for asked in server.asked].count("/three") == 1


def test_an_entry_that_leaves_the_feed_is_not_mentioned(client: PageClient, server: PageServer) -> None:
    serve(server, ATOM)
    *_, cursor = read(client, server)
    assert isinstance(cursor, Cursor)
    serve(server, '<feed xmlns="http://www.w3.org/2005/Atom"></feed>')
    assert [type(event) for event in read(client, server, cursor.value)] == [Cursor]


def test_an_entry_whose_page_fails_is_tried_again(client: PageClient, server: PageServer) -> None:
    server.pages["/feed"] = Reply(headers=[("ETag", '"1"')], body=RSS.encode())
    *_, failed, cursor = read(client, server)
    assert failed == Failed(server.url("/three"), "HTTP 404 Not Found")
    server.pages["/three"] = html("three")
    assert isinstance(cursor, Cursor)
    assert [type(event) for event in read(client, server, cursor.value)] == [Unchanged, Unchanged, Item, Cursor]


BOMB = '<!DOCTYPE rss [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><rss><item>&b;</item></rss>'
FILE = '<!DOCTYPE rss [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss><item><title>&a;</title></item></rss>'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BOMB, "it declares entities, which are not allowed"),
        (FILE, "it declares entities, which are not allowed"),
        ("<rss>" + "<a>" * 10_000, "its elements are nested more than 100 deep"),
        ("<rss><item>", "not XML: no element found: line 1, column 11"),
        ("<html></html>", "its first element is html"),
        ("", "not XML: no element found: line 1, column 0"),
    ],
)
def test_a_harmful_feed_and_what_is_not_a_feed_are_refused(
    client: PageClient, server: PageServer, content: str, reason: str
) -> None:
    serve(server, content)
    with pytest.raises(SourceFault) as raised:
        read(client, server)
    assert str(raised.value) == f"{server.url('/feed')} is not a feed: {reason}"


def test_a_feed_that_cannot_be_fetched_is_named(client: PageClient, server: PageServer) -> None:
    with pytest.raises(SourceFault) as raised:
        read(client, server)
    assert str(raised.value) == f"{server.url('/feed')}: HTTP 404 Not Found"
