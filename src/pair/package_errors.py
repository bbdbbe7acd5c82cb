"""The texts of errors that only packages, their releases, signatures and locks have to tell.

Not here
    The list of all codes, and all other errors: errors.py.
"""

from typing import Any

from pair.error_tree import DownloadError


def package_of_another_schema(label: str, schema_version: Any) -> DownloadError:
    return DownloadError(
        "E018",
        f"The package {label} was made by another version of pair: it has schema {schema_version!r:.40}",
        hints=["Update pair, or ask for a package that this version can read"],
        details={"package": label, "schema_version": f"{schema_version!r:.40}"},
    )
