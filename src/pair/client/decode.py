"""Decode responses of a server into the values that a local KB returns. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from pair.engine.maintenance.versions import DocumentChanges, ListedVersion, Rollback
from pair.engine.query.documents import StoredDocument
from pair.engine.summary import EngineStats
from pair.engine.write.writer import WriteReport
from pair.sync.report import SyncReport
from pair.values import Hits

Json = Mapping[str, Any]
_Value = TypeVar("_Value")


def decode_as(kind: type[_Value]) -> Callable[[Json], _Value]:
    """Return a decoder of a value that ignores unknown keys."""
    return lambda value: msgspec.convert(value, kind)


def decode_hits(value: Json) -> Hits:
    """Leave out which shards were searched and the weights of words: the server does not send them."""
    hits = [
        {
            "also_in_count": len(hit["also_in"]),
            **hit,
            "document_id": hit["id"],
            "text": hit["content"],
            "also_in": [{**place, "document_id": place["id"]} for place in hit["also_in"]],
        }
        for hit in value["results"]
    ]
    return msgspec.convert({**value, "passages": hits, "shards_asked": 0}, Hits)


def decode_page(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Return the documents of a page, and the id behind which the next page begins."""
    return msgspec.convert((value["documents"], value["next"]), tuple[list[StoredDocument], str | None])


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
    versions = [{**item, "number": item["version"], "is_current": item["current"]} for item in value["versions"]]
    return msgspec.convert(versions, list[ListedVersion])


def decode_rollback(value: Json) -> Rollback:
    return msgspec.convert({**value, "is_changed": value["changed"]}, Rollback)


def decode_changes(value: Json) -> tuple[DocumentChanges, str | None]:
    """Return the changes of a page, and the id behind which the next page begins."""
    added, removed, changed = (
        tuple(document["id"] for document in value["documents"] if document["change"] == change)
        for change in ("added", "removed", "changed")
    )
    return DocumentChanges(value["kb_id"], value["a"], value["b"], added, removed, changed), value["next"]


def decode_stats(value: Json) -> list[EngineStats]:
    return msgspec.convert(value["kbs"], list[EngineStats])


def decode_sync_report(value: Json) -> SyncReport:
    problems = [(problem["source"], problem["reason"]) for problem in value["problems"]]
    skipped = [(skipped["path"], skipped["reason"]) for skipped in value["skipped"]]
    return msgspec.convert({**value, "problems": problems, "skipped": skipped}, SyncReport)
