"""Feedback on hits and answers."""

from typing import Annotated, Literal

from annotated_types import MaxLen, MinLen
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from pair.app.http import schemas
from pair.app.http.context import Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import answer
from pair.app.kb_access import strict
from pair.kb.feedback import MOST_QUERY_CHARACTERS

router = APIRouter()


@strict
class FeedbackRequest:
    """A judgement: whether documents answer a query."""

    query: Annotated[str, MinLen(1), MaxLen(MOST_QUERY_CHARACTERS)]
    rating: Literal["up", "down"]
    document_ids: Annotated[list[Annotated[str, MinLen(1), MaxLen(4096)]], MinLen(1), MaxLen(50)] | None = None
    kb_id: schemas.KbId = ""


class FeedbackResponse(BaseModel):
    status: schemas.Ok
    kb_id: str


@router.post("/feedback", **describe(FeedbackResponse, 404, 409, body=FeedbackRequest))
async def give_feedback(request: Reader) -> Response:
    """Judge a hit or an answer

    Send the document of a hit, or the documents that an answer cites. `pair eval --feedback` measures search by these
    judgements. The newest 5,000 are kept, without the name of the user.
    """
    asked = await request.read(FeedbackRequest)
    kb_id = request.access.use_kb(asked.kb_id)
    await request.access.give_feedback(kb_id, asked.query, asked.rating, asked.document_ids or ())
    return answer({"status": "ok", "kb_id": kb_id})
