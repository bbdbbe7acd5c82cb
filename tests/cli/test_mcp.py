"""`pair mcp`: the official client on standard input and output, and its entry in the configuration of assistants."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from mcp import Client

from pair.app.mcp.client_config import Client as Assistant
from pair.values import Document
from support.assistants import called, checked_tools, over_stdio, refusal
from support.command import PAIR, Workplace
from support.served import opened

HANDBOOK = {
    "deploy.md": "# Deploying\n\nDeploy on Tuesdays. Roll back with the command make rollback.",
    "lunch.md": "# Lunch\n\nLunch is at one. On Fridays there is soup.",
}
LONG = "".join(f"Line {number} of a long story.\n" for number in range(20_000))
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Return a project with the KBs `default` and `notes`."""
    workplace = Workplace(tmp_path_factory.mktemp("mcp"))
    for kb_id, texts in {
        "default": {**HANDBOOK, "long.txt": LONG},
        "notes": {"vault.md": "The vault opens at nine."},
    }.items():
        with opened(workplace.folder, kb_id) as kb:
            kb.upsert([Document(name, text) for name, text in texts.items()])
    return workplace


def started(project: Workplace, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["env", "--default-signal=INT,TERM", *PAIR, "mcp", *options],
        cwd=project.folder,
        env=project.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sent(process: "subprocess.Popen[str]", message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    process.stdin.flush()


def received(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def greeted(process: "subprocess.Popen[str]") -> None:
    sent(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": GREETING})
    assert received(process)["result"]["serverInfo"]["name"] == "pair"
    sent(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})


def test_an_assistant_on_this_machine_finds_reads_and_asks_and_writes_nothing(project: Workplace):
    async def work(client: Client) -> None:
        assert checked_tools((await client.list_tools()).tools) == [
            "search",
            "fetch",
            "ask",
            "list_kbs",
            "feedback",
        ]
        found = await called(client, "search", query="how do I roll back?", limit=1)
        assert "make rollback" in found["results"][0]["text"]
        assert "make rollback" in (await called(client, "fetch", id=found["results"][0]["id"]))["text"]
        answer = await called(client, "ask", query="When is lunch?")
        assert "one" in answer["answer"]
        assert answer["sources"][0]["id"].endswith("lunch.md")
        assert [each["kb"] for each in (await called(client, "list_kbs"))["kbs"]] == ["default", "notes"]
        assert "nine" in (await called(client, "ask", query="When does the vault open?", kb="notes"))["answer"]
        long = (await called(client, "search", query="long story", limit=1))["results"][0]["id"]
        part = await called(client, "fetch", id=long)
        assert LONG.startswith(part["text"])
        assert 10_000 < part["next_offset"] < part["total"] == len(LONG)
        assert (await refusal(client, "delete", id="lunch.md"))["code"] == "E603"
        assert (await refusal(client, "fetch", id="none"))["code"] == "E214"
        [listed, other] = (await client.list_resources()).resources
        assert (listed.uri, other.uri) == ("kb://default", "kb://notes")
        assert (await client.read_resource(found["results"][0]["id"])).contents
        with opened(project.folder) as kb:
            kb.upsert([Document("news.md", "The canteen has a new oven.")])
        assert (await called(client, "search", query="new oven", limit=1))["results"][0]["id"] == "kb://default/news.md"

    over_stdio(project.folder, project.environment, work)


def test_the_entry_of_an_assistant_starts_what_was_asked_for_from_anywhere(project: Workplace, tmp_path: Path):
    done = project.pair("mcp", "--install", "claude", "--kb", "notes", "--allow-write", "--json").json
    assert (done["outcome"], done["path"]) == ("added", str(project.folder / ".mcp.json"))
    entry = json.loads((project.folder / ".mcp.json").read_text())["mcpServers"]["pair"]
    assert entry == done["server"]
    assert entry["type"] == "stdio"
    assert Path(entry["command"]).is_absolute()

    async def work(client: Client) -> None:
        assert [each["kb"] for each in (await called(client, "list_kbs"))["kbs"]] == ["notes"]
        assert (await refusal(client, "search", query="lunch", kb="default"))["code"] == "E603"
        documents = [{"id": "key.md", "text": "The key is under the mat."}]
        assert (await called(client, "ingest", documents=documents))["ids"] == ["kb://notes/key.md"]
        assert "mat" in (await called(client, "ask", query="Where is the key?"))["answer"]
        assert (await called(client, "delete", id="key.md"))["deleted"] == 1

    command = [entry["command"], *entry["args"]]
    over_stdio(tmp_path, project.environment, work, command=command, mode="legacy")


def test_it_ends_with_its_input_and_what_was_begun_is_stored(project: Workplace):
    process = started(project, "--allow-write", "--log-level", "debug")
    sent(process, "no JSON at all")
    greeted(process)
    arguments = {"kb": "late", "documents": [{"id": f"{number}", "text": f"Note {number}."} for number in range(50)]}
    call = {"name": "ingest", "arguments": arguments}
    sent(process, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    sent(process, {"jsonrpc": "2.0", "id": 2, "method": "ping"})
    assert received(process)["id"] in {1, 2}  # requests are begun in their order
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    with opened(project.folder, "late") as kb:
        assert len(kb.documents()) == 50


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_on_a_signal(project: Workplace, number: signal.Signals):
    process = started(project)
    greeted(process)
    process.send_signal(number)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "", "")


def test_a_fault_of_a_native_library_leaves_a_traceback(project: Workplace):
    process = started(project)
    greeted(process)
    process.send_signal(signal.SIGSEGV)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in errors


# ── the configuration of assistants ────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_the_file_and_writes_none(project: Workplace):
    done = project.pair("mcp", "--install", "vscode", "--allow-write", "--dry-run")
    assert json.loads(done.stdout)["servers"]["pair"]["args"][-1] == "--allow-write"
    assert not (project.folder / ".vscode").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--project", "nowhere"], "E402"),
        (["--kb", "../x"], "E212"),
        (["--install", "claude", "--remove", "cursor"], "E402"),
        (["--name", "x"], "E402"),
    ],
    ids=["no folder", "no name", "two tasks", "a name for nothing"],
)
def test_what_makes_no_sense_is_refused(project: Workplace, options: list[str], code: str):
    done = project.pair("mcp", *options)
    assert (done.status, done.stdout) == (1, "")
    assert f"Code: {code}" in done.stderr


def test_a_name_that_cannot_be_printed_is_refused_as_such(project: Workplace):
    done = project.pair("mcp", "--install", "claude", "--name", "\x1b[31m", "--json").exits(1).json
    assert done["error"]["message"] == "Cannot use this --name: it has characters that cannot be printed."


@pytest.mark.parametrize("assistant", get_args(Assistant))
def test_every_assistant_has_an_entry_that_starts_the_server_and_can_be_removed(
    assistant: str, project: Workplace, tmp_path: Path
):
    done = project.pair("mcp", "--install", assistant, "--json").json
    path = Path(done["path"])
    read = tomllib.loads if path.suffix == ".toml" else json.loads
    (servers,) = read(path.read_text()).values()
    entry = servers[done["name"]]
    assert entry == done["server"]

    async def work(client: Client) -> None:
        assert (await called(client, "search", query="lunch", limit=1))["results"][0]["id"] == "kb://default/lunch.md"

    over_stdio(tmp_path, project.environment, work, command=[entry["command"], *entry["args"]])
    assert project.pair("mcp", "--install", assistant, "--json").json["outcome"] == "unchanged"
    assert project.pair("mcp", "--remove", assistant, "--json").json["outcome"] == "removed"
    assert done["name"] not in path.read_text()


def test_the_entry_can_be_printed_for_any_other_assistant(project: Workplace):
    printed = json.loads(project.pair("mcp", "--print", "--name", "docs").stdout)
    assert printed["mcpServers"]["docs"]["args"][-2:] == ["--project", str(project.folder)]


def test_a_skill_and_a_plugin_are_written_for_a_kb(project: Workplace, tmp_path: Path):
    folder = tmp_path / "plugin"
    done = project.pair("skill", str(folder), "--kb", "notes", "--name", "Our Notes!", "--json").json
    assert (done["name"], done["changed"]) == ("our-notes", 3)
    manifest = json.loads((folder / ".claude-plugin" / "plugin.json").read_text())
    _, head, body = (folder / "skills" / "our-notes" / "SKILL.md").read_text().split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == manifest["name"] == "our-notes"
    assert about["description"] == manifest["description"]
    assert "vault.md" in about["description"]
    assert len(about["description"]) <= 1024
    assert '`kb: "notes"`' in body
    entry = json.loads((folder / ".mcp.json").read_text())["mcpServers"]["pair"]

    async def work(client: Client) -> None:
        assert "nine" in (await called(client, "search", query="When does the vault open?"))["results"][0]["text"]

    over_stdio(tmp_path, project.environment, work, command=[entry["command"], *entry["args"]])
    assert project.pair("skill", str(folder), "--kb", "notes", "--name", "Our Notes!", "--json").json["changed"] == 0
    (folder / ".mcp.json").write_text("{}")
    refused = project.pair("skill", str(folder), "--kb", "notes", "--name", "our-notes", "--json")
    assert refused.error_code == "E402"
    assert (folder / ".mcp.json").read_text() == "{}"
    assert (
        project.pair("skill", str(folder), "--kb", "notes", "--name", "our-notes", "--force", "--json").json["changed"]
        == 1
    )
    assert project.pair("skill", str(folder), "--kb", "nowhere", "--json").error_code == "E201"


def test_the_sdk_is_loaded_for_assistants_only():
    code = (
        "import sys, pair.app.cli.commands, pair.app.http.app; pair.app.cli.commands.build();"
        "print('mcp' in sys.modules, 'mcp_types' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
