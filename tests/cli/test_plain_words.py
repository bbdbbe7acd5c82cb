"""Error messages: the reason in plain words, and hints that match it."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cli.test_hostile_texts import answering
from contract.test_page_guard import write_certificate
from support.command import Workplace, write_files
from support.kbs import SMALL_KB, write_zip
from support.listening import LoopbackServer, QuietServer
from support.ports import free_ports
from support.server import Server

LIBRARY_WORDS = ("Errno", "_ssl.c", "bytearray", "Traceback", "illegal status")


def assert_plain(text: str) -> None:
    assert not [word for word in LIBRARY_WORDS if word in text], text


@contextlib.contextmanager
def serving_tls(folder: Path) -> Iterator[int]:
    """Run a server with an untrusted certificate."""
    write_certificate(folder, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    httpd = QuietServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    with LoopbackServer(httpd) as server:
        yield server.port


def test_a_refused_connection_names_the_host(workplace: Workplace) -> None:
    port = free_ports(1)[0]
    done = workplace.pair("install", "--source", f"http://127.0.0.1:{port}/kb.zip", PAIR__SOURCES__RETRIES="0")
    assert f"Network error: cannot reach 127.0.0.1:{port}: connection refused\n" in done.stderr
    assert "Check internet connection" in done.stderr
    assert_plain(done.stderr)


def assert_reported(workplace: Workplace, address: str, words: str) -> None:
    """Check the message of an install from this address, and of a sync of a page there."""
    write_files(workplace.folder / ".pair", {"links.txt": f"{address}/a\n"})
    variables = {"PAIR__SOURCES__RETRIES": "0", "PAIR__KB__ALLOW_PRIVATE_ADDRESSES": "true"}
    for command in (["install", "--source", f"{address}/kb.zip"], ["sync"]):
        assert_plain(workplace.pair(*command, **variables).says(words).stderr)


def test_an_untrusted_certificate_is_reported_as_such(workplace: Workplace, tmp_path: Path) -> None:
    with serving_tls(tmp_path) as port:
        words = "certificate verify failed: self-signed certificate"
        assert_reported(workplace, f"https://localhost:{port}", words)


def test_a_server_with_another_protocol_is_reported_as_such(workplace: Workplace) -> None:
    with answering(b"220 mail.example ESMTP ready\r\n\r\n") as address:
        assert_reported(workplace, address, "the server did not answer in HTTP")


@pytest.mark.parametrize(
    ("status", "hint"), [(404, "Check the address"), (403, "Check that you have access"), (500, "Try again later")]
)
def test_a_server_that_answered_gives_no_advice_about_the_network(workplace: Workplace, status: int, hint: str) -> None:
    with Server() as server:
        url = server.add("/kb.zip", b"", statuses=[(status, {})] * 9)
        done = workplace.pair("install", "--source", url, PAIR__SOURCES__RETRIES="0")
    assert f"Network error: HTTP {status}" in done.stderr
    assert hint in done.stderr
    assert "firewall" not in done.stderr
    assert "internet" not in done.stderr


def test_without_a_network_a_person_soon_reads_what_is_going_on(workplace: Workplace) -> None:
    variables = {
        "PAIR__SOURCES__RETRY_WAIT_SECONDS": "30",
        "PAIR__SOURCES__GITHUB_API_URL": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
    running = workplace.start("install", **variables)
    assert running.stderr is not None
    told = running.stderr.readline()
    assert running.poll() is None, "it has not given up yet"
    running.kill()
    running.communicate()
    assert "connection refused: trying again in " in told
    assert told.endswith(" s\n")


def test_of_a_server_that_does_not_answer_it_is_said_that_it_is_waited_for(workplace: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        running = workplace.start("install", "--source", f"http://{address}/kb.zip")
        assert running.stderr is not None
        told = running.stderr.readline()
        running.kill()
        running.communicate()
    assert told == f"waiting for {address}\n"


def test_an_empty_folder_gets_no_hint_to_install_itself(workplace: Workplace) -> None:
    (workplace.folder / "empty").mkdir()
    done = workplace.pair("install", "--source", "./empty").says("the source has no files")
    assert "pair install" not in done.stderr
    assert "Install one first: pair install" in workplace.pair("verify", "empty").stderr


def test_records_of_a_folder_that_vanished_are_said_to_be_kept(workplace: Workplace) -> None:
    write_files(workplace.target, {"a.md": "# A\n"})
    workplace.pair("sync")
    workplace.target.rename(workplace.folder / "moved")
    done = workplace.pair("sync").says("Synced: nothing; the records of these sources are kept")
    assert "no sources" not in done.stderr


def test_a_folder_that_may_not_be_written_is_not_reported_as_a_full_disk(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    closed = workplace.folder / "closed"
    closed.mkdir(mode=0o500)
    workplace.obey_permissions()
    done = workplace.pair("install", "--source", "./kb", "closed/target")
    assert "permission denied" in done.stderr
    assert "Check that you may write there" in done.stderr
    assert "Free space" not in done.stderr


def test_a_local_archive_that_differs_from_its_checksum_is_refused_and_not_downloaded_again(
    workplace: Workplace,
) -> None:
    write_zip(workplace.folder / "kb.zip", SMALL_KB)
    write_files(workplace.folder, {"kb.zip.sha256": f"{'0' * 64}  kb.zip\n"})
    for arguments in (["install", "--source", "./kb.zip"], ["verify", "kb.zip"]):
        done = workplace.pair(*arguments)
        assert (done.status, "Code: E006" in done.stderr) == (2, True)
        assert "KB checksum validation failed" in done.stderr
        assert "Get the file and its .sha256 again from the publisher" in done.stderr
        assert "ownload" not in done.stderr
    assert not workplace.target.exists()


def test_a_private_address_is_refused_with_the_setting_that_allows_it(workplace: Workplace) -> None:
    write_files(workplace.folder / ".pair", {"links.txt": "http://127.0.0.1:9/a\n"})
    workplace.pair("sync").says("127.0.0.1 is a loopback address; kb.allow_private_addresses: true allows it")


def test_a_model_that_cannot_be_reached_is_reported_in_plain_words(workplace: Workplace) -> None:
    write_files(workplace.target, {"a.md": "# A\n\nWords.\n"})
    model = {
        "PAIR__AI__BASE_URL": f"http://127.0.0.1:{free_ports(1)[0]}/v1",
        "PAIR__AI__RETRIES": "0",
        "PAIR__AI__MODEL": "m",
    }
    done = workplace.pair("sync", **model).says("Connection refused")
    assert_plain(done.stderr)


def test_a_lease_server_that_is_down_is_not_called_a_blob_store(workplace: Workplace) -> None:
    write_files(workplace.folder, {"a.md": "# A\n"})
    place = f"127.0.0.1:{free_ports(1)[0]}/0"
    leases = {"PAIR__ENGINE__LEASE": "redis", "PAIR__ENGINE__REDIS_URL": f"redis://user:secret@{place}"}
    done = workplace.pair("ingest", "a.md", **leases)
    assert f"Error: Cannot reach the lease server (Redis) redis://{place}.\n" in done.stderr
    assert "No connection to Redis. Nothing can be written without a lease" in done.stderr
    assert "engine.redis_url" in done.stderr
    assert "lob store" not in done.stderr
    assert "secret" not in done.stderr
    assert (done.status, "Code: E206" in done.stderr) == (3, True)
