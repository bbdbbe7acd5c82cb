"""Dependencies of the routes: they check who calls before a handler runs and anything of the body is read."""

import hashlib
import ipaddress
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer, SecurityScopes

from pair import errors
from pair.app.http.context import HttpRequest
from pair.auth import rules
from pair.auth.rules import Scope
from pair.librarians.threads import ThreadShare, share

_bearer = HTTPBearer(scheme_name="credentials", description="A key of `pair keys add`, or a JWT.", auto_error=False)


def _check_origin(given: Request) -> HttpRequest:
    """Raises E603 for a page of another site, and for another host name where no credentials are needed."""
    request: HttpRequest = given.scope["pair"]
    context = request.context
    rules.check_origin(
        request.header(b"host"),
        request.header(b"origin"),
        only_loopback=context.settings.auth == "none",
        is_named=context.cross_origin.allows(request.headers),
    )
    return request


async def admit(given: Request, scope: Scope) -> HttpRequest:
    """Check the origin, the credentials, the rate limit and the scope. Raises E602, E603, E608, E614."""
    request = _check_origin(given)
    context, client = request.context, client_address(request.scope)
    if context.settings.auth != "none":
        try:
            kind, _, credential = request.header(b"authorization").partition(" ")
            if kind.lower() != "bearer" or not credential.strip():
                raise errors.credentials_refused("there are none")
            request.access.principal = await context.verify(credential.strip())
        except errors.AccessError:
            _check_rate(request, f"unknown {client}")
            raise
        client = request.access.principal.client
        share.set(ThreadShare(client, context.settings.client_workers))
    _check_rate(request, client)
    rules.check_scope(request.access.principal, scope)
    if given.scope["route"].dependant.query_params:
        request.check_parameters()
    return request


async def _admit_anyone(given: Request) -> HttpRequest:
    request = _check_origin(given)
    share.set(ThreadShare(f"unknown {client_address(request.scope)}", request.context.settings.client_workers))
    return request


async def _admit_scope(
    given: Request, needed: SecurityScopes, _credentials: Annotated[Any, Depends(_bearer)]
) -> HttpRequest:
    """Admit a caller with the scope that a route declares. The bearer is for the OpenAPI document."""
    return await admit(given, cast("Scope", needed.scopes[0]))


def _check_rate(request: HttpRequest, client: str) -> None:
    """Raises E608."""
    wait = request.context.rate_limit.take(client)
    if wait:
        request.access.log_fields["retry_after"] = wait
        raise errors.too_many_requests()


def client_address(scope: Any) -> str:
    """Return the address of the client; of IPv6 the network, which one client has all of."""
    host = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return hashlib.sha256(host.encode()).hexdigest()[:12]


Anyone = Annotated[HttpRequest, Depends(_admit_anyone)]
Reader = Annotated[HttpRequest, Security(_admit_scope, scopes=["read"])]
Writer = Annotated[HttpRequest, Security(_admit_scope, scopes=["write"])]
Admin = Annotated[HttpRequest, Security(_admit_scope, scopes=["admin"])]
"""The request of a caller who may do this."""


class HotRoute(APIRoute):
    """A route for readers that calls its handler at once: FastAPI's dependencies cost as much as a cached answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(given: Request) -> Response:
            response: Response = await self.endpoint(await admit(given, "read"))
            return response

        return handle
