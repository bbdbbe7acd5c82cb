"""OpenAI-compatible servers: language model, summaries and vectors.

Invariants
    The key is sent to the configured server only, and never shown.
    A source costs at most MOST_PIECES + 1 replies for each tried size of pieces.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np

from pair import errors, network
from pair.ai import prompts
from pair.ai.contract import Vectors
from pair.ai.prompts import ModelSettings
from pair.clock import SystemClock
from pair.network import RetryPolicy, describe_fault, parse_retry_after
from pair.text.characters import clip, drop_unprintable, join_lines, replace_surrogates

_MAX_REASON_CHARACTERS = 300
# Some servers refuse requests without a key; servers without keys accept any.
_PLACEHOLDER_KEY = "none"


@dataclass(eq=False)
class ModelFault(network.RequestFault):
    """A request without a reply."""

    is_too_long: bool = False
    """Whether a shorter text may succeed."""
    is_about_the_text: bool = False
    """Whether the server works, and refused only this text."""

    def to_error(self, address: str) -> errors.ModelError:
        """Return E302 for a refused text, else E301: other texts would fail too."""
        error = errors.model_reply_unusable if self.is_about_the_text else errors.model_unreachable
        return error(address, self.reason)


class ModelConnection:
    """Requests to a server, retried after temporary faults. Thread-safe."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self.address = prompts.shown_address(settings.base_url)
        self._key = settings.api_key.strip() or _PLACEHOLDER_KEY
        self._calls = 0
        self._lock = threading.Lock()
        if not self._key.isascii() or not self._key.isprintable():
            raise errors.model_unreachable(self.address, "The API key has characters that a request cannot contain.")
        self._client = self._connect()

    @property
    def calls(self) -> int:
        """The number of requests so far, including retries."""
        with self._lock:
            return self._calls

    def close(self) -> None:
        self._client.close()

    def ask(self, path: str, body: Mapping[str, Any]) -> str:
        """Return the body of the answer. Raises ModelFault."""
        policy = RetryPolicy(self._settings.retries, self._settings.retry_wait_seconds)
        return policy.run(lambda: self._ask_once(path, body))

    def complete(self, instructions: str, text: str) -> str:
        """Return the reply of the model. Raises ModelFault, and E302 for an answer that is not a chat completion."""
        reply = prompts.reply_text(self.ask("chat/completions", self._build_completion(instructions, text)))
        if reply is None:
            raise errors.model_reply_unusable(self.address, "the answer is not a chat completion")
        return reply

    def stream(self, instructions: str, text: str) -> Iterator[Any]:
        """Yield the events of a reply, without retries: yielded pieces cannot be revoked. Raises ModelFault."""
        content = _encode(self._build_completion(instructions, text) | {"stream": True})
        with self._lock:
            self._calls += 1
        try:
            with self._client.stream("POST", "chat/completions", content=content) as response:
                if response.is_success:
                    yield from _read_events(response.iter_bytes())
                    return
                response.read()
                fault = self._read_refusal(response)
        except (httpx2.HTTPError, ValueError, RecursionError) as caught:
            fault = self._read_fault(caught)
        raise fault  # Raised outside the block, as below.

    def _ask_once(self, path: str, body: Mapping[str, Any]) -> str:
        with self._lock:
            self._calls += 1
        try:
            response = self._client.post(path, content=_encode(body))
        except httpx2.HTTPError as caught:
            fault = self._read_fault(caught)
        else:
            if response.is_success:
                return response.text
            fault = self._read_refusal(response)
        # Raised outside the block, so that no traceback contains the request with its key.
        raise fault

    def _build_completion(self, instructions: str, text: str) -> dict[str, Any]:
        return {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": self._settings.max_output_tokens,
        }

    def _read_fault(self, caught: Exception) -> ModelFault:
        if isinstance(caught, httpx2.TimeoutException):
            return ModelFault(f"No answer within {self._settings.timeout_seconds:g}s", retryable=True)
        reason = self._redact(describe_fault(caught))
        return ModelFault(reason, retryable=not isinstance(caught, httpx2.UnsupportedProtocol))

    def _read_refusal(self, response: httpx2.Response) -> ModelFault:
        status, text, headers = response.status_code, response.text, response.headers
        detail = f": {text}" if text.strip() else ""
        reason = self._redact(f"HTTP {status} {response.reason_phrase}{detail}")
        if prompts.is_too_long(status, text):
            return ModelFault(reason, is_too_long=True, is_about_the_text=True)
        return ModelFault(
            reason,
            retryable=prompts.is_passing(status),
            retry_after_seconds=parse_retry_after(headers.get("Retry-After"), headers.get("Date"), SystemClock().now()),
            is_about_the_text=prompts.is_about_the_text(status),
        )

    def _redact(self, text: str) -> str:
        """Remove the key, which a server may repeat."""
        if self._key != _PLACEHOLDER_KEY:
            text = text.replace(self._key, "…")
        return clip(join_lines(drop_unprintable(text)), _MAX_REASON_CHARACTERS)

    def _connect(self) -> httpx2.Client:
        try:
            return httpx2.Client(
                base_url=self._settings.base_url,
                timeout=self._settings.timeout_seconds,
                # Neither the key nor the sources may reach another host.
                follow_redirects=False,
                headers={"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "pair"},
                auth=self._sign,
            )
        except (httpx2.InvalidURL, ValueError, ImportError) as fault:
            # The address, or that of a proxy in the environment, is invalid.
            raise errors.model_unreachable(self.address, self._redact(str(fault))) from fault

    def _sign(self, request: httpx2.Request) -> httpx2.Request:
        request.headers["Authorization"] = f"Bearer {self._key}"
        request.headers.pop("Cookie", None)
        return request


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode(errors="replace")


def _read_events(blocks: Iterable[bytes]) -> Iterator[Any]:
    """Yield the JSON of server-sent events up to `[DONE]`. Raises ValueError for an error and for damaged JSON."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            name, _, data = line.partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            event = json.loads(data)
            if isinstance(event, dict) and event.get("error"):
                raise ValueError(f"the reply ended with an error: {json.dumps(event['error'])}")
            yield event


class OpenAiLanguageModel:
    """A language model on a server. Thread-safe."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._connection = ModelConnection(settings)

    @property
    def name(self) -> str:
        return self._settings.model

    def close(self) -> None:
        self._connection.close()

    def reply(self, instructions: str, text: str) -> str:
        try:
            return self._connection.complete(instructions, text)
        except ModelFault as fault:
            raise fault.to_error(self._connection.address) from fault

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Yield the reply; all at once if the server does not stream. Raises E301 if the stream ends early."""
        is_streamed = is_finished = False
        try:
            for piece, is_last in map(prompts.reply_piece, self._connection.stream(instructions, text)):
                is_finished = is_finished or is_last
                is_streamed = True
                yield piece
        except ModelFault as fault:
            raise fault.to_error(self._connection.address) from fault
        if not is_streamed:
            yield self.reply(instructions, text)
        elif not is_finished:
            raise errors.model_unreachable(self._connection.address, "The reply ended early")


class OpenAiSummariser:
    """Summaries of a language model on a server. Thread-safe."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._connection = ModelConnection(settings)

    @property
    def model_calls(self) -> int:
        return self._connection.calls

    def close(self) -> None:
        self._connection.close()

    def summarise(self, source_id: str, text: str) -> str:
        if not text.strip():
            return ""
        limit: int | None = self._settings.max_input_tokens
        while limit is not None:
            try:
                pieces = prompts.choose_pieces(prompts.split_text(text, limit))
                if len(pieces) == 1:
                    return self._ask(source_id, pieces[0], "source")
                partial = [self._ask(source_id, piece, "part") for piece in pieces]
                return self._ask(source_id, prompts.join_descriptions(partial, limit), "descriptions")
            except ModelFault as caught:
                fault = caught
                limit = prompts.smaller_limit(limit, text) if fault.is_too_long else None
        raise fault.to_error(self._connection.address) from fault

    def _ask(self, source_id: str, text: str, kind: prompts.PieceKind) -> str:
        reply = self._connection.complete(*prompts.build_prompt(source_id, text, kind))
        tidy = prompts.tidy_reply(reply)
        if fault := prompts.reply_fault(reply, tidy):
            raise errors.model_reply_unusable(self._connection.address, f"{fault} (model {self._settings.model})")
        return "\n".join(tidy.split("\n")[: prompts.MAX_REPLY_LINES])


# ── vectors ────────────────────────────────────────────────────────────────────────────────────────

# All known servers accept requests of this size.
_TEXTS_IN_A_REQUEST = 32
_CHARACTERS_IN_A_REQUEST = 60_000
_REQUESTS_AT_ONCE = 4
# A text is not cut to less than this.
_LEAST_CHARACTERS = 200
_PROBE = "How many numbers has a vector?"


@dataclass(frozen=True)
class OpenAiEmbedderOptions:
    dimension: int = 0
    """The dimension to request from the server and to expect in every reply; 0 to use that of the first reply."""
    query_prefix: str = ""
    document_prefix: str = ""


class OpenAiEmbedder:
    """Vectors of a model on a server. Thread-safe. Raises E301 without an answer, E302 for an unusable one."""

    hybrid_weight = 0.4

    def __init__(self, settings: ModelSettings, options: OpenAiEmbedderOptions | None = None) -> None:
        self._model = settings.model
        self._options = options or OpenAiEmbedderOptions()
        self._connection = ModelConnection(settings)
        self._known_dimension = self._options.dimension
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model, its dimension and prefixes. Vectors that differ in these must not be mixed."""
        parts = ["openai", self._model]
        if self._options.dimension:
            parts.append(str(self._options.dimension))
        if self._options.document_prefix:
            parts.append(hashlib.sha256(self._options.document_prefix.encode()).hexdigest()[:8])
        return "-".join(parts)

    @property
    def dimension(self) -> int:
        if not self._known_dimension:
            self._ask([_PROBE])
        return self._known_dimension

    def close(self) -> None:
        self._connection.close()

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.document_prefix)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.query_prefix)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        numbers = [number for number, text in enumerate(texts) if text.strip()]
        batches = _split_batches([prefix + replace_surrogates(texts[number]) for number in numbers])
        if len(batches) > 1:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                replies = list(pool.map(self._ask, batches))
        else:
            replies = [self._ask(batch) for batch in batches]
        vectors: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if replies:
            vectors[numbers] = np.concatenate(replies)
        return vectors

    def _ask(self, batch: Sequence[str]) -> Vectors:
        """Return a row of length 1 for each text. Halve a request that is too long: the batch, then a single text."""
        request: dict[str, Any] = {"model": self._model, "input": list(batch), "encoding_format": "float"}
        if self._options.dimension:
            request["dimensions"] = self._options.dimension
        try:
            body = self._connection.ask("embeddings", request)
        except ModelFault as caught:
            fault = caught
        else:
            return self._read(body, len(batch))
        smaller = _halve(batch) if fault.is_too_long else []
        if smaller:
            return np.concatenate([self._ask(half) for half in smaller])
        if fault.is_about_the_text:
            raise self._unusable(fault.reason) from fault
        raise errors.model_unreachable(
            self._connection.address,
            fault.reason,
            hints=[
                "Check engine.embedding_url, or ai.base_url, and that the server runs",
                "Use an embedder that needs no server: engine.embedder: static",
            ],
        ) from fault

    def _read(self, body: str, count: int) -> Vectors:
        try:
            rows = _parse_vectors(body, count)
        except ValueError as fault:
            raise self._unusable(str(fault)) from fault
        with self._lock:
            self._known_dimension = self._known_dimension or rows.shape[1]
        if rows.shape[1] != self._known_dimension:
            raise self._unusable(f"its vectors have {rows.shape[1]} numbers, {self._known_dimension} were expected")
        lengths = np.sqrt(np.add.reduce(np.square(rows), axis=1, keepdims=True))
        vectors: Vectors = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return vectors

    def _unusable(self, reason: str) -> errors.ModelError:
        return errors.model_reply_unusable(
            self._connection.address,
            f"{reason} (model {self._model})",
            hints=["Try another model with engine.embedding_model"],
        )


def _split_batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if not batches or len(batches[-1]) == _TEXTS_IN_A_REQUEST or characters > _CHARACTERS_IN_A_REQUEST:
            batches.append([])
            characters = len(text)
        batches[-1].append(text)
    return batches


def _halve(batch: Sequence[str]) -> list[Sequence[str]]:
    """Return the halves of a batch, or the first half of a single text; nothing if that is too short."""
    middle = len(batch) // 2
    if middle:
        return [batch[:middle], batch[middle:]]
    half = batch[0][: len(batch[0]) // 2]
    return [[half]] if len(half) >= _LEAST_CHARACTERS else []


def _parse_vectors(body: str, count: int) -> np.ndarray:
    """Return a row for each text, in double precision. Raises ValueError with the reason."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("the answer is not a list of vectors")
    # Some servers omit the index, and keep the order.
    by_index: dict[Any, Any] = {entry.get("index", at): entry.get("embedding") for at, entry in enumerate(entries)}
    if set(by_index) != set(range(count)) or len(entries) != count:
        raise ValueError(f"the answer has {len(entries)} vectors, or wrong places for them, for {count} texts")
    try:
        vectors = np.array([by_index[at] for at in range(count)], dtype=np.float64)
    except (TypeError, ValueError):
        vectors = np.empty(0)
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError("the vectors are not a table of numbers")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector has a number that is not finite")
    return vectors
