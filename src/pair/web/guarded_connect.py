"""Connect to a named host: resolve it, judge every address, dial one of those judged, all before a deadline.

Invariants
    A connection goes to an address that was judged, never to a name: nothing is resolved a second time.
    One refused address refuses the name, for a name may answer with a public and a private address at once.
Not here
    What is refused: addresses.py.
"""

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from pair.clock import Clock

_MOST_ADDRESSES = 4

Resolve = Callable[[str, int], Sequence[str]]
Refuse = Callable[[str], str | None]


class RefusedAddress(Exception):  # noqa: N818 - becomes a fault of the client that asked
    """A host that must not be contacted. `reason` is fit for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def system_addresses(host: str, port: int) -> Sequence[str]:
    """What the system knows for this host, preferred first; it also reads spellings such as 0x7f.1 and 2130706433."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def nothing_refused(_address: str) -> str | None:
    return None


class GuardedConnector:
    def __init__(self, *, resolve: Resolve, refuse: Refuse, clock: Clock) -> None:
        self._resolve = resolve
        self._refuse = refuse
        self._clock = clock

    def time_left(self, deadline: float) -> float:
        """Seconds until this moment of the monotonic clock; TimeoutError when it has passed."""
        seconds = deadline - self._clock.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time is up")
        return seconds

    def connect(self, host: str, port: int, deadline: float) -> socket.socket:
        """A connected socket; RefusedAddress, TimeoutError, or another OSError."""
        addresses = self.judged_addresses(host, port, deadline)
        for position, address in enumerate(addresses, start=1):
            # A silent address must not use up the time of those after it.
            seconds = self.time_left(deadline) / (len(addresses) - position + 1)
            try:
                connection = socket.create_connection((address, port), timeout=seconds)
            except OSError:
                if position == len(addresses):
                    raise
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        raise OSError(f"no address is known for {host}")

    def judged_addresses(self, host: str, port: int, deadline: float) -> Sequence[str]:
        """Those to try, preferred first; RefusedAddress, TimeoutError, or another OSError."""
        addresses = self._addresses(host, port, deadline)
        for address in addresses:
            reason = self._refuse(address)
            if reason is not None:
                shown = host if host == address else f"{host} ({address})"
                raise RefusedAddress(f"{shown} is {reason}")
        return addresses[:_MOST_ADDRESSES]

    def _addresses(self, host: str, port: int, deadline: float) -> Sequence[str]:
        """Resolve in a thread of its own, because the system's resolver has no time limit that we could set."""
        answer: Future[Sequence[str]] = Future()

        def resolve() -> None:
            try:
                answer.set_result(self._resolve(host, port))
            except (OSError, ValueError) as fault:  # ValueError: a name that no label of DNS can hold
                answer.set_exception(fault)

        threading.Thread(target=resolve, name="pair-resolve", daemon=True).start()
        try:
            return answer.result(timeout=self.time_left(deadline))
        except ValueError as fault:
            raise OSError(f"{host} is no host name") from fault
