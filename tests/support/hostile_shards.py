"""Shards from an attacker: arbitrary changes of their files, with matching hashes and sizes.

As a program, it tries many changes in one process with little memory: support.hostile_shards FOLDER BEGIN END
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import duckdb

from pair import errors
from pair.engine.format.array_file import ShardFile
from pair.engine.format.manifest import (
    FileRole,
    Manifest,
    ShardRef,
    from_bytes,
    hash_files,
    manifest_key,
    shards_prefix,
    to_bytes,
)
from pair.kb.kb import KnowledgeBase
from pair.values import Document
from support.engine_parts import DIMENSION, Ground, numbered

Change = Callable[[bytes], bytes]
ROLES: tuple[FileRole, ...] = ("rows", "search", "ids", "keywords", "graph")
_MEMORY_BYTES = 1_500_000_000
_CPU_SECONDS = 20


# ── a store with a changed shard ───────────────────────────────────────────────────────────────────


def make_ground(folder: Path, **changes: Any) -> Ground:
    """Make a KB with one shard of 24 documents and their graph."""
    ground = Ground(folder, graph="text", **changes)
    with ground.open() as kb:
        kb.upsert(
            [*numbered(24), Document("ü/é", "Grüße aus dem Hafen: Anna Berg met Karl Stein. " * 4, title="Hafen")]
        )
    return ground


def read_manifest(ground: Ground) -> Manifest:
    key = manifest_key("default")
    return from_bytes((ground.store / key).read_bytes(), key)


def change_shard(ground: Ground, role: FileRole, change: Change) -> ShardRef:
    """Change a file of the first shard, rename the shard by its new hash, and update the manifest."""
    manifest = read_manifest(ground)
    before = manifest.shards[0]
    content = change((ground.store / before.key(role)).read_bytes())
    described = {**before.files, role: ShardFile(len(content), hashlib.sha256(content).hexdigest())}
    after = dataclasses.replace(before, folder=shards_prefix("default") + hash_files(described), files=described)
    (ground.store / after.folder).mkdir(parents=True, exist_ok=True)
    for each in before.files:
        if each != role and after.folder != before.folder:
            shutil.copyfile(ground.store / before.key(each), ground.store / after.key(each))
    if after.folder != before.folder:
        (ground.store / after.key(role)).write_bytes(content)
    put_manifest(ground, dataclasses.replace(manifest, shards=(after, *manifest.shards[1:])))
    return after


def put_manifest(ground: Ground, manifest: Manifest) -> None:
    path = ground.store / manifest_key("default")
    path.chmod(0o600)
    path.write_bytes(to_bytes(manifest))


def change_rows(content: bytes, folder: Path, statements: str) -> bytes:
    """Return a rows file after running these statements in it."""
    path = folder / "changed.duckdb"
    path.write_bytes(content)
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute(statements)
    changed = path.read_bytes()
    path.unlink()
    return changed


def change_header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a file of arrays with a changed header and the same sections."""
    size = int.from_bytes(content[8:16], "little")
    header = json.loads(content[16 : 16 + size])
    change(header)
    written = json.dumps(header).encode()
    written += b" " * (-(16 + len(written)) % 64)
    return content[:8] + len(written).to_bytes(8, "little") + written + content[16 + size :]


def change_section(content: bytes, name: str, change: Change) -> bytes:
    """Return a file of arrays in which one section has other bytes of the same length."""
    size = int.from_bytes(content[8:16], "little")
    section = json.loads(content[16 : 16 + size])[name]
    begin = 16 + size + section["offset"]
    changed = change(content[begin : begin + section["size"]])
    return (
        content[:begin] + changed.ljust(section["size"], b"\0")[: section["size"]] + content[begin + section["size"] :]
    )


# ── changes at random ──────────────────────────────────────────────────────────────────────────────

_EXTREMES = [
    b"\0" * 8,
    b"\xff" * 8,
    b"\x01" + b"\0" * 7,
    b"\xff\xff\xff\x7f" * 2,
    b"\0\0\xc0\x7f\0\0\xc0\x7f",
    b"\0\0\x80\x7f" * 2,
]
_LIES: list[Any] = [
    0,
    1,
    -1,
    2**31,
    2**40,
    2**63,
    None,
    "x",
    [],
    [0],
    [2**40],
    [[["", "O"]]],
    [["", "<u8"]],
    [["", "V0"]],
]
_STATEMENTS = [
    "UPDATE docs SET doc = doc + 1000",
    "UPDATE docs SET doc = -1",
    "UPDATE docs SET doc = NULL WHERE doc = 1",
    "UPDATE docs SET text = NULL",
    "UPDATE docs SET metadata = '[1'",
    "UPDATE docs SET content_hash = 'x'",
    "DELETE FROM docs WHERE doc > 3",
    "UPDATE chunks SET start_at = -5",
    "UPDATE chunks SET end_at = 1000000, doc = 2000000",
    "UPDATE doc_metadata SET doc = 99999",
    "UPDATE doc_entities SET doc = -7, weight = 'nan'",
    "UPDATE edges SET chunk_number = NULL, src = NULL",
    "INSERT INTO doc_metadata SELECT 1, 'k', 't', NULL FROM range(3000000)",
    "INSERT INTO docs SELECT 1, 'a', '', '', '', 'x', '{}', '' FROM range(3000000)",
    "ALTER TABLE docs ADD COLUMN more INTEGER",
    "ALTER TABLE docs RENAME TO hidden; CREATE VIEW docs AS SELECT * FROM hidden",
]


def flip(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(dice.choice([1, 1, 4, 32])):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content))
    return dice.choice([content[:place], content[place:], content + content[:place], content[: place // 64 * 64], b""])


def splice(content: bytes, dice: random.Random) -> bytes:
    one, other, size = (dice.randrange(len(content)) for _ in range(3))
    return content[:one] + content[other : other + size % 4096] + content[one + size % 4096 :]


def lie_in_header(content: bytes, dice: random.Random) -> bytes:
    def change(header: dict[str, Any]) -> None:
        section = header[dice.choice(sorted(header))]
        name = dice.choice(["offset", "size", "type", "shape", "drop", "swap"])
        if name == "drop":
            header.pop(dice.choice(sorted(header)))
        elif name == "swap":
            one, other = dice.choice(sorted(header)), dice.choice(sorted(header))
            header[one], header[other] = header[other], header[one]
        elif name in {"offset", "size"} and dice.random() < 0.5:
            section[name] += dice.choice([-64, -8, -4, -1, 1, 4, 8, 64, 4096])
        else:
            section[name] = dice.choice(_LIES)

    return change_header(content, change)


def lie_in_values(content: bytes, dice: random.Random) -> bytes:
    """Replace one value or all values by an extreme or a copied one."""
    header = json.loads(content[16 : 16 + int.from_bytes(content[8:16], "little")])
    name = dice.choice([each for each in sorted(header) if header[each]["size"]] or ["none"])
    if name == "none":
        return content

    def change(section: bytes) -> bytes:
        value = dice.choice([*_EXTREMES, section[-8:], dice.randbytes(8)])
        if dice.random() < 0.3:
            return (value * (len(section) // 8 + 1))[: len(section)]
        place = dice.randrange(len(section)) // 4 * 4
        return (section[:place] + value[: dice.choice([1, 4, 8])] + section[place + 8 :])[: len(section)]

    return change_section(content, name, change)


def damage(content: bytes, role: FileRole, dice: random.Random, folder: Path) -> bytes:
    if role == "rows" and dice.random() < 0.5:
        return change_rows(content, folder, dice.choice(_STATEMENTS))
    ways = [flip, cut, splice]
    if role != "rows":
        ways += [lie_in_header, lie_in_header, lie_in_values, lie_in_values, lie_in_values, lie_in_values]
    return dice.choice(ways)(content, dice)


# ── trials ─────────────────────────────────────────────────────────────────────────────────────────


def use(kb: KnowledgeBase, folder: Path) -> Iterator[Callable[[], object]]:
    """Call every operation that reads a shard."""
    for mode in ("hybrid", "keyword", "vector", "graph", "adaptive"):
        yield lambda mode=mode: [hit.to_json() for hit in kb.search("rivers Anna Berg", mode=mode, limit=30)]  # type: ignore[misc]
    yield lambda: kb.search("riv* bridges", filter={"number": {"gte": 3}, "subject": {"prefix": "r"}}, limit=30)
    yield lambda: kb.search_vector([0.25] * DIMENSION, limit=30)
    yield lambda: [kb.document(each.id) for each in kb.documents(limit=100)]
    yield lambda: [kb.document(name) for name in ("doc-0003", "ü/é")]
    yield lambda: kb.graph.around_document("ü/é")
    yield lambda: kb.graph.around_entity("anna berg")
    yield lambda: kb.backup.export(folder / "out.jsonl")
    yield kb.maintenance.fsck
    yield lambda: kb.upsert(numbered(3, begin=2))
    yield lambda: kb.maintenance.compact(everything=True)
    yield lambda: kb.maintenance.fsck(repair=True)


def edit_json(value: Any, dice: random.Random) -> None:
    """Replace a part of the value by a false one."""
    container, key = value, dice.choice(sorted(value))
    while isinstance(container[key], dict | list) and container[key] and dice.random() < 0.8:
        container = container[key]
        key = dice.choice(sorted(container)) if isinstance(container, dict) else dice.randrange(len(container))
    deep = json.loads("[" * 900 + "]" * 900)
    container[key] = dice.choice([*_LIES, 3, 0.5, "../x", "\ud800", [[0.1] * 3], {"a": deep}, "A" * 40, "eJwDAAAAAAE="])


def damage_manifest(content: bytes, dice: random.Random) -> bytes:
    value = json.loads(content)
    for _ in range(dice.choice([1, 1, 3])):
        edit_json(value["shards"][0] if dice.random() < 0.6 and value.get("shards") else value, dice)
    value.pop("content_sha256", None)
    sealed = json.dumps(value).encode()[:-1]
    return sealed + f',"content_sha256":"{hashlib.sha256(sealed).hexdigest()}"}}\n'.encode()


def damage_lines(content: bytes, dice: random.Random) -> bytes:
    """Return an export with changed documents and a right hash, or one with arbitrary changed bytes."""
    if dice.random() < 0.3:
        return dice.choice([flip, cut, splice])(content, dice)
    lines = [json.loads(line) for line in content.splitlines()]
    for _ in range(dice.choice([1, 2])):
        edit_json(dice.choice(lines[:-1]), dice)
    return end_lines([json.dumps(line).encode() + b"\n" for line in lines[:-1]])


def end_lines(lines: list[bytes]) -> bytes:
    """Return an export of these lines with their trailer."""
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    return b"".join(lines) + json.dumps({"end": {"documents": len(lines) - 1, "sha256": digest}}).encode() + b"\n"


def attempt(act: Callable[[], object]) -> errors.PairError | None:
    try:
        act()
    except errors.PairError as fault:
        json.dumps(fault.to_json())
        return fault
    return None


def try_one(number: int, pristine: Path, work: Path) -> None:
    """Apply one change and use the shard. Raises any exception except PairError."""
    dice = random.Random(number)
    shutil.copytree(pristine, work)
    ground = Ground(work, graph="text")
    target: FileRole | Literal["manifest", "lines"] = dice.choice([*ROLES, *ROLES, "manifest", "lines"])
    if target == "lines":
        content = damage_lines((work / "whole.jsonl").read_bytes(), dice)
        path = work / "changed.jsonl"
        path.write_bytes(gzip.compress(content, 1) if dice.random() < 0.5 else content)
        with Ground(work / "other", graph="text").open() as kb:
            for embed in (False, True):
                attempt(lambda embed=embed: kb.backup.import_from(path, replace_all=True, embed=embed))  # type: ignore[misc]
                for act in use(kb, work):
                    attempt(act)
        return
    if target == "manifest":
        path = ground.store / manifest_key("default")
        path.chmod(0o600)
        path.write_bytes(damage_manifest(path.read_bytes(), dice))
    else:
        change_shard(ground, target, lambda content: damage(content, target, dice, work))
    with ground.open() as kb:
        for act in use(kb, work):
            attempt(act)
    with Ground(work / "other", graph="text").open() as kb:
        if (work / "out.zip").exists():
            attempt(lambda: kb.backup.import_from(work / "out.zip"))


def limit_memory() -> None:
    """Limit the memory that is mapped from now on: libraries reserve more than they use."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _MEMORY_BYTES, mapped + _MEMORY_BYTES))


def run(folder: Path, begin: int, end: int) -> int:
    """Run the trials. The file `number` has the current one, so that a crash shows it."""
    pristine = folder / "pristine"
    with make_ground(pristine).open() as kb:
        kb.backup.export(pristine / "whole.jsonl")
        for act in use(kb, folder):
            if (fault := attempt(act)) is not None:
                sys.stdout.write(f"sound, and refused: {fault.code} {fault}\n")
                return 1
    shutil.rmtree(pristine / "store")
    shutil.rmtree(pristine / "cache")
    make_ground(pristine).open().close()
    limit_memory()
    failed = 0
    for number in range(begin, end):
        (folder / "number").write_text(str(number))
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        try:
            try_one(number, pristine, folder / "work")
        except Exception:  # noqa: BLE001 - whatever it is, it should have been a PairError
            failed += 1
            sys.stdout.write(f"number {number}:\n{traceback.format_exc()}")
            sys.stdout.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)
        shutil.rmtree(folder / "work")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
