"""The page from an empty KB to feedback, in a real Chromium: adding documents, filters, a conversation."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Route, expect

from support.model_server import Answer, ModelServer
from support.page_viewer import EXECUTABLE, PHONE, Viewer, keep_screenshot
from support.served import Served, opened

pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on the PATH")

SMEAR = "A leap smear hides a leap second. It spreads the second over a whole day."
DOCUMENTS = [
    {"id": "smear.md", "text": f"# Smears\n\n{SMEAR}\n\nServers slow down their clocks.", "metadata": {"team": "time"}},
    {"id": "lunch.md", "text": "# Lunch\n\nLunch is at one.", "metadata": {"team": "food", "year": 2024}},
    {"id": "soup.md", "text": "# Soup\n\nSoup is served on Fridays.", "metadata": {"team": "food", "year": 2025}},
    {"id": "long.md", "text": "".join(f"## Part {n}\n\n{f'Paragraph {n}. ' * 60}\n\n" for n in range(1, 9))},
]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("first") / "project"
    settings = {"PAIR__AI__BASE_URL": model.url, "PAIR__AI__MODEL": "any", "PAIR__AI__RETRIES": "0"}
    with Served(folder, **settings, PAIR__SERVER__SYNC="false") as running:
        assert running.post("/rag/ingest", {"kb_id": "full", "documents": DOCUMENTS}).status_code == 200
        yield running


@pytest.mark.parametrize("context", [{}, {"viewport": PHONE, "color_scheme": "dark"}], ids=["desktop", "phone"])
def test_the_first_screen_of_an_empty_kb_offers_buttons_that_fill_it(viewer: Viewer, context: dict[str, Any]):
    with viewer.page("#/search?kb=empty", allowed=("400",), **context) as page:
        ways = page.locator(".first")
        expect(ways).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        keep_screenshot(page, f"first-{'phone' if context else 'desktop'}")
        with page.expect_file_chooser() as asked:
            ways.get_by_role("button", name="Upload files").click()
        assert asked.value.is_multiple()
        page.go_back()
        with page.expect_file_chooser() as asked:
            ways.get_by_role("button", name="Upload a folder").click()
        assert asked.value.element.get_attribute("webkitdirectory") is not None


def test_a_folder_is_uploaded_with_the_paths_of_its_files(viewer: Viewer, tmp_path: Path):
    for name, text in {"notes/a.md": "# One\n\nFirst.", "notes/deep/b.md": "# Two\n\nSecond."}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with viewer.page("#/documents?kb=folder", allowed=("400",)) as page:
        page.locator("#folder").set_input_files(tmp_path / "notes")
        expect(page.locator(".progress")).to_contain_text("2 documents stored")
        expect(page.locator(".documents .path")).to_have_text(["notes/a.md", "notes/deep/b.md"])


def test_a_web_page_is_added_to_the_sources(viewer: Viewer, server: Served):
    with viewer.page("#/sources") as page:
        field = page.get_by_role("textbox", name="Address of a page")
        field.fill("http://127.0.0.1:9/guide")
        page.get_by_role("button", name="Add").click()
        expect(page.locator(".result")).to_contain_text("Added. See its state", timeout=30_000)
        expect(page.locator(".documents .line")).to_contain_text("http://127.0.0.1:9/guide")
    assert (server.folder / ".pair" / "links.txt").read_text() == "http://127.0.0.1:9/guide\n"


def test_without_a_query_the_documents_of_the_kb_are_named(viewer: Viewer):
    with viewer.page("#/search?kb=full") as page:
        expect(page.locator(".samples")).to_contain_text("4 documents")
        page.locator(".samples").get_by_role("link", name="lunch.md").click()
        expect(page.locator("#reader .text")).to_contain_text("Lunch is at one.")


def test_documents_are_filtered_by_metadata_with_counts(viewer: Viewer):
    with viewer.page("#/documents?kb=full") as page:
        expect(page.locator(".documents .line")).to_have_count(4)
        page.get_by_label("Metadata").select_option("team")
        expect(page.locator(".value")).to_have_text(["food 2", "time 1"])
        page.locator(".value", has_text="food").click()
        expect(page.locator(".documents .path")).to_have_text(["lunch.md", "soup.md"])
        expect(page.locator(".value", has_text="food")).to_have_attribute("aria-pressed", "true")
        keep_screenshot(page, "documents-metadata")
        page.get_by_label("Metadata").select_option("year")
        expect(page.locator(".documents .line")).to_have_count(4)
        page.locator(".value", has_text="2025").click()
        expect(page.locator(".documents .path")).to_have_text(["soup.md"])
        page.locator(".value", has_text="2025").click()
        expect(page.locator(".documents .line")).to_have_count(4)


def test_a_conversation_is_kept_until_a_new_one_begins(viewer: Viewer, model: ModelServer):
    with viewer.page("#/ask?kb=full") as page:
        field = page.get_by_role("textbox", name="Question")
        for question, answer in (
            ("What does a leap smear hide?", "A leap second [1]."),
            ("And why is that?", "So [1]."),
        ):
            model.answers.append(Answer(text=answer))
            field.fill(question)
            page.keyboard.press("Enter")
            expect(page.locator(".turn").first).to_contain_text(question)
            expect(page.locator(".answering")).to_have_attribute("aria-busy", "false", timeout=30_000)
            expect(field).to_have_value("")
        expect(page.locator(".turn h2")).to_have_text(["And why is that?", "What does a leap smear hide?"])
        # The follow-up was answered from the document of the first question.
        expect(page.locator(".turn").first.locator(".source").first).to_contain_text("smear.md")
        keep_screenshot(page, "conversation")
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator(".turn")).to_have_count(0)
        expect(field).to_be_focused()
        expect(page).not_to_have_url(re.compile("q="))


def test_a_citation_marks_the_quoted_words_in_the_document(viewer: Viewer, model: ModelServer):
    model.answers.append(Answer(status=500))  # so that the answer is a quotation
    with viewer.page("#/ask?kb=full&q=What+does+a+leap+smear+hide%3F") as page:
        page.locator(".prose blockquote .cite").first.click()
        expect(page.locator("#reader .here.quoted").first).to_be_in_viewport()
        marked = " ".join(page.locator("#reader .here.quoted").all_text_contents())
        assert marked in SMEAR  # and not the whole passage, which has another paragraph
        keep_screenshot(page, "quoted")


def test_thumbs_store_feedback_on_hits_and_answers(viewer: Viewer, server: Served, model: ModelServer):
    with viewer.page("#/search?kb=full&q=lunch") as page:
        thumb = page.get_by_role("button", name="Helpful: lunch.md", exact=True)
        thumb.click()
        expect(page.locator("#notice")).to_contain_text("Thank you")
        expect(thumb).to_have_attribute("aria-pressed", "true")
        model.answers.append(Answer(text="A leap second [1]."))
        page.goto(f"{viewer.address}/#/ask?kb=full&q=What+does+a+leap+smear+hide%3F")
        page.reload()
        page.get_by_role("button", name="Not helpful: this answer").click()
        expect(page.locator("#notice")).to_contain_text("Thank you")
    with opened(server.folder, "full") as kb:
        stored = [(each.query, each.rating, each.documents) for each in kb.feedback.list()]
    assert stored[0] == ("lunch", "up", ("lunch.md",))
    assert stored[1][:2] == ("What does a leap smear hide?", "down")
    assert "smear.md" in stored[1][2]


def test_a_long_document_has_a_table_of_contents(viewer: Viewer):
    with viewer.page("#/search?kb=full&doc=long.md") as page:
        page.get_by_text("Contents").click()
        page.locator(".outline").get_by_role("button", name="Part 7").click()
        expect(page.locator("#reader .text").get_by_role("heading", name="Part 7")).to_be_in_viewport()
    with viewer.page("#/search?kb=full&doc=lunch.md") as page:
        expect(page.locator("#reader .text")).to_be_visible()
        assert page.locator(".outline").count() == 0


def test_requests_since_the_start_are_drawn(viewer: Viewer, server: Served):
    server.get("/rag/docs", params={"kb_id": "none"})
    with viewer.page("#/server") as page:
        expect(page.locator("#history .curve")).to_have_count(3)
        expect(page.get_by_role("heading", name=re.compile("^Since the start"))).to_be_visible()
        failed = page.locator("#history .chart", has=page.get_by_role("heading", name="Errors")).locator("strong")
        assert int(failed.text_content() or "0") >= 1


def test_every_list_says_that_it_is_loading(viewer: Viewer):
    with viewer.page("#/ask", allowed=("400",)) as page:
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        requests = re.compile(r"/(rag/docs|sync|rag/versions|rag/kbs)\b")
        page.route(requests, hold)
        for view, name in {
            "documents": "Documents",
            "sources": "Sources",
            "versions": "Versions",
            "server": "Server",
        }.items():
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator(f"#view-{view} [aria-busy=true]")).to_contain_text("Loading…")
        page.unroute(requests, hold)
        for route in held:
            with contextlib.suppress(Error):  # the page was left meanwhile, or removing the handler went on with it
                route.continue_()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_a_shortened_name_in_the_graph_is_part_of_the_name_that_is_read_out(viewer: Viewer, server: Served):
    names = ("Spreadsheets count days from the wrong year", "Unbreakablelongwordwithoutanyspaces")
    texts = {f"{n}.md": f"# {name}\n\nThe Network Time Protocol, part {n}." for n, name in enumerate(names)}
    documents = [{"id": id_, "text": text, "title": names[int(id_[0])]} for id_, text in texts.items()]
    server.post("/rag/ingest", {"kb_id": "names", "documents": documents})
    with viewer.page("#/search?kb=names&doc=0.md&tab=graph") as page:
        nodes = page.locator("svg.graph .node")
        nodes.first.wait_for()
        for node in nodes.all():
            assert (node.locator("text").text_content() or "-") in (node.get_attribute("aria-label") or "")
