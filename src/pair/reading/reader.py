"""The reader of all documents: turn bytes, a name and a content type into text, title and metadata.

Invariants
    The same bytes give the same reading, whether they come from a folder, a link, an upload or a package.
    The declared content type takes precedence over the suffix of the name, and the suffix over the content.
"""

import functools
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from typing import Any, Literal

from pair.reading.contract import OLE_MAGIC, Reading, UnreadableDocument
from pair.reading.encoding import NOT_TEXT, decode
from pair.reading.front_matter import split_front_matter
from pair.reading.markup import format_code
from pair.reading.tables import format_csv
from pair.text.markdown import LONGEST_HEADING, parse_structure

Kind = Literal[
    "html", "pdf", "word", "slides", "sheet", "opendocument", "epub", "rtf", "mail", "mailbox",
    "source", "notebook", "csv", "tsv", "code", "text",
]  # fmt: skip
CONVERTED: frozenset[Kind] = frozenset(
    {"html", "pdf", "word", "slides", "sheet", "opendocument", "epub", "rtf", "mail", "mailbox", "source"}
)
"""Kinds that are read in a process with limits, because a hostile document can exhaust their readers."""

_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN = "application/vnd.oasis.opendocument"
_TYPES: dict[str, Kind] = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/pdf": "pdf",
    f"{_OFFICE}.wordprocessingml.document": "word",
    "application/vnd.ms-word.document.macroenabled.12": "word",
    f"{_OFFICE}.presentationml.presentation": "slides",
    f"{_OFFICE}.presentationml.slideshow": "slides",
    f"{_OFFICE}.spreadsheetml.sheet": "sheet",
    "application/vnd.ms-excel": "sheet",
    f"{_OPEN}.spreadsheet": "sheet",
    f"{_OPEN}.text": "opendocument",
    f"{_OPEN}.presentation": "opendocument",
    "application/epub+zip": "epub",
    "application/rtf": "rtf",
    "text/rtf": "rtf",
    "message/rfc822": "mail",
    "application/mbox": "mailbox",
    "application/x-ipynb+json": "notebook",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "text/markdown": "text",
    "text/x-markdown": "text",
    "text/x-rst": "text",
}
_SUFFIXES: dict[str, Kind] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    **dict.fromkeys((".docx", ".docm"), "word"),
    **dict.fromkeys((".pptx", ".pptm", ".ppsx"), "slides"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "sheet"),
    **dict.fromkeys((".odt", ".odp"), "opendocument"),
    ".epub": "epub",
    ".rtf": "rtf",
    ".eml": "mail",
    ".mbox": "mailbox",
    ".ipynb": "notebook",
    ".csv": "csv",
    ".tsv": "tsv",
    **dict.fromkeys((".md", ".markdown", ".mdx", ".mdown", ".qmd", ".rmd", ".rst", ".adoc", ".asciidoc"), "text"),
}
_MARKS: dict[Kind, tuple[bytes, ...]] = {
    "word": (b"word/document",),
    "slides": (b"ppt/presentation",),
    "sheet": (b"xl/workbook", f"mimetype{_OPEN}.spreadsheet".encode()),
    "opendocument": (f"mimetype{_OPEN}.text".encode(), f"mimetype{_OPEN}.presentation".encode()),
    "epub": (b"mimetypeapplication/epub+zip",),
}
"""The name or the uncompressed content of a part that every archive of a kind has."""
_LOOSE: frozenset[Kind] = frozenset({"html", "mail", "mailbox", "source"})
"""Kinds whose first bytes do not identify them."""
_CODE_SUFFIXES_LIST = """
    .bash .bat .c .cc .cfg .cjs .clj .cmake .conf .cpp .cs .css .cts .cxx .dart .diff .el .env .erl .ex .exs .f90
    .fish .fs .geojson .go .gradle .graphql .groovy .h .hh .hpp .hs .hxx .ini .java .jl .js .json .json5 .jsonc
    .jsonl .jsx .kt .kts .less .lisp .lock .lua .m .mjs .mk .ml .mm .mts .ndjson .nim .nix .patch .php .pl .pm
    .properties .proto .ps1 .py .pyi .r .rb .rkt .rs .scala .scm .scss .service .sh .sol .sql .svelte .swift .tcl
    .tf .thrift .toml .ts .tsx .v .vb .vhd .vim .vue .webmanifest .yaml .yml .zig .zsh
"""
_CODE_SUFFIXES = frozenset(_CODE_SUFFIXES_LIST.split())
_CODE_NAMES = frozenset({"dockerfile", "makefile", "gnumakefile", "justfile", "rakefile", "jenkinsfile", "vagrantfile"})
_CODE_TYPES_LIST = "ecmascript javascript json sql toml x-httpd-php x-javascript x-ndjson x-python x-sh x-yaml yaml"
_CODE_TYPES = frozenset(_CODE_TYPES_LIST.split())
_CODE_TEXT_TYPES = frozenset({"css", "x-python", "yaml"})
_TEXT_TYPES = frozenset({"application/xml", "application/markdown"})
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
_GRAMMARS = (
    dict.fromkeys((".py", ".pyi"), "python.language")
    | dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), "javascript.language")
    | dict.fromkeys((".ts", ".mts", ".cts"), "typescript.language_typescript")
    | dict.fromkeys((".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"), "cpp.language")
    | dict.fromkeys((".sh", ".bash"), "bash.language")
    | {".tsx": "typescript.language_tsx", ".go": "go.language", ".rs": "rust.language", ".java": "java.language"}
    | {".c": "c.language", ".cs": "c_sharp.language", ".rb": "ruby.language", ".php": "php.language_php"}
)
"""The grammars that cut code at its symbols, by suffix: module and function."""
_LARGEST_CUT_BYTES = 1_000_000
"""Maximum size of code that is cut. Larger files are generated code, and read as one block."""
_MODULES: dict[Kind, str] = {
    **dict.fromkeys(("word", "slides", "sheet", "opendocument", "epub", "rtf"), "office"),
    "pdf": "pdf",
    "mail": "mail",
    "mailbox": "mail",
}
"""The module with the reader of each kind, imported with its first document. Some need the extra `documents`."""
_LOOKS_LIKE_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE)
_HEAD_BYTES = 4096
_LONGEST_OUTPUT = 2_000
_TITLE_CHARACTERS = 8192
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def find_kind(name: str, content_type: str = "", content: bytes = b"") -> Kind:
    """Return the kind of a document. `content_type`: lower case, without parameters; empty when not declared."""
    kind = _find_declared(name, content_type)
    if kind == "source" and len(content) > _LARGEST_CUT_BYTES:
        return "code"
    if kind is None or (kind in CONVERTED and kind not in _LOOSE):
        kind = _find_by_content(content, kind) or kind or "text"
    return kind


def _find_declared(name: str, content_type: str) -> Kind | None:
    """Return the kind by the content type, else by the suffix; None if neither has one."""
    suffix = os.path.splitext(name.lower())[1]  # noqa: PTH122 - no Path for each of 20,000 files
    if content_type in _TYPES:
        return _TYPES[content_type]
    by_name: Kind | None = _SUFFIXES.get(suffix)
    if suffix in _CODE_SUFFIXES or os.path.basename(name).lower() in _CODE_NAMES:  # noqa: PTH119
        by_name = "source" if suffix in _GRAMMARS and can_cut_code() else "code"
    main, _, subtype = content_type.partition("/")
    if subtype in {"application": _CODE_TYPES, "text": _CODE_TEXT_TYPES}.get(main, ()):
        return by_name if by_name in {"notebook", "source"} else "code"
    if content_type.startswith("text/") or content_type in _TEXT_TYPES or content_type.endswith(_TEXT_SUFFIXES):
        # A server that declares plain text wants a page to be shown with its tags.
        return by_name if by_name == "source" or (by_name and by_name not in CONVERTED) else "text"
    return by_name


def _find_by_content(content: bytes, declared: Kind | None) -> Kind | None:
    """Return the kind by the first bytes, or by the names in an archive; None if they show none."""
    if content.startswith(b"%PDF-"):
        return "pdf"
    if content.startswith(b"{\\rtf"):
        return "rtf"
    if content.startswith(OLE_MAGIC):
        return declared or "slides"  # Its reader reports that the file is old or encrypted.
    if content.startswith(b"PK"):
        if declared is not None and any(mark in content for mark in _MARKS.get(declared, ())):
            return declared  # It may contain documents of other kinds.
        return next((kind for kind, marks in _MARKS.items() if any(mark in content for mark in marks)), None)
    head = content[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    return "html" if head.startswith(b"<") and _LOOKS_LIKE_HTML.search(head) else None


@functools.cache
def can_cut_code() -> bool:
    """Return whether the extra `code` is installed."""
    return importlib.util.find_spec("tree_sitter") is not None


def read(content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Reading:
    """Read a document. Raises UnreadableDocument, and MemoryError for one that needs too much.

    `name`: the name of its file, or the last part of its URL. `charset`: the charset that a server declared.
    """
    kind = find_kind(name, content_type, content)
    if kind in CONVERTED:
        return convert(content, kind, name, charset)
    return _clean(_read_text(kind, _decode(content, content_type, charset), name))


def read_uncut(content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Reading:
    """Read source code as one block, without its grammar. Raises UnreadableDocument."""
    return _clean(_read_text("code", _decode(content, content_type, charset), name))


def convert(content: bytes, kind: Kind, name: str = "", charset: str | None = None) -> Reading:
    """Read a document of a converted kind, and import its reader if it is the first. Raises as `read` does."""
    if kind == "source":
        from pair.reading.source_code import read_code  # noqa: PLC0415 - needs the extra `code`

        return _clean(read_code(content, name, _GRAMMARS[os.path.splitext(name.lower())[1]], charset))  # noqa: PTH122
    if kind in _MODULES:
        module = importlib.import_module(f"pair.reading.{_MODULES[kind]}")
        return _clean(getattr(module, f"read_{kind}")(content))
    from pair.reading.html import read_page  # noqa: PLC0415 - loads the parser

    page = split_front_matter(decode(content, charset=charset, is_markup=True))
    reading = read_page(page.text)
    return _clean(Reading(reading.text, page.title or reading.title, reading.metadata | page.metadata))


def _clean(reading: Reading) -> Reading:
    """Return a reading that can be written as UTF-8, with a title of one line."""
    text = _LONE_SURROGATES.sub("\ufffd", reading.text)
    title = _LONE_SURROGATES.sub("\ufffd", reading.title)[:LONGEST_HEADING]
    return Reading(text, title, reading.metadata)


def _decode(content: bytes, content_type: str, charset: str | None) -> str:
    try:
        return decode(content, charset=charset, is_markup="xml" in content_type, allow_nul=not content_type)
    except UnreadableDocument as fault:
        if content_type:
            raise UnreadableDocument(f"{content_type} is {NOT_TEXT}") from fault
        raise


def _read_text(kind: Kind, text: str, name: str) -> Reading:
    if kind in {"csv", "tsv"}:
        return Reading(format_csv(text, "\t" if kind == "tsv" else ""))
    if kind == "notebook":
        cells = _format_notebook(text)
        return Reading(_fence(text, "json")) if cells is None else Reading(cells, find_title(cells))
    if kind == "code":
        return Reading(_fence(text, os.path.splitext(name)[1][1:].lower()))  # noqa: PTH122
    reading = split_front_matter(text)
    return Reading(reading.text, reading.title or find_title(reading.text), reading.metadata)


def _fence(text: str, language: str) -> str:
    """Return code as one fenced block, so that no comment becomes a heading."""
    return format_code(text.strip("\r\n"), language if language.isalnum() else "") if text.strip() else ""


def find_title(text: str) -> str:
    """Return the first heading of the first level near the top of a text; "" without one."""
    headings = parse_structure(text[:_TITLE_CHARACTERS]).headings
    return next((heading.title for heading in headings if heading.level == 1), "")


# ── notebooks ───────────────────────────────────────────────────────────────────────────────────────


def _format_notebook(text: str) -> str | None:
    """Return the cells of a Jupyter notebook as Markdown, without pictures; None if it is not a notebook."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notebook, dict):
        return None
    sheets = notebook.get("worksheets")  # Notebooks before version 4.
    holders = sheets if isinstance(sheets, list) else [notebook]
    cells = [cell for holder in holders if isinstance(holder, dict) for cell in _list(holder.get("cells"))]
    if "nbformat" not in notebook and not cells:
        return None
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    named = kernel.get("language") if isinstance(kernel, dict) else None
    language = named if isinstance(named, str) and named.isalnum() else "python"
    return "\n\n".join(part for cell in cells if isinstance(cell, dict) for part in _format_cell(cell, language))


def _format_cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    kind = cell.get("cell_type")
    source = _join(cell.get("source", cell.get("input"))).strip("\n")
    if kind == "heading":
        level = cell.get("level")
        yield f"{'#' * min(max(level if isinstance(level, int) else 1, 1), 6)} {source}"
    elif kind == "code" and source.strip():
        yield format_code(source, language)
        for output in _list(cell.get("outputs")):
            if isinstance(output, dict) and (shown := _read_output(output)):
                yield format_code(shown[:_LONGEST_OUTPUT])
    elif kind != "code" and source.strip():
        yield source


def _read_output(output: dict[str, Any]) -> str:
    data = output.get("data")
    text = data.get("text/plain") if isinstance(data, dict) else output.get("text")
    return _join(text).strip("\n")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _join(value: Any) -> str:
    """Return a text that a notebook stores as one string or as a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""
