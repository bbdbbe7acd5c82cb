"""Citations of a remote librarian refer to its server, not to a local KB of the same name."""

import json
from pathlib import Path

from support.command import Workplace, write_files
from support.served import Served

QUESTION = "On which day are releases made?"
PAGE = "# Releases\n\nReleases are made on Fridays at noon. Two people must agree.\n"


def test_a_citation_of_a_remote_librarian_is_opened_on_its_server(tmp_path: Path) -> None:
    far = Workplace(tmp_path / "far")
    write_files(far.target, {"releases.md": PAGE})
    assert far.pair("sync").status == 0
    near = Workplace(tmp_path / "near")
    write_files(near.target, {"releases.md": "# Releases\n\nAnother page of the same name.\n"})
    assert near.pair("sync").status == 0
    with Served(far.folder) as server:
        config = near.folder / "elsewhere.yaml"
        config.write_text(
            f"librarians:\n- id: far\n  endpoint: {server.url}/librarians/default/ask\n"
            "- id: other\n  endpoint: http://127.0.0.1:1/ask\n"
        )
        response = near.pair("--config", config, "ask", QUESTION, "--librarian", "far", "--json").json
        source = response["sources"][0]
        assert source["id"].startswith("far:default/releases.md#")
        assert source["provenance"]["kbId"] == "far:default"
        cited = near.pair("--config", config, "cite", source["id"], "--json")
        assert (cited.status, cited.json["is_unchanged"]) == (0, True), cited.stderr
        assert cited.json["text"] == source["quote"]

        answer = near.folder / "answer.json"
        answer.write_text(json.dumps(response))
        assert near.pair("--config", config, "reproduce", answer, "--json").error_code == "E233"
        stranger = source["id"].replace("far:", "stranger:")
        assert near.pair("--config", config, "cite", stranger, "--json").error_code == "E605"
        unknown = source["id"].replace("far:", "other:")
        assert near.pair("--config", config, "cite", unknown, "--json").error_code == "E620"
