"""Bundles of the Open Knowledge Format: packaging, verification, installation, and the state of their documents."""

from pathlib import Path

import pytest

from support.command import Workplace, write_files

ORDERS = (
    "---\ntype: Table\ntitle: Customer Orders\nstatus: deprecated\nstale_after: {stale}\n"
    'verified: [{{by: "process:nightly", at: 2026-06-26T02:00:00Z}}, {{by: "human:ann", at: 2026-06-25T09:00:00Z}}]\n'
    "---\nOrders are joined with customers on the customer id.\n"
)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    workplace = Workplace(tmp_path)
    bundle: dict[str, str | bytes] = {
        "tables/orders.md": ORDERS.format(stale="2001-02-03"),
        "alert.md": "---\ntype: Playbook\n---\nCall Ann.\n",
    }
    write_files(workplace.folder / "bundle", bundle)
    return workplace


def test_a_packaged_bundle_gets_an_index_and_passes_its_own_check(workplace: Workplace) -> None:
    workplace.pair("package", "./bundle", "-o", "bundle.zip").succeeds()
    assert not (workplace.folder / "bundle" / "index.md").exists()
    checks = workplace.pair("verify", "bundle.zip", "--okf", "--json").json["checks"]
    assert checks[-1] == "conformant bundle of the Open Knowledge Format 0.2"
    workplace.pair("install", "--source", "./bundle.zip").succeeds()
    assert "* [Customer Orders](tables/orders.md)" in (workplace.target / "index.md").read_text()
    assert workplace.pair("verify", str(workplace.target), "--okf", "--json").json["kind"] == "installed"


def test_a_folder_with_other_markdown_is_packaged_without_an_index(workplace: Workplace) -> None:
    write_files(workplace.folder / "bundle", {"plain.md": b"# Plain\n"})
    assert workplace.pair("package", "./bundle", "-o", "bundle.zip", "--json").json["files"] == 3
    refused = workplace.pair("verify", "bundle", "--okf", "--json").fails(5, "E029")
    assert "plain.md: it has no front matter that can be read" in refused.stdout


def test_a_hit_and_an_answer_say_that_a_document_is_deprecated_and_stale(workplace: Workplace) -> None:
    workplace.pair("install", "--source", "./bundle").succeeds()
    workplace.pair("sync").succeeds()
    state = "(deprecated, stale since 2001-02-03, verified by a person on 2026-06-26)"
    assert state in workplace.pair("search", "customer orders").stdout
    assert state in workplace.pair("ask", "what are orders joined with?").stdout
    (hit,) = workplace.pair("search", "orders", "--filter", "status=deprecated", "--json").json["results"]
    assert hit["lifecycle"] == {
        "status": "deprecated",
        "stale_since": "2001-02-03",
        "verified_by": "person",
        "verified_at": "2026-06-26T02:00:00+00:00",
    }
