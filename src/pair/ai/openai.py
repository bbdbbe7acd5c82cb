"""A language model behind an OpenAI-compatible server, and summaries that it writes.

Invariants
    The key is sent to the configured server and shown nowhere.
    A source costs at most MOST_PIECES + 1 replies for each size of piece that is tried.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2
import openai
from openai.types.chat import ChatCompletionMessageParam

from pair import errors, network
from pair.ai import prompts
from pair.ai.prompts import ModelSettings
from pair.clock import SystemClock
from pair.network import RetryPolicy, describe_fault, parse_retry_after
from pair.text.characters import clip, drop_unprintable, join_lines

_MAX_REASON_CHARACTERS = 300
# The SDK wants a key, and compatible servers without one accept any.
_PLACEHOLDER_KEY = "none"
# The SDK adds headers about this machine, and takes more from OPENAI_* variables that are meant for another server.
# It finds the last one of these again in the answer.
_SENT_HEADERS = frozenset(
    {
        "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "authorization",
        "x-stainless-raw-response",
    }
)  # fmt: skip


@dataclass(eq=False)
class ModelFault(network.RequestFault):
    """A request without a reply."""

    is_too_long: bool = False
    """Less text may bring a reply."""
    is_about_the_text: bool = False
    """The server works, and refused this request alone."""

    def to_error(self, address: str) -> errors.ModelError:
        """Return E302 for a refusal of this text, else E301: then other texts need not be tried."""
        error = errors.model_reply_unusable if self.is_about_the_text else errors.model_unreachable
        return error(address, self.reason)


class ModelConnection:
    """Requests to a server, retried while the fault may pass. May be used from several threads at once."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self.address = prompts.shown_address(settings.base_url)
        self._key = settings.api_key.strip() or _PLACEHOLDER_KEY
        self._calls = 0
        self._lock = threading.Lock()
        if not self._key.isascii() or not self._key.isprintable():
            raise errors.model_unreachable(self.address, "The API key has characters that no request can carry.")
        self._client = self._connect()

    @property
    def calls(self) -> int:
        """Requests so far, retries included."""
        with self._lock:
            return self._calls

    def close(self) -> None:
        self._client.close()

    def ask(self, request: Callable[[openai.OpenAI], str]) -> str:
        """Return the body of the answer. Raises ModelFault."""
        policy = RetryPolicy(self._settings.retries, self._settings.retry_wait_seconds)
        return policy.run(lambda: self._ask_once(request))

    def _ask_once(self, request: Callable[[openai.OpenAI], str]) -> str:
        with self._lock:
            self._calls += 1
        try:
            return request(self._client)
        except openai.OpenAIError as caught:
            fault = self._read_fault(caught)
        # Outside the block, so that no traceback leads to the request with its key.
        raise fault

    def stream(self, request: Callable[[openai.OpenAI], Iterator[str]]) -> Iterator[str]:
        """Yield pieces as they come; not retried, for what was read cannot be taken back. Raises ModelFault."""
        with self._lock:
            self._calls += 1
        try:
            yield from request(self._client)
        except openai.OpenAIError as caught:
            fault = self._read_fault(caught)
        except (httpx2.HTTPError, ValueError) as caught:  # in the middle of a reply
            fault = ModelFault(self._redact(describe_fault(caught)), retryable=True)
        else:
            return
        raise fault  # outside the block, as above

    def _read_fault(self, caught: openai.OpenAIError) -> ModelFault:
        if isinstance(caught, openai.APITimeoutError):
            return ModelFault(f"No answer within {self._settings.timeout_seconds:g}s", retryable=True)
        if isinstance(caught, openai.APIStatusError):
            return self._read_status(caught.response)
        cause = caught.__cause__ or caught
        reason = self._redact(describe_fault(cause))
        return ModelFault(reason, retryable=not isinstance(cause, httpx2.UnsupportedProtocol))

    def _read_status(self, response: httpx2.Response) -> ModelFault:
        status, text = response.status_code, response.text
        detail = f": {text}" if text.strip() else ""
        reason = self._redact(f"HTTP {status} {response.reason_phrase}{detail}")
        if prompts.is_too_long(status, text):
            return ModelFault(reason, is_too_long=True, is_about_the_text=True)
        headers = response.headers
        return ModelFault(
            reason,
            retryable=prompts.is_passing(status),
            retry_after_seconds=parse_retry_after(headers.get("Retry-After"), headers.get("Date"), SystemClock().now()),
            is_about_the_text=prompts.is_about_the_text(status),
        )

    def _redact(self, text: str) -> str:
        """Remove the key: servers repeat what they refuse."""
        if self._key != _PLACEHOLDER_KEY:
            text = text.replace(self._key, "…")
        return clip(join_lines(drop_unprintable(text)), _MAX_REASON_CHARACTERS)

    def _connect(self) -> openai.OpenAI:
        try:
            return openai.OpenAI(
                api_key=self._key,
                base_url=self._settings.base_url,
                timeout=self._settings.timeout_seconds,
                max_retries=0,
                http_client=httpx2.Client(
                    timeout=self._settings.timeout_seconds,
                    # Neither the key nor the sources are for another host.
                    follow_redirects=False,
                    event_hooks={"request": [self._replace_headers]},
                ),
            )
        except (httpx2.InvalidURL, ValueError, ImportError) as fault:
            # The address, or that of a proxy in the environment, cannot be used.
            raise errors.model_unreachable(self.address, self._redact(str(fault))) from fault

    def _replace_headers(self, request: httpx2.Request) -> None:
        for name in set(request.headers) - _SENT_HEADERS:
            del request.headers[name]
        request.headers["Authorization"] = f"Bearer {self._key}"
        request.headers["User-Agent"] = "pair"


class OpenAiLanguageModel:
    """May be used from several threads at once."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._connection = ModelConnection(settings)

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def address(self) -> str:
        """The address without credentials."""
        return self._connection.address

    @property
    def model_calls(self) -> int:
        return self._connection.calls

    def close(self) -> None:
        self._connection.close()

    def reply(self, instructions: str, text: str) -> str:
        try:
            body = self.ask(instructions, text)
        except ModelFault as fault:
            raise fault.to_error(self.address) from fault
        return self.read_reply(body)

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """Ask for the whole where the server does not stream. Raises E301 when it breaks off in the middle."""
        is_streamed = is_finished = False

        def request(client: openai.OpenAI) -> Iterator[str]:
            nonlocal is_finished
            for event in client.chat.completions.create(
                model=self._settings.model,
                messages=_build_messages(instructions, text),
                temperature=0,
                max_tokens=self._settings.max_output_tokens,
                stream=True,
            ):
                for choice in event.choices:
                    is_finished = is_finished or choice.finish_reason is not None
                    yield choice.delta.content or ""

        try:
            for piece in self._connection.stream(request):
                is_streamed = True
                yield piece
        except ModelFault as fault:
            raise fault.to_error(self.address) from fault
        if not is_streamed:
            yield self.reply(instructions, text)
        elif not is_finished:
            raise errors.model_unreachable(self.address, "The reply broke off")

    def ask(self, instructions: str, text: str) -> str:
        """Return the body of the answer, with retries. Raises ModelFault."""
        return self._connection.ask(
            lambda client: (
                client.chat.completions.with_raw_response.create(
                    model=self._settings.model,
                    messages=_build_messages(instructions, text),
                    temperature=0,
                    max_tokens=self._settings.max_output_tokens,
                ).text
            )
        )

    def read_reply(self, body: str) -> str:
        """Return what the model says in the body of an answer. Raises E302."""
        reply = prompts.reply_text(body)
        if reply is None:
            raise errors.model_reply_unusable(self.address, "the answer is no chat completion")
        return reply


class OpenAiSummariser:
    """May be used from several threads at once."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._model = OpenAiLanguageModel(settings)

    @property
    def model_calls(self) -> int:
        return self._model.model_calls

    def close(self) -> None:
        self._model.close()

    def summarise(self, source_id: str, text: str) -> str:
        if not text.strip():
            return ""
        limit: int | None = self._settings.max_input_tokens
        while limit is not None:
            try:
                return self._describe(source_id, text, limit)
            except ModelFault as caught:
                fault = caught
                limit = prompts.smaller_limit(limit, text) if fault.is_too_long else None
        raise fault.to_error(self._model.address) from fault

    def _describe(self, source_id: str, text: str, limit: int) -> str:
        pieces = prompts.choose_pieces(prompts.split_text(text, limit))
        if len(pieces) == 1:
            return self._ask(source_id, pieces[0], "source")
        partial = [self._ask(source_id, piece, "part") for piece in pieces]
        return self._ask(source_id, prompts.join_descriptions(partial, limit), "descriptions")

    def _ask(self, source_id: str, text: str, kind: prompts.PieceKind) -> str:
        reply = self._model.read_reply(self._model.ask(*prompts.build_prompt(source_id, text, kind)))
        tidy = prompts.tidy_reply(reply)
        if fault := prompts.reply_fault(reply, tidy):
            raise errors.model_reply_unusable(self._model.address, f"{fault} (model {self._settings.model})")
        return prompts.shorten_reply(tidy)


def _build_messages(instructions: str, text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
