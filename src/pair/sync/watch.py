"""Wait until a source changes on disk, or until it is time."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import watchfiles

from pair.clock import Clock

_LOOK_MILLISECONDS = 400


class Watcher:
    """Notices changes in the sources folder and of the links file, also while nobody waits.

    The folder itself may be replaced as a whole (`pair install` does that) and the links file by an editor: both are
    noticed by what `stat` says of them.
    """

    def __init__(self, folder: Path, links_file: Path, stop: threading.Event, clock: Clock) -> None:
        self._folder = folder
        self._links_file = links_file
        self._stop = stop
        self._clock = clock
        self._seen = self._look()
        self._changes = self._watch()

    def wait(self, seconds: float) -> bool:
        """Returns early when something changed; True when it is time to stop."""
        deadline = self._clock.monotonic() + seconds
        for has_changed in self._changes:
            seen = self._look()
            if self._stop.is_set():
                return True
            if seen != self._seen:
                is_other_folder = seen[0] != self._seen[0]
                self._seen = seen
                if is_other_folder:
                    self._changes = self._watch()
                return False
            if has_changed or self._clock.monotonic() >= deadline:
                return False
        return True

    def _look(self) -> tuple[object, object]:
        return _identity(self._folder, content=False), _identity(self._links_file, content=True)

    def _watch(self) -> Iterator[bool]:
        """A look at a time; True when files may have changed since the last. Ends when it is time to stop."""
        while not self._stop.is_set():
            if self._folder.is_dir():
                # The folder may vanish at any moment; the next look says so.
                with contextlib.suppress(FileNotFoundError):
                    yield from self._follow_notifications()
            self._stop.wait(_LOOK_MILLISECONDS / 1000)
            yield False

    def _follow_notifications(self) -> Iterator[bool]:
        """Hidden files are no sources."""
        # What changed between the last run and the moment that notifications begin raised none.
        may_have_missed = True
        # A folder behind a link is notified of under its real path.
        folder = os.path.realpath(self._folder)
        for changes in watchfiles.watch(
            folder,
            stop_event=self._stop,
            watch_filter=lambda _change, path: not _is_hidden(path, folder),
            rust_timeout=_LOOK_MILLISECONDS,
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            yield may_have_missed or bool(changes)
            may_have_missed = False


def _identity(path: Path, *, content: bool) -> object:
    try:
        seen = path.stat()
    except OSError:
        return None
    return (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size) if content else (seen.st_dev, seen.st_ino)


def _is_hidden(path: str, folder: str) -> bool:
    return any(part.startswith(".") for part in Path(os.path.relpath(path, folder)).parts)
