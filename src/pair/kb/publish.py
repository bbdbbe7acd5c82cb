"""Publishing a folder or a package to a folder or a bucket."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pair import errors
from pair.blobs.cas_check import refuse_without_compare_and_swap
from pair.kb.installer import Installer, Packaging
from pair.kb.open import blob_store, new_id, pause_before
from pair.packages import release_index
from pair.packages.release_index import BucketTarget, FolderTarget, PublishReport, PublishTarget
from pair.packages.rules import is_in_bucket


def publish(desk: Installer, destination: str, source: Path | None, packaging: Packaging) -> PublishReport:
    """`source`: a package, or a folder that is packaged first; else the folder of sources. Raises E003-E021."""
    source = source or desk.default_target
    if not is_in_bucket(destination) and Path(destination).resolve().is_relative_to(source.resolve()):
        raise errors.source_overlaps_target(str(source), destination)  # else each release would hold all before it
    place = _place(desk, destination)
    with _packaged(desk, source, packaging) as (package, skipped):
        desk.verify(package)
        manifest = desk.describe(package).manifest
        assert manifest is not None  # noqa: S101 - a package without one cannot be described
        return dataclasses.replace(release_index.publish(package, manifest, place, desk.clock), skipped=skipped)


@contextlib.contextmanager
def _packaged(
    desk: Installer, source: Path, packaging: Packaging
) -> Iterator[tuple[Path, tuple[tuple[str, str], ...]]]:
    if source.is_file():
        if dataclasses.replace(packaging, ask_password=str) != Packaging():
            raise errors.command_line_invalid(
                f"{source} is a package already, with all that it has", hints=["Publish the folder to package it anew"]
            )
        yield source, ()
        return
    with tempfile.TemporaryDirectory(prefix="pair-") as folder:
        made = desk.package(source, Path(folder) / "kb.zip", packaging)
        yield made.path, made.skipped


def _place(desk: Installer, destination: str) -> PublishTarget:
    if is_in_bucket(destination):
        store = blob_store(destination, desk.settings, desk.clock)
        refuse_without_compare_and_swap(store, ".pair-", new_id())
        return BucketTarget(store, pause_before)
    if "://" in destination:
        raise errors.command_line_invalid(
            f"releases cannot be published to {destination}", hints=["Name a folder, or s3://bucket/prefix"]
        )
    folder = Path(destination)

    def say_waiting(holder: str) -> None:
        desk.observer.say(f"waiting for {holder}, which is publishing to {folder}")

    return FolderTarget(folder, say_waiting)
