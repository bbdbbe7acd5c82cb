"""The same bytes make the same document, whether they come from a folder, a link, an ingest or an upload."""

from pathlib import Path
from typing import Any

import pytest

from contract.test_documents import docx
from pair.kb.ingest import read_document
from support.command import Workplace, write_files
from support.office_files import eml, xlsx
from support.page_server import PageServer, Reply
from unit.reading.test_reader import SPHINX, many_pages

DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "guide.html": (SPHINX.encode(), "text/html"),
    "notes.md": (
        b"---\ntitle: Notes of releases\nyear: 2025\ntags: [a]\n---\n\n# Heading\n\nDeploy.\n",
        "text/markdown",
    ),
    "people.csv": (b"name,age\nAda,36\nBob,7\n", "text/csv"),
    "tool.py": (b"# comment\ndef run(port):\n    print(port)\n", "text/x-python"),
    "sales.xlsx": (xlsx(), "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "plan.eml": (eml(), "message/rfc822"),
    "book.pdf": (many_pages("The first page tells of apples.", "The second page tells of pears."), "application/pdf"),
    "letter.docx": (docx("We deploy on Mondays"), "application/octet-stream"),
    "latin.txt": ("Schöne Grüße aus München, wo die Bäume grüner sind als früher.".encode("latin-1"), "text/plain"),
}


def describe(document: dict[str, Any], name: str) -> tuple[str, str, dict[str, Any]]:
    """Return text, title and metadata. Without a title, a page has its address as title, and a file its name."""
    title = "" if document["title"].endswith(name) else document["title"]
    metadata = {key: value for key, value in document["metadata"].items() if key != "kind"}
    return document["text"], title, metadata


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_same_bytes_are_the_same_document_whatever_the_way_in(tmp_path: Path, name: str) -> None:
    content, content_type = DOCUMENTS[name]
    workplace = Workplace(tmp_path)
    write_files(workplace.folder / "docs", {name: content})
    with PageServer() as server:
        server.pages[f"/{name}"] = Reply(headers=[("Content-Type", content_type)], body=content)
        url = server.url(f"/{name}")
        write_files(workplace.folder, {".pair/links.txt": url})
        workplace.pair("sync", PAIR__KB__SOURCES_DIR="docs", PAIR__KB__ALLOW_PRIVATE_ADDRESSES="true").succeeds()
    workplace.pair("ingest", f"docs/{name}", "--kb", "other").succeeds()
    got = [
        workplace.pair("docs", "get", name, "--json").json,
        workplace.pair("docs", "get", url, "--json").json,
        workplace.pair("docs", "get", f"docs/{name}", "--kb", "other", "--json").json,
    ]
    uploaded = read_document(content, name, content_type)
    got.append({"text": uploaded.text, "title": uploaded.title, "metadata": uploaded.metadata})
    first, *others = [describe(document, name) for document in got]
    assert first[0].strip()
    assert others == [first] * 3
