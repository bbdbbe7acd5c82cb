"""Spans for OpenTelemetry, if the application has set it up.

Invariants
    Neither questions, answers nor prompts are recorded: names, ids, counts and kinds of errors only.
    OpenTelemetry is never imported here: the application that sets it up has done so. Else a span costs nearly nothing.
"""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# Operations and attributes of the GenAI conventions, which are still in development: named here and nowhere else.
INVOKE_AGENT = "invoke_agent"
RETRIEVAL = "retrieval"
CHAT = "chat"

OPERATION = "gen_ai.operation.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
DATA_SOURCE_ID = "gen_ai.data_source.id"
REQUEST_MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ERROR_TYPE = "error.type"

_API = "opentelemetry.trace"
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Span:
    """Something that takes time. Without OpenTelemetry it records nothing."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    @property
    def ids(self) -> tuple[str, str] | None:
        """The ids of the trace and the span, as hex strings; None when nothing is recorded."""
        if self._inner is None:
            return None
        context = self._inner.get_span_context()
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"

    def note(self, name: str, value: str | float | bool) -> None:
        if self._inner is not None:
            self._inner.set_attribute(name, value)

    def fail(self, kind: str) -> None:
        """`kind`: a code or the name of a class. Messages are not recorded: they may hold a question."""
        if self._inner is not None:
            api: Any = sys.modules[_API]
            self._inner.set_attribute(ERROR_TYPE, kind)
            self._inner.set_status(api.Status(api.StatusCode.ERROR))


_NOTHING = Span()


def is_on() -> bool:
    """Return whether a tracer provider is set up. None is while another thread still imports OpenTelemetry."""
    api: Any = sys.modules.get(_API)
    if api is None or getattr(api.__spec__, "_initializing", False):
        return False
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@contextlib.contextmanager
def span(
    operation: str, subject: str = "", *, attributes: Mapping[str, str] | None = None, parent: str = ""
) -> Iterator[Span]:
    """Record `operation` on `subject`. `parent`: a traceparent of the caller, used when no span is running here."""
    if not is_on():
        yield _NOTHING
        return
    api: Any = sys.modules[_API]
    opened = api.get_tracer("pair").start_as_current_span(
        f"{operation} {subject}".rstrip(),
        context=_make_context(api, parent),
        kind=api.SpanKind.INTERNAL,
        attributes={OPERATION: operation, **(attributes or {})},
        record_exception=False,  # its message may hold what somebody asked
        set_status_on_exception=False,
    )
    with opened as inner:
        recorded = Span(inner)
        try:
            yield recorded
        except BaseException as fault:
            recorded.fail(type(fault).__name__)
            raise


def format_traceparent(trace_id: str, span_id: str) -> str:
    """Return the ids as a W3C traceparent; "" for ids of another kind."""
    header = f"00-{trace_id}-{span_id}-01"
    return header if parse_traceparent(header) else ""


def parse_traceparent(header: str) -> tuple[str, str] | None:
    """Return the ids of trace and span in a traceparent; None for anything else."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = match[2], match[3]
    return (trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None


def _make_context(api: Any, parent: str) -> Any:
    """Return None for the running span, which knows more than a header does."""
    ids = parse_traceparent(parent)
    if ids is None or api.get_current_span().get_span_context().is_valid:
        return None
    remote = api.SpanContext(int(ids[0], 16), int(ids[1], 16), is_remote=True, trace_flags=api.TraceFlags(1))
    return api.set_span_in_context(api.NonRecordingSpan(remote))
