"""Versions on the page in a real Chromium: views, comparisons and rollbacks."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from support.page_viewer import EXECUTABLE, PHONE, Viewer, keep_screenshot
from support.served import Keyed, Served

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

EVIL = "<img src=x onerror=alert(1)>"
ONE = {
    "guides/deploy.md": "# Deploying\n\nDeploy on Mondays, and have a look at the figures.\n",
    "lunch.md": "# Lunch\n\nLunch is at one.\n",
}
TWO = {"guides/deploy.md": "# Deploying safely\n\nDeploy on Tuesdays, and have a look at the figures.\n"}
THREE = {f"evil/{EVIL}.md": f"# Wicked {EVIL}\n\nA wicked page {EVIL}.\n"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("versions") / "project", PAIR__SERVER__SYNC="false") as running:
        for number in range(3):  # one for each test that changes something
            for texts in (ONE, TWO, THREE):
                assert running.ingest(texts, kb_id=f"kb-{number}").status_code == 200
        yield running


def expect_versions(page: Page, *numbers: int) -> None:
    """Expect exactly these versions, newest first."""
    expect(page.locator("#view-versions .line .title")).to_have_text([f"Version {number}" for number in numbers])


def expect_hits_of(page: Page, text: str) -> None:
    """Expect the hits of the whole query, not of its first letters."""
    expect(page.locator("#hits")).to_have_attribute("data-for", text)


def test_versions_are_listed_and_two_are_compared(viewer: Viewer) -> None:
    with viewer.page("#/versions?kb=kb-0") as page:
        expect_versions(page, 3, 2, 1)
        expect(page.locator(".line").first).to_contain_text("current")
        expect(page.locator(".line").last).to_contain_text("2 documents")
        page.get_by_role("link", name="What changed since version 1").click()
        heading = page.locator("#difference h2")
        expect(heading).to_have_text("From version 1 to 3: 1 added, 0 removed, 1 changed")
        expect(page.locator("#difference .minus").first).to_contain_text("Deploying")
        expect(page.locator("#difference")).to_contain_text(f"evil/{EVIL}.md")
        expect(page.locator("#difference img")).to_have_count(0)
        page.get_by_label("with texts").check()
        expect(page.locator("#difference")).to_contain_text("-Deploy on Mondays")
        keep_screenshot(page, "versions")
        page.get_by_label("to", exact=True).select_option("2")
        expect(heading).to_have_text("From version 1 to 2: 0 added, 0 removed, 1 changed")
        page.reload()
        expect(heading).to_have_text("From version 1 to 2: 0 added, 0 removed, 1 changed")
        page.go_back()
        expect(heading).to_have_text(re.compile("From version 1 to 3"))
        page.get_by_label("What changed from").select_option("3")
        expect(heading).to_have_text("From version 3 to 3: the same documents")
        page.get_by_role("link", name="Documents").click()
        expect(page).not_to_have_url(re.compile("[?&]a="))


def test_going_back_asks_first_and_shows_what_is_found_then(viewer: Viewer, server: Served) -> None:
    with viewer.page("#/versions?kb=kb-1") as page:
        expect_versions(page, 3, 2, 1)
        page.get_by_role("button", name="Roll back to version 1").click()
        dialog = page.get_by_role("dialog", name="Roll back to version 1?")
        expect(dialog).to_contain_text("2 documents")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_be_hidden()
        expect_versions(page, 3, 2, 1)
        page.get_by_role("button", name="Roll back to version 1").focus()
        page.keyboard.press("Enter")
        keep_screenshot(page, "roll-back")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_have_text("Rolled back to version 1. The current version is 4.")
        expect(page.locator(".line").first).to_contain_text("back to version 1")
        expect(page.locator(".line .title").first).to_have_text("Version 4")
    found = server.post("/rag/query", {"kb_id": "kb-1", "query": "deploy on", "search_mode": "keyword"}).json()
    assert "Mondays" in found["results"][0]["content"]


def test_an_older_version_is_searched_and_its_hits_open_in_that_version(viewer: Viewer) -> None:
    with viewer.page("#/versions?kb=kb-0&a=1") as page:
        expect_versions(page, 3, 2, 1)
        expect(page.get_by_role("link", name="Search in version 3")).to_have_count(0)
        page.get_by_role("link", name="Search in version 1").click()
        expect(page).to_have_url(re.compile(r"#/search\?kb=kb-0&at=1$"))
        past = page.get_by_role("status").filter(has_text="version 1")
        expect(past).to_have_text(
            "These results are from version 1, not from the current version.Search the current version"
        )
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        page.keyboard.type("deploy on")
        first = page.locator(".hit").first
        expect_hits_of(page, "deploy on")
        expect(first.locator(".passage")).to_contain_text("Deploy on Mondays")
        keep_screenshot(page, "search-past")
        page.keyboard.press("ArrowDown")
        expect(first.locator("a.title")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".text .here", has_text="Deploy on Mondays")).to_be_visible()
        reader = page.get_by_role("dialog")
        expect(reader.locator(".facts")).to_contain_text("version 1")
        expect(reader.get_by_role("button", name="Delete")).to_have_count(0)
        page.reload()
        expect(page.locator(".text .here", has_text="Deploy on Mondays")).to_be_visible()
        page.keyboard.press("Escape")
        expect(reader).to_be_hidden()
        expect(page).not_to_have_url(re.compile("doc="))
        page.get_by_role("searchbox", name="Search").fill("have a look at the figures")
        expect_hits_of(page, "have a look at the figures")
        expect(first.locator(".passage")).to_contain_text("Mondays")
        page.get_by_role("link", name="Search the current version").click()
        expect(first.locator(".passage")).to_contain_text("Tuesdays")
        expect(past).to_have_count(0)
        expect(page.get_by_role("searchbox", name="Search")).to_have_value("have a look at the figures")
        expect(page).to_have_url(re.compile("kb=kb-0"))
        first.locator("a.title").click()
        expect(page.locator(".text .here", has_text="Tuesdays")).to_be_visible()
        expect(reader.get_by_role("button", name="Delete")).to_be_visible()


def test_the_past_is_left_with_its_view_and_with_its_kb(viewer: Viewer) -> None:
    with viewer.page("#/search?kb=kb-0&at=1&q=lunch") as page:
        expect(page.locator(".hit .passage").first).to_contain_text("Lunch is at one")
        page.get_by_role("link", name="Search", exact=True).click()
        expect(page.locator(".past")).to_contain_text("version 1")
        for name in ("Ask", "Documents", "Versions"):
            page.get_by_role("link", name=name, exact=True).click()
            expect(page).not_to_have_url(re.compile("at=1"))
            page.go_back()
            expect(page.locator(".past")).to_contain_text("version 1")
        page.get_by_label("Knowledge base").select_option("kb-2")
        expect(page).to_have_url(re.compile("kb=kb-2"))
        expect(page.locator(".past")).to_be_empty()


def test_searching_a_removed_version_is_reported(viewer: Viewer) -> None:
    for at in ("77", EVIL):
        with viewer.page("#/search?" + urlencode({"kb": "kb-0", "at": at, "q": "lunch"}), allowed=("404",)) as page:
            expect(page.locator("#hits")).to_contain_text("E218")
            expect(page.locator(".past")).to_contain_text(f"version {at}")
            expect(page.locator(".past img")).to_have_count(0)
            page.get_by_role("link", name="Search the current version").click()
            expect(page.locator(".hit .passage").first).to_contain_text("Lunch")


def test_a_caller_without_permission_to_roll_back_sees_no_button_for_it(browser: Browser, keyed: Keyed) -> None:
    keyed.server.ingest({"lunch.md": "# Lunch\n\nLunch is at two.\n"}, key=keyed.key("write"))
    for key, may in ((keyed.key("read"), False), (keyed.key("admin"), True)):
        with Viewer(browser, keyed.server.url).page("#/versions", allowed=("401",)) as page:
            page.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            expect(page.locator("#view-versions .line .title").first).to_be_visible()
            seen = page.get_by_role("button", name=re.compile("Roll back to version")).count()
            assert (seen > 0) == may


def test_a_removed_version_and_a_kb_without_versions_are_reported(viewer: Viewer) -> None:
    with viewer.page("#/versions?kb=kb-0&a=77", allowed=("404",)) as page:
        expect(page.locator("#difference")).to_contain_text("E218")
    with viewer.page("#/versions?kb=never", allowed=("400",)) as page:
        expect(page.locator("#view-versions")).to_contain_text("This knowledge base is empty")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone(viewer: Viewer, scheme: str) -> None:
    with viewer.page("#/versions?kb=kb-0&a=1", viewport=PHONE, color_scheme=scheme) as page:
        expect(page.locator("#difference h2")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        expect(page.get_by_role("link", name="Versions")).to_be_visible()
        keep_screenshot(page, f"versions-phone-{scheme}")
