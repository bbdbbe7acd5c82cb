"""Faults of connections, in plain words."""

import socket
import ssl

import pytest

from pair.network import describe_fault, describe_request_fault


class ConnectError(Exception):
    """As several libraries call it."""


def caused(fault: Exception, cause: Exception) -> Exception:
    fault.__cause__ = cause
    return fault


FAULTS: list[tuple[Exception, str]] = [
    (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
    (caused(Exception("[Errno 111] x"), ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
    (Exception("[Errno 104] Connection reset by peer"), "Connection reset by peer"),
    (socket.gaierror(-2, "Name or service not known"), "the name of the host is not known"),
    (Exception("illegal status line: bytearray(b'220 x')"), "the server did not answer in HTTP"),
    (Exception("Receive buffer too long"), "the server did not answer in HTTP"),
    (Exception("Server disconnected without sending a response."), "the server hung up without an answer"),
    (
        Exception("peer closed connection without sending complete message body (received 2 bytes, expected 5)"),
        "the server hung up before the answer was complete",
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
