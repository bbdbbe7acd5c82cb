"""A knowledge base that installs like a package.

The names below are loaded on first use, so that `import pair` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pair import errors as errors
    from pair import librarians as librarians
    from pair.client import connect
    from pair.errors import PairError
    from pair.kb.installer import install, resolve_source
    from pair.kb.kb import KnowledgeBase
    from pair.kb.open import open_kb as open  # noqa: A004 - pair.open reads as what it does
    from pair.librarians.contract import Citation, Context, Librarian, Response
    from pair.settings import Settings
    from pair.sync.report import SyncReport
    from pair.values import Document, Hit, KbSource

__version__ = "0.1.0"

__all__ = [
    "Citation",
    "Context",
    "Document",
    "Hit",
    "KbSource",
    "KnowledgeBase",
    "Librarian",
    "PairError",
    "Response",
    "Settings",
    "SyncReport",
    "connect",
    "errors",
    "install",
    "open",
    "resolve_source",
]

_MODULES = {
    "pair.client": ("connect",),
    "pair.errors": ("PairError",),
    "pair.kb.installer": ("install", "resolve_source"),
    "pair.kb.kb": ("KnowledgeBase",),
    "pair.librarians.contract": ("Citation", "Context", "Librarian", "Response"),
    "pair.settings": ("Settings",),
    "pair.sync.report": ("SyncReport",),
    "pair.values": ("Document", "Hit", "KbSource"),
}


if not TYPE_CHECKING:  # A type checker still refuses a misspelt name.

    def __getattr__(name: str) -> Any:
        if name in {"errors", "librarians"}:
            return import_module(f"pair.{name}")
        if name == "open":
            return import_module("pair.kb.open").open_kb
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module 'pair' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
