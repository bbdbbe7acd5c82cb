"""`pair add`, `pair collections` and `pair remove`, and the syncs after them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command import Outcome, Workplace, write_files
from support.s3_server import S3Server
from support.server import Server

DOCS: dict[str, str | bytes] = {
    "guide.md": "---\nteam: pumps\n---\n# Pumps\n\nHow to install a pump.\n",
    "drafts/new.md": "# Draft\n\nNot yet.\n",
    "old.tmp": "junk",
    ".gitignore": "*.tmp\n",
}


@pytest.fixture
def project(workplace: Workplace) -> Workplace:
    write_files(workplace.folder / "docs", DOCS)
    write_files(workplace.folder / "wiki", {"home.md": "# Home\n\nTurbines turn.\n"})
    return workplace


def counts(done: Outcome) -> dict[str, Any]:
    names = ("added", "changed", "removed", "unchanged", "failed", "stored", "unstored")
    return {name: done.json[name] for name in names if done.json[name]}


def list_ids(project: Workplace, kb: str = "default") -> list[str]:
    return [each["id"] for each in project.pair("docs", "list", "--kb", kb, "--json").succeeds().json["documents"]]


def add_command(project: Workplace, script: str, *options: str) -> None:
    write_files(project.folder, {"source.py": f"import json, os, sys, time\ncursor = json.load(sys.stdin)\n{script}\n"})
    project.pair("add", f"{sys.executable} source.py", "--kind", "command", "--name", "items", *options).succeeds()


def test_two_folders_feed_two_knowledge_bases_and_one_is_removed(project: Workplace) -> None:
    write_files(project.folder, {"config.yaml": "# ours\nkb:\n  max_source_bytes: 50000  # small\n"})
    project.pair("add", "./docs", "--exclude", "drafts/").succeeds().says("docs:", "path: ./docs", "pair sync")
    project.pair("add", "wiki", "--kb", "team").succeeds()
    write_files(project.folder / "wiki", {"blank.md": "\n", "picture.png": b"\x89PNG\xff\xfe\x00"})
    assert counts(project.pair("sync", "--json").succeeds()) == {"added": 3, "stored": 2}
    assert (list_ids(project), list_ids(project, "team")) == (["docs/guide.md"], ["wiki/home.md"])
    listed = project.pair("collections", "--json").succeeds().json["collections"]
    assert [(row["name"], row["kind"], row["kb"], row["documents"]) for row in listed] == [
        ("docs", "path", "default", 1),
        ("wiki", "path", "team", 1),
    ]
    assert (project.folder / ".pair/index-team.txt").read_text().startswith("# wiki\n\nwiki/home.md\n")
    found = project.pair("search", "pump", "--filter", "collection=docs", "--filter", "team=pumps", "--json").succeeds()
    assert [hit["id"] for hit in found.json["results"]] == ["docs/guide.md"]
    assert counts(project.pair("sync", "--json")) == {"unchanged": 3}
    project.pair("remove", "wiki").succeeds().says("1 document will be removed by the next sync")
    assert counts(project.pair("sync", "--json").succeeds()) == {"removed": 2, "unchanged": 1, "unstored": 1}
    assert list_ids(project) == ["docs/guide.md"]
    project.pair("remove", "docs").succeeds()
    assert (project.folder / "config.yaml").read_text() == "# ours\nkb:\n  max_source_bytes: 50000  # small\n"


def test_the_rule_that_decides_about_a_path_is_named(project: Workplace) -> None:
    big: dict[str, str | bytes] = {"big.md": "x" * 200, ".hidden.md": "", "sub/a.md": "A.", "note.txt": "n"}
    write_files(project.folder / "docs", big)
    config = (
        "kb:\n  max_source_bytes: 150\n  collections:\n    docs:\n      path: docs\n      include: ['*.md', '*.tmp']\n"
    )
    config += "      exclude: [drafts/]\n    sub: {path: docs/sub}\n"
    config += "    guides: {path: wiki, include: [guides/**/*.md, /notes/]}\n"
    write_files(project.folder / "wiki", {"images/a.md": "A.", "notes/a.txt": "A."})
    os.mkfifo(project.folder / "docs/pipe.md")
    write_files(project.folder, {"config.yaml": config})
    project.pair("sync").succeeds()
    for path, reason in {
        "docs/guide.md": "included  docs/guide.md (collection docs): included by config.yaml:4: *.md; synced",
        "docs/old.tmp": "docs/.gitignore:1: *.tmp",
        "docs/drafts/new.md": "drafts is excluded by config.yaml:4: drafts/",
        "docs/note.txt": "config.yaml:4: no pattern of include matches (*.md, *.tmp)",
        "docs/.hidden.md": "is hidden",
        "docs/big.md": "larger than 150 bytes",
        "docs/missing.md": "missing.md does not exist",
        "docs/pipe.md": "excluded  docs/pipe.md (collection docs): not a regular file",
        "docs/sub/a.md": "sub is the folder of the collection sub",
        "wiki/images/a.md": "config.yaml:9: no pattern of include matches (guides/**/*.md, /notes/)",
        "wiki/notes/a.txt": "its folder is included by config.yaml:9: /notes/",
        "config.yaml": "it is in no collection",
        "https://example.com/": "it is in no collection",
    }.items():
        project.pair("status", "--why", path).succeeds().prints(reason)
    plan = project.pair("sync", "--dry-run").succeeds()
    plan.prints(
        "docs/.gitignore:1: *.tmp", "config.yaml:4: drafts/", "(*.md, *.tmp)", "Skipped: docs/big.md: larger than"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["add", "missing"], "E402", "no such folder"),
        (["add", ""], "E402", "no such folder"),
        (["add", "docs/guide.md"], "E402", "it is a file, not a folder"),
        (["add", "ftp://example.com/"], "E402", "only http, https and bucket addresses"),
        (["add", "https://"], "E402", "needs a valid host"),
        (["add", "http://[::1"], "E402", "needs a valid host"),
        (["add", "s3://"], "E402", "needs a valid host"),
        (["add", "https://me:hunter2@example.com/"], "E402", "no user name or password"),
        (["add", "python3 'notes.py", "--kind", "command"], "E402", "a quotation mark is not closed"),
        (["add", " ", "--kind", "command"], "E402", "the command is empty"),
        (["add", "missing.txt", "--kind", "links"], "E402", "no such file"),
        (["add", "wiki", "--name", ""], "E402", "letters, digits"),
        (["add", "wiki", "--include", ""], "E401", "blank or a comment"),
        (["add", "docs", "--name", "a/b"], "E402", "letters, digits"),
        (["add", "docs", "--name", "again"], "E401", "same place as kb.collections.docs"),
        (["add", "https://example.com/", "--include", "*.md"], "E401", "include is only for"),
        (["add", "docs", "--kind", "folder"], "E402", "Cannot use kind"),
        (["remove", "other"], "E401", "it has no collection other"),
    ],
)
def test_what_cannot_be_added_or_removed_changes_nothing(
    project: Workplace, arguments: list[str], code: str, reason: str
) -> None:
    project.pair("add", "docs").succeeds()
    before = (project.folder / "config.yaml").read_bytes()
    refused = project.pair(*arguments, "--json")
    assert (refused.error_code, reason in refused.stdout) == (code, True), refused.stdout
    assert "hunter2" not in refused.stdout + refused.stderr
    assert (project.folder / "config.yaml").read_bytes() == before


def test_folders_that_are_added_at_the_same_time_are_all_kept(project: Workplace) -> None:
    names = [f"part{number}" for number in range(6)]
    for name in names:
        write_files(project.folder / name, {"a.md": "# A"})
    running = [project.start("add", name) for name in names]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 6, outputs
    listed = project.pair("collections", "--json").succeeds().json["collections"]
    assert sorted(row["name"] for row in listed) == names


def test_an_edit_keeps_the_permissions_of_the_configuration(project: Workplace) -> None:
    write_files(project.folder, {"config.yaml": "kb:\n  max_source_bytes: 50000\n"})
    config = project.folder / "config.yaml"
    config.chmod(0o600)
    project.pair("add", "docs").succeeds()
    assert config.stat().st_mode & 0o777 == 0o600
    config.chmod(0o400)
    project.obey_permissions()
    before = config.read_bytes()
    for command in (("add", "wiki"), ("remove", "docs")):
        project.pair(*command).exits(3).says("Cannot write config.yaml: permission denied")
    assert config.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_named_and_keeps_the_configuration(project: Workplace) -> None:
    small = project.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=True)
    try:
        (small / "config.yaml").write_text("# ours\n")
        with (small / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            filler.write(bytes(100_000))
        reason = f"Cannot write {small}/config.yaml: no space left on the disk"
        project.pair("--config", small / "config.yaml", "add", "docs").exits(3).says(reason)
        assert sorted(path.name for path in small.iterdir()) == ["config.yaml", "filler"]
        assert (small / "config.yaml").read_text() == "# ours\n"
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_collection_is_named_after_its_whole_folder(project: Workplace) -> None:
    for folder, name in {"v1.2": "v1-2", "..notes": "notes", "two words": "two-words"}.items():
        write_files(project.folder / folder, {"a.md": "# A"})
        assert project.pair("add", folder, "--json").succeeds().json["collection"] == name


def test_an_added_command_that_needs_trust_says_so(project: Workplace) -> None:
    write_files(project.folder, {"config.yaml": "kb:\n  allow_private_addresses: true\n"})
    project.pair("add", "true", "--kind", "command", "--name", "items").succeeds().says("pair trust && pair sync")
    project.trust()
    project.pair("add", "true x", "--kind", "command", "--name", "more").succeeds().says("Sync it: pair sync")


def test_a_token_in_the_address_of_a_collection_is_not_shown(project: Workplace, server: Server) -> None:
    html = {"Content-Type": "text/html"}
    for path in ("/guide/", "/guide/a", "/robots.txt"):
        body = b"" if "robots" in path else b"<p>Soot. <a href='a?token=hunter2'>A</a> " + path.encode()
        server.add(path, body, checksum=False)
        server.pages[path].headers = html
    loopback = {"PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true"}
    project.pair("add", server.url("/guide/?token=hunter2"), "--name", "site").succeeds()
    project.pair("add", server.url("/feed?token=hunter2"), "--kind", "feed", "--name", "news").succeeds()
    done = project.pair("sync", "--json", **loopback).succeeds()
    assert counts(done) == {"added": 2, "failed": 1, "stored": 2}
    assert counts(project.pair("sync", "--refresh", "--json", **loopback).succeeds()) == {"unchanged": 2, "failed": 1}
    found = project.pair("search", "soot", "--json").succeeds()
    status = project.pair("status", "--json").succeeds()
    index = (project.folder / ".pair/index.txt").read_text()
    assert "hunter2" not in done.stdout + found.stdout + status.stdout + index + str(list_ids(project))


def test_a_folder_that_became_a_file_is_reported_and_keeps_its_documents(project: Workplace) -> None:
    project.pair("add", "wiki").succeeds()
    project.pair("sync").succeeds()
    (project.folder / "wiki").rename(project.folder / "old")
    write_files(project.folder, {"wiki": "a file"})
    project.pair("sync").exits(1).says("Cannot read wiki: it is a file, not a folder.")
    assert list_ids(project) == ["wiki/home.md"]


def test_a_command_runs_only_if_its_configuration_is_trusted(project: Workplace) -> None:
    add_command(project, "print(json.dumps({'id': 'a', 'text': 'About flanges.'}))")
    assert counts(project.pair("sync", "--json").succeeds()) == {"added": 1, "stored": 1}
    text = (project.folder / "config.yaml").read_text()
    write_files(project.folder, {"config.yaml": f"{text}# changed\n"})
    done = project.pair("sync", "--refresh", "--json").exits(1)
    assert "is not trusted" in done.json["errors"][0]
    assert list_ids(project) == ["items/a"]
    project.trust()
    assert counts(project.pair("sync", "--refresh", "--json").succeeds()) == {"unchanged": 1}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("print('rubbish')", "line 2 of the output is not valid"),
        ("print('{\"id\": \"half', end='')", "line 2 of the output"),
        ("sys.stdout.write('x' * 20_000_000)", "longer than"),
        ("sys.exit(3)", "the command ended with status 3"),
        ("sys.stdout.flush(); os.kill(os.getpid(), 9)", "signal 9"),
        ("sys.stdout.flush(); time.sleep(600)", "did not end within 1 s"),
    ],
)
def test_what_a_command_printed_before_it_failed_counts(project: Workplace, script: str, reason: str) -> None:
    add_command(project, f"print(json.dumps({{'id': 'a', 'text': 'One.'}}))\n{script}")
    text = (project.folder / "config.yaml").read_text()
    write_files(project.folder, {"config.yaml": f"{text}      timeout_seconds: {1 if 'sleep' in script else 60}\n"})
    project.trust()
    done = project.pair("sync", "--json").succeeds()
    assert counts(done) == {"added": 1, "failed": 1, "stored": 1}
    assert reason in done.json["problems"][0]["reason"]
    project.pair("status").succeeds().prints("Failing: items: ", "items: 1")


def test_a_command_that_prints_nothing_or_an_id_twice_changes_what_it_says(project: Workplace) -> None:
    add_command(project, "for text in ('One.', 'Two.') if cursor is None else ():")
    write_files(
        project.folder,
        {
            "source.py": "import json, sys\nif json.load(sys.stdin) is None:\n"
            '    print(\'{"id": "a", "text": "One."}\\n{"id": "a", "text": "Two."}\\n{"cursor": 1}\')\n'
        },
    )
    assert counts(project.pair("sync", "--json").succeeds()) == {"added": 1, "stored": 1}
    assert project.pair("docs", "get", "items/a").succeeds().stdout.strip() == "Two."
    assert counts(project.pair("sync", "--refresh", "--json").succeeds()) == {"unchanged": 1}
    project.pair("sync", "--dry-run", "--refresh", "items").prints("due        items")


def mentions(path: Path, text: bytes) -> bool:
    """Return whether a file has this text. The sync may delete the file at any moment."""
    try:
        return text in path.read_bytes()
    except FileNotFoundError:
        return False


def test_a_sync_killed_in_a_command_continues_where_it_stopped(project: Workplace, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    add_command(
        project,
        "for number in range(cursor or 0, 5):\n"
        "    print(json.dumps({'id': str(number), 'text': f'Number {number}.'}), flush=True)\n"
        "    print(json.dumps({'cursor': number + 1}), flush=True)\n"
        f"    if number == 2 and cursor is None: open({str(pipe)!r}).read()",
    )
    process = project.start("sync")
    with pipe.open("w"):
        state = project.folder / ".pair"
        while not any(mentions(path, b'"items/2"') for path in state.glob("index-cache.json*")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    done = project.pair("sync", "--json").succeeds()
    assert done.json["added"] + done.json["unchanged"] + done.json["changed"] == 5
    assert list_ids(project) == [f"items/{number}" for number in range(5)]
    cursor = json.loads((state / "index-cache.json").read_bytes())["cursors"]["items"]["value"]
    assert cursor == 5


def test_a_site_and_a_feed_are_collections(project: Workplace, server: Server) -> None:
    html = {"Content-Type": "text/html"}
    for path, text in {"/robots.txt": "", "/guide/": "<p>Boilers. <a href='a'>A</a>", "/guide/a": "<p>Soot."}.items():
        server.add(path, text.encode(), checksum=False)
        server.pages[path].headers = html if text else {"Content-Type": "text/plain"}
    feed = (
        "<rss><channel><item><guid>n1</guid><title>News</title><description>Ducts</description></item></channel></rss>"
    )
    address = server.add("/feed.xml", feed.encode(), checksum=False)
    loopback = {"PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true"}
    site = address.replace("feed.xml", "guide/")
    project.pair("add", site, "--name", "site").succeeds()
    project.pair("add", address, "--name", "news", "--kind", "feed").succeeds()
    assert counts(project.pair("sync", "--json", **loopback).succeeds()) == {"added": 3, "stored": 3}
    assert list_ids(project) == [site, f"{site}a", "news/n1"]
    found = project.pair("search", "soot", "--filter", "collection=site", "--json").succeeds().json["results"]
    assert found[0]["url"] == f"{site}a"
    assert counts(project.pair("sync", "--refresh", "--json", **loopback).succeeds()) == {"unchanged": 3}


def test_two_machines_with_the_same_collections_feed_one_knowledge_base(project: Workplace, tmp_path: Path) -> None:
    other = Workplace(tmp_path / "other")
    write_files(other.folder / "docs", DOCS)
    store = {"PAIR__ENGINE__STORE": str(tmp_path / "store")}
    for machine in (project, other):
        machine.pair("add", "docs").succeeds()
    running = [machine.start("sync", "--json", **store) for machine in (project, project, other)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    for machine in (project, other):
        assert counts(machine.pair("sync", "--json", **store).succeeds()) == {"unchanged": 2}
        listed = machine.pair("docs", "list", "--json", **store).succeeds().json["documents"]
        assert [each["id"] for each in listed] == ["docs/drafts/new.md", "docs/guide.md"]


def test_a_knowledge_base_without_collections_leaves_no_state_behind(project: Workplace) -> None:
    project.pair("add", "wiki", "--kb", "team").succeeds()
    project.pair("sync").succeeds()
    project.pair("remove", "wiki").succeeds()
    assert counts(project.pair("sync", "--json").succeeds()) == {"removed": 1, "unstored": 1}
    assert [path.name for path in (project.folder / ".pair").glob("index*team*")] == []
    assert list_ids(project, "team") == []


def test_a_bucket_is_a_collection(project: Workplace, s3: S3Server) -> None:
    variables = s3.variables()
    with contextlib.closing(s3.store("notes")) as store:
        for key, text in {"a.md": b"# A", "deep/b.md": b"# B"}.items():
            store.put(key, text)
        project.pair("add", "s3://blobs/notes", "--name", "notes").succeeds()
        assert counts(project.pair("sync", "--json", **variables).succeeds()) == {"added": 2, "stored": 2}
        assert list_ids(project) == ["notes/a.md", "notes/deep/b.md"]
        store.delete("a.md")
    done = project.pair("sync", "--refresh", "notes", "--json", **variables).succeeds()
    assert counts(done) == {"removed": 1, "unchanged": 1, "unstored": 1}
