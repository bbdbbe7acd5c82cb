"""Which IP addresses a server may contact on behalf of somebody else (pure).

Written out rather than taken from `ipaddress.is_global`: what that answers has changed between Python releases, and it
does not look into the IPv4 addresses that IPv6 forms carry. Source: the special-purpose registries of IANA.
"""

import ipaddress

_IPV4 = tuple(
    (ipaddress.IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a shared address of a provider"),
        ("127.0.0.0/8", "a loopback address"),
        # Public by its number, yet it answers only inside Azure, with what the host may know.
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

# The last 32 bits of these are the IPv4 address that is reached in truth.
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


def refusal(address: str) -> str | None:
    """Why this address must not be contacted, in words that follow "is"; None for a public one."""
    if "%" in address:
        return "an address of one network interface"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not an IP address"
    if isinstance(parsed, ipaddress.IPv4Address):
        return _refusal_of_ipv4(parsed)
    return _refusal_of_ipv6(parsed)


def _refusal_of_ipv4(address: ipaddress.IPv4Address) -> str | None:
    return next((reason for network, reason in _IPV4 if address in network), None)


def _refusal_of_ipv6(address: ipaddress.IPv6Address) -> str | None:
    for network, reason in _IPV6:
        if address in network:
            return reason
    carried = _refusal_of_ipv4(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if any(address in network for network in _CARRIERS_OF_IPV4):
        return carried
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP_MARKS and carried is not None:
        return carried
    return None if address in _GLOBAL_UNICAST else "a reserved address"
