"""State as `index.txt`: identifier line, description, one blank line between entries; same state, same bytes."""

from collections.abc import Mapping
from typing import Any


def index_text(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Files first, then URLs, each sorted by id. A source that never had a summary is left out."""  # sync-35..38
    entries = []
    for source_type in ("file", "url"):
        ids = sorted(source_id for source_id, value in sources.items() if value["source_type"] == source_type)
        for source_id in ids:
            summary = tidy_summary(sources[source_id]["summary_text"])
            if summary:
                entries.append(f"{source_id}\n{summary}\n")
    return "\n".join(entries)


def tidy_summary(text: str) -> str:
    """A blank line inside a description would end its entry; half a character cannot be written."""
    written = text.encode("utf-8", errors="replace").decode("utf-8")
    lines = (line.rstrip() for line in written.splitlines())
    return "\n".join(line for line in lines if line)
