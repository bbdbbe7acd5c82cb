"""The texts of errors that only packages, their releases, signatures and locks have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence
from typing import Any

from pair.error_tree import ConflictError, DataError, DownloadError, NotFoundError, UsageError


def signature_refused(subject: str, reason: str, signed_by: str, expected: Sequence[str]) -> DataError:
    """Not a failed download: the same file would be refused again."""
    keys = ([f"Signed by key: {signed_by}"] if signed_by else []) + [f"Expected key:  {key}" for key in expected]
    return DataError(
        "E017",
        f"No valid signature of {subject}: {reason}",
        explanation=keys,
        hints=[
            "Ask its publisher for the package together with its .minisig",
            "If you trust another key, add it to sources.signature_keys",
        ],
        details={"subject": subject, "reason": reason, "signed_by": signed_by, "expected": list(expected)},
    )


def package_of_another_schema(label: str, schema_version: Any) -> DownloadError:
    return DownloadError(
        "E018",
        f"The package {label} was made by another version of pair: it has schema {schema_version!r:.40}",
        hints=["Update pair, or ask for a package that this version can read"],
        details={"package": label, "schema_version": f"{schema_version!r:.40}"},
    )


def feed_unreadable(feed: str, reason: str) -> DownloadError:
    return DownloadError(
        "E019",
        f"The feed of releases cannot be used: {feed}",
        explanation=reason,
        hints=[
            "Check that the address is that of a releases.json which pair publish wrote",
            "Name the archive itself with --source",
        ],
        details={"feed": feed, "reason": reason},
    )


def release_missing(feed: str, reason: str, known: Sequence[str]) -> NotFoundError:
    """`known`: what the feed has instead."""
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return NotFoundError(
        "E020",
        f"The feed {feed} has no such release: {reason}",
        explanation=f"It has: {', '.join(known[:20])}{more}" if known else "It has none.",
        lead="Name one of them:",
        hints=[f"--source {feed}#NAME for its latest version", f"--source {feed}#NAME@VERSION for a certain one"],
        details={"feed": feed, "known": list(known)},
    )


def version_moved(feed: str, version: str, installed: str, offered: str) -> ConflictError:
    return ConflictError(
        "E021",
        f"The feed {feed} has other bytes for version {version} than what was installed from it",
        explanation=[f"Installed SHA-256: {installed}", f"Offered SHA-256:   {offered}"],
        hints=[
            "Ask the publisher: a version that is published should not change",
            "Take what the feed has now with --force",
        ],
        details={"feed": feed, "version": version, "installed": installed, "offered": offered},
    )


def version_published(place: str, release: str, published: str, given: str) -> ConflictError:
    """`release`: name and version."""
    return ConflictError(
        "E021",
        f"{release} is published at {place} already, with other bytes",
        explanation=[f"Published SHA-256: {published}", f"Given SHA-256:     {given}"],
        hints=[
            "Publish it as a new version, with --version",
            "If that publication was given up before it was in the feed, delete its .sha256 there",
        ],
        details={"place": place, "release": release, "published": published, "given": given},
    )


def lock_differs(lock: str, drifts: Sequence[str]) -> ConflictError:
    """`drifts`: each one line that says what, what is locked, and what was found."""
    return ConflictError(
        "E022",
        f"Not as {lock} says",
        explanation=[f"  {drift}" for drift in drifts],
        hints=[
            "Bring back what is locked: pair install --locked --force",
            "Lock what is installed: pair lock",
        ],
        details={"lock": lock, "drifts": list(drifts)},
    )


def lock_unusable(lock: str, reason: str) -> UsageError:
    return UsageError(
        "E023",
        f"Lock file cannot be used: {lock}",
        explanation=reason,
        hints=["Write it anew from what is installed: pair lock", "Name another one with --lock-file"],
        details={"lock": lock, "reason": reason},
    )


def key_unusable(key: str, reason: str) -> UsageError:
    return UsageError(
        "E024",
        f"Key cannot be used: {key}: {reason}",
        hints=["Make a pair of keys: minisign -G", "PAIR_SIGN_PASSWORD opens a key where nobody can be asked"],
        details={"key": key, "reason": reason},
    )


def release_differs(feed: str, release: str, said: str) -> DataError:
    """`release`: name and version in the feed. `said`: the same in the package."""
    return DataError(
        "E027",
        f"Cannot install {release} from {feed}: the package is another one",
        explanation=f"The feed names:   {release}\nThe package says: {said}\nNothing was installed.",
        hints=["Ask the publisher: an old or another package may have been put in its place"],
        details={"feed": feed, "release": release, "said": said},
    )


def version_older(source: str, name: str, installed: str, offered: str) -> ConflictError:
    return ConflictError(
        "E028",
        f"Cannot replace {name} {installed} by {offered} from {source}: that version is older",
        explanation="Nothing was changed.",
        hints=["Install the older version with --force", "Keep the installed version: there is nothing to do"],
        details={"source": source, "name": name, "installed": installed, "offered": offered},
    )


def cannot_package(folder: str, reason: str) -> UsageError:
    return UsageError(
        "E014",
        f"Cannot package {folder}: {reason}",
        lead="Example:",
        hints=["pair package ./handbook -o handbook.zip --name handbook --version 1.0.0"],
        details={"folder": folder, "reason": reason},
    )


def source_overlaps_target(source: str, target: str) -> UsageError:
    return UsageError(
        "E015",
        f"KB source and target overlap: {source} and {target}",
        hints=["Choose a target outside the source folder", "Choose a source outside the target folder"],
        details={"source": source, "target": target},
    )


def target_changing(target: str) -> ConflictError:
    return ConflictError(
        "E016",
        f"Target keeps changing while it is being updated: {target}",
        hints=["Stop the program that writes to it, then try again"],
        details={"target": target},
    )
