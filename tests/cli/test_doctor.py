"""`pair doctor`: the checks that pass, the checks that fail, and the advice."""

from pathlib import Path
from typing import Any

from support.command import Workplace, write_files
from support.redis_server import running_redis

NOBODY = "http://127.0.0.1:1/v1"


def states(value: Any) -> dict[str, str]:
    return {check["name"]: check["state"] for check in value["checks"]}


def stored_files(workplace: Workplace) -> list[Path]:
    """Return the stored files, except the locks of the store."""
    return sorted(path for path in workplace.folder.rglob("*") if ".pair-store" not in path.parts)


def test_a_new_project_is_fine_and_nothing_is_made_in_it(workplace: Workplace):
    done = workplace.pair("doctor", "--json")
    assert (done.status, done.json["ok"]) == (0, True)
    assert states(done.json) == {
        "configuration": "ok",
        "sources": "note",
        "store": "ok",
        "lease": "ok",
        "cache": "ok",
        "embedder": "ok",
        "knowledge base": "note",
        "model": "note",
        "server": "ok",
    }
    assert list(workplace.folder.iterdir()) == []


def test_a_project_in_use_passes_and_is_unchanged(workplace: Workplace):
    write_files(workplace.target, {"page.md": "# Page\n\nSome text."})
    assert workplace.pair("sync").status == 0
    before = stored_files(workplace)
    workplace.pair("doctor").succeeds().prints("default: 1 document in 1 shard", "conditional writes work")
    assert stored_files(workplace) == before


def test_a_failed_check_is_reported_with_code_and_hint_and_the_others_still_run(workplace: Workplace):
    trouble = {"PAIR__AI__MODEL": "absent", "PAIR__AI__BASE_URL": NOBODY, "PAIR__SERVER__HOST": "0.0.0.0"}
    done = workplace.pair("doctor", "--json", **trouble)
    failed = {check["name"]: check for check in done.json["checks"] if check["state"] == "failed"}
    assert {name: check["code"] for name, check in failed.items()} == {"model": "E301", "server": "E401"}
    assert all(check["hints"] for check in failed.values())
    assert (done.status, done.json["ok"]) == (6, False)


def test_unreadable_settings_are_the_only_thing_reported(workplace: Workplace):
    done = workplace.pair("doctor", "--json", PAIR__ENGINE__EMBEDDER="nobody")
    assert states(done.json) == {"configuration": "failed"}
    assert done.status == 1


def test_an_embedder_that_does_not_match_the_kb_is_reported(workplace: Workplace):
    write_files(workplace.folder, {"page.md": "Some text."})
    assert workplace.pair("ingest", "page.md").status == 0
    done = workplace.pair("doctor", "--json", PAIR__ENGINE__EMBEDDING_DIMENSION="64")
    assert states(done.json)["knowledge base"] == "failed"
    assert done.status == 1


def test_a_lease_is_taken_and_given_back(workplace: Workplace, tmp_path: Path):
    with running_redis(tmp_path) as redis:
        url = redis.url
        assert states(workplace.pair("doctor", "--json", PAIR__ENGINE__REDIS_URL=url).json)["lease"] == "ok"
    done = workplace.pair("doctor", "--json", PAIR__ENGINE__REDIS_URL=url)
    assert states(done.json)["lease"] == "failed"
    assert "password" not in done.stdout
