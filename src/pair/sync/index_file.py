"""State as `index.txt`: identifier line, description, one blank line between entries; same state, same bytes."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal


def index_text(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Files first, then URLs."""  # sync-35..38
    found = [*entries(sources, "file"), *entries(sources, "url")]
    return "\n".join(f"{source_id}\n{summary}\n" for source_id, summary in found)


def entries(sources: Mapping[str, Mapping[str, Any]], source_type: Literal["file", "url"]) -> Iterator[tuple[str, str]]:
    """Id and description, sorted by id. A source that never had a summary is left out."""
    for source_id in sorted(source_id for source_id, value in sources.items() if value["source_type"] == source_type):
        summary = tidy_summary(sources[source_id]["summary_text"])
        if summary:
            yield source_id, summary


def tidy_summary(text: str) -> str:
    """A blank line inside a description would end its entry; half a character cannot be written."""
    written = text.encode("utf-8", errors="replace").decode("utf-8")
    lines = (line.rstrip() for line in written.splitlines())
    return "\n".join(line for line in lines if line)
