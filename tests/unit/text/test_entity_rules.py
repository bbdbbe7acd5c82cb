"""Entities by rules: which are found, by which name, and with which weight."""

import pytest

from pair.text.entity_rules import (
    ALIAS,
    MOST_EDGES,
    MOST_ENTITIES,
    TOGETHER,
    DocumentText,
    TextGrapher,
    build_graph,
    canonical_name,
    find_question_entities,
    title_entity,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("We met Ada Lovelace in London.", {"ada lovelace", "london"}),
        ("the University of Copenhagen is old", {"university of copenhagen", "copenhagen"}),
        ("works by J. R. R. Tolkien and Dr. Watson", {"j r r tolkien", "watson"}),
        ("the Battle of the Bulge began", {"battle of the bulge", "bulge"}),
        ("seen from Apollo 11 by many", {"apollo 11"}),
        ("made by NASA for the U.S. Army", {"nasa", "us army"}),
        ("it raised E0432 in foo_bar with --no-kb", {"e0432", "foo_bar", "--no-kb"}),
        ("see src/pair/web.py, std::vector and parseHtml()", {"src/pair/web.py", "std::vector", "parsehtml"}),
        ('he sang "deliver us from evil" twice', {"deliver us from evil"}),
        ("born on July 16, 1966 at home", {"1966-07-16", "1966"}),
        ("am 3. Mai 2004 eröffnet", {"2004-05-03", "2004"}),
        ("sold 12,500 of them", {"12500"}),
        ("在《红楼梦》中出现", {"红楼梦"}),
        ("nothing to see here, move along", set()),
        ("The house was old. It stood there. In May they left.", set()),
        ("ALL OF THIS IS SHOUTED AT THE READER", set()),
        ("", set()),
        ("\ud800 half a character, and \0 nothing", set()),
    ],
)
def test_a_text_names_these(text: str, found: set[str]) -> None:
    assert {name for name, _, _ in build_graph("", [text]).mentions} == found


@pytest.mark.parametrize(
    ("names", "canonical"),
    [
        (("The Beatles", "the beatles", "BEATLES", " Beatles,"), "beatle"),
        (("U.S.", "US"), "us"),
        (("GPUs", "GPU", "gpu"), "gpu"),
        (("error codes", "Error code"), "error code"),
        (("Americans", "american"), "american"),
        (("Texas",), "texas"),
        (("Beyoncé", "Beyonce\u0301", "Beyonce"), "beyonce"),
        (("\uff37\uff49\uff44\uff45",), "wide"),
        (("Rosario\u2019s", "Rosario's", "Rosario"), "rosario"),
        (("Straße", "STRASSE"), "strasse"),
        (("大学",), "大学"),
        (("", " ", "..."), ""),
    ],
)
@pytest.mark.rule("engine-26")
def test_spellings_of_one_name_are_one(names: tuple[str, ...], canonical: str) -> None:
    assert {canonical_name(name) for name in names} == {canonical}


def test_a_canonical_name_is_its_own() -> None:
    for name in ("j r r tolkien", "us army", "apollo 11", "1966-07-16", "error code", "--no-kb"):
        assert canonical_name(name) == name


def test_the_title_is_an_entity_of_each_chunk_and_the_strongest() -> None:
    graph = build_graph("Ed Wood (film)", ["It was directed by Tim Burton.", "It won two awards."])
    assert [name for name, _, chunk in graph.mentions if chunk == 1] == ["ed wood"]
    weights = {name: weight for name, weight, chunk in graph.mentions if chunk == 0}
    assert max(weights, key=weights.__getitem__) == "ed wood"
    assert weights["tim burton"] == 1.0


def test_a_title_that_is_a_sentence_counts_for_what_it_names() -> None:
    title = "How the people of the coast came to know Captain Cook and what followed"
    assert title_entity(title) == ""
    assert [name for name, _, _ in build_graph(title, ["They waited."]).mentions] == ["captain cook"]


def test_a_short_form_means_the_name_before_it() -> None:
    graph = build_graph("", ["This is about Scott Derrickson.", "Then Derrickson left."])
    assert {name for name, _, _ in graph.mentions} == {"scott derrickson"}


def test_an_acronym_and_its_long_form_are_mentioned_together_from_then_on() -> None:
    graph = build_graph("", ["As the World Health Organization (WHO) says.", "Now WHO is large."])
    both = {"world health organization", "who"}
    assert {name for name, _, chunk in graph.mentions if chunk == 1} == both
    assert {(source, target) for source, target, kind, _, _ in graph.edges if kind == ALIAS} == {
        ("who", "world health organization")
    }


def test_frequent_terms_count_more_but_less_than_proportionally() -> None:
    graph = build_graph("", ["to Rome, from Rome, in Rome, at Rome, and near Oslo"])
    weights = {name: weight for name, weight, _ in graph.mentions}
    assert weights["oslo"] < weights["rome"] < 4 * weights["oslo"]


def test_a_capital_at_the_beginning_of_a_sentence_is_weak_evidence_of_a_name() -> None:
    graph = build_graph("", ["Turbines turn, and so does Norway."])
    weights = {name: weight for name, weight, _ in graph.mentions}
    assert weights["turbine"] < weights["norway"]


def test_a_chunk_has_few_entities_and_edges_whatever_it_lists() -> None:
    names = ", ".join(f"Person{chr(65 + number % 26)}{chr(97 + number // 26)} Smith" for number in range(200))
    graph = build_graph("People", [f"with {names}"])
    assert len(graph.mentions) == MOST_ENTITIES
    assert len(graph.edges) == MOST_EDGES
    assert {kind for _, _, kind, _, _ in graph.edges} == {TOGETHER}


def test_a_pair_tells_more_where_little_else_is_named() -> None:
    few = build_graph("", ["between Paris and Rome"]).edges[0][3]
    many = build_graph("", ["between Paris, Rome, Oslo, Bern, Kyiv and Lima"]).edges[0][3]
    assert few > many


def test_long_text_without_spaces_takes_no_time() -> None:
    for hostile in ("A" * 100_000, "a.b" * 30_000, "A." * 50_000, '"' * 100_000, "A-" * 50_000, "((" * 50_000):
        build_graph("", [hostile])


def test_the_entities_of_a_question_have_the_names_of_the_texts() -> None:
    assert find_question_entities("Were Scott Derrickson and Ed Wood of the same nationality?") == (
        "scott derrickson",
        "ed wood",
    )
    assert find_question_entities("what is lift?") == ()


def test_a_grapher_gives_one_graph_for_each_document() -> None:
    grapher = TextGrapher()
    assert grapher.graphs_of([DocumentText("A title", ["at Oslo"]), DocumentText("", [])]) == [
        build_graph("A title", ["at Oslo"]),
        build_graph("", []),
    ]
