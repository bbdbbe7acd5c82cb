"""E-mail: a message (.eml) or a mailbox of them (.mbox), with headers as metadata. Attachments are named, not read."""

import datetime
import email.policy
import re
from email.message import EmailMessage
from typing import Any

from pair.reading.contract import Reading, UnreadableDocument
from pair.reading.encoding import decode
from pair.reading.html import read_page

_MESSAGE = re.compile(rb"(?:\A|\n\r?\n)From [^\n]*\n(?=[\w-]+:)")
_HEADERS = ("from", "to", "cc")
_MOST_ADDRESSES = 2_000
"""Maximum length of a list of addresses, in characters."""
# Errors of a parser that parses headers on access.
_DAMAGE = (AttributeError, LookupError, TypeError, ValueError)


def read_mail(content: bytes) -> Reading:
    """Read a message. Raises UnreadableDocument for bytes without the headers of a message."""
    message = _parse(content)
    text, attachments = _read_body(message)
    metadata = _read_headers(message) | ({"attachments": attachments} if attachments else {})
    return Reading(text, _read_header(message, "subject"), metadata)


def read_mailbox(content: bytes) -> Reading:
    """Read all messages of a mailbox, one section for each. Raises UnreadableDocument."""
    starts = list(_MESSAGE.finditer(content))
    if not starts:
        raise UnreadableDocument("is damaged, or not a .mbox file")
    ends = [*(start.start() for start in starts[1:]), len(content)]
    parts = []
    for start, end in zip(starts, ends, strict=True):
        message = _parse(re.sub(rb"(?m)^>(>*From )", rb"\1", content[start.end() : end]))
        headers = [f"{name.title()}: {value}" for name, value in _read_headers(message).items()]
        subject = _read_header(message, "subject") or "Message without a subject"
        parts.append(f"# {subject}\n\n{chr(10).join(headers)}\n\n{_read_body(message)[0]}")
    return Reading("\n\n".join(parts), "", {"messages": len(parts)})


def _parse(content: bytes) -> EmailMessage:
    message = email.message_from_bytes(content, policy=email.policy.default)
    if not any(name in message for name in ("from", "date", "subject", "received", "message-id")):
        raise UnreadableDocument("is damaged, or not an e-mail")
    return message


def _read_headers(message: EmailMessage) -> dict[str, Any]:
    """Return the addresses and the date of a message: the date as ISO 8601, in UTC."""
    headers = {name: value for name in _HEADERS if (value := _read_header(message, name)[:_MOST_ADDRESSES])}
    try:
        date = message["date"].datetime
        headers["date"] = date.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    except (*_DAMAGE, OverflowError):
        pass
    return headers


def _read_header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message[name] or "").split())
    except _DAMAGE:
        return ""


def _read_body(message: EmailMessage) -> tuple[str, list[str]]:
    """Return the text of a message, and the names of its attachments."""
    try:
        body = message.get_body(("plain", "html"))
        parts = [message] if body is None and not message.is_multipart() else list(message.iter_attachments())
        attachments = [name for part in parts if (name := part.get_filename())]
    except _DAMAGE as fault:
        raise UnreadableDocument("is damaged, or cannot be read as e-mail") from fault
    text = ""
    if body is not None:
        payload = body.get_payload(decode=True)
        raw = payload if isinstance(payload, bytes) else b""
        is_page = body.get_content_subtype() == "html"
        text = decode(raw, charset=body.get_content_charset(), is_markup=is_page).replace("\r\n", "\n")
        text = read_page(text).text if is_page else text.strip()
    if attachments:
        text = f"{text}\n\nAttachments: {', '.join(attachments)}".strip()
    return text, attachments
