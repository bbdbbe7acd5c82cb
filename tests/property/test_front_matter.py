"""The fast reader of front matter gives the same result as the YAML parser."""

import string

from hypothesis import example, given
from hypothesis import strategies as st

from pair.reading import front_matter

WORDS = st.sampled_from(
    ["title", "yes", "No", "on", "null", "true", "1", "2024-05-06", "2024-99-99", "1e3", "0x1F", "07", "1:30", "-", "~",
     "größe", "日本", "a: b", "a #b", "# a", "'a'", '"a"', "[a, b]", "[a, no]", "{a: b}", "&a", "*a", "!!str", "|", ">",
     "", " ", "  ", "\t", "\u2028", "\x85", "\r", "a\\b", "it's", "1_000", ".5", "<<", "=", "?", "a,b", "[", "]"]
)  # fmt: skip
TEXTS = st.one_of(
    WORDS, st.text(string.ascii_letters + string.digits + " .,:'\"[]{}#&*!|>%@`\\-_/()+?~=<>\n\téß", max_size=12)
)
LINES = st.builds("{}:{}{}{}".format, TEXTS, st.sampled_from(["", " ", "  "]), TEXTS, TEXTS)
SIMPLE_LINES = st.from_regex(
    front_matter._SIMPLE_LINE, fullmatch=True, alphabet="aeflnorstuyNO0129_éß日 .,:;'\"[]()/+-?!\n"
)


@given(
    st.lists(st.one_of(LINES, SIMPLE_LINES, TEXTS), min_size=1, max_size=4).map("\n".join), st.sampled_from(["", "\n"])
)
@example('title: A page (of words), it\'s one \ntags: [a, b-c]\ndate: 2024-05-01\nyear: 2024\nof: "A: b"', "\n")
@example("a: 2024-02-30", "\n")
@example("on: a", "\n")
@example("a: [b, off]", "\n")
@example("a: b\na: c", "")
def test_simple_lines_mean_what_they_mean_to_the_parser(source: str, end: str) -> None:
    simple = front_matter._load_simple(source + end)
    assert simple is None or simple == front_matter._load_yaml(source + end)


def test_common_front_matter_needs_no_parser() -> None:
    source = 'title: Größe of a page\nauthor: "A: B"\ntags: [a, b-c]\ndate: 2024-05-01\nyear: 2024\n'
    assert front_matter._load_simple(source) == front_matter._load_yaml(source)
    assert front_matter._load_simple(source) is not None
