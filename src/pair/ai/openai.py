"""A language model behind an OpenAI-compatible server, and summaries that it writes.

Invariants
    A source costs at most MOST_PIECES + 1 replies for each size of piece that is tried.
Not here
    What is asked, and what is done with a reply: rules.py. How it is asked: openai_connection.py.
"""

from collections.abc import Iterator

import openai
from openai.types.chat import ChatCompletionMessageParam

from pair import errors
from pair.ai import prompts
from pair.ai.openai_connection import ModelConnection, ModelFault
from pair.ai.prompts import ModelSettings, PromptMessage


class OpenAiLanguageModel:
    """May be used from several threads at once."""

    def __init__(self, policy: ModelSettings) -> None:
        self._policy = policy
        self._connection = ModelConnection(policy)
        self._address = self._connection.address

    @property
    def name(self) -> str:
        return self._policy.model

    @property
    def address(self) -> str:
        """Fit for people."""
        return self._address

    @property
    def model_calls(self) -> int:
        return self._connection.calls

    def close(self) -> None:
        self._connection.close()

    def reply(self, instructions: str, text: str) -> str:
        try:
            body = self.ask([PromptMessage("system", instructions), PromptMessage("user", text)])
        except ModelFault as fault:
            error = errors.model_reply_unusable if fault.is_about_the_text else errors.model_unreachable
            raise error(self._address, fault.reason) from fault
        said = prompts.reply_text(body)
        if said is None:
            raise errors.model_reply_unusable(self._address, "the answer is no chat completion")
        return said

    def stream(self, instructions: str, text: str) -> Iterator[str]:
        """A server that does not stream is asked for the whole. One that breaks off in the middle is E301."""
        messages = [PromptMessage("system", instructions), PromptMessage("user", text)]
        is_streamed = is_finished = False

        def request(client: openai.OpenAI) -> Iterator[str]:
            nonlocal is_finished
            for event in client.chat.completions.create(
                model=self._policy.model,
                messages=[_as_parameter(message) for message in messages],
                temperature=0,
                max_tokens=self._policy.max_output_tokens,
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
            error = errors.model_reply_unusable if fault.is_about_the_text else errors.model_unreachable
            raise error(self._address, fault.reason) from fault
        if not is_streamed:
            yield self.reply(instructions, text)
        elif not is_finished:
            raise errors.model_unreachable(self._address, "The reply broke off")

    def ask(self, messages: list[PromptMessage]) -> str:
        """The body of the answer, with retries. Raises ModelFault."""

        def request(client: openai.OpenAI) -> str:
            return client.chat.completions.with_raw_response.create(
                model=self._policy.model,
                messages=[_as_parameter(message) for message in messages],
                temperature=0,
                max_tokens=self._policy.max_output_tokens,
            ).text

        return self._connection.ask(request)


class OpenAiSummariser:
    """May be used from several threads at once."""

    def __init__(self, policy: ModelSettings) -> None:
        self._policy = policy
        self._model = OpenAiLanguageModel(policy)

    @property
    def model_calls(self) -> int:
        return self._model.model_calls

    def close(self) -> None:
        self._model.close()

    def summarise(self, source_id: str, text: str) -> str:
        if not text.strip():
            return ""
        limit: int | None = self._policy.max_input_tokens
        while limit is not None:
            try:
                return self._describe(source_id, text, limit)
            except ModelFault as caught:
                fault = caught
                limit = prompts.smaller_limit(limit, text) if fault.is_too_long else None
        # A model that is there and refuses one text is still to be asked about the others.
        error = errors.model_reply_unusable if fault.is_about_the_text else errors.model_unreachable
        raise error(self._model.address, fault.reason) from fault

    def _describe(self, source_id: str, text: str, limit: int) -> str:
        pieces = prompts.choose_pieces(prompts.split_text(text, limit))
        if len(pieces) == 1:
            return self._reply(prompts.build_messages(source_id, pieces[0], "source"))
        partial = [self._reply(prompts.build_messages(source_id, piece, "part")) for piece in pieces]
        together = prompts.join_descriptions(partial, limit)
        return self._reply(prompts.build_messages(source_id, together, "descriptions"))

    def _reply(self, messages: list[PromptMessage]) -> str:
        reply = prompts.reply_text(self._model.ask(messages))
        if reply is None:
            raise errors.model_reply_unusable(self._model.address, "the answer is no chat completion")
        tidied = prompts.tidy_reply(reply)
        if fault := prompts.reply_fault(reply, tidied):
            raise errors.model_reply_unusable(self._model.address, f"{fault} (model {self._policy.model})")
        return prompts.shorten_reply(tidied)


def _as_parameter(message: PromptMessage) -> ChatCompletionMessageParam:
    if message.role == "system":
        return {"role": "system", "content": message.content}
    return {"role": "user", "content": message.content}
