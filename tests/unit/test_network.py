"""Failed requests: readable reasons, and retries."""

import socket
import ssl

import pytest

from pair.network import RequestFault, RetryPolicy, describe_fault, describe_request_fault, parse_retry_after
from pair.testing.clock import NOON


class ConnectError(Exception):
    """An exception with a name that several libraries use."""


def caused(fault: Exception, cause: Exception) -> Exception:
    fault.__cause__ = cause
    return fault


FAULTS: list[tuple[Exception, str]] = [
    (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
    (caused(Exception("[Errno 111] x"), ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
    (Exception("[Errno 104] Connection reset by peer"), "Connection reset by peer"),
    (socket.gaierror(-2, "Name or service not known"), "the host name cannot be resolved"),
    (Exception("illegal status line: bytearray(b'220 x')"), "the server did not answer in HTTP"),
    (Exception("Receive buffer too long"), "the server did not answer in HTTP"),
    (
        Exception("Server disconnected without sending a response."),
        "the server closed the connection without an answer",
    ),
    (
        Exception("peer closed connection without sending complete message body (received 2 bytes, expected 5)"),
        "the server closed the connection before the answer was complete",
    ),
    (Exception(), "Exception"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_fault_is_described_without_what_only_a_library_knows(fault: Exception, words: str) -> None:
    assert describe_fault(fault) == words


def test_a_failed_handshake_is_described_by_its_reason() -> None:
    context = ssl.create_default_context()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ssl.SSLError) as raised:
            context.wrap_socket(ours, server_hostname="x")
    assert describe_fault(raised.value).startswith("no secure connection: ")
    assert "_ssl.c" not in describe_fault(raised.value)


def test_a_host_that_cannot_be_reached_is_named() -> None:
    fault = caused(ConnectError(), ConnectionRefusedError(111, "Connection refused"))
    assert describe_request_fault(fault, "example.com") == "cannot reach example.com: connection refused"
    assert describe_request_fault(ConnectionResetError(104, "Reset"), "example.com") == "Reset"


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        (RequestFault("busy", retryable=True), 3),
        (RequestFault("busy", retryable=True, retry_after_seconds=0.0), 3),
        (RequestFault("busy", retryable=True, retry_after_seconds=121.0), 1),
        (RequestFault("refused"), 1),
    ],
    ids=["passing", "short pause", "long pause", "for good"],
)
def test_a_request_is_repeated_while_its_fault_may_pass(fault: RequestFault, attempts: int) -> None:
    made: list[int] = []
    said: list[str] = []

    def attempt() -> None:
        made.append(1)
        raise fault

    with pytest.raises(RequestFault) as raised:
        RetryPolicy(2, 0.001).run(attempt, said.append)
    assert raised.value is fault
    assert len(made) == attempts
    assert said == ["busy: trying again in 1 s"] * (attempts - 1)


@pytest.mark.parametrize(
    ("value", "sent_at", "seconds"),
    [
        ("7", None, 7.0),
        (" 1.5 ", None, 1.5),
        ("Sun, 01 Mar 2026 12:01:00 GMT", None, 60.0),
        ("Sun, 01 Mar 2026 12:01:00 GMT", "Sun, 01 Mar 2026 12:00:50 GMT", 10.0),
        ("Sun, 01 Mar 2020 12:00:00 GMT", "never", 0.0),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_a_pause_is_read_as_seconds_or_as_a_date_of_the_server(
    value: str | None, sent_at: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(value, sent_at, NOON) == seconds
