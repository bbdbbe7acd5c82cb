"""Links between documents: Markdown links and `[[wiki links]]` become entities that name the document they lead to.

A document is named by its path (`/guide/install`), by its address (`https://kb.example/install`), and in wiki links by
its file name or title (`[[install]]`). A link names its target in the same way, so that it can be stored before the
target is. Names have no case, no ending such as `.md`, and no part after `#`.

Invariants
    The name of a target depends on the link and on the document that holds it, not on other documents.
    The time is linear in the length of the text, and a chunk has a bounded number of links.
"""

import bisect
import itertools
import posixpath
import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urljoin, urlsplit

from pair.text.entity_rules import title_entity

MOST_LINKS = 16
"""Maximum number of links of a chunk. A longer list is a table of contents, which tells little about each target."""
LINK_WEIGHT = 1.0
"""The weight of a link as a mention of its target: that of a full name."""
_MOST_CHARACTERS = 500
"""Maximum length of a target; longer ones are not links to documents."""

_MAYBE = re.compile(r"\]\(|\]\[|\[\[|\]:")
_CODE = re.compile(
    r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+(?:\n(?! {0,3}\1)[^\n]*+)*+(?:\n[^\n]*+)?+|(?<!`)(`++)(?!`)[^`\n]*+\2(?!`)",
    re.MULTILINE,
)
_LINK = re.compile(
    r"\[\[(?P<wiki>[^\[\]|\n]{1,200})(?:\|[^\[\]\n]{0,200})?\]\]"
    r"|(?P<image>!?)\[(?P<text>[^\[\]\n]{0,500})\]"
    r"(?:\([ \t]*(?:<(?P<marked>[^<>\n]{1,500})>|(?P<plain>[^()<>\n]{1,500}(?:\([^()\n]{0,200}\)[^()\n]{0,200})?))"
    r"[^()\n]{0,200}\)|\[(?P<reference>[^\[\]\n]{0,500})\])?"
)
_DEFINITION = re.compile(r"^ {0,3}\[([^\[\]\n]{1,500})\]:[ \t]*(?:<([^<>\n]{1,500})>|(\S{1,500}))", re.MULTILINE)
_TITLE = re.compile(r"""[ \t]+(?:"[^"\n]*"|'[^'\n]*')[ \t]*$""")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:md|markdown|mdx|html?|rst|txt)$")
_FOLDER_PAGE = re.compile(r"(?<=/)(?:index|readme)$")
"""The page that a link to a folder leads to."""


def list_subjects(document_id: str, title: str, url: str) -> list[str]:
    """Return the entities that lead to a document: the subject of its title, and its names in links."""
    names = [title_entity(title), _wiki_name(title)]
    names += [_web_name(address) for address in (document_id, url) if _WEB.match(address)]
    if not _WEB.match(document_id):
        names += [_path_name(document_id), _wiki_name(document_id), _wiki_name(posixpath.basename(document_id))]
    return [name for name in dict.fromkeys(names) if name]


def find_links(document_id: str, title: str, url: str, chunks: Sequence[str]) -> list[list[str]]:
    """Return the names of the documents that each chunk links to, in order, each once. Code has no links."""
    links: list[list[str]] = [[] for _ in chunks]
    text = "\n".join(chunks)
    if not _MAYBE.search(text):
        return links
    text = _CODE.sub(lambda code: " " * len(code[0]), text)
    ends = list(itertools.accumulate(len(chunk) + 1 for chunk in chunks))
    own = frozenset(list_subjects(document_id, title, url))
    for place, target, is_wiki in _find_targets(text):
        found = links[bisect.bisect_right(ends, place)]
        for name in [_wiki_name(target)] if is_wiki else _target_names(target, document_id, url):
            if name and name not in own and name not in found and len(found) < MOST_LINKS:
                found.append(name)
    return links


def _find_targets(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the place and the target of each link, and whether it is a wiki link."""
    defined: dict[str, str] = {}
    for definition in _DEFINITION.finditer(text):
        defined.setdefault(" ".join(definition[1].casefold().split()), definition[2] or definition[3])
    for link in _LINK.finditer(text):
        if link["wiki"]:
            yield link.start(), link["wiki"], True
        elif link["marked"] or link["plain"]:
            if not link["image"]:
                yield link.start(), link["marked"] or _TITLE.sub("", link["plain"]), False
        elif defined:
            target = defined.get(" ".join((link["reference"] or link["text"]).casefold().split()))
            if target and not link["image"]:
                yield link.start(), target, False


def _target_names(target: str, document_id: str, url: str) -> list[str]:
    """Return the names of a target that is relative to the path of the document and to its address."""
    target = target.strip()
    if _WEB.match(target):
        return [_web_name(target)]
    if not target or target.startswith("#") or _SCHEME.match(target):
        return []
    names = [_web_name(urljoin(base, target)) for base in (document_id, url) if _WEB.match(base)]
    if not _WEB.match(document_id):
        path = unquote(re.split(r"[?#]", target, maxsplit=1)[0])
        names.append(_path_name(posixpath.join(posixpath.dirname(f"/{document_id}"), path)))
    return names


def _path_name(path: str) -> str:
    """Return the name of a path from the root of the KB."""
    plain = posixpath.normpath(f"/{path.strip('/')}").casefold()
    return _FOLDER_PAGE.sub("", _ENDING.sub("", plain)).rstrip("/") or "/" if len(plain) <= _MOST_CHARACTERS else ""


def _web_name(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    query = f"?{parts.query}" if parts.query else ""
    return f"https://{parts.netloc}{_path_name(unquote(parts.path))}{query}".casefold()


def _wiki_name(target: str) -> str:
    """Return the name of a document in wiki links, which may use spaces, `-` or `_` between words."""
    plain = _ENDING.sub("", target.partition("#")[0].strip().casefold())
    words = re.sub(r"[\s_-]+", " ", plain).strip()
    return f"[[{words}]]" if words and len(words) <= _MOST_CHARACTERS else ""
