"""Workbooks (Excel, OpenDocument), read with calamine: a section with a table of the computed values for each sheet."""

import datetime
import io
import itertools
from collections.abc import Iterator
from typing import Any

import python_calamine

from pair.reading.archives import find_property, open_archive, read_properties, refuse_encrypted
from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.tables import format_table

_MOST_ROWS = 50_000
_MOST_COLUMNS = 256
_MOST_UNPACKED_BYTES = 256_000_000
"""Maximum unpacked size. It is higher than for other documents, because the parser keeps values, not XML."""


def read_sheets(content: bytes) -> Reading:
    """Read a workbook: .xlsx, .xlsm, .xlsb, .xls or .ods. Raises UnreadableDocument, MemoryError."""
    title = ""
    if not refuse_encrypted(content):
        with open_archive(content, ".xlsx", _MOST_UNPACKED_BYTES) as archive:
            name = "meta.xml" if "meta.xml" in archive.namelist() else "docProps/core.xml"
            title = find_property(read_properties(archive, name), "title")
    try:
        with python_calamine.load_workbook(io.BytesIO(content)) as workbook:
            parts = [_format_sheet(workbook.get_sheet_by_name(name), name) for name in workbook.sheet_names]
    except python_calamine.PasswordError as fault:
        raise UnreadableDocument("is encrypted") from fault
    except (python_calamine.CalamineError, OSError, ValueError) as fault:
        reason = "is encrypted" if "password" in str(fault).lower() else "is damaged, or cannot be read as .xlsx"
        raise UnreadableDocument(reason) from fault
    return Reading("\n\n".join(part for part in parts if part), title)


def _format_sheet(sheet: Any, name: str) -> str:
    """Return a sheet as Markdown; "" for a sheet without values."""
    head = [row[:_MOST_COLUMNS] for row in itertools.islice(sheet.iter_rows(), _MOST_ROWS)]
    rows = [cells for row in head if any(cells := [_format_value(value) for value in row])]
    if not rows:
        return ""
    width = max(index for row in rows for index, cell in enumerate(row, 1) if cell)
    # Lines with one cell above a table describe the table.
    lines = list(itertools.takewhile(lambda row: sum(map(bool, row)) == 1, rows))
    table = [row[:width] for row in rows[len(lines) :]]
    blocks = [f"## {' '.join(name.split())}", *(next(filter(None, line)) for line in lines)]
    if table:
        blocks.append(format_table(table[0], table[1:]))
    return "\n\n".join([*blocks, *_list_cuts(sheet)])


def _list_cuts(sheet: Any) -> Iterator[str]:
    for size, most, what in ((sheet.height, _MOST_ROWS, "rows"), (sheet.width, _MOST_COLUMNS, "columns")):
        if size > most:
            yield f"Only the first {most:,} of {size:,} {what} are read."


def _format_value(value: Any) -> str:
    """Return the value of a cell: dates as ISO 8601, whole numbers without a decimal point."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value).strip()
