"""What a chat client sends, and the question in it. Pure.

Not here
    Who is asked, and how the answer is sent: completions.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MaxLen, MinLen
from pydantic import ConfigDict, Field

from pair import errors

_MOST_TURNS = 20
_MOST_CHARACTERS = 8_000
"""Of all earlier turns together: the latest ones that fit."""
_LENIENT = ConfigDict(extra="ignore", allow_inf_nan=False)
"""Chat clients send much that makes no difference here."""


@dataclass(frozen=True)
class ContentPart:
    """A piece of a message; only text can be read."""

    __pydantic_config__ = _LENIENT
    type: Annotated[str, Field(examples=["text"])]
    text: str | None = None


@dataclass(frozen=True)
class ChatMessage:
    __pydantic_config__ = _LENIENT
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None


@dataclass(frozen=True)
class StreamOptions:
    __pydantic_config__ = _LENIENT
    include_usage: bool | None = None


@dataclass(frozen=True)
class ChatRequest:
    """Messages of a conversation, to a librarian. Other parameters of the API are taken and make no difference."""

    __pydantic_config__ = _LENIENT
    messages: Annotated[list[ChatMessage], MinLen(1)]
    model: Annotated[str, MaxLen(256), Field(description="A librarian, or `pair` for whoever is asked first.")] = "pair"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int | None, Field(json_schema_extra={"minimum": 1})] = None
    max_completion_tokens: Annotated[int | None, Field(json_schema_extra={"minimum": 1})] = None
    n: Annotated[int | None, Field(description="There is one answer.", json_schema_extra={"const": 1})] = None
    tools: Annotated[list[Any] | None, Field(description="Not used.", json_schema_extra={"maxItems": 0})] = None
    functions: Annotated[list[Any] | None, Field(description="Not used.", json_schema_extra={"maxItems": 0})] = None
    response_format: Annotated[dict[str, Any] | None, Field(description='Only `{"type": "text"}`.')] = None
    modalities: Annotated[list[str] | None, Field(description='Only `["text"]`.')] = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage_in_stream(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


@dataclass(frozen=True)
class ChatQuestion:
    text: str
    before: str
    """The one before it in the conversation; "" when there is none."""
    turns: tuple[dict[str, str], ...]
    """Everything else that was said, oldest first, as much of it as librarians are told."""
    said: str
    """All of the conversation, for counting."""

    def in_context(self) -> str:
        """The two questions as one: what the second leaves out may be in the first."""
        return f"{self.before}\n{self.text}"


def check_supported(asked: ChatRequest) -> None:
    """Raises E601 for what would be answered otherwise than it was asked for."""
    if asked.n not in {None, 1}:
        raise errors.request_invalid("n: there is one answer to a question")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise errors.request_invalid(f"{name}: at least one")
    for name in ("tools", "functions"):
        if getattr(asked, name):
            raise errors.request_invalid(f"{name}: librarians answer, and call nothing")
    wanted = (asked.response_format or {}).get("type", "text")
    if wanted != "text":
        raise errors.request_invalid("response_format.type: answers are text, with sources")
    if any(each != "text" for each in asked.modalities or ()):
        raise errors.request_invalid("modalities: answers are text")


def question_of(messages: Sequence[ChatMessage]) -> ChatQuestion:
    """The last message of the user, and what was said around it. Raises E601."""
    texts = [_text_of(message, f"messages.{number}") for number, message in enumerate(messages)]
    asked = [number for number, message in enumerate(messages) if message.role == "user" and texts[number].strip()]
    if not asked:
        raise errors.request_invalid("messages: there is no message of the user with text in it")
    last = asked[-1]
    others = [(messages[number].role, text) for number, text in enumerate(texts) if number != last and text.strip()]
    return ChatQuestion(
        texts[last].strip(),
        texts[asked[-2]].strip() if len(asked) > 1 else "",
        _latest(others),
        "\n".join(texts),
    )


def _latest(turns: Sequence[tuple[str, str]]) -> tuple[dict[str, str], ...]:
    kept: list[dict[str, str]] = []
    left = _MOST_CHARACTERS
    for role, text in reversed(turns[-_MOST_TURNS:]):
        if left <= 0:
            break
        kept.append({"role": role, "content": text[:left]})
        left -= len(text)
    return tuple(reversed(kept))


def _text_of(message: ChatMessage, where: str) -> str:
    if message.role in {"tool", "function"}:
        raise errors.request_invalid(f"{where}.role: librarians call no tools")
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for number, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            shown = part.type[:40] if part.type.isprintable() else "this"
            raise errors.request_invalid(f"{where}.content.{number}.type: only text can be read, not {shown}")
    return "\n".join(part.text or "" for part in message.content)
