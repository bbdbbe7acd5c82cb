"""Jupyter notebooks: their cells as Markdown and code, with the text of outputs and without pictures."""

import json
from collections.abc import Iterator
from typing import Any

from pair.reading.markup import format_code

_LONGEST_OUTPUT = 2_000


def format_notebook(text: str) -> str | None:
    """Return the cells of a notebook as Markdown; None if it is not a notebook."""
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
    language = _read_language(notebook)
    return "\n\n".join(part for cell in cells if isinstance(cell, dict) for part in _format_cell(cell, language))


def _read_language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = kernel.get("language") if isinstance(kernel, dict) else None
    return language if isinstance(language, str) and language.isalnum() else "python"


def _format_cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    kind = cell.get("cell_type")
    source = _join(cell.get("source", cell.get("input"))).strip("\n")
    if kind == "heading":
        yield f"{'#' * min(max(_read_level(cell), 1), 6)} {source}"
    elif kind == "code" and source.strip():
        yield format_code(source, language)
        for output in _list(cell.get("outputs")):
            if isinstance(output, dict) and (shown := _read_output(output)):
                yield format_code(shown[:_LONGEST_OUTPUT])
    elif kind != "code" and source.strip():
        yield source


def _read_level(cell: dict[str, Any]) -> int:
    level = cell.get("level")
    return level if isinstance(level, int) else 1


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
