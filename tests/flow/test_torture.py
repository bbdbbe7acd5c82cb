"""The short form of the stress test `python -m support.torture 120`."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from support.torture import torture

SECONDS = float(os.environ.get("PAIR_TORTURE_SECONDS", "20"))


def test_servers_killed_redis_restarted_and_s3_stopped_lose_nothing_and_answer_nothing_wrong(
    tmp_path: Path, record_property: Callable[[str, object], None]
):
    counts = torture(SECONDS, tmp_path)
    record_property("note", f"{SECONDS:g} s of torture: {json.dumps(counts.to_json(), sort_keys=True)}")
    assert counts.faults == []
    assert min(counts.done[each] for each in ("written", "deleted", "read", "searched")) > 0, counts.done
    assert min(counts.done[each] for each in ("servers killed", "Redis restarted", "S3 stopped")) > 0
