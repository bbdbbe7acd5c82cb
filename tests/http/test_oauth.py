"""OAuth clients: they find the authorization server through the metadata of the server (RFC 9728)."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from support.assistants import called
from support.authorization_server import AuthorizationServer
from support.ports import free_ports
from support.served import Keyed, Served, error_of

WELL_KNOWN = "/.well-known/oauth-protected-resource"
CALLBACK = "http://127.0.0.1:1/callback"


def settings(issuer: str, audience: str, **more: str) -> dict[str, str]:
    given = {"AUTH": "jwt", "JWT_JWKS": f"{issuer}/jwks.json", "JWT_ISSUER": issuer, "JWT_AUDIENCE": audience, **more}
    return {f"PAIR__SERVER__{name}": value for name, value in {"SYNC": "false", **given}.items()}


@dataclass
class Memory:
    """The state that a client keeps between requests."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    locations: list[str] = field(default_factory=list)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def open_browser(self, address: str) -> None:
        async with httpx2.AsyncClient() as browser:
            self.locations.append((await browser.get(address)).headers["location"])

    async def wait_for_browser(self) -> AuthorizationCodeResult:
        given = dict(parse_qsl(urlsplit(self.locations[-1]).query))
        return AuthorizationCodeResult(code=given["code"], state=given["state"])


def connect(url: str, work: Any, memory: Memory) -> Any:
    """Run the official client with its OAuth flow: it knows the address of the server and nothing else."""

    async def talk() -> Any:
        about = OAuthClientMetadata(redirect_uris=[CALLBACK], client_name="test")  # type: ignore[list-item]
        provider = OAuthClientProvider(f"{url}/mcp", about, memory, memory.open_browser, memory.wait_for_browser)
        async with httpx2.AsyncClient(auth=provider, timeout=60) as connection:
            transport = streamable_http_client(f"{url}/mcp", http_client=connection)
            async with Client(transport, cache=None) as client:
                return await work(client)

    return asyncio.run(talk())


@pytest.fixture(scope="module")
def authority() -> Iterator[AuthorizationServer]:
    with AuthorizationServer() as server:
        yield server


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, authority: AuthorizationServer) -> Iterator[Served]:
    """Return a server whose audience is its address, as OAuth clients expect."""
    (port,) = free_ports(1)
    more = settings(authority.issuer, f"http://127.0.0.1:{port}/mcp", PORT=str(port), MCP_WRITE="true")
    with Served(tmp_path_factory.mktemp("named") / "project", **more) as server:
        token = authority.token(f"http://127.0.0.1:{port}/mcp", "pair:write")
        assert server.ingest({"lunch.md": "Lunch is at one."}, key=token).status_code == 200
        yield server


def test_a_client_that_knows_only_the_address_finds_its_way_to_a_token(named: Served, authority: AuthorizationServer):
    async def work(client: Client) -> Any:
        stored = await called(client, "ingest", documents=[{"id": "soup.md", "text": "Soup is served on Fridays."}])
        return stored, await called(client, "search", query="soup")

    memory = Memory()
    stored, found = connect(named.url, work, memory)
    assert stored["stored"] == 1
    assert found["results"][0]["id"] == "kb://default/soup.md"
    asked = authority.requested("/authorize")[-1]
    assert (asked["resource"], asked["scope"]) == (f"{named.url}/mcp", "pair:read pair:write")
    assert memory.tokens is not None
    assert "ada" in {line.get("user") for line in named.logged}


def test_a_refusal_names_the_metadata_and_the_scope(named: Served):
    refused = named.post("/mcp", {})
    assert refused.status_code == 401
    place = f"{named.url}{WELL_KNOWN}/mcp"
    assert refused.headers["www-authenticate"] == (
        f'Bearer realm="pair", scope="pair:read pair:write", resource_metadata="{place}"'
    )
    wrong = named.post("/rag/query", {"query": "x"}, key="a.b.c")
    assert 'error="invalid_token", scope="pair:read"' in wrong.headers["www-authenticate"]
    value = named.client.get(place).json()
    assert ProtectedResourceMetadata.model_validate(value).scopes_supported == ["pair:read", "pair:write", "pair:admin"]
    assert value["resource"] == f"{named.url}/mcp"
    assert named.get(WELL_KNOWN).json() == value


def test_a_token_with_too_little_says_which_scope_is_missing(named: Served, authority: AuthorizationServer):
    refused = named.ingest({"x": "No."}, key=authority.token(f"{named.url}/mcp", "pair:read"))
    assert error_of(refused) == (403, "E603")
    assert 'error="insufficient_scope", scope="pair:write"' in refused.headers["www-authenticate"]
    wrong_origin = named.get("/rag/kbs", headers={"origin": "https://elsewhere.example"})
    assert error_of(wrong_origin) == (403, "E603")
    assert "www-authenticate" not in wrong_origin.headers


@pytest.mark.parametrize("audience", ["pair", "https://["])
def test_an_audience_that_is_not_an_address_leaves_the_address_of_the_request(
    audience: str, tmp_path: Path, authority: AuthorizationServer
):
    with Served(tmp_path / "project", **settings(authority.issuer, audience)) as server:
        for suffix in ("", "/mcp"):
            assert server.get(WELL_KNOWN + suffix).json()["resource"] == server.url + suffix
        assert error_of(server.get(f"{WELL_KNOWN}/elsewhere")) == (404, "E604")
        for host in ('a"b', "["):
            assert error_of(server.get(WELL_KNOWN, headers={"host": host})) == (404, "E604")
            refused = server.post("/mcp", {}, headers={"host": host})
            assert refused.headers["www-authenticate"] == 'Bearer realm="pair"'


def test_without_tokens_there_is_no_metadata(plain: Served, keyed: Keyed):
    assert error_of(plain.get(WELL_KNOWN)) == (404, "E604")
    assert error_of(keyed.server.get(f"{WELL_KNOWN}/mcp")) == (404, "E604")
    assert "resource_metadata" not in keyed.server.get("/rag/kbs").headers["www-authenticate"]
