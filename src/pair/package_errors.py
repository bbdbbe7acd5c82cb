"""The texts of errors that only packages, their releases, signatures and locks have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from collections.abc import Sequence
from typing import Any

from pair.error_tree import DataError, DownloadError, UsageError


def signature_refused(subject: str, reason: str, signed_by: str, expected: Sequence[str]) -> DataError:
    """Not a failed download: the same file would be refused again."""
    keys = ([f"Signed by key: {signed_by}"] if signed_by else []) + [f"Expected key:  {key}" for key in expected]
    return DataError(
        "E017",
        f"No valid signature of {subject}: {reason}",
        explanation="\n".join(keys),
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


def key_unusable(key: str, reason: str) -> UsageError:
    return UsageError(
        "E024",
        f"Key cannot be used: {key}: {reason}",
        hints=["Make a pair of keys: minisign -G", "PAIR_SIGN_PASSWORD opens a key where nobody can be asked"],
        details={"key": key, "reason": reason},
    )
