"""Receipts over HTTP: in a response and in a stream of events, checked by the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.served import Served, error_of, pair

QUESTION = {"query": "Which colour has the lighthouse?", "kb_id": "lights"}


@pytest.fixture(scope="module")
def receipt(plain: Served) -> str:
    plain.ingest({"lighthouse.md": "The lighthouse is red and white.", "hut.md": "The hut is grey."}, kb_id="lights")
    text: str = plain.post("/ask", {**QUESTION, "receipt": True}).json()["receipt"]
    return text


def check(plain: Served, tmp_path: Path, text: str) -> Any:
    (tmp_path / "receipt.json").write_text(text)
    return pair(plain.folder, "check", str(tmp_path / "receipt.json"), "--json")


def test_the_receipt_of_a_response_can_be_checked(plain: Served, receipt: str, tmp_path: Path) -> None:
    assert json.loads(receipt)["question"] == QUESTION["query"]
    assert check(plain, tmp_path, receipt)["holds"] is True
    assert "receipt" not in plain.post("/ask", QUESTION).json()


def test_a_stream_ends_with_the_receipt(plain: Served, receipt: str, tmp_path: Path) -> None:
    accept = {"accept": "text/event-stream"}
    events = plain.post("/ask", {**QUESTION, "receipt": True}, headers=accept).text
    last = json.loads(events.strip().rpartition("\ndata: ")[2])
    assert check(plain, tmp_path, last["receipt"])["holds"] is True


def test_the_receipt_of_a_follow_up_question_and_of_a_greeting_can_be_checked(plain: Served, tmp_path: Path) -> None:
    plain.ingest({"lighthouse.md": "The lighthouse is red and white.", "hut.md": "The hut is grey."}, kb_id="lights")
    history = [{"role": "user", "content": QUESTION["query"]}, {"role": "assistant", "content": "Red and white."}]
    follow_up = {**QUESTION, "query": "And why is that?", "context": {"metadata": {"conversation": history}}}
    for asked in (follow_up, {**QUESTION, "query": "Hello!"}):
        receipt = plain.post("/ask", {**asked, "receipt": True}).json()["receipt"]
        query = json.loads(receipt)["retrieval"]["query"]
        assert query != asked["query"]
        assert check(plain, tmp_path, receipt)["holds"] is True


def test_an_answer_without_a_kb_has_no_receipt(plain: Served) -> None:
    assert error_of(plain.post("/librarians/catalogue/ask", {"query": "lights?", "receipt": True})) == (400, "E252")
