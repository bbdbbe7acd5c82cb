"""Checks of IP addresses against SSRF, and connections to checked addresses only.

Invariants
    A connection goes to a checked address, never to a name: names are not resolved a second time.
    A name is refused if any of its addresses is refused: it may have a public and a private address at once.

The networks are listed here instead of using `ipaddress.is_global`, whose results differ between Python releases and
which ignores IPv4 addresses embedded in IPv6 addresses. Source: the special-purpose registries of IANA.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from pair.clock import Clock

_IPV4 = tuple(
    (ipaddress.IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a shared address of a provider"),
        ("127.0.0.0/8", "a loopback address"),
        # A public address by range, but only reachable inside Azure, where it serves metadata of the host.
        ("168.63.129.16/32", "a metadata service"),
        ("169.254.169.254/32", "a metadata service"),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "an address for protocols"),
        ("192.0.2.0/24", "a documentation address"),
        ("192.88.99.0/24", "a relay for 6to4"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "a benchmarking address"),
        ("198.51.100.0/24", "a documentation address"),
        ("203.0.113.0/24", "a documentation address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)

_IPV6 = tuple(
    (ipaddress.IPv6Network(network), reason)
    for network, reason in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::/96", "an IPv4-compatible address"),
        ("64:ff9b:1::/48", "a local translation to IPv4"),
        ("100::/64", "a discarded address"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001:2::/48", "a benchmarking address"),
        ("2001::/23", "an address for protocols"),
        ("2001:db8::/32", "a documentation address"),
        ("2002::/16", "a 6to4 tunnel"),
        ("3fff::/20", "a documentation address"),
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a site-local address"),
        ("ff00::/8", "a multicast address"),
    )
)

# The last 32 bits of these are the IPv4 address that is contacted.
_CARRIERS_OF_IPV4 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "::ffff:0:0/96",  # mapped
        "::ffff:0:0:0/96",  # translated
        "64:ff9b::/96",  # NAT64
    )
)
_ISATAP_MARKS = frozenset({0x00005EFE, 0x02005EFE})
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")


def find_refusal(address: str) -> str | None:
    """Return why this address must not be contacted, as words after "is"; None for a public address."""
    if "%" in address:
        return "an address of one network interface"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not an IP address"
    return _refuse_ipv4(parsed) if isinstance(parsed, ipaddress.IPv4Address) else _refuse_ipv6(parsed)


def _refuse_ipv4(address: ipaddress.IPv4Address) -> str | None:
    return next((reason for network, reason in _IPV4 if address in network), None)


def _refuse_ipv6(address: ipaddress.IPv6Address) -> str | None:
    for network, reason in _IPV6:
        if address in network:
            return reason
    carried = _refuse_ipv4(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if any(address in network for network in _CARRIERS_OF_IPV4):
        return carried
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP_MARKS and carried is not None:
        return carried
    return None if address in _GLOBAL_UNICAST else "a reserved address"


# ── connecting ─────────────────────────────────────────────────────────────────────────────────────

_MOST_ADDRESSES = 4

Resolve = Callable[[str, int], Sequence[str]]
Refuse = Callable[[str], str | None]


class RefusedAddress(Exception):  # noqa: N818 - turned into a fault of the client
    """A host that must not be contacted. The message is shown to the user."""


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, preferred first. The system also accepts spellings such as 0x7f.1."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in answers))


class GuardedConnector:
    def __init__(self, *, resolve: Resolve, refuse: Refuse, clock: Clock) -> None:
        self._resolve = resolve
        self._refuse = refuse
        self._clock = clock

    def time_left(self, deadline: float) -> float:
        """Return the seconds until a deadline of the monotonic clock. Raises TimeoutError when it has passed."""
        seconds = deadline - self._clock.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time is up")
        return seconds

    def connect(self, host: str, port: int, deadline: float) -> socket.socket:
        """Return a connected socket. Raises RefusedAddress, TimeoutError, or another OSError."""
        addresses = self.find_addresses(host, port, deadline)
        for position, address in enumerate(addresses, start=1):
            # An address that does not respond must not use up the time of the others.
            seconds = self.time_left(deadline) / (len(addresses) - position + 1)
            try:
                connection = socket.create_connection((address, port), timeout=seconds)
            except OSError:
                if position == len(addresses):
                    raise
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        raise OSError(f"the host name {host} cannot be resolved")

    def find_addresses(self, host: str, port: int, deadline: float) -> Sequence[str]:
        """Return the addresses to try, preferred first. Raises RefusedAddress, TimeoutError, or another OSError."""
        addresses = self._resolve_in_time(host, port, deadline)
        for address in addresses:
            reason = self._refuse(address)
            if reason is not None:
                shown = host if host == address else f"{host} ({address})"
                raise RefusedAddress(f"{shown} is {reason}")
        return addresses[:_MOST_ADDRESSES]

    def _resolve_in_time(self, host: str, port: int, deadline: float) -> Sequence[str]:
        """Resolve a name in a separate thread, because the system's resolver has no time limit."""
        answer: Future[Sequence[str]] = Future()

        def resolve() -> None:
            try:
                answer.set_result(self._resolve(host, port))
            except (OSError, ValueError) as fault:  # ValueError: a name that is invalid in DNS
                answer.set_exception(fault)

        threading.Thread(target=resolve, name="pair-resolve", daemon=True).start()
        try:
            return answer.result(timeout=self.time_left(deadline))
        except ValueError as fault:
            raise OSError(f"{host} is not a host name") from fault
