"""Explanations why a path or URL is a source or not: the rule that decides, and its place."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pair import files
from pair.sync.discover import NamedCollection, SyncPaths, discover, find_entry_fault
from pair.sync.patterns import FileSelection
from pair.sync.state import SyncState, read_collection
from pair.sync.store import read_state


@dataclass(frozen=True)
class Explanation:
    """The decision of one collection about a path or URL."""

    kb: str
    collection: str
    """The name of the collection; empty for `kb.sources_dir` and the links file."""
    source_id: str
    is_included: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(kb: str, paths: SyncPaths, target: str, max_bytes: int) -> list[Explanation]:
    """Return the decisions of the collections that cover a path, a URL or a document id. Raises E102, E010."""
    with files.storage_errors():
        state = read_state(paths.cache)
        if target.startswith(("http://", "https://")):
            return _explain_url(kb, paths, target, state)
        explainer = _PathExplainer(kb, paths, state, max_bytes)
        value = state.sources.get(target)
        if value is not None and not os.path.lexists(files.expand_path(target)):
            name = read_collection(value)
            if "item" in value:
                return [Explanation(kb, name, target, True, f"reported by the collection {name}")]
            folder = paths.folders.get(name)
            return [explainer.explain(name, str(folder / target[len(name) + 1 if name else 0 :]))] if folder else []
        place = os.path.abspath(files.expand_path(target))  # noqa: PTH100 - a link is explained, not its target
        real = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))  # noqa: PTH118, PTH119, PTH120
        return [
            explainer.explain(name, real)
            for name, root in explainer.roots.items()
            if real == root or real.startswith(root.rstrip(os.sep) + os.sep)
        ]


def _explain_url(kb: str, paths: SyncPaths, url: str, state: SyncState) -> list[Explanation]:
    owners = discover(paths).owners()
    if url in owners:
        name = owners[url]
        files_by_name = {entry.name: entry.path for entry in paths.collections} | {"": paths.links_file}
        return [Explanation(kb, name, url, True, f"listed in {files_by_name[name]}")]
    item = state.item(url)
    if item is None:
        return []
    return [Explanation(kb, item.collection, url, True, f"reported by the collection {item.collection}")]


@dataclass(frozen=True)
class _PathExplainer:
    kb: str
    paths: SyncPaths
    state: SyncState
    max_bytes: int

    @property
    def roots(self) -> Mapping[str, str]:
        """The real folders of collections by name."""
        return {name: os.path.realpath(folder) for name, folder in self.paths.folders.items()}

    def explain(self, name: str, place: str) -> Explanation:
        """Return the decision of a collection about a path below its folder."""
        root = self.roots[name]
        named = next((entry for entry in self.paths.collections if entry.name == name), None)
        below = os.path.relpath(place, root).replace(os.sep, "/")
        prefix = f"{name}/" if name else ""
        source_id = prefix if below == "." else prefix + below
        if named is not None and named.fault:
            return Explanation(self.kb, name, source_id, False, named.fault)
        is_included, reason = self._walk(named, root, prefix, [] if below == "." else below.split("/"))
        return Explanation(self.kb, name, source_id, is_included, reason)

    def _walk(self, named: NamedCollection | None, root: str, prefix: str, parts: list[str]) -> tuple[bool, str]:
        """Follow the path from the folder of the collection, as a sync does."""
        selection = named.make_selection() if named is not None else None
        folder, reason = root, "the folder is read"
        for number, part in enumerate(parts):
            path, shown = prefix + part, "/".join(parts[: number + 1])
            try:
                with os.scandir(folder) as scan:
                    entries = {entry.name: entry for entry in scan}
            except OSError as fault:
                return False, f"{folder} cannot be read: {files.describe_os_error(fault)}"
            if part not in entries:
                return False, f"{shown} does not exist"
            if part.startswith("."):
                return False, f"{shown} is hidden: its name begins with a dot"
            entry = entries[part]
            is_folder = entry.is_dir(follow_symlinks=False)
            if selection is not None:
                present = [file for file in selection.ignore_files if file in entries]
                selection = selection.with_ignore_files(folder, present, prefix) if present else selection
                is_excluded, reason = _apply_rules(selection, path, part, is_folder=is_folder)
                if is_excluded:
                    return False, f"{shown} is excluded by {reason}"
            if not is_folder:
                return self._explain_file(entry, path, root, reason)
            if (owner := next((other for other, place in self.roots.items() if place == entry.path), None)) is not None:
                return False, f"{shown} is the folder of {f'the collection {owner}' if owner else 'kb.sources_dir'}"
            selection = selection.enter(path, part) if selection is not None else None
            folder, prefix = entry.path, f"{path}/"
        return True, reason

    def _explain_file(self, entry: os.DirEntry[str], path: str, root: str, rule: str) -> tuple[bool, str]:
        fault = find_entry_fault(entry, path, root)
        if fault is not None:
            return False, fault
        if not entry.is_file():
            return False, "not a regular file"
        seen = entry.stat()
        llms = [self.paths.llms.path] if self.paths.llms is not None else []
        if any(os.path.realpath(own) == entry.path for own in (*self.paths.own_files, *llms)):
            return False, "it is a configuration or output file of pair"
        if self.state.is_skipped(path, seen.st_size, seen.st_mtime_ns):
            return False, str(self.state.skipped[path]["reason"])
        if seen.st_size > self.max_bytes:
            return False, f"larger than {self.max_bytes:,} bytes (kb.max_source_bytes)"
        if path in self.state.problems:
            return True, f"{rule}; failing: {self.state.problems[path]}"
        return True, f"{rule}; {'synced' if path in self.state.sources else 'not synced yet'}"


def _apply_rules(selection: FileSelection, path: str, name: str, *, is_folder: bool) -> tuple[bool, str]:
    """Return whether rules exclude an entry, and which rule decides."""
    rule = selection.find_rule(path, name, is_folder=is_folder)
    if rule is not None and not rule.is_negated:
        return True, str(rule)
    kept = f"kept by {rule}" if rule is not None else "no rule excludes it"
    if is_folder and selection.enter(path, name) is None:
        return True, selection.explain_missing(path, name, is_folder=True)
    if is_folder or not selection.include.rules:
        return False, kept
    if not selection.includes(path, name):
        return True, selection.explain_missing(path, name)
    included = selection.include.find(path, name, is_folder=False)
    return (
        False,
        f"included by {included}" if included is not None else f"its folder is included by {selection.included_by}",
    )
