from pathlib import Path

import pytest

from pair.sync.rules import SyncSettings
from support.sync_parts import Project
from support.sync_runs import INTERVAL, TICK


@pytest.fixture
def project(tmp_path: Path) -> Project:
    policy = SyncSettings(
        url_refresh_min_interval_seconds=INTERVAL, runtime_refresh_tick_seconds=TICK, max_source_bytes=10_000
    )
    return Project(tmp_path, policy)
