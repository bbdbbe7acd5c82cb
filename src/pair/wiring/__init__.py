"""Settings as working parts: the only place that names concrete adapters.

Network code and the engine are imported by the function that needs them, so that work on local files does not wait.
"""

from pair.sources.inspection import Description
from pair.sources.installation import InstallReport, Request
from pair.sources.package import Label
from pair.sync.planning import SyncStatus
from pair.sync.report import SyncPlan, SyncReport
from pair.wiring.engine import DEFAULT_KB, inputs, open_kb
from pair.wiring.sources import Desk, SilentObserver, install, resolve_source
from pair.wiring.sync import SilentSyncObserver, SyncDesk

__all__ = [
    "DEFAULT_KB",
    "Description",
    "Desk",
    "InstallReport",
    "Label",
    "Request",
    "SilentObserver",
    "SilentSyncObserver",
    "SyncDesk",
    "SyncPlan",
    "SyncReport",
    "SyncStatus",
    "inputs",
    "install",
    "open_kb",
    "resolve_source",
]
