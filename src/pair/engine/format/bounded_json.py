"""JSON from files that others may have written: the values of a text never take more memory than there is."""

import json
import re
from typing import Any

MOST_VALUES = 2_000_000
"""Of one text. An empty list takes 3 bytes of JSON and 64 of memory, so the length of a text is no bound."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def load_json(content: bytes | memoryview) -> Any:
    """Parse UTF-8 text. Raises ValueError, also for too many values and for values that are nested too deeply."""
    if len(content) > MOST_VALUES:
        content = bytes(content)
        if _count_values(content) > MOST_VALUES and _count_values(_STRING.sub(b"", content)) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(str(content, "utf-8", "surrogatepass"))
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def _count_values(content: bytes) -> int:
    """Count what begins a value; commas and brackets inside strings count too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def load_texts(content: bytes | memoryview) -> list[str]:
    """Parse a list of strings. Raises ValueError."""
    texts = load_json(content)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is no list of texts")
    return texts
