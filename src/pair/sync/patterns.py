"""Selection of the files of a folder: `include` and `exclude` patterns, `.gitignore` and `.pairignore` files.

Patterns have the syntax and meaning of gitignore. As in git, entries are matched while their folder is listed. So an
excluded folder is never listed, and no pattern can include a file below it.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

IGNORE_FILES = (".gitignore", ".pairignore")
"""The ignore files of a folder; the last one has the highest precedence."""
_MOST_IGNORE_BYTES = 1_000_000
_TRAILING_SPACE = re.compile(r"(?<!\\)\s+$")


class Rule(NamedTuple):
    """A pattern, and the place where it was read."""

    matches: Callable[[str], object]
    """An expression for the whole name of an entry, or for its whole path if the pattern has a slash."""
    is_negated: bool
    is_for_folders: bool
    is_for_paths: bool
    text: str
    where: str
    folders: str
    """An expression for the folders that may contain a match, relative to the folder of the pattern."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class RuleSet(NamedTuple):
    """The rules of one place, the last one first."""

    rules: tuple[Rule, ...]
    start: int = 0
    """The first character of a path that patterns match: after the folder of the ignore file."""
    above: str = ""
    """The prefix of paths, for an ignore file above the folder of the collection."""

    def find(self, path: str, name: str, *, is_folder: bool) -> Rule | None:
        """Return the rule that decides about an entry."""
        subject = ""
        for rule in self.rules:
            if rule.is_for_folders and not is_folder:
                continue
            if rule.is_for_paths:
                subject = subject or self.above + path[self.start :]
                if rule.matches(subject):
                    return rule
            elif rule.matches(name):
                return rule
        return None


def make_rules(lines: Iterable[tuple[str, str]], *, ignore_case: bool = False) -> RuleSet:
    """Return the rules of patterns, each given with its place."""
    rules = (_make_rule(line, where, ignore_case=ignore_case) for line, where in lines)
    return RuleSet(tuple(rule for rule in rules if rule is not None)[::-1])


def _make_rule(line: str, where: str, *, ignore_case: bool) -> Rule | None:
    """Return the rule of a line; None for a comment and a blank line."""
    text = _TRAILING_SPACE.sub("", line.rstrip("\r\n"))
    is_negated = text.startswith("!")
    pattern = text[1:] if is_negated else text
    is_for_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    if not pattern or text.startswith("#"):
        return None
    parts = list(_translate(pattern))
    expression = "/".join(parts).replace("\0/", "(?:.*/)?")
    folders = _translate_folders(parts) if "/" in pattern else ".*"
    try:
        compiled = re.compile(expression, re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    except re.error:  # For git, it matches nothing.
        compiled, folders = re.compile("(?!)"), "(?!)"
    return Rule(compiled.fullmatch, is_negated, is_for_folders, "/" in pattern, text, where, folders)


def _translate(pattern: str) -> Iterator[str]:
    """Yield the expression of each part between slashes; NUL for `**`, which matches any number of folders."""
    parts = pattern.removeprefix("/").split("/")
    for number, part in enumerate(parts):
        if part == "**" and "/" in pattern:
            yield ".+" if number == len(parts) - 1 else "\0"
        else:
            yield _translate_part(part)


def _translate_folders(parts: Sequence[str]) -> str:
    """Return the expression of the folders below which a pattern with a slash can match something."""
    heads = list(itertools.takewhile(lambda part: part not in {"\0", ".+"}, parts))
    if len(heads) == len(parts):
        expression, heads = "", heads[:-1]
    else:
        expression = "(?:/.*)?" if heads else ".*"
    if not heads:
        return expression or "(?!)"
    expression = heads[-1] + expression
    for head in reversed(heads[:-1]):
        expression = f"{head}(?:/{expression})?"
    return expression


def _translate_part(part: str) -> str:
    made, position = [], 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            made.append("[^/]*")
        elif character == "?":
            made.append("[^/]")
        elif character == "[" and (end := part.find("]", position + 1 + part.startswith("!", position))) > 0:
            listed = part[position:end].replace("\\", "\\\\").replace("[", "\\[")
            listed = f"^/{listed[1:]}" if listed[0] in "!^" else listed
            made.append(f"[{listed}]")
            position = end + 1
        elif character == "[":
            return "(?!)"  # In git, a class that is not closed matches nothing.
        else:
            if character == "\\" and position < len(part):
                character = part[position]
                position += 1
            made.append(re.escape(character))
    return re.sub(r"(?:\[\^/\]\*){2,}", "[^/]*", "".join(made))


@dataclass(frozen=True)
class FileSelection:
    """The rules for the entries of a folder. The rules of a deeper ignore file take precedence."""

    include: RuleSet
    exclude: RuleSet
    ignored: tuple[RuleSet, ...] = ()
    """Rules of ignore files, the deepest first."""
    ignore_files: tuple[str, ...] = IGNORE_FILES
    ignore_case: bool = False
    included_by: Rule | None = None
    """The pattern of `include` that matches a folder above, so that all files below it are included."""

    def find_exclusion(self, path: str, name: str, *, is_folder: bool) -> Rule | None:
        """Return the last rule about an entry in `exclude` or ignore files; None if no rule excludes it."""
        if not self.exclude.rules and not self.ignored:
            return None
        rule = self.find_rule(path, name, is_folder=is_folder)
        return rule if rule is not None and not rule.is_negated else None

    def find_rule(self, path: str, name: str, *, is_folder: bool) -> Rule | None:
        """Return the rule in `exclude` or ignore files that decides about an entry; it may be a negated one."""
        for rules in (self.exclude, *self.ignored):
            rule = rules.find(path, name, is_folder=is_folder)
            if rule is not None:
                return rule
        return None

    def includes(self, path: str, name: str) -> bool:
        """Return whether `include` matches a file or a folder above it."""
        if not self.include.rules:
            return True
        rule = self.include.find(path, name, is_folder=False) or self.included_by
        return rule is not None and not rule.is_negated

    def enter(self, path: str, name: str) -> "FileSelection | None":
        """Return the selection for a folder in this one; None if no pattern of `include` can match a file below it."""
        if not self.include.rules:
            return self
        rule = self.include.find(path, name, is_folder=True)
        included_by = rule or self.included_by
        if included_by is not None and included_by.is_negated:
            included_by = None
        if included_by is None and self._match_folder(path[self.include.start :]) is None:
            return None
        return self if included_by is self.included_by else replace(self, included_by=included_by)

    @functools.cached_property
    def _match_folder(self) -> Callable[[str], object]:
        """Return whether a pattern of `include` may match a file in this folder."""
        folders = "|".join(rule.folders for rule in self.include.rules if not rule.is_negated) or "(?!)"
        return re.compile(folders, re.DOTALL | (re.IGNORECASE if self.ignore_case else 0)).fullmatch

    def explain_missing(self, path: str, name: str, *, is_folder: bool = False) -> str:
        """Return the pattern that keeps an entry from being included, or all patterns if none matches it."""
        rule = self.include.find(path, name, is_folder=is_folder)
        if rule is not None and rule.is_negated:
            return str(rule)
        patterns = ", ".join(rule.text for rule in reversed(self.include.rules))
        return f"{self.include.rules[0].where}: no pattern of include matches ({patterns})"

    def with_ignore_files(self, folder: str, names: Sequence[str], prefix: str) -> "FileSelection":
        """Return the selection with the ignore files of a folder. `names`: the names of the existing ignore files."""
        added = [read_ignore_file(Path(folder, name), len(prefix)) for name in reversed(names)]
        return replace(self, ignored=(*(rules for rules in added if rules.rules), *self.ignored))


def read_ignore_file(path: Path, start: int, above: str = "") -> RuleSet:
    """Return the rules of an ignore file; none for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_IGNORE_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return RuleSet(())
    lines = ((line, f"{path}:{number}") for number, line in enumerate(content.split("\n"), 1))
    return make_rules(lines)._replace(start=start, above=above)


def read_ignore_files_above(folder: Path, start: int) -> tuple[RuleSet, ...]:
    """Return the rules of the git repository that a folder is in, from above the folder: the deepest first."""
    above, found = "", []
    for parent in (folder, *folder.parents):
        if parent != folder:
            found += [read_ignore_file(parent / name, start, above) for name in reversed(IGNORE_FILES)]
        if (parent / ".git").exists():
            return tuple(rules for rules in found if rules.rules)
        above = f"{parent.name}/{above}"
    return ()
