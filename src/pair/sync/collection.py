"""A collection: documents of one origin that feed one knowledge base."""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from pair.network import has_host
from pair.values import LONGEST_WAIT_SECONDS, is_kb_id

Kind = Literal["path", "links", "url", "feed", "bucket", "command"]
KINDS: tuple[Kind, ...] = ("path", "links", "url", "feed", "bucket", "command")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LONGEST_INTERVAL_SECONDS = 1_000_000_000
_ONLY_FOR: dict[str, tuple[Kind, ...]] = {
    "include": ("path",),
    "exclude": ("path",),
    "ignore_case": ("path",),
    "ignore_files": ("path",),
    "interval_seconds": ("url", "feed", "bucket", "command"),
    "timeout_seconds": ("command", "url"),
    "max_pages": ("url",),
    "max_depth": ("url",),
}


@dataclass(frozen=True)
class CollectionSettings:
    """One entry of `kb.collections`. Raises ValueError for keys that do not go together."""

    path: str = ""
    """Folder with files."""
    links: str = ""
    """File with URLs, one a line."""
    url: str = ""
    """Site to crawl: pages of the same host below this address."""
    feed: str = ""
    """URL of an RSS or Atom feed."""
    bucket: str = ""
    """Prefix of an object store, as `s3://bucket/prefix`."""
    command: tuple[str, ...] = ()
    """Program and arguments; it prints JSON lines."""
    kb: str = "default"
    """Knowledge base that the documents are stored in."""
    include: tuple[str, ...] = ()
    """Patterns of files to read; without any, all files."""
    exclude: tuple[str, ...] = ()
    """Patterns of files and folders to skip."""
    ignore_case: bool = False
    """Whether `include` and `exclude` match regardless of case."""
    ignore_files: bool = True
    """Whether `.gitignore` and `.pairignore` count."""
    interval_seconds: Annotated[float, Ge(0), Le(_LONGEST_INTERVAL_SECONDS)] | None = None
    """Minimum time between two reads; without it, kb.url_refresh_min_interval_seconds."""
    timeout_seconds: Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)] | None = None
    """Maximum time of a command (300 s) or of the crawl of a site (3600 s)."""
    max_pages: Annotated[int, Gt(0)] | None = None
    """Maximum number of pages of a site (5000)."""
    max_depth: Annotated[int, Ge(0)] | None = None
    """Maximum number of links from the first page of a site (10)."""

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind)]
        if len(given) != 1:
            raise ValueError(f"it needs exactly one of {', '.join(KINDS)}")
        defaults = type(self).__dataclass_fields__
        for key, kinds in _ONLY_FOR.items():
            if given[0] not in kinds and getattr(self, key) != defaults[key].default:
                raise ValueError(f"{key} is only for a collection with {' or '.join(kinds)}")
        if self.kind in {"url", "feed"} and not has_host(self.address):
            raise ValueError(f"{self.kind} begins with http:// or https:// and names a host")
        if not is_kb_id(self.kb):
            raise ValueError(f"kb is not the name of a knowledge base: {self.kb[:100]!r}")
        if not all(text.strip(" \t!/") and not text.startswith("#") for text in self.include):
            raise ValueError("include has a pattern that is blank or a comment")
        if self.bucket and not self.bucket.startswith(("s3://", "gs://", "az://")):
            raise ValueError("bucket is an address such as s3://bucket/prefix")

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind))

    @property
    def address(self) -> str:
        """The folder, file or address, or the command as one line."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else " ".join(value)

    @property
    def is_source(self) -> bool:
        """Whether the documents are items of a source, not files or single URLs."""
        return self.kind not in {"path", "links"}

    @property
    def definition(self) -> str:
        """A hash that changes with the origin of the documents, and does not reveal it."""
        return hashlib.sha256(f"{self.kind}\0{self.address}".encode()).hexdigest()[:32]
