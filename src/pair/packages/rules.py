"""Rules of packages: settings, kinds of source, valid names, and the plan of an update (pure)."""

import base64
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from annotated_types import Ge, Gt, Le
from msgspec import Meta

from pair.values import LONGEST_WAIT_SECONDS, KbSource

RECORD_NAME = ".pair-install.jsonl"
ENTRY_NAME = ".pair-entry.json"
MANIFEST_NAME = "manifest.json"
MANIFEST_SUFFIX = ".manifest.json"
"""Suffix of the copy of the manifest beside a package with an index, for partial downloads."""
SIGNATURE_SUFFIX = ".minisig"
SIGNATURE_LIMIT_BYTES = 64 * 1024
MANIFEST_LIMIT_BYTES = 64 * 1024 * 1024
SIDECAR_SUFFIXES = (MANIFEST_SUFFIX, SIGNATURE_SUFFIX, MANIFEST_SUFFIX + SIGNATURE_SUFFIX)
"""Suffixes of the files beside an archive, without its `.sha256`."""
OWN_NAMES = frozenset({RECORD_NAME, ENTRY_NAME})
INDEX_FOLDER = ".pair-index"
"""The index in a package. It is not installed with the other files."""
INDEX_MANIFEST = f"{INDEX_FOLDER}/{MANIFEST_NAME}"
MOST_FOLDERS = 100
"""The deepest nesting of a file in a KB."""


@dataclass(frozen=True)
class SourcesSettings:
    """Settings of installs: default sources, signatures, and limits of downloads."""

    cache_dir: str = "~/.pair/kb"
    """Folder for downloaded KBs. Also PAIR_KB_CACHE_DIR."""
    default_url: str = ""
    """Archive to install if no source is named, instead of the latest release. Also PAIR_KB_DEFAULT_URL."""
    release_repository: str = "foomakers/pair"
    """GitHub repository (owner/name) whose latest release is the default KB."""
    release_asset: str = "knowledge-base*.zip"
    """File name of the KB archive in the release. `*` matches anything."""
    github_api_url: str = "https://api.github.com"
    """URL of the GitHub API."""
    require_checksum: bool = False
    """Refuse downloads without a published SHA-256."""
    require_signature: bool = False
    """Refuse sources that are not archives with a `.minisig` file by one of `sources.signature_keys`."""
    signature_keys: tuple[str, ...] = ()
    """Trusted minisign public keys: each a key or the path of its file."""
    timeout_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] = 30.0
    """Maximum time to connect, and to wait for the next byte."""
    retries: Annotated[int, Ge(0)] = 3
    """Number of times to retry a failed request."""
    retry_wait_seconds: Annotated[float, Ge(0), Le(LONGEST_WAIT_SECONDS)] = 1.0
    """Pause before the first retry. It doubles each time."""
    max_download_bytes: Annotated[int, Gt(0)] = 4 * 1024**3
    """Maximum size of a downloaded archive."""
    max_archive_entries: Annotated[int, Gt(0)] = 100_000
    """Maximum number of files and folders in an archive."""
    max_unpacked_bytes: Annotated[int, Gt(0)] = 4 * 1024**3
    """Maximum unpacked size of an archive."""
    max_compression_ratio: Annotated[int, Gt(0)] = 100
    """Maximum compression ratio of an archive, beyond the first MiB."""


# ── kinds of source ────────────────────────────────────────────────────────────────────────────────


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def is_git(source: str) -> bool:
    if source.startswith(("git@", "ssh://", "git://")):
        return True
    return is_url(source) and source.partition("#")[0].endswith(".git")


def is_in_bucket(source: str) -> bool:
    return source.startswith("s3://")


def is_remote(source: str) -> bool:
    return is_url(source) or is_git(source) or is_in_bucket(source)


def is_local_path(source: str) -> bool:
    return source.startswith(("/", "./", "../")) or re.match(r"[A-Za-z]:[/\\]", source) is not None


def hide_credentials(url: str) -> str:
    """Return a URL that may be shown: without credentials and query values."""
    address, mark, query = strip_user(url).partition("?")
    return f"{address}{mark}{re.sub(r'=[^&#]*', '=…', query)}" if is_url(url) else strip_user(url)


def describe_source(source: KbSource) -> dict[str, Any]:
    """Return the JSON of a source without secrets."""
    value = source.to_json() | {"location": hide_credentials(source.location)}
    return value if source.feed is None else value | {"feed": hide_credentials(source.feed)}


def strip_user(url: str) -> str:
    """Return a URL that may be stored: without user and password. Over ssh the user is part of the address."""
    scheme, mark, rest = url.partition("://")
    user, at, host = rest.partition("/")[0].rpartition("@")
    if not mark or not at:
        return url
    kept = "" if is_url(url) else user.partition(":")[0] + at
    return f"{scheme}://{kept}{host}{rest[len(user) + 1 + len(host) :]}"


def append_suffix(url: str, suffix: str) -> str:
    """Return the address of a file beside `url`: append the suffix to the path, before any query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path + suffix, fragment=""))


def parse_checksum(text: str, name: str) -> str | None:
    """Return the SHA-256 in a `.sha256` file: a bare hash, or lines of `hash  name`. None if there is none."""
    hashes: dict[str, str] = {}
    for line in text.lstrip("\ufeff").splitlines():
        match = re.fullmatch(r"\s*([0-9A-Fa-f]{64})(?:\s+\*?(.+?))?\s*", line)
        if match:
            hashes[match[2] or ""] = match[1].lower()
        elif line.strip():
            return None
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashes.get(name)


def format_key_id(number: bytes) -> str:
    """Return the id of a key in the format of minisign: hexadecimal, without leading zeros."""
    return f"{int.from_bytes(number, 'little'):X}"


def read_key_id(key: str) -> str:
    """Return the id of a public key, given its line."""
    return format_key_id(base64.b64decode(key)[2:10])


# ── names in archives ──────────────────────────────────────────────────────────────────────────────

NOT_UNICODE = "name is not valid Unicode"
_WINDOWS_DEVICE = re.compile(r"con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]")


def find_name_fault(name: str) -> str | None:
    """Return why a path may not be in a KB package, or None. Names must be valid on every system."""
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        return "absolute path"
    if "\\" in name:
        return "backslash in the name"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "control character in the name"
    if not is_unicode(name):
        return NOT_UNICODE
    if len(name.encode()) > 4000:
        return "path is too long"
    if name.count("/") > MOST_FOLDERS:
        return "path has too many folders"
    faults = (_part_fault(part) for part in name.split("/"))
    return next((fault for fault in faults if fault is not None), None)


def is_unicode(name: str) -> bool:
    """Return whether a name can be encoded; a name that is not UTF-8 on disk cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def stays_inside(path: str) -> bool:
    """Return whether a path stays below its folder, and outside version control, where a file may run commands."""
    parts = path.split("/")
    return "\0" not in path and all(part not in {"", ".", ".."} and not is_version_control(part) for part in parts)


_VERSION_CONTROL = re.compile(r"\.(?:git|hg|svn|bzr|jj)|_darcs|cvs|(?:git|hg|svn|bzr|jj)~[0-9]+")
"""Folders of version control, and their short names on Windows."""
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Default-ignorable code points of Unicode, which some file systems ignore when they compare names."""


def is_version_control(name: str) -> bool:
    """Return whether any file system treats a name as a folder of version control."""
    return _VERSION_CONTROL.fullmatch(_fold_name(name)) is not None


def _fold_name(name: str) -> str:
    """Return the form of a name that the most lenient file systems compare.

    HFS+ ignores case and invisible characters; NTFS also dots and spaces at the end, and a stream after a colon.
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKC", _IGNORABLE.sub("", name))
        name = _IGNORABLE.sub("", unicodedata.normalize("NFKC", name.casefold()))
    return name.lower().partition(":")[0].rstrip(". ")


def find_bare_repositories(paths: Iterable[str]) -> set[str]:
    """Return folders that are git repositories but not called `.git`: git commands in them obey their configuration."""
    paths = list(paths)
    heads = [path.rpartition("/") for path in paths]
    names: dict[str, set[str]] = {folder: set() for folder, _, name in heads if _fold_name(name) == "head"}
    for path in paths if names else ():
        for below in (path, *list_parents(path)):
            folder, _, name = below.rpartition("/")
            if folder in names:
                names[folder].add(_fold_name(name))
    return {folder for folder, content in names.items() if "commondir" in content or content >= {"objects", "refs"}}


def _part_fault(part: str) -> str | None:
    if part == "..":
        return "path leads out of the archive"
    if part in {"", "."}:
        return "empty part in the path"
    if is_version_control(part):
        return "name belongs to version control"
    if part.rstrip(". ") != part:
        return "name ends in a dot or a space"
    if _WINDOWS_DEVICE.fullmatch(part.partition(".")[0].rstrip().lower()):
        return "name is reserved on Windows"
    if len(part.encode()) > 255:
        return "name is too long"
    return None


def is_suspicious_ratio(unpacked_bytes: int, packed_bytes: int, max_ratio: int) -> bool:
    """Return whether a file compresses better than any real text; the first mebibyte does not count."""
    return unpacked_bytes > max(1024 * 1024, packed_bytes * max_ratio)


def is_of_index(path: str) -> bool:
    return path.startswith(f"{INDEX_FOLDER}/")


def find_path_fault(path: str) -> str | None:
    """Return why a file may not be packaged under this path, or None."""
    return find_name_fault(path) or find_own_name_fault(path)


def find_own_name_fault(name: str) -> str | None:
    return "name is reserved for pair" if _fold_name(name.partition("/")[0]) in OWN_NAMES else None


def find_tree_fault(paths: Iterable[str]) -> str | None:
    """Return why these paths may not be together in a KB package, or None."""
    paths = list(paths)
    spellings: dict[str, str] = {}
    for path in paths:
        for spelling in (path, *list_parents(path)):
            folded = unicodedata.normalize("NFC", spelling).casefold()
            if spellings.setdefault(folded, spelling) != spelling:
                return f"names differ only in case or accents: {spelling!r}"
    if repositories := find_bare_repositories(paths):
        return f"folder that git takes for a repository: {min(repositories)!r}"
    return None


# ── changes of an update ─────────────────────────────────────────────────────────────────────────

KeptReason = Literal["edited", "deleted", "yours", "in the way"]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A path where the file of the user was kept."""

    path: str
    reason: KeptReason


@dataclass(frozen=True)
class UpdatePlan:
    """The sorted paths of the target, grouped by the action of an update."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[KeptFile, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return not (self.added or self.changed or self.removed)

    @property
    def files_to_place(self) -> tuple[str, ...]:
        return self.added + self.changed


def plan_changes(
    installed: Mapping[str, str],
    offered: Mapping[str, str | None],
    present: Mapping[str, str | None],
    *,
    force: bool,
    restore: bool,
) -> UpdatePlan:
    """Compare the installed files, the files of the KB, and the files present in the target.

    Values are SHA-256; None for a hash that was not computed because nothing is compared with it.
    `restore`: restore files that the user deleted. `force`: also overwrite files that the user changed.
    """
    added, changed, removed, unchanged = set[str](), set[str](), set[str](), set[str]()
    kept: dict[str, KeptReason] = {}
    for path, new in offered.items():
        is_installed = path in installed
        if path not in present and is_installed and not (force or restore):
            kept[path] = "deleted"
        elif path not in present:
            added.add(path)
        elif present[path] == new:
            unchanged.add(path)
        elif force or (present[path] is not None and present[path] == installed.get(path)):
            changed.add(path)
        else:
            kept[path] = "edited" if is_installed else "yours"
    for path in (installed.keys() & present.keys()) - offered.keys():
        if force or present[path] == installed[path]:
            removed.add(path)
        else:
            kept[path] = "edited"
    blocked, replaced = _find_blocked(added | changed, present.keys() - removed)
    if force:
        removed |= replaced
    else:
        added -= blocked
        changed -= blocked
        for path in blocked:
            kept[path] = "in the way"
    return UpdatePlan(
        added=tuple(sorted(added)),
        changed=tuple(sorted(changed)),
        removed=tuple(sorted(removed)),
        kept=tuple(KeptFile(path, kept[path]) for path in sorted(kept)),
        unchanged=tuple(sorted(unchanged)),
    )


def _find_blocked(placed: set[str], staying: set[str]) -> tuple[set[str], set[str]]:
    """Return the paths that cannot be placed, and the kept paths that block them: no path is a file and a folder."""
    folders_staying = {folder for path in staying for folder in list_parents(path)}
    blocked, blocking = set[str](), set[str]()
    for path in placed:
        in_the_way = {folder for folder in list_parents(path) if folder in staying}
        if path in folders_staying:
            in_the_way |= {other for other in staying if other.startswith(path + "/")}
        if in_the_way:
            blocked.add(path)
            blocking |= in_the_way
    return blocked, blocking


def list_parents(path: str) -> Iterable[str]:
    while (path := path.rpartition("/")[0]) != "":
        yield path


# ── packages ───────────────────────────────────────────────────────────────────────────────────────

_ON_ONE_LINE = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*\Z"
OneLine = Annotated[str, Meta(pattern=_ON_ONE_LINE)]
"""Text without control characters, line ends and surrogates."""
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


def find_label_fault(name: str, version: str) -> str | None:
    """Return why a package may not have this name or version, or None."""
    for what, text in (("name", name), ("version", version)):
        if not text.strip():
            return f"{what} is empty"
        if re.match(_ON_ONE_LINE, text) is None:
            return f"{what} {text!r} must be text on one line"
    return None


def find_file_name_fault(name: str) -> str | None:
    """Return why a file cannot have this name, or None."""
    return f"{name!r} cannot be a file's name; choose one with -o" if find_name_fault(name) or "/" in name else None


def make_name(folder_name: str) -> str:
    """Return a name for a folder: `My Handbook` becomes `my-handbook`."""
    return re.sub(r"[^a-z0-9._-]+", "-", folder_name.lower()).strip("-._") or "kb"


def is_named_by_content(source: KbSource) -> bool:
    """Return whether a release index has the hash of the bytes: they are then the same at every address."""
    return source.feed is not None and source.sha256 is not None


def make_cache_key(source: KbSource, url_sha256: str) -> str:
    """Return the folder of a KB in the cache: the version of the release, else the hash of its address."""  # source-14
    is_plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", source.version or "")
    return source.version if source.version and is_plain and not is_named_by_content(source) else url_sha256
