"""A real OpenAI-compatible server on loopback with deterministic answers, and with the faults that a test scripts.

    with ModelServer() as server:
        server.answers.append(Answer(status=429, headers={"Retry-After": "0"}))   # first this, then normal replies
        OpenAiSummariser(ModelPolicy(server.url, "any", "")).summarise("a.md", "Cats sleep.")
        server.calls, server.calls_by_source["a.md"], server.requests[0]["messages"]

A normal reply is `About: ` and the first 60 characters of the text between the markers, so that it is predictable.
Vectors are those of the n-gram embedder, three times as long, and the last text's come first.
"""

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from pair.ai.ngram import NgramEmbedder
from support.listening import QuietHandler, QuietServer

EMBEDDING_DIMENSION = 64
_DATA = re.compile(r"^BEGIN DATA (\w+)\nSource: ([^\n]*)\n\n(.*)\nEND DATA \1$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """One scripted answer. `body` replaces the whole completion, `text` only the reply in it."""

    status: int = 200
    text: str | None = None
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """The number of words of a streamed reply before the connection is cut."""
    held_after: int | None = None
    """The number of words of a streamed reply after which the rest waits for `release`."""
    release: threading.Event = field(default_factory=threading.Event)
    delay_seconds: float = 0.0
    """A delay before the answer. It ends early if the server stops."""


EMPTY = Answer(text="  \n")
NONSENSE = Answer(text="… 123 !!!")
NOT_JSON = Answer(body="{not json")


class ModelServer:
    """The server.

    After `stop()` it refuses connections until `start()`, on the same port. `context_characters`: the maximum length of
    data.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.calls_by_source: Counter[str] = Counter()
        self.context_characters: int | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._httpd = _Httpd(self, 0)
        self._port = int(self._httpd.server_address[1])

    def __enter__(self) -> Self:
        self._serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def calls(self) -> int:
        return len(self.requests)

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._httpd.shutdown()
            self._httpd.server_close()
            self._httpd.close_connections()

    def start(self) -> None:
        self._stopping.clear()
        self._httpd = _Httpd(self, self._port)
        self._serve()

    def _serve(self) -> None:
        # The short poll lets a test end at once.
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer_to(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> Answer:
        """Count the request, and return its answer."""
        source, text = data_of(request)
        with self._lock:
            self.paths.append(path)
            self.headers.append(headers)
            self.requests.append(request)
            self.calls_by_source[source] += 1
            scripted = self.answers.pop(0) if self.answers else None
        if scripted is not None:
            self._stopping.wait(scripted.delay_seconds)
            return scripted
        if path.endswith("/v1/embeddings"):
            return self._vectors_for(request)
        if not path.endswith("/v1/chat/completions"):
            return Answer(404, body='{"error": {"message": "no such path"}}')
        if self.context_characters is not None and len(text) > self.context_characters:
            error = {"message": "This model's maximum context length is exceeded", "code": "context_length_exceeded"}
            return Answer(400, body=json.dumps({"error": error}))
        return Answer(text=f"About: {' '.join(text[:60].split())}")

    def _vectors_for(self, request: dict[str, Any]) -> Answer:
        texts = request["input"]
        if self.context_characters is not None and sum(map(len, texts)) > self.context_characters:
            return Answer(413, body='{"error": {"message": "input is too large"}}')
        vectors = 3.0 * NgramEmbedder(request.get("dimensions", EMBEDDING_DIMENSION)).embed(texts)
        entries = [{"index": at, "embedding": vector.tolist()} for at, vector in enumerate(vectors)]
        return Answer(body=json.dumps({"object": "list", "data": entries[::-1], "model": request["model"]}))


def data_of(request: dict[str, Any]) -> tuple[str, str]:
    """Return the source and the text of a request, which are between its markers."""
    found = _DATA.search(str(request["messages"][-1]["content"])) if "messages" in request else None
    return (found[2], found[3]) if found else ("", "")


class _Httpd(QuietServer):
    def __init__(self, owner: ModelServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.owner = owner
        self.connections: set[socket.socket] = set()

    def close_connections(self) -> None:
        """Close the connections that clients keep alive, which would be answered after the stop."""
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        cast("_Httpd", self.server).connections.add(self.connection)

    def finish(self) -> None:
        cast("_Httpd", self.server).connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        request = json.loads(self.read_body())
        answer = cast("_Httpd", self.server).owner.answer_to(self.path, dict(self.headers), request)
        if request.get("stream") and answer.status == 200 and answer.body is None:
            self._stream(request["model"], answer)
            return
        message = {"role": "assistant", "content": answer.text}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"]}
        completion["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = (json.dumps(completion) if answer.body is None else answer.body).encode()
        self.answer(answer.status, body, {"Content-Type": "application/json", **answer.headers})

    def _stream(self, model: str, answer: Answer) -> None:
        """Stream the reply word by word. Close the connection after `cut_after` words."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        event: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": model}
        for number, piece in enumerate(re.findall(r"\S+\s*|\s+", answer.text or "")):
            if number == answer.cut_after:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if number == answer.held_after:
                answer.release.wait(20)
            event["choices"] = [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        event["choices"] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
