"""A knowledge base that installs like a package.

The names below are loaded on first use, so that `import pair` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pair import errors
    from pair.errors import PairError
    from pair.settings import Settings
    from pair.sync.report import SyncReport
    from pair.values import KbSource
    from pair.wiring import install, resolve_source

__version__ = "0.1.0"

__all__ = ["KbSource", "PairError", "Settings", "SyncReport", "errors", "install", "resolve_source"]

_HOMES = {
    "KbSource": "pair.values",
    "PairError": "pair.errors",
    "Settings": "pair.settings",
    "SyncReport": "pair.sync.report",
    "install": "pair.wiring",
    "resolve_source": "pair.wiring",
}


if not TYPE_CHECKING:  # so that a type checker still refuses a misspelt name

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("pair.errors")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'pair' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
