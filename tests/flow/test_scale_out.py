"""Three stateless servers behind nginx with the shipped configuration, one bucket and one Redis."""

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
from support.redis_server import RedisServer, running_redis
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
from support.served import Keyed, Served, pair

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVERS = 3


@dataclass
class Site:
    client: httpx2.Client
    servers: list[Served]
    key: str
    checks: list[dict[str, str]]
    """The output of `pair doctor` before the first write."""

    def server_of(self, request_id: str) -> int:
        """Return the server that answered."""
        found = [number for number, server in enumerate(self.servers) if request_id in server.raw_log]
        assert len(found) == 1, found
        return found[0]

    def asked(self, kb_id: str = "") -> int:
        """Return the server that received a query about the KB."""
        headers = {"x-kb-id": kb_id} if kb_id else {}
        answer = self.client.post("/rag/query", json={"query": "lunch", "kb_id": kb_id}, headers=headers)
        assert answer.status_code == 200, answer.text
        for server in self.servers:
            with contextlib.suppress(AssertionError):
                server.logged_request(answer.headers["x-request-id"], seconds=0.2)
        return self.server_of(answer.headers["x-request-id"])


def configured(ports: list[int], port: int) -> str:
    text = (DEPLOY / "nginx.conf").read_text()
    for number, server_port in enumerate(ports, 1):
        text = text.replace(f"pair-{number}:8080", f"127.0.0.1:{server_port}")
    return re.sub(r"listen 8080", f"listen 127.0.0.1:{port}", text)


@contextlib.contextmanager
def running_nginx(folder: Path, ports: list[int]) -> Iterator[str]:
    port = free_ports(1)[0]
    configuration = folder / "nginx.conf"
    configuration.write_text(configured(ports, port))
    # Use a separate folder for all its files, and stay in the foreground.
    directives = f"daemon off; pid {folder}/nginx.pid; error_log stderr;"
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(configuration), "-g", directives]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def variables_of(s3: S3Server, redis: RedisServer) -> dict[str, str]:
    """Return the environment variables that the platform sets. All other settings are in the shipped configuration."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "S3_ENDPOINT": s3.options.endpoint_url,
        "REDIS_URL": redis.url,
        "TRUSTED_PROXIES": "127.0.0.1",
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with contextlib.ExitStack() as stack:
        variables = variables_of(stack.enter_context(running_s3(folder)), stack.enter_context(running_redis(folder)))
        variables["PAIR__SERVER__KEYS_FILE"] = str(folder / ".pair" / "keys.json")
        checks = pair(folder, "--config", str(DEPLOY / "config.yaml"), "doctor", **variables)["checks"]
        ports = free_ports(SERVERS)
        servers = [
            Served(folder / f"server-{number}", **variables, PAIR__SERVER__PORT=str(port))
            for number, port in enumerate(ports)
        ]
        key = Keyed(servers[0], folder).key("admin")
        for server in servers:
            server.program = ["-m", "pair", "--config", str(DEPLOY / "config.yaml"), "serve"]
            stack.enter_context(server)
        address = stack.enter_context(running_nginx(folder, ports))
        transport = httpx2.HTTPTransport(retries=5)  # until nginx listens
        headers = {"authorization": f"Bearer {key}"}
        client = stack.enter_context(httpx2.Client(base_url=address, timeout=60, transport=transport, headers=headers))
        for kb_id in ("default", *(f"kb-{number}" for number in range(6))):
            documents = [{"id": "lunch", "text": f"Lunch of {kb_id} is at one."}]
            stored = client.post("/rag/ingest", json={"kb_id": kb_id, "documents": documents})
            assert stored.status_code == 200, stored.text
        yield Site(client, servers, key, checks)


def test_doctor_tries_every_part_and_makes_the_bucket(site: Site):
    told = {each["name"]: each["state"] for each in site.checks}
    assert {told["store"], told["lease"], told["server"]} == {"ok"}, site.checks


def test_a_request_without_a_key_is_refused(site: Site):
    answer = site.client.post("/rag/query", json={"query": "lunch"}, headers={"authorization": "Bearer pair_no_key"})
    assert answer.status_code == 401


def test_every_server_finds_documents_that_one_server_stored(site: Site):
    for server in site.servers:
        found = server.post("/rag/query", {"query": "lunch", "kb_id": "kb-1"}, key=site.key).json()["results"]
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
    assert site.servers[number].get("/rag/docs/new?kb_id=kb-2", key=site.key).status_code == 200
