"""Queries for a running server: from a file, or made of what it stores; and what it makes of them."""

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pair import errors, request_errors
from pair.app.load import Seen, Server, load
from pair.app.load_plan import Asking
from pair.client.remote_kb import connect

_DOCUMENTS = 500
_WORDS = 8
_MOST_QUERIES = 100_000


def load_server(url: str, key: str, asking: Asking) -> tuple[Seen, bool]:
    """What was seen, and whether it was interrupted. Raises E010, E215, E401, E621, and what the server tells."""
    with connect(url, kb_id=asking.kb_id, key=key, retries=0) as kb:
        if asking.file is not None:
            texts = queries_in(asking.file)
        else:
            documents = kb.documents(limit=_DOCUMENTS)
            texts = [_query_of(each.title, each.text) for each in documents]
        if not any(texts):
            raise errors.query_invalid("there is nothing to ask", hints=["Name a file: --queries FILE"])
    server, seen = Server.of(url, key), Seen()
    requests = _requests(server, asking.kb_id, texts, is_unique=asking.is_unique)
    try:
        asyncio.run(load(server, requests, asking.plan, seen))
    except KeyboardInterrupt:
        return seen, True
    except OSError as fault:
        raise request_errors.server_unreachable(url, fault.strerror or type(fault).__name__) from fault
    return seen, False


def queries_in(path: str) -> list[str]:
    """Raises E010, E215."""
    try:
        with Path(path).open(encoding="utf-8") as stream:
            lines = [line.strip() for line in itertools.islice(stream, _MOST_QUERIES)]
    except OSError as fault:
        raise errors.storage_failed(path, fault.strerror or "it cannot be opened", is_reading=True) from fault
    except UnicodeDecodeError as fault:
        raise errors.query_invalid(f"{path} is not UTF-8") from fault
    return [_query_in(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line]


def _query_in(line: str, where: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        value = json.loads(line)
    except ValueError as fault:
        raise errors.query_invalid(f"{where}: not JSON") from fault
    text = value.get("text", value.get("query"))
    if not isinstance(text, str):
        raise errors.query_invalid(f"{where}: neither `text` nor `query` is a text")
    return text


def _query_of(title: str, text: str) -> str:
    return title or " ".join(text.split()[:_WORDS])


def _requests(server: Server, kb_id: str, texts: Sequence[str], *, is_unique: bool) -> Iterator[bytes]:
    asked = [text for text in texts if text]
    if not is_unique:
        return itertools.cycle([server.query(text, kb_id) for text in asked])
    return (server.query(f"{text} {number}", kb_id) for number, text in enumerate(itertools.cycle(asked)))
