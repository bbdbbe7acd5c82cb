"""Detection of navigation and credits by links, words and place, for pages without elements or classes for them.

Elements are found first and removed afterwards: the children of a removed element must not be used.
"""

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborNode

_BLOCKS = frozenset({"center", "div", "dl", "header", "ol", "p", "section", "table", "td", "ul"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_LONGEST_BAR = 400
_LEAST_LINKS = 4
_LEAST_LINKED = 0.8
"""Minimum share of the letters of a list of links that are in links."""
_LEAST_PROSE = 80
_LONGEST_CREDIT = 500
_LEAST_REST = 200
_STEP_WORDS = """
    prev previous next up top home index contents content toc back forward modules last first beginning
    return to main the table of general
"""
_STEP = re.compile(rf"(?:(?:{'|'.join(_STEP_WORDS.split())})\s*)+", re.IGNORECASE)
_STEP_TO = re.compile(r"\W*(?:next|prev|previous|up|back)\s*(?:[:»«]|to\b).*", re.IGNORECASE)
_DIRECTION = re.compile(r"prev|previous|next|up", re.IGNORECASE)
_SIGNS = re.compile(r"[\s|\[\]()<>«»\u2039\u203a←→↑·•:;,/-]+")
_CREDIT = re.compile(
    r"""copyright\b|©|\(c\)\s|generated\s+(?:by|on|at|with|using|\d)|last\s+(?:updated?|modified|changed)\b
    |(?:created|built|made)\s+(?:by|with|using)\b|powered\s+by\b
    |this\s+(?:document|page|file|manual)\s+was\s+(?:last\s+)?(?:created|generated|built|updated|modified)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NO_CREDITS = frozenset({"a", "code", "dd", "li", "pre"})


def remove_navigation(main: LexborNode) -> None:
    """Remove bars of links to neighbouring pages, lists of links above the text, and credits below it."""
    _decompose(_find_bars(main))
    # Cells with nothing but links in tables that arrange a page are menus.
    cells = main.css("table:has(table, h1, h2, h3, pre) > tbody > tr > td")
    links = _drop_inner([*_find_leading_links(main), *filter(_is_list_of_links, cells)])
    if 2 * sum(len(element.text()) for element in links) <= len(main.text()):
        _decompose(links)
    while (credit := _find_credit(main)) is not None:
        credit.decompose()


def _decompose(elements: list[LexborNode]) -> None:
    for element in elements:
        element.decompose()


def _drop_inner(elements: list[LexborNode]) -> list[LexborNode]:
    """Return the elements, each once, without those inside of another one."""
    chosen = {element.mem_id: element for element in elements}

    def is_inner(element: LexborNode) -> bool:
        parent = element.parent
        while parent is not None and parent.mem_id not in chosen:
            parent = parent.parent
        return parent is not None

    return [element for element in chosen.values() if not is_inner(element)]


# ── bars ───────────────────────────────────────────────────────────────────────────────────────────


def _find_bars(main: LexborNode) -> list[LexborNode]:
    """Return the largest elements that show nothing but links to neighbouring pages."""
    bars: list[LexborNode] = []
    for link in main.css("a[href]"):
        if not _is_step(link.text()):
            continue
        bar, node = None, link.parent
        while node is not None and node.mem_id != main.mem_id and len(text := node.text()) <= _LONGEST_BAR:
            if _is_bar(node, text):
                bar = node
            node = node.parent
        if bar is not None and bar.tag in _BLOCKS | {"address", "h5", "h6", "small", "span"}:
            bars.append(bar)
    return _drop_inner(bars)


def _is_bar(element: LexborNode, text: str) -> bool:
    links = [link.text() for link in element.css("a[href]")]
    for link in links:
        text = text.replace(link, " ", 1)
    labels = [label for label in _SIGNS.split(text) if label]
    if not all(map(_STEP.fullmatch, labels)):
        return False
    names = [link for link in links if link.strip()]
    are_steps = len(names) > 1 and all(map(_is_step, names))
    return are_steps or any(map(_DIRECTION.fullmatch, labels))  # as in "Next: Introduction"


def _is_step(name: str) -> bool:
    return bool(_STEP.fullmatch(_SIGNS.sub(" ", name).strip()) or _STEP_TO.fullmatch(name.strip()))


# ── lists of links ─────────────────────────────────────────────────────────────────────────────────


def _find_leading_links(main: LexborNode) -> Iterator[LexborNode]:
    """Yield the lists of links that come before the first heading and the first paragraph."""
    node = main.child
    while node is not None:
        tag = node.tag or ""
        if tag in _HEADINGS or tag in {"pre", "dd"}:
            return
        if tag in _BLOCKS and _is_list_of_links(node):
            yield node
            node = _find_next(node, main)
            continue
        if (tag in {"p", "li"} or node.is_text_node) and _count_letters(node) >= _LEAST_PROSE:
            return
        node = node.child or _find_next(node, main)


def _find_next(node: LexborNode, main: LexborNode) -> LexborNode | None:
    """Return the node that follows a node and all its descendants."""
    following: LexborNode | None = node
    while following is not None and following.mem_id != main.mem_id:
        if following.next is not None:
            return following.next
        following = following.parent
    return None


def _is_list_of_links(element: LexborNode) -> bool:
    links = element.css("a[href]")
    if len(links) < _LEAST_LINKS:
        return False
    return sum(map(_count_letters, links)) >= _LEAST_LINKED * _count_letters(element)


def _count_letters(element: LexborNode) -> int:
    return sum(map(len, element.text().split()))


# ── credits ────────────────────────────────────────────────────────────────────────────────────────


def _find_credit(main: LexborNode) -> LexborNode | None:
    """Return the last block of a page if it tells who made the page, with what or when."""
    node: LexborNode | None = main
    while node is not None and node.is_element_node and node.tag not in _NO_CREDITS | _HEADINGS:
        text = node.text().strip()
        if node.mem_id != main.mem_id and len(text) <= _LONGEST_CREDIT and _CREDIT.match(text):
            return node if len(main.text()) - len(text) >= _LEAST_REST else None
        node = node.last_child
        while node is not None and not (node.text() if node.is_element_node else node.text_content or "").strip():
            node = node.prev
    return None
