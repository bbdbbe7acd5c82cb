"""A published site on hosts with quirks, changed bytes or replaced versions, and without any host."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.command import write_files
from support.minisign import Keys, make_keys
from support.page_viewer import EXECUTABLE, Viewer
from support.sites import PublishedSite, publish_handbook, search_in, type_query, wait_until_ready
from support.static_host import TYPES, StaticHost

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

QUERY = "Which TCP port does NTS key establishment use?"
REFUSED = ("Failed to load resource",)
WITHOUT_COPY: dict[str, Any] = {
    "allowed": (*REFUSED, "Service Worker registration blocked"),
    "service_workers": "block",
}
"""Options of a browser page without an offline copy."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> PublishedSite:
    return publish_handbook(tmp_path_factory.mktemp("site"))


@pytest.fixture
def host(published: PublishedSite) -> Iterator[StaticHost]:
    with StaticHost(published.folder, "/kb/") as running:
        yield running


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def expect_answer(page: Page) -> None:
    type_query(page, QUERY)
    expect(page.locator("#answer blockquote")).to_contain_text("TCP port 4460")


def expect_refusal(page: Page, *words: str) -> None:
    problem = page.locator("#problem")
    expect(problem).to_be_visible()
    for word in ("Refused", *words):
        expect(problem).to_contain_text(word)
    expect(page.locator("#hits li")).to_have_count(0)


# Hosts


def test_a_host_without_ranges_sends_whole_files_and_the_page_says_so(browser: Browser, host: StaticHost) -> None:
    host.ranges = False
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)
        expect(page.locator("#notes")).to_contain_text("whole files are loaded")


@pytest.mark.parametrize("data_type", ["text/plain", "text/html; charset=utf-8", "application/json", "image/png"])
def test_wrong_types_of_data_files_do_not_matter(browser: Browser, host: StaticHost, data_type: str) -> None:
    host.data_type = data_type
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)


def test_wrong_types_of_all_files_but_the_page_do_not_matter(browser: Browser, host: StaticHost) -> None:
    host.page_types = {suffix: TYPES[suffix] for suffix in (".html", ".js", ".css", ".svg")}
    host.data_type = "text/plain"
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)


def test_a_host_that_serves_scripts_as_text_shows_the_list_of_documents(browser: Browser, host: StaticHost) -> None:
    host.page_types = {**TYPES, ".js": "text/plain"}
    with Viewer(browser, host.url).page(allowed=("Failed to load module script",)) as page:
        expect(page.get_by_text("a host that serves it as such")).to_be_visible()
        page.get_by_role("link", name="List of documents").click()
        expect(page.get_by_text("protocols/ntp.md")).to_be_visible()


def test_a_strict_policy_of_the_host_is_obeyed(browser: Browser, host: StaticHost) -> None:
    host.headers = {
        "Content-Security-Policy": "default-src 'self'; object-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)


@pytest.mark.parametrize("ranges", [True, False])
def test_compressed_answers_are_read(browser: Browser, host: StaticHost, ranges: bool) -> None:
    host.gzips, host.ranges = True, ranges
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)


@pytest.mark.parametrize("kind", ["terms", "words", "tokens"])
def test_without_a_file_the_rest_is_searched_and_the_page_says_so(
    browser: Browser, host: StaticHost, kind: str
) -> None:
    host.missing = lambda path: path.startswith(f"data/{kind}-")
    with Viewer(browser, host.url).page(allowed=REFUSED) as page:
        type_query(page, "Zanzibar pondered a quizzical leap second")
        expect(page.locator("#state")).to_contain_text("incomplete")
        expect(page.locator("#state")).not_to_contain_text("ot in this knowledge base")
        expect(page.locator("#notes")).to_contain_text("the host answers 404. Results may be incomplete.")
        expect(page.locator("#problem")).to_be_hidden()
        assert page.locator("body").get_attribute("data-state") == "ready"


def test_without_a_file_of_texts_the_page_says_so(browser: Browser, host: StaticHost) -> None:
    host.missing = lambda path: path.startswith("data/texts-")
    with Viewer(browser, host.url).page(allowed=REFUSED) as page:
        type_query(page, "leap seconds")
        expect(page.locator("#notes")).to_contain_text("Cannot load data/texts-")
        expect(page.locator("#hits li")).to_have_count(0)


def test_without_the_start_nothing_is_searched(browser: Browser, host: StaticHost) -> None:
    host.missing = lambda path: path.startswith("data/start-")
    with Viewer(browser, host.url).page(allowed=REFUSED) as page:
        expect(page.locator("#problem")).to_contain_text("Cannot load data/start-")


# Changed bytes


@pytest.mark.parametrize("kind", ["start", "terms", "texts", "words", "tokens"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_changed_byte_in_a_file_is_refused(browser: Browser, host: StaticHost, kind: str, ranges: bool) -> None:
    host.ranges = ranges
    # Every unit of the file has a changed byte, whichever the query reads.
    step = 50_000 if kind == "start" else 1_000

    def change(path: str, content: bytes) -> bytes:
        if not path.startswith(f"data/{kind}-"):
            return content
        changed = bytearray(content)
        changed[::step] = bytes(byte ^ 1 for byte in changed[::step])
        return bytes(changed)

    host.change = change
    with Viewer(browser, host.url).page() as page:
        page.locator("#q").fill("Zanzibar pondered a quizzical leap second")
        expect_refusal(page, f"data/{kind}-", "was changed")


def test_a_changed_manifest_is_refused(browser: Browser, host: StaticHost) -> None:
    host.change = lambda path, content: content.replace(b'"rows": ', b'"rows": 1') if path == "site.json" else content
    with Viewer(browser, host.url).page() as page:
        expect_refusal(page, "the file is not the one that was signed")


def test_a_changed_manifest_is_refused_where_the_host_serves_the_signed_one_afterwards(
    browser: Browser, host: StaticHost
) -> None:
    """The page must verify the bytes that it uses, not those of another request."""
    seen: list[str] = []

    def change(path: str, content: bytes) -> bytes:
        seen.append(path)
        is_first = path == "site.json" and seen.count(path) == 1
        return content.replace(b'"name": "handbook"', b'"name": "forgery!"') if is_first else content

    host.change = change
    with Viewer(browser, host.url).page(**WITHOUT_COPY) as page:
        wait_until_ready(page)
        name = page.evaluate("async () => (await import('./main.js')).openSite().about.name")
    assert (name, seen.count("site.json")) == ("handbook", 2)


def test_a_signature_has_one_spelling(browser: Browser, host: StaticHost) -> None:
    def change(path: str, content: bytes) -> bytes:
        lines = content.split(b"\n")
        if path == "site.json.minisig":
            # The last letter before "=" has two bits that decode to nothing.
            letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            place = letters.index(lines[1][-2])
            lines[1] = lines[1][:-2] + letters[place ^ 1 : (place ^ 1) + 1] + b"="
        return b"\n".join(lines)

    host.change = change
    with Viewer(browser, host.url).page() as page:
        expect_refusal(page, "it is damaged")


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_changed_signature_is_refused(browser: Browser, host: StaticHost, line: int) -> None:
    def change(path: str, content: bytes) -> bytes:
        if path != "site.json.minisig":
            return content
        lines = content.split(b"\n")
        if line == 2:
            lines[line] += b" and more"
        else:
            lines[line] = base64.b64encode(flip(base64.b64decode(lines[line]), 40))
        return b"\n".join(lines)

    host.change = change
    with Viewer(browser, host.url).page() as page:
        expect_refusal(page, "the signature of site.json is not valid")


def test_a_missing_signature_is_refused(browser: Browser, host: StaticHost) -> None:
    host.missing = lambda path: path == "site.json.minisig"
    with Viewer(browser, host.url).page(allowed=REFUSED) as page:
        expect_refusal(page, "the signature of site.json is not valid")


def sign_again(published: PublishedSite, key: Keys | None, folder: Path) -> dict[str, bytes]:
    """Return the manifest of the site with a signature by another key; None for no signature."""
    content, line = (published.folder / "site.json").read_bytes(), key.line if key else ""
    (folder / "site.json").write_bytes(content.replace(published.keys.line.encode(), line.encode()))
    signature = key.sign(folder / "site.json").read_bytes() if key else b""
    return {"site.json": (folder / "site.json").read_bytes(), "site.json.minisig": signature}


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_site_of_another_key_is_refused_after_a_visit_until_a_link_names_the_key(
    browser: Browser, host: StaticHost, published: PublishedSite, tmp_path: Path, is_signed: bool
) -> None:
    other = make_keys(tmp_path, "other")
    replaced: dict[str, bytes] = sign_again(published, other if is_signed else None, tmp_path)
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)
        host.change = replaced.get
        page.reload()
        expect_refusal(page, "signed by", "the key that you trust", "open a link with it")
        if is_signed:
            page.goto(f"{host.url}/#key={other.line}")
            page.reload()
            expect_answer(page)
            page.goto(f"{host.url}/")
            expect_answer(page)


def test_a_link_with_a_wrong_key_is_refused_once(
    browser: Browser, host: StaticHost, published: PublishedSite, tmp_path: Path
) -> None:
    other = make_keys(tmp_path, "other")
    with Viewer(browser, host.url).page(f"#key={other.line}") as page:
        expect_refusal(page, "the key that you trust")
        page.goto(f"{host.url}/index.html")
        expect_answer(page)


def test_a_key_with_a_plus_sign_is_used_unchanged_in_a_link(
    browser: Browser, host: StaticHost, published: PublishedSite, tmp_path: Path
) -> None:
    keys = next(keys for number in range(1000) if "+" in (keys := make_keys(tmp_path, f"key{number}")).line)
    host.change = sign_again(published, keys, tmp_path).get
    with Viewer(browser, host.url).page(f"#key={keys.line}") as page:
        expect_answer(page)


# Versions


@pytest.fixture
def own(published: PublishedSite, tmp_path: Path) -> PublishedSite:
    """Return a copy of the published site for a test that publishes again."""
    shutil.copytree(published.workplace.folder.parent, tmp_path / "copy")
    site = PublishedSite(published.workplace, published.keys)
    workplace = type(published.workplace)(tmp_path / "fresh")
    shutil.copytree(published.workplace.folder, workplace.folder, dirs_exist_ok=True)
    workplace.environment["PAIR__ENGINE__EMBEDDER"] = "static"
    site.workplace = workplace
    return site


def test_an_open_page_keeps_its_version_and_says_reload_when_it_is_gone(browser: Browser, own: PublishedSite) -> None:
    first = own.about["start"]["name"]
    with (
        StaticHost(own.folder) as host,
        Viewer(browser, host.url).page(**WITHOUT_COPY) as page,
        Viewer(browser, host.url).page(**WITHOUT_COPY) as idle,
    ):
        wait_until_ready(page)
        wait_until_ready(idle)
        for number, version in enumerate(("1.1.0", "1.2.0")):
            text = f"# Fresh {number}\n\nThe beacon of Tromsø blinks {number + 3} times.\n"
            write_files(own.workplace.folder / "handbook", {"fresh.md": text})
            own.publish(version)
            if not number:
                found = search_in(page, ["leap second smear", "Tromsø beacon"])
                assert found[0]["hits"]
                assert not any("fresh.md" in hit for hit in found[1]["hits"])
        assert first not in {path.name for path in (own.folder / "data").iterdir()}
        type_query(idle, "gregorian calendar reform")
        expect(idle.locator("#problem")).to_contain_text("Reload the page")
        idle.reload()
        type_query(idle, "beacon of Tromsø")
        expect(idle.locator("#hits li").first).to_contain_text("blinks 4 times")


def test_the_same_content_published_again_changes_nothing(own: PublishedSite) -> None:
    before = {path.name: path.read_bytes() for path in own.folder.rglob("*") if path.is_file()}
    own.publish("1.0.0")
    assert {path.name: path.read_bytes() for path in own.folder.rglob("*") if path.is_file()} == before


# Offline


def test_after_the_first_visit_the_site_works_offline(browser: Browser, published: PublishedSite) -> None:
    with (
        StaticHost(published.folder, "/kb/") as host,
        Viewer(browser, host.url).page(allowed=(*REFUSED, "Failed to fetch")) as page,
    ):
        page.locator("body[data-offline=ready]").wait_for(state="attached")
        host.missing = lambda path: True
        page.context.set_offline(True)
        page.goto(f"{host.url}/?from=bookmark")
        wait_until_ready(page)
        expect_answer(page)
        type_query(page, "How does Google Public NTP hide a leap second?")
        expect(page.locator("#hits li").first).to_be_visible()
