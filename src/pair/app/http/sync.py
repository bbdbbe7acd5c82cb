"""A sync that somebody asks for: what is under way is waited for, and those who wait together share the next run."""

from typing import Any

from starlette.responses import Response

from pair import errors
from pair.app.http import schemas
from pair.app.http.context import RequestCall, Service, answer
from pair.kb.open import DEFAULT_KB


async def sync(service: Service, call: RequestCall) -> Response:
    """Whatever changed before the request is stored when it is answered. Raises E101 unless it may wait, E401, E611."""
    asked = await call.read(service, schemas.SyncRequest, empty=b"{}")
    kb_id = call.use_kb(asked.kb_id)
    if service.is_stopping:
        raise errors.server_stopping()

    def run(*, wait: bool) -> dict[str, Any]:
        return service.kbs.get(kb_id).sync(wait=wait).to_json()

    if not asked.wait or kb_id != DEFAULT_KB:
        report = await service.working(lambda: run(wait=asked.wait))
    else:
        report = await service.syncs.next(lambda: service.working(lambda: run(wait=True)))
    return answer({"status": "ok", "kb_id": kb_id, **report})
