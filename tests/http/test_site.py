"""A published site in a real Chromium: the same answers as the command, for any query."""

# ruff: noqa: RUF001 - texts of other alphabets

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import Stemmer
from playwright.sync_api import Browser, Page, expect

from pair.ai.wordllama import WordLlamaEmbedder
from pair.text.tokenizer import parse_query
from support.command import Workplace, write_files
from support.minisign import make_keys
from support.page_viewer import EXECUTABLE, Viewer, keep_screenshot
from support.sites import (
    HANDBOOK,
    MORE_PAGES,
    PublishedSite,
    publish_handbook,
    search_in,
    type_query,
    wait_until_ready,
)
from support.static_host import StaticHost

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

QUERIES = [
    "Which TCP port and TLS version does NTS key establishment use?",
    "How does Google Public NTP hide a leap second?",
    "leap",
    "the",
    "to be or not to be",
    "leep secnod smearing",
    "calender reform of Gregory",
    "clock*",
    '"leap second"',
    '"leap second" smear google',
    "leap -google",
    '-"leap second" ntp',
    "C++ src/clock_sync.py parseISO8601Date",
    "don't use v1.2.3",
    "时钟",
    "闰秒会让什么出错",
    "うるう秒",
    "تزامن الساعات",
    "סנכרון השעונים",
    "sourdough bread",
    "zzzzqqq",
    "IT and WHO",
    "Unix time_t 2038",
    "What is “stratum 1”?",
]
HOSTILE = [
    "",
    "-",
    '"',
    '""',
    "* -* --a",
    "a'b''s don't O'Brien's",
    "ﬁne ｗｉｄｅ Straße ΣΊΣΥΦΟΣ İstanbul naïve",
    "x_y-z.py/a_b.c v2.0 1,234,567 .net @user #tag C# f++ a--b",
    "HTTPServer getURLFromID2 IPv6 ABC123def",
    "数据库 データベース 데이터베이스 ภาษาไทย ລາວ",
    "हिन्दी में खोज สวัสดี",
    "a\u00a0b\u2003c\u3000d\ufeffe\x1ff",
    "“quoted words” „andere“ «autres»",
    "ᾠδή τῷ Ἅιδῃ ᾼ",
    "٣٤٥ ½ ² Ⅷ",
    "😀 emoji 👩‍💻 text",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> PublishedSite:
    return publish_handbook(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def host(site: PublishedSite) -> Iterator[StaticHost]:
    with StaticHost(site.folder, "/some/path/") as running:
        yield running


@pytest.fixture
def page(browser: Browser, host: StaticHost) -> Iterator[Page]:
    with Viewer(browser, host.url).page() as opened:
        wait_until_ready(opened)
        yield opened


def headings_of(folder: Path) -> list[str]:
    return [line.strip("# \n") for path in sorted(folder.rglob("*.md")) for line in path.open() if line.startswith("#")]


def test_hits_scores_and_order_are_those_of_an_exact_search(site: PublishedSite, page: Page) -> None:
    queries = [*QUERIES, *headings_of(site.workplace.folder / "handbook")]
    with site.kb("1.0.0") as kb:
        expected = [kb.search(query, limit=10, exact=True) for query in queries]
    for query, hits, found in zip(queries, expected, search_in(page, queries), strict=True):
        wanted = [(hit.document_id, hit.start, hit.end) for hit in hits]
        assert [tuple(hit[:3]) for hit in found["hits"]] == wanted, query
        assert [hit[3] for hit in found["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-4), query
        assert sorted(found["terms"]) == sorted(hits.term_weights), query
    assert sum(map(len, expected)) > 5 * len(queries)


def test_a_typed_question_is_answered_with_a_quotation_and_passages(site: PublishedSite, page: Page) -> None:
    type_query(page, QUERIES[0])
    expect(page.locator("#answer blockquote")).to_contain_text("TCP port 4460")
    expect(page.locator("#answer")).to_contain_text("protocols/secure-time.md")
    shown = " ".join(page.locator("#answer blockquote, #hits .text").all_inner_texts())
    assert [mark for mark in ("**", "`", "\n# ", "\n## ", "|---") if mark in shown] == []
    with site.kb("1.0.0") as kb:
        hits = kb.search(QUERIES[0], limit=5, exact=True)
    assert [each.get_attribute("data-id") for each in page.locator("#hits li").all()] == [
        hit.document_id for hit in hits
    ]
    expect(page.locator("#hits mark").first).to_be_visible()
    expect(page.locator("#signed")).to_have_text(f"Signed by key {site.keys.id}")
    keep_screenshot(page, "site")
    type_query(page, "How long does sourdough bread have to rise?")
    expect(page.locator("#state")).to_contain_text("not in this knowledge base")
    expect(page.locator("#answer")).to_be_hidden()


def test_a_sentence_is_quoted_rather_than_code_with_the_same_words(page: Page) -> None:
    text = "# Port\\n\\n```\\nport of the daemon\\n\\nport\\n```\\n\\nThe port of the daemon is 9418.\\n"
    found = page.evaluate(
        f"""import("./answer.js").then((module) => module.quote({{
            hits: [{{ score: 0.9, text: "{text}" }}], weights: new Map([["port", 1], ["daemon", 1]]) }}).text)"""
    )
    assert found == "The port of the daemon is 9418."


def test_a_link_with_a_query_shows_its_results(browser: Browser, host: StaticHost) -> None:
    with Viewer(browser, host.url).page("#q=leap+second") as page:
        expect(page.locator("#hits li").first).to_be_visible()
        expect(page.locator("#q")).to_have_value("leap second")


def test_only_some_parts_of_the_files_are_fetched(browser: Browser, host: StaticHost) -> None:
    with Viewer(browser, host.url).page() as page:
        wait_until_ready(page)
        host.requests.clear()
        search_in(page, ["leap second"])
        asked = [(path, size) for path, wanted, size in host.requests if path.startswith("data/") and wanted]
    assert asked
    assert sum(size for _, size in asked) < 200_000


# Each module against the code that it repeats


def test_queries_have_the_terms_that_python_finds(page: Page) -> None:
    queries = [*QUERIES, *HOSTILE, *map(str, MORE_PAGES.values())]
    script = """async (queries) => {
      const { parseQuery } = await import("./tokenizer.js");
      const { openSite } = await import("./main.js");
      return queries.map((query) => {
        const { terms, stopWords, prefixes, phrases, excluded, isStrict, isTelling, written } =
          parseQuery(query, openSite().stopWords.en);
        return [[...terms], [...stopWords], prefixes, phrases, excluded, isStrict, isTelling, [...written]];
      });
    }"""
    for query, found in zip(queries, page.evaluate(script, queries), strict=True):
        wanted = parse_query(query)
        assert found == [
            [list(each) for each in wanted.terms.items()],
            [list(each) for each in wanted.stop_words.items()],
            list(wanted.prefixes),
            [list(each) for each in wanted.phrases],
            [list(each) for each in wanted.excluded],
            wanted.is_strict,
            wanted.is_telling,
            [[term, list(words)] for term, words in wanted.written.items()],
        ], query


def test_english_stems_are_those_of_snowball(site: PublishedSite, page: Page) -> None:
    texts = [path.read_text() for path in (site.workplace.folder / "handbook").rglob("*.md")]
    words = sorted({word for text in texts for word in re.findall(r"[a-z']{3,}", text.lower())})
    endings = [
        "",
        "s",
        "es",
        "ed",
        "eed",
        "ing",
        "ly",
        "edly",
        "ation",
        "ational",
        "iveness",
        "fulness",
        "ogist",
        "y",
        "'s",
    ]
    chosen = random.Random(24)
    made = [chosen.choice(words)[: chosen.randint(1, 9)] + chosen.choice(endings) for _ in range(4000)]
    made = [word for word in made if len(word) > 2]
    stemmer = Stemmer.Stemmer("english", 0)
    script = "async (words) => words.map((await import('./stemmer.js')).stemEnglish)"
    found = page.evaluate(script, [*words, *made])
    wrong = {word: stem for word, stem in zip([*words, *made], found, strict=True) if stem != stemmer.stemWord(word)}
    assert wrong == {}


def test_tokens_and_vectors_are_those_of_the_embedder(page: Page) -> None:
    texts = [*QUERIES, "two\nlines of text", "tab\tand 😀", "Grüße aus Köln"]
    embedder = WordLlamaEmbedder()
    script = """async (texts) => {
      const { openSite } = await import("./main.js");
      const found = [];
      for (const text of texts) found.push(await openSite().embedder.embed(text));
      return found.map(({ vector, fit }) => [[...vector], fit]);
    }"""
    for text, (vector, fit) in zip(texts, page.evaluate(script, texts), strict=True):
        assert vector == pytest.approx(embedder.embed([text])[0].tolist(), abs=1e-5), text
        assert fit == pytest.approx(embedder.fit(text)), text


def test_blake2b_is_that_of_python(page: Page) -> None:
    sizes = [0, 1, 63, 64, 127, 128, 129, 255, 256, 1000, 5000]
    contents = [[number * 7 % 256 for number in range(size)] for size in sizes]
    script = """async (contents) => {
      const [{ blake2b }, { toHex }] = await Promise.all([import("./blake2b.js"), import("./bytes.js")]);
      return contents.map((content) => toHex(blake2b(Uint8Array.from(content))));
    }"""
    assert page.evaluate(script, contents) == [hashlib.blake2b(bytes(content)).hexdigest() for content in contents]


# Readers without JavaScript, and other options


def test_without_javascript_there_is_a_list_of_documents(
    browser: Browser, site: PublishedSite, host: StaticHost
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{host.url}/")
    expect(page.get_by_text("Search needs JavaScript")).to_be_visible()
    page.get_by_role("link", name="List of documents").click()
    documents = page.locator("li")
    expect(documents).to_have_count(site.about["documents"])
    assert site.about["documents"] > 20
    expect(page.get_by_text("protocols/ntp.md")).to_be_visible()
    context.close()


def test_a_site_of_another_embedder_searches_by_words_and_says_so(
    tmp_path: Path, browser: Browser, site: PublishedSite
) -> None:
    site.workplace.environment["PAIR__ENGINE__EMBEDDER"] = "ngram"
    try:
        done = site.workplace.pair("publish", tmp_path / "out", "handbook", "--kb", "words", "--site")
    finally:
        site.workplace.environment["PAIR__ENGINE__EMBEDDER"] = "static"
    assert done.succeeds().status == 0
    with (
        StaticHost(tmp_path / "out" / "site" / "handbook") as host,
        Viewer(browser, host.url).page() as page,
    ):
        type_query(page, "leap second")
        expect(page.locator("#notes")).to_contain_text("by words only")
        expect(page.locator("#signed")).to_have_text("Not signed")
        expect(page.locator("#hits li").first).to_be_visible()


def test_german_question_words_that_no_document_has_are_stemmed_as_pair_does(
    tmp_path: Path, browser: Browser, site: PublishedSite
) -> None:
    pages = {
        "lampe.md": "# Lampe\n\nDie Lampe hat 5 W und wird mit dem Schalter neben der Tür bedient.\n",
        "haus.md": "# Haus\n\nDie Kinder und die Bücher der Lehrer sind in dem Haus, und die Räder auch.\n",
        "buch.md": "# Buch\n\nDer Schüler liest ein Buch der Lehrer, und die Kinder lesen die Bilder mit ihm.\n",
    }
    german = PublishedSite(Workplace(tmp_path), site.keys)
    german.workplace.environment["PAIR__ENGINE__EMBEDDER"] = "static"
    write_files(german.workplace.folder / "handbook", {**pages})
    german.publish("1.0.0")
    assert german.about["languages"] == ["de"]
    queries = ["Wer liest?", "Wem gehören die Bücher?", "Wen fragt das Kind?", "wer"]
    with german.kb("1.0.0") as kb:
        expected = [kb.search(query, limit=10, exact=True) for query in queries]
    with StaticHost(german.folder) as running, Viewer(browser, running.url).page() as page:
        for hits, found in zip(expected, search_in(page, queries), strict=True):
            assert [hit[0] for hit in found["hits"]] == [hit.document_id for hit in hits]
            assert [hit[3] for hit in found["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-4)


def test_a_site_needs_an_index_and_a_folder(site: PublishedSite) -> None:
    workplace = site.workplace
    workplace.pair("package", "handbook", "-o", "plain.zip").succeeds()
    workplace.pair("publish", "dist2", "plain.zip", "--site", "--json").fails(1, "E012")
    assert not (workplace.folder / "dist2").exists()
    workplace.pair("publish", "s3://bucket/kbs", "handbook", "--site", "--json").fails(1, "E402")


def test_a_large_site_with_coded_vectors_finds_what_an_exact_search_finds(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Above 8,192 chunks, vectors are codes: scores and order may differ a little, not what is found."""
    chance, folder = random.Random(24), tmp_path_factory.mktemp("large")
    words = [word for path in sorted(HANDBOOK.rglob("*.md")) for word in path.read_text().split() if word.isalpha()]
    texts = [" ".join(chance.choices(words, k=25)) for _ in range(8_300)]
    workplace = Workplace(folder)
    workplace.environment["PAIR__ENGINE__EMBEDDER"] = "static"
    write_files(workplace.folder / "handbook", {f"{number}.md": text for number, text in enumerate(texts)})
    large = PublishedSite(workplace, make_keys(folder))
    large.publish("1.0.0")
    queries = [" ".join(chance.sample(text.split(), 6)) for text in chance.sample(texts, 12)]
    with large.kb("1.0.0") as kb:
        expected = [[hit.document_id for hit in kb.search(query, limit=10, exact=True)] for query in queries]
    with StaticHost(large.folder) as running, Viewer(browser, running.url).page() as page:
        found = [[hit[0] for hit in result["hits"]] for result in search_in(page, queries)]
    assert [ids[0] for ids in found] == [ids[0] for ids in expected]
    shared = sum(len({*ours} & {*theirs}) for ours, theirs in zip(found, expected, strict=True))
    assert shared >= 0.8 * sum(map(len, expected)), shared
