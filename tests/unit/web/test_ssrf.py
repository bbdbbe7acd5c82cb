"""Which addresses may be contacted: examples from every special-purpose block."""

import pytest

from pair.web.ssrf import find_refusal

REFUSED = [
    # IPv4
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.0.0.1", "private"),
    ("10.255.255.255", "private"),
    ("100.64.0.1", "shared"),
    ("100.100.100.200", "shared"),
    ("100.127.255.255", "shared"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("168.63.129.16", "metadata"),
    ("169.254.0.1", "link-local"),
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "link-local"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.0.0.1", "protocols"),
    ("192.0.0.192", "protocols"),
    ("192.0.2.1", "documentation"),
    ("192.88.99.1", "6to4"),
    ("192.168.0.1", "private"),
    ("192.168.255.255", "private"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.255", "benchmarking"),
    ("198.51.100.7", "documentation"),
    ("203.0.113.7", "documentation"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    # IPv6
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("0:0:0:0:0:0:0:1", "loopback"),
    ("100::1", "discarded"),
    ("2001:2::1", "benchmarking"),
    ("2001:10::1", "protocols"),
    ("2001:20::1", "protocols"),
    ("2001:db8::1", "documentation"),
    ("3fff::1", "documentation"),
    ("4000::1", "reserved"),
    ("5f00::1", "reserved"),
    ("fc00::1", "private"),
    ("fd00:ec2::254", "private"),
    ("fd12:3456:789a::1", "private"),
    ("fe80::1", "link-local"),
    ("febf::1", "link-local"),
    ("fec0::1", "site-local"),
    ("ff02::1", "multicast"),
    ("ff0e::1", "multicast"),
    # IPv4 inside IPv6
    ("::127.0.0.1", "IPv4-compatible"),
    ("::8.8.8.8", "IPv4-compatible"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:7f00:1", "loopback"),
    ("::ffff:10.0.0.1", "private"),
    ("::ffff:169.254.169.254", "metadata"),
    ("::FFFF:192.168.1.1", "private"),
    ("::ffff:0.0.0.0", "unspecified"),
    ("::ffff:0:127.0.0.1", "loopback"),
    ("64:ff9b::10.0.0.1", "private"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b:1::1", "translation"),
    ("64:ff9b:1:7f00:0:100::", "translation"),
    ("2001::1", "Teredo"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
    ("2002:7f00:1::", "6to4"),
    ("2002:808:808::1", "6to4"),
    ("2a00:1450::5efe:10.0.0.1", "private"),
    ("2a00:1450::200:5efe:7f00:1", "loopback"),
    # With the name of an interface
    ("fe80::1%eth0", "interface"),
    ("fe80::1%1", "interface"),
    ("2a00:1450::1%eth0", "interface"),
    ("127.0.0.1%lo", "interface"),
    # Nothing that could be dialled
    ("", "not an IP"),
    ("localhost", "not an IP"),
    ("127.1", "not an IP"),
    ("0177.0.0.1", "not an IP"),
    ("0x7f000001", "not an IP"),
    ("2130706433", "not an IP"),
    (" 8.8.8.8", "not an IP"),
    ("[::1]", "not an IP"),
    ("8.8.8.8/32", "not an IP"),
]

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.1",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80b::200e",
    "3ffe::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2a00:1450::5efe:8.8.8.8",
]


@pytest.mark.parametrize(("address", "word"), REFUSED)
def test_a_special_address_is_refused_and_called_by_its_name(address: str, word: str) -> None:
    assert word in (find_refusal(address) or "")


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert find_refusal(address) is None
