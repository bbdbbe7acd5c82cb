"""Source code cut by its grammar (tree-sitter): a section for each class, function and method.

Invariants
    Every line of the code that is not blank is in the text once, unchanged, in its order.
    Only headings and fences are added.
    A heading is the signature of the symbol below it. Code after the symbol is under the heading of the
    enclosing symbol, or under the file name.
"""

import functools
import importlib
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tree_sitter

from pair.reading.contract import Reading
from pair.reading.encoding import decode
from pair.reading.markup import LONGEST_HEADING, format_code
from pair.text.characters import clip

_CONTAINERS_LIST = """
    abstract_class_declaration class class_declaration class_definition class_specifier enum_declaration
    impl_item interface_declaration internal_module mod_item module namespace_declaration namespace_definition
    record_declaration struct_declaration trait_declaration trait_item
"""
_CONTAINERS = frozenset(_CONTAINERS_LIST.split())
_SYMBOLS_LIST = """
    annotation_type_declaration constructor_declaration delegate_declaration enum_item enum_specifier
    file_scoped_namespace_declaration function_declaration function_definition function_item
    generator_function_declaration macro_definition method method_declaration method_definition singleton_method
    struct_item struct_specifier type_alias_declaration type_spec union_item union_specifier
"""
_SYMBOLS = _CONTAINERS | frozenset(_SYMBOLS_LIST.split())
_FUNCTIONS = frozenset({"arrow_function", "function_expression", "generator_function"})
_SPECIFIERS = frozenset({"class_specifier", "enum_specifier", "struct_specifier", "union_specifier"})
"""Nodes that are symbols only with a body. In C and C++, without a body they are the type of another symbol."""
_WRAPPERS = frozenset({"decorated_definition", "export_statement", "template_declaration", "type_definition"})
_ABOVE = frozenset({"attribute_item", "block_comment", "comment", "decorator", "line_comment"})
_MOST_WRAPPED = 3
"""Maximum number of nodes between a symbol and its parent symbol: a body, an `export`, a `template`."""
_DEEPEST = 4
_SIGNATURE_END = re.compile(r"\s*(?:=>|[={(:;])?\s*$")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
_CLOSING = re.compile(r"\s*(?:[\])};,]*|end|#endif.*|\?>)\s*")
"""Lines that only close an earlier block."""


class _Symbol(NamedTuple):
    first: int
    """The number of its first line, with the comments and decorators above it."""
    last: int
    level: int
    signature: str


def read_code(content: bytes, name: str, grammar: str, charset: str | None = None) -> Reading:
    """Read source code. `grammar`: module and function, such as `python.language`. Raises UnreadableDocument."""
    text = decode(content, charset=charset, allow_nul=True).replace("\r\n", "\n").strip("\n")
    source = text.encode("utf-8", "replace")
    lines = source.split(b"\n")
    tree = _open_parser(grammar).parse(source)
    parts = list(_cut(lines, list(_list_symbols(tree.root_node, lines)), os.path.basename(name)))  # noqa: PTH119
    language = os.path.splitext(name)[1][1:].lower()  # noqa: PTH122
    blocks = []
    for heading, block in parts:
        blocks += [heading] if heading else []
        code = b"\n".join(block).decode("utf-8").rstrip()
        blocks += [format_code(_BLANK_LINES.sub("", code), language)] if code else []
    return Reading("\n\n".join(blocks))


@functools.cache
def _open_parser(grammar: str) -> tree_sitter.Parser:
    module, _, function = grammar.partition(".")
    language = getattr(importlib.import_module(f"tree_sitter_{module}"), function)()
    return tree_sitter.Parser(tree_sitter.Language(language))


def _cut(lines: list[bytes], symbols: list[_Symbol], name: str) -> Iterator[tuple[str, list[bytes]]]:
    """Yield each section: its heading, and its lines."""
    if not symbols:
        yield "", lines
        return
    around = [_Symbol(0, len(lines), 1, " ".join(name.split()))]
    yield _format_heading(around[0]), lines[: symbols[0].first]
    for number, symbol in enumerate(symbols):
        end = symbols[number + 1].first if number + 1 < len(symbols) else len(lines)
        # Lines after the end of a symbol are not part of it, unless they only close an enclosing block.
        after = min(max(symbol.last, symbol.first) + 1, end)
        while after < end and _CLOSING.fullmatch(lines[after].decode("utf-8", "replace")):
            after += 1
        yield _format_heading(symbol), lines[symbol.first : after]
        around.append(symbol)
        while around[-1].last < after and len(around) > 1:
            around.pop()
        if after < end:
            yield _format_heading(around[-1]), lines[after:end]


def _format_heading(symbol: _Symbol) -> str:
    return f"{'#' * symbol.level} {symbol.signature}"


def _list_symbols(root: Any, lines: list[bytes]) -> Iterator[_Symbol]:
    """Yield the symbols in code order, at most one for each line."""
    previous = -1
    # Each entry: a node, its first line, its level of heading, and the number of nodes between it and a symbol.
    stack = [(node, first, 2, 0) for node, first in _list_children(root, -1)]
    while stack:
        node, first, level, wrapped = stack.pop()
        is_symbol = _is_symbol(node)
        if is_symbol and node.start_point.row > previous:
            yield _Symbol(max(first, previous + 1), _find_last(node), level, _read_signature(node, lines))
            previous = node.start_point.row
        if is_symbol:
            is_open, level, wrapped = node.type in _CONTAINERS and level < _DEEPEST, level + 1, 0
        else:
            is_open, wrapped = wrapped < _MOST_WRAPPED, wrapped + 1
        if is_open:
            children = _list_children(node, node.start_point.row)
            is_wrapper = node.type in _WRAPPERS
            stack += [(child, first if is_wrapper else start, level, wrapped) for child, start in children]


def _list_children(parent: Any, row: int) -> list[tuple[Any, int]]:
    """Return the nodes in a node, last first, each with the first line of the comments right above it.

    `row`: the last line of the code before them. A comment after code on the same line belongs to that code.
    """
    children = []
    above = -1
    for child in parent.named_children:
        start, last = child.start_point.row, _find_last(child)
        if child.type in _ABOVE and start > row:
            above = above if above >= 0 and row == start - 1 else start
        else:
            children.append((child, above if above >= 0 and row == start - 1 else start))
            above = -1
        row = last
    return children[::-1]


def _is_symbol(node: Any) -> bool:
    kind = node.type
    if kind == "variable_declarator":
        value = node.child_by_field_name("value")
        return value is not None and value.type in _FUNCTIONS and value.end_point.row > node.start_point.row
    if kind in _SPECIFIERS:
        return node.child_by_field_name("body") is not None and node.end_point.row > node.start_point.row
    return kind in _SYMBOLS


def _find_last(node: Any) -> int:
    """Return the last line of a node; some nodes end with the line break."""
    row, column = node.end_point
    return int(row - (column == 0 and row > node.start_point.row))


def _read_signature(node: Any, lines: list[bytes]) -> str:
    """Return the code before the body, on one line."""
    inner = node.child_by_field_name("value") if node.type == "variable_declarator" else node
    body = inner.child_by_field_name("body")
    row = node.start_point.row
    last: tuple[int, int] = (row, len(lines[row]))
    if body is not None:
        before = [child for child in inner.children if child.end_byte <= body.start_byte and child.type not in _ABOVE]
        last = before[-1].end_point if before else body.start_point
    shown = b"\n".join([*lines[row : last[0]], lines[last[0]][: last[1]]])
    signature = " ".join(shown.decode("utf-8", "replace").split())
    return clip(_SIGNATURE_END.sub("", signature) or node.type.replace("_", " "), LONGEST_HEADING)
