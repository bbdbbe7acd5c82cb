"""Checks of each part that a KB needs, with advice about problems.

Invariants
    Nothing is left behind: trial entries in stores and leases are removed, and missing folders are not created.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pair import errors, files
from pair.clock import SystemClock
from pair.kb.open import DEFAULT_KB, blob_store, choose_embedder, choose_lease_kind, leases_for, open_kb
from pair.kb.sync import SyncService
from pair.kb.trust import verifier
from pair.settings import Settings

State = Literal["ok", "note", "failed"]
_LEASE_SECONDS = 10.0
_LITTLE_SPACE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class DoctorCheck:
    state: State
    message: str
    code: str = ""
    hints: Sequence[str] = ()
    exit_status: int = field(default=0, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "message": self.message, "code": self.code, "hints": list(self.hints)}


def examine(load: Callable[[], Settings]) -> Iterator[tuple[str, DoctorCheck]]:
    """Yield the name and the result of each check. Without valid settings, there is only one check."""
    try:
        settings = load()
    except errors.PairError as fault:
        yield "configuration", _report_failure(fault)
        return
    checks = {
        "configuration": _check_configuration,
        "sources": _check_sources,
        "store": _check_store,
        "lease": _check_lease,
        "cache": _check_cache,
        "embedder": _check_embedder,
        "knowledge base": _check_kb,
        "model": _check_model,
        "server": _check_server,
    }
    for name, check in checks.items():
        try:
            yield name, check(settings)
        except errors.PairError as fault:
            yield name, _report_failure(fault)


def _check_configuration(settings: Settings) -> DoctorCheck:
    config = settings.folder_config
    if config is None or not config.requests:
        shown = str(settings.config_path) if settings.config_path else "defaults; there is no config.yaml"
        return DoctorCheck("ok", shown)
    if config.is_trusted:
        return DoctorCheck("ok", f"{config.path}: trusted")
    ignored = ", ".join(f"{request.key} ({request.where})" for request in config.ignored)
    because = f" ({config.fault})" if config.fault else ""
    return DoctorCheck("note", f"{config.path}: not trusted{because}; ignored: {ignored}", hints=("pair trust",))


def _report_failure(fault: errors.PairError) -> DoctorCheck:
    message = f"{fault.message} {fault.explanation}" if fault.explanation else fault.message
    return DoctorCheck("failed", message, fault.code, tuple(fault.hints), fault.exit_status)


def _check_sources(settings: Settings) -> DoctorCheck:
    places = SyncService(settings).places
    present = [str(path) for path in (places.sources_dir, places.links_file) if path.exists()]
    present += [f"collection {name}" for name in settings.kb.collections]
    if present:
        return DoctorCheck("ok", " and ".join(present))
    files_hint = f"Put files into {settings.kb.sources_dir}, or: pair install"
    links_hint = f"List addresses in {settings.kb.links_file_path}"
    return DoctorCheck("note", "there is nothing to sync yet", hints=("pair add ./docs", files_hint, links_hint))


def _check_store(settings: Settings) -> DoctorCheck:
    from pair.blobs.contract import refuse_without_compare_and_swap  # noqa: PLC0415 - only where it is used

    address = settings.engine.store
    if _is_folder(address) and not files.expand_path(address).exists():
        with files.storage_errors():
            _check_writable(_find_nearest(files.expand_path(address).absolute()))
        return DoctorCheck("ok", f"{address}: created with the first document")
    with contextlib.closing(blob_store(address, settings, SystemClock())) as store:
        refuse_without_compare_and_swap(store, "doctor.", uuid.uuid4().hex)
    return DoctorCheck("ok", f"{address}: reads, writes and conditional writes work")


def _check_lease(settings: Settings) -> DoctorCheck:
    address = settings.engine.store
    kind = choose_lease_kind(settings, address)
    if kind in {"file", "memory"}:
        return DoctorCheck("ok", f"{kind}: no server is needed")
    with (
        contextlib.closing(blob_store(address, settings, SystemClock())) as store,
        contextlib.closing(leases_for(settings, store, SystemClock())) as leases,
    ):
        leases.release(leases.acquire(f"doctor-{uuid.uuid4().hex[:8]}", seconds=_LEASE_SECONDS))
    return DoctorCheck("ok", f"{kind}: acquired and released")


def _check_cache(settings: Settings) -> DoctorCheck:
    folder = files.expand_path(settings.engine.cache_dir).absolute()
    nearest = _find_nearest(folder)
    with files.storage_errors():
        _check_writable(nearest)
        free = shutil.disk_usage(nearest).free
    if free < _LITTLE_SPACE_BYTES:
        hints = ("Set engine.cache_dir to a larger disk, or engine.cache_max_bytes",)
        return DoctorCheck("note", f"{settings.engine.cache_dir}: only {free // 1_000_000} MB free", hints=hints)
    return DoctorCheck("ok", f"{settings.engine.cache_dir}: {free / 1e9:.0f} GB free")


def _check_embedder(settings: Settings) -> DoctorCheck:
    embedder = choose_embedder(settings)
    vectors = embedder.embed(["Is this a vector?"])
    return DoctorCheck("ok", f"{embedder.name}: {vectors.shape[1]} dimensions")


def _check_kb(settings: Settings) -> DoctorCheck:
    address, stats = settings.engine.store, None
    if not _is_folder(address) or files.expand_path(address).exists():
        with open_kb(DEFAULT_KB, settings=settings) as kb:
            stats = kb.stats()
    if stats is None or not stats.manifest_version:
        return DoctorCheck("note", "it is empty", hints=("pair sync, or pair ingest FILE",))
    embedder = choose_embedder(settings)
    if stats.embedder != embedder.name:
        raise errors.embedder_differs(DEFAULT_KB, stats.embedder, embedder.name)
    documents = f"{stats.documents:,} document{'s'[: stats.documents != 1]}"
    return DoctorCheck("ok", f"{DEFAULT_KB}: {documents} in {stats.shards:,} shard{'s'[: stats.shards != 1]}")


def _check_model(settings: Settings) -> DoctorCheck:
    if not settings.ai.model:
        hints = ("Set ai.model to generate answers",)
        return DoctorCheck("note", "none is configured; answers quote the documents", hints=hints)
    from pair.ai.openai import OpenAiLanguageModel  # noqa: PLC0415 - only where it is used

    with contextlib.closing(OpenAiLanguageModel(settings.ai)) as model:
        model.reply("You answer a health check.", "Answer with the word yes.")
    return DoctorCheck("ok", f"{settings.ai.model} answers")


def _check_server(settings: Settings) -> DoctorCheck:
    verifier(settings)
    server = settings.server
    return DoctorCheck("ok", f"{server.host}:{server.port}, auth: {server.auth}")


def _is_folder(address: str) -> bool:
    return address != "memory:" and "://" not in address


def _find_nearest(folder: Path) -> Path:
    """Return the folder, or the nearest of its parents that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _check_writable(folder: Path) -> None:
    probe = folder / f".pair-doctor-{uuid.uuid4().hex}"
    os.close(files.open_file(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    files.unlink(probe)
