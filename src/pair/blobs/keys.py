"""Which keys every store can hold: the same on all of them, so that a KB can move from one to another."""

MAX_KEY_BYTES = 1000


def check_key(key: str) -> str:
    """The key itself; a ValueError says what is wrong with it, for keys are made by programs and not by people."""
    if reason := _refusal(key):
        raise ValueError(f"{reason}: {key!r}")
    return key


def folder_of(prefix: str) -> tuple[str, ...] | None:
    """The folder in which all keys lie that begin so; None when no key can."""
    parts = tuple(prefix.split("/")[:-1])
    return None if parts and _refusal("/".join(parts)) else parts


def _refusal(key: str) -> str:
    try:
        size_bytes = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        return "a key is Unicode text"
    if size_bytes > MAX_KEY_BYTES:
        # S3 allows 1,024, and the prefix of the store needs some of them.
        return f"a key has at most {MAX_KEY_BYTES} bytes in UTF-8"
    if any(part in {"", ".", ".."} for part in key.split("/")):
        return "a key has no empty part and no part that leads elsewhere"
    if any(ord(character) < 32 or character in "\\\x7f" for character in key):
        # SeaweedFS for one takes a backslash for a slash.
        return "a key has no control characters and no backslash"
    return ""
