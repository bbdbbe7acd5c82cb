"""Spans for OpenTelemetry, which records them if the application has set up its SDK.

Invariants
    Only names, ids, counts and kinds of errors are recorded; no questions, answers or prompts.
    OpenTelemetry is imported by the first span: commands without spans start without it.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# Operations and attributes of the GenAI conventions, which may still change.
INVOKE_AGENT = "invoke_agent"
RETRIEVAL = "retrieval"
CHAT = "chat"

AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
DATA_SOURCE_ID = "gen_ai.data_source.id"
REQUEST_MODEL = "gen_ai.request.model"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@contextlib.contextmanager
def span(
    operation: str, subject: str = "", *, attributes: Mapping[str, str] | None = None, parent: str = ""
) -> Iterator["Span"]:
    """Record a span of `operation` on `subject`. `parent`: the caller's traceparent, used if no span is open here."""
    from opentelemetry import trace  # noqa: PLC0415 - see the invariants

    context = None
    if (ids := parse_traceparent(parent)) and not trace.get_current_span().get_span_context().is_valid:
        remote = trace.SpanContext(int(ids[0], 16), int(ids[1], 16), is_remote=True, trace_flags=trace.TraceFlags(1))
        context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    with trace.get_tracer("pair").start_as_current_span(
        f"{operation} {subject}".rstrip(),
        context=context,
        attributes={"gen_ai.operation.name": operation, **(attributes or {})},
        record_exception=False,  # its message may hold a question
        set_status_on_exception=False,
    ) as opened:
        try:
            yield opened
        except BaseException as fault:
            fail(opened, type(fault).__name__)
            raise


def fail(span: "Span", kind: str) -> None:
    """Mark a span as failed. `kind`: a code or the name of a class, never a message."""
    from opentelemetry import trace  # noqa: PLC0415 - see the invariants

    span.set_attribute("error.type", kind)
    span.set_status(trace.Status(trace.StatusCode.ERROR))


def read_ids(span: "Span") -> tuple[str, str] | None:
    """Return the ids of the trace and the span as hex strings; None if the span is not recorded."""
    context = span.get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if span.is_recording() else None


def format_traceparent(trace_id: str, span_id: str) -> str:
    """Return the ids as a W3C traceparent; "" for invalid ids."""
    header = f"00-{trace_id}-{span_id}-01"
    return header if parse_traceparent(header) else ""


def parse_traceparent(header: str) -> tuple[str, str] | None:
    """Return the ids of trace and span in a traceparent; None for anything else."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = match[2], match[3]
    return (trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None
