"""The guarded page client: no spelling, redirect or resolver makes it contact a forbidden address."""

import contextlib
import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pair.clock import SystemClock
from pair.network import PageFault
from pair.web.pages import PageClient
from pair.web.ssrf import Refuse, Resolve, resolve_host
from support.page_server import Names, PageServer, Reply, html, only_first_loopback, redirect

# `{port}` is where a server listens on 127.0.0.1 that must not be reached.
SPELLINGS = [
    # loopback
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1/",
    "https://127.0.0.1:{port}/",
    "http://127.0.0.2:{port}/",
    "http://127.255.255.254:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    # decimal, octal, hexadecimal
    "http://2130706433:{port}/",
    "http://017700000001:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7F.1:{port}/",
    "http://0x7f.0x0.0x0.0x1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0177.1:{port}/",
    "http://127.0.0.01:{port}/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    # private, shared, link-local, metadata
    "http://10.0.0.1/",
    "http://10.1/",
    "http://172.16.0.1/",
    "http://192.168.1.1:8080/",
    "http://100.64.0.1/",
    "http://169.254.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    # IPv6, and IPv4 inside it
    "http://[::1]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2001::1]:{port}/",
    "http://[fe80::1]:{port}/",
    "http://[fe80::1%25lo]:{port}/",
    "http://[fe80::1%lo]:{port}/",
    "http://[::1%lo]:{port}/",
    "http://[fec0::1]:{port}/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    # tricks with the parts of a URL
    "http://user@127.0.0.1:{port}/",
    "http://user:password@pages.example/",
    "http://pages.example@127.0.0.1:{port}/",
    "http://pages.example:80@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@pages.example/",
    "http://@127.0.0.1:{port}/",
    "http://pages.example\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@pages.example/",
    "http://127.0.0.1%2f@pages.example/",
    "http://127.0.0.1:{port}#@pages.example/",
    "http://127.0.0.1:{port}?@pages.example/",
    "http://pages.example%00.127.0.0.1/",
    "http://127.0.0.1%09:{port}/",
    "http://127.0.0.1\t:{port}/",
    "http://127.0.0.1\r\nHost: pages.example/",
    "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "http://:{port}/",
    "http://",
    "",
    "http://pages.example:0/",
    "http://pages.example:65536/",
    "http://pages.example:-1/",
    "http://pages.example:port/",
    "http://.pages.example/",
    "http://pages..example/",
    "http://*.example/",
    # digits and letters that look like others
    "http://\uff11\uff12\uff17.\uff10.\uff10.\uff11:{port}/",
    "http://127\u30020\u30020\u30021:{port}/",
    "http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3:{port}/",
    # other schemes
    "file:///etc/passwd",
    "ftp://127.0.0.1/",
    "gopher://127.0.0.1:{port}/_GET%20/",
    "dict://127.0.0.1:{port}/",
    "data:text/html,hello",
    "javascript:alert(1)",
    "unix:/run/docker.sock",
    # names that lead there
    "http://private.example:{port}/",
    "http://private6.example:{port}/",
    "http://metadata.example/",
    "http://mixed.example:{port}/",
    "http://mapped.example:{port}/",
    "http://scoped.example:{port}/",
]
NAMES: dict[str, list[Sequence[str]]] = {
    "private.example": [["127.0.0.1"]],
    "private6.example": [["::1"]],
    "metadata.example": [["169.254.169.254"]],
    "mixed.example": [["93.184.216.34", "127.0.0.1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "scoped.example": [["fe80::1%lo"]],
}
REFUSED = re.compile(
    r"( is (a|an|not an) )|not a URL|no valid host|user name or password|only http and https|no host name"
)


def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve the names of this test; leave other names to the system."""
    return NAMES[host][0] if host in NAMES else resolve_host(host, port)


@pytest.fixture(autouse=True)
def secret(server: PageServer) -> None:
    server.pages["/"] = html("secret")


@contextlib.contextmanager
def guarded(resolve: Resolve, refuse: Refuse | None = None) -> Iterator[PageClient]:
    made = PageClient(
        timeout_seconds=10,
        max_bytes=100_000,
        allow_private_addresses=False,
        clock=SystemClock(),
        resolve=resolve,
        **({} if refuse is None else {"refuse": refuse}),
    )
    with contextlib.closing(made):
        yield made


def reason_of(client: PageClient, url: str) -> str:
    with pytest.raises(PageFault) as raised:
        client.get(url, etag=None, last_modified=None)
    assert raised.value.kind == "error"
    return raised.value.reason


@pytest.mark.parametrize("spelling", SPELLINGS, ids=ascii)
def test_no_spelling_leads_inside(server: PageServer, spelling: str) -> None:
    with guarded(resolve) as client:
        reason = reason_of(client, spelling.replace("{port}", str(server.port)))
    assert REFUSED.search(reason), reason
    assert server.connections == 0


@pytest.mark.parametrize("spelling", [one for one in SPELLINGS if one.isascii() and "\r" not in one], ids=ascii)
def test_no_redirect_leads_inside(spelling: str) -> None:
    """The test treats 127.0.0.1 as the public web, so the forbidden server has another address."""
    with PageServer() as public, PageServer("127.0.0.2") as private:
        location = spelling.replace("127.0.0.1", "127.0.0.2").replace("{port}", str(private.port))
        public.pages["/start/"] = redirect(location)

        def refuse(address: str) -> str | None:
            return None if address == "127.0.0.1" and not public.asked else "a private address"

        with guarded(resolve, refuse) as client:
            reason = reason_of(client, public.url("/start/"))
        assert REFUSED.search(reason) or (not location and "redirects" in reason), reason
        assert private.connections == 0


def test_a_redirect_to_a_refused_address_is_refused_after_a_good_first_hop(server: PageServer) -> None:
    with PageServer("127.0.0.2") as private:
        server.pages["/start"] = redirect("/second")
        server.pages["/second"] = redirect(private.url())
        with guarded(resolve_host, only_first_loopback) as client:
            assert reason_of(client, server.url("/start")) == "127.0.0.2 is a private address"
        assert [asked.path for asked in server.asked] == ["/start", "/second"]
        assert private.connections == 0


def test_one_refused_address_among_good_ones_refuses_the_name(server: PageServer) -> None:
    names = Names({"mixed.example": [["127.0.0.1", "127.0.0.2"]]})
    with guarded(names, only_first_loopback) as client:
        assert "127.0.0.2" in reason_of(client, server.url(host="mixed.example"))
    assert server.connections == 0


def test_a_name_is_resolved_once_for_a_connection_so_it_cannot_change_in_between(server: PageServer) -> None:
    with PageServer("127.0.0.2", server.port) as private:
        private.pages["/"] = html("inside")
        names = Names({"rebinding.example": [["127.0.0.1"], ["127.0.0.2"]]})
        with guarded(names, only_first_loopback) as client:
            answer = client.get(server.url(host="rebinding.example"), etag=None, last_modified=None)
        assert b"secret" in answer.body
        assert names.asked == ["rebinding.example"]
        assert (server.connections, private.connections) == (1, 0)


def test_a_name_that_turns_private_is_refused_with_the_next_connection(server: PageServer) -> None:
    server.pages["/"] = Reply(headers=[("Connection", "close")])
    with PageServer("127.0.0.2", server.port) as private:
        names = Names({"rebinding.example": [["127.0.0.1"], ["127.0.0.2"]]})
        with guarded(names, only_first_loopback) as client:
            url = server.url(host="rebinding.example")
            assert client.get(url, etag=None, last_modified=None).status == 200
            assert "127.0.0.2" in reason_of(client, url)
        assert (len(names.asked), server.connections, private.connections) == (2, 1, 0)


def test_a_kept_connection_uses_the_address_that_was_checked(server: PageServer) -> None:
    with PageServer("127.0.0.2", server.port) as private:
        names = Names({"rebinding.example": [["127.0.0.1"], ["127.0.0.2"]]})
        with guarded(names, only_first_loopback) as client:
            for _ in range(3):
                client.get(server.url(host="rebinding.example"), etag=None, last_modified=None)
        assert (len(names.asked), server.connections, private.connections) == (1, 1, 0)


def test_a_connection_uses_the_resolved_public_address() -> None:
    """The attempt fails without a network; the test checks that the guard does not refuse it."""
    names = Names({"public.example": [["192.0.43.8"]]})
    client = PageClient(
        timeout_seconds=1, max_bytes=1, allow_private_addresses=False, clock=SystemClock(), resolve=names
    )
    with pytest.raises(PageFault) as raised:
        client.get("http://public.example/", etag=None, last_modified=None)
    assert " is a" not in raised.value.reason
    assert names.asked == ["public.example"]


def test_tls_checks_the_name_and_not_the_address(tmp_path: Path, server: PageServer) -> None:
    authority = write_certificate(tmp_path, "pages.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    server.use_tls(context)
    names = Names({"pages.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]})
    with trusting(authority), guarded(names, only_first_loopback) as client:
        url = f"https://pages.example:{server.port}/"
        assert client.get(url, etag=None, last_modified=None).status == 200
        assert "certificate verify failed" in reason_of(client, url.replace("pages", "other"))
    with guarded(names, only_first_loopback) as client:
        assert "certificate verify failed" in reason_of(client, url)
    assert len(server.asked) == 1


@contextlib.contextmanager
def trusting(authority: Path) -> Iterator[None]:
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(authority)
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def write_certificate(folder: Path, name: str) -> Path:
    """Write a self-signed certificate for this name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path = folder / "certificate.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_the_corpus_is_as_large_as_it_claims() -> None:
    assert len(set(SPELLINGS)) == len(SPELLINGS) >= 90
    assert ipaddress.ip_address("192.0.43.8").is_global
