"""The rules of `robots.txt` (RFC 9309), and the form of URLs that is compared with them.

The parser of the standard library has no wildcards, and uses the first matching rule instead of the longest.
"""

import re
import string
from dataclasses import dataclass, field

_AGENT = "pair"
_TOKEN = re.compile(r"[a-z_-]+|\*")
_ESCAPE = re.compile(r'%[0-9A-Fa-f]{2}|[^!-~]|["<>\\^`{|}]')
_UNRESERVED = frozenset(f"{string.ascii_letters}{string.digits}-._~")


def normalise_escapes(text: str) -> str:
    """Normalise escapes: unescape unreserved characters, write other escapes in upper case, escape the rest."""
    return _ESCAPE.sub(_normalise_escape, text)


def _normalise_escape(found: re.Match[str]) -> str:
    if not found[0].startswith("%"):
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace"))
    character = chr(int(found[0][1:], 16))
    return character if character in _UNRESERVED else found[0].upper()


@dataclass
class Robots:
    """The rules of a site for our crawler, and the URLs of its sitemaps."""

    rules: list[tuple[str, bool]] = field(default_factory=list)
    """Patterns, each with whether it allows a path."""
    delay_seconds: float = 0.0
    sitemaps: list[str] = field(default_factory=list)

    def allows(self, path: str) -> bool:
        """Return whether the longest matching rule allows this path with its query; without a rule, it is allowed."""
        matching = [(len(pattern), is_allowed) for pattern, is_allowed in self.rules if _matches(pattern, path)]
        return max(matching, default=(0, True))[1]


def parse_robots(text: str) -> Robots:
    """Return the rules of the group for our crawler, or else of the group for all crawlers."""
    groups: dict[str, Robots] = {}
    agents: list[str] = []
    sitemaps: list[str] = []
    has_rules = False
    for line in text.removeprefix("\ufeff").splitlines():
        key, _, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        key = key.lower()
        if key == "user-agent":
            agents = [] if has_rules else agents
            has_rules = False
            agents += _TOKEN.findall(value.lower())[:1]
            groups.update({agent: Robots() for agent in agents if agent not in groups})
        elif key == "sitemap":
            sitemaps.append(value)
        elif key in {"allow", "disallow", "crawl-delay"}:
            has_rules = True
            for agent in agents:
                if key != "crawl-delay" and value:
                    groups[agent].rules.append((normalise_escapes(value), key == "allow"))
                elif key == "crawl-delay" and re.fullmatch(r"\d{1,6}(\.\d*)?", value, re.ASCII):
                    groups[agent].delay_seconds = float(value)
    chosen = groups.get(_AGENT) or groups.get("*") or Robots()
    chosen.sitemaps = sitemaps
    return chosen


def _matches(pattern: str, path: str) -> bool:
    """Return whether a pattern matches. A regular expression with many wildcards could take hours."""
    is_anchored = pattern.endswith("$")
    first, *parts = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    position = len(first)
    for part in parts:
        found = path.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    if not is_anchored:
        return True
    last = parts[-1] if parts else first
    # The last part may also occur earlier; then its last occurrence counts.
    return path.endswith(last) and (position == len(path) or bool(parts))
