"""Signed packages: signing, publishing, and required signatures. The keys are made by the minisign program."""

import contextlib
import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import PAIR, Outcome, Workplace, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, sha256, zip_of
from support.minisign import PASSWORD, Keys
from support.server import Page, Server


def package(workplace: Workplace, *options: str | Path, **variables: str) -> Outcome:
    write_files(workplace.folder / "handbook", SMALL_KB)
    return workplace.pair("package", "handbook", "-o", "kb.zip", "--json", *options, **variables)


def signed_package(workplace: Workplace, keys: Keys) -> Path:
    assert package(workplace, "--sign", keys.secret).status == 0
    return workplace.folder / "kb.zip"


def trusting(*keys: Keys | str, required: bool = True) -> dict[str, str]:
    lines = [each if isinstance(each, str) else each.line for each in keys]
    return {
        "PAIR__SOURCES__SIGNATURE_KEYS": ",".join(lines),
        "PAIR__SOURCES__REQUIRE_SIGNATURE": str(required).lower(),
    }


def assert_refused(workplace: Workplace, done: Outcome) -> Outcome:
    """Check the refusal, and that nothing changed: no target, no cache entry, no partial download."""
    assert (done.status, done.error_code) == (5, "E017"), done.stdout + done.stderr
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []
    assert list((workplace.cache / ".partial").glob("*")) == []
    return done


# ── pair package --sign ────────────────────────────────────────────────────────────────────────────


def test_a_signed_package_is_accepted_by_minisign_and_by_verify(workplace: Workplace, keys: Keys) -> None:
    made = package(workplace, "--sign", keys.secret)
    assert (made.json["signed_by"], made.json["signature_path"]) == (keys.id, "kb.zip.minisig")
    path = workplace.folder / "kb.zip"
    content = workplace.pair("info", "kb.zip", "--json").json["content_checksum"]
    assert f"name:handbook\tversion:1.0.0\tcontent:{content}" in keys.verified_comment(path)
    for identity in (keys.public, keys.line):
        verified = workplace.pair("verify", "kb.zip", "--identity", identity).succeeds()
        assert f"ok: signature by key {keys.id}: name:handbook version:1.0.0" in verified.stdout


def test_an_encrypted_key_is_opened_by_the_variable(workplace: Workplace, encrypted: Keys) -> None:
    made = package(workplace, "--sign", encrypted.secret, PAIR_SIGN_PASSWORD=PASSWORD)
    assert made.json["signed_by"] == encrypted.id
    assert encrypted.accepts(workplace.folder / "kb.zip")


@pytest.mark.parametrize("variables", [{}, {"PAIR_SIGN_PASSWORD": "wrong"}], ids=["no password", "wrong password"])
def test_a_key_that_cannot_be_opened_changes_nothing(
    workplace: Workplace, encrypted: Keys, keys: Keys, variables: dict[str, str]
) -> None:
    signed_package(workplace, keys)
    before = read_files(workplace.folder)
    refused = package(workplace, "--sign", encrypted.secret, "--name", "another", **variables)
    assert (refused.status, refused.error_code) == (1, "E024")
    assert read_files(workplace.folder) == before


def test_the_password_is_asked_for_on_a_terminal(workplace: Workplace, encrypted: Keys) -> None:
    write_files(workplace.folder / "handbook", SMALL_KB)
    master, terminal = pty.openpty()
    running = subprocess.Popen(
        [*PAIR, "package", "handbook", "-o", "kb.zip", "--sign", str(encrypted.secret)],
        cwd=workplace.folder,
        env=workplace.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = _read_until(master, b"Password of the key: ")
    os.write(master, f"{PASSWORD}\n".encode())
    shown += _read_until(master, b"Signed by key")
    assert running.wait(timeout=60) == 0
    os.close(master)
    assert PASSWORD.encode() not in shown
    assert encrypted.accepts(workplace.folder / "kb.zip")


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    shown = b""
    with contextlib.suppress(OSError):  # the other side is gone
        while wanted not in shown and (more := os.read(descriptor, 4096)):
            shown += more
    assert wanted in shown, shown
    return shown


def test_a_rebuilt_package_loses_the_signatures_of_the_old_one(workplace: Workplace, keys: Keys) -> None:
    path = signed_package(workplace, keys)
    assert package(workplace, "--with-index", "--sign", keys.secret).status == 0
    assert keys.accepts(path.with_name("kb.zip.manifest.json"))
    assert package(workplace, "--version", "2.0.0").json["signed_by"] is None
    assert sorted(each.name for each in path.parent.glob("*.minisig")) == []
    assert package(workplace, "--version", "2.0.0", "--sign", keys.secret).status == 0
    assert keys.accepts(path)


def test_what_lies_beside_a_package_in_its_own_folder_is_not_packaged(workplace: Workplace, keys: Keys) -> None:
    folder = write_files(workplace.folder / "handbook", SMALL_KB)
    for _ in range(2):
        made = workplace.pair("package", folder, "-o", folder / "kb.zip", "--sign", keys.secret, "--json")
        assert made.json["files"] == len(SMALL_KB)


def test_a_secret_key_is_never_packaged(workplace: Workplace, keys: Keys) -> None:
    folder = write_files(workplace.folder / "handbook", SMALL_KB | {"deep/my.key": keys.secret.read_bytes()})
    refused = workplace.pair("package", folder, "-o", "kb.zip", "--sign", folder / "deep/my.key", "--json")
    assert refused.error_code == "E014"
    assert not (workplace.folder / "kb.zip").exists()


@pytest.mark.parametrize("content", [None, b"", b"not a key\n", b"untrusted comment: a\nRWQ=\n"])
def test_what_is_not_a_secret_key_is_refused(workplace: Workplace, content: bytes | None) -> None:
    if content is not None:
        (workplace.folder / "my.key").write_bytes(content)
    refused = package(workplace, "--sign", "my.key")
    assert (refused.status, refused.error_code) == (1, "E024")
    assert not (workplace.folder / "kb.zip").exists()


# ── pair verify ────────────────────────────────────────────────────────────────────────────────────


def test_verify_names_the_key_that_signed_and_the_one_expected(workplace: Workplace, keys: Keys, others: Keys) -> None:
    signed_package(workplace, keys)
    refused = workplace.pair("verify", "kb.zip", "--identity", others.line, "--json").fails(5, "E017")
    details = refused.json["error"]["details"]
    assert (details["signed_by"], details["expected"]) == (keys.id, [others.id])


def test_verify_with_an_identity_needs_a_signature(workplace: Workplace, keys: Keys) -> None:
    package(workplace)
    assert workplace.pair("verify", "kb.zip").status == 0
    assert workplace.pair("verify", "kb.zip", "--identity", keys.line, "--json").error_code == "E017"
    workplace.pair("install", "--source", "./kb.zip")
    assert workplace.pair("verify", workplace.target, "--identity", keys.line, "--json").error_code == "E017"
    assert workplace.pair("verify", workplace.target, **trusting(keys)).status == 0
    assert workplace.pair("verify", "kb.zip", "--identity", "no-such.pub", "--json").error_code == "E024"


def test_verify_without_an_identity_uses_the_keys_of_the_settings(
    workplace: Workplace, keys: Keys, others: Keys
) -> None:
    signed_package(workplace, keys)
    found = workplace.pair("verify", "kb.zip", "--json", **trusting(others, keys)).json["checks"]
    assert any(check.startswith(f"signature by key {keys.id}") for check in found)
    assert workplace.pair("verify", "kb.zip", "--json", **trusting(others, required=False)).error_code == "E017"
    assert "signature" not in " ".join(workplace.pair("verify", "kb.zip", "--json").json["checks"])


# ── install from a path ────────────────────────────────────────────────────────────────────────────


def test_a_signed_archive_is_installed_with_the_name_of_its_key(workplace: Workplace, keys: Keys) -> None:
    signed_package(workplace, keys)
    done = workplace.pair("install", "--source", "./kb.zip", **trusting(keys)).succeeds()
    assert f"checksum verified, signed by {keys.id}" in done.stderr
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert f"signed by    {keys.id}" in workplace.pair("info", workplace.target).stdout
    again = workplace.pair("update", "--json", **trusting(keys))
    assert (again.json["unchanged"], again.json["signed_by"]) == (3, keys.id)


def test_keys_come_from_the_configuration_file_too(workplace: Workplace, keys: Keys, others: Keys) -> None:
    signed_package(workplace, keys)
    config = f"sources:\n  require_signature: true\n  signature_keys:\n    - {others.line}\n    - ${{KEY_FILE}}\n"
    write_files(workplace.folder, {"config.yaml": config})
    workplace.trust()
    done = workplace.pair("install", "--source", "./kb.zip", "--json", KEY_FILE=str(keys.public))
    assert done.json["signed_by"] == keys.id


Spoil = Callable[[Path, Keys], None]


def _unsign(path: Path, others: Keys) -> None:
    path.with_name("kb.zip.minisig").unlink()


def _sign_as_another(path: Path, others: Keys) -> None:
    others.sign(path)


def _tamper(path: Path, others: Keys) -> None:
    path.write_bytes(zip_of(SMALL_KB | {"README.md": "# Ours now\n"}))
    path.with_name("kb.zip.sha256").write_text(f"{sha256(path.read_bytes())}  kb.zip\n")


def _tamper_comment(path: Path, others: Keys) -> None:
    signature = path.with_name("kb.zip.minisig")
    signature.write_bytes(signature.read_bytes().replace(b"version:1.0.0", b"version:9.0.0"))


def _scribble(path: Path, others: Keys) -> None:
    path.with_name("kb.zip.minisig").write_bytes(b"\0garbage" * 20_000)


SPOILT = [_unsign, _sign_as_another, _tamper, _tamper_comment, _scribble]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__.strip("_"))
def test_an_archive_whose_signature_does_not_hold_changes_nothing(
    workplace: Workplace, keys: Keys, others: Keys, spoil: Spoil
) -> None:
    spoil(signed_package(workplace, keys), others)
    assert_refused(workplace, workplace.pair("install", "--source", "./kb.zip", "--json", **trusting(keys)))
    optional = workplace.pair("install", "--source", "./kb.zip", "--json", **trusting(keys, required=False))
    if spoil is _unsign:
        assert (optional.status, optional.json["signed_by"]) == (0, None)
    else:
        assert_refused(workplace, optional)


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__.strip("_"))
def test_an_update_whose_signature_does_not_hold_leaves_what_was_installed(
    workplace: Workplace, keys: Keys, others: Keys, spoil: Spoil
) -> None:
    path = signed_package(workplace, keys)
    assert workplace.pair("install", "--source", "./kb.zip", **trusting(keys)).status == 0
    record = (workplace.target / ".pair-install.jsonl").read_bytes()
    write_files(workplace.folder / "handbook", {"new.md": "New."})
    workplace.pair("package", "handbook", "-o", "kb.zip", "--sign", keys.secret)
    spoil(path, others)
    workplace.pair("update", "--json", "--force", **trusting(keys)).fails(5, "E017")
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert (workplace.target / ".pair-install.jsonl").read_bytes() == record


def test_folders_and_git_repositories_are_refused_where_signatures_are_required(
    workplace: Workplace, keys: Keys
) -> None:
    folder = write_files(workplace.folder / "handbook", SMALL_KB)
    for source in (str(folder), "git://127.0.0.1:9/kb.git"):
        done = assert_refused(workplace, workplace.pair("install", "--source", source, "--json", **trusting(keys)))
        assert "has no signature" in done.json["error"]["message"]
    assert workplace.pair("install", "--source", folder, **trusting(keys, required=False)).status == 0


@pytest.mark.parametrize(
    "variables",
    [
        {"PAIR__SOURCES__REQUIRE_SIGNATURE": "true"},
        {"PAIR__SOURCES__SIGNATURE_KEYS": "RWQnokey"},
        {"PAIR__SOURCES__SIGNATURE_KEYS": "missing.pub"},
    ],
    ids=["no key", "not a key", "no file"],
)
def test_settings_without_a_trusted_key_are_refused(
    workplace: Workplace, keys: Keys, variables: dict[str, str]
) -> None:
    signed_package(workplace, keys)
    refused = workplace.pair("install", "--source", "./kb.zip", "--json", **variables).fails(1, "E401")
    assert next(iter(variables)) in refused.json["error"]["message"] + refused.json["error"].get("explanation", "")
    assert not workplace.target.exists()


# ── install from a server ──────────────────────────────────────────────────────────────────────────


class Host:
    """A server with one package, and the folder of its files."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path
        self.url = ""
        self.publish()

    def publish(self) -> None:
        self.url = self.server.add("/kb.zip", self.path.read_bytes(), etag=f'"{sha256(self.path.read_bytes())}"')
        signature = self.path.with_name("kb.zip.minisig")
        self.server.pages.pop("/kb.zip.minisig", None)
        if signature.exists():
            self.server.pages["/kb.zip.minisig"] = Page(signature.read_bytes())

    def asked(self) -> list[str]:
        asked = [f"{request.method} {request.path}" for request in self.server.received]
        self.server.received.clear()
        return asked


@pytest.fixture
def host(workplace: Workplace, server: Server, keys: Keys) -> Host:
    return Host(server, signed_package(workplace, keys))


def test_a_signed_download_is_installed_and_the_cache_records_its_key(
    workplace: Workplace, host: Host, keys: Keys
) -> None:
    done = workplace.pair("install", "--source", host.url, "--json", **trusting(keys))
    assert (done.status, done.json["signed_by"], done.json["verified"]) == (0, keys.id, True)
    assert host.asked() == ["GET /kb.zip.minisig", "HEAD /kb.zip", "GET /kb.zip.sha256", "GET /kb.zip"]
    assert read_files(workplace.target) == SMALL_KB_BYTES
    again = workplace.pair("install", "other", "--source", host.url, "--json", **trusting(keys))
    assert (again.json["signed_by"], host.asked()) == (keys.id, [])
    updated = workplace.pair("update", "--json", **trusting(keys))
    assert (updated.json["unchanged"], updated.json["signed_by"]) == (3, keys.id)
    assert "GET /kb.zip" not in host.asked()


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__.strip("_"))
def test_a_download_whose_signature_does_not_hold_changes_nothing(
    workplace: Workplace, host: Host, keys: Keys, others: Keys, spoil: Spoil
) -> None:
    spoil(host.path, others)
    host.publish()
    assert_refused(workplace, workplace.pair("install", "--source", host.url, "--json", **trusting(keys)))
    if spoil is _unsign:
        assert host.asked() == ["GET /kb.zip.minisig"]


def test_the_signature_is_fetched_through_redirects_and_faults(workplace: Workplace, host: Host, keys: Keys) -> None:
    pages = host.server.pages
    pages["/elsewhere.minisig"] = pages["/kb.zip.minisig"]
    pages["/elsewhere.minisig"].statuses = [(503, {}), (429, {})]
    pages["/kb.zip.minisig"] = Page(redirect=host.server.url("/elsewhere.minisig"))
    assert workplace.pair("install", "--source", host.url, **trusting(keys)).status == 0


@pytest.mark.parametrize(
    ("page", "status", "code"),
    [
        pytest.param(Page(statuses=[(503, {})] * 9), 2, "E005", id="away"),
        pytest.param(Page(statuses=[(403, {})] * 9), 5, "E017", id="forbidden"),
        pytest.param(Page(b"x" * 100_000), 5, "E017", id="huge"),
        pytest.param(Page(b"<html>"), 5, "E017", id="page"),
    ],
)
def test_a_signature_that_cannot_be_read_changes_nothing(
    workplace: Workplace, host: Host, keys: Keys, page: Page, status: int, code: str
) -> None:
    host.server.pages["/kb.zip.minisig"] = page
    for required in (True, False):
        refused = workplace.pair("install", "--source", host.url, "--json", **trusting(keys, required=required))
        assert (refused.status, refused.error_code) == (status, code)
    assert not workplace.target.exists()
    assert workplace.cached_entries() == []


def test_a_cached_kb_with_an_unchecked_signature_is_fetched_again(workplace: Workplace, host: Host, keys: Keys) -> None:
    assert workplace.pair("install", "--source", host.url).status == 0
    host.asked()
    done = workplace.pair("install", "--source", host.url, "--json", **trusting(keys))
    assert done.json["signed_by"] == keys.id
    assert "GET /kb.zip" in host.asked()


def test_an_unsigned_cached_kb_is_refused_when_signatures_become_required(
    workplace: Workplace, host: Host, keys: Keys
) -> None:
    _unsign(host.path, keys)
    host.publish()
    assert workplace.pair("install", "--source", host.url).status == 0
    before = read_files(workplace.target)
    for command in ("install", "update"):
        assert workplace.pair(command, "--source", host.url, "--json", **trusting(keys)).error_code == "E017"
    assert read_files(workplace.target) == before


def test_a_key_that_is_no_longer_trusted_makes_the_cache_useless(
    workplace: Workplace, host: Host, keys: Keys, others: Keys
) -> None:
    assert workplace.pair("install", "--source", host.url, **trusting(keys)).status == 0
    for required in (True, False):
        refused = workplace.pair("install", "x", "--source", host.url, "--json", **trusting(others, required=required))
        assert refused.error_code == "E017"
    others.sign(host.path)
    host.publish()
    assert workplace.pair("install", "x", "--source", host.url, **trusting(others)).status == 0


def test_an_entry_of_the_cache_from_before_signatures_is_still_read(
    workplace: Workplace, host: Host, keys: Keys
) -> None:
    workplace.pair("install", "--source", host.url)
    entry = next(workplace.cache.glob("*/.pair-entry.json"))
    value = json.loads(entry.read_bytes())
    del value["signed_by"]
    entry.write_text(json.dumps(value))
    host.asked()
    assert workplace.pair("install", "x", "--source", host.url).status == 0
    assert host.asked() == []


def test_a_release_is_checked_too(workplace: Workplace, host: Host, keys: Keys, others: Keys) -> None:
    asset = {"name": "knowledge-base.zip", "browser_download_url": host.url}
    feed = json.dumps({"tag_name": "v1.0.0", "assets": [asset]}).encode()
    host.server.pages["/repos/foomakers/pair/releases/latest"] = Page(feed, etag=None)
    feed_url = {"PAIR__SOURCES__GITHUB_API_URL": host.server.url("")}
    assert_refused(workplace, workplace.pair("install", "--json", **feed_url, **trusting(others)))
    assert workplace.pair("install", "--json", **feed_url, **trusting(keys)).json["signed_by"] == keys.id


def test_commands_that_neither_sign_nor_check_do_not_load_cryptography(workplace: Workplace, keys: Keys) -> None:
    signed_package(workplace, keys)
    code = (
        "import sys; from pair.app.cli.commands import run; run(['install', '--source', './kb.zip']); "
        "run(['verify', 'kb.zip']); run(['package', 'handbook', '-o', 'two.zip']); print(*sys.modules)"
    )
    done = subprocess.run(
        [PAIR[0], "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=workplace.folder,
        env=workplace.environment,
    )
    assert not {"cryptography", "pair.packages.signing"} & set(done.stdout.split())
