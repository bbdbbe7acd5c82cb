"""Small files that claim to hold more data than any memory.

As a program, it opens one under a memory limit and prints the error code: support.memory_bombs NAME FOLDER
"""

import base64
import dataclasses
import gzip
import hashlib
import json
import resource
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from pair import errors
from pair.engine.format.manifest import from_bytes, manifest_key, to_bytes
from support.engine_parts import Ground, numbered
from support.hostile_shards import (
    change_section,
    change_shard,
    end_lines,
    limit_memory,
    make_ground,
    read_manifest,
)

_HEADER = {
    "format": "pair-documents", "format_version": 1, "kb_id": "default", "manifest_version": 1,
    "embedder": "ngram-16-v1", "dimension": 16, "hashed_as": "", "documents": 1, "chunks": 0, "vectors": True,
}  # fmt: skip


def merge_a_graph(folder: Path) -> None:
    """Merge graphs of which each row claims to name 67 million entities."""
    ground = make_ground(folder)
    starts = b"".join(min(number << 26, (1 << 32) - 1).to_bytes(4, "little") for number in range(10_000))

    def change(section: bytes) -> bytes:
        return starts[: len(section)]

    change_shard(ground, "graph", lambda content: change_section(content, "row_starts", change))
    with ground.open() as kb:
        kb.upsert(numbered(1, begin=50))  # a second shard to merge with
        limit_memory()
        kb.maintenance.compact(everything=True)


def copy_keywords(folder: Path) -> None:
    """Copy a keyword file that claims to cover 10^12 rows."""
    ground = make_ground(folder)

    def change(section: bytes) -> bytes:
        return section[:8] + (1 << 40).to_bytes(8, "little") + section[16:]

    change_shard(ground, "keywords", lambda content: change_section(content, "about", change))
    with ground.open() as kb:
        kb.upsert(numbered(1, begin=50))  # a second shard to merge with
        limit_memory()
        kb.maintenance.compact(everything=True)


def import_packed_lines(folder: Path) -> None:
    """Import 240 kB that unpack to 240 MB with 80 million lists."""
    line = b'{"id":[' + b"[]," * 80_000_000 + b"0]}\n"
    content = end_lines([json.dumps(_HEADER).encode() + b"\n", line])
    (folder / "bomb.jsonl.gz").write_bytes(gzip.compress(content))
    del line, content
    with Ground(folder).open() as kb:
        limit_memory()
        kb.backup.import_from(folder / "bomb.jsonl.gz")


def import_lines(folder: Path) -> None:
    """Import 90 MB with 30 million lists."""
    line = b'{"id":[' + b"[]," * 30_000_000 + b"0]}\n"
    (folder / "bomb.jsonl").write_bytes(end_lines([json.dumps(_HEADER).encode() + b"\n", line]))
    del line
    with Ground(folder).open() as kb:
        limit_memory()
        kb.backup.import_from(folder / "bomb.jsonl")


def read_a_manifest(folder: Path) -> None:
    """Read a manifest of 40 shards with 268 million deleted documents each."""
    ground = make_ground(folder)
    manifest = read_manifest(ground)
    value = json.loads(to_bytes(dataclasses.replace(manifest, shards=manifest.shards * 40)))
    marks = base64.b64encode(zlib.compress(bytes((1 << 28) // 8), 9)).decode()
    for shard in value["shards"]:
        shard |= {"documents": 1 << 28, "tombstones": marks}
    value.pop("content_sha256")
    sealed = json.dumps(value).encode()[:-1]
    content = sealed + f',"content_sha256":"{hashlib.sha256(sealed).hexdigest()}"}}\n'.encode()
    limit_memory()
    from_bytes(content, manifest_key("default"))


BOMBS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (merge_a_graph, copy_keywords, import_packed_lines, import_lines, read_a_manifest)
}

if __name__ == "__main__":
    try:
        BOMBS[sys.argv[1]](Path(sys.argv[2]))
    except errors.PairError as fault:
        sys.stdout.write(f"{fault.code}\n")
    sys.stderr.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss} kB at most\n")
