"""Write the golden KB of schema 1: `python tests/golden/make_kb_v1.py tests/golden/kb-v1/store`, without `.zip`.

The script documents the origin of tests/golden/kb-v1 and is not run again. See README.md.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import pair
from pair.engine.settings import EngineSettings
from pair.settings import Settings

SUBJECTS = ("rivers", "bridges", "castles", "gardens", "engines", "lighthouses")
UNICODE_ID = "книга/№ 1 – ünïcödé 📚"  # noqa: RUF001 - as it should be kept
BOOK = """# Handbook

Everybody starts here.

## Install

The Tinker Workshop keeps the installer.

### Linux

Use the package of your distribution, then run the self-test of the Tinker Workshop.

## Operate

The Harbour Office watches the gauges. The Tinker Workshop repairs them.
"""


def policy_of(folder: Path) -> EngineSettings:
    """Return settings that split a shard with more than 12 chunks into shards of at most 6."""
    return EngineSettings(
        store=str(folder / "store"),
        cache_dir=str(folder / "cache"),
        embedder="ngram",
        embedding_dimension=32,
        chunk_size_bytes=120,
        shard_trigger_vector_rows=12,
        max_vector_rows_per_shard=6,
        compaction_enabled=False,
    )


def numbered(number: int) -> pair.Document:
    subject = SUBJECTS[number % len(SUBJECTS)]
    return pair.Document(
        f"doc-{number:02}",
        f"Page {number} tells of {subject}, and of item{number}. The Harbour Office near Grey Harbour knows {subject}.",
        title=f"Page {number}",
        url=f"https://kb.example/pages/{number}",
        metadata={"number": number, "subject": subject, "odd": bool(number % 2), "place": {"shelf": number // 4}},
    )


def write(folder: Path) -> None:
    with pair.open("golden", settings=Settings(engine=policy_of(folder))) as kb:
        kb.upsert([numbered(number) for number in range(14)])
        kb.maintenance.compact(everything=True)
        kb.upsert([pair.Document(UNICODE_ID, BOOK, title="Handbook", metadata={"język": "polski"})])
        kb.upsert([pair.Document("naïve id\twith a tab", "Grüße aus dem Hafen.", metadata={"tags": ["é", 2, None]})])
        kb.upsert([pair.Document("placed", "A text with a vector of its own.", vector=[0.5] * 4 + [0.0] * 28)])
        kb.upsert([pair.Document("doc-03", "Page 3 was rewritten and tells of windmills.", title="Page 3")])
        kb.delete(["doc-05", "doc-06"])
        kb.upsert([pair.Document("synced.md", "What was synced.", metadata={"kind": "synced"})], owner="sync")
        kb.maintenance.collect(grace_seconds=0)
    # Locks and leases of writers are not part of the stored KB.
    shutil.rmtree(folder / "store" / ".pair-store")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        shutil.make_archive(str(Path(sys.argv[1]).resolve()), "zip", Path(place) / "store")
