"""Requests to an OpenAI-compatible server: retried while the fault may pass, and told in words fit for people.

Invariants
    The key is sent to the configured server and shown nowhere.
Not here
    What is asked, and what is done with a reply: openai.py, openai_embedder.py.
"""

import datetime
import email.utils
import re
import threading
from collections.abc import Callable, Iterator

import httpx2
import openai
import stamina

from pair import errors
from pair.ai import prompts
from pair.ai.prompts import ModelSettings
from pair.network_faults import describe_fault
from pair.text.characters import clip, on_one_line, printable

_LONGEST_PAUSE_SECONDS = 120.0
_MAX_REASON_CHARACTERS = 300
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?$")
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


class ModelFault(Exception):  # noqa: N818 - becomes an error of pair
    """A request that brought no reply. `reason` is fit for people; `is_too_long`: less text may bring one.

    `is_about_the_text`: the server is there, and refused this request alone.
    """

    def __init__(
        self,
        reason: str,
        *,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        is_too_long: bool = False,
        is_about_the_text: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.is_too_long = is_too_long
        self.is_about_the_text = is_about_the_text


class ModelConnection:
    """May be used from several threads at once."""

    def __init__(self, policy: ModelSettings) -> None:
        self._policy = policy
        self.address = prompts.shown_address(policy.base_url)
        self._key = policy.api_key.strip() or _PLACEHOLDER_KEY
        self._calls = 0
        self._counting = threading.Lock()
        if not self._key.isascii() or not self._key.isprintable():
            raise errors.model_unreachable(self.address, "The API key has characters that no request can carry.")
        self._client = self._connect()

    @property
    def calls(self) -> int:
        """Requests so far, retries included."""
        with self._counting:
            return self._calls

    def close(self) -> None:
        self._client.close()

    def ask(self, request: Callable[[openai.OpenAI], str]) -> str:
        """The body of the answer. Raises ModelFault."""
        retries_left = self._policy.retries

        def pause_after(fault: Exception) -> bool | float:
            nonlocal retries_left
            if not isinstance(fault, ModelFault) or not fault.retryable or retries_left == 0:
                return False
            retries_left -= 1
            return True if fault.retry_after_seconds is None else fault.retry_after_seconds

        for trial in stamina.retry_context(
            on=pause_after,
            attempts=None,
            timeout=None,
            wait_initial=self._policy.retry_wait_seconds,
            wait_max=30.0,
            wait_jitter=self._policy.retry_wait_seconds / 2,
        ):
            with trial:
                body = self._ask_once(request)
        return body

    def stream(self, request: Callable[[openai.OpenAI], Iterator[str]]) -> Iterator[str]:
        """Pieces as they come; not retried, for what was read cannot be taken back. Raises ModelFault."""
        with self._counting:
            self._calls += 1
        try:
            yield from request(self._client)
        except openai.OpenAIError as caught:
            fault = self._fault_of(caught)
        except (httpx2.HTTPError, ValueError) as caught:  # in the middle of a reply
            fault = ModelFault(self._fit_for_people(describe_fault(caught)), retryable=True)
        else:
            return
        raise fault

    def _ask_once(self, request: Callable[[openai.OpenAI], str]) -> str:
        with self._counting:
            self._calls += 1
        try:
            return request(self._client)
        except openai.OpenAIError as caught:
            fault = self._fault_of(caught)
        # Outside the block, so that no traceback leads to the request with its key.
        raise fault

    def _fault_of(self, caught: openai.OpenAIError) -> ModelFault:
        if isinstance(caught, openai.APITimeoutError):
            return ModelFault(f"No answer within {self._policy.timeout_seconds:g}s", retryable=True)
        if isinstance(caught, openai.APIStatusError):
            return self._fault_of_status(caught.response)
        cause = caught.__cause__ or caught
        reason = self._fit_for_people(describe_fault(cause))
        return ModelFault(reason, retryable=not isinstance(cause, httpx2.UnsupportedProtocol))

    def _fault_of_status(self, response: httpx2.Response) -> ModelFault:
        said = f": {response.text}" if response.text.strip() else ""
        reason = self._fit_for_people(f"HTTP {response.status_code} {response.reason_phrase}{said}")
        if prompts.is_too_long(response.status_code, response.text):
            return ModelFault(reason, is_too_long=True, is_about_the_text=True)
        pause = _retry_after(response)
        can_wait = pause is None or pause <= _LONGEST_PAUSE_SECONDS
        return ModelFault(
            reason,
            retryable=prompts.is_passing(response.status_code) and can_wait,
            retry_after_seconds=pause,
            is_about_the_text=prompts.is_about_the_text(response.status_code),
        )

    def _fit_for_people(self, text: str) -> str:
        """Servers repeat what they refuse, the key included."""
        if self._key != _PLACEHOLDER_KEY:
            text = text.replace(self._key, "…")
        return clip(on_one_line(printable(text)), _MAX_REASON_CHARACTERS)

    def _connect(self) -> openai.OpenAI:
        try:
            return openai.OpenAI(
                api_key=self._key,
                base_url=self._policy.base_url,
                timeout=self._policy.timeout_seconds,
                max_retries=0,
                http_client=httpx2.Client(
                    timeout=self._policy.timeout_seconds,
                    # Neither the key nor the sources are for another host.
                    follow_redirects=False,
                    event_hooks={"request": [self._keep_own_headers]},
                ),
            )
        except (httpx2.InvalidURL, ValueError, ImportError) as fault:
            # The address, or that of a proxy in the environment, cannot be used.
            raise errors.model_unreachable(self.address, self._fit_for_people(str(fault))) from fault

    def _keep_own_headers(self, request: httpx2.Request) -> None:
        for name in set(request.headers) - _SENT_HEADERS:
            del request.headers[name]
        request.headers["Authorization"] = f"Bearer {self._key}"
        request.headers["User-Agent"] = "pair"


def _retry_after(response: httpx2.Response) -> float | None:
    """In seconds. A moment is compared with the server's own clock, which is the one it means."""
    value = response.headers.get("Retry-After", "").strip()
    if _SECONDS.match(value):
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
        now = email.utils.parsedate_to_datetime(response.headers.get("Date", ""))
    except ValueError:
        return None
    return max(0.0, (_in_utc(moment) - _in_utc(now)).total_seconds())


def _in_utc(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
