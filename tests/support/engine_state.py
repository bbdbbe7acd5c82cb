"""How a KB on a folder stands: what its manifest says, which shards are there, which error comes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pair.errors import PairError
from support.engine_parts import Ground


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PairError) as caught:
        act()
    return caught.value.code


def manifest_of(ground: Ground, kb_id: str = "default") -> dict[str, Any]:
    blob = ground.blobs().get(f"{kb_id}.duckdb.manifest.json")
    assert blob is not None
    value: dict[str, Any] = json.loads(blob.data)
    return value


def folders_of(ground: Ground) -> set[str]:
    return {blob.key.rpartition("/")[0] for blob in ground.blobs().list("default.duckdb.shards/")}


def live_folders_of(ground: Ground) -> set[str]:
    return {shard["key"] for shard in manifest_of(ground)["shards"]}
