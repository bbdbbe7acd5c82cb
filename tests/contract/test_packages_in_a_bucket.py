"""Packages with an index, with the feed, the archives and the engine's store in buckets."""

from pathlib import Path
from typing import Any

from support.clocks import MANY_SHARDS, TOPICS
from support.command import Workplace, write_files

FEED = "s3://blobs/indexed/feed"


def published(place: Workplace, version: str, text: str) -> None:
    pages: dict[str, str | bytes] = {
        f"{topic}.md": f"# {topic.title()}\n\nSailors tell of {topic}.\n" for topic in TOPICS
    }
    write_files(place.folder / "clocks", {**pages, "sundials.md": f"# Sundials\n\n{text}\n"})
    place.pair("publish", FEED, "clocks", "--version", version, "--with-index", "--json").succeeds()


def hits(place: Workplace, *more: str) -> list[Any]:
    found = place.pair("search", "what do sundials want", "--exact", *more, "--json").succeeds()
    return [(hit["chunk_id"], hit["score"], hit["content"]) for hit in found.json["results"]]


def test_a_package_is_installed_and_updated_by_parts_into_a_store_in_a_bucket(
    at_bucket: Workplace, elsewhere: Workplace, tmp_path: Path
) -> None:
    at_bucket.environment |= MANY_SHARDS
    published(at_bucket, "1.0.0", "They want nothing.")
    elsewhere.environment |= at_bucket.environment | {"PAIR__ENGINE__STORE": "s3://blobs/indexed/store"}
    elsewhere.environment |= {"PAIR_KB_CACHE_DIR": str(tmp_path / "their-cache")}
    assert elsewhere.pair("install", "--source", f"{FEED}/releases.json").status == 0
    assert hits(elsewhere) == hits(at_bucket, "--kb", "clocks")
    published(at_bucket, "1.1.0", "They want the sun.")
    done = elsewhere.pair("update", "--json").succeeds()
    assert done.json["index"]["new_shards"] < done.json["index"]["shards"] / 2
    assert '"is_assembled": true' in "".join(
        path.read_text() for path in (tmp_path / "their-cache").glob("*/.pair-entry.json")
    )
    assert hits(elsewhere) == hits(at_bucket, "--kb", "clocks")
    listed = elsewhere.pair("versions", "--json").json["versions"]
    assert [each["label"] for each in listed] == ["clocks 1.1.0", "clocks 1.0.0"]
    assert elsewhere.pair("rollback", "1.0.0").status == 0
    assert elsewhere.pair("update").status == 0
    assert hits(elsewhere) == hits(at_bucket, "--kb", "clocks")
