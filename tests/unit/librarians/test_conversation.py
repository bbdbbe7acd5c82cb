"""Small talk, and questions that refer to an earlier one."""

import pytest

from pair.librarians.questions import complete_follow_up, is_small_talk

PORT = "Which port does PostgreSQL listen on?"


@pytest.mark.parametrize(
    "query",
    [
        "hello",
        "Hi there!",
        "THANKS A LOT!",
        "Hello! Who are you and what can you do?",
        "what is this KB about?",
        "why?",
    ],
)
def test_greetings_and_questions_about_the_kb_are_small_talk(query: str) -> None:
    assert is_small_talk(query.replace("KB", "kb"))


@pytest.mark.parametrize("query", ["help me install git", "What is git?", "Who is in the WHO?", "", "???", "naïve"])
def test_a_question_with_another_word_is_no_small_talk(query: str) -> None:
    assert not is_small_talk(query)


@pytest.mark.parametrize(
    ("query", "earlier", "completed"),
    [
        ("and why is that?", [PORT], "and why is that? port PostgreSQL listen"),
        ("And how do I change it?", ["hi", PORT], "And how do I change it? port PostgreSQL listen"),
        ("why?", [PORT, "And how do I change it?"], "why? change port PostgreSQL listen"),
        ("What about the port of MySQL?", [PORT], "What about the port of MySQL? PostgreSQL listen"),
        ("How do I create a virtual environment?", [PORT], "How do I create a virtual environment?"),
        ("thanks!", [PORT], "thanks!"),
        ("why?", [], "why?"),
    ],
)
def test_a_follow_up_gets_the_content_words_of_the_question_before_it(
    query: str, earlier: list[str], completed: str
) -> None:
    assert complete_follow_up(query, earlier) == completed
