"""A librarian that answers nothing itself: it hands each question to the colleague who knows."""

import re

from pair.librarians import Context, Response

_OPENING_HOURS = "The desk is open from nine to five."
_HAS_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


async def front_desk(query: str, context: Context | None = None) -> Response:
    """Hands questions about dates to the almanac, greetings to the greeter, and knows its opening hours."""
    there = {colleague.id for colleague in context.available_delegates} if context else set()
    wanted = "almanac" if _HAS_DATE.search(query) else "greeter" if "hello" in query.lower() else ""
    if wanted in there:
        return Response.delegating(wanted, query)
    if "open" in query.lower():
        return Response(answer=_OPENING_HOURS, confidence=1.0)
    return Response(answer=f"I do not know who could answer that. {_OPENING_HOURS}", confidence=0.2, partial=True)
