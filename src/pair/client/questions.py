"""Questions to the librarians of a server.

Invariants
    Nothing is raised for what goes wrong on the way: it is the answer.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pair import errors
from pair.client.connection import ClientRequest, Failed, Json, ServerConnection, encoded, in_path
from pair.librarians.contract import Context, Response
from pair.librarians.threads import in_thread

if TYPE_CHECKING:
    import httpx2

_DEFAULT_KB = "default"
_MARGIN_SECONDS = 5.0
"""An answer is on its way for a while after the librarians' time is over."""
_ANSWER_SECONDS = 120.0
"""What librarians take at most when nobody says otherwise, which is for the server to say."""
_EVENTS = "text/event-stream"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Questions:
    connection: ServerConnection
    kb_id: str

    async def ask(self, query: str, *, first: str | None, context: Context | None, timeout: float | None) -> Response:
        given = context or Context()
        try:
            return await in_thread(lambda: self._asked(query, first, given, timeout))
        except errors.PairError as fault:
            return Response.of_fault(fault)

    def _asked(self, query: str, first: str | None, context: Context, timeout: float | None) -> Response:
        limits = [seconds for seconds in (timeout, _seconds(context)) if seconds is not None]
        seconds = min(limits) if limits else None
        # Of our own context, what is for others: who asks and whom we know is ours alone.
        passed_on = replace(context, user=None, librarian=None, available_delegates=(), timeout_ms=None).to_json()
        if seconds is not None:
            passed_on["timeout"] = seconds * 1000
        value: Json = {"query": query, "context": passed_on}
        if self.kb_id != _DEFAULT_KB:
            value["kb_id"] = self.kb_id  # else whoever is asked first there
        path = "/ask" if first is None else f"/librarians/{in_path(first)}/ask"
        headers = {"x-request-id": context.request_id} if _REQUEST_ID.fullmatch(context.request_id) else {}
        if context.on_text is not None:
            headers["accept"] = _EVENTS
        wait = (_ANSWER_SECONDS if seconds is None else seconds) + _MARGIN_SECONDS
        request = ClientRequest(
            "POST",
            path,
            encoded(value),
            headers=headers,
            read_seconds=wait,
            is_repeatable=False,
            takes_faults_of_librarians=True,
        )
        listener = context.on_text
        if listener is not None:
            return self.connection.read(request, lambda answer: self._followed(answer, listener))
        return self.connection.read(request, lambda answer: self._response(answer.read()))

    def _followed(self, answer: "httpx2.Response", listener: Callable[[str], None]) -> Response:
        if answer.status_code != 200:
            return self._response(answer.content)
        for name, data in _events(answer):
            if name == "text":
                listener(self.connection.made(data, lambda value: str(value["text"])))
            elif name == "response":
                return self._response(data)
        raise Failed(self.connection.told(None, answer.status_code))

    def _response(self, body: bytes) -> Response:
        return self.connection.made(body, Response.from_json)


def _seconds(context: Context) -> float | None:
    return None if context.timeout_ms is None else context.timeout_ms / 1000


def _events(answer: "httpx2.Response") -> Iterator[tuple[str, bytes]]:
    """Server-sent events: name and data. Lines end with a line feed and nothing else: text may hold the rest."""
    rest, name = b"", ""
    for block in answer.iter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode()
            elif line.startswith(b"data: "):
                yield name, line.removeprefix(b"data: ")
