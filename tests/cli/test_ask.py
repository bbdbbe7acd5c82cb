"""The output of `pair ask`, `pair cite` and `pair librarians`, as text and as JSON."""

import shutil
from pathlib import Path

import pytest

from support.command import Workplace, write_files

PAGES = {
    "releases.md": "# Releases\n\nReleases are made on Fridays at noon. Two people must agree.\n",
    "rollback.md": "# Rolling back\n\nA release is rolled back with `ship undo`. It takes about 4 minutes.\n",
    "coffee.md": "# Coffee\n\nThe coffee machine is cleaned by whoever is last to leave.\n",
}
QUESTION = "On which day are releases made?"


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synced")
    work = Workplace(folder)
    write_files(work.target, dict(PAGES))
    assert work.pair("sync").status == 0
    return folder


@pytest.fixture
def work(synced: Path, tmp_path: Path) -> Workplace:
    """A separate project with synced sources."""
    place = Workplace(tmp_path)
    shutil.copytree(synced / "project", place.folder, dirs_exist_ok=True)
    return place


def test_a_citation_in_json_leads_back_to_its_passage_until_that_changes(work: Workplace) -> None:
    source = work.pair("ask", QUESTION, "--json").json["sources"][0]
    assert source["provenance"]["documentId"] == "releases.md"
    assert source["provenance"]["lastFetchedAt"]
    found = work.pair("cite", source["id"], "--json").succeeds()
    assert found.json["is_unchanged"] is True
    assert found.json["text"] == source["quote"]

    write_files(
        work.target, {"releases.md": "# Releases\n\nReleases are made on Mondays. Nobody must agree to them.\n"}
    )
    assert work.pair("sync").status == 0
    work.pair("cite", source["id"]).succeeds().says("has changed since it was cited").prints("Mondays")


def test_the_catalogue_knows_which_source_would_know(work: Workplace) -> None:
    done = work.pair("ask", "How is a release rolled back?", "--librarian", "catalogue", "--json").succeeds()
    assert done.json["sources"][0]["name"] == "rollback.md"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("ask", " "), "INVALID_QUERY"), (("ask", QUESTION, "--kb", "elsewhere"), "NOT_FOUND")],
    ids=["a blank question", "a KB that is not there"],
)
def test_what_goes_wrong_has_a_code_and_a_status(work: Workplace, arguments: tuple[str, ...], code: str) -> None:
    work.pair(*arguments, "--json").fails(1, code)


def test_a_bad_entry_is_reported_by_name_and_the_rest_serve(work: Workplace) -> None:
    write_files(
        work.folder,
        {
            "desk.py": (
                "import pair\n\n\n"
                "async def front(query, context=None):\n"
                "    return pair.Response.delegating('default', query)\n\n\n"
                "def not_async(query, context=None):\n"
                "    return pair.Response(answer='x')\n"
            ),
            "config.yaml": (
                "librarians:\n"
                "  - {id: front, function: 'desk:front', description: Hands everything over}\n"
                "  - {id: gone, function: 'desk:nobody'}\n"
                "  - {id: torn, kb: default, functoin: 'desk:front'}\n"
                "  - {id: both, kb: default, endpoint: 'http://127.0.0.1:9/ask'}\n"
                "  - {id: slow, function: 'desk:not_async'}\n"
                "  - {id: slow, kb: default}\n"
                "  - {id: 'no spaces please', kb: default}\n"
                "  - just text\n"
                "  - {id: closed, kb: default, team: legal, permissions: {public: false}}\n"
            ),
        },
    )
    work.trust()
    listed = work.pair("librarians", "list", "--json").succeeds()
    assert [each["name"] for each in listed.json["problems"]] == [
        "gone",
        "torn",
        "both",
        "slow",
        "no spaces please",
        "number 8",
    ]
    assert "did you mean function?" in str(listed.json["problems"])
    assert {"front", "slow", "closed", "default", "catalogue"} <= {each["id"] for each in listed.json["librarians"]}

    answered = work.pair("ask", QUESTION, "--librarian", "front", "--json")
    assert "Fridays" in answered.json["answer"]
    assert answered.json["metadata"]["delegationChain"] == ["front", "default"]

    work.pair("ask", QUESTION, "--librarian", "closed", "--json").fails(1, "UNAUTHORIZED")

    checked = work.pair("librarians", "check", "--json").exits(1)
    assert checked.json["librarians"]["front"] == "ok"
    assert "not async" in checked.json["librarians"]["slow"]
