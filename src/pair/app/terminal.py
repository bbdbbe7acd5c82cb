"""Make text that others wrote safe to show on a terminal (pure).

Titles, file names, documents, replies of servers and models can hold characters that move the cursor, change what is
on the screen, reverse the reading direction, or hide. They are shown as escapes: `\\x1b`, `\\u202e`.
"""

import re

# Control characters, with DEL and C1; line and paragraph separators; characters that embed, override or isolate a
# direction; characters without width that join nothing; tags and other carriers of hidden text; half a surrogate pair.
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e01ef"
)
# Joiners and direction marks belong to scripts that need them, behind a letter of such a script, one at a time.
_MARKS = "\u061c\u200c-\u200f"
_STRAY_MARK = f"(?<![^\x00-\x7f{_MARKS}])[{_MARKS}]"
_IN_TEXT = re.compile(f"[{_UNSAFE}]|{_STRAY_MARK}")
_IN_LINE = re.compile(f"[{_UNSAFE}\t\n]|{_STRAY_MARK}")


def escape_line(text: str) -> str:
    """Return the text as one line: line breaks and tabs are escaped too."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_escape, text)


def escape_text(text: str) -> str:
    """Return the text with its lines and tabs."""
    return _IN_TEXT.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(dumped: str) -> str:
    """Return JSON of ASCII characters without DEL, the one control character that JSON leaves as it is."""
    return dumped.replace("\x7f", "\\u007f")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
