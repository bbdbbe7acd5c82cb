"""Frozen values that cross a border between parts of pair."""

from dataclasses import dataclass
from typing import Any, Literal

SourceType = Literal["url", "local", "monorepo", "github-release", "git"]


@dataclass(frozen=True, slots=True)
class KbSource:
    """Where a whole KB comes from. `location` is an absolute path or a URL (for git with its `#ref`)."""

    type: SourceType
    location: str
    requires_download: bool
    version: str | None = None
    """Of a release, from its feed."""
    sha256: str | None = None
    """Of the archive, when the release feed publishes it."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "type": self.type,
            "location": self.location,
            "requiresDownload": self.requires_download,
        }
        if self.version is not None:
            value["version"] = self.version
        if self.sha256 is not None:
            value["sha256"] = self.sha256
        return value

    @staticmethod
    def from_json(value: dict[str, Any]) -> "KbSource":
        return KbSource(
            type=value["type"],
            location=value["location"],
            requires_download=value["requiresDownload"],
            version=value.get("version"),
            sha256=value.get("sha256"),
        )
