"""Versions of KBs: listed, compared, gone back to."""

from typing import Any

from starlette.responses import Response

from pair import cancellation
from pair.app.http import schemas
from pair.app.http.context import RequestCall, Service, answer
from pair.auth.rules import covers
from pair.kb.diff import DiffReport, DiffRequest, diff_versions

_MOST_LINES = 200
"""Of the diff of a text."""
_MOST_WIDTH = 1_000
"""Characters of a line of it."""
_MOST_CHARACTERS = 1_000_000
"""Of what is told of all documents."""


async def list_versions(service: Service, call: RequestCall) -> Response:
    """`may_roll_back`: whether whoever asks may do so, for pages that show a button for it."""
    kb_id = call.use_kb(call.parameters(schemas.KbParameters).kb_id)
    found = await service.reading(lambda: service.kbs.get(kb_id).versions.list())  # noqa: PLW0108 - opened in a thread
    may_roll_back = covers(call.principal.scope, "admin")
    return answer({"kb_id": kb_id, "versions": [each.to_json() for each in found], "may_roll_back": may_roll_back})


async def roll_back(service: Service, call: RequestCall) -> Response:
    body = await call.body(service.policy)
    asked = await service.parsed(schemas.RollbackRequest, body)
    kb_id = call.use_kb(asked.kb_id)

    async def rolled_back() -> Response:
        async with service.turn(kb_id):
            done = await service.working(lambda: service.kbs.get(kb_id).versions.rollback(asked.version))
        return answer({"status": "ok", **done.to_json()})

    return await service.once(call, kb_id, body, rolled_back)


async def diff(service: Service, call: RequestCall) -> Response:
    asked = call.parameters(schemas.DiffParameters)
    kb_id = call.use_kb(asked.kb_id)
    told = await service.reading(
        lambda: _told(diff_versions(service.kbs.get(kb_id).versions.compare(asked.a, asked.b)), asked)
    )
    return answer({"kb_id": kb_id, **told})


def _told(found: DiffReport, asked: schemas.DiffParameters) -> dict[str, Any]:
    """As many documents as were asked for and are not too long together; `next` says where to go on."""
    those = [each for each in found.ids() if each[0] > asked.after]
    wanted = DiffRequest(asked.entries == "true", asked.text == "true", _MOST_LINES, _MOST_WIDTH)
    documents: list[dict[str, Any]] = []
    characters = 0
    for document in found.describe(those[: asked.limit], wanted):
        cancellation.check()
        documents.append(document.to_json())
        characters += sum(map(len, document.entry or ())) + sum(map(len, document.text or ()))
        if characters > _MOST_CHARACTERS:
            break
    following = documents[-1]["id"] if len(documents) < len(those) else None
    return {"a": int(found.a), "b": int(found.b), **found.counts, "documents": documents, "next": following}
