"""Open model files of other distributions without importing them, and check them before use."""

import hashlib
import importlib.util
import mmap
from dataclasses import dataclass
from pathlib import Path

from pair import errors


@dataclass(frozen=True)
class BundledFile:
    package: str
    """The importable name of the package that has the file. It is never imported."""
    path: str
    """Below the folder of the package."""
    sha256: str
    requirement: str
    """What pip is told, to have the file."""


def open_mapped(file: BundledFile) -> mmap.mmap:
    """Return the read-only content. Raises E305 when the file is missing or is not the expected one."""
    path = _locate(file)
    try:
        with path.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as fault:
        raise errors.model_file_unusable(str(path), "it cannot be read", file.requirement) from fault
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise errors.model_file_unusable(str(path), "its SHA-256 is not the expected one", file.requirement)
    return content


def _locate(file: BundledFile) -> Path:
    specification = importlib.util.find_spec(file.package)
    folders = specification.submodule_search_locations if specification else None
    if not folders:
        raise errors.model_file_unusable(
            f"{file.package}/{file.path}", "the package that has it is not installed", file.requirement
        )
    return Path(next(iter(folders)), file.path)


def rate_tokens(text: str, tokens: int) -> float:
    """Return from 0 to 1 how well a tokenizer knows a text that it cuts into so many tokens.

    In a language that a model was made with, a token stands for two characters and more; one that has to be spelled
    out, character by character or byte by byte, says next to nothing to it.
    """
    characters = sum(map(str.isalnum, text))
    return min(max(characters / tokens - 1.0, 0.0), 1.0) if tokens else 0.0
