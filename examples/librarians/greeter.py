"""The smallest librarian: it greets, and says what it cannot do."""

from pair.librarians import Context, ErrorCode, Response

_GREETINGS = ("hello", "hi", "good morning", "good evening")


async def greeter(query: str, context: Context | None = None) -> Response:
    """Says hello."""
    if not query.strip().lower().startswith(_GREETINGS):
        return Response.failing(ErrorCode.NOT_FOUND, "I can only greet", suggestion="Say hello")
    name = context.user.id if context and context.user else "reader"
    return Response(answer=f"Hello, {name}!", confidence=1.0)
