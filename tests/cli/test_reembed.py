"""The command `pair reembed`."""

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from support.command import Workplace, write_files
from support.model_server import Answer, ModelServer

NOTES: dict[str, str | bytes] = {
    f"notes/{number}.md": f"# Note {number}\n\nThis one is about item{number}.\n" for number in range(40)
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project after an ingest, made once."""
    workplace = Workplace(tmp_path_factory.mktemp("stored"))
    write_files(workplace.folder, NOTES)
    assert workplace.pair("ingest", "notes").status == 0
    return workplace.folder / ".pair"


@pytest.fixture
def filled(workplace: Workplace, stored: Path) -> Workplace:
    shutil.copytree(stored, workplace.folder / ".pair", dirs_exist_ok=True)
    write_files(workplace.folder, NOTES)
    return workplace


def configured(workplace: Workplace, text: str) -> None:
    """Configure the project by its configuration file only."""
    del workplace.environment["PAIR__ENGINE__EMBEDDER"]
    (workplace.folder / "config.yaml").write_text(text)


def test_the_embedder_is_changed_and_the_setting_to_change_is_reported(filled: Workplace) -> None:
    configured(filled, "engine:\n  graph: text\n  embedder: ngram\n  embedding_dimension: 384\n")
    planned = filled.pair("reembed", "--embedder", "static", "--dry-run").succeeds()
    assert "Would re-embed default (40 documents, 40 chunks) from ngram-384-v1 to static-" in planned.stderr
    assert "40 texts with " in planned.stderr
    assert filled.pair("search", "item7", "--json").status == 0

    done = filled.pair("reembed", "--embedder", "static")
    assert (done.status, done.stdout) == (0, "")
    assert "100% of 40 chunks" in done.stderr
    assert "Re-embedded default (40 documents, 40 chunks) with static-" in done.stderr
    assert "change config.yaml:3 to `embedder: static`" in done.stderr
    assert "remove config.yaml:4, `embedding_dimension: 384`" in done.stderr
    filled.pair("search", "item7").exits(1).says("pair reembed --kb default")

    (filled.folder / "config.yaml").write_text("engine:\n  graph: text\n  embedder: static\n")
    assert filled.pair("search", "item7", "--json").json["results"][0]["id"] == "notes/7.md"
    assert filled.pair("ingest", "notes", "--json").json["unchanged"] == 40
    again = filled.pair("reembed")
    assert (again.status, again.stderr.splitlines()[0].partition(" already ")[0]) == (0, "Nothing to do: default")


def test_programs_get_one_value(filled: Workplace) -> None:
    value: dict[str, Any] = filled.pair("reembed", "--dimension", "24", "--json").json
    change = value.pop("configuration")
    assert change == [
        {
            "key": "engine.embedding_dimension",
            "value": "24",
            "configured": "",
            "where": "",
            "advice": "write `embedding_dimension: 24` below `engine:` in config.yaml, "
            "or set PAIR__ENGINE__EMBEDDING_DIMENSION=24",
        }
    ]
    assert value["changed"]
    assert (value["kb_id"], value["embedder_before"], value["embedder"]) == ("default", "ngram-384-v1", "ngram-24-v1")
    assert (value["documents"], value["embedded"], value["kept"], value["dry_run"]) == (40, 40, 0, False)
    with_variable = filled.pair("reembed", "--embedder", "static", "--json").json
    assert [each["advice"] for each in with_variable["configuration"]] == ["set PAIR__ENGINE__EMBEDDER=static"]


def test_what_the_error_advises_helps(filled: Workplace) -> None:
    later = {"PAIR__ENGINE__EMBEDDING_DIMENSION": "24"}
    assert "pair reembed --kb default" in filled.pair("search", "item7", **later).stderr
    done = filled.pair("reembed", "--kb", "default", **later).succeeds()
    assert "configuration" not in done.stderr, "it names the right one already"
    assert filled.pair("search", "item7", "--json", **later).json["results"][0]["id"] == "notes/7.md"


def test_bad_input_is_refused(filled: Workplace) -> None:
    filled.pair("reembed", "--embedder", "word2vec", "--json").fails(1, "E402")
    filled.pair("reembed", "--dimension", "0", "--json").fails(1, "E402")
    filled.pair("reembed", "--embedder", "static", "--dimension", "17", "--json").fails(1, "E401")
    filled.pair("reembed", "--embedder", "openai", "--json").fails(1, "E401")
    filled.pair("reembed", "--embedder", "static", "--kb", "nothing", "--json").fails(1, "E201")
    filled.pair("reembed", "--kb", "../x", "--json").fails(1, "E212")
    assert not list((filled.folder / ".pair").glob("cache-unfinished"))


def test_documents_without_text_are_named(filled: Workplace) -> None:
    line = {"id": "picture", "text": "", "vector": [1.0] * 384}
    (filled.folder / "pictures.jsonl").write_text(json.dumps(line))
    assert filled.pair("ingest", "pictures.jsonl").status == 0
    done = filled.pair("reembed", "--embedder", "static", "--json")
    done.fails(1, "E307")
    assert done.json["error"]["details"]["ids"] == ["picture"]


class StallingServer(ModelServer):
    """A server that answers one request for vectors of several texts, and the next ones after its release."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._answered = 0

    def answer_to(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> Answer:
        self._answered += len(request["input"]) > 1
        if self._answered > 1:
            self.reached.set()
            self.go_on.wait()
        return super().answer_to(path, headers, request)


def test_an_interrupted_run_leaves_the_kb_unchanged(filled: Workplace) -> None:
    with StallingServer() as server:
        remote = {"PAIR__ENGINE__EMBEDDING_URL": server.url}
        command = ("reembed", "--embedder", "openai", "--model", "tiny")
        running = filled.start(*command, **remote)
        assert server.reached.wait(60)
        running.send_signal(signal.SIGINT)
        server.go_on.set()
        _, told = running.communicate(timeout=60)
        assert running.returncode == 130, told
        assert "Interrupted" in told
        assert filled.pair("search", "item7", "--json").json["results"][0]["id"] == "notes/7.md"
        done = filled.pair(*command, "--json", **remote)
        assert done.json["changed"]
        found = filled.pair(
            "search", "item7", "--json", **remote, PAIR__ENGINE__EMBEDDER="openai", PAIR__ENGINE__EMBEDDING_MODEL="tiny"
        )
        assert found.json["results"][0]["id"] == "notes/7.md"
