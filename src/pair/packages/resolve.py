"""Look at disk and feeds of releases, then apply the rules."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from pair.packages.release_rules import FEED_NAME, FeedAddress, local_feed, remote_feed
from pair.packages.rules import (
    Surroundings,
    choose_source,
    is_local_path,
    is_remote,
    refuse_conflicting_options,
    without_credentials,
)
from pair.values import KbSource

logger = logging.getLogger(__name__)

MONOREPO_DATASET = "packages/knowledge-hub/dataset"


def resolve_source(
    source: str | None,
    *,
    offline: bool,
    folder: Path,
    latest_release: Callable[[], KbSource],
    from_feed: Callable[[FeedAddress], KbSource],
) -> KbSource:
    """`folder` is where relative paths and the monorepo are looked for. Raises E001-E005, E007, E019 and E020."""
    refuse_conflicting_options(source, offline=offline)
    shown = without_credentials(source) if source else source
    logger.debug("resolving the KB source", extra={"source": shown, "offline": offline, "folder": str(folder)})
    if source is not None and (feed := feed_at(source, folder)) is not None:
        logger.debug("asking a feed of releases", extra={"feed": without_credentials(feed.place)})
        return from_feed(feed)
    choice = choose_source(source, offline=offline, seen=_look_around(source, folder), latest_release=latest_release)
    location = without_credentials(choice.source.location)
    logger.debug(
        "chose the KB source",
        extra={"type": choice.source.type, "location": location, "because": choice.because},
    )
    return choice.source


def feed_at(source: str, folder: Path) -> FeedAddress | None:
    """The feed that a source names; None when it names something else. A path that exists is what it is."""
    if is_remote(source):
        return remote_feed(source)
    if not is_local_path(source):
        return None
    absolute = os.path.abspath(folder / source)  # noqa: PTH100 - as below
    if os.path.exists(absolute) and not absolute.endswith(f"/{FEED_NAME}"):  # noqa: PTH110 - as below
        return None
    found = local_feed(absolute)
    return found if found is not None and os.path.isfile(found.place) else None  # noqa: PTH113 - as below


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
