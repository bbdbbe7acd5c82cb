"""Settings as working parts: the only place that names concrete adapters.

Network code and the engine are imported by the function that needs them, so that work on local files does not wait.
"""

from pair.clock import SystemClock
from pair.evaluation.judged_set import JudgedSet, Selection, read_judged_set
from pair.evaluation.measuring import Measured, measure, measure_all
from pair.sources.contract import TakenIndex
from pair.sources.inspection import Description
from pair.sources.installation import InstallReport, Request
from pair.sources.lock import LOCK_NAME
from pair.sources.package import Label, PackagedIndex
from pair.sources.publishing import PublishReport
from pair.sync.planning import SyncStatus
from pair.sync.report import SyncPlan, SyncReport
from pair.wiring.embedders import SettingChange, changes_to, with_embedder
from pair.wiring.engine import DEFAULT_KB, inputs, open_kb, temporary_kb
from pair.wiring.locks import LockDesk, LockedInstall, LockReport
from pair.wiring.publication import publish
from pair.wiring.sources import Desk, Packaging, SilentObserver, install, resolve_source
from pair.wiring.sync import SilentSyncObserver, SyncDesk

__all__ = [
    "DEFAULT_KB",
    "LOCK_NAME",
    "Description",
    "Desk",
    "InstallReport",
    "JudgedSet",
    "Label",
    "LockDesk",
    "LockReport",
    "LockedInstall",
    "Measured",
    "PackagedIndex",
    "Packaging",
    "PublishReport",
    "Request",
    "Selection",
    "SettingChange",
    "SilentObserver",
    "SilentSyncObserver",
    "SyncDesk",
    "SyncPlan",
    "SyncReport",
    "SyncStatus",
    "SystemClock",
    "TakenIndex",
    "changes_to",
    "inputs",
    "install",
    "measure",
    "measure_all",
    "open_kb",
    "publish",
    "read_judged_set",
    "resolve_source",
    "temporary_kb",
    "with_embedder",
]
