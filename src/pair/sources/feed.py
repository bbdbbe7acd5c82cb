"""A source of entries in a feed (RSS, Atom, RDF). Entries that leave the feed are kept.

The cursor holds the validators of the feed, and the digests of the entries in it.
"""

import contextlib
import datetime
import email.utils
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin
from xml.etree.ElementTree import Element, tostring

from pair.network import PageFault
from pair.sources.contract import Cursor, Event, Failed, Item, SourceFault, Unchanged
from pair.sources.pages import ACCEPT, describe_page_fault, find_name, parse_xml
from pair.web.pages import PageClient

_FEED_TYPES = "application/atom+xml, application/rss+xml, application/rdf+xml, application/xml;q=0.9, */*;q=0.1"
_ENCODED = "{http://purl.org/rss/1.0/modules/content/}encoded"
_DUBLIN_DATE = "{http://purl.org/dc/elements/1.1/}date"
_ATOM = "{http://www.w3.org/2005/Atom}"
_XHTML = "{http://www.w3.org/1999/xhtml}"


@dataclass(frozen=True)
class FeedSource:
    """The feed at `url`. An entry without content is read from the page that it links to."""

    url: str
    client: PageClient
    max_bytes: int

    def read(self, cursor: Any) -> Iterator[Event]:
        """Yield the entries that are new or changed. Raises SourceFault."""
        known = cursor if isinstance(cursor, dict) else {}
        etag, last_modified = known.get("etag"), known.get("last_modified")
        try:
            answer = self.client.get(self.url, etag=etag, last_modified=last_modified, accept=_FEED_TYPES)
        except PageFault as fault:
            raise SourceFault(f"{self.url}: {describe_page_fault(fault)}") from fault
        if answer.status == 304:
            return
        digests: dict[str, str] = {}
        # With validators, the next read would not retry the failed entries.
        validators = {"etag": answer.etag, "last_modified": answer.last_modified}
        for entry in self._list_entries(answer.body):
            digest = hashlib.sha256(tostring(entry)).hexdigest()[:32]
            item = self._read_entry(entry, answer.url)
            if item is None:
                continue
            event: Event = Unchanged(item.id)
            if known.get("entries", {}).get(item.id) != digest:
                event = item if item.content else self._fetch(item)
            if isinstance(event, Failed):
                validators = {}
            else:
                digests[item.id] = digest
            yield event
        yield Cursor({**validators, "entries": digests})

    def _list_entries(self, content: bytes) -> Iterator[Element]:
        try:
            root = parse_xml(content, self.max_bytes)
        except ValueError as fault:
            raise SourceFault(f"{self.url} is not a feed: {fault}") from fault
        name = root.tag.rpartition("}")[2]
        if name not in {"rss", "feed", "RDF"}:
            raise SourceFault(f"{self.url} is not a feed: its first element is {name}")
        return (element for element in root.iter() if element.tag.rpartition("}")[2] in {"item", "entry"})

    def _fetch(self, entry: Item) -> Item | Failed:
        """Return the entry with the content of its page."""
        try:
            page = self.client.get(entry.url, etag=None, last_modified=None, accept=ACCEPT)
        except PageFault as fault:
            return Failed(entry.id, describe_page_fault(fault))
        name, content_type = find_name(page.url), page.content_type
        return Item(entry.id, page.body, name, content_type, page.charset, entry.title, entry.url, entry.metadata)

    def _read_entry(self, entry: Element, base: str) -> Item | None:
        """Return an entry, without content if the feed has none; None for an entry with neither content nor link."""
        own = entry.tag.removesuffix("item").removesuffix("entry")  # The namespace.
        link = next((each for each in entry.findall(f"{own}link") if each.get("rel", "alternate") == "alternate"), None)
        url = ""
        with contextlib.suppress(ValueError):
            address = "" if link is None else (link.get("href") or link.text or "").strip()
            url = urljoin(base, address) if address else ""
        id_ = (entry.findtext(f"{own}guid") or entry.findtext(f"{own}id") or "").strip() or url
        names = (_ENCODED, f"{own}content", f"{own}description", f"{own}summary")
        contents = (_read_content(element) for name in names for element in entry.findall(name))
        content, content_type = next((found for found in contents if found[0]), ("", ""))
        if not id_ or not (content or url):
            return None
        title = " ".join((entry.findtext(f"{own}title") or "").split())
        dates = (entry.findtext(name) for name in (f"{own}published", f"{own}pubDate", f"{own}updated", _DUBLIN_DATE))
        day = next(filter(None, (_read_day(text or "") for text in dates)), "")
        return Item(id_, content.encode(), "", content_type, "utf-8", title, url, {"date": day} if day else {})


def _read_content(element: Element) -> tuple[str, str]:
    """Return the content of an entry, and its content type."""
    if len(element):
        for part in element.iter():
            part.tag = part.tag.removeprefix(_XHTML)
        return "".join(tostring(part, encoding="unicode") for part in element), "text/html"
    usual = "text" if element.tag.startswith(_ATOM) else "html"
    is_plain = element.get("type", usual) in {"text", "text/plain"}
    return (element.text or "").strip(), "text/plain" if is_plain else "text/html"


def _read_day(text: str) -> str:
    """Return the day of a date in the form of RSS or of Atom; "" for any other text."""
    with contextlib.suppress(ValueError):
        return datetime.date.fromisoformat(text.strip()[:10]).isoformat()
    with contextlib.suppress(ValueError):
        return email.utils.parsedate_to_datetime(text).date().isoformat()
    return ""
