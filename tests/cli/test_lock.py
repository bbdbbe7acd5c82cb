"""`pair lock` and `pair install --locked`: writing, checking and installing, and errors that name each difference."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from support.command import Outcome, Workplace, read_files, write_files
from support.kbs import SMALL_KB, sha256, zip_of
from support.releases import feed_in, move_version, publish, published, serve
from support.server import Page, Server


def lock_of(workplace: Workplace) -> Path:
    return workplace.folder / "pair.lock"


def edit_lock(workplace: Workplace, field: str, value: str) -> str:
    """Set a field in every table, and return its former value in the first one."""
    text = lock_of(workplace).read_text()
    [old, *_] = re.findall(rf'(?m)^{field} = "(.*)"$', text)
    lock_of(workplace).write_text(re.sub(rf'(?m)^{field} = ".*"$', f'{field} = "{value}"', text))
    return str(old)


def drifts(done: Outcome) -> list[str]:
    assert (done.status, done.error_code) == (4, "E022"), done.stdout
    return list(done.json["error"]["details"]["drifts"])


def archive_of(workplace: Workplace, version: str) -> str:
    return sha256((workplace.folder / "dist" / f"handbook-{version}.zip").read_bytes())


@pytest.fixture
def locked(workplace: Workplace, server: Server) -> str:
    """Install and lock a KB from a feed; return the address of the feed."""
    feed = published(workplace, server, "1.0.0")
    workplace.pair("install", "--source", f"{feed}#handbook").succeeds()
    workplace.pair("lock").succeeds()
    return feed


def forget(workplace: Workplace, server: Server) -> None:
    """Remove everything except the lock of the project."""
    for folder in (workplace.folder / ".pair", workplace.cache):
        subprocess.run(["rm", "-rf", folder], check=True)
    server.received.clear()


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


def test_a_lock_says_what_is_installed_to_the_byte(workplace: Workplace, locked: str) -> None:
    release = feed_in(workplace.folder / "dist")["kbs"]["handbook"]["releases"][0]
    text = lock_of(workplace).read_text()
    assert text.partition("\n\n")[2] == (
        "version = 1\n\n[[kb]]\n"
        f'id = "default"\ntarget = ".pair/knowledge"\nsource = "{locked}#handbook"\n'
        f'name = "handbook"\nversion = "1.0.0"\narchive_sha256 = "{release["sha256"]}"\n'
        f'content_sha256 = "{release["content_checksum"].removeprefix("sha256:")}"\n'
        'embedder = ""\nmanifest_version = 0\n'
    )


def test_the_same_state_gives_the_same_lock_and_leaves_the_file_alone(workplace: Workplace, locked: str) -> None:
    before = lock_of(workplace).stat().st_mtime_ns
    assert workplace.pair("lock", "--json").succeeds().json["is_changed"] is False
    assert lock_of(workplace).stat().st_mtime_ns == before
    content = lock_of(workplace).read_bytes()
    workplace.pair("install", "--force", "--source", f"{locked}#handbook").succeeds()
    workplace.pair("lock").succeeds()
    assert lock_of(workplace).read_bytes() == content


def test_kinds_of_sources_are_locked_each_as_it_can_be(workplace: Workplace, server: Server) -> None:
    write_files(workplace.folder / "folder", SMALL_KB)
    archive = zip_of(SMALL_KB)
    (workplace.folder / "kb.zip").write_bytes(archive)
    url = server.add("/kb.zip", archive)
    for name, source in (("folder", "./folder"), ("zip", "./kb.zip"), ("url", url)):
        workplace.pair("install", f"kbs/{name}", "--kb", name, "--source", source).succeeds()
    done = workplace.pair("lock", "kbs/zip", "kbs/url", "kbs/folder", "--json").succeeds()
    found = {kb["id"]: kb for kb in done.json["kbs"]}
    assert list(found) == ["folder", "url", "zip"]
    assert [found[name]["source"] for name in ("folder", "zip", "url")] == ["./folder", "./kb.zip", url]
    assert [found[name]["archive_sha256"] for name in ("folder", "zip", "url")] == [
        "",
        sha256(archive),
        sha256(archive),
    ]
    assert len({kb["content_sha256"] for kb in found.values()}) == 1
    assert [kb["target"] for kb in found.values()] == ["kbs/folder", "kbs/url", "kbs/zip"]
    workplace.pair("lock", "--check").succeeds()
    subprocess.run(["rm", "-rf", workplace.folder / "kbs", workplace.cache], check=True)
    workplace.pair("install", "--locked").succeeds()
    workplace.pair("lock", "--check").succeeds()


def test_one_more_target_is_added_and_the_rest_of_the_lock_stays(workplace: Workplace, locked: str) -> None:
    publish(workplace, "2.0.0", name="cookbook")
    workplace.pair("install", "docs/cookbook", "--source", "./dist/cookbook@2.0.0", "--kb", "cookbook").succeeds()
    workplace.pair("lock", "docs/cookbook").succeeds()
    assert re.findall(r'(?m)^id = "(.*)"$', lock_of(workplace).read_text()) == ["cookbook", "default"]
    before = lock_of(workplace).read_bytes()
    workplace.pair("lock").succeeds()
    assert lock_of(workplace).read_bytes() == before


def test_two_targets_with_one_id_are_refused_with_the_way_out(workplace: Workplace, locked: str) -> None:
    before = lock_of(workplace).read_bytes()
    workplace.pair("install", "other", "--kb", "default", "--source", f"{locked}#handbook").succeeds()
    workplace.pair("lock", "other").exits(1).says(
        ".pair/knowledge and other are both the KB 'default'", "pair update other --kb ID"
    )
    assert lock_of(workplace).read_bytes() == before
    workplace.pair("update", "other", "--kb", "other").succeeds()
    workplace.pair("lock", "other").succeeds()


def test_nothing_to_lock_is_refused(workplace: Workplace) -> None:
    assert workplace.pair("lock", "--json").error_code == "E012"
    assert not lock_of(workplace).exists()


def test_what_is_locked_and_not_installed_is_not_forgotten(workplace: Workplace, server: Server, locked: str) -> None:
    before = lock_of(workplace).read_bytes()
    forget(workplace, server)
    assert workplace.pair("lock", "--json").error_code == "E012"
    assert lock_of(workplace).read_bytes() == before


def test_a_query_in_a_source_is_pointed_out(workplace: Workplace, server: Server) -> None:
    server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", server.url("/kb.zip?key=1")).succeeds()
    assert "Do not share pair.lock" in workplace.pair("lock").succeeds().stderr


def test_another_file_may_be_the_lock(workplace: Workplace, server: Server, locked: str) -> None:
    subprocess.run(["mv", lock_of(workplace), workplace.folder / "other.lock"], check=True)
    assert workplace.pair("lock", "--check", "--json").error_code == "E023"
    workplace.pair("lock", "--check", "--lock-file", "other.lock").succeeds()
    forget(workplace, server)
    assert workplace.pair("install", "--locked", "--json").error_code == "E023"
    workplace.pair("install", "--locked", "--lock-file", "other.lock").succeeds()


# ── installing ─────────────────────────────────────────────────────────────────────────────────────


def test_a_locked_install_brings_the_same_bytes_to_another_machine(
    workplace: Workplace, server: Server, locked: str
) -> None:
    before, record = read_files(workplace.target), lock_of(workplace).read_bytes()
    published(workplace, server, "1.1.0")
    forget(workplace, server)
    done = workplace.pair("install", "--locked", "--json").succeeds()
    assert [kb["version"] for kb in done.json["kbs"]] == ["1.0.0"]
    assert read_files(workplace.target) == before
    workplace.pair("lock", "--check").succeeds()
    workplace.pair("lock").succeeds()
    assert lock_of(workplace).read_bytes() == record
    workplace.pair("update").succeeds()
    assert (workplace.target / "page.md").read_text() == "1.1.0"


@pytest.mark.parametrize("by_lock", [True, False], ids=["by a locked install", "by a plain one"])
def test_what_is_in_the_cache_by_its_hash_needs_no_network(
    workplace: Workplace, server: Server, locked: str, by_lock: bool
) -> None:
    if by_lock:
        forget(workplace, server)
        workplace.pair("install", "--locked").succeeds()
    subprocess.run(["rm", "-rf", workplace.target], check=True)
    server.received.clear()
    workplace.pair("install", "--locked").succeeds()
    assert server.received == []
    assert (workplace.target / "page.md").read_text() == "1.0.0"


def test_a_locked_install_takes_back_an_update(workplace: Workplace, server: Server, locked: str) -> None:
    published(workplace, server, "1.1.0")
    workplace.pair("update").succeeds()
    workplace.pair("install", "--locked").succeeds()
    assert (workplace.target / "page.md").read_text() == "1.0.0"
    workplace.pair("lock", "--check").succeeds()


def test_a_locked_install_brings_back_what_a_moved_version_replaced(
    workplace: Workplace, server: Server, locked: str
) -> None:
    move_version(workplace, server, "1.0.0")
    workplace.pair("update", "--force").succeeds()
    assert (workplace.target / "page.md").read_text() == "moved"
    workplace.pair("install", "--locked").succeeds()
    assert (workplace.target / "page.md").read_text() == "1.0.0"


def test_one_target_of_several_can_be_installed_alone(workplace: Workplace, server: Server, locked: str) -> None:
    workplace.pair("install", "other", "--kb", "other", "--source", f"{locked}#handbook@1.0.0").succeeds()
    workplace.pair("lock", "other").succeeds()
    subprocess.run(["rm", "-rf", workplace.folder / "other", workplace.target], check=True)
    workplace.pair("install", "--locked", "./other").succeeds()
    assert (workplace.folder / "other").exists()
    assert not workplace.target.exists()
    assert drifts(workplace.pair("install", "--locked", "third", "--json")) == [
        "third: not locked; locked are: .pair/knowledge, other"
    ]


@pytest.mark.parametrize(("option", "value"), [("--source", "./kb.zip"), ("--kb", "other")])
def test_locked_excludes_source_and_kb(workplace: Workplace, option: str, value: str) -> None:
    assert workplace.pair("install", "--locked", option, value, "--json").error_code == "E402"


def test_a_dry_run_of_a_locked_install_changes_nothing(workplace: Workplace, server: Server, locked: str) -> None:
    forget(workplace, server)
    workplace.pair("install", "--locked", "--dry-run").succeeds().says("Dry run")
    assert not workplace.target.exists()


def test_a_locked_install_may_be_offline_where_its_sources_are_here(
    workplace: Workplace, server: Server, locked: str
) -> None:
    assert workplace.pair("install", "--locked", "--offline", "--json").error_code == "E002"
    publish(workplace, "3.0.0")
    workplace.pair("install", "--source", "./dist/releases.json#handbook").succeeds()
    workplace.pair("lock").succeeds()
    forget(workplace, server)
    workplace.pair("install", "--locked", "--offline").succeeds()
    assert server.received == []


def test_the_latest_release_is_locked_by_the_address_of_its_archive(workplace: Workplace, server: Server) -> None:
    url = server.add("/latest.zip", zip_of(SMALL_KB))
    workplace.pair("install", PAIR_KB_DEFAULT_URL=url).succeeds()
    assert workplace.pair("lock", "--json").succeeds().json["kbs"][0]["source"] == url
    forget(workplace, server)
    workplace.pair("install", "--locked").succeeds()
    workplace.pair("lock", "--check").succeeds()


# ── refusing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("field", "words"), [("archive_sha256", "archive"), ("content_sha256", "content")])
@pytest.mark.parametrize("is_there", [True, False], ids=["over what is installed", "on an empty machine"])
def test_a_lock_with_a_wrong_hash_is_refused_with_both(
    workplace: Workplace, server: Server, locked: str, field: str, words: str, is_there: bool
) -> None:
    right = edit_lock(workplace, field, "ab" * 32)
    if not is_there:
        forget(workplace, server)
    before = read_files(workplace.target) if is_there else None
    [drift] = drifts(workplace.pair("install", "--locked", "--json"))
    assert words in drift
    assert drift.endswith(f"locked {'ab' * 32}, found {right}")
    assert (read_files(workplace.target) if is_there else None) == before
    assert is_there or not workplace.target.exists()


@pytest.mark.parametrize("field", ["archive_sha256", "content_sha256"])
@pytest.mark.parametrize("kind", ["url", "zip"])
def test_a_wrong_hash_of_an_archive_without_a_feed_is_refused(
    workplace: Workplace, server: Server, kind: str, field: str
) -> None:
    (workplace.folder / "kb.zip").write_bytes(zip_of(SMALL_KB))
    url = server.add("/kb.zip", zip_of(SMALL_KB))
    workplace.pair("install", "--source", url if kind == "url" else "./kb.zip").succeeds()
    workplace.pair("lock").succeeds()
    right = edit_lock(workplace, field, "ab" * 32)
    before = read_files(workplace.target)
    [drift] = drifts(workplace.pair("install", "--locked", "--json"))
    assert drift.endswith(f"locked {'ab' * 32}, found {right}")
    assert read_files(workplace.target) == before


def test_an_archive_that_changed_at_its_address_is_refused_and_one_that_came_back_is_fetched(
    workplace: Workplace, server: Server
) -> None:
    old, new = zip_of(SMALL_KB), zip_of({**SMALL_KB, "new.md": "new"})
    url = server.add("/kb.zip", old)
    workplace.pair("install", "--source", url).succeeds()
    workplace.pair("lock").succeeds()
    server.add("/kb.zip", new, etag='"two"')
    workplace.pair("update").succeeds()
    before = read_files(workplace.target)
    [drift, *_] = drifts(workplace.pair("install", "--locked", "--json"))
    assert drift == f"default: archive SHA-256: locked {sha256(old)}, found {sha256(new)}"
    assert read_files(workplace.target) == before
    server.add("/kb.zip", old, etag='"three"')
    workplace.pair("install", "--locked").succeeds()
    assert not (workplace.target / "new.md").exists()


def test_a_folder_that_changed_is_refused(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("install", "--source", "./kb").succeeds()
    workplace.pair("lock").succeeds()
    write_files(workplace.folder / "kb", {"new.md": "new"})
    [drift] = drifts(workplace.pair("install", "--locked", "--json"))
    assert drift.startswith("default: content SHA-256: locked ")
    assert not (workplace.target / "new.md").exists()
    (workplace.folder / "kb" / "new.md").unlink()
    workplace.pair("install", "--locked").succeeds()


def test_a_feed_that_moved_a_locked_version_is_refused_with_both(
    workplace: Workplace, server: Server, locked: str
) -> None:
    old = archive_of(workplace, "1.0.0")
    forget(workplace, server)
    move_version(workplace, server, "1.0.0")
    what, new = "archive SHA-256 of handbook 1.0.0 in the release index", archive_of(workplace, "1.0.0")
    assert drifts(workplace.pair("install", "--locked", "--json")) == [f"default: {what}: locked {old}, found {new}"]
    assert not workplace.target.exists()
    assert server.requests("/kbs/handbook-1.0.0.zip") == []


def test_a_locked_version_that_the_feed_has_no_more_is_refused(
    workplace: Workplace, server: Server, locked: str
) -> None:
    published(workplace, server, "1.1.0")
    value = feed_in(workplace.folder / "dist")
    value["kbs"]["handbook"]["releases"].pop(0)
    server.pages["/kbs/releases.json"] = Page(json.dumps(value).encode())
    forget(workplace, server)
    assert drifts(workplace.pair("install", "--locked", "--json")) == [
        "default: version of handbook in the release index: locked 1.0.0, found 1.1.0"
    ]


def test_an_id_in_a_lock_that_no_kb_can_have_is_refused(workplace: Workplace, locked: str) -> None:
    edit_lock(workplace, "id", "team/kb")
    assert workplace.pair("install", "--locked", "--json").error_code == "E212"


def test_a_kb_that_the_feed_has_no_more_is_refused(workplace: Workplace, server: Server, locked: str) -> None:
    value = feed_in(workplace.folder / "dist")
    value["kbs"] = {"cookbook": value["kbs"]["handbook"]}
    server.pages["/kbs/releases.json"] = Page(json.dumps(value).encode())
    forget(workplace, server)
    assert drifts(workplace.pair("install", "--locked", "--json")) == [
        "default: version of handbook in the release index: locked 1.0.0, found none"
    ]


def test_when_one_kb_is_refused_no_other_is_installed(workplace: Workplace, server: Server, locked: str) -> None:
    """This does not depend on the order of the ids."""
    for name in ("a-url", "z-url"):
        url = server.add(f"/{name}.zip", zip_of({**SMALL_KB, "name.md": name}))
        workplace.pair("install", f"kbs/{name}", "--kb", name, "--source", url).succeeds()
    workplace.pair("lock", "kbs/a-url", "kbs/z-url").succeeds()
    for name in ("a-url", "z-url"):
        forget(workplace, server)
        subprocess.run(["rm", "-rf", workplace.folder / "kbs"], check=True)
        was = server.pages[f"/{name}.zip"], server.pages[f"/{name}.zip.sha256"]
        server.add(f"/{name}.zip", zip_of({"other.md": "other"}), etag='"other"')
        assert drifts(workplace.pair("install", "--locked", "--json"))[0].startswith(f"{name}: archive SHA-256: locked")
        assert not workplace.target.exists()
        assert not (workplace.folder / "kbs").exists() or list((workplace.folder / "kbs").glob("[!.]*")) == []
        server.pages[f"/{name}.zip"], server.pages[f"/{name}.zip.sha256"] = was
    workplace.pair("install", "--locked").succeeds()
    workplace.pair("lock", "--check").succeeds()


def test_an_edited_file_is_not_overwritten_by_a_locked_install_unless_forced(workplace: Workplace, locked: str) -> None:
    write_files(workplace.target, {"README.md": "edited"})
    refused = workplace.pair("install", "--locked", "--json").fails(4, "E011")
    assert refused.json["error"]["details"]["files"] == ["README.md"]
    workplace.pair("install", "--locked", "--force").succeeds()
    workplace.pair("lock", "--check").succeeds()


# ── checking ───────────────────────────────────────────────────────────────────────────────────────


def checked(workplace: Workplace) -> list[str]:
    """Return the findings of the check, which writes nothing."""
    before = {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")}
    done = workplace.pair("lock", "--check", "--json")
    assert {path: path.stat().st_mtime_ns for path in workplace.folder.rglob("*")} == before
    if done.status == 0:
        assert done.json["drifts"] == []
        return []
    return drifts(done)


def test_a_check_finds_every_drift_in_files(workplace: Workplace, locked: str) -> None:
    assert checked(workplace) == []
    write_files(workplace.target, {"own.md": "of the user"})
    assert checked(workplace) == []
    write_files(workplace.target, {"README.md": "edited"})
    (workplace.target / "guides" / "deploy.md").unlink()
    assert checked(workplace) == [
        "default: edited: .pair/knowledge/README.md",
        "default: missing: .pair/knowledge/guides/deploy.md",
    ]
    workplace.pair("lock", "--check").exits(4).says("edited: .pair/knowledge/README.md")


def test_a_check_reads_bytes_and_does_not_trust_times(workplace: Workplace, locked: str) -> None:
    path = workplace.target / "page.md"
    seen = path.stat()
    path.write_text("9.9.9")
    subprocess.run(["touch", "-d", f"@{seen.st_mtime_ns / 1e9:.9f}", path], check=True)
    assert checked(workplace) == ["default: edited: .pair/knowledge/page.md"]


def test_a_check_finds_a_kb_that_is_missing_or_not_locked(workplace: Workplace, server: Server, locked: str) -> None:
    subprocess.run(["mv", workplace.target, workplace.folder / "away"], check=True)
    assert checked(workplace) == ["default: not installed: .pair/knowledge"]
    subprocess.run(["mv", workplace.folder / "away", workplace.target], check=True)
    edit_lock(workplace, "target", "docs/handbook")
    assert checked(workplace) == [
        "default: not installed: docs/handbook",
        ".pair/knowledge: installed, and not locked",
    ]


def test_a_check_finds_another_version_and_a_lock_that_is_not_current(
    workplace: Workplace, server: Server, locked: str
) -> None:
    published(workplace, server, "1.1.0")
    workplace.pair("update").succeeds()
    old, new = archive_of(workplace, "1.0.0"), archive_of(workplace, "1.1.0")
    found = checked(workplace)
    assert found[:2] == [
        "default: version: locked 1.0.0, found 1.1.0",
        f"default: archive SHA-256: locked {old}, found {new}",
    ]
    assert found[2].startswith("default: content SHA-256: locked ")
    assert len(found) == 3
    workplace.pair("lock").succeeds()
    assert checked(workplace) == []
    workplace.pair("update", "--kb", "time").succeeds()
    assert checked(workplace) == ["default: id: locked default, found time"]


def test_a_check_finds_a_record_that_was_made_to_fit(workplace: Workplace, locked: str) -> None:
    record = workplace.target / ".pair-install.jsonl"
    write_files(workplace.target, {"README.md": "edited"})
    old, new = sha256(b"# Handbook\n"), sha256(b"edited")
    record.write_text(record.read_text().replace(old, new))
    [drift] = checked(workplace)
    assert drift.startswith("default: content SHA-256 of the listed files: locked ")
    record.write_text("damaged")
    [drift] = checked(workplace)
    assert "it is damaged" in drift


def test_a_check_without_a_lock_or_with_a_damaged_one_says_so(workplace: Workplace, locked: str) -> None:
    lock_of(workplace).write_text("version = 7\n")
    refused = workplace.pair("lock", "--check", "--json").fails(1, "E023")
    assert "version 7" in refused.json["error"]["explanation"]
    assert workplace.pair("lock", "--json").error_code == "E023"
    lock_of(workplace).unlink()
    assert workplace.pair("lock", "--check", "--json").error_code == "E023"


def test_a_record_of_before_there_were_locks_can_be_locked(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    workplace.pair("install", "--source", "./kb").succeeds()
    record = workplace.target / ".pair-install.jsonl"
    first, second = record.read_text().splitlines()
    header = json.loads(first)
    known = header["content_sha256"]
    for field in ("kb_id", "archive_sha256", "commit", "content_sha256", "embedder", "manifest_version"):
        del header[field]
    record.write_text(f"{json.dumps(header)}\n{second}\n")
    assert workplace.pair("lock", "--json").succeeds().json["kbs"][0]["content_sha256"] == known
    assert checked(workplace) == []
    workplace.pair("update").succeeds()
    assert json.loads(record.read_text().splitlines()[0])["content_sha256"] == known


def test_several_kbs_of_one_host_live_in_one_project(workplace: Workplace, server: Server) -> None:
    published(workplace, server, "1.0.0")
    feed = published(workplace, server, "1.0.0", name="cookbook")
    workplace.pair("install", "--source", f"{feed}#handbook").succeeds()
    workplace.pair("install", "docs/cookbook", "--kb", "cookbook", "--source", f"{feed}#cookbook").succeeds()
    workplace.pair("lock", ".pair/knowledge", "docs/cookbook").succeeds()
    files = {name: read_files(workplace.folder / name) for name in (".pair/knowledge", "docs/cookbook")}
    forget(workplace, server)
    subprocess.run(["rm", "-rf", workplace.folder / "docs"], check=True)
    assert checked(workplace) == [
        "cookbook: not installed: docs/cookbook",
        "default: not installed: .pair/knowledge",
    ]
    workplace.pair("install", "--locked").succeeds()
    assert {name: read_files(workplace.folder / name) for name in files} == files
    assert checked(workplace) == []
    serve(server, workplace.folder / "dist")
