"""Answers of a server as the values that a KB gives. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.diff import DocumentChanges
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import StoredDocument
from pair.engine.query.request import Hits
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.summary import EngineStats
from pair.engine.write.writer import WriteReport
from pair.sync.report import SyncReport
from pair.values import AlsoIn, Hit

Json = Mapping[str, Any]
_Value = TypeVar("_Value")


def hits_of(value: Json) -> Hits:
    """Which shards were asked, and what words count, is not told over HTTP."""
    return Hits(
        tuple(hit_of(each) for each in value["results"]),
        manifest_version=value["manifest_version"],
        shards_asked=0,
        partial=value["partial"],
        mode_used=value["mode_used"],
        reason=value.get("reason", ""),
    )


def hit_of(value: Json) -> Hit:
    also_in = tuple(
        AlsoIn(each["id"], each["chunk_id"], each["title"], each["url"], each["start"], each["end"])
        for each in value["also_in"]
    )
    return Hit(
        value["id"],
        value["chunk_id"],
        value["title"],
        value["url"],
        value["content"],
        value["score"],
        value["distance"],
        value["metadata"],
        value["start"],
        value["end"],
        value["graph_score"],
        also_in,
        tuple((start, end) for start, end in value["highlights"]),
        value.get("explanation"),
        also_in_count=value.get("also_in_count", len(also_in)),
    )


def document_of(value: Json) -> StoredDocument:
    return _picked(StoredDocument, value)


def write_report_of(value: Json) -> WriteReport:
    return WriteReport(
        added=value["ingested_docs"] - value["replaced_docs"],
        replaced=value["replaced_docs"],
        unchanged=value["unchanged_docs"],
        chunks=value["ingested_chunks"],
        manifest_version=value["manifest_version"],
    )


def deletion_report_of(value: Json) -> WriteReport:
    return WriteReport(deleted=value["deleted"], manifest_version=value["manifest_version"])


def page_of(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Documents, and the id behind which the next page begins."""
    return [document_of(each) for each in value["documents"]], value["next"]


def compaction_report_of(value: Json) -> CompactionReport:
    return _picked(CompactionReport, value)


def garbage_report_of(value: Json) -> GarbageReport:
    return _picked(GarbageReport, value)


def versions_of(value: Json) -> list[ListedVersion]:
    return [
        _picked(ListedVersion, {**each, "number": each["version"], "is_current": each["current"]})
        for each in value["versions"]
    ]


def rollback_of(value: Json) -> Rollback:
    return _picked(Rollback, {**value, "is_changed": value["changed"]})


def changes_of(value: Json) -> tuple[DocumentChanges, str | None]:
    """Of a page, and the id behind which the next begins."""
    parts = (
        tuple(each["id"] for each in value["documents"] if each["change"] == change)
        for change in ("added", "removed", "changed")
    )
    return DocumentChanges(value["kb_id"], value["a"], value["b"], *parts), value["next"]


def sweep_report_of(value: Json) -> SweepReport:
    return _picked(SweepReport, value)


def stats_of(value: Json) -> list[EngineStats]:
    return [_picked(EngineStats, each) for each in value["kbs"]]


def sync_report_of(value: Json) -> SyncReport:
    pairs = {
        "problems": tuple((each["source"], each["reason"]) for each in value["problems"]),
        "skipped": tuple((each["path"], each["reason"]) for each in value["skipped"]),
        "errors": tuple(value["errors"]),
    }
    return _picked(SyncReport, {**value, **pairs})


def _picked(kind: type[_Value], value: Json) -> _Value:
    """A value of this class: what it has no field for is left out."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]  # every kind here is a dataclass
    return kind(**{name: value[name] for name in names if name in value})


def summed(total: WriteReport, report: WriteReport) -> WriteReport:
    return WriteReport(
        total.added + report.added,
        total.replaced + report.replaced,
        total.unchanged + report.unchanged,
        total.deleted + report.deleted,
        total.chunks + report.chunks,
        max(total.manifest_version, report.manifest_version),
        total.conflicts + report.conflicts,
    )
