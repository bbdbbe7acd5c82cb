"""Look at disk and release feed, then apply the rules."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from pair.sources.rules import (
    Surroundings,
    choose_source,
    is_remote,
    refuse_conflicting_options,
    without_credentials,
)
from pair.values import KbSource

logger = logging.getLogger(__name__)

MONOREPO_DATASET = "packages/knowledge-hub/dataset"


def resolve_source(
    source: str | None, *, offline: bool, folder: Path, latest_release: Callable[[], KbSource]
) -> KbSource:
    """`folder` is where relative paths and the monorepo are looked for. Raises E001-E005 and E007."""
    refuse_conflicting_options(source, offline=offline)
    shown = without_credentials(source) if source else source
    logger.debug("resolving the KB source", extra={"source": shown, "offline": offline, "folder": str(folder)})
    choice = choose_source(source, offline=offline, seen=_look_around(source, folder), latest_release=latest_release)
    location = without_credentials(choice.source.location)
    logger.debug(
        "chose the KB source",
        extra={"type": choice.source.type, "location": location, "because": choice.because},
    )
    return choice.source


def _look_around(source: str | None, folder: Path) -> Surroundings:
    if source is not None and is_remote(source):
        return Surroundings()
    if source is not None:
        absolute = os.path.abspath(folder / source)  # noqa: PTH100 - normalises ".." without following links
        exists = os.path.exists(absolute)  # noqa: PTH110 - a name the system cannot hold does not exist
        logger.debug("looked at the path", extra={"path": absolute, "exists": exists})
        return Surroundings(absolute_path=absolute, path_exists=exists)
    dataset = folder / MONOREPO_DATASET
    exists = dataset.is_dir()
    logger.debug("looked for the monorepo dataset", extra={"path": str(dataset), "exists": exists})
    return Surroundings(monorepo_dataset=str(dataset) if exists else None)
