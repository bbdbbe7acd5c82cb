"""Is everything there that a KB needs? One check for each part, and what to do where something is missing.

Invariants
    Nothing stays behind: a store and leases are tried with entries of their own, which are removed. What does not exist
    yet is not made.
"""

import contextlib
import dataclasses
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pair import errors, files, folders
from pair.clock import SystemClock
from pair.kb.open import DEFAULT_KB, blob_store, choose_embedder, kind_of_lease, leases_for, open_kb
from pair.kb.server import verifier
from pair.kb.sync import SyncService
from pair.settings import Settings

State = Literal["ok", "note", "failed"]
_LEASE_SECONDS = 10.0
_LITTLE_SPACE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class DoctorCheck:
    name: str
    state: State
    message: str
    code: str = ""
    hints: Sequence[str] = ()
    exit_status: int = field(default=0, repr=False)

    def to_json(self) -> dict[str, Any]:
        told = {key: value for key, value in dataclasses.asdict(self).items() if key != "exit_status"}
        return told | {"hints": list(self.hints)}


def examine(load: Callable[[], Settings]) -> Iterator[DoctorCheck]:
    """Check after check, as they are made. Without settings there is nothing more to look at."""
    try:
        settings = load()
    except errors.PairError as fault:
        yield _failed("configuration", fault)
        return
    yield _configuration("configuration", settings)
    checks = {
        "sources": _sources,
        "store": _store,
        "lease": _lease,
        "cache": _cache,
        "embedder": _embedder,
        "knowledge base": _kb,
        "model": _model,
        "server": _server,
    }
    for name, check in checks.items():
        try:
            yield check(name, settings)
        except errors.PairError as fault:
            yield _failed(name, fault)


def _configuration(name: str, settings: Settings) -> DoctorCheck:
    found = settings.folder_config
    if found is None or not found.requests:
        shown = str(settings.config_path) if settings.config_path else "the defaults: no config.yaml is there"
        return DoctorCheck(name, "ok", shown)
    if found.is_trusted:
        return DoctorCheck(name, "ok", f"{found.path}: trusted")
    ignored = ", ".join(f"{request.key} ({request.where})" for request in found.ignored)
    because = f" ({found.fault})" if found.fault else ""
    return DoctorCheck(name, "note", f"{found.path}: not trusted{because}; ignored: {ignored}", hints=("pair trust",))


def _failed(name: str, fault: errors.PairError) -> DoctorCheck:
    message = f"{fault.message}: {fault.explanation}" if fault.explanation else fault.message
    return DoctorCheck(name, "failed", message, fault.code, tuple(fault.hints), fault.exit_status)


def _sources(name: str, settings: Settings) -> DoctorCheck:
    places = SyncService(settings).places
    found = [str(path) for path in (places.sources_dir, places.links_file) if path is not None and path.exists()]
    if found:
        return DoctorCheck(name, "ok", " and ".join(found))
    hints = (
        f"Put files into {settings.kb.sources_dir}, or: pair install",
        f"List addresses in {settings.kb.links_file_path}",
    )
    return DoctorCheck(name, "note", "there is nothing to sync yet", hints=hints)


def _store(name: str, settings: Settings) -> DoctorCheck:
    from pair.blobs.cas_check import refuse_without_compare_and_swap  # noqa: PLC0415 - only where it is asked for

    address = settings.engine.store
    if _is_folder(address) and not files.expanded(address).exists():
        with files.storage_errors():
            _check_writable(_nearest(files.expanded(address).absolute()))
        return DoctorCheck(name, "ok", f"{address}: made with the first document")
    with contextlib.closing(blob_store(address, settings, SystemClock())) as store:
        refuse_without_compare_and_swap(store, "doctor.", uuid.uuid4().hex)
    return DoctorCheck(name, "ok", f"{address}: reads, writes, and honours conditions")


def _lease(name: str, settings: Settings) -> DoctorCheck:
    address = settings.engine.store
    kind = kind_of_lease(settings, address)
    if kind in {"file", "memory"}:
        return DoctorCheck(name, "ok", f"{kind}: nothing else is needed")
    with contextlib.closing(blob_store(address, settings, SystemClock())) as store:
        leases = leases_for(settings, store, SystemClock())
        with contextlib.closing(leases):
            leases.release(leases.acquire(f"doctor-{uuid.uuid4().hex[:8]}", seconds=_LEASE_SECONDS))
    return DoctorCheck(name, "ok", f"{kind}: taken and given back")


def _cache(name: str, settings: Settings) -> DoctorCheck:
    folder = files.expanded(settings.engine.cache_dir).absolute()
    nearest = _nearest(folder)
    with files.storage_errors():
        _check_writable(nearest)
        free = shutil.disk_usage(nearest).free
    if free < _LITTLE_SPACE_BYTES:
        hints = ("Set engine.cache_dir to a larger disk, or engine.cache_max_bytes",)
        return DoctorCheck(
            name, "note", f"{settings.engine.cache_dir}: only {free // 1_000_000} MB are free", hints=hints
        )
    return DoctorCheck(name, "ok", f"{settings.engine.cache_dir}: {free / 1e9:.0f} GB are free")


def _embedder(name: str, settings: Settings) -> DoctorCheck:
    embedder = choose_embedder(settings)
    made = embedder.embed(["Is this a vector?"])
    return DoctorCheck(name, "ok", f"{embedder.name}: vectors of {made.shape[1]} numbers")


def _kb(name: str, settings: Settings) -> DoctorCheck:
    address = settings.engine.store
    if _is_folder(address) and not files.expanded(address).exists():
        return DoctorCheck(name, "note", "nothing is stored yet", hints=("pair sync, or pair ingest FILE",))
    with open_kb(DEFAULT_KB, settings=settings) as kb:
        stats = kb.stats()
        if stats is None:
            return DoctorCheck(name, "note", "nothing is stored yet", hints=("pair sync, or pair ingest FILE",))
        if stats.embedder != choose_embedder(settings).name:
            raise errors.embedder_differs(DEFAULT_KB, stats.embedder, choose_embedder(settings).name)
    return DoctorCheck(name, "ok", f"{DEFAULT_KB}: documents: {stats.documents:,}, shards: {stats.shards:,}")


def _model(name: str, settings: Settings) -> DoctorCheck:
    if not settings.ai.model:
        return DoctorCheck(
            name, "note", "none is configured: answers are quotations", hints=("To have them written: ai.model",)
        )
    from pair.ai.openai import OpenAiLanguageModel  # noqa: PLC0415 - only where one is configured

    model = OpenAiLanguageModel(settings.ai)
    with contextlib.closing(model):
        model.reply("You are asked whether you are there.", "Answer with the word yes.")
    return DoctorCheck(name, "ok", f"{settings.ai.model} answers")


def _server(name: str, settings: Settings) -> DoctorCheck:
    verifier(settings)
    policy = settings.server
    return DoctorCheck(name, "ok", f"{policy.host}:{policy.port}, auth: {policy.auth}")


def _is_folder(address: str) -> bool:
    return address != "memory:" and "://" not in address


def _nearest(folder: Path) -> Path:
    """It, or what is there of the way to it."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _check_writable(folder: Path) -> None:
    probe = folder / f".pair-doctor-{uuid.uuid4().hex}"
    os.close(folders.open_file(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    folders.unlink(probe)
