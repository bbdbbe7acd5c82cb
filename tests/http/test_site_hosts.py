"""A published site on hosts with odd habits, changed bytes, replaced versions, and no host at all."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.command import write_files
from support.minisign import make_keys
from support.page_viewer import EXECUTABLE, Viewer
from support.sites import PublishedSite, publish_handbook, search_in, type_query, wait_until_ready
from support.static_host import StaticHost

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

QUERY = "Which TCP port does NTS key establishment use?"
REFUSED = ("Failed to load resource",)
WITHOUT_COPY: dict[str, Any] = {
    "allowed": (*REFUSED, "Service Worker registration blocked"),
    "service_workers": "block",
}
"""Pages without an offline copy, which have to ask the host."""


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


@pytest.mark.parametrize("ranges", [True, False])
def test_compressed_answers_are_read(browser: Browser, host: StaticHost, ranges: bool) -> None:
    host.gzips, host.ranges = True, ranges
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)


def test_without_a_file_of_terms_the_rest_is_searched_and_the_page_says_so(browser: Browser, host: StaticHost) -> None:
    host.missing = lambda path: path.startswith("data/terms-")
    with Viewer(browser, host.url).page(allowed=REFUSED) as page:
        type_query(page, "smearing of leap seconds")
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


@pytest.mark.parametrize("kind", ["start", "terms", "texts", "tokens"])
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


def test_a_site_of_another_key_is_refused_where_a_link_or_an_earlier_visit_names_one(
    browser: Browser, host: StaticHost, published: PublishedSite, tmp_path: Path
) -> None:
    other = make_keys(tmp_path, "other")
    with Viewer(browser, host.url).page(f"#key={other.line.replace('+', '%2B')}") as page:
        expect_refusal(page, "the key that you trust")
    with Viewer(browser, host.url).page() as page:
        expect_answer(page)
        changed = (
            (published.folder / "site.json").read_bytes().replace(published.keys.line.encode(), other.line.encode())
        )
        forged = tmp_path / "site.json"
        forged.write_bytes(changed)
        signature = other.sign(forged).read_bytes()
        served: dict[str, bytes] = {"site.json": changed, "site.json.minisig": signature}
        host.change = served.get
        page.reload()
        expect_refusal(page, "the key that you trust")


# Versions


@pytest.fixture
def own(published: PublishedSite, tmp_path: Path) -> PublishedSite:
    """A copy of the published site that a test may publish to again."""
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
        page.reload()
        wait_until_ready(page)
        expect_answer(page)
        type_query(page, "How does Google Public NTP hide a leap second?")
        expect(page.locator("#hits li").first).to_be_visible()
