"""Decode responses of a server into the values that a local KB returns. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pair.engine.maintenance.diff import DocumentChanges
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import StoredDocument
from pair.engine.query.request import Hits
from pair.engine.summary import EngineStats
from pair.engine.write.writer import WriteReport
from pair.sync.report import SyncReport
from pair.values import AlsoIn, Hit

Json = Mapping[str, Any]
_Value = TypeVar("_Value")


def decode_as(kind: type[_Value]) -> Callable[[Json], _Value]:
    """Return a decoder that fills the fields of a dataclass and ignores all other keys."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind here is a dataclass
    return lambda value: kind(**{name: value[name] for name in names if name in value})


def decode_hits(value: Json) -> Hits:
    """Leave out which shards were searched and the weights of words: the server does not send them."""
    return Hits(
        tuple(_decode_hit(hit) for hit in value["results"]),
        manifest_version=value["manifest_version"],
        shards_asked=0,
        partial=value["partial"],
        mode_used=value["mode_used"],
        reason=value.get("reason", ""),
    )


def _decode_hit(value: Json) -> Hit:
    also_in = tuple(
        AlsoIn(other["id"], other["chunk_id"], other["title"], other["url"], other["start"], other["end"])
        for other in value["also_in"]
    )
    return Hit(
        document_id=value["id"],
        chunk_id=value["chunk_id"],
        title=value["title"],
        url=value["url"],
        text=value["content"],
        score=value["score"],
        distance=value["distance"],
        metadata=value["metadata"],
        start=value["start"],
        end=value["end"],
        graph_score=value["graph_score"],
        also_in=also_in,
        highlights=tuple((start, end) for start, end in value["highlights"]),
        explanation=value.get("explanation"),
        also_in_count=value.get("also_in_count", len(also_in)),
    )


def decode_page(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Return the documents of a page, and the id behind which the next page begins."""
    return [decode_as(StoredDocument)(document) for document in value["documents"]], value["next"]


def decode_ingestion(value: Json) -> WriteReport:
    return WriteReport(
        added=value["ingested_docs"] - value["replaced_docs"],
        replaced=value["replaced_docs"],
        unchanged=value["unchanged_docs"],
        chunks=value["ingested_chunks"],
        manifest_version=value["manifest_version"],
    )


def decode_deletion(value: Json) -> WriteReport:
    return WriteReport(deleted=value["deleted"], manifest_version=value["manifest_version"])


def decode_versions(value: Json) -> list[ListedVersion]:
    decode = decode_as(ListedVersion)
    return [decode({**item, "number": item["version"], "is_current": item["current"]}) for item in value["versions"]]


def decode_rollback(value: Json) -> Rollback:
    return decode_as(Rollback)({**value, "is_changed": value["changed"]})


def decode_changes(value: Json) -> tuple[DocumentChanges, str | None]:
    """Return the changes of a page, and the id behind which the next page begins."""
    added, removed, changed = (
        tuple(document["id"] for document in value["documents"] if document["change"] == change)
        for change in ("added", "removed", "changed")
    )
    return DocumentChanges(value["kb_id"], value["a"], value["b"], added, removed, changed), value["next"]


def decode_stats(value: Json) -> list[EngineStats]:
    return [decode_as(EngineStats)(stats) for stats in value["kbs"]]


def decode_sync_report(value: Json) -> SyncReport:
    pairs = {
        "problems": tuple((problem["source"], problem["reason"]) for problem in value["problems"]),
        "skipped": tuple((skipped["path"], skipped["reason"]) for skipped in value["skipped"]),
        "errors": tuple(value["errors"]),
    }
    return decode_as(SyncReport)({**value, **pairs})
