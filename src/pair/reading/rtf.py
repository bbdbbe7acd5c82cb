"""Rich Text Format, read with striprtf: text and title."""

import itertools
import re

from striprtf.striprtf import rtf_to_text

from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.tables import format_table

_CELL_END = re.compile(r"\s*\n\|")
_TITLE = re.compile(rb"\{\\title\s+([^{}]{1,1000})\}")


def read_rtf(content: bytes) -> Reading:
    """Read an .rtf file. Raises UnreadableDocument."""
    if not content.lstrip().startswith(b"{\\rtf"):
        raise UnreadableDocument("is damaged, or not a .rtf file")
    title = _TITLE.search(content)
    try:
        text = rtf_to_text(content.decode("latin-1"), errors="replace")
        # The title uses the character codes of the whole document.
        head = content[:1000].partition(b"{")[2].partition(b"{")[0]
        named = rtf_to_text(f"{{{head.decode('latin-1')}{{}}{title[1].decode('latin-1')}}}") if title else ""
    except (LookupError, ValueError) as fault:
        raise UnreadableDocument("is damaged, or cannot be read as .rtf") from fault
    blocks: list[str] = []
    # A cell ends with "|", and may hold paragraphs.
    for is_row, lines in itertools.groupby(_CELL_END.sub("|", text).splitlines(), key=lambda line: line.endswith("|")):
        if is_row:
            header, *rows = [line[:-1].split("|") for line in lines]
            blocks.append(format_table(header, rows))
        else:
            blocks += [" ".join(line.split()) for line in lines]
    return Reading("\n\n".join(filter(None, blocks)), " ".join(named.split()))
