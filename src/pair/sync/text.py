"""File bytes as text, and text as the hash that tells whether it changed."""

import hashlib


def decode(content: bytes) -> str | None:
    """UTF-8 without its byte order mark; None when it is not text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def normalised(text: str) -> str:
    """Line ends as LF, no space at line ends, no blank lines around."""  # sync-46
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    first, last = 0, len(lines)
    while first < last and not lines[first]:
        first += 1
    while last > first and not lines[last - 1]:
        last -= 1
    return "\n".join(lines[first:last])


def content_hash(text: str) -> str:
    """SHA-256 of the normalised text."""  # sync-45
    return hashlib.sha256(normalised(text).encode("utf-8", errors="surrogatepass")).hexdigest()


def title_of(content: str) -> str:
    """The first heading of a text that has one near its top."""
    for line in content[:8192].splitlines()[:20]:
        if line.startswith("# "):
            return line[2:].strip()[:200]
    return ""
