"""Tables as Markdown. Each part of a long table repeats the header, so that every chunk can be understood."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

_PART_BYTES = 480
"""Maximum size of a part of a long table with its header: about the size of a chunk."""
_LONGEST_HEADER_BYTES = 160
"""Maximum length of a header. With a longer one, each row names its columns instead."""
_LONGEST_FIELD = 1_000_000
_SAMPLE_CHARACTERS = 20_000


def format_csv(text: str, delimiter: str = "") -> str:
    """Return comma- or tab-separated values as Markdown. `delimiter`: found in the text when empty."""
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or _find_delimiter(text)))
    except csv.Error:
        return text
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows or max(map(len, rows)) < 2:
        return text
    return format_table(rows[0], rows[1:])


def _find_delimiter(text: str) -> str:
    """Return the character that the first lines have most often, and equally often."""
    lines = [line for line in text[:_SAMPLE_CHARACTERS].splitlines() if line.strip()][:20]
    return max(",;\t|", key=lambda sign: min((line.count(sign) for line in lines), default=0))


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown; a long one as tables with the same header, or as rows that name their columns."""
    width = max([len(header), *map(len, rows)]) if rows else len(header)
    names = [_format_cell(name) for name in header] + [""] * (width - len(header))
    head = f"{_format_row(names)}\n|{' --- |' * width}"
    if len(head.encode()) > _LONGEST_HEADER_BYTES and rows:
        return "\n".join(_name_columns(names, rows))
    return "\n\n".join(_split_rows(head, [_format_row([_format_cell(cell) for cell in row], width) for row in rows]))


def _split_rows(head: str, rows: Iterable[str]) -> Iterator[str]:
    part, size = [head], len(head.encode())
    for row in rows:
        row_bytes = len(row.encode()) + 1
        if size + row_bytes > _PART_BYTES and len(part) > 1:
            yield "\n".join(part)
            part, size = [head], len(head.encode())
        part.append(row)
        size += row_bytes
    yield "\n".join(part)


def _name_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        cells = [(name, _format_cell(cell)) for name, cell in zip(names, row, strict=False)]
        yield "- " + "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells if cell)


def _format_row(cells: Sequence[str], width: int = 0) -> str:
    return f"| {' | '.join([*cells, *[''] * (width - len(cells))])} |"


def _format_cell(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
