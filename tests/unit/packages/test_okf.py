"""Bundles of the Open Knowledge Format: conformance, faults, and the generated index."""

import pytest

from pair.packages.okf import Concept, format_index, read_bundle

ORDERS = b"---\ntype: Table\ntitle: Customer [Orders]\ndescription: One row\n  per order.\n---\n# Schema\n"


def faults_of(**files: bytes) -> list[str]:
    named = {f"{name.replace('__', '/')}.md": content for name, content in files.items()}
    return read_bundle(named, named.__getitem__).faults


def test_a_document_with_a_type_is_a_concept() -> None:
    bundle = read_bundle(["tables/orders.md", "logo.png"], lambda _: ORDERS)
    assert bundle.concepts == [Concept("tables/orders.md", "Table", "Customer [Orders]", "One row per order.")]
    assert not bundle.faults


def test_a_concept_without_a_title_is_named_by_its_file() -> None:
    assert read_bundle(["a/alert.md"], lambda _: b"---\ntype: Playbook\n---\n").concepts[0].title == "alert"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"# No front matter\n", "it has no front matter that can be read"),
        (b"---\ntype: [unclosed\n---\nText\n", "it has no front matter that can be read"),
        (b"---\ntitle: No type\n---\nText\n", "its front matter has no type"),
        (b"---\ntype: '  '\n---\nText\n", "its front matter has no type"),
        (b"---\ntype: 7\n---\nText\n", "its front matter has no type"),
        (b"\x00\x01\x02\xff" * 50, "it has no front matter that can be read"),
    ],
)
def test_a_document_that_is_not_a_concept_is_named_with_the_reason(content: bytes, reason: str) -> None:
    (fault,) = faults_of(note=content)
    assert fault.startswith("note.md: ")
    assert reason in fault


def test_only_the_index_of_the_bundle_may_name_the_version_of_the_format() -> None:
    index = b'---\nokf_version: "0.2"\n---\n# All\n\n* [Orders](tables/orders.md) - orders\n'
    assert not faults_of(index=index, tables__orders=ORDERS)
    (fault,) = faults_of(tables__index=index)
    assert fault == "tables/index.md: it may have no front matter"


def test_an_index_must_list_something() -> None:
    (fault,) = faults_of(index=b"# Welcome\n\nNothing here yet.\n")
    assert "it lists nothing" in fault


def test_the_headings_of_a_log_are_dates() -> None:
    assert not faults_of(log=b"# Updates\n\n## 2026-05-22\n* **Update**: more.\n")
    (fault,) = faults_of(log=b"# Updates\n\n## 22 May 2026\n* **Update**: more.\n")
    assert "'22 May 2026'" in fault


def test_the_index_that_is_written_is_conformant_and_lists_every_concept() -> None:
    index = format_index([Concept("a b.md", "Table", "A [b]", "One."), Concept("c.md", "Metric", "C", "")])
    assert "# Metric\n\n* [C](c.md)\n" in index
    assert "* [A \\[b\\]](a%20b.md) - One." in index
    assert not faults_of(index=index.encode())
