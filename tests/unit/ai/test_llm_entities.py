"""The usable part of a model's reply about entities."""

import json

import pytest

from pair.ai.contract import Extraction, Relation
from pair.ai.llm_entities import parse_extraction

EDGE = {"src": "Ada", "dst": "Charles", "rel": "wrote to", "weight": 0.5}


def test_a_valid_reply_is_used_unchanged() -> None:
    reply = json.dumps({"entities": ["Ada", "Charles", "London"], "edges": [EDGE]})
    expected = Extraction(("Ada", "Charles", "London"), (Relation("Ada", "Charles", "wrote to", 0.5),))
    assert parse_extraction(reply) == expected
    assert parse_extraction(f"Here you are:\n```json\n{reply}\n```\nAnything else?") == expected


@pytest.mark.parametrize("reply", ["", "no", "{", "{]}", "[1]", "}{", "{" * 100_000 + "}"])
def test_a_reply_without_an_object_is_of_no_use(reply: str) -> None:
    assert parse_extraction(reply) is None


@pytest.mark.parametrize("weight", [0, -1, None, "much", True, float("nan"), float("inf"), [1]])
def test_a_weight_that_is_none_becomes_one(weight: object) -> None:
    found = parse_extraction(json.dumps({"edges": [{**EDGE, "weight": weight}]}))
    assert found is not None
    assert found.relations[0].weight == 1.0


def test_missing_fields_cost_no_more_than_their_piece() -> None:
    edges = [{"src": "Ada", "dst": "Charles"}, {"src": "Ada"}, {"dst": "Ada"}, "Ada", None, {"src": 1, "dst": "x"}]
    found = parse_extraction(json.dumps({"edges": edges, "entities": [{"name": "Rome"}, {"id": 3}, 7, " ", None]}))
    assert found == Extraction(("Rome", "Ada", "Charles"), (Relation("Ada", "Charles", "related", 1.0),))
    assert parse_extraction("{}") == Extraction()
    assert parse_extraction('{"entities": "Ada", "edges": {"src": 1}}') == Extraction()
