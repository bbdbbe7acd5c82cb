"""The choice of librarians: by a model if there is one, else by words and meaning."""

import asyncio
import functools
from collections.abc import Mapping
from types import MappingProxyType

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


def find(evidence: float, _query: str) -> float:
    return evidence


def routed(
    query: str,
    model: SayingModel | None = None,
    colleagues: tuple[Delegate, ...] = COLLEAGUES,
    evidence: Mapping[str, float] = MappingProxyType({}),
) -> Response:
    """Route a query. `evidence`: the estimates of librarians with a KB."""
    router = Router(WordReader(NO_VECTORS), {name: functools.partial(find, found) for name, found in evidence.items()})
    return asyncio.run(router(query, Context(ai=model, available_delegates=colleagues)))


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


def test_without_a_usable_reply_of_a_model_words_decide() -> None:
    for said in (errors.model_unreachable("there", "gone"), "no idea", "[nobody", '["nobody"]'):
        assert asked(routed("holidays and contracts", SayingModel(said))) == ["people"]


def test_a_model_may_choose_no_librarian() -> None:
    response = routed("holidays and contracts", SayingModel("[]"))
    assert response.delegates == ()
    assert response.confidence == 0


def test_a_question_without_a_match_reaches_no_librarian() -> None:
    response = routed("quantum chromodynamics")
    assert response.delegates == ()
    assert response.answer is not None
    assert "Deployment, People, Kitchen" in response.answer


def test_without_other_librarians_a_router_cannot_delegate() -> None:
    response = routed("holidays", colleagues=())
    assert response.error is not None
    assert response.error.code == "NOT_FOUND"


def test_the_passages_of_a_kb_decide_and_not_its_description() -> None:
    found = {"deploy": 0.1, "people": 0.2, "kitchen": 0.9}
    assert asked(routed("how many holidays does my contract have?", evidence=found)) == ["kitchen"]


def test_kbs_with_similar_evidence_are_asked_together_the_best_first() -> None:
    found = {"deploy": 0.5, "people": 0.8, "kitchen": 0.1}
    response = routed("anything", evidence=found)
    assert asked(response) == ["people", "deploy"]
    assert response.metadata["method"] == "evidence"


def test_a_kb_is_asked_even_if_nothing_describes_the_question() -> None:
    assert asked(routed("quantum chromodynamics", evidence={"deploy": 0.05, "people": 0.01})) == ["deploy"]


def test_a_librarian_without_a_kb_is_asked_beside_kbs_if_its_description_fits() -> None:
    assert asked(routed("holidays and contracts", evidence={"deploy": 0.7, "kitchen": 0.1})) == ["deploy", "people"]


def test_a_kb_with_clear_evidence_is_asked_although_the_model_chose_another() -> None:
    assert asked(routed("holidays?", SayingModel('["kitchen"]'), evidence={"people": 0.9})) == ["kitchen", "people"]
    assert asked(routed("holidays?", SayingModel("[]"), evidence={"people": 0.9})) == ["people"]


def test_a_kb_that_cannot_be_searched_has_no_evidence() -> None:
    def fail(_: str) -> float:
        raise errors.kb_uninitialised("people")

    router = Router(WordReader(NO_VECTORS), {"people": fail, "kitchen": lambda _: 0.3})
    response = asyncio.run(router("holidays", Context(available_delegates=COLLEAGUES[1:])))
    assert asked(response) == ["kitchen"]
