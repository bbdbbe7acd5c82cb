from pathlib import Path

import pytest

from support.engine_parts import MANY_SHARDS, Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def many(tmp_path: Path) -> Ground:
    """With settings under which a few documents become many shards."""
    return Ground(tmp_path, **MANY_SHARDS)
