"""The texts and metadata of documents, as commands show them."""

from pathlib import Path

import pytest

from support.command import Workplace, write_files
from unit.reading.test_reader import many_pages

APPLES = " ".join(["The first page tells of apples."] * 60)
PEARS = " ".join(["The second page tells of pears and how they are stored in winter."] * 60)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    workplace = Workplace(tmp_path)
    write_files(
        workplace.target,
        {
            "notes.md": b"---\ntitle: Notes of a year\nyear: 2025\n---\nWe deploy on Mondays.\n",
            "older.md": b"---\nyear: 2019\n---\nWe deploy on Fridays.\n",
            "book.pdf": many_pages(APPLES, PEARS),
            "logo.png": b"\x89PNG\r\n\x1a\n\0",
        },
    )
    workplace.pair("sync").succeeds()
    return workplace


def test_a_filter_finds_documents_by_their_front_matter(workplace: Workplace) -> None:
    (hit,) = workplace.pair("search", "deploy", "--filter", "year=2025", "--json").json["results"]
    assert (hit["id"], hit["title"], hit["metadata"]["year"]) == ("notes.md", "Notes of a year", 2025)
    assert "year" not in hit["content"]


def test_a_hit_in_a_pdf_names_its_page(workplace: Workplace) -> None:
    hits = workplace.pair("search", "pears stored in winter", "--json").json["results"]
    assert (hits[0]["id"], hits[0]["metadata"]["page"], hits[0]["metadata"]["pages"]) == ("book.pdf", 2, 2)


def test_a_skipped_file_is_listed_once_and_again_when_it_changes(workplace: Workplace) -> None:
    line = "Skipped: logo.png"
    assert line not in workplace.pair("sync").succeeds().stderr
    write_files(workplace.target, {"new.md": "text"})
    assert line not in workplace.pair("sync").succeeds().stderr
    assert "logo.png" in workplace.pair("status").succeeds().stdout
    write_files(workplace.target, {"logo.png": b"x" * 3_000_000})
    assert line in workplace.pair("sync").succeeds().stderr


def test_a_dry_run_converts_nothing(workplace: Workplace) -> None:
    write_files(workplace.target, {"broken.pdf": b"no PDF"})
    plan = workplace.pair("sync", "--dry-run", "--json").json
    assert {source["source"]: source["reason"] for source in plan["sources"]}["broken.pdf"] == "new"


def test_a_changed_title_is_stored(workplace: Workplace) -> None:
    write_files(workplace.target, {"notes.md": b"---\ntitle: Other\nyear: 2026\n---\nWe deploy on Mondays.\n"})
    workplace.pair("sync").succeeds()
    document = workplace.pair("docs", "get", "notes.md", "--json").json
    assert (document["title"], document["metadata"]) == ("Other", {"year": 2026, "kind": "file"})


def test_many_skipped_files_are_listed_by_their_reason(workplace: Workplace) -> None:
    write_files(workplace.target, {f"pictures/{number:02}.png": b"\x89PNG\r\n\x1a\n\0" for number in range(12)})
    write_files(workplace.target, {"page.md": "# Page\n\nA text.\n", "old.tar.gz": b"\x1f\x8b\x08\0" * 20})
    printed = workplace.pair("sync").succeeds().stderr
    assert "Skipped: pictures/00.png and 11 more: not text in any known charset\n" in printed
    assert printed.count("Skipped: ") == 2
