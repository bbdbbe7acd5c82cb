"""Who is asked: by AI where there is one, else by words and meaning."""

import asyncio

from pair import errors
from pair.librarians.contract import Context, Delegate, Response
from pair.librarians.routing import Router
from support.readers import SayingModel, WordReader

NO_VECTORS = errors.model_unreachable("nowhere", "no vectors today")
COLLEAGUES = (
    Delegate("deploy", "Deployment", "Releases, rollbacks and pipelines", ("kubernetes", "helm")),
    Delegate("people", "People", "Holidays, contracts and pay"),
    Delegate("kitchen", "Kitchen", "Coffee, lunch and the kubernetes of cake"),
)


def routed(query: str, model: SayingModel | None = None, colleagues: tuple[Delegate, ...] = COLLEAGUES) -> Response:
    return asyncio.run(Router(WordReader(NO_VECTORS))(query, Context(ai=model, available_delegates=colleagues)))


def asked(response: Response) -> list[str]:
    return [each.to for each in response.delegates]


def test_words_of_a_description_choose_whom_to_ask_even_without_vectors() -> None:
    assert asked(routed("how many holidays does my contract have?")) == ["people"]


def test_several_who_may_know_are_asked_together() -> None:
    response = routed("what is kubernetes?")
    assert set(asked(response)) == {"deploy", "kitchen"}
    assert response.metadata["aggregation"] == "best-confidence"


def test_capabilities_count() -> None:
    assert asked(routed("helm chart for releases")) == ["deploy"]


def test_a_model_decides_where_there_is_one() -> None:
    model = SayingModel('I would ask ["kitchen", "nobody"].')
    assert asked(routed("how many holidays do I have?", model)) == ["kitchen"]
    assert "people | People | Holidays" in model.prompts[0]


def test_a_model_that_is_away_or_talks_nonsense_leaves_it_to_words() -> None:
    for said in (errors.model_unreachable("there", "gone"), "no idea", "[nobody", '["nobody"]'):
        assert asked(routed("holidays and contracts", SayingModel(said))) == ["people"]


def test_a_model_may_say_that_nobody_knows() -> None:
    response = routed("holidays and contracts", SayingModel("[]"))
    assert response.delegates == ()
    assert response.confidence == 0


def test_nobody_is_asked_what_nobody_seems_to_know() -> None:
    response = routed("quantum chromodynamics")
    assert response.delegates == ()
    assert response.answer is not None
    assert "Deployment, People, Kitchen" in response.answer


def test_without_colleagues_there_is_nobody_to_hand_over_to() -> None:
    response = routed("holidays", colleagues=())
    assert response.error is not None
    assert response.error.code == "NOT_FOUND"
