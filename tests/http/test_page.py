"""The page in a real Chromium: from a search to the passage and back, by mouse, touch and keyboard."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.model_server import Answer, ModelServer
from support.page_viewer import EXECUTABLE, PHONE, Viewer, keep_screenshot, keystroke_latencies
from support.served import Keyed, Served

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

ROLL_BACK = "Roll back with the command make rollback."
DEPLOY = f"# Deploying\n\n🚀🚀 Deploy on Tuesdays, never on Fridays. {ROLL_BACK}\n\n"
LONG = DEPLOY + "".join(f"## History, part {n}\n\nLong ago somebody wrote paragraph {n}.\n\n" for n in range(60))
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HANDBOOK: list[dict[str, Any]] = [
    {"id": "guides/deploy.md", "title": "Deploying", "text": LONG, "metadata": {"year": 2026}},
    {
        "id": "clocks.md",
        "title": "Clocks",
        "text": "# Clocks\n\nThe Network Time Protocol (NTP) keeps clocks in step. NTP uses port 123. Stratum One.",
        "metadata": {"year": 2020},
    },
    {
        "id": "radio.md",
        "title": "Radio clocks",
        "text": "# Radio clocks\n\nDCF77 near Frankfurt sends the time. The Network Time Protocol is more exact.",
    },
    {
        "id": "ports.md",
        "title": "Ports",
        "text": "# Ports of **our** servers\n\nOpened by `systemd`:\n\n- Roughtime listens on *UDP* port 2002\n"
        "- NTS on TCP\n\n| service | gopher port |\n| --- | --- |\n| gopher | 70 |\n\n```\nss -lnt\n```\n\n[Guide](https://127.0.0.1/ports)",
    },
    {"id": "lunch.md", "title": "Lunch", "text": "# Lunch\n\nLunch is at one. On Fridays there is soup."},
    {
        "id": f"evil/{EVIL}",
        "title": f"Wicked {EVIL}",
        "text": f'# Wicked\n\nA wicked page about Mount Doom {EVIL} and "Sauron\'s Ring" {EVIL}. [1]',
        "url": "javascript:alert(3)",
        "metadata": {EVIL: EVIL},
    },
]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Served]:
    """Return a server with a few documents, one synced file, and an address that cannot be fetched."""
    folder = tmp_path_factory.mktemp("page") / "project"
    (folder / ".pair" / "knowledge").mkdir(parents=True)
    (folder / ".pair" / "knowledge" / "holidays.md").write_text("# Holidays\n\nHolidays are in August.\n")
    (folder / ".pair" / "links.txt").write_text("http://127.0.0.1:9/gone\n")
    with Served(folder, PAIR__AI__BASE_URL=model.url, PAIR__AI__MODEL="any", PAIR__AI__RETRIES="0") as running:
        assert running.post("/rag/ingest", {"documents": HANDBOOK}).status_code == 200
        yield running


def search_for(page: Page, text: str) -> None:
    page.get_by_role("searchbox", name="Search").fill(text)
    wait_for_hits_of(page, text)


def type_search(page: Page, text: str) -> None:
    """Type a query key by key into the focused field, and wait for the results of the whole query."""
    page.keyboard.type(text)
    wait_for_hits_of(page, text)


def wait_for_hits_of(page: Page, text: str) -> None:
    page.wait_for_function("text => document.getElementById('hits').dataset.for === text", arg=text)


def expect_focus_on(page: Page, text: str) -> None:
    page.wait_for_function("text => document.activeElement.textContent.trim() === text", arg=text)


# ── the files ──────────────────────────────────────────────────────────────────────────────────────


def test_the_page_is_served_with_a_strict_policy_and_revalidated(server: Served):
    page = server.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers.get_list("content-security-policy")
    assert len(policy) == 1
    for wanted in ("default-src 'none'", "script-src 'self';", "style-src 'self';", "form-action 'none'"):
        assert wanted in policy[0]
    assert "unsafe" not in policy[0]
    for name, kind in {"style.css": "text/css", "main.js": "text/javascript", "icon.svg": "image/svg+xml"}.items():
        found = server.get(f"/ui/{name}")
        assert (found.status_code, found.headers["content-type"].partition(";")[0]) == (200, kind)
        assert (found.headers["cache-control"], found.headers["x-content-type-options"]) == ("no-cache", "nosniff")
        again = server.get(f"/ui/{name}", headers={"if-none-match": f'W/"other", {found.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["", "../http/app.py", "%2e%2e/http/app.py", "__init__.py", "index.html", "a%00.js"])
def test_other_files_than_those_of_the_page_are_not_served(server: Served, name: str):
    head = f"GET /ui/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert b" 404 " in server.raw(head.encode()).partition(b"\r\n")[0]


# ── search ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_search_leads_to_the_passage_in_its_document(viewer: Viewer):
    with viewer.page() as page:
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        type_search(page, "make rollback")
        first = page.locator(".hit").first
        expect(first.locator("a.title")).to_have_text("Deploying")
        marks = first.locator("mark").all_text_contents()
        assert {"make", "rollback"} <= {each.lower() for each in marks}
        keep_screenshot(page, "search")
        first.locator("a.title").click()
        passage = page.locator(".text .here")
        expect(passage.filter(has_text=ROLL_BACK)).to_be_in_viewport()
        start, end = map(int, parse_qs(page.url.partition("?")[2])["span"][0].split("-"))
        # The document is rendered: query words are marked, and headings have no `#`.
        assert " ".join(passage.all_text_contents()).split() == LONG[start:end].replace("#", "").split()
        keep_screenshot(page, "document")
        page.reload()
        expect(passage.filter(has_text=ROLL_BACK)).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(page.locator("#reader")).to_be_hidden()
        expect(page).not_to_have_url(re.compile("doc="))
        expect(page.get_by_role("searchbox", name="Search")).to_have_value("make rollback")


def test_a_passage_far_down_is_scrolled_to(viewer: Viewer):
    start = LONG.rindex("Long ago")
    with viewer.page(f"#/search?doc=guides%2Fdeploy.md&span={start}-{start + 8}") as page:
        expect(page.locator("#passage")).to_have_text("Long ago")
        expect(page.locator("#passage")).to_be_in_viewport()


def test_going_back_closes_what_was_opened_and_searches_what_was_searched(viewer: Viewer):
    with viewer.page("#/search?q=lunch") as page:
        page.locator(".hit a.title").first.click()
        expect(page.locator("#reader")).to_be_visible()
        page.go_back()
        expect(page.locator("#reader")).to_be_hidden()
        search_for(page, "clocks")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Documents").click()
        expect(page.locator("#view-documents")).to_be_visible()
        page.go_back()
        expect(page.locator(".hit").first).to_contain_text("clocks")


def test_modes_filters_and_scores_are_shown(viewer: Viewer):
    with viewer.page("#/search?q=protocol") as page:
        page.get_by_label("Filter").fill("year>=2020, year<2025")
        expect(page.locator(".hit")).to_have_count(1)
        expect(page.locator(".hit .title")).to_have_text("Clocks")
        page.get_by_label("Filter").fill('{"$or": [{"year": {"gte": 2020, "lt": 2025}}, {"year": 1}]}')
        expect(page.locator(".hit")).to_have_count(1)
        page.get_by_label("Mode").select_option("keyword")
        expect(page).to_have_url(re.compile("mode=keyword"))
        expect(page.locator("#hits[aria-busy]")).to_have_count(0)
        page.locator(".why summary").click()
        expect(page.locator(".why dl")).to_contain_text("keyword")
        expect(page.locator(".why dl")).to_contain_text("BM25")
    with viewer.page("#/search?q=protocol&filter=%3D", allowed=("400",)) as page:
        expect(page.get_by_role("alert")).to_contain_text("E211")


def test_the_page_shows_the_answer_to_the_newest_question(viewer: Viewer):
    with viewer.page() as page:
        page.get_by_role("searchbox").press_sequentially("network time protocol", delay=0)
        wait_for_hits_of(page, "network time protocol")
        expect(page.locator(".hit").first.locator("mark").first).to_be_visible()
        samples = keystroke_latencies(page, ["soup"], pause_ms=40)
        assert len(samples) == 4
        assert all(0 < each < 15_000 for each in samples)


# ── ask ────────────────────────────────────────────────────────────────────────────────────────────

_READ_ALONG = """
() => {
  window.written = "";
  new MutationObserver(() => {
    const text = document.querySelector(".writing")?.textContent || "";
    if (text) window.written = text;
  }).observe(document.querySelector(".answering"), { childList: true, subtree: true, characterData: true });
}
"""


def test_an_answer_is_streamed_and_its_citations_open_the_passage(viewer: Viewer, model: ModelServer):
    with viewer.page("#/ask") as page:
        page.evaluate(_READ_ALONG)
        model.answers.append(Answer(text=f"{ROLL_BACK} [1]"))
        page.get_by_role("textbox", name="Question").fill("How do I roll back?")
        page.keyboard.press("Enter")
        expect(page.locator(".prose")).to_contain_text("make rollback")
        assert "Roll back with" in page.evaluate("window.written")
        expect(page.locator(".answering")).to_have_attribute("aria-busy", "false")
        expect(page.locator(".sources .source").first).to_contain_text("guides/deploy.md")
        keep_screenshot(page, "ask")
        page.get_by_role("link", name="Source 1: Deploying").click()
        expect(page.locator(".text .here", has_text=ROLL_BACK)).to_be_in_viewport()


def test_a_question_that_nothing_answers_says_so(viewer: Viewer):
    with viewer.page("#/ask?q=Who+painted+the+ceiling%3F") as page:
        expect(page.locator(".answering")).to_have_attribute("aria-busy", "false")
        expect(page.locator(".answer")).not_to_be_empty()


def test_a_source_shows_the_quoted_sentence_in_its_surroundings(viewer: Viewer, model: ModelServer):
    model.answers.append(Answer(status=500))  # so that the answer is a quotation
    with viewer.page("#/ask?q=Which+command+is+used+to+roll+back%3F") as page:
        expect(page.locator(".prose blockquote")).to_contain_text(ROLL_BACK)
        source = page.locator(".sources .source").first
        expect(source.locator("mark")).to_contain_text(ROLL_BACK)
        expect(source.locator(".passage")).to_contain_text("Deploying")
        keep_screenshot(page, "ask-quotation")


def test_an_empty_kb_says_what_to_do_on_every_view(viewer: Viewer):
    for view in ("search?q=tea&kb=none", "ask?q=tea&kb=none", "documents?kb=none", "versions?kb=none"):
        with viewer.page(f"#/{view}", allowed=("400",)) as page:
            expect(page.locator(".view:not([hidden])")).to_contain_text("This knowledge base is empty")
            assert page.get_by_role("alert").count() == 0


def test_a_question_to_a_new_server_says_what_to_do(browser: Browser, tmp_path: Path):
    with Served(tmp_path / "project") as new, Viewer(browser, new.url).page("#/ask?q=tea", allowed=("404",)) as page:
        expect(page.locator(".answer")).to_contain_text("This knowledge base is empty")
        assert page.get_by_role("alert").count() == 0


# ── Markdown ───────────────────────────────────────────────────────────────────────────────────────


def test_markdown_is_rendered_in_hits_documents_and_answers(viewer: Viewer, model: ModelServer):
    with viewer.page("#/search?q=gopher+port") as page:
        passage = page.locator(".hit .passage").first
        expect(passage.locator("code", has_text="systemd")).to_be_visible()
        text = passage.text_content() or ""
        assert not [sign for sign in ("**", "# ", "`", "|", "---") if sign in text]
        assert "• Roughtime listens on UDP port 2002" in text
        keep_screenshot(page, "search-markdown")
        page.locator(".hit a.title").first.click()
        shown = page.locator(".text")
        expect(shown.locator("h3")).to_have_text("Ports of our servers")
        expect(shown.locator("li").first).to_have_text("Roughtime listens on UDP port 2002")
        expect(shown.locator("td").nth(1)).to_have_text("70")
        expect(shown.locator("pre")).to_contain_text("ss -lnt")
        expect(shown.get_by_role("link", name="Guide")).to_have_attribute("href", "https://127.0.0.1/ports")
        keep_screenshot(page, "document-markdown")
    model.answers.append(Answer(text="Use **port 70** [1]:\n\n1. run `ss`\n2. [look](javascript:go)"))
    with viewer.page("#/ask?q=Which+port+does+gopher+use%3F") as page:
        prose = page.locator(".prose")
        expect(prose.locator("strong")).to_have_text("port 70")
        expect(prose.locator("ol li code")).to_have_text("ss")
        expect(prose.locator("ol li").nth(1)).to_have_text("look")
        assert prose.locator("ol a").count() == 0


# ── graph ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_graph_around_a_hit_leads_to_other_documents(viewer: Viewer):
    with viewer.page("#/search?q=NTP+port") as page:
        page.get_by_role("link", name="Graph around Clocks").click()
        node = page.locator("svg.graph .node.entity", has_text="network time protocol")
        keep_screenshot(page, "graph")
        node.click()
        expect(page.locator("#reader-title")).to_have_text("“network time protocol”")
        other = page.locator("svg.graph .node.document", has_text="Radio clocks")
        other.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".text")).to_contain_text("DCF77")
        page.go_back()
        expect(page.locator("#reader-title")).to_have_text("“network time protocol”")
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#reader")).to_be_hidden()
        expect(page).not_to_have_url(re.compile("entity="))


# ── documents ──────────────────────────────────────────────────────────────────────────────────────


def test_files_are_put_in_with_progress_found_and_deleted(viewer: Viewer, tmp_path: Path):
    (tmp_path / "tea.md").write_text("# Tea time\n\nTea is at four.")
    (tmp_path / "more.jsonl").write_text(
        "\n".join(json.dumps({"id": f"m{n}", "text": f"Note {n}."}) for n in range(45))
    )
    (tmp_path / "picture.bin").write_bytes(b"\x89PNG\xff\x00")
    with viewer.page("#/documents?kb=mine", allowed=("400",)) as page:
        page.locator("#files").set_input_files(sorted(tmp_path.iterdir()))
        progress = page.locator(".progress")
        expect(progress).to_contain_text("46 documents stored, 0 unchanged, 1 file not stored")
        expect(progress).to_contain_text("picture.bin")
        expect(progress).to_contain_text("not text in any known charset")
        assert page.locator("progress").evaluate("bar => bar.value / bar.max") == 1
        expect(page.locator(".documents .line")).to_have_count(25)
        page.get_by_role("button", name="Next").click()
        expect(page.locator(".documents .line")).to_have_count(21)
        page.get_by_label("Filter").fill("TEA")
        expect(page.locator(".documents .line")).to_have_count(1)
        keep_screenshot(page, "documents")
        page.get_by_role("button", name="Delete Tea time").click()
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
        expect(page.locator(".documents .line")).to_have_count(1)
        page.get_by_role("button", name="Delete Tea time").click()
        page.locator("#confirm").get_by_role("button", name="Delete").click()
        expect(page.locator("#notice")).to_have_text("Deleted tea.md")
        expect(page.locator(".documents .line")).to_have_count(0)


def test_files_of_other_kinds_are_read_by_the_server(viewer: Viewer, tmp_path: Path):
    (tmp_path / "guide.html").write_text(
        "<html><head><title>Winter guide</title></head><body><nav><a href='/'>Start page</a></nav>"
        "<main><h1>Winter guide</h1><p>Salt the steps when it freezes.</p></main></body></html>"
    )
    (tmp_path / "latin.txt").write_bytes("Schöne Grüße aus München, wo die Bäume grüner sind.".encode("latin-1"))
    (tmp_path / "empty.txt").write_bytes(b"")
    with viewer.page("#/documents?kb=kinds", allowed=("400",)) as page:
        page.locator("#files").set_input_files(sorted(tmp_path.iterdir()))
        progress = page.locator(".progress")
        expect(progress).to_contain_text("2 documents stored, 0 unchanged, 1 file not stored")
        expect(progress).to_contain_text("it holds no text")
        page.get_by_role("link", name="Winter guide").click()
        expect(page.locator("#reader .text")).to_contain_text("Salt the steps when it freezes.")
        expect(page.locator("#reader .text")).not_to_contain_text("Start page")
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="latin.txt").click()
        expect(page.locator("#reader .text")).to_contain_text("Schöne Grüße aus München")


def test_files_that_are_dropped_are_put_in(viewer: Viewer):
    with viewer.page("#/documents?kb=dropped", allowed=("400",)) as page:
        page.evaluate("""() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["Dropped from above."], "dropped.txt"));
          const dropped = new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
          document.getElementById("drop").dispatchEvent(dropped);
        }""")
        expect(page.locator(".progress")).to_contain_text("1 document stored")
        expect(page.locator(".documents .title")).to_have_text("dropped.txt")


# ── the server ─────────────────────────────────────────────────────────────────────────────────────


def test_the_status_of_a_source_has_a_reason(viewer: Viewer):
    with viewer.page("#/sources") as page:
        failing = page.locator(".documents .line").first
        expect(failing).to_contain_text("http://127.0.0.1:9/gone")
        expect(failing).to_contain_text("loopback address")
        page.get_by_label("State").select_option("current")
        expect(page.locator(".documents .line")).to_have_count(1)
        expect(page.locator(".documents .line")).to_contain_text("holidays.md")
        keep_screenshot(page, "sources")


def test_kbs_work_in_the_background_and_figures_are_shown(viewer: Viewer):
    with viewer.page("#/server") as page:
        expect(page.locator("#kbs .card", has=page.get_by_text("default", exact=True))).to_contain_text("shards")
        expect(page.locator("#jobs")).to_contain_text("compaction")
        expect(page.locator("#charts .curve")).to_have_count(6)
        with page.expect_response("**/metrics/app"):
            pass
        keep_screenshot(page, "server")


def test_a_key_counts_that_is_entered_while_another_is_refused(browser: Browser, tmp_path: Path):
    held: list[Route] = []

    def hold_wrong_key(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer wrong":
            held.append(route)
        else:
            route.continue_()

    with Served(tmp_path / "project", PAIR__SERVER__AUTH="keys", PAIR__SERVER__SYNC="false") as server:
        key = Keyed(server, tmp_path / "project").key("write")
        assert server.ingest({"lunch.md": "Lunch is at one."}, key=key).status_code == 200
        with Viewer(browser, server.url).page("#/search?q=lunch", allowed=("401", "403")) as page:
            page.route("**/rag/query", hold_wrong_key)
            dialog = page.get_by_role("dialog", name="Sign in")
            dialog.get_by_label("Key").fill("wrong")
            page.keyboard.press("Enter")
            expect(dialog).to_contain_text("not known")
            dialog.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            held[0].continue_()
            expect(page.locator(".hit")).to_contain_text("Lunch is at one")
            expect(dialog).to_be_hidden()


def test_a_server_that_asks_for_a_key_is_given_one(browser: Browser, tmp_path: Path):
    settings = {"PAIR__SERVER__AUTH": "keys", "PAIR__SERVER__SYNC": "false"}
    with Served(tmp_path / "project", **settings) as server:
        keyed = Keyed(server, tmp_path / "project")
        key = keyed.key("write")
        assert server.ingest({"lunch.md": "Lunch is at one."}, key=key).status_code == 200
        with Viewer(browser, server.url).page("#/search?q=lunch", allowed=("401", "403")) as page:
            dialog = page.get_by_role("dialog", name="Sign in")
            dialog.get_by_label("Key").fill("wrong")
            dialog.get_by_role("button", name="Sign in").click()
            expect(dialog).to_contain_text("not known")
            dialog.get_by_label("Key").fill(key)
            page.keyboard.press("Enter")
            expect(page.locator(".hit")).to_contain_text("Lunch is at one")
            page.reload()
            expect(page.locator(".hit")).to_contain_text("Lunch is at one")
            assert key not in page.url
            assert page.evaluate("[document.cookie, localStorage.length]") == ["", 0]
            page.evaluate("key => sessionStorage.setItem('pair.key', key)", keyed.key("read", "default"))
            page.get_by_role("link", name="Server").click()
            expect(page.get_by_role("alert").first).to_contain_text("E603")


# ── accessibility ──────────────────────────────────────────────────────────────────────────────────

VIEWS = {
    "search?q=protocol": ".passage",
    "search?q=protocol&at=1": ".past a",
    "ask": ".empty",
    "documents": ".documents .line",
    "sources": ".documents .line",
    "server": "#jobs .card",
    "search?doc=clocks.md&span=0-40": ".text",
    "search?doc=clocks.md&tab=graph": "svg.graph",
}
"""The views, each with a text that shows that it is open."""


def visited(page: Page) -> Iterator[tuple[str, str]]:
    """Visit each view; yield its address and its name."""
    for view, sign in VIEWS.items():
        page.evaluate("hash => { location.hash = hash }", f"#/{view}")
        page.locator(f".view:not([hidden]) {sign}, dialog {sign}").first.wait_for()
        kind = "-graph" if "tab=" in view else "-open" if "doc=" in view else "-past" if "at=" in view else ""
        yield view, view.partition("?")[0] + kind


def test_nothing_is_cut_off_on_a_phone(viewer: Viewer):
    with viewer.page(viewport=PHONE, has_touch=True, is_mobile=True) as page:
        for view, name in visited(page):
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view
            for link in page.locator("#views a").all():
                box = link.bounding_box()
                assert box is not None
                assert 0 <= box["x"] <= box["x"] + box["width"] <= PHONE["width"]
            keep_screenshot(page, f"phone-{name}")


def test_the_page_works_with_touch_from_search_to_passage(viewer: Viewer):
    with viewer.page(viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.get_by_role("searchbox").tap()
        type_search(page, "soup")
        page.locator(".hit a.title").first.tap()
        expect(page.locator(".text .here", has_text="soup")).to_be_visible()
        page.get_by_role("button", name="Close").tap()
        expect(page.locator(".hit").first).to_be_visible()


def test_a_keyboard_is_enough(viewer: Viewer):
    with viewer.page("#/documents") as page:
        page.keyboard.press("Tab")
        expect_focus_on(page, "Skip to content")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        type_search(page, "clocks")
        expect(page.locator(".hit").nth(1)).to_be_visible()
        titles = page.locator(".hit a.title").all_text_contents()
        page.keyboard.press("ArrowDown")
        expect_focus_on(page, titles[0])
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(outline) == "solid"
        page.keyboard.press("ArrowDown")
        expect_focus_on(page, titles[1])
        page.keyboard.press("Enter")
        expect(page.locator(".text")).to_be_visible()
        for _ in range(12):
            page.keyboard.press("Tab")
            where = "document.activeElement === document.body || document.activeElement.closest('#reader') !== null"
            assert page.evaluate(where)
        page.keyboard.press("Escape")
        expect(page.locator("#reader")).to_be_hidden()
        expect_focus_on(page, titles[1])
        page.keyboard.press("Escape")
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()


@pytest.mark.parametrize("view", ["search?q=wicked", "documents", "ask?q=What+is+about+Mount+Doom%3F"])
def test_script_in_a_document_is_shown_as_text(viewer: Viewer, model: ModelServer, view: str):
    if view.startswith("ask"):
        model.answers.append(Answer(text=f"A wicked page about Mount Doom {EVIL}. [1]"))
    with viewer.page(f"#/{view}") as page:
        opening = page.locator("a", has_text="Wicked <img").first
        expect(opening).to_contain_text(EVIL)
        opening.click()
        expect(page.locator(".text")).to_contain_text(f"Mount Doom {EVIL}")
        expect(page.locator("#reader-title")).to_have_text(f"Wicked {EVIL}")
        expect(page.locator(".sheet-body .tag")).to_have_text(f"{EVIL}: {EVIL}")
        assert page.locator("main img, dialog img, main script, dialog script").count() == 0
        assert page.locator("a[href^='javascript']").count() == 0
        page.locator("#reader").get_by_role("link", name="Graph").click()
        expect(page.locator("svg.graph .node").first).to_be_visible()
        assert page.locator("dialog img, dialog script").count() == 0


_CONTRAST = """
(selectors) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const linear = (part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((part) => linear(part / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor);
      if (colour[3] > 200) return colour;
    }
    return [255, 255, 255, 255];
  };
  return selectors.flatMap((selector) => [...document.querySelectorAll(selector)].slice(0, 3).map((element) => {
    const [one, other] = [light(rgb(getComputedStyle(element).color)), light(ground(element))];
    return [selector, (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)];
  }));
}
"""
TEXTS = {
    "search?q=protocol": [
        ".passage",
        ".hit .title",
        ".hit mark",
        ".path",
        ".tag",
        ".status",
        "#views a",
        ".why summary",
    ],
    "search?q=protocol&at=1": [".past span", ".past a"],
    "ask": [".empty", ".primary", ".asking .quiet"],
    "documents": [".drop p", ".primary", ".danger-text", ".badge", ".path", "label"],
    "sources": [".badge", ".title", ".reason", ".foot", "label", "button"],
    "server": ["h1", "h2", "h3", "dt", "dd", ".badge"],
    "search?doc=clocks.md&span=0-40": [".text", ".here", ".facts .quiet", ".tabs a", ".danger-text"],
    "search?doc=clocks.md&tab=graph": [".lines a", ".lines .quiet"],
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_dark(viewer: Viewer, scheme: str):
    with viewer.page(color_scheme=scheme) as page:
        for view, name in visited(page):
            found = page.evaluate(_CONTRAST, TEXTS[view])
            assert {selector for selector, _ in found} == set(TEXTS[view])
            assert [each for each in found if each[1] < 4.5] == []
            keep_screenshot(page, f"{scheme}-{name}")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 380) == (scheme == "dark")


CONTROLS = {"button", "link", "searchbox", "textbox", "combobox", "DisclosureTriangle"}


def test_everything_has_a_name_and_a_role_for_screen_readers(viewer: Viewer):
    with viewer.page() as page:
        session = page.context.new_cdp_session(page)
        for view, _ in visited(page):
            nodes = [each for each in session.send("Accessibility.getFullAXTree")["nodes"] if not each["ignored"]]
            seen = [(each["role"]["value"], each.get("name", {}).get("value", "").strip()) for each in nodes]
            roles = {role for role, _ in seen}
            assert [each for each in seen if each[0] in CONTROLS and not each[1]] == [], view
            assert roles & CONTROLS
            assert roles >= ({"dialog", "heading"} if "doc=" in view else {"main", "navigation", "banner", "heading"})
            if view.startswith("search?q"):
                assert {"search", "status", "list"} <= roles
