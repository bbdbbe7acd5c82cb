"""Words in many languages, compounds and misspelled words."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, SearchMode, SearchOptions
from support.engine_parts import Ground, ids_of

STATIC = {"embedder": "static", "embedding_dimension": 0, "graph": "text"}
TEXTS = {
    "en": "The engineers are building three bridges over the river, and the bridges will be opened in spring.",
    "de": "Die Häuser der Stadt sind alt, und viele von ihnen wurden nach dem Krieg nicht wieder aufgebaut.",
    "de compound": "Die Verteidigung der Burg war schwer, weil die Spieler der Mannschaft nicht mehr wollten.",
    "fr": "L'histoire de l'université est longue, et les étudiants y sont venus de toute l'Europe pour apprendre.",
    "es": "Los agricultores de la región cultivan naranjas y limones que se venden en los mercados.",
    "it": "I bambini della scuola sono andati al museo perché c'era una mostra dell'arte antica.",
    "pt": "Os pescadores da vila não saem para o mar quando as ondas são muito altas.",
    "sv": "Flickorna i skolan har läst många böcker om djuren som lever i skogarna.",
    "fi": "Kirjastot ovat suosittuja, ja niissä on myös paljon lehtiä, joita kaikki voivat lukea.",
    "ru": "Студенты читают книги в библиотеках, и они не всегда возвращают их в срок.",
    "tr": "Çocuklar için bu parkta çok güzel ağaçlar ve oyuncaklar var, ama daha değil.",
    "zh": "北京是中华人民共和国的首都, 也是全国的政治和文化中心。",
    "set": "Kanzlerinnen, Minister, Abgeordnete",
    "code": "Release 4711 needs libfoo2 and kubernetes before the containers are scheduled.",
}


def documents() -> list[Document]:
    return [Document(name, text, metadata={"lang": "de-AT"} if name == "set" else {}) for name, text in TEXTS.items()]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with Ground(tmp_path_factory.mktemp("languages"), **STATIC).open() as opened:
        opened.upsert(documents())
        yield opened


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("bridge", "en"),
        ("Haus", "de"),
        ("die HAUSER", "de"),
        ("Verteidigungsspieler", "de compound"),
        ("l'étudiant", "fr"),
        ("etudiante d\u2019histoire", "fr"),
        ("naranja", "es"),
        ("un bambino", "it"),
        ("pescador", "pt"),
        ("skog", "sv"),
        ("kirjasto", "fi"),
        ("библиотека", "ru"),
        ("ağaç", "tr"),
        ("首都", "zh"),
        ("Kanzlerin", "set"),
        ('"Häuser der Stadt"', "de"),
        ("Stadt -Burg", "de"),
    ],
)
def test_a_word_is_found_in_any_form_of_its_language(kb: KnowledgeBase, query: str, expected: str) -> None:
    assert ids_of(kb.search(query, limit=1, mode="keyword")) == [expected]


@pytest.mark.parametrize(
    ("query", "expected", "corrected"),
    [
        ("kuberentes", "code", "kuberentes → kubernetes"),
        ("brigdes", "en", "brigdes → bridges"),
        ("Mannnschaft", "de compound", "Mannnschaft → mannschaft"),
        ("xontainers", "code", "xontainers → containers"),
    ],
)
def test_a_misspelled_word_finds_its_nearest_neighbours(
    kb: KnowledgeBase, query: str, expected: str, corrected: str
) -> None:
    [hit] = kb.search(query, limit=1, mode="keyword", explain=True)
    assert hit.document_id == expected
    assert hit.explanation is not None
    assert hit.explanation["corrected"] == corrected
    [right] = kb.search(corrected.rpartition(" ")[2], limit=1, mode="keyword", explain=True)
    assert right.explanation is not None
    assert "corrected" not in right.explanation
    assert hit.score < right.score


@pytest.mark.parametrize("query", ["4712", "libfoo3", "brigdes2", "zug", "river asdfghjk"])
def test_numbers_identifiers_and_known_words_are_not_corrected(kb: KnowledgeBase, query: str) -> None:
    for hit in kb.search(query, mode="keyword", explain=True, options=SearchOptions(allow_weak=True)):
        assert hit.explanation is not None
        assert "corrected" not in hit.explanation


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Haus", ["Häuser"]),
        ("der Krieg der Städte", ["Stadt", "Krieg"]),
        ("étudiante", ["étudiants"]),
        ("bridge brigdes", ["bridges", "bridges"]),
        ("Häuzer", ["Häuser"]),
        ("Kanzlerin", ["Kanzlerinnen"]),
        ("首都", ["首都"]),
    ],
)
def test_inflected_and_corrected_words_are_marked(kb: KnowledgeBase, query: str, expected: list[str]) -> None:
    [hit] = kb.search(query, limit=1, mode="keyword", options=SearchOptions(highlights=True))
    assert [hit.text[start:end] for start, end in hit.highlights] == expected


TOPIC = {
    "de": "# Leihfristen\n\nDie Stadtbücherei verleiht ihre Bücher für 28 Tage. Wer sie später zurückbringt, zahlt "
    "eine Gebühr von 2 Euro. Zeitschriften werden nicht verliehen, weil sie leicht verloren gehen.",
    "fr": "# Durée du prêt\n\nLa bibliothèque prête ses livres pour 21 jours. Les lecteurs qui les rendent plus tard "
    "paient une amende de 3 euros. Les revues ne sont pas prêtées, parce qu'elles se perdent vite.",
    "en": "# Loans\n\nThe library lends its books for 14 days. Readers who return them later pay a fine of 4 pounds. "
    "Magazines are not lent, because they are easily lost.",
}


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with Ground(tmp_path_factory.mktemp("topic"), **STATIC).open() as opened:
        opened.upsert(Document(language, text) for language, text in TOPIC.items())
        yield opened


@pytest.mark.parametrize(
    ("query", "document", "answer"),
    [
        ("Für wie viele Tage wird ein Buch verliehen?", "de", "28 Tage"),
        ("Was kostet es, Bücher spät zurückzubringen?", "de", "2 Euro"),
        ("Warum wird eine Zeitschrift nicht verliehen?", "de", "weil"),
        ("Pour combien de jours la bibliothèque prête-t-elle un livre ?", "fr", "21 jours"),
        ("Pourquoi la revue n'est-elle pas prêtée ?", "fr", "parce"),
        ("For how many days does the library lend a book?", "en", "14 days"),
    ],
)
def test_a_question_is_answered_from_the_document_in_its_language(
    topic: KnowledgeBase, query: str, document: str, answer: str
) -> None:
    response = asyncio.run(topic.ask(query))
    assert response.metadata["outcome"] == "answer", response
    assert response.sources[0].provenance is not None
    assert response.sources[0].provenance.document_id == document
    assert answer in (response.answer or "")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_answers_in_a_kb_of_mixed_languages(kb: KnowledgeBase, mode: SearchMode) -> None:
    assert ids_of(kb.search("Welche Häuser der Stadt sind alt?", limit=1, mode=mode)) == ["de"]


def test_scores_in_mixed_languages_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    gone = Document("gone", "Byen er kendt for sit historiske centrum og har mange museer, der bliver besøgt.")
    answers = []
    for rows in (1000, 2):
        ground = Ground(tmp_path / str(rows), **STATIC, shard_trigger_vector_rows=rows, max_vector_rows_per_shard=rows)
        with ground.open() as kb:
            kb.upsert([*documents(), gone])
            kb.delete(["gone"])
            for _ in range(2):
                hits = [kb.search(query, mode="keyword", explain=True) for query in ("die Häuser der Stadt", "brigdes")]
                answers.append([hit.to_json() for found in hits for hit in found])
                kb.maintenance.compact(everything=True)
    assert answers[0]
    assert all(answer == answers[0] for answer in answers)
