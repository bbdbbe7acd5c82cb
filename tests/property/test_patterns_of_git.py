"""Ignore files have the meaning of git: random patterns over random trees, compared with `git ls-files`."""

import random
import subprocess
from pathlib import Path

import pytest

from pair.sync.collection import CollectionSettings
from pair.sync.discover import NamedCollection, SyncPaths, discover
from support.command import write_files

PARTS = ("a", "b", "ab", "*", "**", "a*", "*.md", "?", "[ab]", "[!a]", "x.md", r"\*", r"a\ ", "[a-c]x", "**a", "[")
NAMES = ("a", "b", "ab", "x.md", "ax", "cx", "a ", "*", "[", "aa.md")
TREES = 40


def make_path(chance: random.Random, parts: tuple[str, ...]) -> str:
    return "/".join(chance.choices(parts, k=chance.randint(1, 4)))


def make_pattern(chance: random.Random) -> str:
    start, end = chance.choice(["", "", "/", "!", "!/"]), chance.choice(["", "", "/"])
    # Not tested: a class that is closed only after a slash.
    return start + make_path(chance, PARTS).replace("[/", "[") + end


@pytest.mark.parametrize("seed", range(4))
def test_ignore_files_select_what_git_selects(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(TREES):
        folder = tmp_path / str(number)
        files = {make_path(chance, NAMES): "text" for _ in range(25)}
        kept = {path: text for path, text in files.items() if not any(each.startswith(f"{path}/") for each in files)}
        patterns = [make_pattern(chance) for _ in range(chance.randint(1, 4))]
        write_files(folder, {**kept, ".gitignore": "\n".join(patterns)})
        subprocess.run(["git", "init", "-q", folder], check=True)
        listed = subprocess.run(
            ["git", "-C", folder, "ls-files", "-o", "-z", "--exclude-standard"], check=True, capture_output=True
        ).stdout.decode()
        named = NamedCollection("c", CollectionSettings(path=str(folder)), folder, "config.yaml:3")
        paths = SyncPaths(folder, folder, folder, folder, folder, collections=(named,), is_named_only=True)
        found = {path.removeprefix("c/") for path in discover(paths).collections["c"].files.files}
        assert found == set(listed.split("\0")) - {"", ".gitignore"}, patterns
