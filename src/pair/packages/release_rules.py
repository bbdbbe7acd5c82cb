"""What is decided about feeds of releases: which addresses name one, which version is the latest, what moved."""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pair.packages.rules import is_git, is_remote, is_url, without_user
from pair.values import KbSource

FEED_NAME = "releases.json"
_NOT_RELEASES = (".zip", ".git")


# ── addresses ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """Where a feed is, and which release of it is meant."""

    named: str
    """As it was given, so that it can be asked again."""
    place: str
    """Of the feed itself: a URL, an absolute path, or an address in a bucket."""
    name: str = ""
    """Of the KB; empty: the only one."""
    version: str = ""
    """Empty: the latest."""


def remote_feed(source: str) -> FeedAddress | None:
    """`…/releases.json`, `…/releases.json#NAME`, `…/releases.json#NAME@VERSION` or `…/NAME@VERSION`; None: no feed."""
    if is_git(source) or not is_remote(source):
        return None
    address, _, wanted = source.partition("#")
    path, mark, query = address.partition("?")
    folder, _, last = path.rpartition("/")
    if path.count("/") < 3:  # no path, only a host
        return None
    if last == FEED_NAME:
        return FeedAddress(source, address, *_name_and_version(unquote(wanted)))
    name, version = _pinned(unquote(last))
    if not name or wanted:
        return None
    return FeedAddress(source, f"{folder}/{FEED_NAME}{mark}{query}", name, version)


def local_feed(path: str) -> FeedAddress | None:
    """The same for an absolute path; whether the feed is there is for others to see."""
    match = re.fullmatch(rf"(.*/{re.escape(FEED_NAME)})(?:#([^/]*))?", path, re.DOTALL)
    if match:
        return FeedAddress(path, match[1], *_name_and_version(match[2] or ""))
    folder, _, last = path.rpartition("/")
    name, version = _pinned(last)
    return FeedAddress(path, f"{folder}/{FEED_NAME}", name, version) if name else None


def _name_and_version(wanted: str) -> tuple[str, str]:
    name, at, version = wanted.rpartition("@")
    return (name, version) if at else (wanted, "")


def _pinned(last: str) -> tuple[str, str]:
    """`NAME@VERSION`, and nothing that looks like an archive or a repository."""
    name, _, version = last.rpartition("@")
    return (name, version) if name and version and not last.endswith(_NOT_RELEASES) else ("", "")


def archive_location(place: str, file: str) -> str:
    """Where an archive is that a feed names: beside the feed, or at an address of its own."""
    if is_url(file):
        return file
    if is_url(place):
        parts = urlsplit(place)
        folder = parts.path.rpartition("/")[0]
        return urlunsplit(parts._replace(path=f"{folder}/{quote(file)}", query="", fragment=""))
    return f"{place.rpartition('/')[0]}/{file}"


# ── versions ───────────────────────────────────────────────────────────────────────────────────────

_PRE_RELEASE = re.compile(
    r"""[vV]?(?P<core>[0-9]+(?:\.[0-9]+)*)
    (?:-(?P<hyphened>[^+]*[A-Za-z][^+]*)           # 1.2.0-rc1
    |[._]?(?P<glued>(?:a|b|c|rc|alpha|beta|pre|preview|dev)[._]?[0-9]*))  # 1.2.0rc1
    (?:\+.*)?""",
    re.VERBOSE | re.DOTALL,
)

VersionOrder = tuple[tuple[tuple[int, int, str], ...], bool, tuple[tuple[int, int, str], ...], str]


def is_pre_release(version: str) -> bool:
    """`1.2.0-rc1`, `1.2.0rc1`; not `2026-01-31`."""
    return _PRE_RELEASE.fullmatch(version) is not None


def version_order(version: str) -> VersionOrder:
    """Sorts as people count: numbers as numbers, and what comes before a release before it."""
    match = _PRE_RELEASE.fullmatch(version)
    if match is None:
        return _without_zeros(_parts(version.lower().removeprefix("v").partition("+")[0])), True, (), version
    before = match["hyphened"] or match["glued"]
    return _without_zeros(_parts(match["core"])), False, _parts(before.lower()), version


def is_older(version: str, other: str) -> bool:
    """Whether a version comes before another one; 1.2 and 1.2.0 are the same."""
    return bool(other) and version_order(version)[:3] < version_order(other)[:3]


def latest(versions: list[str]) -> str:
    """Of one or more. A pre-release only where there is nothing else."""
    released = [version for version in versions if not is_pre_release(version)]
    return max(released or versions, key=version_order)


def _parts(text: str) -> tuple[tuple[int, int, str], ...]:
    """Words before numbers; a number by its length and then by its digits, however long it is."""
    found = re.findall(r"([0-9]+)|([^0-9._-]+)", text)
    numbers = ((digits.lstrip("0"), word) for digits, word in found)
    return tuple((0, 0, word) if word else (1, len(digits), digits) for digits, word in numbers)


def _without_zeros(parts: tuple[tuple[int, int, str], ...]) -> tuple[tuple[int, int, str], ...]:
    """1.2 is 1.2.0."""
    end = len(parts)
    while end and parts[end - 1] == (1, 0, ""):
        end -= 1
    return parts[:end]


# ── what moved ─────────────────────────────────────────────────────────────────────────────────────


def has_moved(installed: KbSource, installed_name: str, installed_sha256: str, offered: KbSource) -> bool:
    """Whether one feed has other bytes now for the version that was installed from it."""
    if installed.feed is None or offered.feed is None or installed.version != offered.version:
        return False
    old, new = _address_of(installed.feed), _address_of(offered.feed)
    is_same_kb = (new.name or installed_name) == (old.name or installed_name)
    return old.place == new.place and is_same_kb and installed_sha256 not in {"", offered.sha256}


def _address_of(feed: str) -> FeedAddress:
    stored = without_user(feed)
    return (remote_feed(stored) if is_remote(stored) else local_feed(stored)) or FeedAddress(stored, stored)
