"""The rules of `robots.txt`: groups, the longest match, wildcards."""

import pytest

from pair.sources.robots import normalise_escapes, parse_robots


@pytest.mark.parametrize(
    ("text", "path", "is_allowed"),
    [
        ("", "/", True),
        ("User-agent: *\nDisallow:", "/a", True),
        ("User-agent: *\nDisallow: /", "/a", False),
        ("User-agent: *\nDisallow: /a", "/ab/c", False),
        ("User-agent: *\nDisallow: /a$", "/ab", True),
        ("User-agent: *\nDisallow: /a$", "/a", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/a.pdf", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/a.pdf?x", True),
        ("User-agent: *\nDisallow: /*.pdf$", "/x.pdf/a.pdf", False),
        ("User-agent: *\nDisallow: /*?", "/a?b=1", False),
        ("User-agent: *\nDisallow: /*b*d", "/abcd", False),
        ("User-agent: *\nDisallow: /*d*b", "/abcd", True),
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", True),
        ("User-agent: *\nAllow: /a/b\nDisallow: /a", "/a/c", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: Pair/2\nDisallow: /x", "/a", True),
        ("User-agent: other\nUser-agent: PAIR\nDisallow: /", "/a", False),
        ("User-agent: other\nDisallow: /", "/a", True),
        ("User-agent: repair\nDisallow: /", "/a", True),
        ("User-agent: pair\nDisallow: /a\nUser-agent: pair\nDisallow: /b", "/b", False),
        ("\ufeffuser-AGENT : * # all\r\nDISALLOW : /a # b", "/a", False),
        ("Disallow: /", "/a", True),
        ("User-agent: *\nDisallow: /%7euser/gr\u00fc\u00df", "/~user/gr%C3%BC%C3%9F", False),
        ("<!doctype html><title>User-agent: *</title>", "/a", True),
    ],
)
def test_the_longest_rule_of_our_group_decides(text: str, path: str, is_allowed: bool) -> None:
    assert parse_robots(text).allows(path) is is_allowed


def test_a_pattern_with_many_wildcards_is_compared_fast() -> None:
    rules = parse_robots("User-agent: *\nDisallow: /" + "*a" * 200 + "*b$")
    assert rules.allows("/" + "a" * 2000)


def test_the_delay_and_the_sitemaps_are_read() -> None:
    rules = parse_robots("Sitemap: https://x/1.xml\nUser-agent: *\nCrawl-delay: 2.5\nSitemap: https://x/2.xml")
    assert (rules.delay_seconds, rules.sitemaps) == (2.5, ["https://x/1.xml", "https://x/2.xml"])
    assert parse_robots("User-agent: *\nCrawl-delay: soon").delay_seconds == 0.0


def test_escapes_have_one_spelling() -> None:
    assert normalise_escapes("/%7e%2f%zz a\u00fc|") == "/~%2F%zz%20a%C3%BC%7C"
