"""A librarian that knows the calendar: weekdays, and days between two dates."""

import datetime
import re

from pair.librarians import Citation, Context, ErrorCode, Response

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CALENDAR = Citation("Gregorian calendar", type="calculation", relevance=1.0)


async def almanac(query: str, context: Context | None = None) -> Response:
    """Which weekday is 2026-01-31? How many days from 2026-01-01 to 2026-03-01?"""
    try:
        dates = [datetime.date.fromisoformat(found) for found in _DATE.findall(query)]
    except ValueError as fault:
        return Response.failing(ErrorCode.INVALID_QUERY, f"There is no such day: {fault}")
    match dates:
        case [day]:
            answer = f"{day} is a {day:%A}."
        case [first, last]:
            answer = f"From {first} to {last} it is {abs((last - first).days)} days."
        case _:
            return Response.failing(
                ErrorCode.NOT_FOUND, "The question names no date", suggestion="Write dates as 2026-01-31"
            )
    return Response(answer=answer, sources=(_CALENDAR,), confidence=1.0)
