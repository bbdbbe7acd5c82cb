"""Rich Text Format by striprtf: its text, and the title that it names."""

import re

from striprtf.striprtf import rtf_to_text

from pair.reading.contract import Reading, UnreadableDocument

_TITLE = re.compile(rb"\{\\title\s+([^{}]{1,1000})\}")


def read_rtf(content: bytes) -> Reading:
    """Read an .rtf file. Raises UnreadableDocument."""
    if not content.lstrip().startswith(b"{\\rtf"):
        raise UnreadableDocument("is damaged, or no .rtf")
    title = _TITLE.search(content)
    try:
        text = rtf_to_text(content.decode("latin-1"), errors="replace")
        # The codes of its letters are those of the whole document.
        head = content[:1000].partition(b"{")[2].partition(b"{")[0]
        named = rtf_to_text(f"{{{head.decode('latin-1')}{{}}{title[1].decode('latin-1')}}}") if title else ""
    except (LookupError, ValueError) as fault:
        raise UnreadableDocument("is damaged, or cannot be read as .rtf") from fault
    lines = [" ".join(line.split()) if "|" not in line else line.strip() for line in text.splitlines()]
    return Reading(re.sub(r"\n{3,}", "\n\n", "\n\n".join(lines)).strip(), " ".join(named.split()))
