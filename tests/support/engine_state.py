"""How a KB on a folder stands: what its manifest says and which shards are there."""

import json
from typing import Any

from support.engine_parts import Ground, read_blob


def manifest_of(ground: Ground, kb_id: str = "default") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(read_blob(ground.blobs(), f"{kb_id}.duckdb.manifest.json"))
    return value


def folders_of(ground: Ground) -> set[str]:
    return {blob.key.rpartition("/")[0] for blob in ground.blobs().list("default.duckdb.shards/")}


def live_folders_of(ground: Ground) -> set[str]:
    return {shard["key"] for shard in manifest_of(ground)["shards"]}
