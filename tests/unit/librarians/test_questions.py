"""The kind of a question, and the statements that can answer it."""

import pytest

from pair.librarians.questions import AskedQuestion, classify, mend_slips, understand
from pair.text import tokenizer
from pair.text.evidence import QuotableBlock, TermReader


def ask(query: str) -> AskedQuestion:
    return understand(query, dict.fromkeys(tokenizer.parse_query(query).terms, 4.0))


def read(text: str) -> list[QuotableBlock]:
    return TermReader("en").read_quotable("", text, frozenset(), 2, steps=False)


def fit(query: str, statement: str) -> float:
    return ask(query).fit(read(statement)[0])


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("How many columns can a table have?", "number"),
        ("Wie viele Spalten hat eine Tabelle?", "number"),
        ("Which exit status does timeout return?", "number"),
        ("Who wrote Python?", "name"),
        ("Which isolation level is the default?", "name"),
        ("When was the name chosen?", "date"),
        ("Since which version are there dataclasses?", "date"),
        ("Which option lists hidden files?", "command"),
        ("What is a tablespace?", "definition"),
        ("Does git track empty folders?", "yes-no"),
        ("How do I restore a dump?", "how-to"),
        ("Comment restaurer une base ?", "how-to"),
        ("Why must keys be immutable?", "why"),
        ("What is the difference between json and jsonb?", "comparison"),
        ("leap smear", "any"),
    ],
)
def test_the_kind_is_known_by_the_words_that_ask(query: str, kind: str) -> None:
    assert classify(query) == kind


@pytest.mark.parametrize(
    ("language", "kinds"),
    [
        ("de", "Wer kam?|Was ist das?|Wann kam er?|Wie viele kamen?|Warum kam er?|Wie installiere ich es?"),
        ("fr", "Qui a gagné ?|Qu'est-ce que c'est ?|Quand ?|Combien de jours ?|Pourquoi ?|Comment installer ?"),
        ("es", "¿Quién ganó?|¿Qué es eso?|¿Cuándo?|¿Cuántos días?|¿Por qué?|¿Cómo puedo instalarlo?"),
        ("it", "Chi ha vinto?|Che cos'è?|Quando?|Quanti giorni?|Perché?|Come posso installarlo?"),
        ("pt", "Quem ganhou?|O que é isso?|Quando?|Quantos dias?|Por que?|Como posso instalar?"),
        ("nl", "Wie won?|Wat is dat?|Wanneer?|Hoeveel dagen?|Waarom?|Hoe installeer ik het?"),
    ],
)
def test_the_kind_is_known_in_the_language_of_the_text(language: str, kinds: str) -> None:
    asked = [classify(query, language) for query in kinds.split("|")]
    assert asked == ["name", "definition", "date", "number", "why", "how-to"]


def test_words_are_compared_by_the_stems_and_compounds_of_the_language() -> None:
    question = understand("Wie heißen die Häuser der Stadtverwaltung?", {"hauser": 4.0, "stadtverwaltung": 4.0}, "de")
    held = frozenset(tokenizer.terms("Ein Haus der Verwaltung steht in jeder Stadt.", "de"))
    assert question.coverage(held) < 1.0
    assert mend_slips(question, held).coverage(held) == 1.0


@pytest.mark.parametrize(
    ("query", "answer", "other"),
    [
        ("How many leap seconds were added?", "Since 1972 there were 27 of them.", "Leap seconds were added often."),
        ("How long is the timeout?", "The timeout is 30 seconds.", "The timeout is in section 5 of it."),
        ("Which port is it, unless changed?", "The port is 5432 by default.", "The port is 5432 for clients."),
        ("When was it renamed?", "It got another name in 1996.", "It was renamed by its authors."),
        ("Which option lists all files?", "Use --all to list them.", "All files are listed by it."),
        ("What is a savepoint?", "A savepoint is a mark inside a transaction.", "Locks end when a savepoint is left."),
        ("Why is it slow?", "It is slow because each step copies.", "It is slow on all machines."),
        ("How do I restore a dump?", "To restore it:\n\n```\npsql < dump\n```", "Restoring a dump takes a while."),
    ],
)
def test_a_statement_with_the_form_of_an_answer_fits_better(query: str, answer: str, other: str) -> None:
    assert fit(query, answer) > fit(query, other)


def test_the_first_statement_after_a_term_defines_it() -> None:
    first, second = read("**savepoint**\n\nA mark to go back to. Many people like them a lot.")
    question = ask("What is a savepoint?")
    assert question.fit(first) > question.fit(second)


def test_rare_words_count_more_and_words_that_frame_a_question_less() -> None:
    question = understand("how many zebras exactly run?", {"mani": 4.0, "zebra": 16.0, "exact": 4.0, "run": 1.0})
    assert question.coverage({"zebra"}) > 0.5 > question.coverage({"run", "mani"})
    assert question.count_known({"zebra"}) > question.coverage({"zebra"})
    assert question.coverage(set()) == 0.0


def test_a_question_without_content_words_is_covered_by_nothing() -> None:
    assert understand("???", {}).coverage({"anything"}) == 0.0


def test_a_compound_is_held_by_its_whole_or_its_parts() -> None:
    question = ask("pg_dumpall")
    assert question.coverage({"pg_dumpall"}) == 1.0
    assert question.coverage({"pg", "dumpal"}) in {1.0, 0.5}


def test_a_slip_is_mended_by_the_words_of_the_passages() -> None:
    question = mend_slips(ask("defualt postgress prot"), frozenset({"default", "postgr", "port"}))
    assert [word.terms for word in question.words[:1]] == [("default",)]


def test_a_word_that_is_like_no_other_stays() -> None:
    question = ask("kubernetes")
    assert mend_slips(question, frozenset({"default", "kubelet"})) == question


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("Do dictionaries keep the order in which keys were inserted?", "yes-no"),
        ("Can you tell me who wrote it?", "name"),
        ("Can a table have more than one owner?", "yes-no"),
    ],
)
def test_a_question_that_begins_with_a_verb_asks_for_yes_or_no_unless_it_is_a_request(query: str, kind: str) -> None:
    assert classify(query) == kind


@pytest.mark.parametrize(
    "statement",
    [
        "If a deadlock is a problem, set a timeout.",
        "The usual cause of a deadlock is a long transaction.",
        "A deadlock is currently being resolved.",
        "This deadlock is a sign of contention.",
        "where the deadlock is a cycle of locks.",
        "A deadlock that is a cycle of three writers takes longer.",
    ],
)
def test_a_sentence_about_something_does_not_define_it(statement: str) -> None:
    assert fit("What is a deadlock?", "A deadlock is a cycle of writers that wait for each other.") == 1.0
    assert fit("What is a deadlock?", statement) < 0.5


@pytest.mark.parametrize(
    "statement",
    [
        "Changed in version 3.5: the number of workers has a default.",
        "Section 27.2 and RFC 2616 describe the number of workers.",
        "See prune(1) and sha256 for the number of workers.",
    ],
)
def test_digits_that_count_nothing_are_not_numbers(statement: str) -> None:
    assert fit("How many workers are started?", "It starts 4 workers.") == 1.0
    assert fit("How many workers are started?", statement) == 0.0


def test_a_question_for_a_date_is_answered_by_a_date() -> None:
    assert fit("When was the task group added?", "Tasks can be added to the group.") == 0.0
    assert fit("When was the task group added?", "New in version 3.11.") == 1.0
