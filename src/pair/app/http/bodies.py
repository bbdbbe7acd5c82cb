"""Reading what is sent: so much of it, and so fast."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pair import request_errors
from pair.access.policy import ServerPolicy

JSON = "application/json"
LINES = "application/x-ndjson"


def media_type(headers: dict[bytes, bytes]) -> str:
    """`application/json; charset=utf-8` -> `application/json`"""
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


async def whole(receive: Any, headers: dict[bytes, bytes], policy: ServerPolicy) -> bytes:
    """Raises E607 as soon as it is certain, E610."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > policy.max_body_bytes:
        raise request_errors.request_too_large("The request", policy.max_body_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(policy.body_timeout_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                part = message.get("body", b"")
                size += len(part)
                if size > policy.max_body_bytes:
                    raise request_errors.request_too_large("The request", policy.max_body_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError as fault:
        raise request_errors.request_too_slow(policy.body_timeout_seconds) from fault


async def lines(receive: Any, policy: ServerPolicy) -> AsyncIterator[list[bytes]]:
    """Lines that are not blank, as many at a time as arrived together. Raises E607 for one that is too long, E610."""
    begun: list[bytes] = []
    """Parts of a line whose end is still to come: joined once, however many they are."""
    size = 0
    more = True
    while more:
        try:
            async with asyncio.timeout(policy.body_timeout_seconds):
                message = await receive()
        except TimeoutError as fault:
            raise request_errors.request_too_slow(policy.body_timeout_seconds) from fault
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        more = message.get("more_body", False)
        *found, rest = message.get("body", b"").split(b"\n")
        if found:
            found[0] = b"".join([*begun, found[0]])
            begun, size = [], 0
        begun.append(rest)
        size += len(rest)
        if not more:
            found.append(b"".join(begun))
        if max(size, *map(len, found), 0) > policy.max_body_bytes:
            raise request_errors.request_too_large("A line", policy.max_body_bytes)
        if wanted := [each for each in found if each.strip()]:
            yield wanted
