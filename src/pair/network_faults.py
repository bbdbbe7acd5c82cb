"""Say in plain words why a connection failed, whatever library reports it (pure)."""

import re
import socket
import ssl

_NOISE = re.compile(r"\[Errno -?\d+\]\s*|\[SSL[^\]]*\]\s*|\s*\(_ssl\.c:\d+\)")
_IN_PLAIN_WORDS = {
    "illegal ": "the server did not answer in HTTP",
    "malformed ": "the server did not answer in HTTP",
    "Receive buffer too long": "the server did not answer in HTTP",
    "Server disconnected": "the server hung up without an answer",
    "peer closed connection": "the server hung up before the answer was complete",
}
"""By how the words of the HTTP libraries begin."""
_CONNECTING = "ConnectError"
"""What several libraries call the failure to open a connection."""


def describe_fault(fault: BaseException) -> str:
    """Return the reason without error numbers, source lines and bytes of the reply."""
    link: BaseException | None = fault
    while link is not None:
        if isinstance(link, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {link.verify_message}"
        if isinstance(link, ssl.SSLError) and link.reason:
            return f"no secure connection: {link.reason.replace('_', ' ').lower()}"
        if isinstance(link, socket.gaierror):
            return "the name of the host is not known"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    words = _NOISE.sub("", str(fault)).strip()
    plain = (plain for beginning, plain in _IN_PLAIN_WORDS.items() if words.startswith(beginning))
    return next(plain, words or type(fault).__name__)


def describe_request_fault(fault: BaseException, host: str) -> str:
    """Return the reason why a request to this host failed, with the host when it could not be reached at all."""
    reason = describe_fault(fault)
    if type(fault).__name__ != _CONNECTING:
        return reason
    return f"cannot reach {host}: {reason[:1].lower()}{reason[1:]}"
