"""Documents at well-known addresses: the authorization server for OAuth clients (RFC 9728)."""

import re
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.responses import Response

from pair import errors
from pair.app.http.context import Anyone, HttpRequest
from pair.app.http.responses import answer
from pair.app.http.schemas import PathId
from pair.auth.rules import SCOPES, covers
from pair.network import has_host

router = APIRouter(include_in_schema=False)

_WELL_KNOWN = "/.well-known/oauth-protected-resource"
_MCP_PATH = "/mcp"
_HOST = re.compile(r"[A-Za-z0-9.:_\[\]-]{1,300}")
"""A host without characters that would end a quoted text in a header."""


@router.get(_WELL_KNOWN)
async def describe_server(request: Anyone) -> Response:
    """Describe the whole server to OAuth clients."""
    return _describe_resource(request, "")


@router.get(_WELL_KNOWN + "/{id:text}")
async def describe_route(request: Anyone, id: PathId) -> Response:
    """Describe one route to OAuth clients: `/mcp`."""
    return _describe_resource(request, f"/{id}")


def _describe_resource(request: HttpRequest, path: str) -> Response:
    """Return the metadata of a protected resource. Raises E604 if the server accepts no tokens of an OAuth server."""
    resource = _find_resource(request, path)
    named = request.context.settings.jwt_audience
    audience = urlsplit(named if has_host(named) else "")
    if not resource or path not in {"", _MCP_PATH, audience.path if audience.netloc else ""}:
        raise errors.no_such_route(request.scope["path"])
    value: dict[str, Any] = {
        "resource": resource,
        "authorization_servers": [request.context.settings.jwt_issuer],
        "scopes_supported": [f"pair:{scope}" for scope in SCOPES],
        "bearer_methods_supported": ["header"],
        "resource_name": "pair",
    }
    return answer(value)


def _find_resource(request: HttpRequest, path: str) -> str:
    """Return the identifier of a protected resource; "" without an OAuth server.

    An audience that is a URL is the identifier. Otherwise the identifier is the address that the client used.
    """
    settings, host = request.context.settings, request.header(b"host")
    if settings.auth != "jwt" or not has_host(settings.jwt_issuer):
        return ""
    if has_host(settings.jwt_audience):
        return settings.jwt_audience
    used = f"{request.scope['scheme']}://{host}{path}"
    return used if _HOST.fullmatch(host) and has_host(used) else ""


def make_challenge(request: HttpRequest, status: int) -> str:
    """Return the WWW-Authenticate header of a refused request; "" if other credentials would not help."""
    needed, path = request.needed_scope, request.scope["path"]
    if status == 403 and covers(request.access.principal.scope, needed):
        return ""
    parts = ['Bearer realm="pair"']
    if status == 403:
        parts.append('error="insufficient_scope"')
    elif request.header(b"authorization"):
        parts.append('error="invalid_token"')
    resource = _find_resource(request, _MCP_PATH if path == _MCP_PATH else "")
    if resource:
        may_write = path == _MCP_PATH and request.context.settings.mcp_write
        parts.append(f'scope="pair:{needed}{" pair:write" if may_write else ""}"')
        place = urlsplit(resource)
        parts.append(f'resource_metadata="{place.scheme}://{place.netloc}{_WELL_KNOWN}{place.path.rstrip("/")}"')
    return ", ".join(parts)
