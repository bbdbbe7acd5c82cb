"""HTML pages: the main text as Markdown, the title and the metadata.

The rules are made for documentation: Sphinx, MkDocs, Docusaurus, DocBook, AsciiDoc, javadoc and man pages keep all of
their text, without navigation, tables of contents, permalinks and footers. Other pages are read from their `main` or
`article`.
"""

import contextlib
import re
from typing import Any
from urllib.parse import urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.markup import PERMALINK, read_line, write_markdown
from pair.reading.navigation import remove_navigation
from pair.text.characters import clip

_LONGEST_TITLE = 200
_LEAST_TEXT = 400
"""Minimum length of the other text, in characters. With less, the table of contents is the content of the page."""
_LEAST_SHARE = 0.3
"""Minimum share of the text of the page that the main element must contain."""
_UNSEEN = "script, style, template, svg, canvas, iframe, object, embed, dialog, [hidden], .MathJax_Preview"
_CONTENTS = """
    .toctree-wrapper, div.toc, #toc, ul.toc, dl.toc, nav.contents, div.contents.local, .table-of-contents,
    .theme-doc-toc-mobile, .tableofcontents
"""
_BOILERPLATE = """
    nav, footer, button, select, textarea, input, datalist, noscript, noframes,
    [role=navigation], [role=search], [role=contentinfo], [role=banner], [role=complementary], [aria-hidden=true],
    a.headerlink, a.anchor, a.anchor-link, a.hash-link, a.permalink, a.self-link, a.anchorjs-link, .viewcode-link,
    .linenos, .lineno, .source-line-no, .copybtn, .out-of-band, summary.hideme, #titlearea,
    .footnote-backref, [role=doc-backlink], a[href^="#fnref"], a[href*="#footnote-ref"], .mw-cite-backlink,
    .skip-link, .mw-editsection, .mw-jump-link, .catlinks, .printfooter,
    div.related, .sphinxsidebar, .navheader, .navfooter, #footer, .footer, .site-footer, .page-footer,
    .breadcrumb, .breadcrumbs, .wy-breadcrumbs, .pagination, .pagination-nav, .pager, .prev-next-area,
    .rst-footer-buttons, .edit-this-page, .theme-edit-this-page, .md-source-file, .md-content__button, .headeditlink,
    .topNav, .bottomNav, .subNav, .top-nav, .sub-nav, .navbar, .navigation, .tocmenu, .mobile-nav,
    #comments, .comments, .comment-list, #disqus_thread, .share, .social-share, .cookie-banner, .advertisement,
    .tagline, .site-description,
    .newsletter
"""
_AROUND_MAIN = """
    aside, header:not(:has(h1)), #sidebar, .sidebar, .sidenav, .side-nav, #nav, #navigation, #menu, .menu, #header nav
"""
_MAINS = (
    "main", "[role=main]", "div.body", "article", ".md-content", ".theme-doc-markdown", ".markdown-body",
    ".rst-content", "#mw-content-text", "div.document",
)  # fmt: skip
_SEPARATOR = re.compile(r"\s+(?:[|·•»\u203a:]+|[-\u2013\u2014]+)\s+")
_SITE_WORDS = re.compile(
    r"\b(documentation|docs?|manual|guide|handbook|reference|wiki\w*|blog|api|website|v?\d+(\.\d+)+)\b|^\w+\.\w{2,}$",
    re.IGNORECASE,
)
_IN_MANUAL = re.compile(r"(\S.*?) \(.+\)")
"""A title with the name of the manual in brackets, as Texinfo writes it."""
_AFTER_PROJECT = re.compile(r"[^:]*?(?:: | -+ )(\S.*)")
"""A title with the name of the project before it, as Doxygen writes it."""
_FILE_NAME = re.compile(r"\S+\.(?:x?html?|php|aspx?)", re.IGNORECASE)
_CGI_HEADERS = re.compile(r"\A(?:[A-Za-z-]+:[^\n<]*\n)+\s*(?=<)")
"""The HTTP headers that a CGI program prints before a page."""
_DAY = re.compile(r"\s*(\d{4}-\d{2}-\d{2})(?!\d)")
_DATES = (
    "article:published_time", "date", "dc.date", "dcterms.date", "dc.date.issued", "citation_publication_date",
    "datepublished", "og:published_time",
)  # fmt: skip
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}")
_SELF_CLOSED = re.compile(r"<([A-Za-z][\w:-]*)((?:\s[^<>]*)?)/>")
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"}
)
_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)", re.IGNORECASE)
_OFTEN_UNCLOSED = re.compile(
    r"area|base|br|col|dd|dt|embed|hr|img|input|li|link|meta|option|p|source|td|th|tr|track|wbr", re.IGNORECASE
)
_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'))*+\s*"""
_SHAPE = rf"<(?:path|polygon|polyline|line|rect|circle|ellipse|use|stop){_ATTRIBUTES}/>"
_GROUP = rf"</?(?:g|defs|text|tspan)\b{_ATTRIBUTES}/?>"
_DRAWING = re.compile(rf"<svg{_ATTRIBUTES}>(?:[^<]++|{_SHAPE}|{_GROUP})*+</svg\s*>", re.IGNORECASE)
"""A drawing of which HTML closes each shape at its slash. Outside of drawings, HTML ignores the slash."""
# A parser that follows HTML 5 builds up to one element for each tag and each level.
_MOST_TAGS_TIMES_DEPTH = 10_000_000


def read_page(page: str) -> Reading:
    """Read a page. Raises UnreadableDocument."""
    refuse_deep(page)
    page = _CGI_HEADERS.sub("", page, count=1)
    if page.lstrip()[:5].lower() == "<?xml" or "//DTD XHTML" in page[:500]:
        # HTML ignores the slash of XHTML, and would take the rest as the text of the element.
        page = _SELF_CLOSED.sub(
            lambda tag: tag[0] if tag[1].lower() in _VOID else f"<{tag[1]}{tag[2]}></{tag[1]}>", page
        )
    tree = LexborHTMLParser(page)
    metadata = _read_metadata(tree)
    titles = _read_titles(tree)
    main = _find_main(tree)
    headings = main.css("h1") if main is not None else []
    other = main.css_first(".title, h2, h3, h4") if main is not None else None
    own = [read_line(heading) for heading in headings[:1]]
    title = _choose_title(
        own[0] if own else "",
        titles,
        PERMALINK.sub("", read_line(other)) if other is not None else "",
        is_only=len(headings) < 2,
    )
    # A first heading with nothing but the name of the site, as after the title in the head, is not text.
    if own and own[0] and titles[0].startswith(title) and titles[0][len(title) :].endswith(own[0]):
        headings[0].decompose()
    text = write_markdown(main) if main is not None else ""
    if not text.strip():
        text = _read_everything(page)
    return Reading(text, clip(title, _LONGEST_TITLE), metadata)


def refuse_deep(page: str) -> None:
    if page.count("<") ** 2 <= _MOST_TAGS_TIMES_DEPTH:
        return
    page = _DRAWING.sub(lambda drawing: re.sub(_SHAPE, "", drawing[0], flags=re.IGNORECASE), page)
    tags = depth = deepest = 0
    for closing, name in _TAG.findall(page):
        tags += 1
        if not _OFTEN_UNCLOSED.fullmatch(name):
            depth = max(depth - 1, 0) if closing else depth + 1
            deepest = max(deepest, depth)
    if tags * deepest > _MOST_TAGS_TIMES_DEPTH:
        raise UnreadableDocument("the markup of the page is nested too deeply")


# ── main text ──────────────────────────────────────────────────────────────────────────────────────


def _find_main(tree: LexborHTMLParser) -> LexborNode | None:
    """Return the element with the text of the page, without the parts that every page of a site has."""
    body = tree.body
    if body is None:
        return None
    _remove(body, _UNSEEN)
    _remove(body, _BOILERPLATE)
    whole = len(body.text())
    main = body
    for selector in _MAINS:
        candidates = body.css(selector)
        # Several articles form a list: the page is their text.
        if candidates and (len(candidates) == 1 or selector != "article"):
            longest = max(candidates, key=lambda node: len(node.text()))
            if len(longest.text()) >= _LEAST_SHARE * whole:
                main = longest
                break
    if main is body and any(child.tag not in {"aside", "header"} for child in body.iter()):
        _remove(body, _AROUND_MAIN)
    contents = main.css(_CONTENTS)
    if len(main.text()) - sum(len(part.text()) for part in contents) >= _LEAST_TEXT:
        _remove(main, _CONTENTS)
    for link in main.css("h1 a[href], h2 a[href], h3 a[href], h4 a[href], h5 a[href], h6 a[href]"):
        if link.text().strip() in {"#", "¶", "§", "🔗"}:
            link.decompose()
    remove_navigation(main)
    return main


def _remove(element: LexborNode, selector: str) -> None:
    for found in element.css(selector):
        if found.mem_id != element.mem_id:
            found.decompose()


def _read_everything(page: str) -> str:
    """Return all text of a page that has only navigation, or frames."""
    tree = LexborHTMLParser(page)
    if tree.body is not None:
        tree.body.strip_tags(["script", "style", "template", "noscript"])
        if text := write_markdown(tree.body):
            return text
    spare = LexborHTMLParser(page).css_first("noframes")
    # A parser that supports frames reads its content as text.
    inner = LexborHTMLParser(spare.text()).body if spare is not None else None
    return write_markdown(inner) if inner is not None else ""


# ── title and metadata ─────────────────────────────────────────────────────────────────────────────


def _read_titles(tree: LexborHTMLParser) -> tuple[str, str, str]:
    """Return the title of the head, the title for social networks, and the name of the site."""
    element = tree.css_first("title")
    title = " ".join(element.text().split()) if element is not None else ""
    title = "" if _FILE_NAME.fullmatch(title) else title
    return title, _read_meta(tree, "og:title"), _read_meta(tree, "og:site_name")


def _read_meta(tree: LexborHTMLParser, name: str) -> str:
    found = tree.css_first(f'meta[property="{name}" i], meta[name="{name}" i], meta[itemprop="{name}" i]')
    return " ".join((found.attributes.get("content") or "").split()) if found is not None else ""


def _choose_title(heading: str, titles: tuple[str, str, str], other: str, *, is_only: bool) -> str:
    """Return the heading if it is the only one, or also in the head; else the title of the head, without the site.

    `other`: the first heading below `h1`, or the element that is marked as the title.
    """
    title, social, site = titles
    heading = heading.strip(" \n¶#§🔗")
    own = _drop_site(social or title, site)
    is_site = own != title and title.casefold().endswith(heading.casefold())  # The heading is the same on every page.
    beside = "" if heading and (is_only or is_site) else _drop_project(title, heading) or _drop_project(own, other)
    if beside:
        return beside
    is_site |= other.casefold() == own.casefold() and heading.casefold() not in own.casefold()
    if heading and not is_site and (is_only or heading.casefold() in title.casefold()):
        return heading
    return own or heading or other


def _drop_project(title: str, heading: str) -> str:
    """Return a heading that the title repeats with the name of a project or a manual beside it; "" if it does not."""
    if title.startswith(f"{heading}:") and _SITE_WORDS.search(title[len(heading) :]):
        return heading
    named = _IN_MANUAL.fullmatch(title) or _AFTER_PROJECT.fullmatch(title)
    if named is None or not heading or heading.startswith(title):
        return ""
    if heading.endswith(named[1]) or named[1].startswith(heading):
        return heading
    return named[1] if heading.startswith(named[1]) else ""


def _drop_site(title: str, site: str) -> str:
    """Return a title without the name of the site at its end."""
    separators = list(_SEPARATOR.finditer(title))
    if not separators:
        return title
    last = separators[-1]
    name, suffix = title[: last.start()].strip(), title[last.end() :].strip()
    is_bar = last[0].strip()[:1] in "|·•»\u203a"
    if name and (is_bar or suffix.casefold() == site.casefold() or _SITE_WORDS.search(suffix)):
        return name
    return title


def _read_metadata(tree: LexborHTMLParser) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    root = tree.root.css_first("html") if tree.root is not None else None
    language = (root.attributes.get("lang") or root.attributes.get("xml:lang") or "") if root is not None else ""
    if _LANGUAGE.fullmatch(language):
        metadata["language"] = language
    link, base = tree.css_first("link[rel=canonical]"), tree.css_first("base[href]")
    if link is not None:
        folder = (base.attributes.get("href") or "") if base is not None else ""
        with contextlib.suppress(ValueError):
            address = urljoin(folder, (link.attributes.get("href") or "").strip())
            if urlsplit(address).scheme in {"http", "https"} and len(address) <= 2_000:
                metadata["canonical_url"] = address
    days = (_DAY.match(_read_meta(tree, name)) for name in _DATES)
    if day := next((match[1] for match in days if match), ""):
        metadata["date"] = day
    return metadata
