"""Three servers behind nginx, with the shipped configuration: one bucket, one Redis, no state of their own."""

import collections
import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from support.ports import free_ports
from support.redis_server import running_redis
from support.s3_server import running_s3
from support.served import Served
from support.torture import Place

NGINX = Path(__file__).parents[2] / "deploy" / "nginx.conf"


@dataclass
class Site:
    client: httpx2.Client
    servers: list[Served]

    def server_of(self, request_id: str) -> int:
        """Which one answered."""
        found = [number for number, server in enumerate(self.servers) if request_id in server.raw_log]
        assert len(found) == 1, found
        return found[0]

    def asked(self, kb_id: str = "") -> int:
        """The server that a query about the KB went to."""
        headers = {"x-kb-id": kb_id} if kb_id else {}
        answer = self.client.post("/rag/query", json={"query": "lunch", "kb_id": kb_id}, headers=headers)
        assert answer.status_code == 200, answer.text
        for server in self.servers:
            with contextlib.suppress(AssertionError):
                server.logged_request(answer.headers["x-request-id"], seconds=0.2)
        return self.server_of(answer.headers["x-request-id"])


def configured(ports: list[int], port: int) -> str:
    text = NGINX.read_text()
    for number, server_port in enumerate(ports, 1):
        text = text.replace(f"pair-{number}:8080", f"127.0.0.1:{server_port}")
    return re.sub(r"listen 8080", f"listen 127.0.0.1:{port}", text)


@contextlib.contextmanager
def running_nginx(folder: Path, ports: list[int]) -> Iterator[str]:
    port = free_ports(1)[0]
    configuration = folder / "nginx.conf"
    configuration.write_text(configured(ports, port))
    # A place of its own for all that it writes, and in the foreground.
    directives = f"daemon off; pid {folder}/nginx.pid; error_log stderr;"
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(configuration), "-g", directives]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with contextlib.ExitStack() as stack:
        place = Place(folder, stack.enter_context(running_s3(folder)), stack.enter_context(running_redis(folder)))
        place.start(stack)
        address = stack.enter_context(running_nginx(folder, [int(each.rpartition(":")[2]) for each in place.addresses]))
        transport = httpx2.HTTPTransport(retries=5)  # until nginx listens
        client = stack.enter_context(httpx2.Client(base_url=address, timeout=60, transport=transport))
        for kb_id in ("default", *(f"kb-{number}" for number in range(6))):
            documents = [{"id": "lunch", "text": f"Lunch of {kb_id} is at one."}]
            stored = client.post("/rag/ingest", json={"kb_id": kb_id, "documents": documents})
            assert stored.status_code == 200, stored.text
        yield Site(client, place.servers)


def test_what_one_server_stored_every_server_finds(site: Site):
    for server in site.servers:
        found = server.post("/rag/query", {"query": "lunch", "kb_id": "kb-1"}).json()["results"]
        assert [each["content"] for each in found] == ["Lunch of kb-1 is at one."]


def test_requests_for_one_kb_go_to_one_server_and_different_kbs_to_different_ones(site: Site):
    servers = {kb_id: {site.asked(kb_id) for _ in range(4)} for kb_id in (f"kb-{number}" for number in range(6))}
    assert all(len(seen) == 1 for seen in servers.values()), servers
    assert len(set().union(*servers.values())) > 1


def test_requests_that_name_no_kb_go_round(site: Site):
    assert len(collections.Counter(site.asked() for _ in range(12))) > 1


def test_an_answer_is_streamed_through(site: Site):
    with site.client.stream(
        "POST", "/ask", json={"query": "When is lunch?"}, headers={"accept": "text/event-stream"}
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert "event: response" in answer.read().decode()


def test_a_server_that_dies_is_passed_over(site: Site):
    number = site.asked("kb-2")
    site.servers[number].stop(signal.SIGKILL)
    try:
        assert site.asked("kb-2") != number
        stored = site.client.post(
            "/rag/ingest", json={"kb_id": "kb-2", "documents": [{"id": "new", "text": "Dinner is at eight."}]}
        )
        assert stored.status_code == 200, stored.text
    finally:
        site.servers[number].__exit__()
        site.servers[number].__enter__()
    assert site.servers[number].get("/rag/docs/new?kb_id=kb-2").status_code == 200
